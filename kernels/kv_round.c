/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/kv_round.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "quant/fp8.h"
#include "quant/gauss4.h"

bool kv_rounds(enum ops_kv_type type)
{
    return type == OPS_KV_FP8 || type == OPS_KV_G4;
}

static void carry_on(float *restrict x, const float *restrict row, float error, int32_t n)
{
    for (int32_t j = 0; j < n; j++) {
        x[j] += error * row[j];
    }
}

/* The E4M3 value nearest to x, ties to even, without branches: added to 1.5 * 2^23 of its step, a
 * float keeps whole steps. Below 2^-6 steps stay 2^-9. */
static inline float nearest_fp8(float x)
{
    const uint32_t least = 121u << 23;
    uint32_t u = half_bits32(x) & 0x7f800000;
    float big = half_from_bits32(((u > least ? u : least) + (20u << 23)) | 0x400000);
    float r = (x + big) - big;

    return copysignf(r > 448.0f ? 448.0f : r < -448.0f ? -448.0f : r, x);
}

static uint16_t round_fp8(const float *carry, float *x, uint8_t *dst, int32_t n)
{
    uint16_t scale = fp8_row_scale(x, n);
    float step = half_f16_to_f32(scale) * 0x1p-8f;
    float inverse = scale ? 256.0f / half_f16_to_f32(scale) : 0;

    for (int32_t i = n - 1; i >= 0; i--) {
        float value = nearest_fp8(x[i] * inverse);

        carry_on(x, carry + (size_t)i * (size_t)n, x[i] - step * value, i);
        x[i] = value; /* nothing is carried to it any more */
    }
    for (int32_t i = 0; i < n; i++) {
        dst[i] = fp8_from_f32(x[i]);
    }
    return scale;
}

static void round_gauss4(const float *carry, float *x, uint8_t *dst, int32_t n)
{
    gauss4_encode(x, dst, n); /* for its scales */
    for (int32_t b = n / GAUSS4_BLOCK - 1; b >= 0; b--) {
        struct gauss4_block block;
        uint8_t codes[GAUSS4_BLOCK];

        memcpy(&block, dst + (size_t)b * sizeof(block), sizeof(block));
        float s = half_f16_to_f32(block.scale);
        float inverse = s > 0 ? 1 / s : 0;

        for (int32_t i = GAUSS4_BLOCK - 1; i >= 0; i--) {
            int32_t at = b * GAUSS4_BLOCK + i;

            codes[i] = gauss4_nearest(x[at] * inverse);
            carry_on(x, carry + (size_t)at * (size_t)n, x[at] - s * (float)gauss4_level[codes[i]],
                     at);
        }
        for (int32_t i = 0; i < GAUSS4_BLOCK / 2; i++) {
            block.codes[i] = (uint8_t)(codes[i] | codes[i + GAUSS4_BLOCK / 2] << 4);
        }
        memcpy(dst + (size_t)b * sizeof(block), &block, sizeof(block));
    }
}

uint16_t kv_round_encode(enum ops_kv_type type, const float *carry, const float *src, void *dst,
                         int32_t n)
{
    float x[KV_ROUND_MOST];

    assert(n <= KV_ROUND_MOST);
    for (int32_t i = 0; i < n; i++) { /* of what f16 holds no scale overflows */
        x[i] = src[i] > 65504.0f ? 65504.0f : src[i] < -65504.0f ? -65504.0f : src[i];
    }
    if (type == OPS_KV_FP8) {
        return round_fp8(carry, x, dst, n);
    }
    round_gauss4(carry, x, dst, n);
    return 0;
}
