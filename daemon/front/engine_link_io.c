/* SPDX-License-Identifier: Apache-2.0 */
/* Records to and from the engine, and what the front does on them. */

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/sock.h"
#include "base/cputime.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/engine_link_impl.h"
#include "daemon/front/lane.h"
#include "daemon/front/reload.h"

enum { READ_BURST = 128 };

void engine_link_close_socket(struct engine_link *e)
{
    engine_link_forget_threads(e);
    loop_del(&e->front->loop, &e->watch);
    close_fd(&e->watch.fd);
    outgoing_clear(e->out);
}

static void flush(struct engine_link *e)
{
    bool empty = outgoing_flush(e->out, e->watch.fd);

    loop_events(&e->front->loop, &e->watch, EPOLLIN | (empty ? 0 : EPOLLOUT));
}

/* 0, or -EMFILE where a record with descriptors was not taken because none are left for copies.
 * What is meant for an engine that is gone, or now is, is dropped: its requests are sent again. */
static int push(struct engine_link *e, const struct lane_record *r, int fd0, int fd1)
{
    int rc;

    if (e->watch.fd < 0) {
        return 0;
    }
    rc = outgoing_push(e->out, r, fd0, fd1);
    if (rc == -ENOBUFS) {
        engine_link_kill(e, "it takes no records");
        return 0;
    }
    if (rc == 0) {
        flush(e);
    }
    return rc;
}

void engine_link_send(struct engine_link *e, const struct lane_record *r)
{
    (void)push(e, r, -1, -1);
}

/* The descriptor is given away, not copied: where none is left for a copy, the request would have
 * to be ended by somebody. */
void engine_link_give(struct engine_link *e, const struct lane_record *r, int fd)
{
    if (e->watch.fd < 0) {
        close_fd(&fd);
    } else if (outgoing_give(e->out, r, fd)) {
        engine_link_kill(e, "it takes no records");
    } else {
        flush(e);
    }
}

static void lane_body(const struct lane *l, uint32_t type, struct lane_record *ret)
{
    lane_record_init(ret, type, NULL);
    ret->e_lane = (struct lane_engine_lane){
        .lane_id = l->id, .c2e_bytes = l->c2e_bytes, .e2c_bytes = l->e2c_bytes};
}

int engine_link_lane_open(struct engine_link *e, struct lane *l)
{
    struct lane_record r;
    int rc = 0;

    if (!l->engine_open) {
        lane_body(l, LANE_ENGINE_LANE_OPEN, &r);
        rc = push(e, &r, l->c2e_fd, l->e2c_fd);
        l->engine_open = rc == 0;
    }
    return rc;
}

void engine_link_lane_close(struct engine_link *e, struct lane *l)
{
    struct lane_record r;

    lane_body(l, LANE_ENGINE_LANE_CLOSE, &r);
    (void)push(e, &r, -1, -1);
}

static void on_state(struct engine_link *e, const struct lane_engine_state *s)
{
    struct front *f = e->front;
    bool became_ready = s->state == LANE_READY && e->state != LANE_READY;

    if (e->leaving) {
        return;
    }
    /* What is said each second while a step hangs is no progress. */
    if (s->last_step_ns > e->info.last_step_ns || s->state != e->state) {
        e->cpu_ns = cputime_ns(e->pid);
    }
    e->info = *s;
    e->state = s->state;
    f->status_changed = true;
    if (became_ready) {
        struct log_fields fields = {0};

        e->epoch++;
        e->ready_ns = clock_ns();
        e->load_ns = e->ready_ns - e->started_ns;
        e->busy_ns = 0;
        e->failure[0] = '\0';
        reload_settle(f);
        if (e->n_threads == 0) {
            log_warning(
                "the engine's threads cannot be watched: if it gets no CPU, it is taken for "
                "one that hangs");
        }
        log_field(&fields, "PIPIT_EVENT", "model-ready");
        log_field(&fields, "PIPIT_MODEL", "%s", s->model);
        log_field(&fields, "PIPIT_EPOCH", "%u", (unsigned)e->epoch);
        log_field(&fields, "PIPIT_MS", "%.1f", (double)e->load_ns / 1e6);
        log_write_fields(LOG_LEVEL_INFO, &fields,
                         "model %s is ready on %.*s: %d positions, %d sequences, plan of %.1f MiB, "
                         "loaded in %.3f s",
                         s->model, (int)strcspn(e->report.backend, ";"), e->report.backend, s->ctx,
                         s->n_seqs, (double)s->plan_bytes / 0x1p20, (double)e->load_ns / 1e9);
        f->dispatch_wanted = true;
    } else if (s->state == LANE_LOADING) {
        dispatch_loading(f, s->progress);
    }
    e->heard_ns = clock_ns();
    if (e->state == LANE_READY) {
        engine_link_look_at_texts(e);
    }
}

HOT static void on_record(struct engine_link *e, struct lane_record *r)
{
    static const uint8_t no_id[16];

    switch (r->h.type) {
    case LANE_ENGINE_STATE:
        on_state(e, &r->e_state);
        break;
    case LANE_ENGINE_REPORT:
        if (!e->leaving) {
            report_take(&e->report, &r->e_report);
        }
        break;
    case LANE_ENGINE_THREADS:
        break;
    case LANE_ENGINE_LANE_QUIET:
        lane_quiet(e->front, r->e_lane.lane_id);
        break;
    case LANE_ERROR:
        if (memcmp(r->h.id, no_id, sizeof(no_id)) == 0) {
            memcpy(e->cause, r->error.text, sizeof(e->cause));
            break;
        }
        dispatch_event(e->front, r);
        break;
    default:
        dispatch_event(e->front, r);
        break;
    }
}

/* Up to `most` records; false at the end of the connection. */
HOT static bool read_records(struct engine_link *e, int most)
{
    for (int i = 0; i < most && e->watch.fd >= 0; i++) {
        struct lane_record r;
        struct error err = {0};
        int fds[SOCK_MAX_FDS];
        int n_fds = 0;
        ssize_t n = sock_recv(e->watch.fd, &r, sizeof(r), fds, &n_fds);

        if (n == -EAGAIN) {
            return true;
        }
        if (n <= 0) {
            return false;
        }
        if (n_fds > 0) {
            bool threads = n >= (ssize_t)sizeof(r.h) && r.h.type == LANE_ENGINE_THREADS;

            engine_link_take_threads(e, threads, fds, n_fds);
        }
        if (lane_record_check(&r, (uint64_t)n, LANE_PEER_ENGINE, &err)) {
            engine_link_kill(e, err.text);
            return false;
        }
        on_record(e, &r);
    }
    return true;
}

HOT void engine_link_on_socket(void *arg, uint32_t events)
{
    struct engine_link *e = arg;

    if (events & EPOLLOUT) {
        flush(e);
    }
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)) || read_records(e, READ_BURST)) {
        return;
    }
    /* It closed its end: it is dying, or has lost its mind. engine_down() follows when it is
     * reaped. */
    engine_link_close_socket(e);
    if (e->pid > 0) {
        (void)kill(e->pid, SIGKILL);
    }
}

void engine_link_read_rest(struct engine_link *e)
{
    while (e->watch.fd >= 0 && read_records(e, READ_BURST)) {
        /* EAGAIN cannot last: nobody holds the other end. */
        struct lane_record r;

        if (recv(e->watch.fd, &r, sizeof(r), MSG_PEEK | MSG_DONTWAIT) <= 0) {
            break;
        }
    }
}
