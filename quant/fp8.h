/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_FP8_H
#define PIPIT_QUANT_FP8_H

/* FP8 E4M3 (OCP 8-bit floating point, the variant without infinities: 1 sign, 4 exponent bits with
 * bias 7, 3 mantissa bits, 0x7f is NaN, largest 448) and 8-bit integers, as the KV cache stores
 * them: rows (one token, one head) with one f16 scale.
 *
 *     fp8:   value = scale * (e4m3 * 2^-8),  scale = absmax / 1.75 in f16
 *     int8:  value = scale * q,              scale = absmax / 127 in f16, q in -127..127
 *
 * The factor 2^-8 is free: an E4M3 code shifted into the exponent and mantissa of an f16 *is*
 * e4m3 * 2^-8, subnormals included. It also keeps the scale in f16's precise range (absmax / 448
 * would often be subnormal). The scale never overflows: it ends at 65504, and codes saturate. */

#include <stdint.h>

#include "quant/half.h"

/* Nearest code, ties to even; saturates at +-448; never the NaN code (NaN gives 448). */
static inline uint8_t fp8_from_f32(float f)
{
    uint32_t u = half_bits32(f);
    uint8_t sign = (uint8_t)(u >> 24 & 0x80);

    u &= 0x7fffffff;
    if (u >= 0x43e00000) { /* 448 */
        return (uint8_t)(sign | 0x7e);
    }
    if (u < 0x3c800000) { /* below 2^-6: subnormal, the f32 adder rounds at 2^-9 */
        float r = half_from_bits32(u) + 16384.0f;

        return (uint8_t)(sign | (half_bits32(r) - half_bits32(16384.0f)));
    }
    u += 0x7ffff + (u >> 20 & 1);
    return (uint8_t)(sign | ((u - 0x3c000000) >> 20));
}

/* f16 bits of the code's value times 2^-8; the NaN codes, never written, read as +-480 * 2^-8. */
static inline uint16_t fp8_to_f16_bits(uint8_t code)
{
    return (uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7);
}

/* The code's value, -448..448. */
static inline float fp8_to_f32(uint8_t code)
{
    return half_f16_to_f32(fp8_to_f16_bits(code)) * 256.0f;
}

/* Rows of n finite numbers. The scale's f16 bits are returned; all zeroes (or so small that the
 * scale is 0) give scale 0 and codes of value 0. */
uint16_t fp8_row_scale(const float *src, int n); /* the same scale alone */
uint16_t fp8_encode_row(const float *src, int n, uint8_t *dst);
void fp8_decode_row(const uint8_t *src, uint16_t scale, int n, float *dst);

uint16_t fp8_encode_row_int8(const float *src, int n, int8_t *dst);
void fp8_decode_row_int8(const int8_t *src, uint16_t scale, int n, float *dst);

#endif
