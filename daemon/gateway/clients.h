/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_CLIENTS_H
#define PIPIT_DAEMON_GATEWAY_CLIENTS_H

/* The ZeroMQ clients this gateway has heard of: routing id, uid, and what waits to be sent to those
 * that read slowly. Others refer to a client by its handle, which is never reused. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <zmq.h>

#include "base/error.h"
#include "daemon/gateway/router.h"

enum { CLIENTS_MAX = 1024 };

struct clients_message {
    struct clients_message *next;
    size_t size; /* body's, which libzmq makes empty when it sends it */
    zmq_msg_t body;
};

struct client {
    uint64_t handle; /* 0: a free slot */
    uint8_t id[5];
    bool delimiter; /* of its latest message */
    uint32_t uid;
    uint32_t n_requests;    /* under way; kept by gateway_attach() */
    int64_t heard_ns;       /* its latest message */
    int64_t stalled_ns;     /* since when nothing could be sent to it, 0: not stalled */
    struct clients_message *backlog;
    struct clients_message **backlog_end;
    size_t backlog_bytes;
};

struct clients {
    struct client slots[CLIENTS_MAX];
    uint64_t n_made;
    int n_stalled;        /* clients with a backlog */
    size_t backlog_bytes; /* of all */
};

void clients_init(struct clients *c);
void clients_finish(struct clients *c);

/* NULL for 0 and for a client that is gone. */
struct client *clients_get(struct clients *c, uint64_t handle);

/* The client that sent a message, made if new (in place of the longest silent idle one when the
 * table is full). -EPERM: this routing id belongs to another uid; -EBUSY: no slot. */
int clients_find(struct clients *c, const struct router_peer *p, int64_t now_ns,
                 struct client **ret) WARN_UNUSED;

/* Forgets a client and what waits for it. */
void clients_forget(struct clients *c, struct client *client);

/* Appends to what waits for the client; `body` is taken over in any case. -ENOMEM. */
int clients_append(struct clients *c, struct client *client, zmq_msg_t *body,
                   int64_t now_ns) WARN_UNUSED;

/* Drops the first waiting message, after it was sent. */
void clients_sent(struct clients *c, struct client *client);

#endif
