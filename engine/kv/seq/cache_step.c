/* SPDX-License-Identifier: Apache-2.0 */
/* A step over a sequence: pages for its rows, victims for a token that finds no free slot.
 *
 * A global store of a keep-all policy has slot = position. Of an evicting one, a token takes the
 * next slot while there are slots within the budget, then the slot of a victim; the prompt may
 * stand above the budget until it is cut. A sliding layer's store is a ring whatever the policy.
 *
 * Rows are written into pages of one's own only: those that a fork shares are copied first
 * (cache_share.c).
 *
 * Victims depend on the scores before the step alone, so all of them are found before the forward
 * pass begins, and a step that was given up must not look for them again. */

#include <assert.h>

#include "engine/kv/kv.h"
#include "engine/kv/seq/cache_impl.h"

enum { SUM_STEPS = 1024 };

/* With shared scores the same slots hold the same positions in every store. */
static int32_t victim_store(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    int32_t shared = cache_score_store_of(c, q);

    return shared >= 0 ? shared : store;
}

static int find_victims(struct cache *c, struct cache_seq *q)
{
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        struct place_guard guard;

        if (!cache_is_full(q, i) || victim_store(c, q, i) != i) {
            continue;
        }
        cache_guard_at(q, i, false, q->n_tokens, &guard);
        struct ops_kv kv = cache_kv_of(c, q, i, q->stores[i].n_slots);
        struct ops_victim p = {
            .kv = &kv,
            .sinks = guard.sinks,
            .pos_protect = guard.pos_protect,
            .by_position = guard.by_position,
            .shared = guard.shared,
            .victim = (int32_t *)(void *)(q->state + c->geometry.arrays[i].victim_off),
        };
        int r = c->geometry.config.ops->victim(c->be, &p);

        if (r) {
            return r;
        }
    }
    return 0;
}

bool cache_sums(const struct cache *c, int32_t seq)
{
    bool sums = false;

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        sums = sums || geometry_keeps_sum(&c->geometry, &c->seqs[seq].policy, i);
    }
    return sums;
}

/* Prompts leave sums of V alone, and sums of many steps have lost bits: made anew before the first
 * new token, and at every SUM_STEPS-th position, so that when depends on the text alone. */
static int renew_sums(struct cache *c, struct cache_seq *q)
{
    int r = 0;

    if (q->n_tokens < q->n_prompt || (q->n_tokens > q->n_prompt && q->n_tokens % SUM_STEPS != 0)) {
        return 0;
    }
    for (int32_t i = 0; !r && i < c->geometry.config.n_stores; i++) {
        struct ops_kv kv = cache_kv_of(c, q, i, cache_slots_after(c, q, i, 0));

        if (kv.v_sum) {
            r = c->geometry.config.ops->kv_sum(c->be, &(struct ops_kv_sum){.kv = &kv});
        }
    }
    return r;
}

int kv_step_prepare(struct cache *c, int32_t seq, int32_t n_rows)
{
    struct cache_seq *q = &c->seqs[seq];
    int r = 0;

    assert(q->busy);
    if (q->prepared == q->n_tokens + n_rows) {
        return 0; /* the step that was given up: its victims are already overwritten */
    }
    q->evicting = false;
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        q->evicting = q->evicting || cache_is_full(q, i);
    }
    assert(!q->evicting || n_rows == 1);
    if (q->evicting) {
        r = find_victims(c, q);
    }
    r = r ? r : renew_sums(c, q);
    for (int32_t i = 0; !r && i < c->geometry.config.n_stores; i++) {
        r = cache_take_pages(c, q, i, cache_slots_after(c, q, i, n_rows));
    }
    if (!r) {
        r = cache_own_pages(c, q, n_rows);
    }
    if (!r) {
        q->prepared = q->n_tokens + n_rows;
    }
    return r;
}

struct ops_seq cache_view_of(const struct cache *c, const struct cache_seq *q, int32_t store,
                             int32_t pos0, int32_t n_rows)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    int32_t before = pos0 - q->n_tokens; /* rows that are prepared, too */
    struct ops_seq view = {.ring = st->ring};

    if (q->layered || !cache_evicts_from(q, store)) {
        view.kv = cache_kv_of(c, q, store, geometry_slots(&c->geometry, store, 0, pos0 + n_rows));
        view.slot0 = st->kind->slot_of(st, &q->stores[store], pos0);
    } else {
        view.kv = cache_kv_of(c, q, store, cache_slots_after(c, q, store, before + n_rows));
        view.slot0 = q->stores[store].n_slots + before;
        if (cache_is_full(q, store)) {
            const struct geometry_arrays *v = &c->geometry.arrays[victim_store(c, q, store)];

            view.victim = (const int32_t *)(const void *)(q->state + v->victim_off);
        }
    }
    return view;
}

void kv_step_commit(struct cache *c, int32_t seq, int32_t n_rows)
{
    struct cache_seq *q = &c->seqs[seq];

    q->prepared = q->layered ? n_rows : q->prepared; /* its stores were prepared one by one */
    assert(q->prepared >= q->n_tokens + n_rows);
    for (int32_t i = 0; !q->layered && i < c->geometry.config.n_stores; i++) {
        bool full = cache_is_full(q, i);

        q->n_evicted += full ? c->geometry.arrays[i].n_groups : 0;
        q->stores[i].n_slots += full ? 0 : n_rows;
    }
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        if (c->geometry.arrays[i].kind->state) {
            q->stores[i].at = 1 - q->stores[i].at;
        }
    }
    q->n_tokens += n_rows;
}

int32_t kv_spare_rows(const struct cache *c, int32_t seq)
{
    const struct cache_seq *q = &c->seqs[seq];
    int32_t spare = INT32_MAX;

    if (!policy_only_appends(&q->policy)) {
        return 0;
    }
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        const struct geometry_arrays *st = &c->geometry.arrays[i];
        int32_t n = st->kind->spare(st, q->n_tokens);

        if (ops_kv_latest_bytes(geometry_layout(&c->geometry, q->variant, i)) > 0 &&
            n > OPS_LATEST_ENTRIES - OPS_LATEST) {
            n = OPS_LATEST_ENTRIES - OPS_LATEST;
        }
        spare = n < spare ? n : spare;
    }
    return spare;
}

/* Slots beyond the committed ones are never read before they are written again; a store that keeps
 * all has no positions. Pages go back to the reservation that they came from. */
void kv_step_undo(struct cache *c, int32_t seq)
{
    assert(!c->seqs[seq].evicting);
    kv_step_drop(c, seq);
}

void kv_step_drop(struct cache *c, int32_t seq)
{
    struct cache_seq *q = &c->seqs[seq];

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        int32_t n_slots = cache_slots_after(c, q, i, 0);

        cache_return_pages(c, q, i, (n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS);
    }
    q->prepared = q->n_tokens;
}
