/* SPDX-License-Identifier: Apache-2.0 */
/* Expected attention's part in a step: as a layer attends, the queries of prompts enter a store's
 * statistics, and where a prompt ends, a bounded prefill's chunk ends or it is the store's turn
 * among every so many new tokens, all slots of the store are scored by them (ops_expect.h).
 *
 * Stores have their turns at different tokens, so that no step of a running text has the rounds of
 * all layers. Steps leave the same bits when they are run again with the same rows, except that
 * queries would count twice: such steps run once (kv_step_once).
 *
 * Several layers may read one store: the queries of all of them count. */

#include <assert.h>

#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/step.h"
#include "kernels/expect.h"

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct expect_work *cache_expect_lay(const struct geometry *s, struct memory_arena *a)
{
    struct expect_sizes most = {.n_q = (size_t)s->config.n_q, .ctx = (size_t)s->config.ctx};

    if (!s->expects) {
        return NULL;
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];

        if (s->arrays[i].cap == 0) {
            continue;
        }
        size_t groups = (size_t)s->arrays[i].n_groups;

        most.n_v = max_size(most.n_v, (size_t)st->n_v);
        most.heads = max_size(most.heads, (size_t)s->config.n_q / groups);
        most.k_heads = max_size(most.k_heads, (size_t)st->n_k / groups);
        most.k_dim = max_size(most.k_dim, (size_t)st->k_dim);
        most.v_dim = max_size(most.v_dim, (size_t)st->v_dim);
        most.k_row = max_size(most.k_row, (size_t)st->n_k / groups * (size_t)st->k_dim);
        for (int32_t v = 0; v < s->config.mix.n; v++) {
            most.slot = max_size(most.slot, (size_t)ops_kv_slot_bytes(geometry_layout(s, v, i)));
        }
    }
    if (!s->config.ops->in_host) {
        most = (struct expect_sizes){0}; /* a device has scratch of its own */
    }
    return expect_work_lay(&most, a);
}

float *cache_expect_stats(const struct cache *c, const struct cache_seq *q, int32_t store,
                          int32_t group)
{
    float *first = (float *)(void *)(q->state + c->geometry.arrays[store].expect_off);

    return first + (size_t)group * geometry_expect_words(&c->geometry, store);
}

int cache_expect_clear(struct cache *c, const struct cache_seq *q)
{
    const struct geometry *s = &c->geometry;
    int r = 0;

    /* Not the count alone: a snapshot has all of it, also of a prompt too short to be counted. */
    for (int32_t i = 0; !r && q->place->expects && i < s->config.n_stores; i++) {
        if (cache_evicts_from(q, i)) {
            r = s->config.ops->zero(c->be, cache_expect_stats(c, q, i, 0),
                                    (uint64_t)s->arrays[i].n_groups * geometry_expect_words(s, i) *
                                        sizeof(float));
        }
    }
    return r;
}

/* Attention sinks' own queries are like no others (Devoto et al. leave them out). */
enum { NOT_COUNTED = 4 };

static bool is_due(const struct cache *c, const struct cache_seq *q, const struct kv_rows *rows,
                   int32_t store, int32_t end)
{
    const int32_t every = q->policy.every;
    const int64_t turn = (int64_t)store * every / c->geometry.config.n_stores;

    if (rows->pos0 >= q->n_prompt) {
        return (end - q->n_prompt) % every == turn;
    }
    return end == q->n_prompt ||
           (policy_cuts_chunks(&q->policy) && end == rows->chunk_pos0 + rows->chunk_rows);
}

static int expect_seq(struct cache *c, const struct kv_args *args, int32_t i)
{
    const struct kv_rows *rows = &c->step->rows[i];
    const struct cache_seq *q = &c->seqs[rows->seq];
    const struct ops_seq *seq = &c->step->seqs[i];
    const struct ops_attention *a = args->attend;
    const struct backend_ops *ops = c->geometry.config.ops;
    const int32_t end = seq->pos0 + seq->n_rows;
    const int32_t first = seq->pos0 < NOT_COUNTED ? NOT_COUNTED - seq->pos0 : 0;
    const struct ops_expect p = {
        .q = a->q,
        .ldq = a->ldq,
        .n_q = a->n_q,
        .scale = a->scale,
        .rope = a->unrotated_rope,
        .seq = seq,
        .stats = cache_expect_stats(c, q, args->store, 0),
        .first = rows->pos0 < q->n_prompt ? first : seq->n_rows,
        .cov = q->policy.cov != 0,
        .score = is_due(c, q, rows, args->store, end),
        .pos = end,
        .ahead = q->policy.ahead,
        .floor = q->policy.floor,
        .work = c->expect,
    };

    assert(p.rope);
    if (p.first >= seq->n_rows && !p.score) {
        return 0;
    }
    return ops->expect(c->be, &p);
}

int cache_expect(struct cache *c, const struct kv_args *args)
{
    int r = 0;

    for (int32_t i = 0; !r && i < c->step->n; i++) {
        const struct cache_seq *q = &c->seqs[c->step->rows[i].seq];
        bool some = c->step->seqs[i].n_rows > 0;

        if (some && q->place->expects && cache_evicts_from(q, args->store)) {
            r = expect_seq(c, args, i);
        }
    }
    return r;
}
