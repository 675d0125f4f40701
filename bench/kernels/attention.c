/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of an 8B model's layer (32 query heads, 8 K heads of 128): decode by depth, type and
 * batch, each launch on another layer's pages; a prompt's chunk, and the same observed as H2O and
 * Keyformer do; what expected attention makes of both; and decode by SparQ. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/kernels/kbench.h"
#include "kernels/ops_expect.h"

enum { N_Q = 32, N_K = 8, DIM = 128, MOST_LAYERS = 32, MOST_SEQS = 8 };

struct layers {
    struct ops_kv_layout layout;
    struct ops_seq seqs[MOST_LAYERS][MOST_SEQS];
    struct ops_attention op;
    uint8_t *pool;
    void *pages;
    uint8_t *latest; /* of caches of four bits: all layers and sequences share one */
    int n;           /* layers */
};

static int layers_round(struct kbench *k, void *arg, int n)
{
    struct layers *l = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        l->op.seqs = l->seqs[i % l->n];
        r = k->ops->attention(k->be, &l->op);
    }
    return r;
}

static int describe(struct kbench *k, enum ops_kv_type type, enum ops_rank rank, struct layers *l,
                    struct error *e)
{
    l->layout = (struct ops_kv_layout){.n_groups = N_K,
                                       .k_heads = 1,
                                       .v_heads = 1,
                                       .k_dim = DIM,
                                       .v_dim = DIM,
                                       .k_type = type,
                                       .v_type = type,
                                       .rank = rank};
    return k->ops->kv_layout(&l->layout, e);
}

static void drop(struct kbench *k, struct layers *l)
{
    k->ops->free(k->be, l->pool, 0);
    k->ops->free(k->be, l->pages, 0);
    l->pool = NULL;
    l->pages = NULL;
}

/* Pages of all layers and sequences, numbered in order. `touched`: bytes of a layer that a piece
 * reads, of which together there are more than the caches hold; 0: all. */
static int make(struct kbench *k, int32_t depth, int n_seqs, uint64_t touched, struct layers *l,
                struct error *e)
{
    int32_t per_group = (depth + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    uint64_t of_seq = (uint64_t)per_group * (uint64_t)l->layout.n_groups;
    uint64_t n_pages;
    uint32_t *table;
    void *pool = NULL;
    int r;

    touched = touched > 0 ? touched : of_seq * (uint64_t)n_seqs * l->layout.page_bytes;
    l->n = kbench_copies(k, touched);
    n_pages = of_seq * (uint64_t)n_seqs * (uint64_t)l->n;
    table = malloc(n_pages * sizeof(*table));
    if (!table) {
        return error_set(e, -ENOMEM, "no memory for page tables");
    }
    for (uint64_t i = 0; i < n_pages; i++) {
        table[i] = (uint32_t)i;
    }
    r = kbench_fill(k, n_pages * l->layout.page_bytes, &pool, e);
    l->pool = pool;
    r = r ? r : k->ops->alloc(k->be, n_pages * sizeof(*table), "page tables", &l->pages, e);
    if (!r && (r = k->ops->write(k->be, l->pages, table, n_pages * sizeof(*table)))) {
        r = error_set_errno(e, r, "write");
    }
    free(table);
    for (int i = 0; i < l->n; i++) {
        for (int s = 0; s < n_seqs; s++) {
            l->seqs[i][s] = (struct ops_seq){
                .row0 = s,
                .n_rows = 1,
                .pos0 = depth - 1,
                .slot0 = depth - 1,
                .kv = {.layout = &l->layout,
                       .pool = l->pool,
                       .pages = (uint32_t *)l->pages + of_seq * (uint64_t)(i * n_seqs + s),
                       .max_pages = per_group,
                       .cap = depth,
                       .k_hadamard = l->latest != NULL,
                       .v_hadamard = l->latest != NULL,
                       .latest = l->latest,
                       .n_slots = depth},
            };
        }
    }
    return r;
}

static int time_decode(struct kbench *k, enum ops_kv_type type, int32_t depth, int n_seqs,
                       struct layers *l, struct error *e)
{
    char name[96];
    double bytes = (double)n_seqs * depth * N_K * 2 *
                   (double)(ops_kv_type_bytes(type, DIM) + ops_kv_scale_bytes(type));
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention %s, depth %d, batch %d", ops_kv_type_name(type),
                   depth, n_seqs);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = make(k, depth, n_seqs, 0, l, e);
    l->op.rows = (struct ops_rows){n_seqs, n_seqs};
    l->op.n_seqs = n_seqs;
    r = r ? r : kbench_time(k, layers_round, l, k->small ? l->n : MOST_LAYERS, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, bytes, 0);
    }
    drop(k, l);
    return r;
}

/* SparQ (r = 32, k = 128, a second copy of K by dim): bytes are those of r dims of all slots and of
 * k rows of K and V. */
static int time_sparq(struct kbench *k, int32_t depth, int n_seqs, struct layers *l,
                      struct error *e)
{
    struct ops_select select[MOST_SEQS];
    char name[96];
    double bytes;
    double ns;
    int r;

    for (int i = 0; i < n_seqs; i++) {
        select[i] = (struct ops_select){
            .kind = OPS_SELECT_SPARQ, .r = 32, .k = k->small ? 40 : 128, .local = 8};
    }
    bytes = (double)n_seqs * N_K * 2 * (32.0 * depth + 2.0 * select[0].k * DIM);
    (void)snprintf(name, sizeof(name), "attention f16, sparq, depth %d, batch %d", depth, n_seqs);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = describe(k, OPS_KV_F16, OPS_RANK_2K, l, e);
    r = r ? r : make(k, depth, n_seqs, (uint64_t)bytes, l, e);
    l->op.rows = (struct ops_rows){n_seqs, n_seqs};
    l->op.n_seqs = n_seqs;
    l->op.select = select;
    r = r ? r : kbench_time(k, layers_round, l, k->small ? l->n : MOST_LAYERS, &ns, e);
    l->op.select = NULL;
    if (!r) {
        kbench_print(k, name, ns, bytes, 0);
    }
    drop(k, l);
    return r;
}

static int sums_round(struct kbench *k, void *arg, int n)
{
    struct layers *l = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->ops->kv_sum(k->be, &(struct ops_kv_sum){.kv = &l->seqs[i % l->n][0].kv});
    }
    return r;
}

/* The sums of V that SparQ's rows need, once a prompt and every thousand tokens. */
static int time_sums(struct kbench *k, int32_t depth, struct layers *l, struct error *e)
{
    uint64_t sum_bytes = (uint64_t)N_K * DIM * sizeof(float);
    void *sum = NULL;
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention f16, sparq, sums of V, depth %d", depth);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = describe(k, OPS_KV_F16, OPS_RANK_ONCE, l, e);
    r = r ? r : make(k, depth, 1, 0, l, e);
    r = r ? r : k->ops->alloc(k->be, sum_bytes, "sums of V", &sum, e);
    for (int i = 0; i < l->n; i++) {
        l->seqs[i][0].kv.v_sum = sum;
    }
    r = r ? r : kbench_time(k, sums_round, l, k->small ? l->n : MOST_LAYERS, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, 2.0 * N_K * depth * DIM, 0);
    }
    k->ops->free(k->be, sum, sum_bytes);
    drop(k, l);
    return r;
}

static int time_all_sparq(struct kbench *k, struct layers *l, struct error *e)
{
    int r = time_sums(k, k->small ? 300 : 8192, l, e);

    if (r || k->small) {
        return r ? r : time_sparq(k, 300, 2, l, e);
    }
    r = time_sparq(k, 8192, 1, l, e);
    r = r ? r : time_sparq(k, 8192, MOST_SEQS, l, e);
    return r ? r : time_sparq(k, 65536, MOST_SEQS, l, e);
}

/* A chunk of a prompt behind `before` tokens of it. `observed`: slots are scored by all its rows.
 */
static int time_prompt(struct kbench *k, enum ops_kv_type type, int32_t before, int32_t rows,
                       bool observed, struct layers *l, struct error *e)
{
    const struct ops_observe observe = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1};
    uint64_t score_bytes = (uint64_t)N_K * (uint64_t)(before + rows) * sizeof(float);
    void *score = NULL;
    char name[96];
    double pairs = (double)rows * before + 0.5 * (double)rows * rows;
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention %s, prompt%s, rows %d to %d",
                   ops_kv_type_name(type), observed ? " observed" : "", before, before + rows);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = make(k, before + rows, 1, 0, l, e);
    r = r || !observed ? r : k->ops->alloc(k->be, score_bytes, "scores", &score, e);
    for (int i = 0; i < l->n; i++) {
        l->seqs[i][0].kv.score = score;
        l->seqs[i][0].n_rows = rows;
        l->seqs[i][0].pos0 = before;
        l->seqs[i][0].slot0 = before;
    }
    l->op.rows = (struct ops_rows){rows, 0};
    l->op.n_seqs = 1;
    l->op.observe = observed ? &observe : NULL;
    r = r ? r : kbench_time(k, layers_round, l, 2, &ns, e);
    l->op.observe = NULL;
    if (!r) {
        kbench_print(k, name, ns, 0, (observed ? 6.0 : 4.0) * N_Q * DIM * pairs);
    }
    k->ops->free(k->be, score, score_bytes);
    drop(k, l);
    return r;
}

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

/* Expected attention: a layer's slots are scored, and a prompt's rows are counted. */
static int time_expect(struct kbench *k, enum ops_kv_type type, int32_t depth, int32_t rows,
                       struct layers *l, struct error *e)
{
    static float inv_freq[DIM / 2];
    static const struct ops_rope rope = {
        .form = OPS_ROPE_NEOX, .n_dims = DIM, .inv_freq = inv_freq, .mscale = 1};
    uint64_t stats_bytes = N_K * expect_words(DIM, N_Q / N_K) * sizeof(float);
    uint64_t slot_bytes = (uint64_t)N_K * (uint64_t)depth * sizeof(float);
    struct expecting x = {.l = l};
    void *stats = NULL;
    void *pos = NULL;
    void *score = NULL;
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "attention %s, expected, %s %d", ops_kv_type_name(type),
                   rows ? "rows" : "slots", rows ? rows : depth);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = make(k, depth, 1, 0, l, e);
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
                               .n_q = N_Q,
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
                     rows ? (double)rows * N_Q * DIM * DIM : (double)depth * N_Q * DIM * DIM);
    }
    k->ops->free(k->be, stats, stats_bytes);
    k->ops->free(k->be, pos, slot_bytes);
    k->ops->free(k->be, score, slot_bytes);
    drop(k, l);
    return r;
}

static int time_type(struct kbench *k, enum ops_kv_type type, struct layers *l, struct error *e)
{
    static const int32_t depths[] = {128, 2048, 8192, 65536};
    static const int32_t small_depths[] = {70};
    int n = k->small ? 1 : 4;
    int r;

    r = describe(k, type, OPS_RANK_ONCE, l, e);
    if (!r && ops_kv_in_four_bits(type)) {
        uint64_t bytes = N_K * OPS_LATEST_ENTRIES * ops_kv_latest_bytes(&l->layout);
        void *latest = NULL;

        r = kbench_fill(k, bytes, &latest, e);
        l->latest = latest;
    }
    for (int i = 0; i < n && !r; i++) {
        int32_t depth = k->small ? small_depths[i] : depths[i];

        r = time_decode(k, type, depth, 1, l, e);
        if (!r && (k->small || depth <= 8192)) {
            r = time_decode(k, type, depth, k->small ? 2 : MOST_SEQS, l, e);
        }
    }
    for (int i = k->small; i < 2 && !r; i++) {
        r = k->small ? time_prompt(k, type, 64 * i, 8, false, l, e)
                     : time_prompt(k, type, 6144 * i, 2048, false, l, e);
    }
    r = r ? r : time_prompt(k, type, 0, k->small ? 8 : 2048, true, l, e);
    if (!r && (type == OPS_KV_F16 || (!k->small && ops_kv_in_four_bits(type)))) {
        r = time_expect(k, type, k->small ? 70 : 4096, 0, l, e);
    }
    if (!r && type == OPS_KV_F16) {
        r = time_expect(k, type, k->small ? 70 : 4096, k->small ? 8 : 2048, l, e);
    }
    k->ops->free(k->be, l->latest, 0);
    l->latest = NULL;
    return r;
}

int kbench_attention(struct kbench *k, struct error *e)
{
    static const enum ops_kv_type types[] = {OPS_KV_F16, OPS_KV_BF16, OPS_KV_FP8, OPS_KV_I8,
                                             OPS_KV_G4};
    static struct layers l;
    uint64_t bytes = (k->small ? (uint64_t)64 : (uint64_t)2048) * N_Q * DIM * sizeof(float);
    void *q = NULL;
    void *out = NULL;
    int r;

    r = kbench_fill(k, bytes, &q, e);
    r = r ? r : k->ops->alloc(k->be, bytes, "results", &out, e);
    l.op = (struct ops_attention){
        .q = q, .out = out, .ldq = N_Q * DIM, .ldo = N_Q * DIM, .n_q = N_Q, .scale = 0.0883883f};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]) && !r; t++) {
        r = time_type(k, types[t], &l, e);
    }
    r = r ? r : time_all_sparq(k, &l, e);
    k->ops->free(k->be, q, bytes);
    k->ops->free(k->be, out, bytes);
    return r;
}
