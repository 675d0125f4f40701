/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_ROUTER_H
#define PIPIT_DAEMON_GATEWAY_ROUTER_H

/* The ZeroMQ side: one ROUTER socket for clients, and the in-process ZAP handler that libzmq asks
 * about each new connection. Messages are one frame (after an optional empty delimiter). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "base/error.h"

struct router {
    void *context;
    void *socket;
    void *zap;
    bool unread; /* messages may wait that no descriptor tells of */
};

/* Who sent a message, and how to answer. */
struct router_peer {
    uint8_t id[255]; /* libzmq's routing id */
    uint8_t id_len;
    bool delimiter; /* the message began with an empty frame: so does the answer */
    bool known;     /* uid was read from the connection's credentials */
    uint32_t uid;
};

/* Is this an id that libzmq made itself (five bytes, the first zero)? Only those are accepted: an id
 * that a client chose can be taken by anyone after it, with all answers still under way. */
bool router_id_is_own(const struct router_peer *p);

/* Binds `path`, or adopts `listen_fd` (if not -1: a bound, listening socket; stays the caller's).
 * max_message: frames above it cost their sender the connection. */
int router_open(struct router *r, const char *path, int listen_fd, size_t max_message,
                struct error *reterr) WARN_UNUSED;
void router_close(struct router *r);

/* One message: 1 with `body` (the caller's to close) and its sender, 0 when there is none now,
 * -EBADMSG for one that is not ours in form (already dropped; `ret_peer` is filled). */
int router_receive(struct router *r, struct router_peer *ret_peer, zmq_msg_t *ret_body) WARN_UNUSED;

/* Sends `body`, which is libzmq's after 0; -EAGAIN: that client has not read enough, -EHOSTUNREACH: it
 * is gone; then `body` is still the caller's. */
int router_send(struct router *r, const uint8_t *id, size_t id_len, bool delimiter,
                zmq_msg_t *body) WARN_UNUSED;

/* The descriptor that tells when a socket was changed from outside, and only that; or -1. */
int router_fd(void *socket);

/* The clients' descriptor is readable. `read_now`: router_receive() follows at once, which makes it
 * unreadable again; else this does. */
void router_woken(struct router *r, bool read_now);

/* Answers the connections that wait for the ZAP handler. */
void router_admit(struct router *r);

/* "localhost:UID:GID:PID" as libzmq describes an ipc peer; exact form or false. For tests. */
bool router_parse_address(const char *text, size_t len, uint32_t *ret_uid);

#endif
