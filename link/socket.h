/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_LINK_SOCKET_H
#define PIPIT_LINK_SOCKET_H

/* Records over the SOCK_SEQPACKET socket of a lane: one message, one record. Every descriptor is
 * close-on-exec, no call blocks but socket_send() for its timeout, and none raises SIGPIPE. */

#include <sys/types.h>

#include "base/error.h"
#include "proto/lane/record.h"

enum { SOCKET_PATH_MAX = 107 };

/* A non-blocking socket connected to `path`, the caller's to close. -ENAMETOOLONG, -EAGAIN when the
 * listener's backlog is full, or connect(2)'s error. */
int socket_connect(const char *path, int *ret) WARN_UNUSED;

/* Sends one record; waits at most timeout_ms for room (0: not at all). 0, -EAGAIN or -ETIMEDOUT
 * without room, -EPIPE or -ECONNRESET when the peer is gone. */
int socket_send(int sock, const struct lane_record *r, int timeout_ms) WARN_UNUSED;

/* 1 with a record and its true length in bytes (one more than a record's for anything longer), 0 at
 * the end of the connection, -EAGAIN when nothing is there. At most two descriptors go to fds (else
 * -1) and are the caller's; all others are closed. */
int socket_recv(int sock, struct lane_record *ret, ssize_t *ret_n, int fds[2]) WARN_UNUSED;

#endif
