/* SPDX-License-Identifier: Apache-2.0 */
/* What a sequence has beside pages: page tables, positions, scores, victims, sums of V, and the
 * latest tokens in 8 bits where pages have 4.
 *
 * A sequence under an evicting policy has `cap` slots for positions and scores a group in a store;
 * a prompt longer than that needs more while it is read, which one sequence at a time gets from a
 * region of its own (dense: the whole context for every store; bounded: budget + chunk; layered:
 * the whole context for one store, and the hidden states of the prompt). */

#include "engine/kv/plan/geometry_impl.h"
#include "kernels/ops_expect.h"

static uint64_t align64(uint64_t v)
{
    return (v + 63) & ~UINT64_C(63);
}

static uint64_t take(uint64_t *at, uint64_t bytes)
{
    uint64_t off = *at;

    *at = align64(off + bytes);
    return off;
}

/* Slots that need a position: what a policy keeps at most, and while a prompt is read. */
static void lay_caps(struct geometry *s, const struct policy *p)
{
    int32_t ctx = s->config.ctx;
    int32_t budget = policy_budget(p, ctx, ctx);

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        struct geometry_arrays *q = &s->arrays[i];
        int32_t b = geometry_store_budget(s, p, budget, i);
        int64_t bounded = (int64_t)b + p->chunk;
        int32_t peak = policy_cuts_chunks(p) && bounded < ctx ? (int32_t)bounded : ctx;

        if (b > 0) {
            int32_t most = geometry_most_slots(s, p, b, i);

            q->cap = most > q->cap ? most : q->cap;
            q->peak_cap = peak > q->peak_cap ? peak : q->peak_cap;
        }
    }
    s->scores = s->scores || policy_scores(p);
    s->observes = s->observes || policy_observes(p);
    s->expects = s->expects || policy_expects(p);
    s->divides = s->divides || policy_divides_heads(p);
    bool layered = p->prefill == POLICY_LAYERED && !s->config.shared;

    s->whole_peak = s->whole_peak || !layered;
    if (layered) {
        s->layered = true;
        s->max_survivors = p->observe > s->max_survivors ? p->observe : s->max_survivors;
    }
}

static void lay_all_caps(struct geometry *s)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        if (policy_evicts(&s->config.mix.part[v].policy)) {
            lay_caps(s, &s->config.mix.part[v].policy);
        }
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_arrays *q = &s->arrays[i];

        s->steady_cap = q->cap > s->steady_cap ? q->cap : s->steady_cap;
        s->least_cap = q->cap && (!s->least_cap || q->cap < s->least_cap) ? q->cap : s->least_cap;
        s->peak = s->peak || q->peak_cap > q->cap;
    }
    s->layered = s->layered && s->peak;
    s->max_survivors = s->max_survivors < s->config.ctx ? s->max_survivors : s->config.ctx;
}

/* Region for the prompt that is being read: positions and scores of every store (dense, bounded)
 * or of one at a time (layered), then hidden states. */
static void lay_peak(struct geometry *s)
{
    uint64_t whole = 0;
    uint64_t one = 0;
    bool deep = false;

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];
        struct geometry_arrays *q = &s->arrays[i];
        uint64_t bytes = (uint64_t)q->n_groups * (uint64_t)q->peak_cap * sizeof(int32_t);
        uint64_t at = 0;

        deep = deep || st->deep;
        if (q->cap == 0) {
            continue;
        }
        q->peak_pos_off = take(&whole, bytes);
        q->peak_score_off = take(&whole, s->scores ? bytes : 0);
        (void)take(&at, bytes);
        q->layer_score_off = take(&at, s->scores ? bytes : 0);
        one = at > one ? at : one;
    }
    s->peak_state_bytes = s->whole_peak ? whole : s->layered ? one : 0;
    if (s->layered) {
        s->peak_state_bytes = one > s->peak_state_bytes ? one : s->peak_state_bytes;
        s->hidden_off =
            take(&s->peak_state_bytes, (uint64_t)s->config.ctx * s->config.hidden_bytes);
        s->max_survivors = deep ? s->max_survivors : 0;
        s->survivors_off =
            take(&s->peak_state_bytes, (uint64_t)s->max_survivors * s->config.hidden_bytes);
    }
}

/* Of one group's entries of the latest tokens: under any planned precision, the most. */
static uint64_t latest_bytes(const struct geometry *s, int32_t store)
{
    uint64_t most = 0;

    for (int32_t v = 0; v < s->config.mix.n && !s->arrays[store].kind->state; v++) {
        uint64_t n = ops_kv_latest_bytes(geometry_layout(s, v, store));

        most = n > most ? n : most;
    }
    return most * OPS_LATEST_ENTRIES;
}

uint64_t geometry_expect_words(const struct geometry *s, int32_t store)
{
    return expect_words(s->config.stores[store].k_dim, s->config.n_q / s->arrays[store].n_groups);
}

void geometry_lay_arrays(struct geometry *s)
{
    uint64_t table = 0;
    uint64_t state = 0;

    lay_all_caps(s);
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];
        struct geometry_arrays *q = &s->arrays[i];
        uint64_t n = (uint64_t)q->n_groups;

        q->group0 = s->n_groups;
        s->n_groups += q->n_groups;
        q->pages_off = take(&table, n * (uint64_t)q->max_pages * sizeof(uint32_t));
        q->ring_off = take(&table, n * (uint64_t)q->ring * sizeof(int32_t));
        if (q->kind->evicts && s->sums) {
            q->sum_off = take(&state, (uint64_t)st->n_v * (uint64_t)st->v_dim * sizeof(float));
        }
        q->latest_off = take(&state, n * latest_bytes(s, i));
        if (q->cap == 0) {
            continue;
        }
        q->pos_off = take(&state, n * (uint64_t)q->cap * sizeof(int32_t));
        if (s->scores) {
            q->score_off = take(&state, n * (uint64_t)q->cap * sizeof(float));
        }
        q->victim_off = take(&state, n * sizeof(int32_t));
        if (s->expects) {
            q->expect_off = take(&state, n * geometry_expect_words(s, i) * sizeof(float));
        }
    }
    s->table_bytes = table;
    s->state_bytes = state;
    if (s->peak) {
        lay_peak(s);
    }
}
