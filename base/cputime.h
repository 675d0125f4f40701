/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CPUTIME_H
#define PIPIT_BASE_CPUTIME_H

/* Does a process hang, or does nobody let it run? Real-time work, a cgroup's quota or many other
 * processes may keep the CPU from an engine for any time: then it is runnable and takes none. One
 * that hangs sleeps, or takes all it wants.
 *
 * Whether a thread is runnable is said by its file in /proc, which others cannot open where the
 * process is not dumpable and /proc is mounted with hidepid (ProtectProc= of a unit). So the
 * process opens its threads' files itself and hands the descriptors on: the kernel asks for
 * permission when such a file is opened, and when it is read only for fields other than the state
 * (proc(5)). */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

enum { CPUTIME_THREADS = 256 }; /* most that are looked at */

/* CPU time of all threads of a process so far, ns; -1: not known. */
int64_t cputime_ns(pid_t pid);

/* Opens the states of this process's threads, of at most `most`, oldest first: how many.
 * Descriptors are the caller's, close-on-exec. */
int cputime_open_threads(int *ret_fds, int most);
/* Is this a file of /proc? Others, say a pipe, could make a reader wait. */
bool cputime_is_state(int fd);
/* Is one of n threads waiting for a CPU, or on one? One that has ended is not. */
bool cputime_is_wanted(const int *fds, int n);
/* The same of one thread of this process. */
bool cputime_is_wanted_by(pid_t tid);

#endif
