/* SPDX-License-Identifier: Apache-2.0 */
/* The gateway's loop. It waits for four things: clients (ROUTER), new connections (ZAP), the front
 * (the lane's socket) and the end (a signalfd). Clients are read only while the lane takes records
 * and a request buffer is free, so that load stays in the clients' own sockets; answers always
 * flow. Nothing here waits for one client.
 *
 * It waits with epoll(7) instead of zmq_poll(), which asks libzmq some ten times a turn what it
 * has. libzmq's descriptors say only that something has changed since libzmq was last used, and
 * sending uses it too: after either, clients are read until there is no more (router.unread).
 *
 * The process is expendable by design: libzmq aborts when descriptors or memory run out, which a
 * hostile peer can bring about. State that matters lives in the front; clients see a new epoch in
 * their next Pong and resume. */

#include "daemon/gateway/gateway.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
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

HOT static void read_clients(struct gateway *g)
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
HOT static int read_front(struct gateway *g, struct error *reterr)
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

/* -1 is never. */
static long sooner(long a, long b)
{
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

static long timeout_ms(const struct gateway *g, const struct notify *n)
{
    long own = g->clients.n_stalled > 0    ? (long)DELIVER_RETRY_MS
               : g->requests.n_orphans > 0 ? (long)ORPHANS_MS
                                           : -1;

    own = sooner(own, trim_timeout_ms(&g->trim, clock_ns()));
    return sooner(own, notify_timeout_ms(n));
}

enum { WAKE_FRONT, WAKE_STOP, WAKE_ZAP, WAKE_CLIENTS, N_WAKE };

/* What the loop waits for. */
struct wait {
    int epoll_fd;
    uint32_t front_events;
    const struct notify *notify;
};

static int add(struct wait *w, uint32_t what, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = what};

    return fd < 0 || epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) ? -errno : 0;
}

static int wait_open(struct wait *w, const struct gateway *g, int stop_fd, struct error *reterr)
{
    int rc;

    w->front_events = EPOLLIN;
    w->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    rc = w->epoll_fd < 0 ? -errno : 0;
    rc = rc ? rc : add(w, WAKE_FRONT, g->door.fd);
    rc = rc ? rc : add(w, WAKE_STOP, stop_fd);
    rc = rc ? rc : add(w, WAKE_ZAP, router_fd(g->router.zap));
    rc = rc ? rc : add(w, WAKE_CLIENTS, router_fd(g->router.socket));
    return rc ? error_set_errno(reterr, rc, "cannot wait for messages") : 0;
}

/* What happened, one bit each of 1 << WAKE_*, and WAKE_FRONT's events. */
HOT static int wait_next(struct wait *w, const struct gateway *g, uint32_t *ret_front)
{
    uint32_t front = EPOLLIN | (door_pending(&g->door) ? (uint32_t)EPOLLOUT : 0);
    long timeout = g->router.unread && may_read_clients(g) ? 0 : timeout_ms(g, w->notify);
    struct epoll_event ev[N_WAKE];
    int what = 0;
    int n;

    *ret_front = 0;
    if (front != w->front_events) {
        struct epoll_event e = {.events = front, .data.u32 = WAKE_FRONT};

        if (epoll_ctl(w->epoll_fd, EPOLL_CTL_MOD, g->door.fd, &e)) {
            return -errno;
        }
        w->front_events = front;
    }
    n = epoll_wait(w->epoll_fd, ev, N_WAKE, (int)timeout);
    if (n < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    for (int i = 0; i < n; i++) {
        what |= 1 << ev[i].data.u32;
        if (ev[i].data.u32 == WAKE_FRONT) {
            *ret_front = ev[i].events;
        }
    }
    return what;
}

HOT static int turn(struct gateway *g, struct wait *w, bool *ret_stop, struct error *reterr)
{
    uint32_t front;
    int what = wait_next(w, g, &front);
    int rc = 0;

    if (what < 0) {
        return error_set_errno(reterr, what, "cannot wait for messages");
    }
    if (what & 1 << WAKE_STOP) {
        *ret_stop = true;
        return 0;
    }
    if (what) {
        trim_wish(&g->trim, clock_ns());
    }
    if (front & EPOLLOUT) {
        rc = door_flush(&g->door);
    }
    if (rc == 0 && front & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        rc = read_front(g, reterr);
    }
    if (what & 1 << WAKE_ZAP) {
        router_admit(&g->router);
    }
    if (g->clients.n_stalled > 0) {
        deliver_retry(g);
    }
    if (g->requests.n_orphans > 0) {
        deliver_orphans(g);
    }
    if (what & 1 << WAKE_CLIENTS) {
        router_woken(&g->router, may_read_clients(g));
    }
    if (g->router.unread) {
        read_clients(g);
    }
    return rc ? rc : g->failed;
}

int gateway_run(struct gateway *g, int stop_fd, struct notify *n, struct error *reterr)
{
    AUTO_CLOSE int epoll_fd = -1;
    struct wait w = {.notify = n};
    bool stop = false;
    int rc = wait_open(&w, g, stop_fd, reterr);

    epoll_fd = w.epoll_fd;
    if (rc) {
        return rc;
    }
    router_admit(&g->router);
    notify_send(n, "READY=1\nSTATUS=Serving ZeroMQ clients");
    while (!stop && rc == 0) {
        notify_alive(n);
        trim_due(&g->trim, clock_ns());
        rc = turn(g, &w, &stop, reterr);
    }
    notify_send(n, "STOPPING=1");
    if (rc == -EPIPE) {
        if (g->is_child) {
            log_debug("the front ended the lane");
        } else {
            log_info("the front ended the lane: this gateway ends, too");
        }
        return 0;
    }
    if (rc) {
        (void)error_set_errno(reterr, rc, rc == -ENOMEM ? "an event is lost" : "the lane is lost");
    }
    return rc;
}
