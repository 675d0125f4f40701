/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: short convolutions, the gated delta rule, gates by head; against the reference,
 * and the reference's delta rule against double arithmetic. Several sequences a call, states fresh,
 * given, and in place. A sequence's rows in two calls give the bits of one. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 512,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 1024,
    .max_outputs = 64,
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 64,
};

enum { MAX_SEQS = 3 };

/* What a call is of: its sequences' rows, their states before and behind, and what comes out; all
 * twice, the second time in two calls. */
struct batch {
    int32_t n_seqs;
    int32_t n_rows[MAX_SEQS];
    struct check_buf *in;
    struct check_buf *out[2];
    struct check_buf *y[2];
    size_t state; /* bytes */
    size_t ldy;
    int32_t n;
};

static void make_batch(struct check *c, struct batch *b, int32_t n_seqs, const int32_t *n_rows,
                       size_t state, size_t ldy)
{
    *b = (struct batch){.n_seqs = n_seqs, .state = (state + 63) / 64 * 64, .ldy = ldy};
    for (int32_t i = 0; i < n_seqs; i++) {
        b->n_rows[i] = n_rows[i];
        b->n += n_rows[i];
    }
    b->in = check_buf(c, "state before", b->state * MAX_SEQS);
    check_fill(c, b->in, 1);
    for (int i = 0; i < 2; i++) {
        b->out[i] = check_buf(c, "state behind", b->state * MAX_SEQS);
        b->y[i] = check_buf(c, "y", (size_t)b->n * ldy * sizeof(float));
    }
}

/* The first sequence's state is fresh, the second one's given, the third one's in place. */
static struct ops_state seq_of(struct check *c, const struct batch *b, int i, int whole)
{
    uint8_t *in = check_dev(c, b->in);
    uint8_t *out = check_dev(c, b->out[whole]);
    struct ops_state s = {.n_rows = b->n_rows[i],
                          .in = i == 0 ? NULL : in + b->state * (size_t)i,
                          .out = out + b->state * (size_t)i};

    for (int k = 0; k < i; k++) {
        s.row0 += b->n_rows[k];
    }
    if (i == 2) {
        (void)c->ops->copy(c->be, s.out, s.in, b->state);
        s.in = s.out;
    }
    return s;
}

typedef int run_fn(struct check *c, void *p, const struct ops_state *seqs, int32_t n_seqs, void *y);

static void run(struct check *c, const struct batch *b, void *p, run_fn *fn)
{
    struct ops_state s[MAX_SEQS];

    for (int i = 0; i < b->n_seqs; i++) {
        s[i] = seq_of(c, b, i, 0);
    }
    c->err = fn(c, p, s, b->n_seqs, check_dev(c, b->y[0]));
    for (int i = 0; i < b->n_seqs && !c->err && !c->bench; i++) { /* one by one, in two calls */
        struct ops_state one = seq_of(c, b, i, 1);
        int32_t first = (one.n_rows + 1) / 3;

        one.n_rows = first;
        c->err = first ? fn(c, p, &one, 1, check_dev(c, b->y[1])) : 0;
        one.row0 += first;
        one.n_rows = b->n_rows[i] - first;
        one.in = first ? one.out : one.in;
        c->err = c->err ? c->err : fn(c, p, &one, 1, check_dev(c, b->y[1]));
    }
}

static void compare(struct check *c, const struct batch *b, int32_t cols,
                    const struct tolerance *tol)
{
    if (c->bench) {
        return;
    }
    check_floats(c, b->y[0], b->n, (int32_t)b->ldy, cols, tol);
    check_floats(c, b->out[0], b->n_seqs, (int32_t)(b->state / 4), (int32_t)(b->state / 4), tol);
    for (int side = 0; side < 2; side++) {
        check_bits(c, "rows in two calls", b->y[1]->out[side], b->y[0]->out[side], b->y[0]->bytes);
        check_bits(c, "states in two calls", b->out[1]->out[side], b->out[0]->out[side],
                   b->out[0]->bytes);
    }
}

/* ---- short convolution ------------------------------------------------------------------------
 */

static int run_conv(struct check *c, void *arg, const struct ops_state *seqs, int32_t n_seqs,
                    void *y)
{
    struct ops_conv *p = arg;

    p->seqs = seqs;
    p->n_seqs = n_seqs;
    p->y = y;
    return c->ops->conv(c->be, p);
}

/* bits of `kind`: 1 before, 2 after, 4 SILU, 8 bias */
static void conv(struct check *c, int32_t n_channels, int32_t width, int kind, int32_t n_seqs,
                 const int32_t *n_rows)
{
    struct ops_conv p = {.n_channels = n_channels,
                         .width = width,
                         .ldx = n_channels + 5,
                         .ldy = n_channels + 2,
                         .act = kind & 4 ? OPS_ACT_SILU : OPS_ACT_NONE};
    struct check_weight w;
    struct check_weight bias;
    struct check_buf *x[3];
    struct batch b;

    if (!check_case(c, "conv channels %d width %d kind %d rows %d of %d", n_channels, width, kind,
                    n_rows[0], n_seqs)) {
        return;
    }
    make_batch(c, &b, n_seqs, n_rows, (size_t)(width - 1) * (size_t)n_channels * sizeof(float),
               (size_t)p.ldy);
    for (int i = 0; i < 3; i++) {
        x[i] = check_buf(c, "x", (size_t)b.n * (size_t)p.ldx * sizeof(float));
        check_fill(c, x[i], 1);
    }
    check_weight_make(c, &w, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_channels * width, 1);
    check_weight_make(c, &bias, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_channels, 1);
    c->bench_bytes = (uint64_t)b.n * (uint64_t)n_channels * 8;
    while (check_call(c)) {
        p.rows.n = b.n;
        p.w = &w.w[c->side];
        p.bias = kind & 8 ? &bias.w[c->side] : NULL;
        p.x = check_dev(c, x[0]);
        p.before = kind & 1 ? check_dev(c, x[1]) : NULL;
        p.after = kind & 2 ? check_dev(c, x[2]) : NULL;
        run(c, &b, &p, run_conv);
    }
    compare(c, &b, n_channels, &tol_elementwise);
    check_weight_free(c, &w);
    check_weight_free(c, &bias);
}

/* ---- gated delta rule -------------------------------------------------------------------------
 */

static int run_delta(struct check *c, void *arg, const struct ops_state *seqs, int32_t n_seqs,
                     void *y)
{
    struct ops_delta *p = arg;

    p->seqs = seqs;
    p->n_seqs = n_seqs;
    p->y = y;
    return c->ops->delta(c->be, p);
}

struct delta_inputs {
    struct check_weight a;
    struct check_weight dt;
    struct check_weight w;
    struct check_buf *qkv;
    struct check_buf *gates;
    struct check_buf *z;
};

static const float *row_of(const struct check_buf *b, int32_t row, int32_t ld, int32_t col)
{
    return (const float *)(const void *)b->init + (size_t)row * (size_t)ld + col;
}

/* The first sequence, whose state is fresh, in double. Returns how much larger than a row's output
 * before its norm the terms are that it is summed from: the norm divides by what their cancelling
 * left, and so multiplies their rounding. */
static double in_double(const struct ops_delta *p, const struct delta_inputs *in, int32_t h,
                        int32_t n, float *y)
{
    double worst = 0;
    double *s = calloc((size_t)(p->k_dim * p->v_dim), sizeof(*s));

    for (int32_t t = 0; t < n; t++) {
        const float *q = row_of(in->qkv, t, p->ldx, h % p->n_k * p->k_dim);
        const float *k = row_of(in->qkv, t, p->ldx, (p->n_k + h % p->n_k) * p->k_dim);
        const float *v = row_of(in->qkv, t, p->ldx, 2 * p->n_k * p->k_dim + h * p->v_dim);
        const float *z = row_of(in->z, t, p->ldz, h * p->v_dim);
        double alpha = (double)*row_of(in->gates, t, p->ldg, h) + (double)in->dt.f32[h];
        double decay = exp((double)in->a.f32[h] * log1p(exp(alpha)));
        double beta = 1 / (1 + exp(-(double)*row_of(in->gates, t, p->ldg, p->n_v + h)));
        double qq = (double)p->eps;
        double kk = (double)p->eps;
        double sum = 0;
        double mass = 0;

        for (int32_t i = 0; i < p->k_dim; i++) {
            qq += (double)q[i] * q[i];
            kk += (double)k[i] * k[i];
        }
        for (int32_t j = 0; j < p->v_dim; j++) {
            double known = 0;
            double out = 0;
            double terms = 0;

            for (int32_t i = 0; i < p->k_dim; i++) {
                s[i * p->v_dim + j] *= decay;
                known += s[i * p->v_dim + j] * k[i] / sqrt(kk);
            }
            for (int32_t i = 0; i < p->k_dim; i++) {
                s[i * p->v_dim + j] += k[i] / sqrt(kk) * beta * (v[j] - known);
                out += s[i * p->v_dim + j] * q[i] / sqrt(qq) / sqrt(p->k_dim);
                terms += fabs(s[i * p->v_dim + j] * q[i] / sqrt(qq) / sqrt(p->k_dim));
            }
            y[t * p->v_dim + j] = (float)out;
            sum += out * out;
            mass += terms * terms;
        }
        worst = fmax(worst, sqrt(mass / fmax(sum, 1e-300)));
        for (int32_t j = 0; j < p->v_dim; j++) {
            y[t * p->v_dim + j] = (float)(y[t * p->v_dim + j] / sqrt(sum / p->v_dim + p->eps) *
                                          in->w.f32[j] * z[j] / (1 + exp(-(double)z[j])));
        }
    }
    free(s);
    return worst;
}

static void delta_of(struct check *c, int32_t n_k, int32_t n_v, int32_t k_dim, int32_t v_dim,
                     int32_t n_seqs, const int32_t *n_rows, float size)
{
    struct ops_delta p = {.n_k = n_k,
                          .n_v = n_v,
                          .k_dim = k_dim,
                          .v_dim = v_dim,
                          .eps = 1e-6f,
                          .ldx = 2 * n_k * k_dim + n_v * v_dim + 3,
                          .ldg = 2 * n_v,
                          .ldz = n_v * v_dim + 1,
                          .ldy = n_v * v_dim + 16};
    struct delta_inputs in;
    struct batch b;

    if (!check_case(c, "delta heads %d %d dims %d %d rows %d of %d size %g", n_k, n_v, k_dim, v_dim,
                    n_rows[0], n_seqs, (double)size)) {
        return;
    }
    make_batch(c, &b, n_seqs, n_rows, (size_t)(n_v * k_dim * v_dim) * sizeof(float), (size_t)p.ldy);
    in.qkv = check_buf(c, "qkv", (size_t)b.n * (size_t)p.ldx * sizeof(float));
    in.gates = check_buf(c, "gates", (size_t)b.n * (size_t)p.ldg * sizeof(float));
    in.z = check_buf(c, "z", (size_t)b.n * (size_t)p.ldz * sizeof(float));
    check_fill(c, in.qkv, size);
    check_fill(c, in.gates, 2);
    check_fill(c, in.z, 1);
    check_weight_make(c, &in.a, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_v, 0.1f);
    check_weight_make(c, &in.dt, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_v, 1);
    check_weight_make(c, &in.w, DTYPE_F32, OPS_ROLE_VECTOR, 1, v_dim, 1);
    c->bench_bytes = (uint64_t)b.n * (uint64_t)(n_v * k_dim * v_dim) * 8;
    while (check_call(c)) {
        p.rows.n = b.n;
        p.a = &in.a.w[c->side];
        p.dt = &in.dt.w[c->side];
        p.w = &in.w.w[c->side];
        p.qkv = check_dev(c, in.qkv);
        p.alpha = check_dev(c, in.gates);
        p.beta = p.alpha + n_v;
        p.z = check_dev(c, in.z);
        run(c, &b, &p, run_delta);
    }
    compare(c, &b, n_v * v_dim, &tol_delta);
    for (int32_t h = 0; h < n_v && !c->bench; h++) {
        float *want = calloc((size_t)(n_rows[0] * v_dim), sizeof(*want));
        float *got = calloc((size_t)(n_rows[0] * v_dim), sizeof(*got));

        double mass = fmax(1, in_double(&p, &in, h, n_rows[0], want) / 10);
        struct tolerance tol = {tol_delta.nmse * mass * mass, tol_delta.max * mass,
                                tol_delta.reason};

        for (int32_t t = 0; t < n_rows[0]; t++) {
            memcpy(got + t * v_dim,
                   (const float *)(const void *)b.y[0]->out[0] + t * p.ldy + h * v_dim,
                   (size_t)v_dim * sizeof(*got));
        }
        check_rows(c, "reference against double", got, want, n_rows[0], v_dim, v_dim, &tol);
        free(want);
        free(got);
    }
    check_weight_free(c, &in.a);
    check_weight_free(c, &in.dt);
    check_weight_free(c, &in.w);
}

static void delta(struct check *c, int32_t n_k, int32_t n_v, int32_t k_dim, int32_t v_dim,
                  int32_t n_seqs, const int32_t *n_rows)
{
    delta_of(c, n_k, n_v, k_dim, v_dim, n_seqs, n_rows, 1);
}

/* ---- state space ------------------------------------------------------------------------------
 */

static int run_scan(struct check *c, void *arg, const struct ops_state *seqs, int32_t n_seqs,
                    void *y)
{
    struct ops_scan *p = arg;

    p->seqs = seqs;
    p->n_seqs = n_seqs;
    p->y = y;
    return c->ops->scan(c->be, p);
}

struct scan_inputs {
    struct check_weight a;
    struct check_weight dt;
    struct check_weight d;
    struct check_weight w;
    struct check_buf *xbc;
    struct check_buf *z;
};

/* The first sequence, whose state is fresh, in double; `step` is where in a row of z steps are. */
static void scan_in_double(const struct ops_scan *p, const struct scan_inputs *in, int32_t step,
                           int32_t n, float *y)
{
    int32_t n_out = p->n_v * p->v_dim;
    int32_t n_cols = n_out / p->n_k;
    double *s = calloc((size_t)(n_out * p->k_dim), sizeof(*s));
    double *row = calloc((size_t)n_out, sizeof(*row));

    for (int32_t t = 0; t < n; t++) {
        for (int32_t j = 0; j < n_out; j++) {
            int32_t h = j / p->v_dim;
            int32_t g = h / (p->n_v / p->n_k);
            const float *b = row_of(in->xbc, t, p->ldx, n_out + g * p->k_dim);
            const float *c = row_of(in->xbc, t, p->ldx, n_out + (p->n_k + g) * p->k_dim);
            double x = *row_of(in->xbc, t, p->ldx, j);
            double z = *row_of(in->z, t, p->ldz, j);
            double by =
                log1p(exp((double)*row_of(in->z, t, p->ldz, step + h) + (double)in->dt.f32[h]));
            double out = (double)in->d.f32[h] * x;

            for (int32_t i = 0; i < p->k_dim; i++) {
                double *at = &s[j * p->k_dim + i];

                *at = *at * exp((double)in->a.f32[h] * by) + (double)b[i] * by * x;
                out += *at * (double)c[i];
            }
            row[j] = out * z / (1 + exp(-z));
        }
        for (int32_t g = 0; g < p->n_k; g++) {
            double sum = 0;

            for (int32_t j = g * n_cols; j < (g + 1) * n_cols; j++) {
                sum += row[j] * row[j];
            }
            for (int32_t j = g * n_cols; j < (g + 1) * n_cols; j++) {
                y[t * n_out + j] =
                    (float)(row[j] / sqrt(sum / n_cols + (double)p->eps) * (double)in->w.f32[j]);
            }
        }
    }
    free(s);
    free(row);
}

static void scan(struct check *c, int32_t n_k, int32_t n_v, int32_t k_dim, int32_t v_dim,
                 int32_t n_seqs, const int32_t *n_rows)
{
    int32_t n_out = n_v * v_dim;
    struct ops_scan p = {.n_k = n_k,
                         .n_v = n_v,
                         .k_dim = k_dim,
                         .v_dim = v_dim,
                         .eps = 1e-5f,
                         .ldx = n_out + 2 * n_k * k_dim + 3,
                         .ldz = n_out + n_v + 5,
                         .ldy = n_out + 16};
    struct scan_inputs in;
    struct batch b;

    if (!check_case(c, "scan heads %d %d dims %d %d rows %d of %d", n_k, n_v, k_dim, v_dim,
                    n_rows[0], n_seqs)) {
        return;
    }
    make_batch(c, &b, n_seqs, n_rows, (size_t)(n_out * k_dim) * sizeof(float), (size_t)p.ldy);
    in.xbc = check_buf(c, "xbc", (size_t)b.n * (size_t)p.ldx * sizeof(float));
    in.z = check_buf(c, "z", (size_t)b.n * (size_t)p.ldz * sizeof(float));
    check_fill(c, in.xbc, 1);
    check_fill(c, in.z, 1);
    check_weight_make(c, &in.a, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_v, 0.1f);
    check_weight_make(c, &in.dt, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_v, 1);
    check_weight_make(c, &in.d, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_v, 1);
    check_weight_make(c, &in.w, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_out, 1);
    c->bench_bytes = (uint64_t)b.n * (uint64_t)(n_out * k_dim) * 8;
    while (check_call(c)) {
        p.rows.n = b.n;
        p.a = &in.a.w[c->side];
        p.dt = &in.dt.w[c->side];
        p.d = &in.d.w[c->side];
        p.w = &in.w.w[c->side];
        p.xbc = check_dev(c, in.xbc);
        p.z = check_dev(c, in.z);
        p.step = p.z + n_out + 2;
        run(c, &b, &p, run_scan);
    }
    compare(c, &b, n_out, &tol_delta);
    if (!c->bench) {
        float *want = calloc((size_t)(n_rows[0] * n_out), sizeof(*want));
        float *got = calloc((size_t)(n_rows[0] * n_out), sizeof(*got));

        scan_in_double(&p, &in, n_out + 2, n_rows[0], want);
        for (int32_t t = 0; t < n_rows[0]; t++) {
            memcpy(got + t * n_out, (const float *)(const void *)b.y[0]->out[0] + t * p.ldy,
                   (size_t)n_out * sizeof(*got));
        }
        check_rows(c, "reference against double", got, want, n_rows[0], n_out, n_out, &tol_delta);
        free(want);
        free(got);
    }
    check_weight_free(c, &in.a);
    check_weight_free(c, &in.dt);
    check_weight_free(c, &in.d);
    check_weight_free(c, &in.w);
}

/* ---- gates ------------------------------------------------------------------------------------
 */

/* bits of `kind`: 1 gate, 2 in place */
static void gate(struct check *c, int32_t n, int32_t n_heads, int32_t dim, int kind)
{
    int32_t width = n_heads * dim;
    struct ops_gate p = {.rows = {.n = n},
                         .n_heads = n_heads,
                         .dim = dim,
                         .ldx = kind & 2 ? width + 3 : 2 * width,
                         .ldg = 2 * width,
                         .ldy = width + 3,
                         .x_step = kind & 2 ? dim : 2 * dim,
                         .gate_step = 2 * dim};
    struct check_buf *x;
    struct check_buf *g;
    struct check_buf *y;

    if (!check_case(c, "gate n %d heads %d of %d kind %d", n, n_heads, dim, kind)) {
        return;
    }
    x = check_buf(c, "x", (size_t)n * (size_t)p.ldx * sizeof(float));
    g = check_buf(c, "gate", (size_t)n * (size_t)p.ldg * sizeof(float));
    y = kind & 2 ? x : check_buf(c, "y", (size_t)n * (size_t)p.ldy * sizeof(float));
    check_fill(c, x, 1);
    check_fill(c, g, 2);
    while (check_call(c)) {
        p.x = check_dev(c, x);
        p.gate = kind & 1 ? (const float *)check_dev(c, g) + dim : NULL;
        p.y = check_dev(c, y);
        c->err = c->ops->gate(c->be, &p);
    }
    check_floats(c, y, n, p.ldy, width, &tol_elementwise);
}

void check_op(struct check *c)
{
    static const int32_t rows[][MAX_SEQS] = {{1, 1, 1}, {2, 1, 5}, {19, 33, 16}, {64, 1, 2}};
    static const int32_t channels[] = {1, 7, 16, 33, 150};
    static const int32_t many[] = {512, 0, 0};

    if (!c->sides[1]->ops->delta) {
        return;
    }
    if (c->bench) {
        conv(c, 6144, 4, 4, 1, rows[0]);
        conv(c, 6144, 4, 4, 1, many);
        delta(c, 16, 16, 128, 128, 1, rows[0]);
        delta(c, 16, 16, 128, 128, 1, many);
        delta(c, 16, 32, 128, 128, 1, many);
        if (c->sides[1]->ops->scan) {
            scan(c, 1, 48, 128, 64, 1, rows[0]);
            scan(c, 1, 48, 128, 64, 1, many);
        }
        return;
    }
    for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++) {
        for (int kind = 0; kind < 16; kind++) {
            conv(c, channels[i], 3 + kind % 2, kind, 3, rows[i % 4]);
        }
        conv(c, channels[i], 2, 0, 1, rows[2]);
        conv(c, channels[i], 8, 7, 2, rows[1]);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        delta(c, 1, 1, 16, 16, 3, rows[i]);
        delta(c, 2, 4, 32, 48, 3, rows[i]);
        delta(c, 2, 6, 16, 80, 1, rows[i]);
        delta(c, 2, 2, 128, 128, 2, rows[i]);
    }
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && c->sides[1]->ops->scan; i++) {
        scan(c, 1, 1, 16, 16, 3, rows[i]);
        scan(c, 2, 4, 19, 48, 3, rows[i]);
        scan(c, 1, 6, 33, 80, 2, rows[i]);
        scan(c, 2, 2, 128, 64, 2, rows[i]);
    }
    if (c->sides[1]->ops->scan) {
        scan(c, 1, 2, 256, 256, 2, rows[1]);
    }
    delta(c, 1, 2, 256, 256, 2, rows[1]);
    delta_of(c, 2, 2, 32, 32, 2, rows[2], 1e-3f); /* eps is felt */
    for (int kind = 0; kind < 4; kind++) {
        gate(c, 1, 1, 1, kind);
        gate(c, 3, 2, 17, kind);
        gate(c, 40, 4, 64, kind);
    }
}
