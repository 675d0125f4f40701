/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets of lanes: reading records, writing answers and events, and the clocks on both. What a
 * record means is serve.c's business.
 *
 * Slow readers: EAGAIN starts the clock, every record the socket takes winds it back. When it runs
 * out, the lane's running requests end with slow_consumer; should the client read again, it gets
 * all that was said and that ending. After LANE_STALL_GRACE_NS more the connection is closed, so
 * that its output does not occupy the journal for ever. */

#include "daemon/front/lane.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/sock.h"
#include "daemon/front/arena.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/figures.h"
#include "daemon/front/flow.h"
#include "daemon/front/front.h"
#include "daemon/front/serve.h"

#define HELLO_DEADLINE_NS 5000000000
#define STALL_GRACE_NS 30000000000
enum { LANES_FEW = 16, READ_BURST = 32, SEND_BURST = 64, SEND_BUFFER_BYTES = 256 << 10 };

static void on_socket(void *arg, uint32_t events);

static bool ring_full(const struct lane *l)
{
    return l->ring_n == LANE_RING;
}

static void update_events(struct lane *l)
{
    uint32_t events = (l->ring_n ? 0 : EPOLLIN) | (l->blocked || l->more ? EPOLLOUT : 0);

    loop_events(&l->front->loop, &l->watch, events);
}

static void on_hello_deadline(void *arg)
{
    lane_close(arg, "no hello in time");
}

static void refuse(struct front *f, int fd, const char *text)
{
    struct lane_record r;

    lane_record_init(&r, LANE_ERROR, NULL);
    figures_refused(f, REFUSED_CLIENTS);
    r.error.code = LANE_ERR_BUSY;
    r.error.retry_after_ms = 1000;
    (void)snprintf(r.error.text, sizeof(r.error.text), "%s", text);
    if (sock_send(fd, &r, sizeof(r), NULL, 0)) {
        log_debug("a refused client was gone already");
    }
    /* A hello that lies unread at close() would reset the connection, and our reason with it. */
    (void)shutdown(fd, SHUT_RD);
    while (recv(fd, &r, sizeof(r), MSG_DONTWAIT) > 0) {
    }
    (void)close(fd);
}

/* An eighth of the lanes is kept for others than the user who has most of them, and two for who may
 * look what is wrong. A closed lane whose arenas the engine still maps counts: the plan holds that
 * many arenas and no more. Gateways have lanes of their own, so that clients cannot lock the ZeroMQ
 * clients out; a gateway that is started again must not wait for the end of its predecessor's. */
static bool has_room(const struct front *f, uint32_t uid, bool privileged)
{
    uint32_t person = persons_of(&f->persons, uid);
    bool admin = privileged || uid == 0 || uid == geteuid();
    uint32_t max = privileged ? LANE_GATEWAYS : (uint32_t)f->config->lanes;
    uint32_t n = 0;
    uint32_t of_person = 0;

    for (const struct lane *l = f->lanes; l; l = l->next) {
        bool counts = l->privileged == privileged && (!l->closing || l->c2e_bytes || l->e2c_bytes);

        n += counts;
        of_person += counts && l->person == person;
    }
    max -= !admin && max >= LANES_FEW ? LANE_RESERVED : 0;
    return n < max && (privileged || of_person < max - max / 8);
}

struct lane *lane_create(struct front *f, int fd, uint32_t uid, bool privileged)
{
    int size = SEND_BUFFER_BYTES;
    struct lane *l;

    if (!has_room(f, uid, privileged)) {
        char text[128];

        (void)snprintf(text, sizeof(text), "too many %s are connected: the limit is %lld (%s)",
                       privileged ? "gateways" : "clients",
                       privileged ? (long long)LANE_GATEWAYS : (long long)f->config->lanes,
                       privileged ? "lanes of gateways" : "--lanes; 7/8 of it for one user");
        refuse(f, fd, text);
        return NULL;
    }
    l = calloc(1, sizeof(*l));
    if (!l) {
        refuse(f, fd, "no memory for another client");
        return NULL;
    }
    *l = (struct lane){.front = f,
                       .watch = {.fd = fd, .events = EPOLLIN, .fn = on_socket, .arg = l},
                       .id = f->next_lane_id++,
                       .uid = uid,
                       .person = persons_of(&f->persons, uid),
                       .privileged = privileged,
                       .c2e_fd = -1,
                       .e2c_fd = -1,
                       .next = f->lanes};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    if (loop_add(&f->loop, &l->watch)) {
        refuse(f, fd, "no memory for another client");
        free(l);
        return NULL;
    }
    f->lanes = l;
    f->n_lanes += !privileged;
    loop_timer_at(&f->loop, &l->timer, clock_ns() + HELLO_DEADLINE_NS, on_hello_deadline, l);
    return l;
}

static void lane_free(struct lane *l)
{
    struct lane **p = &l->front->lanes;

    arena_drop(&l->c2e_fd, l->c2e_bytes);
    arena_drop(&l->e2c_fd, l->e2c_bytes);
    while (*p != l) {
        p = &(*p)->next;
    }
    *p = l->next;
    free(l);
}

void lane_close(struct lane *l, const char *why)
{
    struct front *f = l->front;

    if (l->closing) {
        return;
    }
    log_debug("lane %llu (uid %u, %s): %s", (unsigned long long)l->id, l->uid,
              l->program[0] ? l->program : "no hello", why);
    l->closing = true;
    loop_del(&f->loop, &l->watch);
    close_fd(&l->watch.fd);
    loop_timer_off(&f->loop, &l->timer);
    f->n_lanes -= !l->privileged;
    f->status_changed = true;
    f->dispatch_wanted = true; /* who is alone now may have more */
    flow_lane_closed(f, l);
    if (l->engine_open) {
        engine_link_lane_close(f->engine, l);
    } else {
        lane_free(l);
    }
}

void lane_quiet(struct front *f, uint64_t lane_id)
{
    for (struct lane *l = f->lanes; l; l = l->next) {
        if (l->id == lane_id && l->closing) {
            lane_free(l);
            return;
        }
    }
}

void lane_engine_gone(struct front *f)
{
    struct lane *next;

    for (struct lane *l = f->lanes; l; l = next) {
        next = l->next;
        l->engine_open = false;
        if (l->closing) {
            lane_free(l);
        }
    }
}

struct lane *lane_find(struct front *f, uint64_t lane_id)
{
    for (struct lane *l = f->lanes; l; l = l->next) {
        if (l->id == lane_id) {
            return l->closing ? NULL : l;
        }
    }
    return NULL;
}

static void on_stall(void *arg)
{
    struct lane *l = arg;
    struct front *f = l->front;
    int64_t limit = (int64_t)(f->config->stall_timeout * 1e9);
    int64_t due = l->progress_ns + limit + (l->stalled ? STALL_GRACE_NS : 0);

    if (!l->blocked) {
        return;
    }
    if (clock_ns() < due) {
        loop_timer_at(&f->loop, &l->timer, due, on_stall, l);
    } else if (l->stalled) {
        lane_close(l, "reads nothing");
    } else {
        l->stalled = true;
        loop_timer_at(&f->loop, &l->timer, due + STALL_GRACE_NS, on_stall, l);
        flow_lane_stalled(f, l);
    }
}

/* 0, -EAGAIN, or another errno after which the lane is closed by its caller. */
HOT static int write_record(struct lane *l, const struct lane_record *r)
{
    int rc = sock_send(l->watch.fd, r, sizeof(*r), NULL, 0);

    if (rc == 0) {
        l->progress_ns = l->blocked ? clock_ns() : 0;
        l->stalled = false;
    } else if (rc == -EAGAIN && !l->blocked) {
        struct loop *loop = &l->front->loop;

        l->blocked = true;
        l->progress_ns = clock_ns();
        loop_timer_at(loop, &l->timer,
                      l->progress_ns + (int64_t)(l->front->config->stall_timeout * 1e9), on_stall,
                      l);
    }
    return rc;
}

/* 0 when all was sent. */
static int flush_ring(struct lane *l)
{
    while (l->ring_n) {
        int rc = write_record(l, &l->ring[l->ring_begin]);

        if (rc) {
            return rc;
        }
        l->ring_begin = (l->ring_begin + 1) % LANE_RING;
        l->ring_n--;
    }
    return 0;
}

/* 0: all was sent, 1: `budget` events were. A reader that keeps up with us would else keep us from
 * everybody for as long as its log is. */
HOT static int flush_request(struct lane *l, struct request *r, int *budget)
{
    struct journal_cursor before = r->cursor;
    struct lane_record rec;

    while (journal_read(&l->front->journal, &r->log, &r->cursor, &rec)) {
        if ((*budget)-- <= 0) {
            r->cursor = before;
            return 1;
        }
        memcpy(rec.h.id, r->id, sizeof(rec.h.id));
        int rc = write_record(l, &rec);

        if (rc) {
            r->cursor = before;
            return rc;
        }
        before = r->cursor;
    }
    return 0;
}

/* Everything that waits, the requests in turn. false: the lane has been closed. */
static bool flush(struct lane *l)
{
    int rc = flush_ring(l);
    int budget = SEND_BURST;

    for (uint32_t i = 0; rc == 0 && i < l->n_attached; i++) {
        rc = flush_request(l, l->attached, &budget);
        l->attached = l->attached->lane_next;
    }
    if (rc < 0 && rc != -EAGAIN) {
        lane_close(l, strerror(-rc));
        return false;
    }
    l->more = rc == 1;
    if (rc >= 0 && l->blocked) {
        l->blocked = false;
        loop_timer_off(&l->front->loop, &l->timer);
    }
    update_events(l);
    return true;
}

void lane_send(struct lane *l, const struct lane_record *r)
{
    if (l->closing || ring_full(l)) {
        return;
    }
    l->ring[(l->ring_begin + l->ring_n++) % LANE_RING] = *r;
    int rc = flush_ring(l);

    /* A lost connection shows as EPOLLHUP; closing here would free the lane under its reader. What
     * it had asked before it left is read all the same, which what waits for nobody would prevent.
     */
    if (rc && rc != -EAGAIN) {
        l->ring_n = 0;
    }
    update_events(l);
}

void lane_send_error(struct lane *l, const uint8_t id[16], uint32_t code, uint32_t retry_after_ms,
                     const char *fmt, ...)
{
    struct lane_record r;
    va_list ap;

    lane_record_init(&r, LANE_ERROR, id);
    r.h.seq = id ? 1 : 0;
    r.error.code = code;
    r.error.retry_after_ms = retry_after_ms;
    va_start(ap, fmt);
    error_fit_format(r.error.text, sizeof(r.error.text), fmt, ap);
    va_end(ap);
    lane_send(l, &r);
}

void lane_attach(struct lane *l, struct request *r)
{
    lane_detach(r);
    r->lane = l;
    if (l->attached) {
        r->lane_next = l->attached;
        r->lane_prev = l->attached->lane_prev;
        r->lane_prev->lane_next = r;
        r->lane_next->lane_prev = r;
    } else {
        r->lane_next = r;
        r->lane_prev = r;
        l->attached = r;
    }
    l->n_attached++;
    lane_pump(r);
}

void lane_detach(struct request *r)
{
    struct lane *l = r->lane;

    if (!l) {
        return;
    }
    if (l->n_attached == 1) {
        l->attached = NULL;
    } else {
        r->lane_prev->lane_next = r->lane_next;
        r->lane_next->lane_prev = r->lane_prev;
        l->attached = l->attached == r ? r->lane_next : l->attached;
    }
    l->n_attached--;
    r->lane = NULL;
    r->lane_next = NULL;
    r->lane_prev = NULL;
}

HOT void lane_pump(struct request *r)
{
    struct lane *l = r->lane;
    int budget = SEND_BURST;

    if (!l || l->closing || l->blocked || l->more || l->ring_n) {
        return;
    }
    l->more = flush_request(l, r, &budget) == 1;
    update_events(l);
}

void lane_send_progress(struct request *r, struct lane_record *rec)
{
    struct lane *l = r->lane;

    if (l && !l->closing && !l->blocked && !l->ring_n) {
        memcpy(rec->h.id, r->id, sizeof(rec->h.id));
        rec->h.seq = 0;
        (void)write_record(l, rec);
        update_events(l);
    }
}

bool lane_flushed(const struct lane *l)
{
    const struct request *r = l->attached;

    if (l->closing) {
        return true;
    }
    for (uint32_t i = 0; i < l->n_attached; i++) {
        if (r->cursor.seq < r->log.seen.seq) {
            return false;
        }
        r = r->lane_next;
    }
    return l->ring_n == 0;
}

static void read_records(struct lane *l)
{
    for (int i = 0; i < READ_BURST && l->ring_n == 0; i++) {
        struct lane_record r;
        struct error e = {0};
        ssize_t n = sock_recv(l->watch.fd, &r, sizeof(r), NULL, NULL);

        if (n == -EAGAIN) {
            return;
        }
        if (n <= 0) {
            lane_close(l, n == 0 ? "gone" : strerror((int)-n));
            return;
        }
        if (lane_record_check(&r, (uint64_t)n, LANE_PEER_CLIENT, &e)) {
            lane_send_error(l, NULL, LANE_ERR_PROTOCOL, 0, "%s", e.text);
            lane_close(l, e.text);
            return;
        }
        if (!l->hello_done) {
            loop_timer_off(&l->front->loop, &l->timer);
        }
        if (serve_record(l, &r)) {
            lane_close(l, "sent away");
            return;
        }
    }
}

static void on_socket(void *arg, uint32_t events)
{
    struct lane *l = arg;

    if ((events & EPOLLOUT) && !flush(l)) {
        return;
    }
    if (events & EPOLLIN) {
        read_records(l);
    } else if (events & (EPOLLHUP | EPOLLERR)) {
        lane_close(l, "gone");
    }
}
