/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the KV cache in 8 bits: the definition that the kernels, which quantise as they write K
 * and V, are checked against (within half a step: they may multiply in another order).
 *
 * The scale is rounded to f16 before the codes are made from it, so a code is the nearest to the
 * value under the scale that readers will use. Rounding the scale down lets the largest value pass
 * the end by up to 2^-11 of itself; it saturates. */

#include "quant/fp8.h"

#include <math.h>

static uint16_t scale_of(const float *src, int n, float largest_code)
{
    float absmax = 0;

    for (int i = 0; i < n; i++) {
        absmax = fmaxf(absmax, fabsf(src[i]));
    }
    uint16_t scale = half_f16_from_f32(absmax / largest_code);
    return scale > 0x7bff ? 0x7bff : scale;
}

uint16_t fp8_row_scale(const float *src, int n)
{
    return scale_of(src, n, 1.75f);
}

uint16_t fp8_encode_row(const float *src, int n, uint8_t *dst)
{
    uint16_t scale = fp8_row_scale(src, n);
    float inverse = scale ? 256.0f / half_f16_to_f32(scale) : 0;

    for (int i = 0; i < n; i++) {
        dst[i] = fp8_from_f32(src[i] * inverse);
    }
    return scale;
}

void fp8_decode_row(const uint8_t *src, uint16_t scale, int n, float *dst)
{
    float s = half_f16_to_f32(scale);

    for (int i = 0; i < n; i++) {
        dst[i] = s * half_f16_to_f32(fp8_to_f16_bits(src[i]));
    }
}

uint16_t fp8_encode_row_int8(const float *src, int n, int8_t *dst)
{
    uint16_t scale = scale_of(src, n, 127);
    float inverse = scale ? 1 / half_f16_to_f32(scale) : 0;

    for (int i = 0; i < n; i++) {
        float q = nearbyintf(src[i] * inverse);

        dst[i] = (int8_t)(q > 127 ? 127 : q < -127 ? -127 : isnan(q) ? 0 : q);
    }
    return scale;
}

void fp8_decode_row_int8(const int8_t *src, uint16_t scale, int n, float *dst)
{
    float s = half_f16_to_f32(scale);

    for (int i = 0; i < n; i++) {
        dst[i] = s * (float)src[i];
    }
}
