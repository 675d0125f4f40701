/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 elements. Low nibbles hold elements 0..15, high nibbles 16..31; the fifth bits of
 * Q5_0 and Q5_1 are a little-endian word whose bit i belongs to element i.
 *
 * Encoding follows the reference arithmetic of the format step by step, because rounding decides
 * codes: the scale's reciprocal is taken in f32 before the scale is rounded to f16, values are
 * truncated after adding a half, and for the symmetric 4- and 5-bit types the scale carries the
 * sign of the largest value, so that this value gets the code at the far end (0). A block so small
 * that the reciprocal overflows gets scale 0. */

#include "quant/dtype_blocks.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "quant/dtype.h"
#include "quant/half.h"

enum { LEN = 32, HALF = 16 };

void dtype_decode_q4_0(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q4_0 *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);

        for (int j = 0; j < HALF; j++) {
            dst[j] = d * (float)((b->qs[j] & 15) - 8);
            dst[j + HALF] = d * (float)((b->qs[j] >> 4) - 8);
        }
    }
}

void dtype_decode_q4_1(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q4_1 *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);
        float m = half_f16_to_f32(b->m);

        for (int j = 0; j < HALF; j++) {
            dst[j] = d * (float)(b->qs[j] & 15) + m;
            dst[j + HALF] = d * (float)(b->qs[j] >> 4) + m;
        }
    }
}

static uint32_t high_bits(const uint8_t qh[4])
{
    return (uint32_t)qh[0] | (uint32_t)qh[1] << 8 | (uint32_t)qh[2] << 16 | (uint32_t)qh[3] << 24;
}

/* The 32 codes of a five-bit block. */
static void codes_of_5(const uint8_t qh[4], const uint8_t qs[HALF], int ret[LEN])
{
    uint32_t high = high_bits(qh);

    for (int j = 0; j < HALF; j++) {
        ret[j] = (qs[j] & 15) | (int)(high >> j & 1) << 4;
        ret[j + HALF] = qs[j] >> 4 | (int)(high >> (j + HALF) & 1) << 4;
    }
}

void dtype_decode_q5_0(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q5_0 *b = src;
    int q[LEN];

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);

        codes_of_5(b->qh, b->qs, q);
        for (int j = 0; j < LEN; j++) {
            dst[j] = d * (float)(q[j] - 16);
        }
    }
}

void dtype_decode_q5_1(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q5_1 *b = src;
    int q[LEN];

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);
        float m = half_f16_to_f32(b->m);

        codes_of_5(b->qh, b->qs, q);
        for (int j = 0; j < LEN; j++) {
            dst[j] = d * (float)q[j] + m;
        }
    }
}

void dtype_decode_q8_0(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q8_0 *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);

        for (int j = 0; j < LEN; j++) {
            dst[j] = d * (float)b->qs[j];
        }
    }
}

static bool overflowed(uint16_t f16)
{
    return (f16 & 0x7c00) == 0x7c00;
}

static float reciprocal(float d)
{
    float id = d == 0 ? 0 : 1 / d;

    return isfinite(id) ? id : 0;
}

/* The value of largest magnitude, with its sign; the first of equals. */
static float extreme(const float *x)
{
    float best = x[0];

    for (int j = 1; j < LEN; j++) {
        if (fabsf(x[j]) > fabsf(best)) {
            best = x[j];
        }
    }
    return best;
}

static void range(const float *x, float *ret_min, float *ret_max)
{
    *ret_min = x[0];
    *ret_max = x[0];
    for (int j = 1; j < LEN; j++) {
        *ret_min = x[j] < *ret_min ? x[j] : *ret_min;
        *ret_max = x[j] > *ret_max ? x[j] : *ret_max;
    }
}

/* Codes of (x - m) * id + half, cut to [0, top]. */
static void quantise(const float *x, float m, float id, float half, int top, uint8_t ret[LEN])
{
    for (int j = 0; j < LEN; j++) {
        int q = (int)((x[j] - m) * id + half);

        ret[j] = (uint8_t)(q < 0 ? 0 : q > top ? top : q);
    }
}

static void pack_nibbles(const uint8_t q[LEN], uint8_t ret[HALF])
{
    for (int j = 0; j < HALF; j++) {
        ret[j] = (uint8_t)((q[j] & 15) | q[j + HALF] << 4);
    }
}

static void pack_high(const uint8_t q[LEN], uint8_t ret[4])
{
    memset(ret, 0, 4);
    for (int j = 0; j < LEN; j++) {
        ret[j / 8] = (uint8_t)(ret[j / 8] | (q[j] >> 4) << j % 8);
    }
}

int dtype_encode_q4_0(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q4_0 *b = dst;
    uint8_t q[LEN];

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        float d = extreme(src) / -8;

        b->d = half_f16_from_f32(d);
        if (overflowed(b->d)) {
            return -EINVAL;
        }
        quantise(src, 0, reciprocal(d), 8.5f, 15, q);
        pack_nibbles(q, b->qs);
    }
    return 0;
}

int dtype_encode_q5_0(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q5_0 *b = dst;
    uint8_t q[LEN];

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        float d = extreme(src) / -16;

        b->d = half_f16_from_f32(d);
        if (overflowed(b->d)) {
            return -EINVAL;
        }
        quantise(src, 0, reciprocal(d), 16.5f, 31, q);
        pack_nibbles(q, b->qs);
        pack_high(q, b->qh);
    }
    return 0;
}

int dtype_encode_q4_1(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q4_1 *b = dst;
    uint8_t q[LEN];
    float min;
    float max;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        range(src, &min, &max);
        float d = (max - min) / 15;

        b->d = half_f16_from_f32(d);
        b->m = half_f16_from_f32(min);
        if (overflowed(b->d) || overflowed(b->m)) {
            return -EINVAL;
        }
        quantise(src, min, reciprocal(d), 0.5f, 15, q);
        pack_nibbles(q, b->qs);
    }
    return 0;
}

int dtype_encode_q5_1(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q5_1 *b = dst;
    uint8_t q[LEN];
    float min;
    float max;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        range(src, &min, &max);
        float d = (max - min) / 31;

        b->d = half_f16_from_f32(d);
        b->m = half_f16_from_f32(min);
        if (overflowed(b->d) || overflowed(b->m)) {
            return -EINVAL;
        }
        quantise(src, min, reciprocal(d), 0.5f, 31, q);
        pack_nibbles(q, b->qs);
        pack_high(q, b->qh);
    }
    return 0;
}

int dtype_encode_q8_0(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q8_0 *b = dst;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        float d = fabsf(extreme(src)) / 127;
        float id = reciprocal(d);

        b->d = half_f16_from_f32(d);
        if (overflowed(b->d)) {
            return -EINVAL;
        }
        for (int j = 0; j < LEN; j++) {
            b->qs[j] = (int8_t)roundf(src[j] * id);
        }
    }
    return 0;
}
