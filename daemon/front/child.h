/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_CHILD_H
#define PIPIT_DAEMON_FRONT_CHILD_H

/* Starting the programs that the front supervises. */

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* Where a program of ours lies: beside this one, in ../`folder`/ beside it (an uninstalled build), or
 * in the private programs' folder of the installation. -ENOENT names what was tried. */
int child_find(const char *name, const char *folder, char *ret_path, size_t size,
               struct error *reterr) WARN_UNUSED;

/* Forks and executes with `fds` as descriptors 3, 4, ... and nothing else but stdin, stdout, stderr.
 * The child is killed when this process dies, and is in a process group of its own, so that a
 * terminal's Ctrl-C reaches only us. */
int child_spawn(const char *path, char *const argv[], const int *fds, int n_fds, pid_t *ret_pid,
                struct error *reterr) WARN_UNUSED;

/* "exit code 3", "signal 9 (Killed)". */
void child_describe(int status, char *ret, size_t size);

#endif
