/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a prompt, and prompts that are read layer by layer.
 *
 * A cut leaves the budget's best slots below the budget, gives back the pages above it, and moves
 * positions and scores from the peak region, where they lay if the prompt was long, to the
 * sequence's own arrays. */

#include <assert.h>

#include "engine/kv/seq/cache_impl.h"

/* What is left of a store's positions and scores moves from the peak region to the sequence's
 * arrays. */
static int move_state(struct cache *c, struct cache_seq *q, int32_t store, int32_t n_slots)
{
    const struct geometry *s = &c->geometry;
    const struct geometry_arrays *st = &s->arrays[store];
    struct cache_state from = cache_state_of(c, q, store);
    uint64_t bytes = (uint64_t)n_slots * sizeof(int32_t);

    for (int32_t g = 0; g < st->n_groups; g++) {
        uint64_t to = (uint64_t)g * (uint64_t)st->cap * sizeof(int32_t);
        uint64_t at = (uint64_t)g * (uint64_t)from.cap * sizeof(int32_t);
        int r = s->config.ops->copy(c->be, q->state + st->pos_off + to, from.pos + at, bytes);

        if (!r && q->place->scores) {
            r = s->config.ops->copy(c->be, q->state + st->score_off + to, from.score + at, bytes);
        }
        if (r) {
            return r;
        }
    }
    return 0;
}

static void leave_peak(struct cache *c, struct cache_seq *q)
{
    q->in_peak = false;
    q->layered = false;
    c->peak_holder = -1;
}

/* Scores are not negative, so one below zero goes first. While a prompt is read without cuts in
 * between, slot is position. */
static int mark_victim(struct cache *c, const struct ops_kv *kv, int32_t slot)
{
    const float least = -1.0f;
    int r = 0;

    for (int32_t g = 0; !r && g < kv->layout->n_groups; g++) {
        r = c->geometry.config.ops->write(
            c->be, kv->score + (size_t)g * (size_t)kv->cap + (size_t)slot, &least, sizeof(least));
    }
    return r;
}

static uint64_t score_bytes(const struct ops_kv *kv)
{
    return (uint64_t)kv->layout->n_groups * (uint64_t)kv->cap * sizeof(float);
}

/* Of a store's n_slots, those that the policy keeps. */
static int cut_store(struct cache *c, struct cache_seq *q, int32_t store, int32_t last,
                     int32_t n_slots)
{
    struct ops_kv kv = cache_kv_of(c, q, store, n_slots);
    int32_t shared = cache_score_store_of(c, q);
    struct place_guard guard;
    int r = 0;

    cache_guard_at(q, store, true, last, &guard);
    q->stores[store].n_slots = n_slots;
    if (n_slots <= guard.budget) {
        return 0;
    }
    struct ops_cut p = {
        .kv = &kv,
        .budget = guard.budget,
        .sinks = guard.sinks,
        .pos_protect = guard.pos_protect,
        .pos_end = last + 1,
        .by_position = guard.by_position,
        .shared = guard.shared,
    };

    if (shared >= 0 && shared != store) { /* a cut moves scores along: work on a copy */
        float *own = (float *)(void *)cache_state_of(c, q, store).score;

        r = c->geometry.config.ops->copy(c->be, own, kv.score, score_bytes(&kv));
        kv.score = own;
    }
    if (!r && q->place->rescore) {
        r = cache_rescore(c, q, &kv, guard.pos_protect < n_slots ? guard.pos_protect : n_slots);
    }
    if (!r && guard.drop >= 0) {
        r = mark_victim(c, &kv, guard.drop);
    }
    if (!r && cache_cuts_apart(q, store, n_slots, guard.budget)) {
        return cache_cut_apart(c, q, store, &p);
    }
    if (!r) {
        r = c->geometry.config.ops->cut(c->be, &p);
    }
    if (!r) {
        q->n_evicted += (int64_t)c->geometry.arrays[store].n_groups * (n_slots - guard.budget);
        q->stores[store].n_slots = guard.budget;
    }
    return r;
}

/* What the cut has left goes to the sequence's arrays, and pages above it back to the reservation.
 */
static int settle_store(struct cache *c, struct cache_seq *q, int32_t store)
{
    const struct cache_store *st = &q->stores[store];

    if (!st->divided) { /* else they are back */
        cache_return_pages(c, q, store, (st->budget + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
    }
    return q->in_peak ? move_state(c, q, store, st->n_slots) : 0;
}

/* The prompt is read, and all pages above the budget are reserved again: of the reservation, the
 * part for the prompt alone leaves the sequence's account. */
static void end_of_peak(struct cache *c, struct cache_seq *q)
{
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        assert(q->left.pages[i] >= q->left.peak[i]);
        pages_unreserve(&c->classes[i], q->left.peak[i]);
        q->left.pages[i] -= q->left.peak[i];
        q->left.peak[i] = 0;
    }
    if (q->in_peak) {
        leave_peak(c, q);
    }
}

int kv_cut(struct cache *c, int32_t seq, bool last)
{
    struct cache_seq *q = &c->seqs[seq];
    int r = 0;

    if (q->layered) { /* each store was cut when its layers were through */
        end_of_peak(c, q);
        return 0;
    }
    if (q->budget == 0 || (!last && !policy_cuts_chunks(&q->policy))) {
        return 0;
    }
    for (int32_t i = c->geometry.config.n_stores - 1; !r && i >= 0; i--) { /* shared scores last */
        r = cache_evicts_from(q, i) ? cut_store(c, q, i, q->n_tokens - 1, q->stores[i].n_slots) : 0;
    }
    for (int32_t i = 0; last && !r && i < c->geometry.config.n_stores; i++) {
        r = cache_evicts_from(q, i) ? settle_store(c, q, i) : 0;
    }
    if (last && !r) {
        end_of_peak(c, q);
    }
    return r;
}

/* ---- layer-wise prefill -------------------------------------------------------------------------
 */

int kv_layer_cut(struct cache *c, int32_t seq, int32_t store)
{
    struct cache_seq *q = &c->seqs[seq];
    int r = 0;

    if (cache_evicts_from(q, store)) {
        r = cut_store(c, q, store, q->n_prompt - 1, q->n_prompt);
        r = r ? r : settle_store(c, q, store); /* the next store will need its pages */
    }
    return r;
}

float *kv_hidden(const struct cache *c)
{
    return (float *)(void *)(c->peak_state + c->geometry.hidden_off);
}

float *kv_survivors(const struct cache *c)
{
    return (float *)(void *)(c->peak_state + c->geometry.survivors_off);
}
