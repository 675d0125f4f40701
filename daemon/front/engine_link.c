/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's process and socket. Death is handled in one place, engine_down(), and only when the
 * process has been reaped and everything it said before it died has been read: so a token that
 * reached the socket is never said twice. */

#include "daemon/front/engine_link.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "base/sock.h"
#include "daemon/front/arena.h"
#include "daemon/front/child.h"
#include "daemon/front/cputime.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/outgoing.h"
#include "daemon/front/report.h"

#define LOAD_TIMEOUT_NS 300000000000 /* without a word while loading */
#define RETRY_FIRST_NS 100000000
#define RETRY_MOST_NS 30000000000
#define REFUSED_FIRST_NS 1000000000 /* a model that cannot be loaded, where requests load it */
#define STEADY_NS 60000000000       /* ready for so long: the next death is a first one again */
#define LEAVE_NS 2000000000         /* an engine that was told to end, and does not, is killed */
#define STARVED_LOG_NS 60000000000
enum { READ_BURST = 128, SOCKET_BYTES = 1 << 20, FIRST_START_TRIES = 3 };

struct engine_link {
    struct front *front;
    char path[1024];
    pid_t pid; /* 0: none */
    struct loop_watch watch;
    struct outgoing *out;

    uint32_t state; /* enum lane_state */
    struct lane_engine_state info;
    struct report report;
    char cause[sizeof(((struct lane_error *)0)->text)];
    char failure[sizeof(((struct lane_error *)0)->text)]; /* cause of the last death, until the
                                                             model is ready again */
    uint64_t epoch;
    uint32_t n_restarts;
    uint32_t n_unloads;
    uint32_t n_failures; /* in a row */
    int64_t started_ns;
    int64_t heard_ns;
    int64_t ready_ns;
    int64_t load_ns;
    int64_t busy_ns; /* since when; 0: idle */
    int64_t cpu_ns;  /* of the engine, when it last said something or became busy; -1: not known */
    int64_t starved_ns; /* when that was last logged */
    bool draining;
    bool leaving; /* told to end: what it still says about itself does not count */
    bool again;   /* ... and to be started anew */
    struct loop_timer retry;
    int64_t refuse_until_ns; /* FAILED, and no timer: a request after that starts it again */
    struct loop_timer pulse;
};

static void on_socket(void *arg, uint32_t events);
static void on_pulse(void *arg);
static void engine_down(struct engine_link *e, int status);
static int push(struct engine_link *e, const struct lane_record *r, int fd0, int fd1);

static void close_socket(struct engine_link *e)
{
    loop_del(&e->front->loop, &e->watch);
    close_fd(&e->watch.fd);
    outgoing_clear(e->out);
}

static void kill_engine(struct engine_link *e, const char *why)
{
    if (e->pid > 0) {
        struct log_fields fields = {0};

        log_field(&fields, "PIPIT_EVENT", "engine-killed");
        log_field(&fields, "PIPIT_REASON", "%s", why);
        log_write_fields(LOG_LEVEL_ERR, &fields, "killing the engine (pid %d): %s", (int)e->pid,
                         why);
        (void)kill(e->pid, SIGKILL);
    }
}

static int64_t step_base(const struct engine_link *e)
{
    int64_t step = e->info.last_step_ns;

    return step > e->busy_ns ? step : e->busy_ns;
}

/* Nobody lets it run: it has work to do, and in all this time hardly a CPU. Then killing it would
 * not help: what comes after it would get no more. */
static bool is_starved(const struct engine_link *e, int64_t limit)
{
    int64_t now = cputime_ns(e->pid);

    return e->cpu_ns >= 0 && now >= 0 && now - e->cpu_ns < limit / 2 && cputime_is_wanted(e->pid);
}

bool engine_link_hangs(const struct engine_link *e, int64_t limit)
{
    return e && e->busy_ns && clock_ns() - step_base(e) >= limit && !is_starved(e, limit);
}

static void wait_for_cpu(struct engine_link *e, int64_t limit)
{
    int64_t now = clock_ns();

    if (now - e->starved_ns >= STARVED_LOG_NS) {
        e->starved_ns = now;
        log_warning("no step ended in time, but the engine (pid %d) gets no CPU: waiting",
                    (int)e->pid);
    }
    loop_timer_at(&e->front->loop, &e->pulse, now + limit / 4, on_pulse, e);
}

/* Is it alive? While it loads: has it said anything; while it works: has a step ended. */
static void on_pulse(void *arg)
{
    struct engine_link *e = arg;
    int64_t limit = (int64_t)(e->front->config->engine_timeout * 1e9);
    int64_t base = e->heard_ns;

    if (e->pid == 0) {
        return;
    }
    if (e->leaving) {
        kill_engine(e, "it was told to end and does not");
        return;
    }
    if (e->state == LANE_READY) {
        if (e->busy_ns == 0) {
            return;
        }
        limit = limit > 4 * e->info.longest_step_ns ? limit : 4 * e->info.longest_step_ns;
        base = step_base(e);
    } else {
        limit = LOAD_TIMEOUT_NS;
    }
    if (clock_ns() - base >= limit && e->state == LANE_READY && is_starved(e, limit)) {
        wait_for_cpu(e, limit);
    } else if (clock_ns() - base >= limit) {
        kill_engine(e, e->state == LANE_READY ? "no step ended in time" : "loading is stuck");
    } else {
        loop_timer_at(&e->front->loop, &e->pulse, base + limit, on_pulse, e);
    }
}

static int make_sockets(int ret[2], struct error *reterr)
{
    int size = SOCKET_BYTES;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret)) {
        return error_set_errno(reterr, -errno, "cannot create the engine's sockets");
    }
    (void)setsockopt(ret[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    (void)setsockopt(ret[1], SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    return 0;
}

static int start(struct engine_link *e, struct error *reterr)
{
    struct front *f = e->front;
    AUTO_CLOSE int journal = -1;
    AUTO_CLOSE int ours = -1;
    AUTO_CLOSE int theirs = -1;
    int pair[2];
    char **argv;
    int rc = make_sockets(pair, reterr);

    if (rc) {
        return rc;
    }
    ours = pair[0];
    theirs = pair[1];
    rc = arena_read_only(f->journal.fd, &journal, reterr);
    if (rc) {
        return rc;
    }
    argv = config_engine_argv(f->config, "pipit-engine", 3, 4);
    if (!argv) {
        return error_set(reterr, -ENOMEM, "no memory to start the engine");
    }
    rc = child_spawn(e->path, argv, (int[]){theirs, journal}, 2, &e->pid, reterr);
    config_free_argv(argv);
    if (rc) {
        return rc;
    }
    e->watch = (struct loop_watch){.fd = ours, .events = EPOLLIN, .fn = on_socket, .arg = e};
    rc = loop_add(&f->loop, &e->watch);
    if (rc) {
        e->watch.fd = -1;
        (void)kill(e->pid, SIGKILL);
        return error_set_errno(reterr, rc, "cannot watch the engine");
    }
    STEAL_FD(ours);
    e->state = LANE_LOADING;
    e->info = (struct lane_engine_state){.state = LANE_LOADING};
    e->cause[0] = '\0';
    e->started_ns = clock_ns();
    e->heard_ns = e->started_ns;
    f->status_changed = true;
    loop_timer_at(&f->loop, &e->pulse, e->heard_ns + LOAD_TIMEOUT_NS, on_pulse, e);
    return 0;
}

/* Doubles with each failure but the first. */
static int64_t pause_from(const struct engine_link *e, int64_t ns)
{
    for (uint32_t i = 2; i < e->n_failures && ns < RETRY_MOST_NS; i++) {
        ns *= 2;
    }
    return ns < RETRY_MOST_NS ? ns : RETRY_MOST_NS;
}

static void on_retry(void *arg)
{
    struct engine_link *e = arg;
    struct error err = {0};

    if (!e->draining && start(e, &err)) {
        e->n_failures++; /* of a moment, maybe: soon at first, then less and less often */
        log_error("cannot start the engine: %s; again in %.1f s", err.text,
                  (double)pause_from(e, RETRY_FIRST_NS) / 1e9);
        loop_timer_at(&e->front->loop, &e->retry, clock_ns() + pause_from(e, RETRY_FIRST_NS),
                      on_retry, e);
    }
}

/* No process, on purpose. Whoever asked meanwhile waits in the queue. */
static void unloaded(struct engine_link *e)
{
    bool again = e->again || e->front->queue.n > 0;

    e->leaving = false;
    e->again = false;
    e->cause[0] = '\0';
    e->n_failures = 0;
    if (again && !e->draining) {
        on_retry(e);
    }
}

void engine_link_load(struct engine_link *e)
{
    if (e->draining) {
        return;
    }
    if (e->pid > 0) {
        e->again |= e->leaving;
    } else if (e->retry.index == 0) {
        on_retry(e);
    }
}

void engine_link_unload(struct engine_link *e, bool again)
{
    struct lane_record r;

    loop_timer_off(&e->front->loop, &e->retry);
    e->again = again; /* the last order counts */
    e->front->status_changed = true;
    e->state = LANE_UNLOADED;
    e->info.state = LANE_UNLOADED;
    e->info.progress = 0;
    e->info.kv_bytes_used = 0;
    e->info.kv_bytes_total = 0;
    e->info.plan_bytes = 0;
    report_clear(&e->report);
    e->busy_ns = 0;
    if (e->pid == 0) {
        unloaded(e);
    } else if (!e->leaving) {
        e->leaving = true;
        lane_record_init(&r, LANE_ENGINE_DRAIN, NULL);
        (void)push(e, &r, -1, -1);
        loop_timer_at(&e->front->loop, &e->pulse, clock_ns() + LEAVE_NS, on_pulse, e);
    }
}

int engine_link_create(struct front *f, bool load, struct engine_link **ret, struct error *reterr)
{
    struct engine_link *e = calloc(1, sizeof(*e));
    int rc;

    if (!e) {
        return error_set(reterr, -ENOMEM, "no memory for the engine's state");
    }
    e->front = f;
    e->watch.fd = -1;
    e->out = outgoing_create();
    rc = e->out ? child_find("pipit-engine", "worker", e->path, sizeof(e->path), reterr)
                : error_set(reterr, -ENOMEM, "no memory for the engine's records");
    rc = rc || !load ? rc : start(e, reterr);
    if (rc) {
        engine_link_destroy(e);
        return rc;
    }
    *ret = e;
    return 0;
}

void engine_link_destroy(struct engine_link *e)
{
    if (!e) {
        return;
    }
    loop_timer_off(&e->front->loop, &e->retry);
    loop_timer_off(&e->front->loop, &e->pulse);
    if (e->pid > 0) {
        (void)kill(e->pid, SIGKILL);
        (void)waitpid(e->pid, NULL, 0);
    }
    close_socket(e);
    outgoing_destroy(e->out);
    free(e);
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
        kill_engine(e, "it takes no records");
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
        kill_engine(e, "it takes no records");
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
        ssize_t n = sock_recv(e->watch.fd, &r, sizeof(r), NULL, NULL);

        if (n == -EAGAIN) {
            return true;
        }
        if (n <= 0) {
            return false;
        }
        if (lane_record_check(&r, (uint64_t)n, LANE_PEER_ENGINE, &err)) {
            kill_engine(e, err.text);
            return false;
        }
        on_record(e, &r);
    }
    return true;
}

HOT static void on_socket(void *arg, uint32_t events)
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
    close_socket(e);
    if (e->pid > 0) {
        (void)kill(e->pid, SIGKILL);
    }
}

bool engine_link_reaped(struct engine_link *e, pid_t pid, int status)
{
    if (!e || pid != e->pid || pid == 0) {
        return false;
    }
    e->pid = 0;
    while (e->watch.fd >= 0 && read_records(e, READ_BURST)) {
        /* What it said before it died. EAGAIN cannot last: nobody holds the other end. */
        struct lane_record r;

        if (recv(e->watch.fd, &r, sizeof(r), MSG_PEEK | MSG_DONTWAIT) <= 0) {
            break;
        }
    }
    close_socket(e);
    engine_down(e, status);
    return true;
}

static int64_t pause_ns(const struct engine_link *e)
{
    return e->n_failures <= 1 ? 0 : pause_from(e, RETRY_FIRST_NS);
}

/* An exit code that says: it will be the same the next time. */
static bool is_refusal(int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;

    return code == 2 || code == 4 || code == 6;
}

static void engine_down(struct engine_link *e, int status)
{
    struct front *f = e->front;
    bool was_ready = e->state == LANE_READY;
    struct log_fields fields = {0};
    bool hopeless;
    char how[64];

    child_describe(status, how, sizeof(how));
    loop_timer_off(&f->loop, &e->pulse);
    e->busy_ns = 0;
    report_clear(&e->report);
    e->state = e->leaving ? LANE_UNLOADED : LANE_LOADING;
    lane_engine_gone(f);
    dispatch_lost(f);
    f->status_changed = true;
    if (e->leaving) {
        e->n_unloads++;
        log_field(&fields, "PIPIT_EVENT", "model-unloaded");
        log_write_fields(LOG_LEVEL_INFO, &fields, "the model is unloaded");
        unloaded(e);
        return;
    }
    if (e->draining) {
        return;
    }
    if (was_ready && clock_ns() - e->ready_ns > STEADY_NS) {
        e->n_failures = 0;
    }
    e->n_failures++;
    if (e->cause[0] == '\0') {
        (void)snprintf(e->cause, sizeof(e->cause), "the engine ended with %s", how);
    }
    memcpy(e->failure, e->cause, sizeof(e->failure));
    log_field(&fields, "PIPIT_EVENT", "engine-died");
    log_field(&fields, "PIPIT_REASON", "%s", how);
    hopeless = is_refusal(status) || (e->epoch == 0 && e->n_failures >= FIRST_START_TRIES);
    if (hopeless) {
        e->state = LANE_FAILED;
        dispatch_failed(f, e->cause);
    }
    /* The engine has said why on stderr, which it shares with us. Under systemd we stay to tell the
     * clients: ended, the next of them would only start us again. */
    if (hopeless && e->epoch == 0 && !f->system && f->config->load == CONFIG_LOAD_START) {
        front_stop(f, is_refusal(status) ? WEXITSTATUS(status) : 8);
        return;
    }
    /* Loaded on request, it is tried again on request, and not before it may have changed. */
    if (hopeless && f->config->load == CONFIG_LOAD_REQUEST) {
        int64_t ns = pause_from(e, REFUSED_FIRST_NS);

        e->refuse_until_ns = clock_ns() + ns;
        log_write_fields(LOG_LEVEL_ERR, &fields,
                         "the engine ended with %s; requests are refused for %.1f s, then the next "
                         "one starts it again",
                         how, (double)ns / 1e9);
        return;
    }
    e->n_restarts++;
    log_write_fields(LOG_LEVEL_ERR, &fields,
                     "the engine ended with %s; starting it again in %.1f s", how,
                     (double)pause_ns(e) / 1e9);
    loop_timer_at(&f->loop, &e->retry, clock_ns() + pause_ns(e), on_retry, e);
}

void engine_link_busy(struct engine_link *e, bool busy)
{
    if (!busy) {
        e->busy_ns = 0;
    } else if (e->busy_ns == 0) {
        e->busy_ns = clock_ns();
        e->cpu_ns = cputime_ns(e->pid);
        if (e->pulse.index == 0 || e->state == LANE_READY) {
            loop_timer_at(&e->front->loop, &e->pulse,
                          e->busy_ns + (int64_t)(e->front->config->engine_timeout * 1e9), on_pulse,
                          e);
        }
    }
}

void engine_link_drain(struct engine_link *e)
{
    struct lane_record r;

    e->draining = true;
    loop_timer_off(&e->front->loop, &e->retry);
    lane_record_init(&r, LANE_ENGINE_DRAIN, NULL);
    (void)push(e, &r, -1, -1);
}

bool engine_link_ready(const struct engine_link *e)
{
    return e && e->state == LANE_READY && e->watch.fd >= 0;
}

uint32_t engine_link_state(const struct engine_link *e)
{
    return e ? e->state : LANE_LOADING;
}

const struct lane_engine_state *engine_link_info(const struct engine_link *e)
{
    static const struct lane_engine_state none;

    return e ? &e->info : &none;
}

const char *engine_link_cause(const struct engine_link *e)
{
    return e->cause;
}

const char *engine_link_failure(const struct engine_link *e)
{
    return e ? e->failure : "";
}

uint64_t engine_link_model(const struct engine_link *e)
{
    char half[17];

    (void)snprintf(half, sizeof(half), "%.16s", e->report.model);
    return strtoull(half, NULL, 16);
}

const struct report *engine_link_report(const struct engine_link *e)
{
    static const struct report none;

    return e ? &e->report : &none;
}

uint32_t engine_link_refuse_ms(const struct engine_link *e)
{
    int64_t at = e->retry.index ? e->retry.when_ns : e->refuse_until_ns;
    int64_t left = at - clock_ns();

    return left > 0 ? (uint32_t)(left / 1000000) + 1 : e->retry.index ? 1 : 0;
}

uint64_t engine_link_epoch(const struct engine_link *e)
{
    return e ? e->epoch : 0;
}

int64_t engine_link_ready_ns(const struct engine_link *e)
{
    return e->ready_ns;
}

int64_t engine_link_load_ns(const struct engine_link *e)
{
    return e->ready_ns > 0 ? e->load_ns : 0;
}

uint32_t engine_link_restarts(const struct engine_link *e)
{
    return e ? e->n_restarts : 0;
}

uint32_t engine_link_unloads(const struct engine_link *e)
{
    return e->n_unloads;
}

int64_t engine_link_step_age_ns(const struct engine_link *e)
{
    return e && e->busy_ns ? clock_ns() - step_base(e) : 0;
}

int engine_link_pid(const struct engine_link *e)
{
    return e ? (int)e->pid : 0;
}
