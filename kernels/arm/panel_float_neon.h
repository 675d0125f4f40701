/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ARM_PANEL_FLOAT_NEON_H
#define PIPIT_KERNELS_ARM_PANEL_FLOAT_NEON_H

/* The panel kernels of F32, F16 and BF16 weights for NEON. As in kernels/cpu/panel_body.h a row's
 * sum is four chains, column k in chain k % 4, so the bits are those of every other variant.
 *
 * One token: 16 sums (four chains of four quarters of the rows) stay in registers. Several: the
 * four chains of four tokens do, for one quarter at a time over a stretch of columns that stays in
 * L1. */

#include "kernels/arm/panel_neon.h"

enum {
    FLOAT_TOKENS = 4,
    FLOAT_COLS = 64, /* of a stretch: 2 or 4 KiB; a multiple of 4 */
};

/* Column k of four rows; w is the panel's, a quarter further for each quarter of the rows. */
LANES_INLINE float32x4_t float_column(enum dtype type, const uint8_t *w, int32_t k)
{
    if (type == DTYPE_F32) {
        return vreinterpretq_f32_u8(vld1q_u8(w + 64 * (size_t)k));
    }
    if (type == DTYPE_F16) {
        return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(w + 32 * (size_t)k)));
    }
    uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(w + 64 * (size_t)(k / 2)));
    return vreinterpretq_f32_u32(k % 2 ? vandq_u32(pair, vdupq_n_u32(0xffff0000u))
                                       : vshlq_n_u32(pair, 16));
}

LANES_INLINE size_t float_quarter_bytes(enum dtype type)
{
    return type == DTYPE_F16 ? 8 : 16;
}

/* acc[t][c] += columns [k, end) that are c mod 4, for n tokens and four rows; k is a multiple of
 * 4. */
UNROLL_INLINE void float_stretch(enum dtype type, const uint8_t *w, int32_t k, int32_t end,
                                 const float *x, size_t ldx, int n, float32x4_t acc[][4])
{
    for (; k + 4 <= end; k += 4) {
        float32x4_t v[4];

        UNROLL_LOOP
        for (int c = 0; c < 4; c++) {
            v[c] = float_column(type, w, k + c);
        }
        UNROLL_LOOP
        for (int t = 0; t < n; t++) {
            float32x4_t xs = vld1q_f32(x + (size_t)t * ldx + k);

            acc[t][0] = vfmaq_laneq_f32(acc[t][0], v[0], xs, 0);
            acc[t][1] = vfmaq_laneq_f32(acc[t][1], v[1], xs, 1);
            acc[t][2] = vfmaq_laneq_f32(acc[t][2], v[2], xs, 2);
            acc[t][3] = vfmaq_laneq_f32(acc[t][3], v[3], xs, 3);
        }
    }
    for (int c = 0; k + c < end; c++) {
        float32x4_t v = float_column(type, w, k + c);

        for (int t = 0; t < n; t++) {
            float xk = x[(size_t)t * ldx + (size_t)(k + c)];
            float32x4_t *to = c == 0 ? &acc[t][0] : c == 1 ? &acc[t][1] : &acc[t][2];

            *to = vfmaq_n_f32(*to, v, xk);
        }
    }
}

UNROLL_INLINE void float_tile(enum dtype type, const uint8_t *w, int32_t n_cols, const float *x,
                              size_t ldx, int n, float *out)
{
    float32x4_t acc[4][FLOAT_TOKENS][4];

    for (int i = 0; i < 4 * n; i++) {
        for (int c = 0; c < 4; c++) {
            acc[i / n][i % n][c] = vdupq_n_f32(0);
        }
    }
    for (int32_t k = 0; k < n_cols; k += FLOAT_COLS) {
        int32_t end = k + FLOAT_COLS < n_cols ? k + FLOAT_COLS : n_cols;

        for (int i = 0; i < 4; i++) {
            float32x4_t sum[FLOAT_TOKENS][4];

            UNROLL_LOOP
            for (int j = 0; j < 4 * n; j++) {
                sum[j / 4][j % 4] = acc[i][j / 4][j % 4];
            }
            float_stretch(type, w + (size_t)i * float_quarter_bytes(type), k, end, x, ldx, n, sum);
            UNROLL_LOOP
            for (int j = 0; j < 4 * n; j++) {
                acc[i][j / 4][j % 4] = sum[j / 4][j % 4];
            }
        }
    }
    for (int i = 0; i < 4; i++) {
        for (int t = 0; t < n; t++) {
            const float32x4_t *s = acc[i][t];

            vst1q_f32(out + 16 * t + 4 * i,
                      vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
        }
    }
}

/* One token, straight through the panel. */
UNROLL_INLINE void float_one(enum dtype type, const uint8_t *w, int32_t n_cols, const float *x,
                             const struct cpu_acts *from, float *out)
{
    const size_t bytes = type == DTYPE_F32 ? 256 : 128; /* of four columns */
    const int32_t whole = n_cols & ~3;
    float32x4_t acc[4][1][4];

    UNROLL_LOOP
    for (int i = 0; i < 16; i++) {
        acc[i / 4][0][i % 4] = vdupq_n_f32(0);
    }
    for (int32_t k = 0; k < whole; k += 4) {
        for (size_t b = 0; b < bytes; b += 64) {
            lanes_prefetch(panel_prefetch(w + (size_t)(k / 4) * bytes + b, from));
        }
        UNROLL_LOOP
        for (int i = 0; i < 4; i++) {
            float_stretch(type, w + (size_t)i * float_quarter_bytes(type), k, k + 4, x, 0, 1,
                          acc[i]);
        }
    }
    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        const float32x4_t *s = acc[i][0];

        float_stretch(type, w + (size_t)i * float_quarter_bytes(type), whole, n_cols, x, 0, 1,
                      acc[i]);
        vst1q_f32(out + 4 * i, vaddq_f32(vaddq_f32(s[0], s[1]), vaddq_f32(s[2], s[3])));
    }
}

UNROLL_INLINE void panel_float(enum dtype type, const uint8_t *w, const struct cpu_acts *a,
                               int32_t n, float *out)
{
    const float *x = a->x;

    if (n == 1) {
        float_one(type, w, a->n_cols, x, a, out);
        return;
    }
    for (; n >= 4; n -= 4, x += 4 * a->ldx, out += 16 * 4) {
        float_tile(type, w, a->n_cols, x, a->ldx, 4, out);
    }
    if (n >= 2) {
        float_tile(type, w, a->n_cols, x, a->ldx, 2, out);
        x += 2 * a->ldx;
        out += 16 * 2;
        n -= 2;
    }
    if (n >= 1) {
        float_tile(type, w, a->n_cols, x, a->ldx, 1, out);
    }
}

#define PANEL_DEFINE(slot, type)                                                                   \
    static void PANEL_FN(slot)(const uint8_t *panel, const struct cpu_acts *a, int32_t n,          \
                               float *out)                                                         \
    {                                                                                              \
        panel_float(type, panel, a, n, out);                                                       \
    }

PANEL_DEFINE(panel_f32, DTYPE_F32)
PANEL_DEFINE(panel_f16, DTYPE_F16)
PANEL_DEFINE(panel_bf16, DTYPE_BF16)

#undef PANEL_DEFINE

static inline void panel_float_set(struct cpu_table *t)
{
    PANEL_SET(t, panel_f32);
    PANEL_SET(t, panel_f16);
    PANEL_SET(t, panel_bf16);
}

#endif
