/* SPDX-License-Identifier: Apache-2.0 */
/* attention, and what policies observe. Batches of two decode rows and two prefills with uneven
 * numbers of slots; every pair of types; MHA, GQA, MQA, unequal heads and dims; windows, soft-caps,
 * ALiBi, sinks, rings, slots in any order with empty ones between, rows that see nothing, queries
 * beyond f16's range.
 *
 * The backend against the reference, the reference against softmax in double, and batch invariance:
 * each sequence, and single rows of a prefill, alone, give the bits they gave in company. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/kv_latest.h"
#include "kernels/noise.h"
#include "tests/kernels/check_kv.h"

enum { N_SEQS = 4, MAX_DIM = 256 };

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_AVX512_FP16 | CPU_AMX_BF16 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 512,
    .max_decode = 17,
    .max_seqs = 8,
    .max_cols = 64,
    .max_outputs = 64,
#ifdef CHECK_MANY_HEADS /* scratch of one size where it is of another elsewhere */
    .max_heads = 1024,
    .max_head_dim = 32,
#else
    .max_heads = 32,
    .max_head_dim = MAX_DIM,
#endif
    .max_slots = 8256,
    .observe = true,
};

enum {
    SCATTERED = 1,
    OBSERVE = 2,
    BLIND = 4,
    LARGE = 8,
    UNROTATED = 16,
    HADAMARD = 32,
    SINKS = 64,
    LATEST = 128,
    MIXED = 256 /* the last sequence is observed without noise and temperature */
};

struct shape {
    struct ops_kv_layout l;
    int32_t n_q;
    int32_t n_rows[N_SEQS];  /* the first two are decode rows */
    int32_t n_slots[N_SEQS]; /* those rows' slots included */
    int options;
    int32_t window;
    float softcap;
    float alibi_max;
    struct ops_observe o;
};

struct inputs {
    struct check_kv kv[N_SEQS];
    struct check_buf *q;
    struct check_buf *out;
    struct check_buf *sinks;
    struct ops_weight sink;
    float inv_freq[MAX_DIM / 2];
    int32_t n;
    int32_t ldq;
    int32_t ldo;
};

static int32_t pos0_of(const struct shape *s, int seq)
{
    return s->options & BLIND && seq == 2 ? -1 : s->n_slots[seq] - s->n_rows[seq];
}

static struct ops_observe observe_of(const struct shape *s, int seq)
{
    struct ops_observe o = s->o;

    if (s->options & MIXED && seq == N_SEQS - 1) {
        o.noise = OPS_NOISE_NONE;
        o.tau0 = 1;
        o.tau_step = 0;
    }
    if (seq == 1) {
        o.row_first = s->n_rows[seq]; /* off */
    }
    return o;
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    bool scores = s->options & OBSERVE;

    *in = (struct inputs){0};
    for (int i = 0; i < N_SEQS; i++) {
        in->n += s->n_rows[i];
        check_kv_make(c, &in->kv[i], &s->l, s->n_slots[i] + 70, s->n_slots[i],
                      s->options & SCATTERED, scores);
        in->kv[i].v_hadamard = s->options & HADAMARD && i != 1; /* of one batch, some are not */
        if (s->options & LATEST && i != 1) { /* one's begin amid those that a row would read */
            check_kv_latest(c, &in->kv[i], i == 0 ? 0 : s->n_slots[i] - 20);
        }
        if (s->options & SCATTERED) {
            check_kv_scatter(c, &in->kv[i]);
        }
        if (scores) {
            check_fill(c, in->kv[i].score, 1);
        }
    }
    in->ldq = s->n_q * s->l.k_dim + 16;
    in->ldo = s->n_q * s->l.v_dim + 5;
    in->q = check_buf(c, "q", (size_t)in->n * (size_t)in->ldq * 4);
    in->out = check_buf(c, "out", (size_t)in->n * (size_t)in->ldo * 4);
    check_fill(c, in->q, s->options & LARGE ? 6e4f : 1.5f);
    check_fill(c, in->out, 1);
    in->sinks = check_buf(c, "sinks", (size_t)s->n_q * 4);
    check_fill(c, in->sinks, 4);
    for (int32_t i = 0; i < s->l.k_dim / 2; i++) {
        in->inv_freq[i] = (float)pow(10000, -2.0 * i / s->l.k_dim);
    }
}

/* ---- calling -------------------------------------------------------------------------------- */

static struct ops_rope unrotated_rope(const struct shape *s, const struct inputs *in)
{
    return (struct ops_rope){
        .form = OPS_ROPE_NEOX, .n_dims = s->l.k_dim / 2 * 2, .inv_freq = in->inv_freq, .mscale = 1};
}

static struct ops_attention params(struct check *c, const struct shape *s, struct inputs *in,
                                   struct ops_seq *seqs, struct ops_observe *observe)
{
    int32_t row0 = 0;

    for (int i = 0; i < N_SEQS; i++) {
        seqs[i] = (struct ops_seq){
            .row0 = row0,
            .n_rows = s->n_rows[i],
            .pos0 = pos0_of(s, i),
            .kv = check_kv_of(c, &in->kv[i]),
        };
        observe[i] = observe_of(s, i);
        row0 += s->n_rows[i];
    }
    in->sink = (struct ops_weight){
        .role = OPS_ROLE_VECTOR, .n_rows = 1, .n_cols = s->n_q, .device = check_dev(c, in->sinks)};
    return (struct ops_attention){
        .rows = {in->n, s->n_rows[0] + s->n_rows[1]},
        .q = check_dev(c, in->q),
        .out = check_dev(c, in->out),
        .ldq = in->ldq,
        .ldo = in->ldo,
        .n_q = s->n_q,
        .scale = 1 / sqrtf((float)s->l.k_dim),
        .softcap = s->softcap,
        .alibi_max = s->alibi_max,
        .window = s->window,
        .seqs = seqs,
        .n_seqs = N_SEQS,
        .observe = s->options & OBSERVE ? observe : NULL,
        .sinks = s->options & SINKS ? &in->sink : NULL,
    };
}

static int call(struct check *c, const struct shape *s, struct inputs *in)
{
    struct ops_seq seqs[N_SEQS];
    struct ops_observe observe[N_SEQS];
    struct ops_rope rope = unrotated_rope(s, in);
    struct ops_attention p = params(c, s, in, seqs, observe);

    p.unrotated_rope = s->l.k_unrotated ? &rope : NULL;
    return c->ops->attention(c->be, &p);
}

/* One row of a sequence (or all of them: row < 0) without the others, on the side under test. A
 * decode row comes as a step without drafts would bring it: no slot holds what comes after it. */
static void alone(struct check *c, const struct shape *s, struct inputs *in, int seq, int32_t row)
{
    struct ops_seq seqs[N_SEQS];
    struct ops_observe observe[N_SEQS];
    struct ops_rope rope = unrotated_rope(s, in);
    struct ops_attention p;
    size_t row_bytes = (size_t)in->ldo * 4;
    int32_t first = 0;
    int32_t n = row < 0 ? s->n_rows[seq] : 1;
    float *got = malloc((size_t)n * row_bytes);

    c->side = 1;
    c->be = c->sides[1];
    c->ops = c->be->ops;
    c->warm = true;
    p = params(c, s, in, seqs, observe);
    p.unrotated_rope = s->l.k_unrotated ? &rope : NULL;
    p.observe = NULL; /* the scores were made by the whole batch */
    first = seqs[seq].row0 + (row < 0 ? 0 : row);
    p.q += (size_t)first * (size_t)in->ldq;
    p.rows = (struct ops_rows){n, seq < 2 ? n : 0};
    seqs[seq].pos0 += row < 0 ? 0 : row;
    seqs[seq].n_rows = n;
    seqs[seq].row0 = 0;
    if (row >= 0 && seq < 2 && !(s->options & (SCATTERED | LATEST))) {
        seqs[seq].kv.n_slots = seqs[seq].pos0 + 1;
    }
    p.seqs = &seqs[seq];
    p.n_seqs = 1;
    check_require(c->ops->attention(c->be, &p), "attention");
    check_require(c->ops->read(c->be, got, p.out, (size_t)n * row_bytes), "out");
    for (int32_t i = 0; i < n; i++) {
        check_bits(c, row < 0 ? "a sequence alone" : "a row alone", got + i * in->ldo,
                   in->out->out[1] + (size_t)(first + i) * row_bytes,
                   (size_t)s->n_q * (size_t)s->l.v_dim * 4);
    }
    free(got);
}

/* ---- in double ------------------------------------------------------------------------------ */

struct truth {
    double *logits; /* of one row and head */
    double *score;  /* (n_groups, n_slots) of one sequence */
    float *k;       /* (n_groups, n_slots, k_heads, k_dim) */
    float *v;
};

static int32_t pos_of(const struct check_kv *kv, int32_t group, int32_t slot)
{
    return kv->slot_pos
               ? ((const int32_t *)(const void *)kv->slot_pos->init)[group * kv->cap + slot]
               : slot;
}

static int32_t rank_of(const struct check_kv *kv, int32_t group, int32_t pos)
{
    int32_t rank = 0;

    for (int32_t i = 0; i < kv->n_slots; i++) {
        int32_t other = pos_of(kv, group, i);

        rank += other >= 0 && other < pos;
    }
    return rank;
}

static void rotate(const struct shape *s, const struct inputs *in, const float *k, double pos,
                   double *ret)
{
    int32_t half = s->l.k_dim / 2;

    for (int32_t d = 0; d < s->l.k_dim; d++) {
        ret[d] = (double)k[d];
    }
    for (int32_t i = 0; i < half; i++) {
        double angle = pos * (double)in->inv_freq[i];

        ret[i] = (double)k[i] * cos(angle) - (double)k[i + half] * sin(angle);
        ret[i + half] = (double)k[i] * sin(angle) + (double)k[i + half] * cos(angle);
    }
}

/* K or V of a slot as a row sees it: of the latest positions, decode rows see what entries hold. */
static const float *seen_by(const struct inputs *in, int seq, int32_t row_pos, int32_t group,
                            int32_t slot, int32_t head, bool keys, const float *stored, float *x)
{
    const struct check_kv *kv = &in->kv[seq];
    const struct ops_kv of = {.layout = &kv->layout[0],
                              .latest = kv->latest ? kv->latest->init : NULL,
                              .latest_from = kv->latest_from};
    int32_t pos = pos_of(kv, group, slot);

    if (!of.latest || seq >= 2 || pos <= row_pos - OPS_LATEST || pos > row_pos ||
        pos < of.latest_from ||
        !ops_kv_in_four_bits(keys ? of.layout->k_type : of.layout->v_type)) {
        return stored;
    }
    if (keys) {
        kv_latest_load(kv_latest_k(&of, group, pos, head), x, of.layout->k_dim);
    } else {
        kv_latest_load(kv_latest_v(&of, group, pos, head), x, of.layout->v_dim);
    }
    return x;
}

/* Logits of one row and head; -INFINITY for what it does not see. */
static void true_logits(const struct shape *s, const struct inputs *in, int seq, int32_t row,
                        int32_t first_row, int32_t head, const struct truth *t)
{
    const struct check_kv *kv = &in->kv[seq];
    int32_t group = head / (s->n_q / s->l.n_groups);
    int32_t k_head = head * s->l.n_groups * s->l.k_heads / s->n_q - group * s->l.k_heads;
    int32_t row_pos = pos0_of(s, seq) + row;
    int32_t last = pos0_of(s, seq) + s->n_rows[seq] - 1;
    int32_t offset = s->l.k_unrotated ? last - rank_of(kv, group, last) : 0;
    const float *q = (const float *)(const void *)in->q->init +
                     (size_t)(first_row + row) * (size_t)in->ldq +
                     (size_t)head * (size_t)s->l.k_dim;

    for (int32_t i = 0; i < kv->n_slots; i++) {
        const float *k =
            t->k + (size_t)((group * kv->n_slots + i) * s->l.k_heads + k_head) * (size_t)s->l.k_dim;
        int32_t pos = pos_of(kv, group, i);
        int32_t angle = s->l.k_unrotated ? rank_of(kv, group, pos) + offset : pos;
        double rotated[MAX_DIM];
        float latest[MAX_DIM];
        double x = 0;

        k = seen_by(in, seq, row_pos, group, i, k_head, true, k, latest);
        rotate(s, in, k, s->l.k_unrotated ? angle : 0, rotated);
        for (int32_t d = 0; d < s->l.k_dim; d++) {
            x += (double)q[d] * rotated[d];
        }
        x /= sqrt(s->l.k_dim);
        if (s->alibi_max > 0) {
            x -= exp2(-(double)s->alibi_max * (head + 1) / s->n_q) * (row_pos - angle);
        }
        x = s->softcap > 0 ? (double)s->softcap * tanh(x / (double)s->softcap) : x;
        t->logits[i] =
            pos >= 0 && pos <= row_pos && (!s->window || pos > row_pos - s->window) ? x : -INFINITY;
    }
}

static double softmax_sum(const double *x, int32_t n, double *ret_max)
{
    double sum = 0;

    *ret_max = -INFINITY;
    for (int32_t i = 0; i < n; i++) {
        *ret_max = fmax(*ret_max, x[i]);
    }
    for (int32_t i = 0; i<n && * ret_max> - INFINITY; i++) {
        sum += exp(x[i] - *ret_max);
    }
    return sum;
}

/* Dim d of the transform of n dims, from its definition. */
static double hadamard_in_double(const double *x, int32_t n, int32_t d)
{
    int32_t block = n & -n;
    double sum = 0;

    for (int32_t i = 0; i < block; i++) {
        double term = x[d / block * block + i];

        sum += __builtin_popcount((unsigned)(i & d % block)) % 2 ? -term : term;
    }
    return sum / sqrt(block);
}

static void true_row(const struct shape *s, const struct inputs *in, int seq, int32_t row,
                     int32_t head, const struct truth *t, float *out)
{
    const struct check_kv *kv = &in->kv[seq];
    int32_t group = head / (s->n_q / s->l.n_groups);
    int32_t v_head = head * s->l.n_groups * s->l.v_heads / s->n_q - group * s->l.v_heads;
    double sum[MAX_DIM] = {0};
    double max;
    double total = softmax_sum(t->logits, kv->n_slots, &max);

    if (s->options & SINKS && total > 0) {
        total += exp((double)((const float *)(const void *)in->sinks->init)[head] - max);
    }
    for (int32_t i = 0; i < kv->n_slots && total > 0; i++) {
        const float *v =
            t->v + (size_t)((group * kv->n_slots + i) * s->l.v_heads + v_head) * (size_t)s->l.v_dim;
        double p = exp(t->logits[i] - max) / total;
        float latest[MAX_DIM];

        v = seen_by(in, seq, pos0_of(s, seq) + row, group, i, v_head, false, v, latest);
        for (int32_t d = 0; d < s->l.v_dim; d++) {
            sum[d] += p * (double)v[d];
        }
    }
    for (int32_t d = 0; d < s->l.v_dim; d++) {
        out[d] = (float)(kv->v_hadamard ? hadamard_in_double(sum, s->l.v_dim, d) : sum[d]);
    }
}

static void true_scores(const struct shape *s, const struct inputs *in, int seq, int32_t row,
                        int32_t head, const struct truth *t)
{
    const struct check_kv *kv = &in->kv[seq];
    int32_t group = head / (s->n_q / s->l.n_groups);
    const struct ops_observe o = observe_of(s, seq);
    double tau = (double)o.tau0 + row * (double)o.tau_step;
    double weight = (double)o.row_weight0 * pow((double)o.row_growth, row - o.row_first);
    double max;
    double total;

    for (int32_t i = 0; i < kv->n_slots; i++) {
        uint32_t row_pos = (uint32_t)(pos0_of(s, seq) + row);

        t->logits[i] = t->logits[i] == -INFINITY
                           ? -INFINITY
                           : (t->logits[i] + (double)noise_draw(&o, (uint32_t)head, row_pos,
                                                                (uint32_t)pos_of(kv, group, i))) /
                                 tau;
    }
    total = softmax_sum(t->logits, kv->n_slots, &max);
    for (int32_t i = 0; i < kv->n_slots && total > 0; i++) {
        t->score[group * kv->n_slots + i] += weight * exp(t->logits[i] - max) / total;
    }
}

static void decode_all(const struct shape *s, const struct check_kv *kv, struct truth *t)
{
    for (int32_t i = 0; i < s->l.n_groups * kv->n_slots; i++) {
        for (int32_t h = 0; h < s->l.k_heads; h++) {
            check_kv_decode_k(kv, kv->content, i / kv->n_slots, i % kv->n_slots, h,
                              t->k + (size_t)(i * s->l.k_heads + h) * (size_t)s->l.k_dim);
        }
        for (int32_t h = 0; h < s->l.v_heads; h++) {
            check_kv_decode_v(kv, kv->content, i / kv->n_slots, i % kv->n_slots, h,
                              t->v + (size_t)(i * s->l.v_heads + h) * (size_t)s->l.v_dim);
        }
    }
}

/* The reference's scores of one sequence. The damping acts on what was there before. */
static void compare_scores(struct check *c, const struct shape *s, const struct inputs *in, int seq,
                           const struct truth *t)
{
    const struct check_kv *kv = &in->kv[seq];
    const float *before = (const float *)(const void *)kv->score->init;
    const float *after = (const float *)(const void *)kv->score->out[0];
    int32_t seen =
        s->n_rows[seq] > s->o.row_first && seq != 1 ? s->n_rows[seq] - s->o.row_first : 0;
    float *want = malloc((size_t)s->l.n_groups * (size_t)kv->cap * 4);

    memcpy(want, before, (size_t)s->l.n_groups * (size_t)kv->cap * 4);
    for (int32_t i = 0; i < s->l.n_groups * kv->n_slots && seen > 0; i++) {
        int32_t at = i / kv->n_slots * kv->cap + i % kv->n_slots;

        want[at] = (float)((double)before[at] * pow((double)s->o.damp, seen) + t->score[i]);
    }
    check_rows(c, "reference's scores against double", after, want, s->l.n_groups, kv->cap, kv->cap,
               &tol_score);
    free(want);
}

static void against_double(struct check *c, const struct shape *s, const struct inputs *in)
{
    float *want = calloc(in->out->bytes, 1);
    int32_t row0 = 0;

    for (int seq = 0; seq < N_SEQS; row0 += s->n_rows[seq++]) {
        const struct check_kv *kv = &in->kv[seq];
        size_t n = (size_t)s->l.n_groups * (size_t)kv->n_slots;
        struct truth t = {.logits = calloc((size_t)kv->n_slots + 1, sizeof(double)),
                          .score = calloc(n, sizeof(double)),
                          .k = malloc(n * (size_t)(s->l.k_heads * s->l.k_dim) * 4),
                          .v = malloc(n * (size_t)(s->l.v_heads * s->l.v_dim) * 4)};

        decode_all(s, kv, &t);
        for (int32_t row = 0; row < s->n_rows[seq]; row++) {
            for (int32_t head = 0; head < s->n_q; head++) {
                true_logits(s, in, seq, row, row0, head, &t);
                true_row(s, in, seq, row, head, &t,
                         want + (size_t)(row0 + row) * (size_t)in->ldo + head * s->l.v_dim);
                if (s->options & OBSERVE && seq != 1 && row >= s->o.row_first) {
                    true_scores(s, in, seq, row, head, &t);
                }
            }
        }
        if (s->options & OBSERVE) {
            compare_scores(c, s, in, seq, &t);
        }
        free(t.logits);
        free(t.score);
        free(t.k);
        free(t.v);
    }
    check_rows(c, "reference against double", (const void *)in->out->out[0], want, in->n, in->ldo,
               s->n_q * s->l.v_dim, &tol_attention_double);
    free(want);
}

/* ---- cases ---------------------------------------------------------------------------------- */

/* GGUF's blocks go by f32. */
static bool type_has_tiles(enum ops_kv_type type)
{
    return type != OPS_KV_F32 && type != OPS_KV_Q8_0 && type != OPS_KV_Q4_0;
}

/* Do prefill rows go as tiles of 16 bits? */
static bool is_tiled(const struct check *c, const struct shape *s)
{
    if (check_has_mma(c)) {
        return s->l.k_type != OPS_KV_F32 && s->l.v_type != OPS_KV_F32;
    }
    return check_has_tiles(c) && s->softcap == 0 && s->alibi_max == 0 &&
           !(s->options & UNROTATED) && type_has_tiles(s->l.k_type) && type_has_tiles(s->l.v_type);
}

static void compare(struct check *c, const struct shape *s, struct inputs *in)
{
    const int32_t cols = s->n_q * s->l.v_dim;
    const int32_t n_decode = s->n_rows[0] + s->n_rows[1];
    const size_t prefill = (size_t)n_decode * (size_t)in->ldo;
    const bool large = s->options & LARGE;
    const bool tiles = is_tiled(c, s);
    const struct tolerance *exact = large ? &tol_attention_large : &tol_attention;
    const struct tolerance *rough = large ? &tol_attention_bf16_large : &tol_attention_bf16;
    const bool fp8 = s->l.k_type == OPS_KV_FP8 || s->l.v_type == OPS_KV_FP8;
    const bool half = fp8 && check_has_half(c);
    const struct tolerance *decode =
        large                                          ? half ? &tol_attention_half_large : exact
        : half                                         ? &tol_attention_half
        : s->l.v_type == OPS_KV_G4 && check_has_mma(c) ? &tol_attention_levels
        : check_has_int_keys(c, s->l.k_type) || check_has_int_values(c, s->l.v_type)
            ? &tol_attention_15
        : fp8 && check_has_flush(c) ? &tol_attention_flush
                                    : exact;
    const float *got = (const void *)in->out->out[1];
    const float *want = (const void *)in->out->out[0];

    check_floats(c, in->out, in->n, in->ldo, cols, tiles ? rough : decode);
    check_rows(c, "decode rows", got, want, n_decode, in->ldo, cols, decode);
    check_rows(c, "prefill rows", got + prefill, want + prefill, in->n - n_decode, in->ldo, cols,
               tiles ? rough : exact);
    for (int i = 0; i < N_SEQS && s->options & OBSERVE; i++) {
        struct check_buf *score = in->kv[i].score;

        check_rows(c, "scores", (const void *)score->out[1], (const void *)score->out[0],
                   s->l.n_groups, in->kv[i].cap, in->kv[i].cap,
                   tiles && i >= 2            ? rough
                   : large                    ? i < 2 ? decode : exact
                   : i < 2 && decode != exact ? &tol_score_half
                                              : &tol_score);
    }
    if (c->first &&
        !(s->options & LARGE)) { /* near-ties of such logits: f32 decides them otherwise */
        against_double(c, s, in);
    }
    for (int seq = 0; seq < N_SEQS; seq++) {
        alone(c, s, in, seq, -1);
        if (!s->l.k_unrotated) { /* there the rows' last position matters */
            alone(c, s, in, seq, s->n_rows[seq] / 2);
            alone(c, s, in, seq, s->n_rows[seq] - 1);
        }
    }
}

/* What has to be read: every slot's K and V once per decode row, once per prefill. */
static uint64_t bytes_moved(const struct shape *s)
{
    uint64_t bytes = 0;

    for (int i = 0; i < N_SEQS; i++) {
        bytes += (uint64_t)s->n_slots[i] * (uint64_t)s->l.n_groups * ops_kv_slot_bytes(&s->l);
    }
    return bytes;
}

static void one(struct check *c, const struct shape *s)
{
    struct inputs in;
    struct ops_kv_layout l = s->l;

    if (s->n_q > check_limits.max_heads || l.k_dim > check_limits.max_head_dim ||
        l.v_dim > check_limits.max_head_dim) {
        return; /* another build's: CHECK_MANY_HEADS */
    }
    if (!check_kv_offered(c, &l) ||
        !check_case(c,
                    "%s/%s %dx(%dx%d,%dx%d) q %d rows %d,%d slots %d..%d win %d cap %g alibi %g "
                    "noise %d opt %d",
                    ops_kv_type_name(l.k_type), ops_kv_type_name(l.v_type), l.n_groups, l.k_heads,
                    l.k_dim, l.v_heads, l.v_dim, s->n_q, s->n_rows[2], s->n_rows[3], s->n_slots[0],
                    s->n_slots[3], s->window, (double)s->softcap, (double)s->alibi_max,
                    (int)s->o.noise, s->options)) {
        return;
    }
    prepare(c, s, &in);
    c->bench_bytes = bytes_moved(s);
    while (check_call(c)) {
        c->err = call(c, s, &in);
    }
    if (!c->bench) {
        compare(c, s, &in);
    }
    for (int i = 0; i < N_SEQS; i++) {
        check_kv_free(&in.kv[i]);
    }
}

/* All shapes with three types; the others differ from them in the conversion only. */
static void shapes_of_types(struct check *c, enum ops_kv_type k, enum ops_kv_type v)
{
    bool all = !c->few && k == v && (k == OPS_KV_F32 || k == OPS_KV_F16 || k == OPS_KV_FP8);
    struct ops_kv_layout gqa = {3, 1, 1, 64, 64, k, v, false, 0};
    struct ops_kv_layout mqa = {1, 1, 1, 128, 128, k, v, false, 0};
    struct ops_kv_layout heads = {1, 1, 1, 32, 32, k, v, false, 0};
    struct ops_kv_layout eight = {8, 1, 1, 32, 32, k, v, false, 0};
    struct ops_kv_layout sixteen = {4, 4, 4, 32, 32, k, v, false, 0};
    struct ops_kv_layout uneven = {2, 1, 4, 64, 32, k, v, false, 0};
    struct ops_kv_layout odd = {2, 2, 1, 20, 36, k, v, false, 0};
    struct ops_kv_layout wide = {1, 1, 1, 256, 80, k, v, false, 0};
    struct ops_kv_layout broad = {1, 2, 2, 256, 208, k, v, false, 0};
    struct ops_kv_layout tall = {1, 1, 1, 160, 80, k, v, false, 0};
    struct ops_kv_layout shared = {1, 1, 1, 96, 80, k, v, false, 0};
    struct ops_kv_layout store = {1, 1, 1, 128, 256, k, v, false, 0}; /* the wide overlays' */
    struct ops_kv_layout unrotated = {2, 1, 1, 32, 32, k, v, true, 0};
    struct ops_observe h2o = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1};
    struct ops_observe warm = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1.7f};
    struct ops_observe cold = {.noise = OPS_NOISE_GUMBEL,
                               .row_first = 3,
                               .row_weight0 = 1,
                               .row_growth = 1,
                               .damp = 1,
                               .tau0 = 0.05f};
    struct ops_observe recency = {
        .row_first = 3, .row_weight0 = 0.3f, .row_growth = 1.05f, .damp = 0.95f, .tau0 = 1};
    struct ops_observe gumbel = {.noise = OPS_NOISE_GUMBEL,
                                 .seed = 77,
                                 .layer = 5,
                                 .row_weight0 = 1,
                                 .row_growth = 1,
                                 .damp = 1,
                                 .tau0 = 1};
    struct ops_observe annealed = {.noise = OPS_NOISE_GUMBEL,
                                   .noise_once = true,
                                   .row_weight0 = 1,
                                   .row_growth = 1,
                                   .damp = 1,
                                   .tau0 = 1.2f,
                                   .tau_step = 0.01f};
    struct ops_observe gauss = {.noise = OPS_NOISE_GAUSS,
                                .seed = 1ull << 40,
                                .row_weight0 = 1,
                                .row_growth = 1,
                                .damp = 1,
                                .tau0 = 2};
    struct ops_observe constant = {
        .noise = OPS_NOISE_CONST, .row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1.5f};
    const struct shape shapes[] = {
        {gqa, 9, {1, 1, 37, 1}, {1, 70, 37, 200}, 0, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 33, 5}, {700, 1300, 150, 64}, 0, 0, 0, 0, h2o},
        {mqa, 8, {1, 1, 9, 3}, {64, 65, 63, 130}, 0, 0, 0, 0, h2o},
        {uneven, 16, {1, 1, 20, 3}, {129, 5, 20, 400}, 0, 0, 0, 0, h2o},
        {odd, 8, {1, 1, 20, 3}, {129, 5, 20, 300}, 0, 0, 0, 0, h2o},
        {wide, 5, {1, 1, 7, 2}, {90, 5, 20, 80}, 0, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 20, 2}, {333, 70, 120, 200}, SCATTERED, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 20, 2}, {333, 70, 120, 200}, SCATTERED, 50, 0, 0, h2o},
        {gqa, 9, {1, 1, 40, 2}, {333, 229, 260, 200}, 0, 100, 20, 0, h2o}, /* ends at a page's */
        {gqa, 9, {1, 1, 40, 2}, {333, 70, 120, 200}, 0, 33, 0, 0, h2o},
        {mqa, 8, {1, 1, 20, 2}, {333, 70, 120, 200}, SCATTERED, 0, 0, 8, h2o},
        {gqa, 9, {1, 1, 3, 2}, {333, 70, 120, 200}, BLIND, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 40, 2}, {333, 70, 120, 200}, LARGE, 0, 0, 0, h2o},
        {unrotated, 4, {1, 1, 20, 2}, {150, 70, 60, 90}, SCATTERED, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 40, 5}, {333, 70, 120, 600}, OBSERVE, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 40, 5}, {333, 70, 120, 600}, OBSERVE | SCATTERED, 0, 0, 0, recency},
        {gqa, 9, {1, 1, 150, 5}, {333, 70, 170, 600}, OBSERVE, 0, 0, 0, recency}, /* blocks */
        {gqa, 9, {1, 1, 150, 5}, {333, 70, 170, 600}, OBSERVE, 0, 0, 0, gumbel},
        {gqa, 9, {2, 1, 150, 70}, {333, 70, 350, 400}, OBSERVE | MIXED, 0, 0, 0, gumbel},
        {gqa, 9, {2, 1, 200, 5}, {333, 70, 300, 600}, OBSERVE, 40, 0, 0, h2o},
        {gqa, 9, {2, 1, 70, 5}, {333, 70, 300, 600}, OBSERVE | BLIND, 0, 0, 0, h2o},
        {mqa, 8, {1, 1, 70, 5}, {333, 70, 300, 600}, OBSERVE | LARGE, 0, 0, 0, h2o},
        {odd, 8, {2, 1, 90, 3}, {129, 5, 100, 300}, OBSERVE | SCATTERED, 0, 0, 0, h2o},
        {wide, 5, {1, 1, 70, 2}, {90, 5, 80, 150}, OBSERVE, 0, 0, 0, recency},
        {tall, 5, {2, 1, 70, 2}, {90, 5, 180, 150}, OBSERVE, 0, 0, 0, h2o},
        {gqa, 9, {2, 1, 33, 5}, {333, 70, 161, 65}, OBSERVE, 0, 0, 0, h2o}, /* end a warp's slots */
        {gqa, 9, {1, 1, 33, 5}, {333, 70, 160, 65}, OBSERVE, 0, 0, 0, warm},
        {gqa, 9, {2, 1, 70, 5}, {333, 70, 160, 65}, OBSERVE, 0, 0, 0, cold},
        {mqa, 8, {1, 1, 90, 5}, {333, 70, 170, 600}, OBSERVE | SCATTERED, 0, 0, 0, annealed},
        {uneven, 16, {1, 1, 40, 5}, {333, 70, 120, 200}, OBSERVE | SCATTERED, 0, 0, 0, annealed},
        {odd, 8, {1, 1, 40, 5}, {333, 70, 120, 200}, OBSERVE, 0, 0, 0, gauss},
        {gqa, 9, {1, 1, 40, 5}, {333, 70, 120, 200}, OBSERVE | SCATTERED, 64, 30, 0, gauss},
        {gqa, 9, {1, 1, 40, 5}, {333, 70, 120, 200}, OBSERVE | BLIND, 0, 0, 0, constant},
        {gqa, 9, {1, 1, 40, 5}, {333, 70, 120, 200}, OBSERVE | LARGE, 0, 0, 0, gumbel},
        {unrotated, 4, {1, 1, 20, 2}, {150, 70, 60, 90}, OBSERVE | SCATTERED, 0, 0, 0, gumbel},
        /* several decode rows of one sequence: drafts */
        {gqa, 9, {5, 2, 20, 2}, {333, 70, 60, 90}, 0, 40, 0, 0, h2o},
        {gqa, 9, {5, 1, 20, 2}, {333, 70, 60, 90}, OBSERVE | SCATTERED, 0, 0, 0, recency},
        /* the third row alone has slots for a whole number of chunks, its drafts begin another */
        {sixteen, 16, {5, 1, 3, 2}, {1026, 70, 20, 80}, 0, 0, 0, 0, h2o},
        {eight, 8, {5, 1, 3, 2}, {2050, 70, 20, 80}, 0, 0, 0, 0, h2o},
        {mqa, 2, {5, 1, 3, 2}, {4098, 70, 20, 80}, 0, 0, 0, 0, h2o},
        {mqa, 8, {3, 1, 20, 2}, {333, 70, 60, 90}, OBSERVE, 0, 0, 0, annealed},
        {gqa, 9, {2, 1, 40, 5}, {333, 70, 60, 90}, HADAMARD, 0, 0, 0, h2o},
        {gqa, 9, {2, 1, 40, 5}, {333, 70, 120, 600}, SINKS, 50, 0, 0, h2o},
        {mqa, 8, {1, 1, 70, 5}, {700, 70, 120, 200}, SINKS | OBSERVE | SCATTERED, 0, 0, 0, h2o},
        {gqa, 9, {1, 1, 3, 2}, {333, 70, 120, 200}, SINKS | BLIND, 0, 20, 0, h2o},
        {odd, 8, {2, 1, 20, 3}, {129, 5, 20, 300}, HADAMARD | OBSERVE | SCATTERED, 0, 0, 0, h2o},
        {gqa, 9, {5, 2, 40, 5}, {333, 70, 60, 90}, LATEST | HADAMARD, 0, 0, 0, h2o},
        {uneven, 16, {2, 1, 20, 3}, {129, 5, 20, 300}, LATEST | OBSERVE | SCATTERED, 64, 0, 0, h2o},
        {mqa, 8, {16, 1, 9, 3}, {64, 65, 63, 130}, LATEST, 0, 0, 0, h2o},
        {broad, 6, {2, 1, 3, 2}, {700, 17, 20, 80}, 0, 0, 0, 0, h2o},
        {broad, 2, {2, 1, 3, 2}, {400, 64, 20, 80}, OBSERVE | SCATTERED, 0, 0, 0, h2o},
        {shared, 20, {2, 1, 3, 2}, {500, 129, 20, 80}, 0, 0, 0, 0, h2o}, /* 8 + 8 + 4 heads */
        {shared, 16, {2, 1, 3, 2}, {500, 129, 20, 80}, OBSERVE, 150, 0, 8, gumbel},
        {store, 9, {2, 1, 70, 5}, {700, 70, 300, 600}, 0, 0, 0, 0, h2o},
        {store, 9, {2, 1, 70, 5}, {333, 70, 120, 600}, OBSERVE | SCATTERED, 0, 0, 0, recency},
        {mqa, 4, {2, 1, 3, 2}, {8100, 4097, 20, 80}, 0, 0, 0, 0, h2o}, /* many chunks */
        {heads, 1024, {2, 1, 9, 3}, {64, 65, 63, 130}, LATEST, 50, 0, 0, h2o},
        {heads, 1024, {2, 1, 9, 3}, {64, 65, 63, 130}, OBSERVE, 50, 0, 0, h2o},
    };

    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        if (shapes[i].options & LATEST ? ops_kv_latest_bytes(&shapes[i].l) > 0
                                       : all || i % 4 == 1 || shapes[i].n_rows[0] > 1) {
            one(c, &shapes[i]);
        }
    }
}

static void bench(struct check *c)
{
    static const struct check_kv_types types[] = {
        {OPS_KV_F16, OPS_KV_F16},   {OPS_KV_FP8, OPS_KV_FP8}, {OPS_KV_I8, OPS_KV_FP8},
        {OPS_KV_I8, OPS_KV_G4},     {OPS_KV_G4, OPS_KV_G4},   {OPS_KV_Q4_0, OPS_KV_Q4_0},
        {OPS_KV_BF16, OPS_KV_BF16}, {OPS_KV_F32, OPS_KV_F32}};
    static const int32_t depths[] = {512, 2048, 7936};
    struct ops_observe h2o = {.row_weight0 = 1, .row_growth = 1, .damp = 1, .tau0 = 1};
    struct ops_observe gumbel = h2o;

    gumbel.noise = OPS_NOISE_GUMBEL;
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        struct ops_kv_layout l = {3, 1, 1, 64, 64, types[t].k, types[t].v, false, 0};

        for (size_t d = 0; d < sizeof(depths) / sizeof(depths[0]); d++) {
            int32_t n = depths[d];
            struct shape s = {l, 9, {1, 0, 0, 0}, {n, 0, 0, 0}, 0, 0, 0, 0, h2o};

            one(c, &s);
            s.options = OBSERVE;
            one(c, &s);
            s.o = gumbel;
            one(c, &s);
            s = (struct shape){l, 9, {0, 0, 0, 512}, {0, 0, 0, n}, 0, 0, 0, 0, h2o};
            one(c, &s);
            s.options = OBSERVE;
            one(c, &s);
            s.o = gumbel;
            one(c, &s);
        }
    }
}

void check_op(struct check *c)
{
    if (c->bench) {
        bench(c);
        return;
    }
    for (int t = 0; t < check_kv_n_types; t++) {
        shapes_of_types(c, check_kv_types[t].k, check_kv_types[t].v);
    }
}
