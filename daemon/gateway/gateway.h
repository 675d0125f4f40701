/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_GATEWAY_H
#define PIPIT_DAEMON_GATEWAY_GATEWAY_H

/* All of one gateway, and its loop. One thread; libzmq has its own for the sockets' bytes. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/gateway/clients.h"
#include "daemon/gateway/door.h"
#include "daemon/gateway/notify.h"
#include "daemon/gateway/questions.h"
#include "daemon/gateway/requests.h"
#include "daemon/gateway/router.h"
#include "daemon/gateway/trim.h"
#include "proto/zmq/arena.h"

enum { GATEWAY_WAITERS = 256 };

/* Somebody waits for the answer to a record that the front answers in order and without an id. */
struct waiter {
    uint64_t client;
    uint8_t id[16];
    bool cancel; /* not a Ping: a Cancel that succeeded unless NOT_FOUND came before this pong */
};

struct waiters {
    struct waiter ring[GATEWAY_WAITERS];
    uint32_t head;
    uint32_t tail;
};

struct gateway {
    struct router router;
    struct door door;
    struct arena arena; /* of the request being decoded */
    struct clients clients;
    struct trim trim;
    struct requests requests;
    struct waiters pings;
    struct questions questions;
    uint64_t epoch;     /* of this start */
    size_t max_message; /* bytes of a frame that is still read */
    bool scoring;       /* the score buffer is lent */
    int failed;         /* negative errno: the lane is lost, the loop ends */
    bool is_child;      /* pipitd's, which says itself why it ends; the caller's to set */
};

/* `lane_fd` is taken over. `zmq_path`, `listen_fd` as in router_open(). */
int gateway_init(struct gateway *g, int lane_fd, const char *zmq_path, int listen_fd,
                 struct error *reterr) WARN_UNUSED;
void gateway_finish(struct gateway *g);

/* Until the front ends the lane, or `stop_fd` (a signalfd) is readable: 0; else an error. `n` is told
 * that we serve, and from time to time that we still do. */
int gateway_run(struct gateway *g, int stop_fd, struct notify *n, struct error *reterr) WARN_UNUSED;

/* Sends a record to the front; a lost lane is remembered in g->failed. */
void gateway_to_front(struct gateway *g, const struct lane_record *r);

/* Sends LANE_CANCEL for a request, once. */
void gateway_cancel(struct gateway *g, struct request *q);

/* Makes a client (a handle, or 0) the one that gets a request's events. */
void gateway_attach(struct gateway *g, struct request *q, uint64_t client);

/* Forgets a request and gives back what it holds. */
void gateway_end_request(struct gateway *g, struct request *q);

bool waiters_push(struct waiters *w, const struct waiter *who); /* false: full */
bool waiters_pop(struct waiters *w, struct waiter *ret);        /* false: empty */

#endif
