/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of an 8B model's layer (32 query heads, 8 K heads of 128), by type: decode by depth and
 * batch, each launch on another layer's pages; a prompt's chunk, and the same observed as H2O and
 * Keyformer do; what expected attention makes of both. Some of them with heads of 64 (a 1B model's)
 * and of 256 (16 on 8, Gemma's). */

#include <stdio.h>

#include "bench/kernels/layers.h"
#include "kernels/ops_expect.h"

enum { DIM = 128 };

static const struct layers_heads heads_128 = {32, 8, DIM};
static const struct layers_heads heads_64 = {32, 8, 64};
static const struct layers_heads heads_256 = {16, 8, LAYERS_DIM};

struct type {
    enum ops_kv_type k, v;
    const char *name; /* NULL: the one type's */
};

static const char *name_of(const struct type *t)
{
    return t->name ? t->name : ops_kv_type_name(t->k);
}

/* "attention bf16", and of what heads if they are not of 128. */
static int begin_name(const struct layers *l, const struct type *t, char *to, size_t size)
{
    return l->heads.dim == DIM
               ? snprintf(to, size, "attention %s", name_of(t))
               : snprintf(to, size, "attention %s, heads of %d", name_of(t), l->heads.dim);
}

static int time_decode(struct kbench *k, const struct type *t, int32_t depth, int n_seqs,
                       struct layers *l, struct error *e)
{
    int32_t dim = l->heads.dim;
    double slot = (double)(ops_kv_type_bytes(t->k, dim) + ops_kv_scale_bytes(t->k) +
                           ops_kv_type_bytes(t->v, dim) + ops_kv_scale_bytes(t->v));
    char name[96];
    double ns;
    int at = begin_name(l, t, name, sizeof(name));
    int r;

    (void)snprintf(name + at, sizeof(name) - (size_t)at, ", depth %d, batch %d", depth, n_seqs);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = layers_make(k, l, depth, n_seqs, 0, e);
    r = r ? r : kbench_time(k, layers_attend, l, layers_pieces(k, l), &ns, e);
    if (!r) {
        kbench_print(k, name, ns, (double)n_seqs * depth * l->heads.n_k * slot, 0);
    }
    layers_drop(k, l);
    return r;
}

/* A chunk of a prompt behind `before` tokens of it. `observed`: slots are scored by all its rows.
 */
static int time_prompt(struct kbench *k, const struct type *t, int32_t before, int32_t rows,
                       bool observed, struct layers *l, struct error *e)
{
    const struct ops_observe observe = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1};
    const struct layers_heads *h = &l->heads;
    uint64_t score_bytes = (uint64_t)h->n_k * (uint64_t)(before + rows) * sizeof(float);
    void *score = NULL;
    char name[96];
    double pairs = (double)rows * before + 0.5 * (double)rows * rows;
    double ns;
    int at = begin_name(l, t, name, sizeof(name));
    int r;

    (void)snprintf(name + at, sizeof(name) - (size_t)at, ", prompt%s, rows %d to %d",
                   observed ? " observed" : "", before, before + rows);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = layers_make(k, l, before + rows, 1, 0, e);
    r = r || !observed ? r : k->ops->alloc(k->be, score_bytes, "scores", &score, e);
    for (int i = 0; i < l->n; i++) {
        l->seqs[i][0].kv.score = score;
        l->seqs[i][0].n_rows = rows;
        l->seqs[i][0].pos0 = before;
        l->seqs[i][0].slot0 = before;
    }
    l->op.rows = (struct ops_rows){rows, 0};
    l->op.observe = observed ? &observe : NULL;
    r = r ? r : kbench_time(k, layers_attend, l, 2, &ns, e);
    l->op.observe = NULL;
    if (!r) {
        kbench_print(k, name, ns, 0, (observed ? 6.0 : 4.0) * h->n_q * h->dim * pairs);
    }
    k->ops->free(k->be, score, score_bytes);
    layers_drop(k, l);
    return r;
}

/* ---- expected attention ---------------------------------------------------------------------- */

struct expecting {
    struct layers *l;
    struct ops_expect op;
};

static int expect_round(struct kbench *k, void *arg, int n)
{
    struct expecting *x = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        x->op.seq = &x->l->seqs[i % x->l->n][0];
        r = k->ops->expect(k->be, &x->op);
    }
    return r;
}

/* A layer's slots are scored, or a prompt's rows are counted. */
static int time_expect(struct kbench *k, const struct type *t, int32_t depth, int32_t rows,
                       struct layers *l, struct error *e)
{
    static float inv_freq[DIM / 2];
    static const struct ops_rope rope = {
        .form = OPS_ROPE_NEOX, .n_dims = DIM, .inv_freq = inv_freq, .mscale = 1};
    const struct layers_heads *h = &l->heads;
    uint64_t stats_bytes = (uint64_t)h->n_k * expect_words(DIM, h->n_q / h->n_k) * sizeof(float);
    uint64_t slot_bytes = (uint64_t)h->n_k * (uint64_t)depth * sizeof(float);
    struct expecting x = {.l = l};
    void *stats = NULL;
    void *pos = NULL;
    void *score = NULL;
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention %s, expected, %s %d", name_of(t),
                   rows ? "rows" : "slots", rows ? rows : depth);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = layers_make(k, l, depth, 1, 0, e);
    r = r ? r : kbench_fill(k, stats_bytes, &stats, e);
    r = r ? r : k->ops->alloc(k->be, slot_bytes, "positions", &pos, e); /* all of them 0: live */
    r = r ? r : k->ops->alloc(k->be, slot_bytes, "scores", &score, e);
    for (int i = 0; i < l->n; i++) {
        struct ops_seq *s = &l->seqs[i][0];

        s->kv.slot_pos = pos;
        s->kv.score = score;
        s->n_rows = rows ? rows : 1;
        s->pos0 = 0;
    }
    x.op = (struct ops_expect){.q = l->op.q,
                               .ldq = l->op.ldq,
                               .n_q = h->n_q,
                               .scale = l->op.scale,
                               .rope = &rope,
                               .stats = stats,
                               .first = rows ? 0 : 1,
                               .cov = true,
                               .score = !rows,
                               .pos = depth,
                               .ahead = 64};
    /* as many as are put off behind one step */
    r = r ? r : kbench_time(k, expect_round, &x, k->small ? 1 : rows ? 2 : 8, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, 0,
                     rows ? (double)rows * h->n_q * DIM * DIM : (double)depth * h->n_q * DIM * DIM);
    }
    k->ops->free(k->be, stats, stats_bytes);
    k->ops->free(k->be, pos, slot_bytes);
    k->ops->free(k->be, score, slot_bytes);
    layers_drop(k, l);
    return r;
}

/* ---- what is timed --------------------------------------------------------------------------- */

/* Latest tokens in 8 bits, which pages of four bits go with. */
static int make_latest(struct kbench *k, const struct type *t, struct layers *l, struct error *e)
{
    void *latest = NULL;
    int r = 0;

    if (ops_kv_in_four_bits(t->k) || ops_kv_in_four_bits(t->v)) {
        r = kbench_fill(
            k, (uint64_t)l->heads.n_k * OPS_LATEST_ENTRIES * ops_kv_latest_bytes(&l->layout),
            &latest, e);
        l->latest = latest;
    }
    return r;
}

static void drop_latest(struct kbench *k, struct layers *l)
{
    k->ops->free(k->be, l->latest, 0);
    l->latest = NULL;
}

static int time_type(struct kbench *k, const struct type *t, struct layers *l, struct error *e)
{
    static const int32_t depths[] = {128, 2048, 8192, 65536};
    static const int32_t small_depths[] = {70};
    int n = k->small ? 1 : 4;
    int r = layers_describe(k, l, &heads_128, t->k, t->v, OPS_RANK_ONCE, 0, e);

    r = r ? r : make_latest(k, t, l, e);
    for (int i = 0; i < n && !r; i++) {
        int32_t depth = k->small ? small_depths[i] : depths[i];

        r = time_decode(k, t, depth, 1, l, e);
        if (!r && (k->small || depth <= 8192)) {
            r = time_decode(k, t, depth, k->small ? 2 : LAYERS_SEQS, l, e);
        }
    }
    for (int i = k->small; i < 2 && !r; i++) {
        r = k->small ? time_prompt(k, t, 64 * i, 8, false, l, e)
                     : time_prompt(k, t, 6144 * i, 2048, false, l, e);
    }
    r = r ? r : time_prompt(k, t, 0, k->small ? 8 : 2048, true, l, e);
    if (!r && (t->k == OPS_KV_F16 || (!k->small && ops_kv_in_four_bits(t->k)))) {
        r = time_expect(k, t, k->small ? 70 : 4096, 0, l, e);
    }
    if (!r && t->k == OPS_KV_F16) {
        r = time_expect(k, t, k->small ? 70 : 4096, k->small ? 8 : 2048, l, e);
    }
    drop_latest(k, l);
    return r;
}

/* Heads of other lengths: less of it. */
static int time_heads(struct kbench *k, const struct type *t, const struct layers_heads *heads,
                      struct layers *l, struct error *e)
{
    int r = layers_describe(k, l, heads, t->k, t->v, OPS_RANK_ONCE, 0, e);

    if (k->small) {
        r = r ? r : time_decode(k, t, 70, 2, l, e);
        return r ? r : time_prompt(k, t, 64, 8, false, l, e);
    }
    r = r ? r : time_decode(k, t, 2048, 1, l, e);
    r = r ? r : time_decode(k, t, 8192, 1, l, e);
    r = r ? r : time_decode(k, t, 8192, LAYERS_SEQS, l, e);
    r = r ? r : time_decode(k, t, 65536, 1, l, e);
    r = r ? r : time_prompt(k, t, 0, 2048, false, l, e);
    return r ? r : time_prompt(k, t, 6144, 2048, false, l, e);
}

int kbench_attention(struct kbench *k, struct error *e)
{
    static const struct type types[] = {
        {OPS_KV_F16, OPS_KV_F16, NULL}, {OPS_KV_BF16, OPS_KV_BF16, NULL},
        {OPS_KV_FP8, OPS_KV_FP8, NULL}, {OPS_KV_I8, OPS_KV_I8, NULL},
        {OPS_KV_G4, OPS_KV_G4, NULL},   {OPS_KV_I8, OPS_KV_G4, "k8v4"}};
    static const struct type some_types[] = {{OPS_KV_BF16, OPS_KV_BF16, NULL},
                                             {OPS_KV_FP8, OPS_KV_FP8, NULL}};
    static struct layers l;
    struct backend_limits limits = kbench_limits(k);
    int r = layers_open(k, &l, e);

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]) && !r; t++) {
        r = time_type(k, &types[t], &l, e);
    }
    for (size_t t = 0; t < 2 && !r; t++) {
        r = time_heads(k, &some_types[t], &heads_64, &l, e);
    }
    limits.max_head_dim = LAYERS_DIM;
    r = r ? r : k->ops->reserve(k->be, &limits, e);
    for (size_t t = 0; t < 2 && !r; t++) {
        r = time_heads(k, &some_types[t], &heads_256, &l, e);
    }
    limits = kbench_limits(k);
    r = r ? r : k->ops->reserve(k->be, &limits, e);
    layers_close(k, &l);
    return r;
}
