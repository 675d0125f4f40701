/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_ARENA_H
#define PIPIT_DAEMON_FRONT_ARENA_H

/* Shared memory that the front makes: a lane's two arenas, and the journal.
 *
 * Sealed SHRINK|GROW|SEAL: nobody can shorten it under a mapping (no SIGBUS) or make it larger.
 * Never FUTURE_WRITE, which forbids punching: a client that keeps a closed lane's mapping would
 * then keep our memory. e2c has mode 0400, and the client gets a read-only descriptor of it, which
 * it cannot reopen for writing. */

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

/* A sealed memfd of `size` bytes. `name` is a literal that shows in /proc. -ENOMEM, -EMFILE ... */
int arena_memfd(const char *name, size_t size, mode_t mode, int *ret_fd, struct error *reterr)
    WARN_UNUSED;

/* The same memory through a read-only descriptor. */
int arena_read_only(int fd, int *ret_fd, struct error *reterr) WARN_UNUSED;

/* Gives the memory back, whoever still maps it, and closes the descriptor. Takes -1. */
void arena_drop(int *fd, size_t size);

#endif
