/* SPDX-License-Identifier: Apache-2.0 */
/* attention of rows that select (ops_select), kv_sum, and v_sum as rows are stored. Batches of two
 * decode rows that select, one that does not, and a prefill, which never does; SparQ and top-k V
 * with every layout of K; GQA, MHA, unequal heads and dims; slots in any order with empty ones
 * between; rows that see no slot (the best of nothing: zeros); soft-caps, ALiBi, observation.
 *
 * The backend against the reference; the reference against itself: a selection of all slots with
 * all dims is attention without selection, to the bit.
 *
 * With --bench: the time of one decode row with and without selection, and the 64-byte lines that
 * each has to move. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/kv_lines.h"
#include "tests/kernels/check_kv.h"

enum { N_SEQS = 4 };

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_FP16 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 64,
    .max_decode = 8,
    .max_seqs = 8,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = 32,
    .max_head_dim = 128,
    .max_slots = 17088,
    .observe = true,
    .select = true,
};

enum { SCATTERED = 1, OBSERVE = 2, ALL = 4, BLIND = 8, FLAT = 16 };

struct shape {
    struct ops_kv_layout l;
    int32_t n_q;
    int32_t n_slots[N_SEQS]; /* the first three have a decode row, the last 9 prefill rows */
    struct ops_select select;
    int options;
    float softcap;
    float alibi_max;
    struct ops_observe o;
};

struct inputs {
    struct check_kv kv[N_SEQS];
    struct check_buf *v_sum[N_SEQS];
    struct check_buf *q;
    struct check_buf *out;
    int32_t n;
    int32_t ldq;
    int32_t ldo;
};

static int32_t rows_of(const struct shape *s, int seq)
{
    return s->n_slots[seq] == 0 ? 0 : seq < N_SEQS - 1 ? 1 : 9;
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    *in = (struct inputs){0};
    for (int i = 0; i < N_SEQS; i++) {
        in->n += rows_of(s, i);
        check_kv_make(c, &in->kv[i], &s->l, s->n_slots[i] + 70, s->n_slots[i],
                      s->options & SCATTERED, s->options & OBSERVE);
        if (s->options & SCATTERED) {
            check_kv_scatter(c, &in->kv[i]);
        }
        if (s->options & OBSERVE) {
            check_fill(c, in->kv[i].score, 1);
        }
        in->v_sum[i] =
            check_buf(c, "v_sum", (size_t)(s->l.n_groups * s->l.v_heads * s->l.v_dim) * 4);
        check_fill(c, in->v_sum[i], 30);
    }
    in->ldq = s->n_q * s->l.k_dim + 16;
    in->ldo = s->n_q * s->l.v_dim + 5;
    in->q = check_buf(c, "q", (size_t)in->n * (size_t)in->ldq * 4);
    in->out = check_buf(c, "out", (size_t)in->n * (size_t)in->ldo * 4);
    check_fill(c, in->q, s->options & FLAT ? 0 : 1.5f);
    check_fill(c, in->out, 1);
}

static int call(struct check *c, const struct shape *s, struct inputs *in, bool selects)
{
    struct ops_seq seqs[N_SEQS];
    struct ops_observe observe[N_SEQS];
    struct ops_select select[N_SEQS];
    struct ops_attention p = {
        .rows = {.n = in->n},
        .q = check_dev(c, in->q),
        .out = check_dev(c, in->out),
        .ldq = in->ldq,
        .ldo = in->ldo,
        .n_q = s->n_q,
        .scale = 1 / sqrtf((float)s->l.k_dim),
        .softcap = s->softcap,
        .alibi_max = s->alibi_max,
        .seqs = seqs,
        .observe = s->options & OBSERVE ? observe : NULL,
        .select = selects ? select : NULL,
    };
    int32_t row0 = 0;

    for (int i = 0; i < N_SEQS; i++) {
        int32_t n_rows = rows_of(s, i);

        if (n_rows == 0) {
            continue;
        }
        seqs[p.n_seqs] = (struct ops_seq){
            .row0 = row0,
            .n_rows = n_rows,
            .pos0 = s->options & BLIND && i == 0 ? -1 : s->n_slots[i] - n_rows,
            .kv = check_kv_of(c, &in->kv[i]),
        };
        seqs[p.n_seqs].kv.v_sum = check_dev(c, in->v_sum[i]);
        observe[p.n_seqs] = s->o;
        select[p.n_seqs] = s->select;
        if (i == 2) {
            select[p.n_seqs].kind = OPS_SELECT_ALL;
        }
        p.rows.n_decode += i < N_SEQS - 1 ? n_rows : 0;
        p.n_seqs++;
        row0 += n_rows;
    }
    return c->ops->attention(c->be, &p);
}

/* Of the reference: what was just computed with a selection of everything, without one. */
static void without(struct check *c, const struct shape *s, struct inputs *in)
{
    check_reference_again(c);
    check_require(call(c, s, in, false), "attention");
    check_same(c, "a selection of all and none", in->out);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

/* What one decode row has to read of a sequence, in lines (kernels/kv_lines.h; check_lines measures
 * them): of `once` the mean over choices. */
static uint64_t bytes_moved(const struct shape *s, bool selects)
{
    const struct ops_kv_layout *l = &s->l;
    struct ops_select how = s->select;
    uint64_t sums = how.mean ? (uint64_t)(l->v_heads * l->v_dim) * sizeof(float) : 0;

    how.kind = selects ? how.kind : OPS_SELECT_ALL;
    return (uint64_t)l->n_groups *
           ((uint64_t)llround(64 * kv_lines_read(l, &how, s->n_slots[0])) + (selects ? sums : 0));
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* Are prefill rows multiplied in 16 bits? */
static bool is_mma(const struct check *c, const struct shape *s)
{
    return check_has_mma(c) && s->l.k_type != OPS_KV_F32 && s->l.v_type != OPS_KV_F32;
}

/* Only decode rows that read everything may be summed in f16, or with queries in 15 bits. */
static bool is_half(const struct check *c, const struct shape *s)
{
    return (s->l.k_type == OPS_KV_FP8 || s->l.v_type == OPS_KV_FP8) && check_has_half(c);
}

static bool is_in_bits(const struct check *c, const struct shape *s)
{
    return check_has_int_keys(c, s->l.k_type) || check_has_int_values(c, s->l.v_type);
}

static void compare(struct check *c, const struct shape *s, struct inputs *in)
{
    const int32_t cols = s->n_q * s->l.v_dim;
    const bool half = is_half(c, s);
    const bool bits = is_in_bits(c, s);
    const bool mma = is_mma(c, s);
    const float *got = (const void *)in->out->out[1];
    const float *want = (const void *)in->out->out[0];

    check_floats(c, in->out, in->n, in->ldo, cols,
                 mma    ? &tol_attention_bf16
                 : half ? &tol_attention_half
                 : bits ? &tol_attention_15
                        : &tol_select);
    for (int i = 0; i < N_SEQS && (half || bits || mma); i++) {
        int32_t n = rows_of(s, i);

        if (mma ? i < N_SEQS - 1
                : i == N_SEQS - 1 || (s->select.kind != OPS_SELECT_ALL && i != 2)) {
            check_rows(c, "rows in f32", got, want, n, in->ldo, cols, &tol_select);
        }
        got += (size_t)n * (size_t)in->ldo;
        want += (size_t)n * (size_t)in->ldo;
    }
}

static void attend(struct check *c, const struct shape *s)
{
    static const char *const kinds[] = {"all", "sparq", "topv"};
    struct ops_kv_layout l = s->l;
    bool selects = s->select.kind != OPS_SELECT_ALL;
    struct inputs in;

    if (!c->sides[1]->ops->selects || !check_kv_offered(c, &l) ||
        !check_case(c,
                    "%s/%s %dx(%dx%d,%dx%d) q %d slots %d,%d %s r %d k %d local %d%s%s rank %d "
                    "cap %g alibi %g opt %d",
                    ops_kv_type_name(l.k_type), ops_kv_type_name(l.v_type), l.n_groups, l.k_heads,
                    l.k_dim, l.v_heads, l.v_dim, s->n_q, s->n_slots[0], s->n_slots[1],
                    kinds[s->select.kind], s->select.r, s->select.k, s->select.local,
                    s->select.mean ? " mean" : "", s->select.renorm ? " renorm" : "", (int)l.rank,
                    (double)s->softcap, (double)s->alibi_max, s->options)) {
        return;
    }
    prepare(c, s, &in);
    c->bench_bytes = bytes_moved(s, selects);
    while (check_call(c)) {
        c->err = call(c, s, &in, selects);
    }
    if (!c->bench) {
        compare(c, s, &in);
        for (int32_t i = 0; i < s->n_q * s->l.v_dim && s->options & BLIND; i++) {
            if (((const float *)(const void *)in.out->out[1])[i] != 0) {
                check_fail(c, "element %d of a row that sees no slot is not 0", i);
                break;
            }
        }
        for (int i = 0; i < N_SEQS && s->options & OBSERVE; i++) {
            struct check_buf *score = in.kv[i].score;

            check_rows(c, "scores", (const void *)score->out[1], (const void *)score->out[0],
                       s->l.n_groups, in.kv[i].cap, in.kv[i].cap,
                       is_half(c, s) || is_in_bits(c, s) ? &tol_score_half
                       : i == N_SEQS - 1 && is_mma(c, s) ? &tol_attention_bf16
                                                         : &tol_score);
        }
        if (c->first && s->options & ALL) {
            without(c, s, &in);
        }
    }
    for (int i = 0; i < N_SEQS; i++) {
        check_kv_free(&in.kv[i]);
    }
}

/* kv_sum, then one decode row stored over a live slot (or into the next): v_sum is what kv_sum
 * makes of the slots then. */
static void sums(struct check *c, const struct ops_kv_layout *layout, bool scattered)
{
    enum { SLOTS = 150 };
    struct ops_kv_layout l = *layout;
    int32_t n_k = l.n_groups * l.k_heads * l.k_dim;
    int32_t n_v = l.n_groups * l.v_heads * l.v_dim;
    struct check_kv kv;

    if (!c->sides[1]->ops->selects || !check_kv_offered(c, &l) ||
        !check_case(c, "sums %s/%s %dx(%dx%d,%dx%d)%s", ops_kv_type_name(l.k_type),
                    ops_kv_type_name(l.v_type), l.n_groups, l.k_heads, l.k_dim, l.v_heads, l.v_dim,
                    scattered ? " scattered" : "")) {
        return;
    }
    check_kv_make(c, &kv, &l, SLOTS + 20, SLOTS, scattered, false);
    struct check_buf *sum = check_buf(c, "v_sum", (size_t)n_v * 4);
    struct check_buf *anew = check_buf(c, "anew", (size_t)n_v * 4);
    struct check_buf *k = check_buf(c, "k", (size_t)n_k * 4);
    struct check_buf *v = check_buf(c, "v", (size_t)n_v * 4);
    struct check_buf *victim = check_buf(c, "victim", (size_t)l.n_groups * 4);

    if (scattered) {
        check_kv_scatter(c, &kv);
    }
    check_fill(c, k, 1);
    check_fill(c, v, 3);
    for (int32_t g = 0; g < l.n_groups; g++) {
        ((int32_t *)(void *)victim->init)[g] = 13 + 14 * g; /* one live, one empty */
    }
    while (check_call(c)) {
        struct ops_seq seq = {
            .n_rows = 1,
            .pos0 = SLOTS,
            .slot0 = SLOTS,
            .victim = scattered ? check_dev(c, victim) : NULL,
            .kv = check_kv_of(c, &kv),
        };
        struct ops_rope_store store = {
            .rows = {1, 1},
            .k = check_dev(c, k),
            .v = check_dev(c, v),
            .ldk = n_k,
            .ldv = n_v,
            .n_k = l.n_groups * l.k_heads,
            .n_v = l.n_groups * l.v_heads,
            .k_dim = l.k_dim,
            .seqs = &seq,
            .n_seqs = 1,
        };

        seq.kv.v_sum = check_dev(c, sum);
        check_require(c->ops->kv_sum(c->be, &(struct ops_kv_sum){&seq.kv}), "kv_sum");
        seq.kv.n_slots = scattered ? SLOTS : SLOTS + 1;
        check_require(c->ops->rope_store(c->be, &store), "rope_store");
        seq.kv.v_sum = check_dev(c, anew);
        c->err = c->ops->kv_sum(c->be, &(struct ops_kv_sum){&seq.kv});
    }
    check_floats(c, sum, 1, n_v, n_v, &tol_sum);
    check_floats(c, anew, 1, n_v, n_v, &tol_sum);
    for (int side = 0; side < 2; side++) {
        check_rows(c, "kept and anew", (const void *)sum->out[side], (const void *)anew->out[side],
                   1, n_v, n_v, &tol_sum);
    }
    check_kv_free(&kv);
}

static void shapes_of_types(struct check *c, enum ops_kv_type k, enum ops_kv_type v,
                            enum ops_rank rank)
{
    bool all = !c->few && k == v && (k == OPS_KV_F32 || k == OPS_KV_F16 || k == OPS_KV_FP8);
    struct ops_kv_layout mha = {6, 1, 1, 64, 64, k, v, .rank = rank};
    struct ops_kv_layout gqa = {3, 1, 1, 64, 64, k, v, .rank = rank};
    struct ops_kv_layout mqa = {1, 1, 1, 128, 128, k, v, .rank = rank};
    struct ops_kv_layout more_v = {2, 1, 4, 64, 32, k, v, .rank = rank};
    struct ops_kv_layout more_k = {2, 2, 1, 32, 64, k, v, .rank = rank};
    struct ops_select sparq = {OPS_SELECT_SPARQ, 16, 32, 8, false, false};
    struct ops_select mean = {OPS_SELECT_SPARQ, 8, 64, 1, true, false};
    struct ops_select lone = {OPS_SELECT_SPARQ, 1, 1, 1, true, false};
    struct ops_select whole = {OPS_SELECT_SPARQ, 64, 700, 8, true, false};
    struct ops_select topv = {OPS_SELECT_TOPV, 0, 20, 0, false, false};
    struct ops_select renorm = {OPS_SELECT_TOPV, 0, 20, 0, false, true};
    struct ops_observe h2o = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1};
    struct ops_observe gumbel = {.noise = OPS_NOISE_GUMBEL,
                                 .seed = 7,
                                 .row_weight0 = 1,
                                 .row_growth = 1,
                                 .damp = 0.9f,
                                 .tau0 = 1.3f};
    const struct shape shapes[] = {
        {mha, 6, {300, 70, 40, 100}, mean, 0, 0, 0, h2o},
        {gqa, 9, {700, 1, 40, 100}, sparq, 0, 0, 0, h2o},
        {gqa, 9, {700, 64, 40, 100}, topv, 0, 0, 0, h2o},
        {mqa, 8, {513, 300, 40, 100}, sparq, SCATTERED, 0, 0, h2o},
        {mqa, 8, {1300, 129, 40, 100}, lone, 0, 0, 0, h2o},
        {more_v, 16, {300, 65, 40, 100}, mean, 0, 0, 0, h2o},
        {more_v, 16, {300, 65, 40, 100}, renorm, 0, 0, 0, h2o},
        {more_k, 8, {300, 65, 40, 100}, sparq, SCATTERED, 0, 0, h2o},
        {more_k, 8, {300, 65, 40, 100}, topv, 0, 0, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, mean, SCATTERED, 0, 8, h2o},
        {gqa, 9, {300, 130, 40, 100}, sparq, BLIND, 0, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, mean, BLIND | OBSERVE, 0, 0, gumbel},
        {gqa, 9, {300, 130, 40, 100}, topv, BLIND, 0, 0, h2o},
        {more_v, 16, {300, 65, 40, 100}, renorm, BLIND | SCATTERED, 0, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, sparq, 0, 20, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, sparq, OBSERVE, 0, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, mean, OBSERVE | SCATTERED, 0, 0, gumbel},
        {gqa, 9, {300, 130, 40, 100}, topv, OBSERVE | SCATTERED, 0, 0, gumbel},
        {gqa, 9, {300, 130, 40, 100}, whole, rank == OPS_RANK_8 ? 0 : ALL, 0, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, whole, SCATTERED | ALL, 30, 0, h2o},
        {gqa, 9, {300, 130, 40, 100}, {OPS_SELECT_TOPV, 0, 300, 0, false, false}, ALL, 0, 0, h2o},
        {more_v,
         16,
         {300, 130, 40, 100},
         {OPS_SELECT_TOPV, 0, 300, 0, false, true},
         ALL | SCATTERED,
         0,
         0,
         h2o},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (all || i % 4 == 0) {
            attend(c, &shapes[i]);
        }
    }
    sums(c, &gqa, false);
    sums(c, &more_v, true);
}

/* Sequences long enough for more than one round, and for the larger tiles; and slots that all rank
 * alike, so that positions decide. */
static void shapes_of_length(struct check *c)
{
    struct ops_kv_layout mqa = {1, 1, 1, 64, 64, OPS_KV_F16, OPS_KV_F16, .rank = OPS_RANK_2K};
    struct ops_select sparq = {OPS_SELECT_SPARQ, 8, 40, 8, false, false};
    struct ops_select many = {OPS_SELECT_SPARQ, 8, 5000, 8, false, false};
    struct ops_observe none = {.row_first = 1};
    const struct shape shapes[] = {
        {mqa, 4, {17000, 8200, 40, 100}, sparq, 0, 0, 0, none},
        {mqa, 4, {8192, 16384, 40, 100}, many, SCATTERED, 0, 0, none},
        {mqa, 4, {1500, 9000, 40, 100}, sparq, FLAT, 0, 0, none},
        {mqa, 4, {1500, 300, 40, 100}, sparq, FLAT | SCATTERED, 0, 0, none},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        attend(c, &shapes[i]);
    }
}

/* The paper's shape (its Table 4 at batch 1), and a GQA one; each with and without selection. */
static void bench(struct check *c)
{
    static const enum ops_rank ranks[] = {OPS_RANK_ONCE, OPS_RANK_2K, OPS_RANK_8};
    struct ops_observe none = {.row_first = 1};

    for (int gqa = 0; gqa < 2; gqa++) {
        struct ops_kv_layout l = {gqa ? 8 : 32, 1, 1, 128, 128, OPS_KV_F16, OPS_KV_F16};
        struct shape s = {l, 32, {4096}, {OPS_SELECT_ALL}, 0, 0, 0, none};

        attend(c, &s);
        for (size_t r = 0; r < sizeof(ranks) / sizeof(ranks[0]); r++) {
            s.l.rank = ranks[r];
            s.select = (struct ops_select){OPS_SELECT_SPARQ, 32, 128, 32, !gqa, false};
            attend(c, &s);
        }
        s.l.rank = OPS_RANK_ONCE;
        s.select = (struct ops_select){OPS_SELECT_TOPV, 0, 128, 0, false, true};
        attend(c, &s);
    }
}

void check_op(struct check *c)
{
    if (c->bench) {
        bench(c);
        return;
    }
    for (int t = 0; t < check_kv_n_types; t++) {
        const struct check_kv_types *kv = &check_kv_types[t];

        /* no selection where K or V are in blocks: such policies are refused (kv/policy/rules.c) */
        if (ops_kv_block_dims(kv->k) > 1 || ops_kv_block_dims(kv->v) > 1) {
            continue;
        }
        for (int rank = OPS_RANK_ONCE; rank <= OPS_RANK_8; rank++) {
            shapes_of_types(c, kv->k, kv->v, (enum ops_rank)rank);
        }
    }
    shapes_of_length(c);
}
