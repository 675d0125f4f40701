/* SPDX-License-Identifier: Apache-2.0 */
/* Steps whose tokens the device draws, and the step after one begun before its tokens are known.
 *
 * A step of decode rows ends in logits. Where every row of it is one that the backend draws for
 * (ops.h ops_sample), they stay on the device: it draws, the step after takes its tokens from where
 * they lie (ops_embed.drawn), and four bytes a row come to the host when the next step is already
 * under way. The host then does what it does with a token: text, events, stop conditions.
 *
 * So the end of a row (a stop token, a stop string) is noticed one step late. For that row, the
 * step begun meanwhile was a draft that nobody asked for: its K and V are in a slot that is not
 * committed. draft_take_back() removes them before the row's end is told, and its token is ignored.
 * Pages that become free may be given out at once: the device works in order.
 *
 * That takes caches that only append, as drafts do, or whose contents nobody asks for once the row
 * has ended (engine_request.unsaved): there the draft may have overwritten a slot, or added to
 * sums. For a row that may be saved under another policy, tokens are drawn on the device and waited
 * for.
 *
 * A step is begun ahead only where the next batch would hold the same rows: nobody can be admitted,
 * reads a prompt, is loaded or saved; no row is at its last token. All that was begun is over when
 * async_step_run() returns, so that nobody else sees a step in flight; it returns at the latest
 * after AHEAD_MOST tokens a row, or when somebody knocks (sched_notice).
 *
 * The host draws where it must see logits: penalties, log-probabilities, a client's logits, forced
 * tokens, drafts, a top_k above 1,024, a policy with early exit. What is drawn is the same either
 * way. */

#include <assert.h>
#include <errno.h>

#include "engine/sched/state.h"

enum { AHEAD_MOST = 64 };

static struct ops_sample_row row_of(const struct request *r, int32_t n_unknown)
{
    const struct sampler_params *p = &r->sampler.params;

    return (struct ops_sample_row){
        .temperature = p->temperature,
        .top_p = p->top_p,
        .min_p = p->min_p,
        .top_k = p->top_k,
        .seed = p->seed,
        .index = (uint64_t)(r->n_new + n_unknown),
    };
}

static bool row_is_drawn(const struct sched *s, const struct request *r)
{
    const struct sampler_params *p = &r->sampler.params;
    struct ops_sample_row row = row_of(r, 0);

    return r->kind == ENGINE_GENERATE && !r->finished && !r->logits && r->n_new >= r->n_forced &&
           r->n_fed > r->n_prompt && r->policy.exit == 0 && p->n_logprobs < 0 &&
           !(p->penalty_window > 0 && sampler_penalizes(p)) &&
           ops_sample_covers(&row, s->config.model->h.n_vocab);
}

/* Does the device draw for the batch, a token of each sequence? */
static bool batch_is_drawn(const struct sched *s)
{
    const struct batch *b = &s->batch;

    if (!s->config.device_draws || !s->ops->sample || b->rows.n != b->rows.n_decode ||
        b->rows.n != b->n_seqs || b->n_wanted != b->n_seqs || b->done_wanted > 0) {
        return false;
    }
    for (int32_t i = 0; i < b->n_seqs; i++) {
        if (!row_is_drawn(s, b->of[i])) {
            return false;
        }
    }
    return true;
}

/* May the step after the batch, whose tokens are not known, be begun? */
static bool goes_on(const struct sched *s)
{
    const struct batch *b = &s->batch;

    if (s->config.draft_rows > 0 || s->running.n != b->n_seqs || s->resting.n > 0 ||
        (s->waiting.n > 0 && !s->full) ||
        atomic_load_explicit(&s->interrupt, memory_order_relaxed) ||
        atomic_load_explicit(&s->notice, memory_order_relaxed)) {
        return false;
    }
    for (int32_t i = 0; i < b->n_seqs; i++) {
        const struct request *r = b->of[i];

        if (r->finished || r->cancelled || r->n_new + 2 > r->max_new ||
            (!r->unsaved &&
             (kv_step_once(s->config.cache) || kv_spare_rows(s->config.cache, r->seq) < 1))) {
            return false;
        }
    }
    return true;
}

/* The batch's tokens, drawn and on their way. n_unknown: new tokens before them that are not
 * delivered. */
static int draw(struct sched *s, int32_t n_unknown, int place)
{
    struct batch *b = &s->batch;
    const float *logits;
    int e = forward_logits(s->forward, b->wanted_rows, b->n_wanted, &logits);

    for (int32_t i = 0; i < b->n_seqs; i++) {
        b->draws[i] = row_of(b->of[i], n_unknown);
    }
    return e ? e : forward_draw(s->forward, b->draws, b->n_seqs, place);
}

/* The step after, all of it; -EINTR: the batch is pending. */
static int run_next(struct sched *s, int place)
{
    struct batch *b = &s->batch;
    struct cache *cache = s->config.cache;

    kv_step_begin(cache);
    for (int32_t i = 0; i < b->n_seqs; i++) {
        struct request *r = b->of[i];
        int e = kv_step_prepare(cache, r->seq, 1);

        if (e) {
            return e;
        }
        b->seqs[i].pos0 = r->n_fed;
        b->seqs[i].chunk_pos0 = r->n_fed;
        kv_step_add(cache, &b->seqs[i]);
        b->wanted[i].pos = r->n_fed;
    }
    batch_begin(s, true);
    int e = forward_run(s->forward);

    s->counters.n_async_steps += e == 0;
    return e ? e : draw(s, 1, place);
}

/* Waits for the tokens and says them; more: the step after them was begun. */
static int deliver(struct sched *s, int place, bool more)
{
    struct batch *b = &s->batch;
    bool held_up = b->pending;
    int e;

    b->pending = false; /* committed tokens are at rest in the cache, and may be saved */
    b->surplus = more;
    e = s->ops->fetched(s->be, place, b->drawn, (uint64_t)b->n_seqs * sizeof(*b->drawn));

    for (int32_t i = 0; !e && i < b->n_seqs; i++) {
        if (!b->of[i]->finished) {
            output_drawn(s, b->of[i], b->drawn[i]);
        }
    }
    b->surplus = false;
    b->pending = held_up;
    return e;
}

/* What was begun ahead is computed. */
static void commit(struct sched *s)
{
    struct batch *b = &s->batch;

    b->pending = false;
    s->counters.n_steps++;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        struct request *r = b->of[i];

        if (!r->finished) {
            kv_step_commit(s->config.cache, r->seq, 1);
            r->n_fed++;
        }
    }
}

int async_step_run(struct sched *s)
{
    int place = 0;

    if (!batch_is_drawn(s)) {
        return -ENOTSUP;
    }
    int e = draw(s, 0, place);

    for (int32_t n = 1; !e; n++) {
        bool more = n < AHEAD_MOST && goes_on(s);
        int next = more ? run_next(s, !place) : 0;

        /* the token is drawn, whatever became of the step after it */
        e = deliver(s, place, more);
        if (e || next || !more) {
            e = e ? e : next;
            return e == -ENOTSUP ? -EIO : e; /* its logits may be gone: the host cannot draw it */
        }
        commit(s);
        place = !place;
    }
    return e;
}
