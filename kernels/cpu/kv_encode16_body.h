/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_ENCODE16_BODY_H
#define PIPIT_KERNELS_CPU_KV_ENCODE16_BODY_H

/* Heads of sixteen slots encoded at a time, a lane each: 4-bit blocks (quant/gauss4.c), and keys
 * rounded for their queries (kernels/kv_round.c), both to the bits of one alone. Sums and roundings
 * of one head wait for one another; here sixteen chains run side by side. */

#include <string.h>

#include "kernels/cpu/kv_store_body.h"
#include "kernels/cpu/table.h"
#include "quant/gauss4.h"

/* What f16 holds, and 0 for NaN, for which a block has no code. */
LANES_INLINE lf kv_finite(lf v)
{
    li u = li_and(li_bits(v), li_set1(0x7fffffff));

    return lf_select(li_greater(u, li_set1(0x7f800000)), lf_set1(0), kv_clamp(v, 65504.0f));
}

LANES_INLINE lf kv_size(lf v)
{
    return lf_bits(li_and(li_bits(v), li_set1(0x7fffffff)));
}

/* The largest size of n dims, which are bounded by what f16 holds, so that no scale overflows. */
LANES_INLINE lf kv_bound(float *x, int32_t n)
{
    lf top = lf_set1(0);

    for (int32_t i = 0; i < n; i++) {
        lf v = kv_finite(lf_load(x + (size_t)i * 16));

        lf_store(x + (size_t)i * 16, v);
        top = lf_max(top, kv_size(v));
    }
    return top;
}

/* As f16 holds it, and `unit` over it, or 0. */
LANES_INLINE lf kv_half_scale(lf scale, float unit, lf *ret_inverse)
{
    uint16_t half[16];

    lf_store_f16(half, scale);
    lf s = lf_of_f16(half);

    *ret_inverse =
        lf_select(li_greater(li_bits(s), li_set1(0)), lf_div(lf_set1(unit), s), lf_set1(0));
    return s;
}

/* What dim i is off by goes to the dims before it; rounded twice, as the definition is. */
LANES_INLINE void kv_carry_on(float *x, const float *row, lf error, int32_t i)
{
    for (int32_t j = 0; j < i; j++) {
        float *to = x + (size_t)j * 16;

        lf_store(to, lf_add(lf_load(to), lf_mul(error, lf_set1(row[j]))));
    }
}

static void LANES_FN(scale16_fp8)(float *x, int32_t n, float *step, float *inverse)
{
    lf to_codes;
    lf s = kv_half_scale(lf_div(kv_bound(x, n), lf_set1(1.75f)), 256.0f, &to_codes);

    lf_store(step, lf_mul(s, lf_set1(0x1p-8f)));
    lf_store(inverse, to_codes);
}

static void LANES_FN(round16_fp8)(const float *carry, float *x, const float *step,
                                  const float *inverse, int32_t n, uint8_t *codes)
{
    const lf s = lf_load(step);
    const lf to_codes = lf_load(inverse);

    for (int32_t i = n - 1; i >= 0; i--) {
        lf value = lf_load(x + (size_t)i * 16);
        lf r = lf_mul(value, to_codes);
        li sign = li_and(li_bits(r), li_set1(INT32_MIN));
        /* a float added to 1.5 * 2^23 of its step keeps whole steps; the least one is 2^-9 */
        li power = li_max_u32(li_and(li_bits(r), li_set1(0x7f800000)), li_set1(121 << 23));
        lf big = lf_bits(li_or(li_add(power, li_set1(20 << 23)), li_set1(0x400000)));
        lf near = lf_sub(lf_add(r, big), big);

        near = kv_clamp(near, 448.0f);
        near = lf_bits(li_or(li_bits(kv_size(near)), sign)); /* 0 has a sign */
        kv_carry_on(x, carry + (size_t)i * (size_t)n, lf_sub(value, lf_mul(s, near)), i);
        li_store_i8((int8_t *)codes + (size_t)i * 16, kv_code_fp8(near));
    }
}

/* gauss4_nearest() of a value over its scale, and the code's level. */
LANES_INLINE lf kv_nearest_g4(lf r, li *ret_code)
{
    li u = li_and(li_bits(r), li_set1(0x7fffffff));
    li code = li_set1(8);
    li level = li_set1(gauss4_level[8]);

    for (int j = 0; j < 7; j++) { /* floats from 0 up have the order of their bits */
        li above = li_greater(u, li_bits(lf_set1(gauss4_upper[j])));

        code = li_sub(code, above);
        level = li_add(level, li_and(above, li_set1(gauss4_level[9 + j] - gauss4_level[8 + j])));
    }
    /* -0 is no less than 0 */
    li below_0 = li_and(li_greater(li_set1(0), li_bits(r)), li_greater(u, li_set1(0)));

    *ret_code = li_select(below_0, li_sub(li_set1(15), code), code);
    return lf_of_int(li_select(below_0, li_sub(li_set1(0), level), level));
}

/* gauss4_encode()'s scales: of each block of 32 the largest value over 127, or what suits its codes
 * better. */
static void LANES_FN(scale16_g4)(float *x, int32_t n, float *step, float *inverse)
{
    for (int32_t b = 0; b < n / GAUSS4_BLOCK; b++, x += (size_t)GAUSS4_BLOCK * 16) {
        lf error = lf_set1(0);
        lf products = lf_set1(0);
        lf squares = lf_set1(0);
        lf other_error = lf_set1(0);
        lf to_codes;
        lf other_to_codes;
        li code;

        lf s = kv_half_scale(lf_div(kv_bound(x, GAUSS4_BLOCK), lf_set1(127)), 1, &to_codes);

        for (int32_t i = 0; i < GAUSS4_BLOCK; i++) {
            lf value = lf_load(x + (size_t)i * 16);
            lf level = kv_nearest_g4(lf_mul(value, to_codes), &code);
            lf d = lf_sub(value, lf_mul(s, level));

            error = lf_add(error, lf_mul(d, d));
            products = lf_add(products, lf_mul(value, level));
            squares = lf_add(squares, lf_mul(level, level));
        }
        products = lf_select(li_greater(li_bits(products), li_set1(0)), lf_div(products, squares),
                             lf_set1(0));
        lf other = kv_half_scale(products, 1, &other_to_codes);

        for (int32_t i = 0; i < GAUSS4_BLOCK; i++) {
            lf value = lf_load(x + (size_t)i * 16);
            lf level = kv_nearest_g4(lf_mul(value, other_to_codes), &code);
            lf d = lf_sub(value, lf_mul(other, level));

            other_error = lf_add(other_error, lf_mul(d, d));
        }
        li better = li_greater(li_bits(error), li_bits(other_error));

        lf_store(step + (size_t)b * 16, lf_select(better, other, s));
        lf_store(inverse + (size_t)b * 16, lf_select(better, other_to_codes, to_codes));
    }
}

static void LANES_FN(round16_g4)(const float *carry, float *x, const float *step,
                                 const float *inverse, int32_t n, uint8_t *codes)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        size_t block = (size_t)(i / GAUSS4_BLOCK) * 16;
        lf value = lf_load(x + (size_t)i * 16);
        li code;
        lf level = kv_nearest_g4(lf_mul(value, lf_load(inverse + block)), &code);

        if (carry) {
            kv_carry_on(x, carry + (size_t)i * (size_t)n,
                        lf_sub(value, lf_mul(lf_load(step + block), level)), i);
        }
        li_store_i8((int8_t *)codes + (size_t)i * 16, code);
    }
}

/* Sums over a block, in order. */
struct kv_sums_g4 {
    float error;
    float products;
    float squares;
};

/* One block under a scale, two vectors of it. */
LANES_INLINE struct kv_sums_g4 kv_sums_of(const lf v[2], float s, float to_codes)
{
    struct kv_sums_g4 ret = {0};
    float error[GAUSS4_BLOCK];
    float products[GAUSS4_BLOCK];
    float squares[GAUSS4_BLOCK];

    for (int i = 0; i < 2; i++) {
        li code;
        lf level = kv_nearest_g4(lf_mul(v[i], lf_set1(to_codes)), &code);
        lf d = lf_sub(v[i], lf_mul(lf_set1(s), level));

        lf_store(error + i * 16, lf_mul(d, d));
        lf_store(products + i * 16, lf_mul(v[i], level));
        lf_store(squares + i * 16, lf_mul(level, level));
    }
    for (int i = 0; i < GAUSS4_BLOCK; i++) {
        ret.error += error[i];
        ret.products += products[i];
        ret.squares += squares[i];
    }
    return ret;
}

/* One head alone, 16 dims a vector: a token of a step. */
static uint16_t LANES_FN(encode_g4)(const float *x, int32_t n, void *dst)
{
    uint8_t *to = dst;

    for (int32_t b = 0; b < n / GAUSS4_BLOCK; b++, to += sizeof(struct gauss4_block)) {
        struct gauss4_block block;
        uint8_t codes[GAUSS4_BLOCK];
        lf v[2];
        lf top = lf_set1(0);

        for (int i = 0; i < 2; i++) {
            v[i] = kv_finite(lf_load(x + (size_t)b * GAUSS4_BLOCK + i * 16));
            top = lf_max(top, kv_size(v[i]));
        }
        block.scale = half_f16_from_f32(lf_max_of(top) / 127);
        float s = half_f16_to_f32(block.scale);
        struct kv_sums_g4 first = kv_sums_of(v, s, s > 0 ? 1 / s : 0);
        uint16_t other =
            half_f16_from_f32(first.products > 0 ? first.products / first.squares : 0);

        s = half_f16_to_f32(other);
        if (kv_sums_of(v, s, s > 0 ? 1 / s : 0).error < first.error) {
            block.scale = other;
        }
        s = half_f16_to_f32(block.scale);
        for (int i = 0; i < 2; i++) {
            li code;

            (void)kv_nearest_g4(lf_mul(v[i], lf_set1(s > 0 ? 1 / s : 0)), &code);
            li_store_i8((int8_t *)codes + i * 16, code);
        }
        for (int i = 0; i < GAUSS4_BLOCK / 2; i++) {
            block.codes[i] = (uint8_t)(codes[i] | codes[i + GAUSS4_BLOCK / 2] << 4);
        }
        memcpy(to, &block, sizeof(block));
    }
    return 0;
}

LANES_INLINE void kv_encode16_body_set(struct cpu_table *t)
{
    LANES_SET(t, encode_g4);
    LANES_SET(t, scale16_fp8);
    LANES_SET(t, round16_fp8);
    LANES_SET(t, scale16_g4);
    LANES_SET(t, round16_g4);
}

#endif
