/* SPDX-License-Identifier: Apache-2.0 */
/* Sums in f32 and in order: a block is the same bytes on every machine. */

#include "quant/gauss4.h"

#include <math.h>
#include <string.h>

#include "quant/half.h"

/* Near those of least error for 32 values of a Gaussian over their largest one. */
const int8_t gauss4_level[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                 6,    18,  31,  44,  58,  75,  96,  127};

const float gauss4_upper[7] = {12, 24.5f, 37.5f, 51, 66.5f, 85.5f, 111.5f};

uint8_t gauss4_nearest(float x)
{
    float size = fabsf(x);
    int i = 0;

    for (int j = 0; j < 7; j++) {
        i += size > gauss4_upper[j];
    }
    return (uint8_t)(x < 0 ? 7 - i : 8 + i);
}

/* Codes under a scale; returns the squared error. */
static float code(const float *x, uint16_t scale, uint8_t *ret)
{
    float s = half_f16_to_f32(scale);
    float inverse = s > 0 ? 1 / s : 0;
    float error = 0;

    for (int i = 0; i < GAUSS4_BLOCK; i++) {
        ret[i] = gauss4_nearest(x[i] * inverse);
        float d = x[i] - s * (float)gauss4_level[ret[i]];

        error += d * d;
    }
    return error;
}

static uint16_t suited(const float *x, const uint8_t *codes)
{
    float products = 0;
    float squares = 0;

    for (int i = 0; i < GAUSS4_BLOCK; i++) {
        float level = gauss4_level[codes[i]];

        products += x[i] * level;
        squares += level * level;
    }
    return half_f16_from_f32(products > 0 ? products / squares : 0);
}

static void encode_block(const float *x, struct gauss4_block *ret)
{
    uint8_t first[GAUSS4_BLOCK];
    uint8_t second[GAUSS4_BLOCK];
    const uint8_t *best = first;
    float top = 0;

    for (int i = 0; i < GAUSS4_BLOCK; i++) {
        top = fmaxf(top, fabsf(x[i]));
    }
    uint16_t scale = half_f16_from_f32(top / 127);
    float error = code(x, scale, first);
    uint16_t other = suited(x, first);

    if (code(x, other, second) < error) {
        scale = other;
        best = second;
    }
    ret->scale = scale;
    for (int i = 0; i < GAUSS4_BLOCK / 2; i++) {
        ret->codes[i] = (uint8_t)(best[i] | best[i + GAUSS4_BLOCK / 2] << 4);
    }
}

/* Blocks lie anywhere: rows of the cache need not be aligned. */
void gauss4_encode(const float *src, void *dst, int32_t n)
{
    uint8_t *to = dst;

    for (int32_t b = 0; b < n / GAUSS4_BLOCK; b++, to += sizeof(struct gauss4_block)) {
        struct gauss4_block block;

        encode_block(src + (size_t)b * GAUSS4_BLOCK, &block);
        memcpy(to, &block, sizeof(block));
    }
}

void gauss4_decode(const void *src, float *dst, int32_t n)
{
    const uint8_t *from = src;

    for (int32_t b = 0; b < n / GAUSS4_BLOCK; b++, from += sizeof(struct gauss4_block)) {
        struct gauss4_block block;
        float *to = dst + (size_t)b * GAUSS4_BLOCK;

        memcpy(&block, from, sizeof(block));
        float s = half_f16_to_f32(block.scale);

        for (int i = 0; i < GAUSS4_BLOCK / 2; i++) {
            to[i] = s * (float)gauss4_level[block.codes[i] & 15];
            to[i + GAUSS4_BLOCK / 2] = s * (float)gauss4_level[block.codes[i] >> 4];
        }
    }
}
