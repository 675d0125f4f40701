/* SPDX-License-Identifier: Apache-2.0 */
/* Two copies, each taken 10 s after the one before while anything changes: what others see is the
 * older one. An idle front takes none. Tokens are rounded for each request and not in the sum: a
 * client that adds tokens of its own, one by one, would find where a rounded sum steps. */

#include "daemon/front/figures.h"

#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/front.h"
#include "daemon/front/requests.h"

#define LATE_NS INT64_C(10000000000)

_Static_assert(sizeof(((struct figures *)0)->n_refused) >=
                   sizeof(((struct front_counters *)0)->n_refused),
               "a place for each cause");

static void take(const struct front *f, struct figures *ret)
{
    const struct front_counters *c = &f->counters;

    memset(ret, 0, sizeof(*ret));
    ret->n_requests = c->n_requests;
    ret->n_prompt_tokens = c->n_prompt_tokens;
    ret->n_new_tokens = c->n_new_tokens;
    memcpy(ret->n_by_reason, c->n_by_reason, sizeof(ret->n_by_reason));
    memcpy(ret->n_refused, c->n_refused, sizeof(c->n_refused));
    ret->n_saved = c->n_saved;
    ret->n_not_saved = c->n_not_saved;
    ret->kv_bytes_used = engine_link_info(f->engine)->kv_bytes_used;
    ret->n_running = f->n_running + f->n_texts;
    ret->n_queued = f->queue.n;
}

static void take_rounded(const struct front *f, struct figures *ret)
{
    uint64_t part = engine_link_info(f->engine)->kv_bytes_total / FIGURES_PARTS + 1;

    take(f, ret);
    ret->n_prompt_tokens = f->late.n_prompt_tokens;
    ret->n_new_tokens = f->late.n_new_tokens;
    ret->kv_bytes_used = (ret->kv_bytes_used + part - 1) / part * part;
}

static void on_late(void *arg)
{
    struct front *f = arg;

    memcpy(&f->late.shown, &f->late.next, sizeof(f->late.shown));
    take_rounded(f, &f->late.next);
    if (memcmp(&f->late.shown, &f->late.next, sizeof(f->late.shown)) != 0) {
        loop_timer_at(&f->loop, &f->late.timer, clock_ns() + LATE_NS, on_late, f);
    }
}

void figures_watch(struct front *f)
{
    if (f->late.timer.index == 0) {
        loop_timer_at(&f->loop, &f->late.timer, clock_ns() + LATE_NS, on_late, f);
    }
}

void figures_refused(struct front *f, uint32_t why)
{
    f->counters.n_refused[why]++;
    figures_watch(f);
}

static uint64_t rounded(int32_t n, uint32_t chance)
{
    uint32_t tokens = n > 0 ? (uint32_t)n : 0;

    return (tokens + chance % FIGURES_TOKENS) / FIGURES_TOKENS * FIGURES_TOKENS;
}

void figures_ended(struct front *f, const struct lane_done *d)
{
    uint32_t chance[2] = {FIGURES_TOKENS / 2, FIGURES_TOKENS / 2};

    if (getrandom(chance, sizeof(chance), GRND_NONBLOCK) != sizeof(chance)) {
        chance[0] = chance[1] = FIGURES_TOKENS / 2;
    }
    f->late.n_prompt_tokens += rounded(d->n_prompt, chance[0]);
    f->late.n_new_tokens += rounded(d->n_new, chance[1]);
}

void figures_of(const struct front *f, const struct lane *l, struct figures *ret)
{
    int64_t age = engine_link_step_age_ns(f->engine);

    if (requests_admin(l)) {
        take(f, ret);
        ret->step_age_ns = age;
        ret->all = true;
    } else {
        memcpy(ret, &f->late.shown, sizeof(*ret));
        ret->step_age_ns = age / LATE_NS * LATE_NS;
    }
}
