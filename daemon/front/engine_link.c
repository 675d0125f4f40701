/* SPDX-License-Identifier: Apache-2.0 */
/* The engine's process and socket. Death is handled in one place, engine_down(), and only when the
 * process has been reaped and everything it said before it died has been read: so a token that
 * reached the socket is never said twice. */

#include "daemon/front/engine_link_impl.h"

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
#include "base/log.h"
#include "base/version.h"
#include "daemon/front/arena.h"
#include "daemon/front/child.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/lane.h"
#include "daemon/front/reload.h"
#include "daemon/front/upgrade.h"

#define RETRY_FIRST_NS 100000000
#define RETRY_MOST_NS 30000000000
#define REFUSED_FIRST_NS 1000000000 /* a model that cannot be loaded, where requests load it */
#define STEADY_NS 60000000000       /* ready for so long: the next death is a first one again */
#define WORKED_MOST 3               /* deaths of ready engines with work count as so many, 0.2 s */
#define LEAVE_NS 2000000000         /* an engine that was told to end, and does not, is killed */
enum { SOCKET_BYTES = 1 << 20, FIRST_START_TRIES = 3 };

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
    e->watch =
        (struct loop_watch){.fd = ours, .events = EPOLLIN, .fn = engine_link_on_socket, .arg = e};
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
    engine_link_watch(e, e->heard_ns + LOAD_TIMEOUT_NS);
    if (!f->listening) { /* checking may take longer than the service manager waits unasked */
        notify_say(&f->notify, "EXTEND_TIMEOUT_USEC=%lld\nSTATUS=Checking the model",
                   (long long)(LOAD_TIMEOUT_NS + RETRY_MOST_NS) / 1000);
    }
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
        engine_link_send(e, &r);
        engine_link_watch(e, clock_ns() + LEAVE_NS);
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
    engine_link_close_socket(e);
    outgoing_destroy(e->out);
    free(e);
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
    bool worked = was_ready && f->n_running + f->n_texts > 0;
    struct log_fields fields = {0};
    bool hopeless;
    bool other;
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
    other = WIFEXITED(status) && WEXITSTATUS(status) == EXIT_OTHER_VERSION;
    if (other && upgrade_begin(f, "pipit-engine is of another version")) {
        return;
    }
    if (other) {
        (void)snprintf(e->cause, sizeof(e->cause),
                       "pipit-engine was replaced by another version: start pipitd (%s) anew",
                       version_of_this());
    }
    if (was_ready && clock_ns() - e->ready_ns > STEADY_NS) {
        e->n_failures = 0;
    }
    e->n_failures++;
    if (worked && e->n_failures > WORKED_MOST) {
        e->n_failures = WORKED_MOST; /* requests are charged, and need not all wait (blame.h) */
    }
    if (e->cause[0] == '\0') {
        (void)snprintf(e->cause, sizeof(e->cause), "the engine ended with %s", how);
    }
    memcpy(e->failure, e->cause, sizeof(e->failure));
    log_field(&fields, "PIPIT_EVENT", "engine-died");
    log_field(&fields, "PIPIT_REASON", "%s", how);
    hopeless = is_refusal(status) || (other && !f->system) ||
               (e->epoch == 0 && e->n_failures >= FIRST_START_TRIES);
    if (hopeless && reload_take_back(f, e->cause)) {
        e->n_failures = 0;
        on_retry(e);
        return;
    }
    if (hopeless) {
        e->state = LANE_FAILED;
        dispatch_failed(f, e->cause);
    }
    /* The engine has said why on stderr, which it shares with us. Under systemd we stay to tell the
     * clients: ended, the next of them would only start us again. */
    if (hopeless && e->epoch == 0 && !f->system && f->config->load == CONFIG_LOAD_START) {
        int code = is_refusal(status) ? WEXITSTATUS(status) : 8;

        rundir_write_failure(&f->rundir, code, e->cause);
        front_stop(f, code);
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

bool engine_link_reaped(struct engine_link *e, pid_t pid, int status)
{
    if (!e || pid != e->pid || pid == 0) {
        return false;
    }
    e->pid = 0;
    engine_link_read_rest(e);
    engine_link_close_socket(e);
    engine_down(e, status);
    return true;
}

void engine_link_drain(struct engine_link *e)
{
    struct lane_record r;

    e->draining = true;
    loop_timer_off(&e->front->loop, &e->retry);
    lane_record_init(&r, LANE_ENGINE_DRAIN, NULL);
    engine_link_send(e, &r);
}
