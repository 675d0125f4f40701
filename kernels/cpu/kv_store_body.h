/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_STORE_BODY_H
#define PIPIT_KERNELS_CPU_KV_STORE_BODY_H

/* Writing the cache, over the lanes (see kv_body.h): rotation and transform of a head, and its
 * conversion to its type. The same bits as the definitions (kernels/ref/rope.c,
 * kernels/hadamard.h, kernels/kv_code.h): products and sums are rounded one by one, the codes are
 * those of quant/fp8.h. */

#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/hadamard.h"
#include "quant/half.h"

static void LANES_FN(rope_norm)(float *x, const float *cos, const float *sin, int32_t n_dims)
{
    int32_t i = 0;

    for (; i + 16 <= n_dims; i += 16) {
        lf v = lf_load(x + i);

        lf_store(x + i, lf_add(lf_mul(v, lf_load(cos + i)),
                               lf_mul(lf_swap_1(v), lf_load(sin + i))));
    }
    for (; i < n_dims; i += 2) {
        float a = x[i];
        float b = x[i + 1];

        x[i] = a * cos[i] + b * sin[i];
        x[i + 1] = b * cos[i + 1] + a * sin[i + 1];
    }
}

static void LANES_FN(rope_neox)(float *x, const float *cos, const float *sin, int32_t n_dims)
{
    int32_t half = n_dims / 2;
    int32_t i = 0;

    for (; i + 16 <= half; i += 16) {
        lf a = lf_load(x + i);
        lf b = lf_load(x + half + i);

        lf_store(x + i, lf_add(lf_mul(a, lf_load(cos + i)), lf_mul(b, lf_load(sin + i))));
        lf_store(x + half + i,
                 lf_add(lf_mul(b, lf_load(cos + half + i)), lf_mul(a, lf_load(sin + half + i))));
    }
    for (; i < half; i++) {
        float a = x[i];
        float b = x[i + half];

        x[i] = a * cos[i] + b * sin[i];
        x[i + half] = b * cos[i + half] + a * sin[i + half];
    }
}

/* Sum and difference of each two lanes, `swapped` being x with them swapped; `odd` has the sign bit
 * in the lanes that are a pair's second. */
LANES_INLINE lf kv_butterfly(lf x, lf swapped, li odd)
{
    return lf_add(swapped, lf_bits(li_xor(li_bits(x), odd)));
}

/* Heads whose blocks are shorter than a vector go by the definition. */
static void LANES_FN(kv_hadamard)(float *x, int32_t n)
{
    enum { s = INT32_MIN };
    static const int32_t signs[4][16] = {
        {0, s, 0, s, 0, s, 0, s, 0, s, 0, s, 0, s, 0, s},
        {0, 0, s, s, 0, 0, s, s, 0, 0, s, s, 0, 0, s, s},
        {0, 0, 0, 0, s, s, s, s, 0, 0, 0, 0, s, s, s, s},
        {0, 0, 0, 0, 0, 0, 0, 0, s, s, s, s, s, s, s, s},
    };
    const int32_t block = hadamard_block(n);
    const lf scale = lf_set1(hadamard_scale(block));

    if (block < 16) {
        hadamard_head(x, n);
        return;
    }
    for (int32_t half = block / 2; half >= 16; half /= 2) {
        for (int32_t at = 0; at < n; at += 2 * half) {
            for (int32_t i = at; i < at + half; i += 16) {
                lf a = lf_load(x + i);
                lf b = lf_load(x + i + half);

                lf_store(x + i, lf_add(a, b));
                lf_store(x + i + half, lf_sub(a, b));
            }
        }
    }
    for (int32_t i = 0; i < n; i += 16) {
        lf v = lf_load(x + i);

        v = kv_butterfly(v, lf_swap_8(v), li_load(signs[3]));
        v = kv_butterfly(v, lf_swap_4(v), li_load(signs[2]));
        v = kv_butterfly(v, lf_swap_2(v), li_load(signs[1]));
        v = kv_butterfly(v, lf_swap_1(v), li_load(signs[0]));
        lf_store(x + i, lf_mul(v, scale));
    }
}

/* y = y - a, * a, / a */
#define KV_EACH(name, op, sign)                                                                    \
    static void LANES_FN(name)(float *y, const float *a, int32_t n)                                \
    {                                                                                              \
        int32_t i = 0;                                                                             \
                                                                                                   \
        for (; i + 16 <= n; i += 16) {                                                             \
            lf_store(y + i, op(lf_load(y + i), lf_load(a + i)));                                   \
        }                                                                                          \
        for (; i < n; i++) {                                                                       \
            y[i] = y[i] sign a[i];                                                                 \
        }                                                                                          \
    }

KV_EACH(kv_minus, lf_sub, -)
KV_EACH(kv_times, lf_mul, *)
KV_EACH(kv_over, lf_div, /)
#undef KV_EACH

LANES_INLINE lf kv_clamp(lf x, float limit)
{
    return lf_max(lf_set1(-limit), lf_min(lf_set1(limit), x));
}

static uint16_t LANES_FN(encode_f16)(const float *x, int32_t n, void *dst)
{
    for (int32_t i = 0; i < n; i += 16) {
        lf_store_f16((uint16_t *)dst + i, kv_clamp(lf_load(x + i), 65504.0f));
    }
    return 0;
}

static uint16_t LANES_FN(encode_bf16)(const float *x, int32_t n, void *dst)
{
    for (int32_t i = 0; i < n; i += 16) {
        li u = li_bits(kv_clamp(lf_load(x + i), 0x1.fep127f));
        li odd = li_and(li_shr(u, 16), li_set1(1));

        li_store_16((uint16_t *)dst + i, li_shr(li_add(li_add(u, li_set1(0x7fff)), odd), 16));
    }
    return 0;
}

/* The scale of a head, as stored, and what values are multiplied with: `unit` / scale. */
LANES_INLINE float kv_inverse_scale(const float *x, int32_t n, float largest_code, float unit,
                                    uint16_t *ret_scale)
{
    const li magnitude = li_set1(0x7fffffff);
    lf max = lf_set1(0.0f);
    uint16_t scale;

    for (int32_t i = 0; i < n; i += 16) {
        max = lf_max(max, lf_bits(li_and(li_bits(lf_load(x + i)), magnitude)));
    }
    scale = half_f16_from_f32(lf_max_of(max) / largest_code);
    *ret_scale = scale > 0x7bff ? 0x7bff : scale;
    return scale ? unit / half_f16_to_f32(*ret_scale) : 0.0f;
}

/* E4M3 codes, as signed bytes: nearest, ties to even, as fp8_from_f32(). */
LANES_INLINE li kv_code_fp8(lf r)
{
    li u = li_and(li_bits(r), li_set1(0x7fffffff));
    li sign = li_shl(li_shr(li_bits(r), 31), 7);
    li odd = li_and(li_shr(u, 20), li_set1(1));
    li code = li_shr(li_sub(li_add(li_add(u, li_set1(0x7ffff)), odd), li_set1(0x3c000000)), 20);
    /* subnormal: the f32 adder rounds to multiples of 2^-9 */
    li small =
        li_sub(li_bits(lf_add(lf_bits(u), lf_set1(16384.0f))), li_bits(lf_set1(16384.0f)));

    code = li_select(li_greater(li_set1(0x3c800000), u), small, code);
    code = li_select(li_greater(u, li_set1(0x43e00000 - 1)), li_set1(0x7e), code);
    return li_sub(code, sign);
}

static uint16_t LANES_FN(encode_fp8)(const float *x, int32_t n, void *dst)
{
    uint16_t scale;
    const lf inverse = lf_set1(kv_inverse_scale(x, n, 1.75f, 256.0f, &scale));

    for (int32_t i = 0; i < n; i += 16) {
        li_store_i8((int8_t *)dst + i, kv_code_fp8(lf_mul(lf_load(x + i), inverse)));
    }
    return scale;
}

static uint16_t LANES_FN(encode_i8)(const float *x, int32_t n, void *dst)
{
    uint16_t scale;
    const lf inverse = lf_set1(kv_inverse_scale(x, n, 127.0f, 1.0f, &scale));

    for (int32_t i = 0; i < n; i += 16) {
        lf r = kv_clamp(lf_mul(lf_load(x + i), inverse), 127.0f);

        li_store_i8((int8_t *)dst + i, li_round(r));
    }
    return scale;
}

LANES_INLINE void kv_store_body_set(struct cpu_table *t)
{
    LANES_SET(t, rope_norm);
    LANES_SET(t, rope_neox);
    LANES_SET(t, kv_hadamard);
    LANES_SET(t, kv_minus);
    LANES_SET(t, kv_times);
    LANES_SET(t, kv_over);
    LANES_SET(t, encode_f16);
    LANES_SET(t, encode_bf16);
    LANES_SET(t, encode_fp8);
    LANES_SET(t, encode_i8);
}

#endif
