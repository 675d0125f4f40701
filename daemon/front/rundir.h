/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_RUNDIR_H
#define PIPIT_DAEMON_FRONT_RUNDIR_H

/* The runtime directory: which one, is it safe, is it ours alone; and the sockets in
 * it.
 *
 *     DIR/lock       held by flock(2) for as long as the daemon lives; its text is the pid
 *     DIR/lane.sock  the door
 *     DIR/zmq.sock   the gateway's
 *
 * The lock is taken before anything is bound, so a second daemon on the same directory is refused
 * and a stale socket of a dead one can be removed without a race. */

#include <stdbool.h>

#include "base/error.h"

struct config;

/* The name under which systemd keeps the journal. */
#define RUNDIR_JOURNAL "journal"

struct rundir {
    char path[96];
    int lock_fd;
    int lane_fd;    /* listening */
    int gateway_fd; /* listening, privileged; -1 but under systemd */
    int journal_fd; /* of a front before us, from systemd; -1: none */
    bool activated; /* sockets came from systemd: not ours to remove */
};

/* Where DIR is. `system` says that systemd started us as a system service. -ENAMETOOLONG, -EPERM
 * (somebody else's or too open folder), -ENOTDIR ... */
int rundir_choose(const struct config *c, bool system, struct rundir *ret,
                  struct error *reterr) WARN_UNUSED;

/* Takes the lock. -EBUSY names the pid that holds it. */
int rundir_lock(struct rundir *r, struct error *reterr) WARN_UNUSED;

/* Binds lane.sock, unless lane_fd is set already (socket activation). */
int rundir_listen(struct rundir *r, struct error *reterr) WARN_UNUSED;

/* Leaves the cause of a first start that failed in DIR/failure ("CODE TEXT", a line) for `pipit wait`;
 * the next rundir_lock() removes it. */
void rundir_write_failure(const struct rundir *r, int exit_code, const char *cause);

/* Closes all, removes what was bound. */
void rundir_close(struct rundir *r);

#endif
