/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CPUTIME_H
#define PIPIT_BASE_CPUTIME_H

/* Does a process hang, or does nobody let it run? Real-time work, a cgroup's quota or many other
 * processes may keep the CPU from an engine for any time: then it is runnable and takes none. One
 * that hangs sleeps, or takes all it wants. Needs nothing of the process itself. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* CPU time of all its threads so far, ns; -1: not known. */
int64_t cputime_ns(pid_t pid);

/* Is a thread of it waiting for a CPU, or on one? */
bool cputime_is_wanted(pid_t pid);
/* The same of one thread of this process. */
bool cputime_is_wanted_by(pid_t tid);

#endif
