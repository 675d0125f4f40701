/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_LANES_C_H
#define PIPIT_KERNELS_CPU_LANES_C_H

/* 16 lanes of 32 bits, in plain C. panel_body.h and row_body.h are written once on these types;
 * kernels/x86/lanes_avx2.h and lanes_avx512.h offer the same names on registers, and every one of
 * them rounds alike: one IEEE operation a lane, a fused multiply-add where it says fma, sums across
 * lanes as a tree (8, 4, 2, 1). So all variants give the same bits.
 *
 *     lf  16 f32      li  16 int32 or uint32, or 64 bytes */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define UNROLL_PLAIN 1

#include "kernels/cpu/unroll.h"
#include "quant/half.h"

#define LANES_FN(name) name##_c
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, c)
#ifdef UNROLL_NOT
#define LANES_INLINE UNROLL_INLINE
#else
#define LANES_INLINE static inline __attribute__((always_inline))
#endif

enum {
    LANES_TILE = 4,    /* tokens that a panel kernel takes at once */
    LANES_ABREAST = 1, /* of those, how many dot products run side by side */
    LANES_SIGNED8 = 0, /* li_dots of 8-bit codes takes off the zero point of 128 itself */
};

typedef struct {
    float v[16];
} lf;

typedef struct {
    int32_t v[16];
} li;

/* clang-format off */
#define LANES_EACH(type, expr) \
    do { type r_; for (int i = 0; i < 16; i++) { r_.v[i] = (expr); } return r_; } while (0)
/* a op b of unsigned values */
#define LANES_U32(a, op, b) ((uint32_t)(a).v[i] op (uint32_t)(b).v[i])

LANES_INLINE lf lf_load(const float *p) { LANES_EACH(lf, p[i]); }
LANES_INLINE lf lf_set1(float x) { LANES_EACH(lf, x); }
LANES_INLINE lf lf_add(lf a, lf b) { LANES_EACH(lf, a.v[i] + b.v[i]); }
LANES_INLINE lf lf_sub(lf a, lf b) { LANES_EACH(lf, a.v[i] - b.v[i]); }
LANES_INLINE lf lf_mul(lf a, lf b) { LANES_EACH(lf, a.v[i] * b.v[i]); }
LANES_INLINE lf lf_div(lf a, lf b) { LANES_EACH(lf, a.v[i] / b.v[i]); }
/* a * b + c, rounded once */
LANES_INLINE lf lf_fma(lf a, lf b, lf c) { LANES_EACH(lf, fmaf(a.v[i], b.v[i], c.v[i])); }
/* c - a * b, rounded once */
LANES_INLINE lf lf_fnma(lf a, lf b, lf c) { LANES_EACH(lf, fmaf(-a.v[i], b.v[i], c.v[i])); }
/* b where either is NaN */
LANES_INLINE lf lf_min(lf a, lf b) { LANES_EACH(lf, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
LANES_INLINE lf lf_max(lf a, lf b) { LANES_EACH(lf, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
LANES_INLINE lf lf_bits(li a) { LANES_EACH(lf, half_from_bits32((uint32_t)a.v[i])); }
LANES_INLINE lf lf_of_int(li a) { LANES_EACH(lf, (float)a.v[i]); }
LANES_INLINE void lf_store(float *p, lf a) { memcpy(p, a.v, 64); }

LANES_INLINE li li_load(const void *p) { li r; memcpy(r.v, p, 64); return r; }
LANES_INLINE li li_set1(int32_t x) { LANES_EACH(li, x); }
LANES_INLINE li li_set1_8(uint8_t x) { LANES_EACH(li, (int32_t)(x * 0x01010101u)); }
LANES_INLINE li li_bits(lf a) { LANES_EACH(li, (int32_t)half_bits32(a.v[i])); }
LANES_INLINE li li_and(li a, li b) { LANES_EACH(li, a.v[i] & b.v[i]); }
LANES_INLINE li li_or(li a, li b) { LANES_EACH(li, a.v[i] | b.v[i]); }
LANES_INLINE li li_add(li a, li b) { LANES_EACH(li, (int32_t)LANES_U32(a, +, b)); }
LANES_INLINE li li_sub(li a, li b) { LANES_EACH(li, (int32_t)LANES_U32(a, -, b)); }
LANES_INLINE li li_shl(li a, int n) { LANES_EACH(li, (int32_t)((uint32_t)a.v[i] << n)); }
LANES_INLINE li li_shr(li a, int n) { LANES_EACH(li, (int32_t)((uint32_t)a.v[i] >> n)); }
LANES_INLINE li li_max_u32(li a, li b) { LANES_EACH(li, LANES_U32(a, >, b) ? a.v[i] : b.v[i]); }
LANES_INLINE li li_of_u8(const uint8_t *p) { LANES_EACH(li, p[i]); }
LANES_INLINE li li_of_i8(const int8_t *p) { LANES_EACH(li, p[i]); }
LANES_INLINE lf lf_of_f16(const void *p)
{
    uint16_t h[16];

    memcpy(h, p, 32);
    LANES_EACH(lf, half_f16_to_f32(h[i]));
}
LANES_INLINE lf lf_of_bf16(const void *p)
{
    uint16_t h[16];

    memcpy(h, p, 32);
    LANES_EACH(lf, half_bf16_to_f32(h[i]));
}
/* clang-format on */

/* table[b] of each byte b, 0..15 */
LANES_INLINE li li_lookup(const uint8_t table[16], li a)
{
    uint8_t b[64];

    memcpy(b, a.v, 64);
    for (int i = 0; i < 64; i++) {
        b[i] = table[b[i]];
    }
    return li_load(b);
}

/* To the nearest integer, ties to even, for |a| < 2^22; anything for the rest. */
LANES_INLINE li li_round(lf a)
{
    LANES_EACH(li, (int32_t)(half_bits32(a.v[i] + 0x1.8p23f) - 0x4b400000u));
}

/* 16 values of -128..127 as bytes */
LANES_INLINE void li_store_i8(int8_t *p, li a)
{
    for (int i = 0; i < 16; i++) {
        p[i] = (int8_t)a.v[i];
    }
}

LANES_INLINE float lf_sum(lf a)
{
    for (int n = 8; n >= 1; n /= 2) {
        for (int i = 0; i < n; i++) {
            a.v[i] += a.v[i + n];
        }
    }
    return a.v[0];
}

LANES_INLINE int32_t li_sum(li a)
{
    int32_t s = 0;

    for (int i = 0; i < 16; i++) {
        s += a.v[i];
    }
    return s;
}

LANES_INLINE uint32_t li_max_of_u32(li a)
{
    uint32_t m = 0;

    for (int i = 0; i < 16; i++) {
        m = (uint32_t)a.v[i] > m ? (uint32_t)a.v[i] : m;
    }
    return m;
}

/* For each of m tokens, t * stride after a: dot[t] += sum over n vectors of (4 unsigned bytes of
 * u[j]'s lane) . (4 signed bytes at 4j). Codes have `bits` bits; bytes at a are -127..127. */
LANES_INLINE void li_dots(li *dot, const li *u, const int8_t *a, size_t stride, int m, int n,
                          int bits)
{
    (void)bits;
    for (int t = 0; t < m; t++) {
        for (int j = 0; j < n; j++) {
            const int8_t *x = a + (size_t)t * stride + 4 * j;

            for (int i = 0; i < 16; i++) {
                uint32_t w = (uint32_t)u[j].v[i];

                dot[t].v[i] += (int32_t)(w & 255) * x[0] + (int32_t)(w >> 8 & 255) * x[1] +
                               (int32_t)(w >> 16 & 255) * x[2] + (int32_t)(w >> 24) * x[3];
            }
        }
    }
}

LANES_INLINE void lanes_prefetch(const void *p)
{
    (void)p;
}

LANES_INLINE void lanes_prefetch_write(void *p)
{
    (void)p;
}

#endif
