/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ROW_BODY_H
#define PIPIT_KERNELS_CPU_ROW_BODY_H

/* Norms, quantisation of activations, the end of a matmul and soft-capping, written once over the
 * lanes of kernels/cpu/lanes_c.h (see panel_body.h for how it is used).
 *
 * NaN and Inf: a block of activations that holds one gets a NaN scale, so the row's results are NaN
 * as they would be in f32, and no conversion sees a number it cannot hold. Blocks below 2^-100
 * count as zero: the reciprocal of their scale could overflow. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifndef LANES_FN
#include "kernels/cpu/lanes_c.h"
#endif
#include "kernels/cpu/table.h"
#include "quant/half.h"

/* n of 16 lanes from p, the rest `fill`. */
LANES_INLINE lf row_load_part(const float *p, int32_t n, float fill)
{
    float v[16];

    for (int i = 0; i < 16; i++) {
        v[i] = fill;
    }
    memcpy(v, p, (size_t)n * sizeof(float));
    return lf_load(v);
}

LANES_INLINE void row_store_part(float *p, int32_t n, lf a)
{
    float v[16];

    lf_store(v, a);
    memcpy(p, v, (size_t)n * sizeof(float));
}

/* e^x, x cut to [-87, 88]; NaN stays. 2^n times a Taylor polynomial on [-ln2/2, ln2/2], whose first
 * term left out is 5e-9. */
LANES_INLINE lf row_exp(lf x)
{
    x = lf_max(lf_set1(-87.0f), lf_min(lf_set1(88.0f), x));

    li n = li_round(lf_mul(x, lf_set1(1.44269504f)));
    lf nf = lf_of_int(n);
    lf r = lf_fnma(nf, lf_set1(1.42860677e-6f), lf_fnma(nf, lf_set1(0.693145752f), x));
    lf p = lf_set1(1.0f / 5040);

    p = lf_fma(p, r, lf_set1(1.0f / 720));
    p = lf_fma(p, r, lf_set1(1.0f / 120));
    p = lf_fma(p, r, lf_set1(1.0f / 24));
    p = lf_fma(p, r, lf_set1(1.0f / 6));
    p = lf_fma(p, r, lf_set1(0.5f));
    p = lf_fma(p, r, lf_set1(1.0f));
    p = lf_fma(p, r, lf_set1(1.0f));
    return lf_mul(p, lf_bits(li_shl(li_add(n, li_set1(127)), 23)));
}

LANES_INLINE lf row_tanh(lf x)
{
    lf e = row_exp(lf_add(x, x));

    return lf_sub(lf_set1(1.0f), lf_div(lf_set1(2.0f), lf_add(e, lf_set1(1.0f))));
}

LANES_INLINE lf row_gelu_erf(lf x)
{
    float v[16];

    lf_store(v, x);
    for (int i = 0; i < 16; i++) {
        v[i] = 0.5f * v[i] * (1.0f + erff(v[i] * 0.707106781f));
    }
    return lf_load(v);
}

LANES_INLINE lf row_act(lf x, enum ops_act act)
{
    const lf one = lf_set1(1.0f);

    switch (act) {
    case OPS_ACT_NONE:
        break;
    case OPS_ACT_SILU:
        return lf_div(x, lf_add(one, row_exp(lf_sub(lf_set1(0.0f), x))));
    case OPS_ACT_GELU_TANH: {
        lf cube = lf_mul(lf_mul(x, x), lf_mul(x, lf_set1(0.044715f)));
        lf u = lf_mul(lf_set1(0.797884561f), lf_add(x, cube));

        return lf_mul(lf_mul(lf_set1(0.5f), x), lf_add(one, row_tanh(u)));
    }
    case OPS_ACT_GELU_ERF:
        return row_gelu_erf(x);
    case OPS_ACT_RELU:
        return lf_max(lf_set1(0.0f), x);
    case OPS_ACT_RELU_SQ: {
        lf v = lf_max(lf_set1(0.0f), x);

        return lf_mul(v, v);
    }
    case OPS_ACT_SWIGLU_OAI: {
        lf v = lf_min(lf_set1(7.0f), x); /* NaN stays: it is the second operand */

        return lf_div(v, lf_add(one, row_exp(lf_mul(v, lf_set1(-1.702f)))));
    }
    }
    return x;
}

static void LANES_FN(norm_rms)(const float *x, const float *w, const float *b, float eps, int32_t n,
                               float *y)
{
    lf acc = lf_set1(0.0f);
    int32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        lf v = lf_load(x + i);

        acc = lf_fma(v, v, acc);
    }
    if (i < n) {
        lf v = row_load_part(x + i, n - i, 0.0f);

        acc = lf_fma(v, v, acc);
    }
    lf r = lf_set1(1.0f / sqrtf(lf_sum(acc) / (float)n + eps));

    for (i = 0; i + 16 <= n; i += 16) {
        lf v = lf_mul(lf_mul(lf_load(x + i), r), lf_load(w + i));

        lf_store(y + i, b ? lf_add(v, lf_load(b + i)) : v);
    }
    if (i < n) {
        lf v = lf_mul(row_load_part(x + i, n - i, 0.0f), r);

        v = lf_mul(v, row_load_part(w + i, n - i, 0.0f));
        v = b ? lf_add(v, row_load_part(b + i, n - i, 0.0f)) : v;
        row_store_part(y + i, n - i, v);
    }
}

static void LANES_FN(norm_layer)(const float *x, const float *w, const float *b, float eps,
                                 int32_t n, float *y)
{
    lf acc = lf_set1(0.0f);
    int32_t whole = n - n % 16;
    int32_t i;

    for (i = 0; i < whole; i += 16) {
        acc = lf_add(acc, lf_load(x + i));
    }
    if (i < n) {
        acc = lf_add(acc, row_load_part(x + i, n - i, 0.0f));
    }
    float mean = lf_sum(acc) / (float)n;
    lf mv = lf_set1(mean);

    acc = lf_set1(0.0f);
    for (i = 0; i < whole; i += 16) {
        lf v = lf_sub(lf_load(x + i), mv);

        acc = lf_fma(v, v, acc);
    }
    if (i < n) {
        lf v = lf_sub(row_load_part(x + i, n - i, mean), mv);

        acc = lf_fma(v, v, acc);
    }
    lf r = lf_set1(1.0f / sqrtf(lf_sum(acc) / (float)n + eps));

    for (i = 0; i < whole; i += 16) {
        lf v = lf_mul(lf_mul(lf_sub(lf_load(x + i), mv), r), lf_load(w + i));

        lf_store(y + i, b ? lf_add(v, lf_load(b + i)) : v);
    }
    if (i < n) {
        lf v = lf_mul(lf_sub(row_load_part(x + i, n - i, mean), mv), r);

        v = lf_mul(v, row_load_part(w + i, n - i, 0.0f));
        v = b ? lf_add(v, row_load_part(b + i, n - i, 0.0f)) : v;
        row_store_part(y + i, n - i, v);
    }
}

static void LANES_FN(quantize)(const float *x, int32_t n, struct panel_act *y)
{
    const li magnitude = li_set1(0x7fffffff);

    for (int32_t b = 0; b < n / PANEL_COLS; b++, x += PANEL_COLS, y++) {
        lf lo = lf_load(x);
        lf hi = lf_load(x + 16);
        li m = li_max_u32(li_and(li_bits(lo), magnitude), li_and(li_bits(hi), magnitude));
        uint32_t top = li_max_of_u32(m);
        float absmax = half_from_bits32(top);

        if (top >= 0x7f800000 || absmax < 0x1p-100f) {
            memset(y, 0, sizeof(*y));
            y->d = top >= 0x7f800000 ? half_from_bits32(0x7fc00000) : 0.0f;
            y->s = y->d;
            continue;
        }
        lf id = lf_set1(127.0f / absmax);
        li q0 = li_round(lf_mul(lo, id));
        li q1 = li_round(lf_mul(hi, id));
        int32_t s0 = li_sum(q0);
        int32_t s1 = li_sum(q1);

        y->d = absmax / 127.0f;
        y->s = y->d * (float)(s0 + s1);
        y->nsum[0] = -(s0 + s1);
        y->nsum[1] = -s0;
        li_store_i8(y->q, q0);
        li_store_i8(y->q + 16, q1);
    }
}

static void LANES_FN(epilogue)(const struct cpu_epilogue *e)
{
    const int part = e->n_rows < 16;
    const int32_t rows = e->n_rows;
    const lf zero = lf_set1(0.0f);
    const lf scale = lf_set1(e->scale);
    const lf u_scale = lf_set1(e->u_scale);
    lf bias = e->bias ? row_load_part(e->bias, rows, 0.0f) : zero;
    lf u_bias = e->u_bias ? row_load_part(e->u_bias, rows, 0.0f) : zero;

    bias = lf_mul(bias, lf_set1(e->bias_scale));
    u_bias = lf_mul(u_bias, lf_set1(e->u_bias_scale));

    for (int32_t t = 0; t < e->n; t++) {
        float *y = e->y + (size_t)t * e->ldy;
        lf v = lf_mul(lf_load(e->g + 16 * (size_t)t), scale);

        /* The next panel's line of this row: rows are far apart, no hardware prefetcher sees it. */
        lanes_prefetch_write(y + 16);
        v = e->bias ? lf_add(v, bias) : v;
        v = row_act(v, e->act);
        if (e->u) {
            lf u = lf_mul(lf_load(e->u + 16 * (size_t)t), u_scale);

            u = e->u_bias ? lf_add(u, u_bias) : u;
            if (e->act == OPS_ACT_SWIGLU_OAI) {
                u = lf_max(lf_set1(-7.0f), lf_min(lf_set1(7.0f), u));
                u = lf_add(u, lf_set1(1.0f));
            }
            v = lf_mul(v, u);
        }
        if (!part) {
            lf_store(y, e->add ? lf_add(lf_load(y), v) : v);
        } else {
            row_store_part(y, rows, e->add ? lf_add(row_load_part(y, rows, 0.0f), v) : v);
        }
    }
}

static void LANES_FN(softcap)(float *x, int32_t n, float cap)
{
    const lf c = lf_set1(cap);
    int32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        lf_store(x + i, lf_mul(c, row_tanh(lf_div(lf_load(x + i), c))));
    }
    if (i < n) {
        lf v = row_load_part(x + i, n - i, 0.0f);

        row_store_part(x + i, n - i, lf_mul(c, row_tanh(lf_div(v, c))));
    }
}

static inline void row_body_set(struct cpu_table *t)
{
    LANES_SET(t, norm_rms);
    LANES_SET(t, norm_layer);
    LANES_SET(t, quantize);
    LANES_SET(t, epilogue);
    LANES_SET(t, softcap);
}

#endif
