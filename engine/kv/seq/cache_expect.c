/* SPDX-License-Identifier: Apache-2.0 */
/* Expected attention's part in a step: as a layer attends, the queries of prompts enter a store's
 * statistics, and where a prompt ends, a bounded prefill's chunk ends or a new token is the
 * policy's every-so-many-th, all slots of the store are scored by them.
 *
 * It is a pass on the host, over what any backend can read: queries as rotated, and slots in
 * canonical form. Its cost is that of some rows of a projection each query and key; decode has none
 * between two rounds of scores. A round is one thread's, within one step, whatever gap-target says:
 * n_slots x heads x k_dim^2 / 2 multiply-adds a layer, in all an estimated 10 s for 8,192 slots of
 * 32 layers with 32 heads of 128. Both steps leave the same bits when they are run again with the
 * same rows, except that queries would count twice: such steps run once (kv_step_once).
 *
 * Several layers may read one store: the queries of all of them count. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/kv/policy/expect.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/step.h"
#include "kernels/hadamard.h"
#include "kernels/kv_code.h"

/* Sized for the largest store. */
struct cache_expect {
    float *queries; /* of one row */
    float *rows;    /* (heads of a group, EXPECT_ROWS, padded) of them before RoPE */
    struct expect_turns turns;
    float *stats;  /* of one group */
    float *square; /* (k_dim, k_dim) */
    float *mean;   /* (heads of a group, padded) */
    float *cov;    /* (heads of a group, triangle) */
    float *center; /* (k_heads, k_dim), and the same of the balance: */
    float *balance;
    float *key;       /* (k_dim), or one V */
    float *tile;      /* (k_heads, padded, EXPECT_LANES) */
    float *exponents; /* (heads of a group, ctx) */
    float *lengths;   /* (v_heads, ctx) */
    float *score;     /* (ctx) */
    int32_t *pos;     /* (ctx) */
    uint8_t *slots;   /* EXPECT_LANES in canonical form */
};

/* Of one group. */
struct work {
    struct cache *c;
    const struct policy *p;
    const struct ops_attention *a;
    const struct ops_kv *kv;
    const struct ops_kv_layout *l;
    int32_t group;
    int32_t n_heads;  /* query heads */
    int32_t rope_pos; /* the first that is to come */
};

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

struct cache_expect *cache_expect_lay(const struct geometry *s, struct memory_arena *a)
{
    struct cache_expect most = {0};
    size_t heads = 0, k_dim = 0, v_dim = 0, k_heads = 0, v_heads = 0, k_row = 0, slot = 0;
    size_t ctx = (size_t)s->config.ctx;

    if (!s->expects) {
        return NULL;
    }
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];

        if (s->arrays[i].cap == 0) {
            continue;
        }
        size_t groups = (size_t)s->arrays[i].n_groups;

        heads = max_size(heads, (size_t)s->config.n_q / groups);
        k_heads = max_size(k_heads, (size_t)st->n_k / groups);
        v_heads = max_size(v_heads, (size_t)st->n_v / groups);
        k_dim = max_size(k_dim, (size_t)st->k_dim);
        v_dim = max_size(v_dim, (size_t)st->v_dim);
        k_row = max_size(k_row, (size_t)st->n_k / groups * (size_t)st->k_dim);
        for (int32_t v = 0; v < s->config.mix.n; v++) {
            slot = max_size(slot, (size_t)ops_kv_slot_bytes(geometry_layout(s, v, i)));
        }
    }
    size_t padded = (size_t)expect_padded((int32_t)k_dim);
    struct cache_expect *e = memory_arena_take(a, sizeof(*e));

    most.queries = memory_arena_take(a, (size_t)s->config.n_q * k_dim * sizeof(float));
    most.rows = memory_arena_take(a, heads * EXPECT_ROWS * padded * sizeof(float));
    most.turns.c = memory_arena_take(a, k_dim / 2 * sizeof(double));
    most.turns.s = memory_arena_take(a, k_dim / 2 * sizeof(double));
    most.turns.step_c = memory_arena_take(a, k_dim / 2 * sizeof(double));
    most.turns.step_s = memory_arena_take(a, k_dim / 2 * sizeof(double));
    most.stats =
        memory_arena_take(a, (size_t)expect_words((int32_t)k_dim, (int32_t)heads) * sizeof(float));
    most.square = memory_arena_take(a, k_dim * k_dim * sizeof(float));
    most.mean = memory_arena_take(a, heads * padded * sizeof(float));
    most.cov =
        memory_arena_take(a, heads * (size_t)expect_triangle((int32_t)k_dim) * sizeof(float));
    most.center = memory_arena_take(a, k_row * sizeof(float));
    most.balance = memory_arena_take(a, k_row * sizeof(float));
    most.key = memory_arena_take(a, max_size(padded, v_dim) * sizeof(float));
    most.tile = memory_arena_take(a, k_heads * padded * EXPECT_LANES * sizeof(float));
    most.exponents = memory_arena_take(a, heads * ctx * sizeof(float));
    most.lengths = memory_arena_take(a, v_heads * ctx * sizeof(float));
    most.score = memory_arena_take(a, ctx * sizeof(float));
    most.pos = memory_arena_take(a, ctx * sizeof(int32_t));
    most.slots = memory_arena_take(a, slot * EXPECT_LANES);
    if (e) {
        *e = most;
    }
    return e;
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

/* ---- queries ----------------------------------------------------------------------------------
 */

/* Center and balance of the group's keys, where they are stored so. */
static int read_maps(const struct work *w)
{
    const struct cache_expect *e = w->c->expect;
    const struct backend_ops *ops = w->c->geometry.config.ops;
    size_t n = (size_t)w->l->k_heads * (size_t)w->l->k_dim;
    size_t at = (size_t)w->group * n;
    int r = 0;

    if (w->kv->center) {
        r = ops->read(w->c->be, e->center, w->kv->center + at, n * sizeof(float));
    }
    if (!r && w->kv->balance) {
        r = ops->read(w->c->be, e->balance, w->kv->balance + at, n * sizeof(float));
    }
    return r;
}

/* A query as it was before RoPE, out of the row that attention reads. */
static void bare_query(const struct work *w, const float *row, int32_t head, float *to)
{
    const struct cache_expect *e = w->c->expect;
    const int32_t dim = w->l->k_dim;
    const int32_t k_head = head * w->l->k_heads / w->n_heads;

    memset(to, 0, (size_t)expect_padded(dim) * sizeof(*to));
    memcpy(to, row + (size_t)(w->group * w->n_heads + head) * (size_t)dim,
           (size_t)dim * sizeof(*to));
    if (w->kv->k_hadamard) {
        hadamard_head(to, dim);
    }
    for (int32_t i = 0; w->kv->balance && i < dim; i++) {
        to[i] *= e->balance[k_head * dim + i];
    }
    expect_unrotate(w->a->unrotated_rope, &e->turns, to);
}

/* Row i of the sequence, as the r-th of those that are counted at once. */
static int take_row(const struct work *w, const struct ops_seq *seq, int32_t i, int32_t r)
{
    struct cache_expect *e = w->c->expect;
    const struct backend_ops *ops = w->c->geometry.config.ops;
    const size_t padded = (size_t)expect_padded(w->l->k_dim);
    const float *row = w->a->q + (size_t)(seq->row0 + i) * (size_t)w->a->ldq;

    if (!ops->in_host) {
        int err = ops->read(w->c->be, e->queries, row,
                            (uint64_t)w->a->n_q * (uint64_t)w->l->k_dim * sizeof(*row));

        if (err) {
            return err;
        }
        row = e->queries;
    }
    expect_turn_to(w->a->unrotated_rope, seq->pos0 + i, &e->turns);
    for (int32_t h = 0; h < w->n_heads; h++) {
        bare_query(w, row, h, e->rows + ((size_t)h * EXPECT_ROWS + (size_t)r) * padded);
    }
    return 0;
}

/* Rows [first, n_rows) of the sequence enter the group's statistics. */
static int count_queries(const struct work *w, float *stats, const struct ops_seq *seq,
                         int32_t first)
{
    struct cache_expect *e = w->c->expect;
    const struct backend_ops *ops = w->c->geometry.config.ops;
    const uint64_t words = expect_words(w->l->k_dim, w->n_heads);
    const size_t padded = (size_t)expect_padded(w->l->k_dim);
    int r = read_maps(w);

    e->turns.pos = -1; /* of another layer's table, perhaps */
    r = r ? r : ops->read(w->c->be, e->stats, stats, words * sizeof(float));
    for (int32_t i = first; !r && i < seq->n_rows; i += EXPECT_ROWS) {
        int32_t n = seq->n_rows - i < EXPECT_ROWS ? seq->n_rows - i : EXPECT_ROWS;

        for (int32_t k = 0; !r && k < n; k++) {
            r = take_row(w, seq, i + k, k);
        }
        for (int32_t h = 0; !r && h < w->n_heads; h++) {
            expect_add(e->stats + EXPECT_HEAD + (size_t)h * expect_head_words(w->l->k_dim),
                       e->rows + (size_t)h * EXPECT_ROWS * padded, n, w->l->k_dim, e->stats[0],
                       w->p->cov != 0);
        }
        e->stats[0] += (float)n;
    }
    return r ? r : ops->write(w->c->be, stats, e->stats, words * sizeof(float));
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* Slots [slot0, slot0 + n) become keys as the model made them, in the tile, and lengths of V. */
static int read_slots(const struct work *w, int32_t slot0, int32_t n)
{
    const struct cache_expect *e = w->c->expect;
    const struct ops_kv_layout *l = w->l;
    const uint64_t slot_bytes = ops_kv_slot_bytes(l);
    const uint64_t k_bytes = ops_kv_type_bytes(l->k_type, l->k_dim);
    const uint64_t v_bytes = ops_kv_type_bytes(l->v_type, l->v_dim);
    const size_t tile = (size_t)expect_padded(l->k_dim) * EXPECT_LANES;
    int r = w->c->geometry.config.ops->kv_export(
        w->c->be,
        &(struct ops_kv_slots){
            .kv = w->kv, .group = w->group, .slot0 = slot0, .n_slots = n, .host = e->slots});

    memset(e->tile, 0, (size_t)l->k_heads * tile * sizeof(float));
    for (int32_t s = 0; !r && s < n; s++) {
        const uint8_t *at = e->slots + (size_t)s * slot_bytes;
        const uint8_t *values = at + (size_t)l->k_heads * k_bytes;
        const uint8_t *scales = values + (size_t)l->v_heads * v_bytes;
        uint16_t scale = 0;

        for (int32_t h = 0; h < l->k_heads; h++) {
            memcpy(&scale, scales, ops_kv_scale_bytes(l->k_type));
            scales += ops_kv_scale_bytes(l->k_type);
            kv_code_decode(l->k_type, at + (size_t)h * k_bytes, scale, e->key, l->k_dim);
            if (w->kv->k_hadamard) {
                hadamard_head(e->key, l->k_dim);
            }
            for (int32_t i = 0; i < l->k_dim; i++) {
                float x = w->kv->balance ? e->key[i] / e->balance[h * l->k_dim + i] : e->key[i];

                x += w->kv->center ? e->center[h * l->k_dim + i] : 0;
                e->tile[(size_t)h * tile + (size_t)i * EXPECT_LANES + (size_t)s] = x;
            }
        }
        for (int32_t h = 0; h < l->v_heads; h++) {
            double sum = 0;

            memcpy(&scale, scales, ops_kv_scale_bytes(l->v_type));
            scales += ops_kv_scale_bytes(l->v_type);
            kv_code_decode(l->v_type, values + (size_t)h * v_bytes, scale, e->key, l->v_dim);
            for (int32_t i = 0; i < l->v_dim; i++) {
                sum += (double)e->key[i] * (double)e->key[i];
            }
            e->lengths[(size_t)h * (size_t)w->kv->n_slots + (size_t)(slot0 + s)] = (float)sqrt(sum);
        }
    }
    return r;
}

static void future_queries(const struct work *w)
{
    const struct cache_expect *e = w->c->expect;
    const int32_t dim = w->l->k_dim;

    for (int32_t h = 0; h < w->n_heads; h++) {
        const struct expect_query q = {
            .mean = e->mean + (size_t)h * (size_t)expect_padded(dim),
            .cov = e->cov + (size_t)h * (size_t)expect_triangle(dim),
        };

        expect_future(e->stats + EXPECT_HEAD + (size_t)h * expect_head_words(dim), e->stats[0],
                      w->a->unrotated_rope, dim, w->rope_pos, w->p->ahead, w->a->scale,
                      w->p->cov != 0, e->square, &q);
    }
}

static int exponents(const struct work *w)
{
    const struct cache_expect *e = w->c->expect;
    const int32_t dim = w->l->k_dim;
    const size_t n = (size_t)w->kv->n_slots;
    int r = 0;

    for (int32_t s = 0; !r && s < w->kv->n_slots; s += EXPECT_LANES) {
        int32_t rows = w->kv->n_slots - s < EXPECT_LANES ? w->kv->n_slots - s : EXPECT_LANES;

        r = read_slots(w, s, rows);
        for (int32_t h = 0; !r && h < w->n_heads; h++) {
            const struct expect_query q = {
                .mean = e->mean + (size_t)h * (size_t)expect_padded(dim),
                .cov = w->p->cov ? e->cov + (size_t)h * (size_t)expect_triangle(dim) : NULL,
            };
            const int32_t k_head = h * w->l->k_heads / w->n_heads;
            float x[EXPECT_LANES];

            expect_exponents(
                &q, e->tile + (size_t)k_head * (size_t)expect_padded(dim) * EXPECT_LANES, dim, x);
            memcpy(e->exponents + (size_t)h * n + (size_t)s, x, (size_t)rows * sizeof(float));
        }
    }
    return r;
}

/* Softmax over the live slots of a head's exponents, plus the floor, times V: summed over heads. */
static void sum_scores(const struct work *w)
{
    const struct cache_expect *e = w->c->expect;
    const int32_t n = w->kv->n_slots;

    memset(e->score, 0, (size_t)n * sizeof(float));
    for (int32_t h = 0; h < w->n_heads; h++) {
        const float *x = e->exponents + (size_t)h * (size_t)n;
        const float *v = e->lengths + (size_t)(h * w->l->v_heads / w->n_heads) * (size_t)n;
        float most = -INFINITY;
        double sum = 0;

        for (int32_t s = 0; s < n; s++) {
            most = e->pos[s] >= 0 && x[s] > most ? x[s] : most;
        }
        for (int32_t s = 0; s < n; s++) {
            sum += e->pos[s] >= 0 ? (double)expf(x[s] - most) : 0;
        }
        for (int32_t s = 0; s < n; s++) {
            if (e->pos[s] >= 0) {
                e->score[s] += (expf(x[s] - most) / (float)sum + w->p->floor) * v[s];
            }
        }
    }
    for (int32_t s = 0; s < n; s++) { /* statistics out of a file may be anything finite */
        e->score[s] = isfinite(e->score[s]) ? e->score[s] : 0;
    }
}

static int score_keys(const struct work *w, const float *stats)
{
    const struct cache_expect *e = w->c->expect;
    const struct backend_ops *ops = w->c->geometry.config.ops;
    const size_t at = (size_t)w->group * (size_t)w->kv->cap;
    const uint64_t n = (uint64_t)w->kv->n_slots;
    int r =
        ops->read(w->c->be, e->stats, stats, expect_words(w->l->k_dim, w->n_heads) * sizeof(float));

    if (r || e->stats[0] == 0) {
        return r; /* a prompt that was made up, or too short to say anything */
    }
    r = ops->read(w->c->be, e->pos, w->kv->slot_pos + at, n * sizeof(int32_t));
    r = r ? r : read_maps(w);
    if (!r) {
        future_queries(w);
        r = exponents(w);
    }
    if (!r) {
        sum_scores(w);
        r = ops->write(w->c->be, w->kv->score + at, e->score, n * sizeof(float));
    }
    return r;
}

/* ---- a layer ----------------------------------------------------------------------------------
 */

/* Attention sinks' own queries are like no others (Devoto et al. leave them out). */
enum { NOT_COUNTED = 4 };

static bool is_due(const struct cache_seq *q, const struct kv_rows *rows, int32_t end)
{
    if (rows->pos0 >= q->n_prompt) {
        return (end - q->n_prompt) % q->policy.every == 0;
    }
    return end == q->n_prompt ||
           (policy_cuts_chunks(&q->policy) && end == rows->chunk_pos0 + rows->chunk_rows);
}

static int expect_seq(struct cache *c, const struct kv_args *args, int32_t i)
{
    const struct kv_rows *rows = &c->step->rows[i];
    const struct cache_seq *q = &c->seqs[rows->seq];
    const struct ops_seq *seq = &c->step->seqs[i];
    const int32_t end = seq->pos0 + seq->n_rows;
    const int32_t first = seq->pos0 < NOT_COUNTED ? NOT_COUNTED - seq->pos0 : 0;
    struct work w = {
        .c = c,
        .p = &q->policy,
        .a = args->attend,
        .kv = &seq->kv,
        .l = seq->kv.layout,
        .n_heads = args->attend->n_q / seq->kv.layout->n_groups,
        .rope_pos = end,
    };
    int r = 0;

    assert(w.a->unrotated_rope);
    for (w.group = 0; !r && w.group < w.l->n_groups; w.group++) {
        float *stats = cache_expect_stats(c, q, args->store, w.group);

        if (rows->pos0 < q->n_prompt && first < seq->n_rows) {
            r = count_queries(&w, stats, seq, first);
        }
        if (!r && is_due(q, rows, end)) {
            r = score_keys(&w, stats);
        }
    }
    return r;
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
