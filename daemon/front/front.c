/* SPDX-License-Identifier: Apache-2.0 */
/* One daemon from its lock to its last record: makes the modules in order, runs the loop, and takes
 * them down in the opposite order. Signals come as a descriptor. Between two batches of events it
 * sends waiting requests to the engine and, at most once a second, a status line to systemd.
 *
 * Stopping (the end of a drain; SIGTERM, SIGINT; SIGHUP, the closed terminal, unless systemd
 * started us and means a reload by it; all after stop-timeout): waiting requests end at once; the
 * engine is asked to end the running ones, which takes it one operation also in a long prefill;
 * after FORCE_NS it is killed and what still runs ends here. Clients may still connect meanwhile
 * and learn that we are stopping. */

#include "daemon/front/front.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "daemon/front/accept.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/ending.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/figures.h"
#include "daemon/front/gateway.h"
#include "daemon/front/lane.h"
#include "daemon/front/lifecycle.h"
#include "daemon/front/reload.h"
#include "daemon/front/status.h"
#include "daemon/front/successor.h"
#include "daemon/front/upgrade.h"

#define FORCE_NS 1400000000
#define LEAVE_NS 300000000
#define STATUS_NS 1000000000

static void on_leave(void *arg)
{
    struct front *f = arg;

    loop_stop(&f->loop);
}

static void on_force(void *arg)
{
    struct front *f = arg;

    log_warning("the engine did not end its answers in time");
    ending_all(f, true);
    loop_timer_at(&f->loop, &f->stop_timer, clock_ns() + LEAVE_NS, on_leave, f);
}

void front_stop(struct front *f, int exit_code)
{
    if (f->stopping) {
        loop_stop(&f->loop);
        return;
    }
    f->stopping = true;
    f->exit_code = exit_code;
    notify_say(&f->notify, "STOPPING=1\nSTATUS=Stopping");
    if (f->engine) {
        engine_link_drain(f->engine);
    }
    ending_all(f, false);
    loop_timer_at(&f->loop, &f->stop_timer, clock_ns() + FORCE_NS, on_force, f);
}

static bool all_sent(const struct front *f)
{
    for (const struct lane *l = f->lanes; l; l = l->next) {
        if (!lane_flushed(l)) {
            return false;
        }
    }
    return true;
}

static void on_status(void *arg)
{
    status_notify(arg);
}

/* Once, and not before the model's file and plan are known to be good. Whoever connected before
 * waits. */
static void say_listening(struct front *f)
{
    f->listening = true;
    if (engine_link_state(f->engine) == LANE_FAILED) {
        log_warning("listening in %s, without a model: %s", f->rundir.path,
                    engine_link_cause(f->engine));
    } else {
        log_info("listening in %s, for the model %s", f->rundir.path, f->config->engine.model);
    }
    notify_say(&f->notify, "READY=1");
    status_notify(f);
}

HOT static void after_batch(void *arg)
{
    struct front *f = arg;

    if (!f->listening && !f->stopping && engine_link_checked(f->engine)) {
        say_listening(f);
    }
    upgrade_check(f);
    if (f->dispatch_wanted) {
        dispatch_run(f);
    }
    lifecycle_check(f);
    if (f->stopping && f->n_running + f->n_texts + f->queue.n == 0 && all_sent(f)) {
        loop_stop(&f->loop);
    }
    if (f->status_changed && f->status_timer.index == 0 && !f->stopping) {
        f->status_changed = false;
        figures_watch(f);
        loop_timer_at(&f->loop, &f->status_timer, clock_ns() + STATUS_NS, on_status, f);
    }
}

static void reap(struct front *f)
{
    pid_t pid;
    int status;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (!engine_link_reaped(f->engine, pid, status) &&
            !gateway_reaped(f->gateway, pid, status)) {
            log_debug("child %d ended", (int)pid);
        }
    }
}

/* The first may leave requests their time, the second ends them, the third ends us. */
static void on_stop_signal(struct front *f, uint32_t signo)
{
    int64_t limit = (int64_t)(f->config->stop_timeout * 1e9);

    if (limit > 0 && !f->stopping && f->n_stop_signals++ == 0) {
        /* systemd waits TimeoutStopSec=, unless it is told of more. */
        notify_say(&f->notify, "STOPPING=1\nEXTEND_TIMEOUT_USEC=%llu\nSTATUS=Draining",
                   (unsigned long long)((limit + FORCE_NS + LEAVE_NS) / 1000 + 1000000));
        log_info("signal %u: draining", signo);
        if (lifecycle_drain(f, LANE_CONTROL_DRAIN, limit, NULL) == 0) {
            return;
        }
    }
    log_info("signal %u: stopping", signo);
    front_stop(f, 0);
}

static void on_signal(void *arg, uint32_t events)
{
    struct front *f = arg;
    struct signalfd_siginfo s;

    (void)events;
    while (read(f->signals.fd, &s, sizeof(s)) == sizeof(s)) {
        if (s.ssi_signo == SIGCHLD) {
            reap(f);
        } else if (s.ssi_signo == SIGHUP && f->system) {
            if (!f->stopping && !upgrade_begin(f, "asked to read the configuration again")) {
                reload_run(f);
            }
        } else {
            on_stop_signal(f, s.ssi_signo);
        }
    }
}

static int watch_signals(struct front *f, struct error *reterr)
{
    sigset_t set;

    (void)signal(SIGPIPE, SIG_IGN);
    (void)sigemptyset(&set);
    (void)sigaddset(&set, SIGTERM);
    (void)sigaddset(&set, SIGINT);
    (void)sigaddset(&set, SIGHUP);
    (void)sigaddset(&set, SIGCHLD);
    (void)sigprocmask(SIG_BLOCK, &set, NULL);
    f->signals = (struct loop_watch){.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK),
                                     .events = EPOLLIN,
                                     .fn = on_signal,
                                     .arg = f};
    if (f->signals.fd < 0 || loop_add(&f->loop, &f->signals)) {
        return error_set_errno(reterr, -errno, "cannot watch signals");
    }
    return 0;
}

/* systemd's watchdog: fed while the engine makes progress or has nothing to do. The engine's own
 * timeout is shorter; this one is for the front itself. */
static void on_watchdog(void *arg)
{
    struct front *f = arg;

    if (!engine_link_hangs(f->engine, 2)) {
        notify_say(&f->notify, "WATCHDOG=1");
    }
    loop_timer_at(&f->loop, &f->watchdog_timer, clock_ns() + f->watchdog_ns, on_watchdog, f);
}

static void start_watchdog(struct front *f)
{
    uint64_t usec = 0;

    if (sd_watchdog_enabled(0, &usec) > 0) {
        f->watchdog_ns = (int64_t)usec * 1000 / 3;
        on_watchdog(f);
    }
}

/* A file that cannot be read leaves what was known. */
void front_read_persons(struct front *f)
{
    struct persons next;
    struct error e = {0};

    if (persons_load(f->config->subuid_file, &next, &e)) {
        log_warning("%s; ignoring subordinate user ids", e.text);
        return;
    }
    persons_clear(&f->persons);
    f->persons = next;
}

static int start(struct front *f, struct error *reterr)
{
    uint64_t random[2];
    int rc;

    if (getrandom(random, sizeof(random), 0) != sizeof(random)) {
        return error_set_errno(reterr, -errno, "cannot draw random numbers");
    }
    f->epoch = random[0] >> 11 | 1; /* a number that JSON readers keep whole */
    request_table_init(&f->requests, random[1]);
    f->requests.persons = &f->persons;
    front_read_persons(f);
    queue_init(&f->queue, (uint32_t)f->config->max_queue);
    rc = watch_signals(f, reterr);
    rc = rc ? rc : rundir_lock(&f->rundir, reterr);
    rc = rc ? rc : rundir_listen(&f->rundir, reterr);
    rc = rc ? rc : accept_start(f, reterr);
    rc = rc ? rc : successor_open(f, reterr);
    rc = rc ? rc : engine_link_create(f, f->config->load == CONFIG_LOAD_START, &f->engine, reterr);
    if (rc == 0 && f->config->gateway && f->rundir.gateway_fd < 0) {
        rc = gateway_create(f, &f->gateway, reterr);
    }
    if (rc == 0) {
        successor_adopt(f);
        lifecycle_check(f);
    }
    return rc;
}

static void finish(struct front *f)
{
    loop_timer_off(&f->loop, &f->steady_timer);
    loop_timer_off(&f->loop, &f->pause_timer);
    gateway_destroy(f->gateway);
    f->gateway = NULL;
    engine_link_destroy(f->engine);
    reload_settle(f);
    f->engine = NULL;
    lane_engine_gone(f);
    while (f->lanes) {
        lane_close(f->lanes, "the daemon stops");
    }
    logline_flush(f);
    ending_forget_all(f);
    journal_close(&f->journal);
    accept_stop(f);
    persons_clear(&f->persons);
    rundir_close(&f->rundir);
    loop_del(&f->loop, &f->signals);
    close_fd(&f->signals.fd);
    notify_close(&f->notify);
    loop_finish(&f->loop);
}

/* A locked directory is a refusal, a bad one is the caller's mistake, all else is ours. */
static int exit_code_of(int rc)
{
    switch (rc) {
    case -EBUSY:
        return 4;
    case -ENAMETOOLONG:
    case -EPERM:
    case -ENOTDIR:
    case -EACCES:
    case -EROFS:
        return 2;
    case -ENOMEM:
        return 4;
    default:
        return 8;
    }
}

/* Of each lane one, of each request three, and some of our own; a gateway's lane is not counted
 * among those that clients may have. */
static uint32_t most_timers(const struct config *c)
{
    enum { OF_A_REQUEST = 3, OTHERS = 32 };

    return (uint32_t)c->lanes + OF_A_REQUEST * REQUEST_MAX + OTHERS;
}

int front_run(struct config *c, const struct rundir *dir, const char *manager)
{
    struct front f = {.config = c,
                      .rundir = *dir,
                      .system = manager && *manager,
                      .next_lane_id = 1,
                      .started_ns = clock_ns(),
                      .signals.fd = -1,
                      .notify.fd = -1,
                      .journal.fd = -1};
    struct error e = {0};
    int rc = loop_init(&f.loop, most_timers(c), &e);

    if (rc == 0) {
        notify_open(&f.notify, &f.loop, manager);
        rc = start(&f, &e);
    }
    if (rc == 0) {
        start_watchdog(&f);
        rc = loop_run(&f.loop, after_batch, &f);
        if (rc == 0) {
            successor_disown(&f);
        }
    }
    if (rc) {
        log_error("%s", e.code ? e.text : strerror(-rc));
        f.exit_code = exit_code_of(rc);
    }
    finish(&f);
    return f.exit_code;
}
