/* SPDX-License-Identifier: Apache-2.0 */
/* Decoders of K-quant blocks: 256 elements in 8 (Q4_K, Q5_K) or 16 (Q2_K, Q3_K, Q6_K) groups, each
 * with a small integer scale (and minimum) under the block's f16 scales. Choosing them is a search
 * (dtype_k_encode.c); Q2_K and Q3_K have none. */

#include "quant/dtype_blocks.h"

#include "quant/dtype.h"
#include "quant/half.h"

enum { LEN = 256 };

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes: the first four of each lie in the low six
 * bits of bytes 0-3 and 4-7; the others have their low nibbles in bytes 8-11 (scale low half,
 * minimum high half) and their high two bits in the top of bytes 0-3 and 4-7. */
static void scales_of(const uint8_t s[12], int i, int *ret_scale, int *ret_min)
{
    if (i < 4) {
        *ret_scale = s[i] & 63;
        *ret_min = s[i + 4] & 63;
    } else {
        *ret_scale = (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        *ret_min = s[i + 4] >> 4 | (s[i] >> 6) << 4;
    }
}

/* Group g of 32 takes the low (even g) or high nibbles of bytes 32 * (g / 2) on. */
static int nibble(const uint8_t *qs, int g, int j)
{
    return qs[g / 2 * 32 + j] >> (g % 2 * 4) & 15;
}

void dtype_decode_q2_k(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q2_k *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        for (int j = 0; j < LEN; j++) {
            float d = half_f16_to_f32(b->d) * (float)(b->scales[j / 16] & 15);
            float m = half_f16_to_f32(b->dmin) * (float)(b->scales[j / 16] >> 4);

            dst[j] = d * (float)dtype_q2_k_code(b, j) - m;
        }
    }
}

void dtype_decode_q3_k(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q3_k *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        for (int j = 0; j < LEN; j++) {
            float d = half_f16_to_f32(b->d) * (float)dtype_q3_k_scale(b, j / 16);

            dst[j] = d * (float)dtype_q3_k_code(b, j);
        }
    }
}

void dtype_decode_q4_k(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q4_k *b = src;
    int scale;
    int min;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        for (int g = 0; g < 8; g++) {
            scales_of(b->scales, g, &scale, &min);
            float d = half_f16_to_f32(b->d) * (float)scale;
            float m = half_f16_to_f32(b->dmin) * (float)min;

            for (int j = 0; j < 32; j++) {
                dst[g * 32 + j] = d * (float)nibble(b->qs, g, j) - m;
            }
        }
    }
}

void dtype_decode_q5_k(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q5_k *b = src;
    int scale;
    int min;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        for (int g = 0; g < 8; g++) {
            scales_of(b->scales, g, &scale, &min);
            float d = half_f16_to_f32(b->d) * (float)scale;
            float m = half_f16_to_f32(b->dmin) * (float)min;

            for (int j = 0; j < 32; j++) {
                int q = nibble(b->qs, g, j) | (b->qh[j] >> g & 1) << 4;

                dst[g * 32 + j] = d * (float)q - m;
            }
        }
    }
}

void dtype_decode_q6_k(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_q6_k *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        float d = half_f16_to_f32(b->d);

        for (int j = 0; j < LEN; j++) {
            int part = j / 128; /* each half has 64 bytes of low nibbles and 32 of high pairs */
            int k = j % 128;
            int low = b->ql[part * 64 + k % 64] >> (k / 64 * 4) & 15;
            int high = b->qh[part * 32 + k % 32] >> (k / 32 * 2) & 3;

            dst[j] = d * (float)b->scales[j / 16] * (float)((low | high << 4) - 32);
        }
    }
}
