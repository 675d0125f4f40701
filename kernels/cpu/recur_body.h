/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_RECUR_BODY_H
#define PIPIT_KERNELS_CPU_RECUR_BODY_H

/* Recurrent layers, written once over the lanes of kernels/cpu/lanes_c.h (see panel_body.h for how
 * it is used).
 *
 * Columns of a head's matrix do not touch each other, so a block of them stays in the first cache
 * while all rows pass. Each pass updates the block, multiplies it with this row's q and, for what
 * the next row will find, with the next row's k: every element is read and written once a row. The
 * sums run over the matrix's rows in order, so how many rows a call has does not show. */

#include "kernels/cpu/row_body.h"
#include "kernels/cpu/table_recur.h"

enum { RECUR_VECTORS = LANES_TILE >= 16 ? 4 : 2 /* of 16 columns, in a block */ };

/* known = k S of columns [col, col + 16 nv). */
LANES_INLINE void delta_known(const struct cpu_delta *d, int32_t col, const int nv, lf *known)
{
    for (int u = 0; u < nv; u++) {
        known[u] = lf_set1(0.0f);
    }
    for (int32_t i = 0; i < d->k_dim; i++) {
        const float *s = d->from + (size_t)i * (size_t)d->v_dim + col;
        lf k = lf_set1(d->k[i]);

        UNROLL_LOOP
        for (int u = 0; u < nv; u++) {
            known[u] = lf_fma(lf_load(s + 16 * u), k, known[u]);
        }
    }
}

/* Row t of the same columns; known becomes the next row's, where there is one. */
LANES_INLINE void delta_pass(const struct cpu_delta *d, int32_t t, int32_t col, const int nv,
                             const int more, lf *known)
{
    const float *from = t == 0 ? d->from : d->to;
    const float *q = d->q + (size_t)t * (size_t)d->k_dim;
    const float *k = d->k + (size_t)t * (size_t)d->k_dim;
    const float *next = more ? k + d->k_dim : k;
    const float *v = d->v + (size_t)t * d->ldv + col;
    float *y = d->y + (size_t)t * d->ldy + col;
    lf decay = lf_set1(d->decay[t]);
    lf learn[RECUR_VECTORS];
    lf out[RECUR_VECTORS];

    UNROLL_LOOP
    for (int u = 0; u < nv; u++) {
        learn[u] = lf_mul(lf_set1(d->beta[t]), lf_fnma(decay, known[u], lf_load(v + 16 * u)));
        known[u] = lf_set1(0.0f);
        out[u] = known[u];
    }
    for (int32_t i = 0; i < d->k_dim; i++) {
        size_t at = (size_t)i * (size_t)d->v_dim + (size_t)col;
        lf ki = lf_set1(k[i]);
        lf qi = lf_set1(q[i]);
        lf ni = lf_set1(next[i]);

        UNROLL_LOOP
        for (int u = 0; u < nv; u++) {
            lf s = lf_fma(ki, learn[u], lf_mul(decay, lf_load(from + at + 16 * u)));

            lf_store(d->to + at + 16 * u, s);
            out[u] = lf_fma(s, qi, out[u]);
            if (more) {
                known[u] = lf_fma(s, ni, known[u]);
            }
        }
    }
    UNROLL_LOOP
    for (int u = 0; u < nv; u++) {
        lf_store(y + 16 * u, out[u]);
    }
}

LANES_INLINE void delta_columns(const struct cpu_delta *d, int32_t col, const int nv)
{
    lf known[RECUR_VECTORS];

    delta_known(d, col, nv, known);
    for (int32_t t = 0; t + 1 < d->n; t++) {
        delta_pass(d, t, col, nv, 1, known);
    }
    delta_pass(d, d->n - 1, col, nv, 0, known);
}

static void LANES_FN(delta)(const struct cpu_delta *d)
{
    int32_t col = 0;

    for (; col + 16 * RECUR_VECTORS <= d->v_dim; col += 16 * RECUR_VECTORS) {
        delta_columns(d, col, RECUR_VECTORS);
    }
    for (; col < d->v_dim; col += 16) {
        delta_columns(d, col, 1);
    }
}

/* Row t of columns [col, col + 16 nv) of a state space. */
LANES_INLINE void scan_pass(const struct cpu_scan *d, int32_t t, int32_t col, const int nv)
{
    const float *from = t == 0 ? d->from : d->to;
    const float *b = d->b + (size_t)t * d->ldx;
    const float *c = d->c + (size_t)t * d->ldx;
    const float *x = d->x + (size_t)t * d->ldx + col;
    float *y = d->y + (size_t)t * d->ldy + col;
    lf decay = lf_set1(d->decay[t]);
    lf step = lf_set1(d->step[t]);
    lf in[RECUR_VECTORS];
    lf out[RECUR_VECTORS];

    UNROLL_LOOP
    for (int u = 0; u < nv; u++) {
        in[u] = lf_mul(step, lf_load(x + 16 * u));
        out[u] = lf_set1(0.0f);
    }
    for (int32_t i = 0; i < d->k_dim; i++) {
        size_t at = (size_t)i * (size_t)d->v_dim + (size_t)col;
        lf bi = lf_set1(b[i]);
        lf ci = lf_set1(c[i]);

        UNROLL_LOOP
        for (int u = 0; u < nv; u++) {
            lf s = lf_fma(bi, in[u], lf_mul(decay, lf_load(from + at + 16 * u)));

            lf_store(d->to + at + 16 * u, s);
            out[u] = lf_fma(s, ci, out[u]);
        }
    }
    UNROLL_LOOP
    for (int u = 0; u < nv; u++) {
        lf_store(y + 16 * u, lf_fma(lf_set1(d->d), lf_load(x + 16 * u), out[u]));
    }
}

static void LANES_FN(scan)(const struct cpu_scan *d)
{
    int32_t col = 0;

    for (; col + 16 * RECUR_VECTORS <= d->v_dim; col += 16 * RECUR_VECTORS) {
        for (int32_t t = 0; t < d->n; t++) {
            scan_pass(d, t, col, RECUR_VECTORS);
        }
    }
    for (; col < d->v_dim; col += 16) {
        for (int32_t t = 0; t < d->n; t++) {
            scan_pass(d, t, col, 1);
        }
    }
}

LANES_INLINE void conv_rows(const struct cpu_conv *c, const int width, const int part)
{
    const int32_t n = c->n_channels;
    const lf bias = c->bias ? lf_load(c->bias) : lf_set1(0.0f);
    lf u[OPS_CONV_MAX_WIDTH];
    lf w[OPS_CONV_MAX_WIDTH];

    for (int j = 0; j < width; j++) {
        w[j] = lf_load(c->w + (size_t)(16 * j));
        u[j] = j + 1 < width ? lf_load(c->u + (size_t)(16 * j)) : lf_set1(0.0f);
    }
    for (int32_t t = 0; t < c->n; t++) {
        const size_t at = (size_t)t * c->ldx;
        lf z = bias;
        lf x = part ? row_load_part(c->x + at, n, 0.0f) : lf_load(c->x + at);

        if (c->before) {
            const float *b = c->before + at;

            x = lf_mul(x, part ? row_load_part(b, n, 0.0f) : lf_load(b));
        }
        u[width - 1] = x;
        UNROLL_LOOP
        for (int j = 0; j < width; j++) {
            z = lf_fma(w[j], u[j], z);
        }
        UNROLL_LOOP
        for (int j = 0; j + 1 < width; j++) {
            u[j] = u[j + 1];
        }
        z = row_act(z, c->act);
        if (c->after) {
            const float *a = c->after + at;

            z = lf_mul(z, part ? row_load_part(a, n, 0.0f) : lf_load(a));
        }
        if (part) {
            row_store_part(c->y + (size_t)t * c->ldy, n, z);
        } else {
            lf_store(c->y + (size_t)t * c->ldy, z);
        }
    }
    for (int j = 0; j + 1 < width; j++) {
        lf_store(c->u + (size_t)(16 * j), u[j]);
    }
}

static void LANES_FN(conv)(const struct cpu_conv *c)
{
    const int part = c->n_channels < 16;

    if (!part && c->width == 4) {
        conv_rows(c, 4, 0);
    } else if (!part && c->width == 3) {
        conv_rows(c, 3, 0);
    } else {
        conv_rows(c, c->width, part);
    }
}

static void LANES_FN(gate)(const float *x, const float *g, int32_t n, bool silu, float *y)
{
    const lf one = lf_set1(1.0f);

    for (int32_t i = 0; i < n; i += 16) {
        const int32_t m = n - i < 16 ? n - i : 16;
        lf v = m < 16 ? row_load_part(g + i, m, 0.0f) : lf_load(g + i);
        lf by = lf_add(one, row_exp(lf_sub(lf_set1(0.0f), v)));
        lf a = m < 16 ? row_load_part(x + i, m, 0.0f) : lf_load(x + i);

        a = silu ? lf_mul(a, lf_div(v, by)) : lf_div(a, by);
        if (m < 16) {
            row_store_part(y + i, m, a);
        } else {
            lf_store(y + i, a);
        }
    }
}

static inline void recur_body_set(struct cpu_table *t)
{
    LANES_SET(t, delta);
    LANES_SET(t, scan);
    LANES_SET(t, conv);
    LANES_SET(t, gate);
}

#endif
