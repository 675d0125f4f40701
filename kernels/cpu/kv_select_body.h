/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_SELECT_BODY_H
#define PIPIT_KERNELS_CPU_KV_SELECT_BODY_H

/* Reading parts of the cache, over the lanes (see kv_body.h): some dims of all slots, some slots'
 * rows, and the search for a threshold.
 *
 * dims: with one query head a sum has only n_slots / 16 chains, and 32 dims are over before the
 * adders are busy; even and odd dims therefore add up apart where a single pair is multiplied. */

#include "kernels/cpu/kv_body.h"

/* rows pairs against cols vectors of 16 slots; `both`: even and odd dims in sums of their own */
LANES_INLINE void kv_dims_tile(enum ops_kv_type type, int rows, int cols, bool both, const void *k,
                               const int32_t *dims, int32_t n_dims, const float *q, size_t ldq,
                               int32_t slot0, float *x, size_t ldx, const void *ahead)
{
    const int halves = both ? 2 : 1;
    lf sum[2][KV_ROWS][KV_COLS];
    int32_t j = 0;

#pragma GCC unroll 8
    for (int h = 0; h < halves; h++) {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int c = 0; c < cols; c++) {
                sum[h][r][c] = lf_set1(0.0f);
            }
        }
    }
    for (; j + halves <= n_dims; j += halves) {
#pragma GCC unroll 2
        for (int h = 0; h < halves; h++) {
            size_t at = (size_t)(dims ? dims[j + h] : j + h) * CPU_KV_SLOTS + (size_t)slot0;

            if (ahead) {
                const uint8_t *line = (const uint8_t *)ahead + at * kv_element_bytes(type);

                for (size_t b = 0; b < (size_t)(16 * cols) * kv_element_bytes(type); b += 64) {
                    lanes_prefetch(line + b);
                }
            }
#pragma GCC unroll 8
            for (int c = 0; c < cols; c++) {
                lf v = kv_load(type, k, at + (size_t)(16 * c));

#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    lf w = lf_set1(q[(size_t)r * ldq + (size_t)(j + h)]);

                    sum[h][r][c] = kv_fma(w, v, sum[h][r][c]);
                }
            }
        }
    }
    if (j < n_dims) { /* an odd one is left */
        size_t at = (size_t)(dims ? dims[j] : j) * CPU_KV_SLOTS + (size_t)slot0;

#pragma GCC unroll 8
        for (int c = 0; c < cols; c++) {
            lf v = kv_load(type, k, at + (size_t)(16 * c));

#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                lf w = lf_set1(q[(size_t)r * ldq + (size_t)j]);

                sum[0][r][c] = kv_fma(w, v, sum[0][r][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int c = 0; c < cols; c++) {
            lf s = both ? lf_add(sum[0][r][c], sum[1][r][c]) : sum[0][r][c];

            lf_store(x + (size_t)r * ldx + (size_t)(16 * c), s);
        }
    }
}

/* rows pairs (a constant) over all vectors asked for; x begins at slot 0 */
LANES_INLINE void kv_dims_rows(enum ops_kv_type type, int rows, const void *k, const int32_t *dims,
                               int32_t n_dims, const float *q, size_t ldq, int32_t slot0,
                               int32_t n_slots, float *x, size_t ldx, const void *ahead)
{
    int32_t s = slot0;

    for (; s + 16 * KV_COLS <= slot0 + n_slots; s += 16 * KV_COLS) {
        kv_dims_tile(type, rows, KV_COLS, true, k, dims, n_dims, q, ldq, s, x + s, ldx, ahead);
    }
    for (; s < slot0 + n_slots; s += 16) {
        kv_dims_tile(type, rows, 1, true, k, dims, n_dims, q, ldq, s, x + s, ldx, ahead);
    }
}

enum { KV_DIMS_ROWS = KV_ROWS < 3 ? KV_ROWS : 3 }; /* with both halves, sums stay in registers */

LANES_INLINE void kv_dims(enum ops_kv_type type, const void *k, const int32_t *dims, int32_t n_dims,
                          const float *q, size_t ldq, int32_t n, int32_t slot0, int32_t n_slots,
                          float *x, size_t ldx, const void *ahead)
{
    for (; n >= KV_DIMS_ROWS; n -= KV_DIMS_ROWS) {
        kv_dims_rows(type, KV_DIMS_ROWS, k, dims, n_dims, q, ldq, slot0, n_slots, x, ldx, ahead);
        q += KV_DIMS_ROWS * ldq;
        x += KV_DIMS_ROWS * ldx;
        ahead = NULL;
    }
    if (n == 2) {
        kv_dims_rows(type, KV_DIMS_ROWS > 2 ? 2 : 1, k, dims, n_dims, q, ldq, slot0, n_slots, x,
                     ldx, ahead);
    } else if (n == 1) {
        kv_dims_rows(type, 1, k, dims, n_dims, q, ldq, slot0, n_slots, x, ldx, ahead);
    }
}

/* ---- rows ---------------------------------------------------------------------------------- */

enum { KV_LINE_ROWS = 4 }; /* rows whose dot products run side by side */

LANES_INLINE void kv_rows(enum ops_kv_type type, const void *const *rows, int32_t n_rows,
                          int32_t pad, const float *q, size_t ldq, int32_t n, float *x, size_t ldx)
{
    int32_t s = 0;

    for (; s + KV_LINE_ROWS <= n_rows; s += KV_LINE_ROWS) {
        for (int32_t i = 0; i < n; i++) {
            lf sum[KV_LINE_ROWS];

#pragma GCC unroll 4
            for (int r = 0; r < KV_LINE_ROWS; r++) {
                sum[r] = lf_set1(0.0f);
            }
            for (int32_t d = 0; d < pad; d += 16) {
                lf w = lf_load(q + (size_t)i * ldq + (size_t)d);

#pragma GCC unroll 4
                for (int r = 0; r < KV_LINE_ROWS; r++) {
                    sum[r] = kv_fma(w, kv_load(type, rows[s + r], (size_t)d), sum[r]);
                }
            }
#pragma GCC unroll 4
            for (int r = 0; r < KV_LINE_ROWS; r++) {
                x[(size_t)i * ldx + (size_t)(s + r)] = lf_sum(sum[r]);
            }
        }
    }
    for (; s < n_rows; s++) {
        for (int32_t i = 0; i < n; i++) {
            lf sum = lf_set1(0.0f);

            for (int32_t d = 0; d < pad; d += 16) {
                sum = kv_fma(lf_load(q + (size_t)i * ldq + (size_t)d),
                             kv_load(type, rows[s], (size_t)d), sum);
            }
            x[(size_t)i * ldx + (size_t)s] = lf_sum(sum);
        }
    }
}

/* rows pairs and cols vectors of 16 dims from d0 on */
LANES_INLINE void kv_blend_tile(enum ops_kv_type type, int pairs, int cols, const void *const *rows,
                                int32_t n_rows, int32_t pad, int32_t d0, const float *e, size_t lde,
                                float *acc)
{
    lf sum[KV_ROWS][KV_COLS];

#pragma GCC unroll 8
    for (int i = 0; i < pairs; i++) {
#pragma GCC unroll 8
        for (int c = 0; c < cols; c++) {
            sum[i][c] = lf_load(acc + i * pad + d0 + 16 * c);
        }
    }
    for (int32_t s = 0; s < n_rows; s++) {
#pragma GCC unroll 8
        for (int c = 0; c < cols; c++) {
            lf v = kv_load(type, rows[s], (size_t)(d0 + 16 * c));

#pragma GCC unroll 8
            for (int i = 0; i < pairs; i++) {
                sum[i][c] = kv_fma(lf_set1(e[(size_t)i * lde + (size_t)s]), v, sum[i][c]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < pairs; i++) {
#pragma GCC unroll 8
        for (int c = 0; c < cols; c++) {
            lf_store(acc + i * pad + d0 + 16 * c, sum[i][c]);
        }
    }
}

LANES_INLINE void kv_blend_pairs(enum ops_kv_type type, int pairs, const void *const *rows,
                                 int32_t n_rows, int32_t pad, const float *e, size_t lde,
                                 float *acc)
{
    int32_t d = 0;

    for (; d + 16 * KV_COLS <= pad; d += 16 * KV_COLS) {
        kv_blend_tile(type, pairs, KV_COLS, rows, n_rows, pad, d, e, lde, acc);
    }
    for (; d < pad; d += 16) {
        kv_blend_tile(type, pairs, 1, rows, n_rows, pad, d, e, lde, acc);
    }
}

enum { KV_BLEND_PAIRS = KV_ROWS < 4 ? KV_ROWS : 4 };

LANES_INLINE void kv_blend(enum ops_kv_type type, const void *const *rows, int32_t n_rows,
                           int32_t pad, const float *e, size_t lde, int32_t n, float *acc)
{
    for (; n >= KV_BLEND_PAIRS; n -= KV_BLEND_PAIRS) {
        kv_blend_pairs(type, KV_BLEND_PAIRS, rows, n_rows, pad, e, lde, acc);
        e += KV_BLEND_PAIRS * lde;
        acc += KV_BLEND_PAIRS * pad;
    }
    for (; n > 0; n--) {
        kv_blend_pairs(type, 1, rows, n_rows, pad, e, lde, acc);
        e += lde;
        acc += pad;
    }
}

/* ---- threshold ----------------------------------------------------------------------------- */

static int32_t LANES_FN(kv_count)(const float *x, int32_t n, int32_t least)
{
    const li below = li_set1(least - 1);
    li sum = li_set1(0);

    for (int32_t i = 0; i < n; i += 16) {
        sum = li_sub(sum, li_greater(li_load(x + i), below));
    }
    return li_sum(sum);
}

static int32_t LANES_FN(kv_pick)(const float *x, int32_t n, int32_t least, int32_t *idx)
{
    const li below = li_set1(least - 1);
    int32_t n_picked = 0;

    for (int32_t i = 0; i < n; i += 16) {
        for (uint32_t bits = li_mask(li_greater(li_load(x + i), below)); bits; bits &= bits - 1) {
            idx[n_picked++] = i + __builtin_ctz(bits);
        }
    }
    return n_picked;
}

#define KV_SELECT_TYPE(name, type)                                                                 \
    static void LANES_FN(dims_##name)(const void *k, const int32_t *dims, int32_t n_dims,          \
                                      const float *q, size_t ldq, int32_t n, int32_t slot0,        \
                                      int32_t n_slots, float *x, size_t ldx, const void *ahead)    \
    {                                                                                              \
        kv_dims(type, k, dims, n_dims, q, ldq, n, slot0, n_slots, x, ldx, ahead);                  \
    }                                                                                              \
    static void LANES_FN(rows_##name)(const void *const *rows, int32_t n_rows, int32_t pad,        \
                                      const float *q, size_t ldq, int32_t n, float *x, size_t ldx) \
    {                                                                                              \
        kv_rows(type, rows, n_rows, pad, q, ldq, n, x, ldx);                                       \
    }                                                                                              \
    static void LANES_FN(blend_##name)(const void *const *rows, int32_t n_rows, int32_t pad,       \
                                       const float *e, size_t lde, int32_t n, float *acc)          \
    {                                                                                              \
        kv_blend(type, rows, n_rows, pad, e, lde, n, acc);                                         \
    }

KV_SELECT_TYPE(f32, OPS_KV_F32)
KV_SELECT_TYPE(f16, OPS_KV_F16)
KV_SELECT_TYPE(bf16, OPS_KV_BF16)
KV_SELECT_TYPE(fp8, OPS_KV_FP8)
KV_SELECT_TYPE(i8, OPS_KV_I8)

LANES_INLINE void kv_select_body_set(struct cpu_table *t)
{
    LANES_SET(t, dims_f32);
    LANES_SET(t, dims_f16);
    LANES_SET(t, dims_bf16);
    LANES_SET(t, dims_fp8);
    LANES_SET(t, dims_i8);
    LANES_SET(t, rows_f32);
    LANES_SET(t, rows_f16);
    LANES_SET(t, rows_bf16);
    LANES_SET(t, rows_fp8);
    LANES_SET(t, rows_i8);
    LANES_SET(t, blend_f32);
    LANES_SET(t, blend_f16);
    LANES_SET(t, blend_bf16);
    LANES_SET(t, blend_fp8);
    LANES_SET(t, blend_i8);
    LANES_SET(t, kv_count);
    LANES_SET(t, kv_pick);
}

#endif
