/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts: every weight type, few of many experts and all of them, routers by softmax
 * and sigmoid, biases, the shared expert; ties; rows with NaN; and batch invariance: a row alone
 * has the bits that it has in a batch, within its class. The reference is checked against double,
 * with a choice of its own. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/route.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = ~(uint32_t)(CPU_AVX512_FP16 | CPU_AMX_INT8 | CPU_FP16);
const struct backend_limits check_limits = {
    .max_rows = 128,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 512,
    .max_outputs = 512,
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 64,
    .max_experts = 16,
    .max_experts_used = 8,
};

enum {
    ADD = 1,
    NORM = 2,
    BIAS = 4, /* of every product, the router's too */
    SIGMOID = 8,
    NORMED = 16,
    CHOICE = 32,
    SHARED = 64,
    SHARED_GATE = 128,
    SCALE = 256,
    TIES = 512,
    POISON = 1024,
    GELU = 2048,
    OAI = 4096,
    MIXED = 8192, /* up is of another type than gate */
    FACTORS = 16384,
    ROUTER = 32768, /* has a norm and a factor of its own */
};

struct shape {
    enum dtype type;
    int32_t n;
    int32_t n_decode;
    int32_t n_cols;
    int32_t n_ff;
    int32_t n_expert;
    int32_t n_used;
    int options;
};

enum { GATE, UP, DOWN, PARTS };

struct inputs {
    struct check_weight w[PARTS];
    struct check_weight b[PARTS];
    struct check_weight shared[PARTS];
    struct check_weight shared_b[PARTS];
    struct check_weight router;
    struct check_weight router_b;
    struct check_weight choice_b;
    struct check_weight shared_gate;
    struct check_weight norm;
    struct check_weight factors;
    struct check_weight router_norm;
    struct check_buf *x;
    struct check_buf *y;
};

static const float row_scale = 0.5f;
static const float weight_scale = 2.5f;
static const float router_scale = 0.75f;

/* ---- in double ----------------------------------------------------------------------------- */

static double dot(const float *w, const double *x, int32_t n)
{
    double sum = 0;

    for (int32_t k = 0; k < n; k++) {
        sum += (double)w[k] * x[k];
    }
    return sum;
}

static double activated(const struct shape *s, double x)
{
    return s->options & GELU ? 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))
                             : x / (1 + exp(-x));
}

static double gated(const struct shape *s, double gate, double up)
{
    if (s->options & OAI) {
        gate = fmin(gate, 7);
        return gate / (1 + exp(-1.702 * gate)) * (fmax(fmin(up, 7), -7) + 1);
    }
    return activated(s, gate) * up;
}

/* y += factor * layer e of x. */
static void add_layer(const struct shape *s, const struct check_weight *w,
                      const struct check_weight *b, int32_t e, double factor, const double *x,
                      double *y)
{
    size_t c = (size_t)s->n_cols;
    size_t f = (size_t)s->n_ff;
    double *h = malloc(f * sizeof(*h));
    bool bias = s->options & BIAS;

    for (size_t i = 0; i < f; i++) {
        size_t at = (size_t)e * f + i;

        h[i] =
            gated(s, dot(w[GATE].f32 + at * c, x, s->n_cols) + (bias ? (double)b[GATE].f32[at] : 0),
                  dot(w[UP].f32 + at * c, x, s->n_cols) + (bias ? (double)b[UP].f32[at] : 0));
    }
    for (size_t i = 0; i < c; i++) {
        size_t at = (size_t)e * c + i;

        y[i] +=
            factor * (dot(w[DOWN].f32 + at * f, h, s->n_ff) + (bias ? (double)b[DOWN].f32[at] : 0));
    }
    free(h);
}

static void in_double(const struct shape *s, const struct inputs *in, int32_t row, double *y)
{
    const float *from = (const float *)(const void *)in->x->init + (size_t)row * (size_t)s->n_cols;
    const float *y0 = (const float *)(const void *)in->y->init + (size_t)row * (size_t)s->n_cols;
    double *x = malloc((size_t)s->n_cols * sizeof(*x));
    double *rx = malloc((size_t)s->n_cols * sizeof(*rx));
    double p[16];
    double score[16];
    bool is_chosen[16] = {false};
    double scale = s->options & SCALE ? (double)row_scale : 1;
    double square = 0;
    double sum = 0;

    for (int32_t k = 0; k < s->n_cols; k++) {
        square += (double)from[k] * (double)from[k] / s->n_cols;
    }
    for (int32_t k = 0; k < s->n_cols; k++) {
        x[k] = s->options & NORM ? (double)from[k] / sqrt(square + 1e-6) * (double)in->norm.f32[k]
                                 : (double)from[k];
        y[k] = s->options & ADD ? (double)y0[k] : 0;
        rx[k] = s->options & ROUTER ? (double)from[k] / sqrt(square + 1e-6) *
                                          (double)in->router_norm.f32[k] * (double)router_scale
                                    : x[k];
    }
    for (int32_t e = 0; e < s->n_expert; e++) {
        double l = dot(in->router.f32 + (size_t)e * (size_t)s->n_cols, rx, s->n_cols) +
                   (s->options & BIAS ? (double)in->router_b.f32[e] : 0);

        p[e] = s->options & SIGMOID ? 1 / (1 + exp(-l)) : exp(l);
        sum += p[e];
    }
    for (int32_t e = 0; e < s->n_expert; e++) {
        p[e] /= s->options & SIGMOID ? 1 : sum;
        score[e] = p[e] + (s->options & CHOICE ? (double)in->choice_b.f32[e] : 0);
    }
    sum = 0;
    for (int32_t i = 0; i < s->n_used; i++) {
        int32_t best = -1;

        for (int32_t e = 0; e < s->n_expert; e++) {
            best = !is_chosen[e] && (best < 0 || score[e] > score[best]) ? e : best;
        }
        is_chosen[best] = true;
        sum += p[best];
    }
    for (int32_t e = 0; e < s->n_expert; e++) {
        double weight = p[e] * scale / (s->options & NORMED ? sum : 1) *
                        (s->options & SCALE ? (double)weight_scale : 1) *
                        (s->options & FACTORS ? (double)in->factors.f32[e] : 1);

        if (is_chosen[e]) {
            add_layer(s, in->w, in->b, e, weight, x, y);
        }
    }
    if (s->options & SHARED) {
        double gate = dot(in->shared_gate.f32, x, s->n_cols);

        add_layer(s, in->shared, in->shared_b, 0,
                  s->options & SHARED_GATE ? scale / (1 + exp(-gate)) : scale, x, y);
    }
    free(x);
    free(rx);
}

/* ---- the case ------------------------------------------------------------------------------ */

static void make_layer(struct check *c, const struct shape *s, int32_t n, struct check_weight *w,
                       struct check_weight *b)
{
    float size = 1 / sqrtf((float)s->n_cols);

    for (int i = 0; i < PARTS; i++) {
        int32_t rows = i == DOWN ? s->n_cols : s->n_ff;
        float more = s->options & OAI && i != DOWN ? 8 : 1; /* beyond what is cut off */
        enum dtype other = s->type == DTYPE_Q8_0 ? DTYPE_F16 : DTYPE_Q8_0;
        enum dtype type = s->options & MIXED && i == UP ? other : s->type;

        check_weight_stack(c, &w[i], type, n, rows, i == DOWN ? s->n_ff : s->n_cols, more * size);
        check_weight_make(c, &b[i], DTYPE_F32, OPS_ROLE_VECTOR, 1, n * rows, 0.3f);
    }
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    float size = 1 / sqrtf((float)s->n_cols);
    size_t bytes = (size_t)s->n * (size_t)s->n_cols * 4;

    *in = (struct inputs){.x = check_buf(c, "x", bytes), .y = check_buf(c, "y", bytes)};
    check_fill(c, in->x, 1);
    check_fill(c, in->y, 1);
    if (s->options & POISON) {
        float *x = (float *)(void *)in->x->init;

        x[s->n_cols + 5] = NAN;
        x[2 * s->n_cols + 7] = -INFINITY;
        x[3 * s->n_cols + 9] = 3e38f;
        x[4 * s->n_cols] = 1e-44f;
    }
    make_layer(c, s, s->n_expert, in->w, in->b);
    make_layer(c, s, 1, in->shared, in->shared_b);
    check_weight_make(c, &in->router, DTYPE_F32, OPS_ROLE_MATMUL, s->n_expert, s->n_cols,
                      s->options & TIES ? 0 : 2 * size);
    check_weight_make(c, &in->router_b, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_expert, 0.5f);
    check_weight_make(c, &in->choice_b, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_expert, 0.5f);
    check_weight_make(c, &in->shared_gate, DTYPE_F32, OPS_ROLE_MATMUL, 1, s->n_cols, size);
    check_weight_make(c, &in->norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_cols, 1);
    check_weight_make(c, &in->router_norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_cols, 1);
    check_weight_make(c, &in->factors, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_expert, 1);
}

static void finish(struct check *c, struct inputs *in)
{
    for (int i = 0; i < PARTS; i++) {
        check_weight_free(c, &in->w[i]);
        check_weight_free(c, &in->b[i]);
        check_weight_free(c, &in->shared[i]);
        check_weight_free(c, &in->shared_b[i]);
    }
    check_weight_free(c, &in->router);
    check_weight_free(c, &in->router_b);
    check_weight_free(c, &in->choice_b);
    check_weight_free(c, &in->shared_gate);
    check_weight_free(c, &in->norm);
    check_weight_free(c, &in->router_norm);
    check_weight_free(c, &in->factors);
}

static struct ops_expert_part part(const struct check *c, const struct shape *s,
                                   const struct check_weight *w, const struct check_weight *b)
{
    return (struct ops_expert_part){.w = &w->w[c->side],
                                    .bias = s->options & BIAS ? &b->w[c->side] : NULL};
}

static struct ops_experts params(const struct check *c, const struct shape *s,
                                 const struct inputs *in)
{
    struct ops_experts p = {
        .rows = {s->n, s->n_decode},
        .norm = {.w = s->options & NORM ? &in->norm.w[c->side] : NULL, .eps = 1e-6f},
        .x = check_dev(c, in->x),
        .y = check_dev(c, in->y),
        .ldx = s->n_cols,
        .ldy = s->n_cols,
        .add = s->options & ADD,
        .scale = s->options & SCALE ? row_scale : 0,
        .n_expert = s->n_expert,
        .n_used = s->n_used,
        .kind = s->options & SIGMOID ? OPS_ROUTER_SIGMOID : OPS_ROUTER_SOFTMAX,
        .normed = s->options & NORMED,
        .weight_scale = s->options & SCALE ? weight_scale : 0,
        .factors = s->options & FACTORS ? &in->factors.w[c->side] : NULL,
        .router_norm = {.w = s->options & ROUTER ? &in->router_norm.w[c->side] : NULL,
                        .eps = 1e-6f},
        .router_scale = s->options & ROUTER ? router_scale : 0,
        .router = &in->router.w[c->side],
        .router_bias = s->options & BIAS ? &in->router_b.w[c->side] : NULL,
        .choice_bias = s->options & CHOICE ? &in->choice_b.w[c->side] : NULL,
        .act = s->options & OAI    ? OPS_ACT_SWIGLU_OAI
               : s->options & GELU ? OPS_ACT_GELU_TANH
                                   : OPS_ACT_SILU,
        .gate = part(c, s, &in->w[GATE], &in->b[GATE]),
        .up = part(c, s, &in->w[UP], &in->b[UP]),
        .down = part(c, s, &in->w[DOWN], &in->b[DOWN]),
    };

    if (s->options & SHARED) {
        p.shared_gate_proj = part(c, s, &in->shared[GATE], &in->shared_b[GATE]);
        p.shared_up = part(c, s, &in->shared[UP], &in->shared_b[UP]);
        p.shared_down = part(c, s, &in->shared[DOWN], &in->shared_b[DOWN]);
        p.shared_gate = s->options & SHARED_GATE ? &in->shared_gate.w[c->side] : NULL;
    }
    return p;
}

/* Each of a few rows alone, on the backend under test: the same bits. */
static void alone(struct check *c, const struct shape *s, const struct inputs *in)
{
    size_t row_bytes = (size_t)s->n_cols * 4;
    uint8_t *got = malloc(row_bytes);

    c->side = 1;
    c->be = c->sides[1];
    c->ops = c->be->ops;
    for (int32_t i = 0; i<s->n; i += s->n> 9 ? s->n / 9 : 1) {
        struct ops_experts p = params(c, s, in);
        uint8_t *y = check_dev(c, in->y);

        check_require(c->ops->write(c->be, y, in->y->init + (size_t)i * row_bytes, row_bytes), "y");
        p.rows = (struct ops_rows){1, i < s->n_decode ? 1 : 0};
        p.x += (size_t)i * (size_t)s->n_cols;
        check_require(c->ops->experts(c->be, &p), "experts");
        check_require(c->ops->read(c->be, got, y, row_bytes), "y");
        check_bits(c, "a row alone", got, in->y->out[1] + (size_t)i * row_bytes, row_bytes);
    }
    free(got);
}

static void poisoned(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int side = 0; side < 2; side++) {
        const float *y = (const float *)(const void *)in->y->out[side];

        for (int32_t k = 0; k < s->n_cols; k++) {
            if (!isnan(y[s->n_cols + k])) {
                check_fail(c, "a row with NaN gave %g", (double)y[s->n_cols + k]);
            }
            if (!isfinite(y[k])) {
                check_fail(c, "a row beside one with NaN gave %g", (double)y[k]);
            }
        }
    }
}

static void against_double(struct check *c, const struct shape *s, const struct inputs *in)
{
    size_t n = (size_t)s->n_cols;
    float *want = malloc((size_t)s->n * n * sizeof(*want));
    double *y = malloc(n * sizeof(*y));

    for (int32_t i = 0; i < s->n; i++) {
        in_double(s, in, i, y);
        for (size_t k = 0; k < n; k++) {
            want[(size_t)i * n + k] = (float)y[k];
        }
    }
    check_rows(c, "reference against double", (const void *)in->y->out[0], want, s->n, s->n_cols,
               s->n_cols, &tol_reduce);
    free(y);
    free(want);
}

/* Rows of class decode, then of class prefill, which some CPUs multiply as tiles of bf16, and of
 * which a GPU rounds what it multiplies with a shared expert's 16-bit weights. */
static void against_reference(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int class = 0; class < 2; class ++) {
        int32_t from = class ? s->n_decode : 0;
        int32_t n = class ? s->n - s->n_decode : s->n_decode;
        bool exact = dtype_info(s->type)->block_len == 1 && !(s->options & MIXED);
        bool tiles = class && check_has_tiles_of(c, s->type);
        bool half =
            class && exact && s->type != DTYPE_F32 && s->options & SHARED && check_has_mma(c);
        bool pieces = s->type == DTYPE_BF16 && check_has_mma(c);
        size_t at = (size_t)from * (size_t)s->n_cols;

        if (n > 0) {
            check_rows(c, "y", (const float *)(const void *)in->y->out[1] + at,
                       (const float *)(const void *)in->y->out[0] + at, n, s->n_cols, s->n_cols,
                       tiles   ? &tol_bf16
                       : half  ? &tol_half_acts
                       : exact ? (pieces ? &tol_bf16_pieces : &tol_reduce)
                               : &tol_int8_twice);
        }
    }
}

static void one(struct check *c, const struct shape *s)
{
    struct inputs in;

    if (!check_case(c, "experts %s n %d/%d cols %d ff %d, %d of %d, options %d",
                    dtype_info(s->type)->name, s->n, s->n_decode, s->n_cols, s->n_ff, s->n_used,
                    s->n_expert, s->options)) {
        return;
    }
    prepare(c, s, &in);
    while (check_call(c)) {
        struct ops_experts p = params(c, s, &in);

        c->err = c->ops->experts(c->be, &p);
    }
    if (s->options & POISON) {
        poisoned(c, s, &in);
        alone(c, s, &in);
    } else if (!c->bench) {
        against_reference(c, s, &in);
        if (c->first) {
            against_double(c, s, &in);
        }
        alone(c, s, &in);
    }
    finish(c, &in);
}

/* ---- routing by itself --------------------------------------------------------------------- */

static void route(struct check *c, const char *what, bool sigmoid, const float *logits,
                  int32_t first, int32_t second, bool is_nan)
{
    struct ops_experts p = {.n_expert = 4,
                            .n_used = 2,
                            .normed = true,
                            .kind = sigmoid ? OPS_ROUTER_SIGMOID : OPS_ROUTER_SOFTMAX};
    struct route got[2];
    float copy[4];

    memcpy(copy, logits, sizeof(copy));
    route_row(&p, copy, got);
    if (got[0].expert != first || got[1].expert != second) {
        check_fail(c, "%s: experts %d and %d, wanted %d and %d", what, got[0].expert, got[1].expert,
                   first, second);
    }
    if (isnan(got[0].weight) != is_nan || isnan(got[1].weight) != is_nan) {
        check_fail(c, "%s: weights %g and %g", what, (double)got[0].weight, (double)got[1].weight);
    }
}

static void routes(struct check *c)
{
    if (!check_case(c, "routes")) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        route(c, "the largest", i, (const float[]){1, 4, 2, 3}, 1, 3, false);
        route(c, "equals", i, (const float[]){1, 5, 5, 5}, 1, 2, false);
        route(c, "a NaN", i, (const float[]){-9, NAN, -8, -7}, 2, 3, true);
        route(c, "NaNs", i, (const float[]){NAN, NAN, -8, NAN}, 0, 2, true);
        route(c, "-inf", i, (const float[]){-INFINITY, 1, -INFINITY, -INFINITY}, 0, 1, false);
    }
    route(c, "+inf", false, (const float[]){1, INFINITY, 2, 0}, 1, 2, true);
}

void check_op(struct check *c)
{
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,    DTYPE_BF16,   DTYPE_Q4_0,
                                       DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q8_0,
                                       DTYPE_Q2_K, DTYPE_Q3_K,   DTYPE_Q4_K,   DTYPE_Q5_K,
                                       DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

    if (c->bench) {
        struct shape s = {DTYPE_Q4_K, 1, 1, 512, 512, 16, 4, NORM | NORMED | ADD};

        one(c, &s);
        s.n = 128;
        s.n_decode = 0;
        one(c, &s);
        return;
    }
    if (!c->sides[1]->ops->experts) {
        return; /* engine/engine.c refuses such models */
    }
    routes(c);
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        int32_t block = dtype_info(types[t])->block_len;
        int32_t odd = block == 1 ? 67 : block == 32 ? 96 : 256;
        struct shape shapes[] = {
            {types[t], 1, 1, odd, odd, 8, 2, NORM | NORMED | ADD},
            {types[t], 7, 3, odd, odd, 5, 2, NORM},
            {types[t], 40, 9, 256, 512, 8, 2, NORM | NORMED | ADD},
            {types[t], 33, 0, 256, 256, 4, 4, NORMED | SHARED | SHARED_GATE},
            {types[t], 19, 2, 512, 256, 16, 3, SIGMOID | NORMED | CHOICE | SCALE | SHARED | NORM},
            {types[t], 12, 1, 256, 256, 8, 3, BIAS | SCALE | ADD | GELU | SHARED},
            {types[t], 21, 21, 256, 256, 3, 1, SIGMOID | BIAS | CHOICE},
            {types[t], 21, 5, 256, 256, 8, 4, NORM | BIAS | NORMED | ADD | OAI},
            {types[t], 9, 3, 256, 256, 4, 2, POISON | NORM | OAI},
            {types[t], 9, 4, 256, 256, 8, 3, TIES | NORMED},
            {types[t], 9, 4, 256, 256, 8, 8, SCALE},
            {types[t], 9, 2, 256, 256, 8, 2, POISON | NORM | NORMED | SHARED},
            {types[t], 9, 9, 256, 256, 8, 2, POISON | SIGMOID},
            {types[t], 10, 5, 256, 256, 4, 2, MIXED | BIAS | SHARED | NORM},
            {types[t], 10, 5, 256, 256, 4, 2, MIXED | BIAS | NORM | OAI},
            {types[t], 20, 6, 256, 512, 8, 2, NORM | ROUTER | FACTORS | NORMED | GELU},
            {types[t], 1, 1, odd, odd, 8, 5, ROUTER | FACTORS | SCALE | SHARED | ADD},
        };

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            one(c, &shapes[i]);
        }
    }
}
