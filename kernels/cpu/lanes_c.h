/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_LANES_C_H
#define PIPIT_KERNELS_CPU_LANES_C_H

/* 16 lanes of 32 bits, in the vectors that gcc and clang offer on any CPU: they use the registers
 * there are. panel_body.h and row_body.h are written once on these types; kernels/x86/lanes_avx2.h
 * and lanes_avx512.h offer the same names, and every one of them rounds alike: one IEEE operation a
 * lane, a fused multiply-add where it says fma, sums across lanes as a tree (8, 4, 2, 1). So all
 * variants give the same bits.
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
#if SANITIZED /* see unroll.h */
#define LANES_INLINE UNROLL_INLINE
#else
#define LANES_INLINE static inline __attribute__((always_inline))
#endif

enum {
    LANES_TILE = 4,    /* tokens that a panel kernel takes at once */
    LANES_ABREAST = 1, /* of those, how many dot products run side by side */
    LANES_SIGNED8 = 0, /* li_dots of 8-bit codes takes off the zero point of 128 itself */
};

typedef float lanes_f32 __attribute__((vector_size(64)));
typedef int32_t lanes_i32 __attribute__((vector_size(64)));
typedef uint32_t lanes_u32 __attribute__((vector_size(64)));

typedef struct {
    lanes_f32 v;
} lf;

typedef struct {
    lanes_i32 v;
} li;

/* clang-format off */
/* One lane after another: what vectors have no operator for. */
#define LANES_EACH(type, expr) \
    do { type r_; for (int i = 0; i < 16; i++) { r_.v[i] = (expr); } return r_; } while (0)
/* 16 integers of another type at p */
#define LANES_WIDEN(type, p) \
    do { \
        type narrow_ __attribute__((vector_size(16 * sizeof(type)))); \
        memcpy(&narrow_, p, sizeof(narrow_)); \
        return (li){__builtin_convertvector(narrow_, lanes_i32)}; \
    } while (0)
#define LANES_U32(a) ((lanes_u32)(a).v)
#define LANES_OF_U32(x) ((li){(lanes_i32)(x)})

LANES_INLINE lf lf_load(const float *p) { lf r; memcpy(&r.v, p, 64); return r; }
LANES_INLINE lf lf_set1(float x) { return (lf){x - (lanes_f32){0}}; }
LANES_INLINE lf lf_add(lf a, lf b) { return (lf){a.v + b.v}; }
LANES_INLINE lf lf_sub(lf a, lf b) { return (lf){a.v - b.v}; }
LANES_INLINE lf lf_mul(lf a, lf b) { return (lf){a.v * b.v}; }
LANES_INLINE lf lf_div(lf a, lf b) { return (lf){a.v / b.v}; }
/* a * b + c, rounded once */
LANES_INLINE lf lf_fma(lf a, lf b, lf c) { LANES_EACH(lf, fmaf(a.v[i], b.v[i], c.v[i])); }
/* c - a * b, rounded once */
LANES_INLINE lf lf_fnma(lf a, lf b, lf c) { LANES_EACH(lf, fmaf(-a.v[i], b.v[i], c.v[i])); }
/* a where the mask is all ones, b where it is 0 */
LANES_INLINE li li_select(li mask, li a, li b) { return (li){(a.v & mask.v) | (b.v & ~mask.v)}; }
LANES_INLINE lf lf_bits(li a) { return (lf){(lanes_f32)a.v}; }
LANES_INLINE li li_bits(lf a) { return (li){(lanes_i32)a.v}; }
LANES_INLINE lf lf_select(li m, lf a, lf b) { return lf_bits(li_select(m, li_bits(a), li_bits(b))); }
/* b where either is NaN */
LANES_INLINE lf lf_min(lf a, lf b) { return lf_select((li){a.v < b.v}, a, b); }
LANES_INLINE lf lf_max(lf a, lf b) { return lf_select((li){a.v > b.v}, a, b); }
LANES_INLINE lf lf_of_int(li a) { return (lf){__builtin_convertvector(a.v, lanes_f32)}; }
LANES_INLINE void lf_store(float *p, lf a) { memcpy(p, &a.v, 64); }

LANES_INLINE li li_load(const void *p) { li r; memcpy(&r.v, p, 64); return r; }
LANES_INLINE li li_set1(int32_t x) { return (li){x - (lanes_i32){0}}; }
LANES_INLINE li li_set1_8(uint8_t x) { return li_set1((int32_t)(x * 0x01010101u)); }
LANES_INLINE li li_and(li a, li b) { return (li){a.v & b.v}; }
LANES_INLINE li li_or(li a, li b) { return (li){a.v | b.v}; }
LANES_INLINE li li_add(li a, li b) { return LANES_OF_U32(LANES_U32(a) + LANES_U32(b)); }
LANES_INLINE li li_sub(li a, li b) { return LANES_OF_U32(LANES_U32(a) - LANES_U32(b)); }
LANES_INLINE li li_shl(li a, int n) { return LANES_OF_U32(LANES_U32(a) << n); }
LANES_INLINE li li_shr(li a, int n) { return LANES_OF_U32(LANES_U32(a) >> n); }
LANES_INLINE li li_max_u32(li a, li b)
{
    return li_select((li){LANES_U32(a) > LANES_U32(b)}, a, b);
}
LANES_INLINE li li_of_u8(const uint8_t *p) { LANES_WIDEN(uint8_t, p); }
LANES_INLINE li li_of_i8(const int8_t *p) { LANES_WIDEN(int8_t, p); }
LANES_INLINE li li_of_u16(const void *p) { LANES_WIDEN(uint16_t, p); }
/* clang-format on */

/* half_f16_to_f32() of each */
LANES_INLINE lf lf_of_half(li h)
{
    const li rest = li_and(h, li_set1(0x7fff));
    const li sign = li_shl(li_and(h, li_set1(0x8000)), 16);
    const li up = li_shl(rest, 13);
    li r = li_bits(lf_mul(lf_of_int(rest), lf_set1(0x1p-24f)));

    r = li_select((li){rest.v >= 0x400}, li_add(up, li_set1(0x38000000)), r);
    r = li_select((li){rest.v >= 0x7c00}, li_or(up, li_set1(0x7f800000)), r);
    r = li_select((li){rest.v > 0x7c00}, li_or(r, li_set1(0x400000)), r);
    return lf_bits(li_or(r, sign));
}
LANES_INLINE lf lf_of_f16(const void *p)
{
    return lf_of_half(li_of_u16(p));
}
LANES_INLINE lf lf_of_bf16(const void *p)
{
    return lf_bits(li_shl(li_of_u16(p), 16));
}

/* table[b] of each byte b, 0..15 */
LANES_INLINE li li_lookup(const uint8_t table[16], li a)
{
    uint8_t b[64];

    memcpy(b, &a.v, 64);
    for (int i = 0; i < 64; i++) {
        b[i] = table[b[i]];
    }
    return li_load(b);
}

/* To the nearest integer, ties to even, for |a| < 2^22; anything for the rest. */
LANES_INLINE li li_round(lf a)
{
    return li_sub(li_bits(lf_add(a, lf_set1(0x1.8p23f))), li_set1(0x4b400000));
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
    float v[16];

    memcpy(v, &a.v, 64);
    for (int n = 8; n >= 1; n /= 2) {
        for (int i = 0; i < n; i++) {
            v[i] += v[i + n];
        }
    }
    return v[0];
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
            const lanes_u32 w = LANES_U32(u[j]);

            dot[t].v += (lanes_i32)(w & 255) * x[0] + (lanes_i32)(w >> 8 & 255) * x[1] +
                        (lanes_i32)(w >> 16 & 255) * x[2] + (lanes_i32)(w >> 24) * x[3];
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
