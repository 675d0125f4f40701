/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ARM_PANEL_NEON_H
#define PIPIT_KERNELS_ARM_PANEL_NEON_H

/* The panel kernels of quantised weights for AArch64, compiled once for each level: NEON alone, dot
 * products, int8 matrix products. The arithmetic is that of kernels/cpu/panel_body.h, so the bits
 * are those of every other variant; what differs is the order in which registers are filled.
 *
 * A block's codes of 16 rows would take all 32 registers. They are taken four rows at a time
 * instead:
 * 8 registers of codes, a quarter of the scales, and the tokens of the tile pass by.
 *
 *     NEON     products in int16, as many of them added as fit, then widened by pairs
 *     sdot     an activation's four columns are a lane of a register: no broadcast
 *     smmla    two rows by two tokens, 8 columns at once: codes of two rows and activations of two
 *              tokens are interleaved first, the latter once for all four quarters
 *
 * Prefetch: one stream PANEL_PREFETCH bytes ahead, over the end of a thread's share into its next
 * one. Not measured: no Arm machine has run this yet. */

#include "kernels/arm/lanes_neon.h"
#include "kernels/cpu/panel_block.h"
#include "kernels/cpu/table.h"

#if defined(__ARM_FEATURE_MATMUL_INT8)
#define PANEL_FN(name) name##_i8mm
#define PANEL_SET(t, slot) CPU_TABLE_SET(t, slot, i8mm)
enum { PANEL_TOKENS = 8 }; /* of a tile */
#elif defined(__ARM_FEATURE_DOTPROD)
#define PANEL_FN(name) name##_dotprod
#define PANEL_SET(t, slot) CPU_TABLE_SET(t, slot, dotprod)
enum { PANEL_TOKENS = 4 };
#else
#define PANEL_FN(name) name##_neon
#define PANEL_SET(t, slot) CPU_TABLE_SET(t, slot, neon)
enum { PANEL_TOKENS = 4 };
#endif

enum { PANEL_PREFETCH = 4096 };

LANES_INLINE const uint8_t *panel_prefetch(const uint8_t *at, const struct cpu_acts *a)
{
    const uint8_t *to = (const uint8_t *)((uintptr_t)at + PANEL_PREFETCH);

    return to >= a->end ? (const uint8_t *)((uintptr_t)to + (uintptr_t)a->jump) : to;
}

/* Rows 4i..4i+3 of 16. */
LANES_INLINE float32x4_t panel_quarter(lf x, int i)
{
    return i == 0 ? x.a : i == 1 ? x.b : i == 2 ? x.c : x.d;
}

LANES_INLINE uint8x16_t panel_shift(uint8x16_t v, int n)
{
    return vshlq_u8(v, vdupq_n_s8((int8_t)n));
}

/* Codes of four rows of a block: u[j] = columns 4j..4j+3; 8-bit codes less their zero point of 128,
 * what is looked up as the table has it.
 * w is the block's, 16 bytes further for each quarter. */
UNROLL_INLINE void panel_codes(enum dtype type, const uint8_t *w, int8x16_t u[8])
{
    const int bits = panel_code_bits(type);
    const uint8x16_t high = vdupq_n_u8(bits == 5 ? 16 : 48);

    if (type == DTYPE_Q8_0) {
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 64 * j), vdupq_n_u8(128)));
        }
        return;
    }
    UNROLL_LOOP
    for (int j = 0; j < 4; j++) {
        uint8x16_t v = vld1q_u8(w + 64 * j);

        u[j] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
        u[j + 4] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
    }
    if (panel_is_looked_up(type)) {
        const uint8_t zero = type == DTYPE_MXFP4 ? 16 : 128;
        const int8x16_t table =
            vreinterpretq_s8_u8(vsubq_u8(vld1q_u8(panel_table(type)), vdupq_n_u8(zero)));

        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = vqtbl1q_s8(table, vreinterpretq_u8_s8(u[j]));
        }
        return;
    }
    if (bits == 4) {
        return;
    }
    UNROLL_LOOP
    for (int j = 0; j < 8; j++) {
        const int at = bits == 5 ? j : 2 * (j % 4); /* of the bits in each byte, wanted at 4 */
        uint8x16_t h = vld1q_u8(w + PANEL_NIBBLES + (bits == 5 ? 0 : 64 * (j / 4)));

        u[j] = vorrq_s8(u[j], vreinterpretq_s8_u8(vandq_u8(panel_shift(h, 4 - at), high)));
    }
}

/* One block of a tile's tokens. */
struct panel_block {
    float32x4_t head[PANEL_TOKENS]; /* d, s and, as integers, nsum[0], nsum[1] */
    /* Alone, token t: columns 0..15 at 2t, 16..31 at 2t + 1. Tokens 2p and 2p + 1 as a pair:
     * columns 8k.. of the one, then of the other, at 4p + k. */
    int8x16_t q[2 * PANEL_TOKENS];
};

UNROLL_INLINE void panel_load(const struct panel_act *a, size_t lda, int n, struct panel_block *ret)
{
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        const struct panel_act *at = a + (size_t)t * lda;

        ret->head[t] = vreinterpretq_f32_u8(neon_bytes(at));
        ret->q[2 * t] = vld1q_s8(at->q);
        ret->q[2 * t + 1] = vld1q_s8(at->q + 16);
    }
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (n == 1) {
        return;
    }
    UNROLL_LOOP
    for (int p = 0; p < n / 2; p++) {
        int64x2_t lo0 = vreinterpretq_s64_s8(ret->q[4 * p]);
        int64x2_t hi0 = vreinterpretq_s64_s8(ret->q[4 * p + 1]);
        int64x2_t lo1 = vreinterpretq_s64_s8(ret->q[4 * p + 2]);
        int64x2_t hi1 = vreinterpretq_s64_s8(ret->q[4 * p + 3]);

        ret->q[4 * p] = vreinterpretq_s8_s64(vzip1q_s64(lo0, lo1));
        ret->q[4 * p + 1] = vreinterpretq_s8_s64(vzip2q_s64(lo0, lo1));
        ret->q[4 * p + 2] = vreinterpretq_s8_s64(vzip1q_s64(hi0, hi1));
        ret->q[4 * p + 3] = vreinterpretq_s8_s64(vzip2q_s64(hi0, hi1));
    }
#endif
}

#if defined(__ARM_FEATURE_DOTPROD)

/* sum += products of 16 columns. */
LANES_INLINE int32x4_t panel_dot16(int32x4_t sum, const int8x16_t *u, int8x16_t q)
{
    sum = vdotq_laneq_s32(sum, u[0], q, 0);
    sum = vdotq_laneq_s32(sum, u[1], q, 1);
    sum = vdotq_laneq_s32(sum, u[2], q, 2);
    return vdotq_laneq_s32(sum, u[3], q, 3);
}

/* sum += products of n = 16 or 32 columns. */
UNROLL_INLINE int32x4_t panel_dot(int32x4_t sum, const int8x16_t *u, const int8x16_t *q, int n,
                                  int bits)
{
    (void)bits;
    sum = panel_dot16(sum, u, q[0]);
    return n > 16 ? panel_dot16(sum, u + 4, q[1]) : sum;
}

#else

/* sum += products of n = 16 or 32 columns. As many products as fit an int16 are added there: eight
 * of codes below 32, four of those below 64, two of -128..127. */
UNROLL_INLINE int32x4_t panel_dot(int32x4_t sum, const int8x16_t *u, const int8x16_t *q, int n,
                                  int bits)
{
    const int group = bits == 8 ? 2 : bits == 6 ? 4 : 8;
    int16x8_t lo = vdupq_n_s16(0);
    int16x8_t hi = vdupq_n_s16(0);

    UNROLL_LOOP
    for (int j = 0; j < n / 4; j++) {
        int32x4_t four = vreinterpretq_s32_s8(q[j / 4]);
        int8x16_t x = vreinterpretq_s8_s32(j % 4 == 0   ? vdupq_laneq_s32(four, 0)
                                           : j % 4 == 1 ? vdupq_laneq_s32(four, 1)
                                           : j % 4 == 2 ? vdupq_laneq_s32(four, 2)
                                                        : vdupq_laneq_s32(four, 3));

        if (j % group == 0) {
            lo = vmull_s8(vget_low_s8(u[j]), vget_low_s8(x));
            hi = vmull_high_s8(u[j], x);
        } else {
            lo = vmlal_s8(lo, vget_low_s8(u[j]), vget_low_s8(x));
            hi = vmlal_high_s8(hi, u[j], x);
        }
        if (j % group == group - 1 || j == n / 4 - 1) {
            sum = vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi)));
        }
    }
    return sum;
}

#endif

/* What a dot product begins with: minus the zero point times the sum of the activations. */
UNROLL_INLINE int32x4_t panel_start(enum dtype type, float32x4_t head, int half)
{
    int32x4_t h = vreinterpretq_s32_f32(head);

    switch (type) {
    case DTYPE_Q4_0:
        return vshlq_n_s32(vdupq_laneq_s32(h, 2), 3);
    case DTYPE_Q5_0:
        return vshlq_n_s32(vdupq_laneq_s32(h, 2), 4);
    case DTYPE_Q6_K:
        return vshlq_n_s32(half == 0 ? vdupq_laneq_s32(h, 3)
                                     : vsubq_s32(vdupq_laneq_s32(h, 2), vdupq_laneq_s32(h, 3)),
                           5);
    default:
        return vdupq_n_s32(0);
    }
}

/* Columns 16 half.. (n of them, 16 or 32) of four rows against all tokens of the tile. */
UNROLL_INLINE void panel_dots(enum dtype type, const int8x16_t *u, const struct panel_block *x,
                              int n_tokens, int half, int n, int32x4_t *dot)
{
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if (n_tokens > 1) {
        int8x16_t row01[4];
        int8x16_t row23[4];

        UNROLL_LOOP
        for (int k = 0; k < n / 8; k++) {
            int32x4_t even = vreinterpretq_s32_s8(u[4 * half + 2 * k]);
            int32x4_t odd = vreinterpretq_s32_s8(u[4 * half + 2 * k + 1]);

            row01[k] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
            row23[k] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
        }
        UNROLL_LOOP
        for (int p = 0; p < n_tokens / 2; p++) {
            const int8x16_t *q = x->q + 4 * p + 2 * half;
            int32x4_t sum01 = vdupq_n_s32(0);
            int32x4_t sum23 = vdupq_n_s32(0);

            UNROLL_LOOP
            for (int k = 0; k < n / 8; k++) {
                sum01 = vmmlaq_s32(sum01, row01[k], q[k]);
                sum23 = vmmlaq_s32(sum23, row23[k], q[k]);
            }
            dot[2 * p] = vaddq_s32(panel_start(type, x->head[2 * p], half),
                                   vuzp1q_s32(sum01, sum23));
            dot[2 * p + 1] = vaddq_s32(panel_start(type, x->head[2 * p + 1], half),
                                       vuzp2q_s32(sum01, sum23));
        }
        return;
    }
#endif
    UNROLL_LOOP
    for (int t = 0; t < n_tokens; t++) {
        dot[t] = panel_dot(panel_start(type, x->head[t], half), u + 4 * half, x->q + 2 * t + half,
                           n, panel_code_bits(type));
    }
}

/* acc[t] of four rows += one block; wm and the scales of a block's halves where the type has
 * them. */
UNROLL_INLINE void panel_add(enum dtype type, const int8x16_t *u, const struct panel_block *x,
                             int n, float32x4_t wd, float32x4_t wm, float32x4_t sc0,
                             float32x4_t sc1, float32x4_t *acc)
{
    int32x4_t dot[PANEL_TOKENS];
    int32x4_t more[PANEL_TOKENS];

    panel_dots(type, u, x, n, 0, type == DTYPE_Q6_K ? 16 : 32, dot);
    if (type == DTYPE_Q6_K) {
        panel_dots(type, u, x, n, 1, 16, more);
    }
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        float32x4_t f = vcvtq_f32_s32(dot[t]);

        if (type == DTYPE_Q6_K) {
            f = vfmaq_f32(vmulq_f32(f, sc0), vcvtq_f32_s32(more[t]), sc1);
        } else if (panel_has_min(type)) {
            acc[t] = vfmaq_laneq_f32(acc[t], wm, x->head[t], 1);
        }
        acc[t] = vfmaq_f32(acc[t], f, vmulq_laneq_f32(wd, x->head[t], 0));
    }
}

/* few: weights come from memory; `from` tells where their stream goes. */
UNROLL_INLINE void panel_tile(enum dtype type, const uint8_t *w, int n_blocks,
                              const struct panel_act *a, size_t lda, int n, bool few,
                              const struct cpu_acts *from, float *out)
{
    const int step = panel_step(type);
    struct panel_super super = {w, lf_set1(0), lf_set1(0)};
    float32x4_t acc[4][PANEL_TOKENS];

    UNROLL_LOOP
    for (int i = 0; i < 4 * n; i++) {
        acc[i / n][i % n] = vdupq_n_f32(0);
    }
    for (int b = 0; b < n_blocks; b++, w += step, a++) {
        struct panel_block x;
        struct panel_factors f;

        w = panel_enter(type, w, b, &super);
        if (few) {
            UNROLL_LOOP
            for (int i = 0; i < step; i += 64) {
                lanes_prefetch(panel_prefetch(w + i, from));
            }
        }
        f = panel_factors_of(type, w, b, &super);
        panel_load(a, lda, n, &x);
        UNROLL_LOOP
        for (int i = 0; i < 4; i++) {
            int8x16_t u[8];

            panel_codes(type, w + 16 * i, u);
            panel_add(type, u, &x, n, panel_quarter(f.d, i), panel_quarter(f.m, i),
                      panel_quarter(f.sc0, i), panel_quarter(f.sc1, i), acc[i]);
        }
    }
    UNROLL_LOOP
    for (int i = 0; i < 4 * n; i++) {
        vst1q_f32(out + 16 * (i % n) + 4 * (i / n), acc[i / n][i % n]);
    }
}

/* Tokens that no whole tile takes are one more tile: rows behind the last token's may be read,
 * their results lie where nobody looks. */
UNROLL_INLINE void panel_quant(enum dtype type, const uint8_t *w, const struct cpu_acts *a,
                               int32_t n, float *out)
{
    const int n_blocks = a->n_cols / PANEL_COLS;
    const struct panel_act *q = a->q;

    for (bool few = true; n > 0; few = false) {
        if (PANEL_TOKENS > 4 && n > 4) {
            panel_tile(type, w, n_blocks, q, a->ldq, PANEL_TOKENS, few, a, out);
        } else if (n > 2) {
            panel_tile(type, w, n_blocks, q, a->ldq, 4, few, a, out);
        } else if (n == 2) {
            panel_tile(type, w, n_blocks, q, a->ldq, 2, few, a, out);
        } else {
            panel_tile(type, w, n_blocks, q, a->ldq, 1, few, a, out);
        }
        n -= n > 4 ? PANEL_TOKENS : n > 2 ? 4 : n;
        q += PANEL_TOKENS * a->ldq;
        out += 16 * PANEL_TOKENS;
    }
}

#define PANEL_DEFINE(slot, type)                                                                   \
    static void PANEL_FN(slot)(const uint8_t *panel, const struct cpu_acts *a, int32_t n,          \
                               float *out)                                                         \
    {                                                                                              \
        panel_quant(type, panel, a, n, out);                                                       \
    }

PANEL_DEFINE(panel_q4_0, DTYPE_Q4_0)
PANEL_DEFINE(panel_q4_1, DTYPE_Q4_1)
PANEL_DEFINE(panel_q5_0, DTYPE_Q5_0)
PANEL_DEFINE(panel_q5_1, DTYPE_Q5_1)
PANEL_DEFINE(panel_q8_0, DTYPE_Q8_0)
PANEL_DEFINE(panel_q4_k, DTYPE_Q4_K)
PANEL_DEFINE(panel_q5_k, DTYPE_Q5_K)
PANEL_DEFINE(panel_q6_k, DTYPE_Q6_K)
PANEL_DEFINE(panel_iq4_nl, DTYPE_IQ4_NL)
PANEL_DEFINE(panel_iq4_xs, DTYPE_IQ4_XS)
PANEL_DEFINE(panel_mxfp4, DTYPE_MXFP4)

#undef PANEL_DEFINE

static inline void panel_neon_set(struct cpu_table *t)
{
    PANEL_SET(t, panel_q4_0);
    PANEL_SET(t, panel_q4_1);
    PANEL_SET(t, panel_q5_0);
    PANEL_SET(t, panel_q5_1);
    PANEL_SET(t, panel_q8_0);
    PANEL_SET(t, panel_q4_k);
    PANEL_SET(t, panel_q5_k);
    PANEL_SET(t, panel_q6_k);
    PANEL_SET(t, panel_iq4_nl);
    PANEL_SET(t, panel_iq4_xs);
    PANEL_SET(t, panel_mxfp4);
}

#endif
