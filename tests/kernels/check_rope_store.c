/* SPDX-License-Identifier: Apache-2.0 */
/* rope_store: queries against the reference, and what lies in the cache afterwards: rows written in
 * their types, every other slot untouched, slot_pos and score set. Both RoPE forms, partial
 * rotation, per-head norms, centers, Hadamard transforms, errors carried on, rings (also shorter
 * than the rows), victims, K stored unrotated, only q or only K and V, several sequences. The
 * reference is checked against rotation in double. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/kv_latest.h"
#include "tests/kernels/check_kv.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 512,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 1024,
    .max_outputs = 64,
    .max_heads = 16,
    .max_head_dim = 512,
    .max_slots = 1024,
};

enum { N_SEQS = 3, MAX_ROWS = 512 };

enum {
    NORM = 1,
    UNROTATED = 2,
    RING = 4,
    VICTIM = 8,
    NO_Q = 16,
    NO_KV = 32,
    POSITIONS = 64,
    ALIKE = 128,
    CENTERED = 256,
    HADAMARD = 512,
    CARRY = 1024 /* keys as they come, so that no arithmetic before it differs */
};

struct shape {
    struct ops_kv_layout l;
    int32_t n_q;
    enum ops_rope_form form;
    int32_t n_dims;
    int32_t n_rows[N_SEQS];
    int32_t pos0[N_SEQS];
    int options;
};

struct inputs {
    struct check_kv kv[N_SEQS];
    struct check_buf *q;
    struct check_buf *k;
    struct check_buf *v;
    struct check_buf *victim;
    struct check_weight q_norm;
    struct check_weight k_norm;
    float inv_freq[128];
    int32_t n;
    int32_t ldq;
    int32_t ldk;
    int32_t ldv;
};

enum { CAP = 256, RING_SLOTS = 24 };

static int32_t slot_of(const struct shape *s, int32_t seq, int32_t i)
{
    if (s->options & VICTIM) {
        return 17 + 5 * seq; /* what prepare() wrote, group by group one further */
    }
    return s->options & RING ? (s->pos0[seq] + i) % RING_SLOTS : 3 + i;
}

/* Rows 13, 14, 15 of 16: V with ties of every type's rounding and tiny numbers, with zeros, and
 * beyond what 8 and 16 bits hold. */
static void build_worst_rows(const struct inputs *in)
{
    static const float ties[] = {1 + 0x1p-8f, 1 + 0x3p-8f, 1 + 0x1p-11f, -1 - 0x3p-11f,
                                 0,           -0.0f,       1e-30f,       1.75f,
                                 -1.75f,      0x1.1p0f,    -0x1.3p-5f,   0x1p-14f,
                                 0x1.8p-16f,  0x1p-17f,    1.5f / 127,   -0x1.8p-17f};

    for (int32_t row = 0; row < in->n; row++) {
        float *v = (float *)(void *)in->v->init + (size_t)row * (size_t)in->ldv;

        for (int32_t d = 0; d < in->ldv && row % 16 >= 13; d++) {
            v[d] = row % 16 == 13   ? ties[(d * 7 + d / 16) % 16]
                   : row % 16 == 14 ? 0
                   : v[d] > 0       ? 3.4e38f
                                    : -3.4e38f;
        }
    }
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    const struct ops_kv_layout *l = &s->l;

    *in = (struct inputs){0};
    for (int i = 0; i < N_SEQS; i++) {
        in->n += s->n_rows[i];
        check_kv_make(c, &in->kv[i], l, CAP, CAP, s->options & POSITIONS, s->options & POSITIONS);
        if (in->kv[i].score) {
            check_fill(c, in->kv[i].score, 1);
        }
        if (s->options & CENTERED && i != 1) { /* of one batch, some are and some are not */
            in->kv[i].center = check_buf(
                c, "center", (size_t)(l->n_groups * l->k_heads) * (size_t)l->k_dim * sizeof(float));
            check_fill(c, in->kv[i].center, 7);
        }
        in->kv[i].k_hadamard = s->options & HADAMARD && i != 0;
        in->kv[i].v_hadamard = in->kv[i].k_hadamard;
        check_kv_latest(c, &in->kv[i], 0);
        if (s->options & CARRY && i != 1) { /* of one batch, some have it and some have not */
            check_kv_carry(c, &in->kv[i]);
        }
        if (in->kv[i].k_hadamard && i == 1) { /* without a center */
            check_kv_balance(c, &in->kv[i]);
        }
    }
    in->ldq = s->n_q * l->k_dim + 3;
    in->ldk = l->n_groups * l->k_heads * l->k_dim + 1;
    in->ldv = l->n_groups * l->v_heads * l->v_dim + 2;
    in->q = check_buf(c, "q", (size_t)in->n * (size_t)in->ldq * 4);
    in->k = check_buf(c, "k", (size_t)in->n * (size_t)in->ldk * 4);
    in->v = check_buf(c, "v", (size_t)in->n * (size_t)in->ldv * 4);
    in->victim = check_buf(c, "victim", (size_t)N_SEQS * (size_t)l->n_groups * 4);
    for (int32_t i = 0; i < N_SEQS * l->n_groups; i++) {
        ((int32_t *)(void *)in->victim->init)[i] = 17 + 5 * (i / l->n_groups) + i % l->n_groups;
    }
    check_fill(c, in->q, 2);
    check_fill(c, in->k, 2);
    check_fill(c, in->v, 2);
    if (!(s->options & HADAMARD)) { /* sums of 3e38 are infinite */
        build_worst_rows(in);
    }
    for (int32_t row = 1; row < in->n && s->options & ALIKE; row++) {
        memcpy(in->q->init + (size_t)row * (size_t)in->ldq * 4, in->q->init, (size_t)in->ldq * 4);
    }
    check_weight_make(c, &in->q_norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, l->k_dim, 1);
    check_weight_make(c, &in->k_norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, l->k_dim, 1);
    for (int32_t i = 0; i < s->n_dims / 2; i++) {
        in->inv_freq[i] = (float)pow(10000, -2.0 * i / s->n_dims);
    }
}

static struct ops_rope rope_of(const struct shape *s, const struct inputs *in)
{
    return (struct ops_rope){
        .form = s->form, .n_dims = s->n_dims, .inv_freq = in->inv_freq, .mscale = 1.1f};
}

static int call(struct check *c, const struct shape *s, struct inputs *in)
{
    struct ops_seq seqs[N_SEQS] = {0};
    int32_t row0 = 0;
    bool kv = !(s->options & NO_KV);
    struct ops_rope_store p = {
        .rows = {in->n, 2},
        .q = check_dev(c, in->q),
        .k = kv ? check_dev(c, in->k) : NULL,
        .v = kv ? check_dev(c, in->v) : NULL,
        .ldq = in->ldq,
        .ldk = in->ldk,
        .ldv = in->ldv,
        .n_q = s->options & NO_Q ? 0 : s->n_q,
        .n_k = kv ? s->l.n_groups * s->l.k_heads : 0,
        .n_v = kv ? s->l.n_groups * s->l.v_heads : 0,
        .k_dim = s->l.k_dim,
        .rope = rope_of(s, in),
        .seqs = seqs,
        .n_seqs = N_SEQS,
    };

    if (s->options & NORM) {
        p.q_norm = (struct ops_norm){.w = &in->q_norm.w[c->side], .eps = 1e-6f};
        p.k_norm = (struct ops_norm){.w = &in->k_norm.w[c->side], .eps = 1e-6f};
    }
    for (int i = 0; i < N_SEQS; i++) {
        seqs[i] = (struct ops_seq){
            .row0 = row0,
            .n_rows = s->n_rows[i],
            .pos0 = s->pos0[i],
            .slot0 = slot_of(s, i, 0),
            .ring = s->options & RING ? RING_SLOTS : 0,
            .kv = check_kv_of(c, &in->kv[i]),
        };
        if (s->options & VICTIM) {
            seqs[i].victim = (const int32_t *)check_dev(c, in->victim) + i * s->l.n_groups;
        }
        row0 += s->n_rows[i];
    }
    return c->ops->rope_store(c->be, &p);
}

/* kernels/hadamard.h by its definition: H[i][j] is -1 where i and j share an odd number of bits. */
static void turn_in_double(float *x, int32_t n)
{
    const int32_t block = n & -n;
    double y[512];

    for (int32_t i = 0; i < n; i++) {
        y[i] = 0;
        for (int32_t j = 0; j < block; j++) {
            double v = (double)x[i / block * block + j];

            y[i] += __builtin_parity((unsigned)(i % block & j)) ? -v : v;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = (float)(y[i] / sqrt((double)block));
    }
}

/* One head in double: norm, then rotation at pos (or none). */
static void head_in_double(const struct shape *s, const struct inputs *in, const float *x,
                           const float *w, int32_t pos, bool rotate, float *ret)
{
    struct ops_rope rope = rope_of(s, in);
    double y[256];
    double square = 0;

    for (int32_t d = 0; d < s->l.k_dim; d++) {
        square += (double)x[d] * (double)x[d] / s->l.k_dim;
    }
    for (int32_t d = 0; d < s->l.k_dim; d++) {
        y[d] = s->options & NORM ? x[d] / sqrt(square + 1e-6) * (double)w[d] : (double)x[d];
    }
    for (int32_t i = 0; i < s->n_dims / 2 && rotate && s->form != OPS_ROPE_NONE; i++) {
        int32_t a = s->form == OPS_ROPE_NORM ? 2 * i : i;
        int32_t b = s->form == OPS_ROPE_NORM ? 2 * i + 1 : i + s->n_dims / 2;
        double angle = (double)pos * (double)rope.inv_freq[i];
        double x0 = y[a];
        double x1 = y[b];

        y[a] = (x0 * cos(angle) - x1 * sin(angle)) * (double)rope.mscale;
        y[b] = (x0 * sin(angle) + x1 * cos(angle)) * (double)rope.mscale;
    }
    for (int32_t d = 0; d < s->l.k_dim; d++) {
        ret[d] = (float)y[d];
    }
}

static const struct tolerance *store_tolerance(enum ops_kv_type type)
{
    switch (type) {
    case OPS_KV_F16:
        return &tol_store_f16;
    case OPS_KV_BF16:
        return &tol_store_bf16;
    case OPS_KV_Q4_0:
    case OPS_KV_G4:
        return &tol_store_q4_0;
    case OPS_KV_FP8:
        return &tol_store_fp8;
    default:
        return &tol_rope;
    }
}

/* Values in int8 with an f16 scale: each is off by half a step and 127 times the scale's rounding
 * (2^-11 of it), whatever the head's largest value is beside the others. */
static void check_steps(struct check *c, const char *what, const float *got, const float *want,
                        int32_t n, int32_t block)
{
    for (int32_t i = 0; i < n; i++) {
        float most = 0;

        for (int32_t j = i / block * block; j < n && j < (i / block + 1) * block; j++) {
            most = fmaxf(most, fabsf(want[j]));
        }
        if (!(fabsf(got[i] - want[i]) <= most / 127 * (0.5f + 127 * 0x1p-11f + 0.01f))) {
            check_fail(c, "%s[%d] is %g, wanted %g within a step of %g / 127", what, i,
                       (double)got[i], (double)want[i], (double)most);
            return;
        }
    }
    c->n_passed++;
}

static void check_stored(struct check *c, const char *what, const float *got, const float *want,
                         int32_t n, enum ops_kv_type type)
{
    if (c->bench) {
        return; /* the operation has run many times */
    }
    if (type == OPS_KV_I8 || type == OPS_KV_Q8_0) {
        check_steps(c, what, got, want, n, type == OPS_KV_I8 ? n : 32);
    } else {
        check_rows(c, what, got, want, 1, n, n, store_tolerance(type));
    }
}

/* The entry of row i, where the row has one and no later row took it. */
static void check_latest(struct check *c, const struct shape *s, const struct inputs *in, int seq,
                         int32_t i, int32_t group, int32_t head, bool keys, int side,
                         const float *want)
{
    const struct check_kv *kv = &in->kv[seq];
    const struct ops_kv of = {.layout = &kv->layout[0],
                              .latest = kv->latest ? kv->latest->out[side] : NULL};
    int32_t n = keys ? s->l.k_dim : s->l.v_dim;
    int32_t pos = s->pos0[seq] + i;
    float got[512];

    if (!of.latest || i + OPS_LATEST_ENTRIES < s->n_rows[seq] ||
        !ops_kv_in_four_bits(keys ? s->l.k_type : s->l.v_type)) {
        return;
    }
    kv_latest_load(keys ? kv_latest_k(&of, group, pos, head) : kv_latest_v(&of, group, pos, head),
                   got, n);
    check_stored(c, keys ? "latest K" : "latest V", got, want, n, OPS_KV_I8);
}

/* One stored slot: both sides against what was to be stored. */
static void check_slot(struct check *c, const struct shape *s, const struct inputs *in, int seq,
                       int32_t row, int32_t i, int32_t group, int32_t slot)
{
    const struct ops_kv_layout *l = &s->l;
    const struct check_kv *kv = &in->kv[seq];
    size_t of_slot = (size_t)(group * kv->cap + slot) * kv->slot_bytes;
    size_t at = of_slot + (size_t)l->k_heads * ops_kv_type_bytes(l->k_type, l->k_dim);
    float want[512];
    float got[512];

    if (s->options & CARRY) {
        check_bits(c, "stored K", kv->back[1] + of_slot, kv->back[0] + of_slot,
                   (size_t)l->k_heads * ops_kv_type_bytes(l->k_type, l->k_dim));
    }
    /* V is stored as it comes: no arithmetic to differ in */
    check_bits(c, "stored V", kv->back[1] + at, kv->back[0] + at,
               (size_t)l->v_heads * ops_kv_type_bytes(l->v_type, l->v_dim));

    for (int side = 0; side < 2; side++) {
        for (int32_t h = 0; h < l->k_heads; h++) {
            int32_t at_head = (group * l->k_heads + h) * l->k_dim;
            const float *k = (const float *)(const void *)in->k->init +
                             (size_t)row * (size_t)in->ldk +
                             (size_t)(group * l->k_heads + h) * (size_t)l->k_dim;

            head_in_double(s, in, k, in->k_norm.f32, s->pos0[seq] + i, !l->k_unrotated, want);
            for (int32_t d = 0; d < l->k_dim && kv->center; d++) {
                want[d] -= ((const float *)(const void *)kv->center->init)[at_head + d];
            }
            for (int32_t d = 0; d < l->k_dim && kv->balance; d++) {
                want[d] *= ((const float *)(const void *)kv->balance->init)[at_head + d];
            }
            if (kv->k_hadamard) {
                turn_in_double(want, l->k_dim);
            }
            check_kv_decode_k(kv, kv->back[side], group, slot, h, got);
            if (!kv->carry) { /* what that is: tests/unit/test_carry.c */
                check_stored(c, side ? "stored K" : "reference's stored K", got, want, l->k_dim,
                             l->k_type);
            }
            check_latest(c, s, in, seq, i, group, h, true, side, want);
        }
        for (int32_t h = 0; h < l->v_heads && (row % 16 != 15 || s->options & HADAMARD); h++) {
            const float *v = (const float *)(const void *)in->v->init +
                             (size_t)row * (size_t)in->ldv +
                             (size_t)(group * l->v_heads + h) * (size_t)l->v_dim;

            memcpy(want, v, (size_t)l->v_dim * sizeof(float));
            if (kv->v_hadamard) {
                turn_in_double(want, l->v_dim);
            }
            check_kv_decode_v(kv, kv->back[side], group, slot, h, got);
            check_stored(c, side ? "stored V" : "reference's stored V", got, want, l->v_dim,
                         l->v_type);
            check_latest(c, s, in, seq, i, group, h, false, side, want);
        }
    }
}

static void check_caches(struct check *c, const struct shape *s, struct inputs *in)
{
    int32_t row = 0;

    for (int seq = 0; seq < N_SEQS; seq++) {
        struct check_kv *kv = &in->kv[seq];

        check_kv_export(c, kv, CAP);
        for (int32_t g = 0; g < s->l.n_groups; g++) {
            bool written[CAP] = {false};

            for (int32_t i = 0; i < s->n_rows[seq] && !(s->options & NO_KV); i++) {
                int32_t slot = slot_of(s, seq, i) + (s->options & VICTIM ? g : 0);

                if (!(s->options & RING) || i + RING_SLOTS >= s->n_rows[seq]) {
                    written[slot] = true;
                    check_slot(c, s, in, seq, row + i, i, g, slot);
                }
            }
            for (int32_t slot = 0; slot < CAP; slot++) {
                size_t at = (size_t)(g * CAP + slot) * kv->slot_bytes;

                if (!written[slot]) {
                    check_bits(c, "a slot not stored to", kv->back[1] + at, kv->content + at,
                               kv->slot_bytes);
                }
            }
        }
        row += s->n_rows[seq];
        if (kv->slot_pos) {
            check_bits(c, "slot_pos", kv->slot_pos->out[1], kv->slot_pos->out[0],
                       kv->slot_pos->bytes);
            check_bits(c, "score", kv->score->out[1], kv->score->out[0], kv->score->bytes);
        }
    }
}

static void check_queries(struct check *c, const struct shape *s, const struct inputs *in)
{
    float *want = calloc(in->q->bytes, 1);
    int32_t row = 0;

    memcpy(want, in->q->init, in->q->bytes);
    for (int seq = 0; seq < N_SEQS && !(s->options & NO_Q); seq++) {
        for (int32_t i = 0; i < s->n_rows[seq]; i++, row++) {
            for (int32_t h = 0; h < s->n_q; h++) {
                size_t at = (size_t)row * (size_t)in->ldq + (size_t)h * (size_t)s->l.k_dim;

                head_in_double(s, in, (const float *)(const void *)in->q->init + at, in->q_norm.f32,
                               s->pos0[seq] + i, true, want + at);
                for (int32_t d = 0; d < s->l.k_dim && in->kv[seq].balance; d++) {
                    const float *balance = (const void *)in->kv[seq].balance->init;
                    int32_t of = h / (s->n_q / (s->l.n_groups * s->l.k_heads));

                    want[at + (size_t)d] /= balance[of * s->l.k_dim + d];
                }
                if (in->kv[seq].k_hadamard) {
                    turn_in_double(want + at, s->l.k_dim);
                }
            }
        }
    }
    check_floats(c, in->q, in->n, in->ldq, s->n_q * s->l.k_dim, &tol_rope);
    check_rows(c, "reference's q", (const void *)in->q->out[0], want, in->n, in->ldq,
               s->n_q * s->l.k_dim, &tol_rope);
    free(want);
}

/* Rows of one content at one position come out alike, whatever stands beside them. */
static void check_alike(struct check *c, const struct shape *s, const struct inputs *in)
{
    const size_t row_bytes = (size_t)in->ldq * 4;
    int found = 0;

    for (int32_t i = 0; i < s->n_rows[2]; i++) {
        if (s->pos0[2] + i == s->pos0[0]) {
            size_t at = (size_t)(s->n_rows[0] + s->n_rows[1] + i) * row_bytes;

            check_bits(c, "q of two rows at one position", in->q->out[1] + at, in->q->out[1],
                       row_bytes);
            found++;
        }
    }
    if (found != 1) {
        check_fail(c, "%d rows at the first one's position, 1 expected", found);
    }
}

static void one(struct check *c, const struct shape *s)
{
    struct inputs in;
    struct ops_kv_layout l = s->l;

    if (!check_kv_offered(c, &l) ||
        !check_case(c, "%s/%s groups %d k %d x %d v %d x %d q %d form %d dims %d options %d",
                    ops_kv_type_name(l.k_type), ops_kv_type_name(l.v_type), l.n_groups, l.k_heads,
                    l.k_dim, l.v_heads, l.v_dim, s->n_q, (int)s->form, s->n_dims, s->options)) {
        return;
    }
    prepare(c, s, &in);
    c->bench_bytes = in.q->bytes * 2 + in.k->bytes + in.v->bytes +
                     (uint64_t)in.n * (uint64_t)l.n_groups * in.kv[0].slot_bytes;
    while (check_call(c)) {
        c->err = call(c, s, &in);
    }
    if (!c->bench) {
        check_queries(c, s, &in);
        if (s->options & ALIKE) {
            check_alike(c, s, &in);
        }
        check_caches(c, s, &in);
    }
    for (int i = 0; i < N_SEQS; i++) {
        check_kv_free(&in.kv[i]);
    }
    check_weight_free(c, &in.q_norm);
    check_weight_free(c, &in.k_norm);
}

void check_op(struct check *c)
{
    if (c->bench) {
        struct shape decode = {{3, 1, 1, 64, 64, OPS_KV_F16, OPS_KV_F16, false, 0},
                               9,
                               OPS_ROPE_NORM,
                               64,
                               {1, 1, 1},
                               {100, 2000, 7000},
                               0};
        struct shape prefill = decode;

        one(c, &decode);
        prefill.n_rows[2] = 240;
        one(c, &prefill);
        prefill.l.k_type = prefill.l.v_type = OPS_KV_FP8;
        one(c, &prefill);
        return;
    }
    static const enum ops_kv_type rounded[] = {OPS_KV_FP8, OPS_KV_G4};

    for (size_t t = 0; t < 2 && c->sides[1]->ops->rounds; t++) {
        struct ops_kv_layout pairs = {2, 2, 1, 64, 64, rounded[t], rounded[t], false, 0};
        struct ops_kv_layout wide = {1, 1, 1, 256, 512, rounded[t], OPS_KV_G4, false, 0};
        struct shape shapes[] = {
            {pairs, 4, OPS_ROPE_NONE, 0, {1, 1, 70}, {5, 77, 100}, CARRY},
            {pairs, 4, OPS_ROPE_NONE, 0, {1, 20, 70}, {5, 77, 100}, CARRY | RING | POSITIONS},
            {pairs, 4, OPS_ROPE_NONE, 0, {1, 1, 1}, {5, 77, 100}, CARRY | VICTIM | POSITIONS},
            {wide, 2, OPS_ROPE_NONE, 0, {1, 1, 37}, {5, 77, 100}, CARRY | CENTERED},
        };

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            one(c, &shapes[i]);
        }
    }
    for (int t = 0; t < check_kv_n_types; t++) {
        struct ops_kv_layout l = {3,     1, 1, 64, 64, check_kv_types[t].k, check_kv_types[t].v,
                                  false, 0};
        struct ops_kv_layout uneven = {
            2, 1, 4, 80, 32, check_kv_types[t].k, check_kv_types[t].v, false, 0};
        struct ops_kv_layout odd = {1,     2, 1, 20, 36, check_kv_types[t].k, check_kv_types[t].v,
                                    false, 0};
        struct shape shapes[] = {
            {l, 9, OPS_ROPE_NORM, 64, {1, 1, 37}, {0, 8191, 100}, 0},
            {l, 9, OPS_ROPE_NEOX, 64, {1, 1, 3}, {5, 131071, 100}, NORM | POSITIONS},
            {l, 9, OPS_ROPE_NEOX, 64, {1, 1, 61}, {123, 1000003, 70}, ALIKE},
            {uneven, 16, OPS_ROPE_NEOX, 40, {1, 5, 9}, {5, 77, 100}, RING | POSITIONS},
            {uneven, 8, OPS_ROPE_NORM, 80, {1, 1, 61}, {5, 77, 100}, RING},
            {odd, 4, OPS_ROPE_NEOX, 20, {1, 1, 1}, {5, 77, 100}, VICTIM | POSITIONS | NORM},
            {uneven, 16, OPS_ROPE_NEOX, 40, {1, 5, 9}, {5, 77, 100}, RING | POSITIONS | CENTERED},
            {odd,
             4,
             OPS_ROPE_NORM,
             20,
             {1, 1, 1},
             {5, 77, 100},
             VICTIM | POSITIONS | NORM | CENTERED},
            {l, 3, OPS_ROPE_NEOX, 64, {1, 1, 70}, {5, 77, 100}, NO_Q | CENTERED},
            {l, 9, OPS_ROPE_NEOX, 64, {1, 3, 70}, {5, 77, 100}, NORM | CENTERED | HADAMARD},
            {uneven, 8, OPS_ROPE_NORM, 80, {1, 5, 9}, {5, 77, 100}, RING | POSITIONS | HADAMARD},
            {odd, 4, OPS_ROPE_NEOX, 20, {1, 1, 1}, {5, 77, 100}, VICTIM | POSITIONS | HADAMARD},
            {l, 9, OPS_ROPE_NONE, 0, {1, 1, 4}, {5, 77, 100}, HADAMARD | NO_KV},
            {l, 3, OPS_ROPE_NONE, 0, {1, 1, 4}, {5, 77, 100}, 0},
            {l, 3, OPS_ROPE_NEOX, 64, {1, 1, 4}, {5, 77, 100}, NO_Q},
            {l, 3, OPS_ROPE_NEOX, 64, {1, 1, 4}, {5, 77, 100}, NO_KV},
        };

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            one(c, &shapes[i]);
        }
        shapes[1].l.k_unrotated = true;
        one(c, &shapes[1]);
    }
}
