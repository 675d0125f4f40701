/* SPDX-License-Identifier: Apache-2.0 */
/* All of it is decided in lifecycle_check(), from the numbers of requests, so that no path through
 * the other modules must remember to tell. A request that comes between the order to unload and the
 * end of the process is in the queue, where engine_link finds it; one that came before is seen here
 * and there is no order. */

#include "daemon/front/lifecycle.h"

#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "daemon/front/ending.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/reload.h"
#include "daemon/front/status.h"

enum { RETRY_LEAST_MS = 100, RETRY_MOST_MS = 60000, RETRY_UNKNOWN_MS = 2000 };

static bool is_idle(const struct front *f)
{
    return f->n_running + f->n_texts + f->queue.n == 0;
}

static void on_idle(void *arg)
{
    struct front *f = arg;

    if (is_idle(f) && !f->drain && !f->stopping && engine_link_ready(f->engine)) {
        log_info("no request for %g s: unloading the model", f->config->idle_unload);
        engine_link_unload(f->engine, false);
    }
}

static void watch_idleness(struct front *f)
{
    bool wanted = is_idle(f) && !f->drain && !f->stopping && f->config->idle_unload > 0 &&
                  engine_link_ready(f->engine);

    if (!wanted) {
        loop_timer_off(&f->loop, &f->idle_timer);
    } else if (f->idle_timer.index == 0) {
        loop_timer_at(&f->loop, &f->idle_timer,
                      clock_ns() + (int64_t)(f->config->idle_unload * 1e9), on_idle, f);
    }
}

static void end_drain(struct front *f)
{
    uint32_t op = f->drain;

    loop_timer_off(&f->loop, &f->drain_timer);
    f->drain = 0;
    f->status_changed = true;
    if (op == LANE_CONTROL_DRAIN) {
        log_info("drained: stopping");
        front_stop(f, 0);
        return;
    }
    log_info("drained: loading the model again");
    reload_engine(f);
    engine_link_unload(f->engine, true);
}

HOT void lifecycle_check(struct front *f)
{
    if (f->stopping) {
        loop_timer_off(&f->loop, &f->drain_timer);
        loop_timer_off(&f->loop, &f->idle_timer);
        return;
    }
    if (f->queue.n > 0 && engine_link_state(f->engine) == LANE_UNLOADED) {
        engine_link_load(f->engine);
    }
    if (f->drain && is_idle(f)) {
        end_drain(f);
    }
    watch_idleness(f);
}

/* What still runs ends. An engine that does not obey is killed by its own clock, and then what ran
 * in it ends, too. */
static void on_drain_limit(void *arg)
{
    struct front *f = arg;

    log_info("drain: the time is over for %u requests", f->n_running + f->n_texts + f->queue.n);
    if (f->drain == LANE_CONTROL_DRAIN) {
        front_stop(f, 0);
        return;
    }
    ending_stop_all(f);
}

int lifecycle_drain(struct front *f, uint32_t op, int64_t limit_ns, struct error *reterr)
{
    int64_t at = clock_ns() + limit_ns;
    int rc = op == LANE_CONTROL_RELOAD ? reload_check(f, reterr) : 0;

    if (rc || f->stopping) {
        return rc;
    }
    f->drain = f->drain == LANE_CONTROL_DRAIN ? f->drain : op;
    f->status_changed = true;
    log_info("draining%s: no new requests, %u to end",
             f->drain == LANE_CONTROL_RELOAD ? " for a reload" : "",
             f->n_running + f->n_texts + f->queue.n);
    if (limit_ns > 0 && (f->drain_timer.index == 0 || at < f->drain_timer.when_ns)) {
        loop_timer_at(&f->loop, &f->drain_timer, at, on_drain_limit, f);
    }
    return 0;
}

uint32_t lifecycle_retry_ms(const struct front *f)
{
    int64_t ms = RETRY_UNKNOWN_MS;

    if (f->drain_timer.index) {
        ms = (f->drain_timer.when_ns - clock_ns()) / 1000000;
    }
    return ms < RETRY_LEAST_MS ? RETRY_LEAST_MS : ms > RETRY_MOST_MS ? RETRY_MOST_MS : (uint32_t)ms;
}

/* The machine's owner, or whoever started the daemon; never somebody the gateway speaks for. */
static bool may_control(const struct lane *l)
{
    return !l->privileged && (l->uid == 0 || l->uid == geteuid());
}

static bool unload(struct front *f, struct lane *l)
{
    if (!is_idle(f)) {
        lane_send_error(l, NULL, LANE_ERR_BUSY, queue_retry_ms(&f->queue, 1),
                        "%u requests run, %u wait: the model is in use", f->n_running + f->n_texts,
                        f->queue.n);
        return false;
    }
    log_info("uid %u unloads the model", l->uid);
    engine_link_unload(f->engine, false);
    return true;
}

void lifecycle_serve(struct front *f, struct lane *l, const struct lane_record *r)
{
    struct lane_record pong;
    struct error e = {0};

    if (r->control.op != LANE_CONTROL_LOAD && !may_control(l)) {
        lane_send_error(l, NULL, LANE_ERR_DENIED, 0,
                        "this is for root and for the user that the daemon runs as");
        return;
    }
    if (f->stopping || (f->drain && r->control.op < LANE_CONTROL_DRAIN)) {
        lane_send_error(l, NULL, LANE_ERR_SHUTDOWN, lifecycle_retry_ms(f),
                        "the daemon takes no requests: it drains or stops");
        return;
    }
    if (r->control.op == LANE_CONTROL_LOAD) {
        uint32_t ms = status_state(f) == LANE_FAILED ? engine_link_refuse_ms(f->engine) : 0;

        /* Like a request's: whoever asks in a loop does not keep an engine that cannot load
         * starting. */
        if (ms > 0 && !may_control(l)) {
            lane_send_error(l, NULL, LANE_ERR_MODEL, ms, "the model cannot be loaded: %s",
                            engine_link_cause(f->engine));
            return;
        }
        engine_link_load(f->engine);
    } else if (r->control.op == LANE_CONTROL_UNLOAD) {
        if (!unload(f, l)) {
            return;
        }
    } else if (lifecycle_drain(f, r->control.op, (int64_t)r->control.limit_ms * 1000000, &e)) {
        lane_send_error(l, NULL, LANE_ERR_INVALID, 0, "%s", e.text);
        return;
    }
    status_hello(f, &pong, LANE_PONG);
    pong.hello_reply.lane_id = l->id;
    lane_send(l, &pong);
}
