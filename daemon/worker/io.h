/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_IO_H
#define PIPIT_DAEMON_WORKER_IO_H

/* The I/O thread: records between the front's socket and the rings; interrupts a long step when a
 * request in it is cancelled; keeps the heartbeat going while a step runs. Returns the process's
 * exit code when the worker thread has ended and all its records are sent, or when the front is
 * gone. */

struct worker;

int io_run(struct worker *w, int front_fd);

#endif
