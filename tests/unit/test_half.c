/* SPDX-License-Identifier: Apache-2.0 */
/* quant/half.h and quant/fp8.h: tables built from the formats' definitions (sign, exponent,
 * mantissa as a sum of powers of two), every code, and rounding at every midpoint. */

#include <criterion/criterion.h>
#include <math.h>

#include "base/rng.h"
#include "quant/fp8.h"
#include "quant/half.h"

/* The value of a code with `m` mantissa bits and an exponent bias, by definition. */
static double value_of(unsigned code, int exponent_bits, int mantissa_bits, int bias)
{
    unsigned mantissa = code & ((1u << mantissa_bits) - 1);
    int exponent = (int)(code >> mantissa_bits & ((1u << exponent_bits) - 1));
    double sign = code >> (mantissa_bits + exponent_bits) & 1 ? -1 : 1;
    double fraction = ldexp(mantissa, -mantissa_bits);

    return exponent == 0 ? sign * ldexp(fraction, 1 - bias)
                         : sign * ldexp(1 + fraction, exponent - bias);
}

Test(half, every_f16_code)
{
    for (unsigned h = 0; h < 0x10000; h++) {
        float f = half_f16_to_f32((uint16_t)h);

        if ((h & 0x7c00) == 0x7c00) {
            cr_assert((h & 0x3ff) ? isnan(f) : isinf(f), "%04x", h);
            cr_assert_eq(half_f16_from_f32(f) & 0xfc00, h & 0xfc00);
            cr_assert_eq((half_f16_from_f32(f) & 0x3ff) != 0, (h & 0x3ff) != 0);
        } else {
            cr_assert_eq((double)f, value_of(h, 5, 10, 15), "%04x", h);
            cr_assert_eq(half_f16_from_f32(f), h, "%04x", h);
        }
    }
}

Test(half, f16_rounds_to_even_between_every_pair)
{
    for (unsigned h = 0; h < 0x7bff; h++) {
        float a = half_f16_to_f32((uint16_t)h);
        float b = half_f16_to_f32((uint16_t)(h + 1));
        float mid = (a + b) / 2; /* exact */

        cr_assert_eq(half_f16_from_f32(mid), h & 1 ? h + 1 : h, "%04x", h);
        cr_assert_eq(half_f16_from_f32(nextafterf(mid, a)), h, "%04x", h);
        cr_assert_eq(half_f16_from_f32(nextafterf(mid, b)), h + 1, "%04x", h);
        cr_assert_eq(half_f16_from_f32(-mid), 0x8000 | (h & 1 ? h + 1 : h));
    }
    cr_assert_eq(half_f16_from_f32(65519.996f), 0x7bff);
    cr_assert_eq(half_f16_from_f32(65520.0f), 0x7c00);
    cr_assert_eq(half_f16_from_f32(1e30f), 0x7c00);
}

Test(half, bf16)
{
    for (unsigned h = 0; h < 0x7f7f; h++) {
        float a = half_bf16_to_f32((uint16_t)h);
        float mid = half_from_bits32(h << 16 | 0x8000);

        cr_assert_eq((double)a, value_of(h, 8, 7, 127));
        cr_assert_eq(half_bf16_from_f32(a), h);
        cr_assert_eq(half_bf16_from_f32(mid), h & 1 ? h + 1 : h);
        cr_assert_eq(half_bf16_from_f32(half_from_bits32(h << 16 | 0x7fff)), h);
        cr_assert_eq(half_bf16_from_f32(half_from_bits32(h << 16 | 0x8001)), h + 1);
    }
    cr_assert(isnan(half_bf16_to_f32(half_bf16_from_f32(half_from_bits32(0x7f800001)))));
}

Test(fp8, every_code_by_definition)
{
    for (unsigned c = 0; c < 0x100; c++) {
        double v = value_of(c, 4, 3, 7);

        if ((c & 0x7f) == 0x7f) {
            continue; /* NaN, never written */
        }
        cr_assert_eq((double)fp8_to_f32((uint8_t)c), v, "%02x", c);
        cr_assert_eq((double)half_f16_to_f32(fp8_to_f16_bits((uint8_t)c)), ldexp(v, -8), "%02x", c);
        cr_assert_eq(fp8_from_f32((float)v), c, "%02x", c);
    }
    cr_assert_eq(fp8_to_f32(0x7e), 448);
    cr_assert_eq(fp8_to_f32(0x01), 0x1p-9f);
}

Test(fp8, rounds_to_even_and_saturates)
{
    for (unsigned c = 0; c < 0x7e; c++) {
        float a = fp8_to_f32((uint8_t)c);
        float b = fp8_to_f32((uint8_t)(c + 1));
        float mid = (a + b) / 2;

        cr_assert_eq(fp8_from_f32(mid), c & 1 ? c + 1 : c, "%02x", c);
        cr_assert_eq(fp8_from_f32(nextafterf(mid, a)), c, "%02x", c);
        cr_assert_eq(fp8_from_f32(nextafterf(mid, b)), c + 1, "%02x", c);
        cr_assert_eq(fp8_from_f32(-mid), 0x80 | (c & 1 ? c + 1 : c));
    }
    cr_assert_eq(fp8_from_f32(449), 0x7e);
    cr_assert_eq(fp8_from_f32(1e30f), 0x7e);
    cr_assert_eq(fp8_from_f32(-INFINITY), 0xfe);
    cr_assert_eq(fp8_from_f32(NAN) & 0x7f, 0x7e, "never the NaN code");
    cr_assert_eq(fp8_from_f32(0x1p-149f), 0);
}

/* A row comes back within half a step of its format: 2^-4 of the value (3 mantissa bits) or half
 * the smallest step for fp8, half a step of 1/127 for int8. */
static void check_rows(float size)
{
    enum { N = 128 };
    struct rng_key key = rng_key_make(5);
    float x[N];
    float y[N];
    uint8_t c8[N];
    int8_t i8[N];
    float absmax = 0;

    for (uint32_t i = 0; i < N; i++) {
        uint32_t r[4];

        rng_philox(key, (uint32_t[]){i, 0, 0, 0}, r);
        x[i] = size * (rng_uniform(r[0]) - 0.5f) * (r[1] % 16 == 0 ? 8.0f : 1.0f);
        absmax = fmaxf(absmax, fabsf(x[i]));
    }
    uint16_t scale = fp8_encode_row(x, N, c8);
    cr_assert_float_eq(half_f16_to_f32(scale) * 1.75f, absmax, absmax * 0x1p-10f + 0x1p-24f);
    fp8_decode_row(c8, scale, N, y);
    for (int i = 0; i < N; i++) {
        float step = fmaxf(fabsf(x[i]) * 0x1.02p-4f, half_f16_to_f32(scale) * 0x1p-18f);

        cr_assert_leq(fabsf(x[i] - y[i]), step, "%d: %g became %g", i, (double)x[i], (double)y[i]);
    }
    scale = fp8_encode_row_int8(x, N, i8);
    fp8_decode_row_int8(i8, scale, N, y);
    for (int i = 0; i < N; i++) {
        cr_assert_leq(fabsf(x[i] - y[i]), half_f16_to_f32(scale) * 0.5625f, "%d: %g became %g", i,
                      (double)x[i], (double)y[i]);
    }
}

Test(fp8, rows)
{
    check_rows(1);
    check_rows(40);
    check_rows(3000);
    check_rows(0.05f);
}

Test(fp8, rows_at_the_ends_of_the_scale)
{
    float zero[4] = {0, -0.0f, 1e-30f, 0};
    float huge[4] = {3e38f, -3e38f, 0, 1};
    uint8_t c8[4];
    int8_t i8[4];
    float y[4];

    cr_assert_eq(fp8_encode_row(zero, 4, c8), 0);
    fp8_decode_row(c8, 0, 4, y);
    cr_assert_eq(fp8_encode_row_int8(zero, 4, i8), 0);
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(y[i], 0);
        cr_assert_eq(i8[i], 0);
    }
    cr_assert_eq(fp8_encode_row(huge, 4, c8), 0x7bff);
    cr_assert_eq(c8[0], 0x7e);
    cr_assert_eq(c8[1], 0xfe);
    cr_assert_eq(fp8_encode_row_int8(huge, 4, i8), 0x7bff);
    cr_assert_eq(i8[0], 127);
    cr_assert_eq(i8[1], -127);
}
