/* SPDX-License-Identifier: Apache-2.0 */
/* Is the engine alive? While it loads: has it said anything. While it works: has a step ended, and
 * if not, did it get a CPU. And does its thread that reads texts go on, which it says itself: what
 * steps it makes meanwhile tell nothing of that. */

#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/config.h"
#include "base/cputime.h"
#include "daemon/front/engine_link_impl.h"

#define STARVED_LOG_NS 60000000000

void engine_link_kill(struct engine_link *e, const char *why)
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

    return e->cpu_ns >= 0 && now >= 0 && now - e->cpu_ns < limit / 2 &&
           cputime_is_wanted(e->threads, e->n_threads);
}

void engine_link_take_threads(struct engine_link *e, bool asked, const int *fds, int n)
{
    for (int i = 0; i < n; i++) {
        if (asked && e->n_threads < CPUTIME_THREADS && cputime_is_state(fds[i])) {
            e->threads[e->n_threads++] = fds[i];
        } else {
            (void)close(fds[i]);
        }
    }
}

void engine_link_forget_threads(struct engine_link *e)
{
    engine_link_take_threads(e, false, e->threads, e->n_threads);
    e->n_threads = 0;
}

/* What a step may take: the one function of both watchdogs, systemd's and ours. */
static int64_t limit_ns(const struct engine_link *e)
{
    int64_t limit = (int64_t)(e->front->config->engine_timeout * 1e9);
    int64_t longest = 4 * e->info.longest_step_ns;

    return limit > longest ? limit : longest;
}

bool engine_link_hangs(const struct engine_link *e, int times)
{
    int64_t limit = e ? times * limit_ns(e) : 0;

    return e && e->busy_ns && clock_ns() - step_base(e) >= limit && !is_starved(e, limit);
}

static void on_pulse(void *arg);

void engine_link_watch(struct engine_link *e, int64_t when_ns)
{
    loop_timer_at(&e->front->loop, &e->pulse, when_ns, on_pulse, e);
}

static void wait_for_cpu(struct engine_link *e, int64_t limit)
{
    int64_t now = clock_ns();

    if (now - e->starved_ns >= STARVED_LOG_NS) {
        e->starved_ns = now;
        log_warning("no step ended in time, but the engine (pid %d) gets no CPU: waiting",
                    (int)e->pid);
    }
    engine_link_watch(e, now + limit / 4);
}

static void on_pulse(void *arg)
{
    struct engine_link *e = arg;
    int64_t limit = LOAD_TIMEOUT_NS;
    int64_t base = e->heard_ns;

    if (e->pid == 0) {
        return;
    }
    if (e->leaving) {
        engine_link_kill(e, "it was told to end and does not");
        return;
    }
    if (e->state == LANE_READY) {
        if (e->busy_ns == 0) {
            return;
        }
        limit = limit_ns(e);
        base = step_base(e);
    }
    if (clock_ns() - base >= limit && e->state == LANE_READY && is_starved(e, limit)) {
        wait_for_cpu(e, limit);
    } else if (clock_ns() - base >= limit) {
        engine_link_kill(e, e->state == LANE_READY ? "no step ended in time" : "loading is stuck");
    } else {
        engine_link_watch(e, base + limit);
    }
}

/* The engine has left out what is less than four times what texts of that length took lately, or
 * had no CPU. */
void engine_link_look_at_texts(struct engine_link *e)
{
    if (e->info.text_ms >= e->front->config->engine_timeout * 1e3) {
        engine_link_kill(e, "a text was not read in time");
    }
}

void engine_link_busy(struct engine_link *e, bool busy)
{
    if (!busy) {
        e->busy_ns = 0;
    } else if (e->busy_ns == 0) {
        e->busy_ns = clock_ns();
        e->cpu_ns = cputime_ns(e->pid);
        if (e->pulse.index == 0 || e->state == LANE_READY) {
            engine_link_watch(e, e->busy_ns + (int64_t)(e->front->config->engine_timeout * 1e9));
        }
    }
}

int64_t engine_link_step_age_ns(const struct engine_link *e)
{
    return e && e->busy_ns ? clock_ns() - step_base(e) : 0;
}
