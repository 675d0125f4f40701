/* SPDX-License-Identifier: Apache-2.0 */
/* Expected attention by what any backend can read: queries as rotated, and slots in canonical form.
 * The reference's operation: group by group, on one thread. */

#include <math.h>
#include <string.h>

#include "kernels/expect.h"
#include "kernels/hadamard.h"
#include "kernels/kv_code.h"

/* Of one group. */
struct work {
    struct backend *be;
    const struct ops_expect *p;
    const struct expect_work *e;
    const struct ops_kv *kv;
    const struct ops_kv_layout *l;
    int32_t group;
    int32_t n_heads; /* query heads */
};

struct expect_work *expect_work_lay(const struct expect_sizes *s, struct memory_arena *a)
{
    const size_t padded = (size_t)expect_padded((int32_t)s->k_dim);
    const size_t triangle = (size_t)expect_triangle((int32_t)s->k_dim);
    const size_t longest = padded > s->v_dim ? padded : s->v_dim;
    const size_t turns = s->k_dim / 2 * sizeof(double);
    struct expect_work *e = memory_arena_take(a, sizeof(*e));
    struct expect_work w = {.ld = (s->ctx + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS};

    w.square = memory_arena_take(a, EXPECT_SQUARES * s->k_dim * s->k_dim * sizeof(float));
    w.mean = memory_arena_take(a, s->n_q * padded * sizeof(float));
    w.cov = memory_arena_take(a, s->n_q * triangle * sizeof(float));
    w.exponents = memory_arena_take(a, s->n_q * w.ld * sizeof(float));
    w.sum = memory_arena_take(a, s->n_q * sizeof(float));
    w.lengths = memory_arena_take(a, s->n_v * w.ld * sizeof(float));
    w.rows = memory_arena_take(a, s->heads * EXPECT_ROWS * padded * sizeof(float));
    w.turns.c = memory_arena_take(a, turns);
    w.turns.s = memory_arena_take(a, turns);
    w.turns.step_c = memory_arena_take(a, turns);
    w.turns.step_s = memory_arena_take(a, turns);
    w.stats = memory_arena_take(a, (size_t)expect_words((int32_t)s->k_dim, (int32_t)s->heads) *
                                       sizeof(float));
    w.center = memory_arena_take(a, s->k_row * sizeof(float));
    w.balance = memory_arena_take(a, s->k_row * sizeof(float));
    w.key = memory_arena_take(a, longest * sizeof(float));
    w.tile = memory_arena_take(a, s->k_heads * padded * EXPECT_LANES * sizeof(float));
    w.score = memory_arena_take(a, s->ctx * sizeof(float));
    w.pos = memory_arena_take(a, s->ctx * sizeof(int32_t));
    w.slots = memory_arena_take(a, s->slot * EXPECT_LANES);
    if (e) {
        *e = w;
    }
    return e;
}

/* ---- queries ----------------------------------------------------------------------------------
 */

/* Center and balance of the group's keys, where they are stored so. */
static int read_maps(const struct work *w)
{
    const struct expect_work *e = w->e;
    const struct backend_ops *ops = w->be->ops;
    size_t n = (size_t)w->l->k_heads * (size_t)w->l->k_dim;
    size_t at = (size_t)w->group * n;
    int r = 0;

    if (w->kv->center) {
        r = ops->read(w->be, e->center, w->kv->center + at, n * sizeof(float));
    }
    if (!r && w->kv->balance) {
        r = ops->read(w->be, e->balance, w->kv->balance + at, n * sizeof(float));
    }
    return r;
}

/* A query as it was before RoPE, out of the row that attention reads. */
static void bare_query(const struct work *w, const float *row, int32_t head, float *to)
{
    const struct expect_work *e = w->e;
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
    expect_unrotate(w->p->rope, &e->turns, to);
}

/* Row i of the sequence, as the r-th of those that are counted at once. */
static void take_row(const struct work *w, int32_t i, int32_t r)
{
    struct expect_work *e = w->p->work;
    const size_t padded = (size_t)expect_padded(w->l->k_dim);
    const struct ops_seq *seq = w->p->seq;
    const float *row = w->p->q + (size_t)(seq->row0 + i) * (size_t)w->p->ldq;

    expect_turn_to(w->p->rope, seq->pos0 + i, &e->turns);
    for (int32_t h = 0; h < w->n_heads; h++) {
        bare_query(w, row, h, e->rows + ((size_t)h * EXPECT_ROWS + (size_t)r) * padded);
    }
}

/* Rows [first, n_rows) of the sequence enter the group's statistics. */
static int count_queries(const struct work *w, float *stats)
{
    struct expect_work *e = w->p->work;
    const struct backend_ops *ops = w->be->ops;
    const struct ops_seq *seq = w->p->seq;
    const uint64_t words = expect_words(w->l->k_dim, w->n_heads);
    const size_t padded = (size_t)expect_padded(w->l->k_dim);
    int r = read_maps(w);

    e->turns.pos = -1; /* of another layer's table, perhaps */
    r = r ? r : ops->read(w->be, e->stats, stats, words * sizeof(float));
    for (int32_t i = w->p->first; !r && i < seq->n_rows; i += EXPECT_ROWS) {
        int32_t n = seq->n_rows - i < EXPECT_ROWS ? seq->n_rows - i : EXPECT_ROWS;

        for (int32_t k = 0; k < n; k++) {
            take_row(w, i + k, k);
        }
        for (int32_t h = 0; h < w->n_heads; h++) {
            expect_add(e->stats + EXPECT_HEAD + (size_t)h * expect_head_words(w->l->k_dim),
                       e->rows + (size_t)h * EXPECT_ROWS * padded, n, w->l->k_dim, e->stats[0],
                       w->p->cov);
        }
        e->stats[0] += (float)n;
    }
    return r ? r : ops->write(w->be, stats, e->stats, words * sizeof(float));
}

/* ---- keys -------------------------------------------------------------------------------------
 */

/* Slots [slot0, slot0 + n) become keys as the model made them, in the tile, and lengths of V. */
static int read_slots(const struct work *w, int32_t slot0, int32_t n)
{
    const struct expect_work *e = w->e;
    const struct ops_kv_layout *l = w->l;
    const uint64_t slot_bytes = ops_kv_slot_bytes(l);
    const uint64_t k_bytes = ops_kv_type_bytes(l->k_type, l->k_dim);
    const uint64_t v_bytes = ops_kv_type_bytes(l->v_type, l->v_dim);
    const size_t tile = (size_t)expect_padded(l->k_dim) * EXPECT_LANES;
    int r = w->be->ops->kv_export(
        w->be, &(struct ops_kv_slots){
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
    const struct expect_work *e = w->e;
    const int32_t dim = w->l->k_dim;
    const struct expect_map as_made = {.center = NULL}; /* read_slots() undoes the rest */

    for (int32_t h = 0; h < w->n_heads; h++) {
        const struct expect_query q = {
            .mean = e->mean + (size_t)h * (size_t)expect_padded(dim),
            .cov = e->cov + (size_t)h * (size_t)expect_triangle(dim),
        };

        expect_future(e->stats + EXPECT_HEAD + (size_t)h * expect_head_words(dim), e->stats[0],
                      w->p->rope, dim, w->p->pos, w->p->ahead, w->p->scale, w->p->cov, &as_made,
                      e->square, &q);
    }
}

static int exponents(const struct work *w)
{
    const struct expect_work *e = w->e;
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
    const struct expect_work *e = w->e;
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
    const struct expect_work *e = w->e;
    const struct backend_ops *ops = w->be->ops;
    const size_t at = (size_t)w->group * (size_t)w->kv->cap;
    const uint64_t n = (uint64_t)w->kv->n_slots;
    int r =
        ops->read(w->be, e->stats, stats, expect_words(w->l->k_dim, w->n_heads) * sizeof(float));

    if (r || e->stats[0] == 0) {
        return r; /* a prompt that was made up, or too short to say anything */
    }
    r = ops->read(w->be, e->pos, w->kv->slot_pos + at, n * sizeof(int32_t));
    r = r ? r : read_maps(w);
    if (!r) {
        future_queries(w);
        r = exponents(w);
    }
    if (!r) {
        sum_scores(w);
        r = ops->write(w->be, w->kv->score + at, e->score, n * sizeof(float));
    }
    return r;
}

/* ----------------------------------------------------------------------------------------------
 */

int expect_host(struct backend *be, const struct ops_expect *p)
{
    const struct ops_kv_layout *l = p->seq->kv.layout;
    struct work w = {
        .be = be,
        .p = p,
        .e = p->work,
        .kv = &p->seq->kv,
        .l = l,
        .n_heads = p->n_q / l->n_groups,
    };
    int r = 0;

    for (w.group = 0; !r && w.group < l->n_groups; w.group++) {
        float *stats = p->stats + (size_t)w.group * expect_words(l->k_dim, w.n_heads);

        if (p->first < p->seq->n_rows) {
            r = count_queries(&w, stats);
        }
        if (!r && p->score) {
            r = score_keys(&w, stats);
        }
    }
    return r;
}
