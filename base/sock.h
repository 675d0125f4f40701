/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_SOCK_H
#define PIPIT_BASE_SOCK_H

/* Messages with descriptors over AF_UNIX sequenced-packet sockets, and the checks on paths that
 * every program here needs. Nothing here blocks unless the socket does. */

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <sys/un.h>

#include "base/error.h"

enum { SOCK_MAX_FDS = 4, SOCK_PATH_MAX = 107 };

/* A peer that ends while something of ours lies unread in its socket leaves ECONNRESET in ours,
 * once, before what it sent itself. Nothing is lost by it: what was sent is read next, then the
 * end. So whoever reads tries again after the first (`*seen` begins as false); with errno set. */
bool sock_reset(bool *seen);

/* Sends one whole message with `n_fds` descriptors (which stay the caller's). 0, or a negative
 * errno; -EAGAIN when the peer's queue is full or the kernel has no memory for it now, -EPIPE when
 * it is gone (no SIGPIPE). */
int sock_send(int fd, const void *buf, size_t size, const int *fds, int n_fds) WARN_UNUSED;

/* Receives one message of at most `size` bytes: its true length (which may be larger: the rest is
 * lost), 0 at the end of the connection, or a negative errno; -EAGAIN also when the kernel has no
 * memory for it now. With `fds` (room for SOCK_MAX_FDS)
 * the descriptors that came are the caller's, close-on-exec; without it the kernel drops them. */
ssize_t sock_recv(int fd, void *buf, size_t size, int *fds, int *ret_n_fds) WARN_UNUSED;

/* A sequenced-packet listener's or peer's address. -ENAMETOOLONG with the limit in the text. */
int sock_address(const char *path, struct sockaddr_un *ret, struct error *reterr) WARN_UNUSED;

#endif
