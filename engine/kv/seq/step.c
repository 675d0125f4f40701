/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a step, and what their policies want of them.
 *
 * A sequence's share in a store is worked out anew for each layer: it follows from the rows and the
 * sequence alone, which do not change while a step runs. */

#include <assert.h>

#include "engine/kv/home/home.h"
#include "engine/kv/policy/select.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/step.h"

static int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

void step_lay(struct memory_arena *a, int32_t n_seqs, struct kv_step *s)
{
    size_t n = (size_t)n_seqs;

    s->rows = memory_arena_take(a, n * sizeof(*s->rows));
    s->observe = memory_arena_take(a, n * sizeof(*s->observe));
    s->select = memory_arena_take(a, n * sizeof(*s->select));
    s->seqs = memory_arena_take(a, n * sizeof(*s->seqs));
    s->layer_observe = memory_arena_take(a, n * sizeof(*s->layer_observe));
    s->layer_select = memory_arena_take(a, n * sizeof(*s->layer_select));
    s->brings = memory_arena_take(a, n * sizeof(*s->brings));
    s->states = memory_arena_take(a, n * sizeof(*s->states));
}

void kv_step_lists(struct cache *c, const struct ops_chosen lists[2])
{
    c->step->lists[0] = lists[0];
    c->step->lists[1] = lists[1];
}

/* ---- what a policy wants ----------------------------------------------------------------------
 */

static struct ops_observe observe_of(const struct cache_seq *q, int32_t pos0, int32_t n_rows)
{
    struct place_rows rows = {
        .prefill = pos0 < q->n_prompt,
        .pos0 = pos0,
        .n_rows = n_rows,
        .n_prompt = q->n_prompt,
        .step = pos0 - q->n_prompt + 1,
        .n_steps = q->n_steps,
    };
    struct ops_observe o = {.row_first = INT32_MAX};

    if (q->place->observe) {
        q->place->observe(&q->policy, &rows, &o);
    }
    return o;
}

int32_t kv_observed_from(const struct cache *c, int32_t seq, int32_t pos0, int32_t n)
{
    const struct cache_seq *q = &c->seqs[seq];
    int32_t end = policy_cuts_chunks(&q->policy) ? pos0 + n : q->n_prompt;

    return q->place->observe ? max_i32(end - q->policy.observe, pos0) : INT32_MAX;
}

/* Weights of observed rows that are computed from the call's first one differ in their last bits
 * when it is another; and where sums are not taken row by row, so do the sums. What a bounded
 * prefill observes counts from its chunk's end. */
int32_t kv_divisible(const struct cache *c, int32_t seq, int32_t pos0, int32_t n, bool as_chunks)
{
    const struct cache_seq *q = &c->seqs[seq];
    struct ops_observe o = observe_of(q, pos0, n);
    bool by_row = c->geometry.config.ops->sums_by_row;

    if (as_chunks && policy_cuts_chunks(&q->policy)) {
        return 0;
    }
    if (o.row_first >= n || (by_row && o.row_growth == 1.0f && o.damp == 1.0f)) {
        return n;
    }
    return by_row ? max_i32(o.row_first, 0) : 0;
}

bool kv_joins_chunks(const struct cache *c, int32_t seq)
{
    const struct cache_seq *q = &c->seqs[seq];
    bool joins = policy_joins_chunks(&q->policy);

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        joins = joins && c->geometry.arrays[i].kind->appends;
    }
    return joins;
}

/* ---- the rows ---------------------------------------------------------------------------------
 */

void kv_step_begin(struct cache *c)
{
    struct kv_step *s = c->step;

    s->n = 0;
    s->observes = false;
    s->selects = false;
    s->once = false;
    home_begin(c);
}

void kv_step_add(struct cache *c, const struct kv_rows *rows)
{
    struct kv_step *s = c->step;
    const struct cache_seq *q = &c->seqs[rows->seq];
    int32_t before = rows->pos0 - rows->chunk_pos0;
    bool decodes = rows->pos0 >= q->n_prompt;
    int32_t i = s->n++;

    assert(i < c->geometry.config.n_seqs);
    s->rows[i] = *rows;
    s->observe[i] = observe_of(q, rows->chunk_pos0, rows->chunk_rows);
    s->observe[i].row_first = max_i32(s->observe[i].row_first - before, 0);
    select_make(&q->policy, &s->select[i]);
    s->observes = s->observes || s->observe[i].row_first < rows->n_rows;
    s->selects = s->selects || (decodes && s->select[i].kind != OPS_SELECT_ALL);
    s->once = s->once || s->observes || (!decodes && policy_expects(&q->policy)) ||
              (decodes && (s->select[i].use || cache_sums(c, rows->seq)));
}

bool kv_step_once(const struct cache *c)
{
    return c->step->once;
}

struct ops_seq step_seq(const struct cache *c, int32_t i, int32_t store)
{
    const struct kv_rows *rows = &c->step->rows[i];
    struct ops_seq seq = cache_view_of(c, &c->seqs[rows->seq], store, rows->pos0, rows->n_rows);

    seq.row0 = rows->row0;
    seq.n_rows = rows->n_rows;
    seq.pos0 = rows->pos0;
    return seq;
}

void step_take(struct cache *c, int32_t store, const struct kv_part *part)
{
    struct kv_step *s = c->step;

    for (int32_t i = 0; i < s->n; i++) {
        struct ops_seq *seq = &s->seqs[i];

        *seq = step_seq(c, i, store);
        if (part) {
            /* Slots of rows that are still to come hold nothing that may be read. */
            seq->kv.n_slots -= seq->n_rows - part->first[i] - part->count[i];
            seq->row0 = part->row0[i];
            seq->n_rows = part->count[i];
            seq->pos0 += part->first[i];
            seq->slot0 += part->first[i];
        }
    }
}
