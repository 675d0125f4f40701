/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's loop. It waits for four things: clients (ROUTER), new connections (ZAP), the front
 * (the lane's socket) and the end (a signalfd). Clients are read only while the lane takes records
 * and a request buffer is free, so that load stays in the clients' own sockets; answers always
 * flow. Nothing here waits for one client.
 *
 * The process is expendable by design: libzmq aborts when descriptors or memory run out, which a
 * hostile peer can bring about. State that matters lives in the front; clients see a new epoch in
 * their next Pong and resume. */

#include "daemon/gateway/gateway.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/gateway/deliver.h"
#include "daemon/gateway/inbound.h"
#include "daemon/gateway/outbound.h"

enum {
    HELLO_MS = 5000,
    MESSAGES_A_TURN = 64,
    RECORDS_A_TURN = 256,
    /* Encoding on top of a request's items, which are limited by the front. */
    MESSAGE_SLACK = 4096,
    ARENA_FACTOR = 8,
    ORPHANS_MS = 500,
};

bool waiters_push(struct waiters *w, const struct waiter *who)
{
    if (w->head - w->tail >= GATEWAY_WAITERS) {
        return false;
    }
    w->ring[w->head++ % GATEWAY_WAITERS] = *who;
    return true;
}

bool waiters_pop(struct waiters *w, struct waiter *ret)
{
    if (w->head == w->tail) {
        return false;
    }
    *ret = w->ring[w->tail++ % GATEWAY_WAITERS];
    return true;
}

void gateway_to_front(struct gateway *g, const struct lane_record *r)
{
    int rc = door_send(&g->door, r);

    if (rc && !g->failed) {
        g->failed = rc;
    }
}

void gateway_attach(struct gateway *g, struct request *q, uint64_t handle)
{
    struct client *before = clients_get(&g->clients, q->client);
    struct client *after = clients_get(&g->clients, handle);

    if (before) {
        before->n_requests--;
    }
    if (after) {
        after->n_requests++;
    }
    q->client = handle;
}

void gateway_cancel(struct gateway *g, struct request *q)
{
    struct lane_record r;

    if (q->cancelled) {
        return;
    }
    q->cancelled = true;
    lane_record_init(&r, LANE_CANCEL, q->id);
    r.h.flags = LANE_F_PRINCIPAL;
    r.cancel.uid = q->uid;
    r.cancel.tenant_len = q->tenant_len;
    memcpy(r.cancel.tenant, q->tenant, sizeof(r.cancel.tenant));
    gateway_to_front(g, &r);
}

void gateway_end_request(struct gateway *g, struct request *q)
{
    if (q->buf >= 0) {
        g->door.bufs[q->buf].busy = false;
    }
    if (q->scoring) {
        g->scoring = false;
    }
    gateway_attach(g, q, 0);
    requests_remove(&g->requests, q);
}

int gateway_init(struct gateway *g, int lane_fd, const char *zmq_path, int listen_fd,
                 struct error *reterr)
{
    struct timespec now;
    uint64_t key;
    int rc;

    memset(g, 0, sizeof(*g));
    g->door.fd = -1;
    clients_init(&g->clients);
    if (getrandom(&key, sizeof(key), 0) != sizeof(key)) {
        return error_set_errno(reterr, -errno, "no random numbers");
    }
    requests_init(&g->requests, key);
    (void)clock_gettime(CLOCK_REALTIME, &now);
    g->epoch = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    rc = door_open(&g->door, lane_fd, HELLO_MS, reterr);
    if (rc) {
        return rc;
    }
    g->max_message = g->door.hello.max_request_bytes + (size_t)MESSAGE_SLACK;
    rc = arena_init(&g->arena, g->max_message * ARENA_FACTOR, reterr);
    if (rc == 0) {
        /* Twice the limit is still read, so that its sender can be told. */
        rc = router_open(&g->router, zmq_path, listen_fd, g->max_message * 2, reterr);
    }
    if (rc) {
        gateway_finish(g);
    }
    return rc;
}

void gateway_finish(struct gateway *g)
{
    clients_finish(&g->clients);
    requests_finish(&g->requests);
    router_close(&g->router);
    arena_finish(&g->arena);
    door_close(&g->door);
}

static bool may_read_clients(const struct gateway *g)
{
    return !door_pending(&g->door) && door_buf_free(&g->door) >= 0;
}

static void read_clients(struct gateway *g)
{
    for (int i = 0; i < MESSAGES_A_TURN && may_read_clients(g) && !g->failed; i++) {
        struct router_peer peer;
        zmq_msg_t body;
        int rc = router_receive(&g->router, &peer, &body);

        if (rc == 0) {
            return;
        }
        if (rc < 0) {
            inbound_malformed(g, &peer);
            continue;
        }
        inbound_message(g, &peer, &body);
        (void)zmq_msg_close(&body);
    }
}

/* 0, or -EPIPE when the front ended the lane. */
static int read_front(struct gateway *g, struct error *reterr)
{
    for (int i = 0; i < RECORDS_A_TURN; i++) {
        struct lane_record r;
        int rc = door_receive(&g->door, &r, reterr);

        if (rc <= 0) {
            return rc;
        }
        outbound_record(g, &r);
    }
    return 0;
}

static long timeout_ms(const struct gateway *g, const struct notify *n)
{
    long sign = notify_timeout_ms(n);
    long own = g->clients.n_stalled > 0    ? (long)DELIVER_RETRY_MS
               : g->requests.n_orphans > 0 ? (long)ORPHANS_MS
                                           : -1;

    return own < 0 || (sign >= 0 && sign < own) ? sign : own;
}

enum { POLL_FRONT, POLL_STOP, POLL_ZAP, POLL_CLIENTS, N_POLL };

static int turn(struct gateway *g, int stop_fd, const struct notify *n, bool *ret_stop,
                struct error *reterr)
{
    zmq_pollitem_t items[N_POLL] = {
        [POLL_FRONT] = {.fd = g->door.fd, .events = ZMQ_POLLIN},
        [POLL_STOP] = {.fd = stop_fd, .events = ZMQ_POLLIN},
        [POLL_ZAP] = {.socket = g->router.zap, .events = ZMQ_POLLIN},
        [POLL_CLIENTS] = {.socket = g->router.socket, .events = ZMQ_POLLIN},
    };
    int rc = 0;

    if (door_pending(&g->door)) {
        items[POLL_FRONT].events |= ZMQ_POLLOUT;
    }
    if (zmq_poll(items, may_read_clients(g) ? N_POLL : POLL_CLIENTS, timeout_ms(g, n)) < 0 &&
        errno != EINTR) {
        return error_set(reterr, -EIO, "cannot wait for messages: %s", zmq_strerror(errno));
    }
    if (items[POLL_STOP].revents) {
        *ret_stop = true;
        return 0;
    }
    if (items[POLL_FRONT].revents & ZMQ_POLLOUT) {
        rc = door_flush(&g->door);
    }
    if (rc == 0 && items[POLL_FRONT].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) {
        rc = read_front(g, reterr);
    }
    if (items[POLL_ZAP].revents) {
        router_admit(&g->router);
    }
    if (items[POLL_CLIENTS].revents) {
        read_clients(g);
    }
    if (g->clients.n_stalled > 0) {
        deliver_retry(g);
    }
    if (g->requests.n_orphans > 0) {
        deliver_orphans(g);
    }
    return rc ? rc : g->failed;
}

int gateway_run(struct gateway *g, int stop_fd, struct notify *n, struct error *reterr)
{
    bool stop = false;
    int rc = 0;

    notify_send(n, "READY=1\nSTATUS=Serving ZeroMQ clients");
    while (!stop && rc == 0) {
        notify_alive(n);
        rc = turn(g, stop_fd, n, &stop, reterr);
    }
    notify_send(n, "STOPPING=1");
    if (rc == -EPIPE) {
        log_info("the front ended the lane");
        return 0;
    }
    if (rc) {
        (void)error_set_errno(reterr, rc, "the lane is lost");
    }
    return rc;
}
