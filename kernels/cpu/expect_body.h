/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_EXPECT_BODY_H
#define PIPIT_KERNELS_CPU_EXPECT_BODY_H

/* Expected attention, written once over the lanes of kernels/cpu/lanes_c.h (see panel_body.h for
 * how it is used). Both products keep a block of sums in registers: rows of the triangle by
 * vectors. How large the block is changes no sum's order. */

#include <math.h>

#include "kernels/cpu/row_body.h"
#include "kernels/cpu/table.h"
#include "kernels/ops_expect.h"

enum {
    EXPECT_WIDE = LANES_TILE >= 16,         /* 32 registers of 512 bits */
    EXPECT_ADD_ROWS = EXPECT_WIDE ? 8 : 4,  /* divide EXPECT_LANES */
    EXPECT_ADD_COLS = EXPECT_WIDE ? 2 : 1,  /* vectors */
    EXPECT_KEY_ROWS = 4,
    EXPECT_KEY_COLS = EXPECT_WIDE ? 4 : 1,  /* vectors, divide 4 */
};

/* Rows from i0 on of the triangle, nv vectors of columns from `at` on. */
LANES_INLINE void expect_add_block(float *products, const float *q, int32_t padded, int32_t n_rows,
                                   int32_t i0, int32_t at, const int nv)
{
    lf x[EXPECT_ADD_ROWS][EXPECT_ADD_COLS];
    float *to = products + expect_row(i0) + at;
    const int32_t ld = expect_row(i0 + 1) - expect_row(i0); /* of all rows of 16 */

    UNROLL_LOOP
    for (int i = 0; i < EXPECT_ADD_ROWS; i++) {
        UNROLL_LOOP
        for (int v = 0; v < nv; v++) {
            x[i][v] = lf_load(to + i * ld + 16 * v);
        }
    }
    for (int32_t r = 0; r < n_rows; r++, q += padded) {
        lf other[EXPECT_ADD_COLS];

        UNROLL_LOOP
        for (int v = 0; v < nv; v++) {
            other[v] = lf_load(q + at + 16 * v);
        }
        UNROLL_LOOP
        for (int i = 0; i < EXPECT_ADD_ROWS; i++) {
            lf d = lf_set1(q[i0 + i]);

            UNROLL_LOOP
            for (int v = 0; v < nv; v++) {
                x[i][v] = lf_fma(d, other[v], x[i][v]);
            }
        }
    }
    UNROLL_LOOP
    for (int i = 0; i < EXPECT_ADD_ROWS; i++) {
        UNROLL_LOOP
        for (int v = 0; v < nv; v++) {
            lf_store(to + i * ld + 16 * v, x[i][v]);
        }
    }
}

static void LANES_FN(expect_add)(float *stats, float *q, int32_t n_rows, int32_t k_dim,
                                 bool with_cov)
{
    const int32_t padded = expect_padded(k_dim);
    float *sum = stats + padded;
    float *products = sum + padded;

    for (int32_t c = 0; c < padded; c += 16) {
        lf first = lf_load(stats + c);
        lf s = lf_load(sum + c);

        for (int32_t r = 0; r < n_rows; r++) {
            lf d = lf_sub(lf_load(q + r * padded + c), first);

            lf_store(q + r * padded + c, d);
            s = lf_add(s, d);
        }
        lf_store(sum + c, s);
    }
    for (int32_t i = 0; with_cov && i < k_dim; i += EXPECT_ADD_ROWS) {
        const int32_t end = (i / EXPECT_LANES + 1) * EXPECT_LANES;
        int32_t at = 0;

        for (; at + 16 * EXPECT_ADD_COLS <= end; at += 16 * EXPECT_ADD_COLS) {
            expect_add_block(products, q, padded, n_rows, i, at, EXPECT_ADD_COLS);
        }
        for (; at < end; at += 16) {
            expect_add_block(products, q, padded, n_rows, i, at, 1);
        }
    }
}

/* ni rows from i0 on, of EXPECT_KEY_COLS vectors of keys from k on. */
LANES_INLINE void expect_keys_block(const float *mean, const float *cov, const float *k, int32_t i0,
                                    const int ni, lf *x)
{
    lf y[EXPECT_KEY_ROWS][EXPECT_KEY_COLS];
    const float *row = cov + expect_row(i0);
    const int32_t ld = expect_row(i0 + 1) - expect_row(i0);

    UNROLL_LOOP
    for (int i = 0; i < ni; i++) {
        UNROLL_LOOP
        for (int v = 0; v < EXPECT_KEY_COLS; v++) {
            y[i][v] = lf_set1(mean[i0 + i]);
        }
    }
    for (int32_t j = 0; j < i0 + ni; j++) {
        lf other[EXPECT_KEY_COLS];

        UNROLL_LOOP
        for (int v = 0; v < EXPECT_KEY_COLS; v++) {
            other[v] = lf_load(k + OPS_PAGE_SLOTS * j + 16 * v);
        }
        UNROLL_LOOP
        for (int i = 0; i < ni; i++) {
            lf w = lf_set1(row[i * ld + j]);

            UNROLL_LOOP
            for (int v = 0; v < EXPECT_KEY_COLS; v++) {
                y[i][v] = lf_fma(w, other[v], y[i][v]);
            }
        }
    }
    UNROLL_LOOP
    for (int i = 0; i < ni; i++) {
        UNROLL_LOOP
        for (int v = 0; v < EXPECT_KEY_COLS; v++) {
            x[v] = lf_fma(y[i][v], lf_load(k + OPS_PAGE_SLOTS * (i0 + i) + 16 * v), x[v]);
        }
    }
}

static void LANES_FN(expect_exponents)(const float *mean, const float *cov, const float *k,
                                       int32_t k_dim, float *x)
{
    for (int32_t s = 0; s < OPS_PAGE_SLOTS; s += 16 * EXPECT_KEY_COLS) {
        lf sum[EXPECT_KEY_COLS];
        int32_t i = 0;

        UNROLL_LOOP
        for (int v = 0; v < EXPECT_KEY_COLS; v++) {
            sum[v] = lf_set1(0.0f);
        }
        for (; cov && i + EXPECT_KEY_ROWS <= k_dim; i += EXPECT_KEY_ROWS) {
            expect_keys_block(mean, cov, k + s, i, EXPECT_KEY_ROWS, sum);
        }
        for (; cov && i < k_dim; i++) {
            expect_keys_block(mean, cov, k + s, i, 1, sum);
        }
        for (; i < k_dim; i++) {
            lf m = lf_set1(mean[i]);

            UNROLL_LOOP
            for (int v = 0; v < EXPECT_KEY_COLS; v++) {
                sum[v] = lf_fma(m, lf_load(k + OPS_PAGE_SLOTS * i + s + 16 * v), sum[v]);
            }
        }
        UNROLL_LOOP
        for (int v = 0; v < EXPECT_KEY_COLS; v++) {
            lf_store(x + s + 16 * v, sum[v]);
        }
    }
}

static float LANES_FN(expect_weights)(float *x, int32_t n)
{
    lf m = lf_set1(-INFINITY);
    lf sum = lf_set1(0.0f);
    float lane[16];
    float most = -INFINITY;

    for (int32_t i = 0; i < n; i += 16) {
        m = lf_max(lf_load(x + i), m);
    }
    lf_store(lane, m);
    for (int i = 0; i < 16; i++) {
        most = lane[i] > most ? lane[i] : most;
    }
    if (!(most > -INFINITY)) {
        return 0;
    }
    m = lf_set1(most);
    for (int32_t i = 0; i < n; i += 16) {
        lf e = row_exp(lf_sub(lf_load(x + i), m));

        lf_store(x + i, e);
        sum = lf_add(sum, e);
    }
    return lf_sum(sum);
}

static void LANES_FN(expect_lengths)(const float *v, int32_t pad, int32_t n, float *ret)
{
    for (int32_t s = 0; s < n; s++, v += pad) {
        lf acc = lf_set1(0.0f);

        for (int32_t i = 0; i < pad; i += 16) {
            lf x = lf_load(v + i);

            acc = lf_fma(x, x, acc);
        }
        ret[s] = sqrtf(lf_sum(acc));
    }
}

static inline void expect_body_set(struct cpu_table *t)
{
    LANES_SET(t, expect_add);
    LANES_SET(t, expect_exponents);
    LANES_SET(t, expect_weights);
    LANES_SET(t, expect_lengths);
}

#endif
