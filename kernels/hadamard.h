/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_HADAMARD_H
#define PIPIT_KERNELS_HADAMARD_H

/* The Hadamard transform of a head, for caches that are rotated (ops_kv.k_hadamard, v_hadamard). A
 * head goes in blocks of the largest power of two that divides it. Each block becomes H x /
 * sqrt(its length), H[i][j] = (-1)^(bits that i and j share): orthogonal, and its own inverse.
 *
 * Sums and differences in f32, of pairs half a block apart first, of neighbours last; then one
 * product. There is nothing to contract, so every backend that keeps the order has the same bits,
 * but for the sign of NaN. */

#include <math.h>
#include <stdint.h>

static inline int32_t hadamard_block(int32_t n)
{
    return n & -n;
}

static inline float hadamard_scale(int32_t block)
{
    return 1.0f / sqrtf((float)block);
}

static inline void hadamard_head(float *x, int32_t n)
{
    const int32_t block = hadamard_block(n);
    const float scale = hadamard_scale(block);

    for (int32_t half = block / 2; half > 0; half /= 2) {
        for (int32_t at = 0; at < n; at += 2 * half) {
            float *a = x + at;
            float *b = a + half;

            for (int32_t i = 0; i < half; i++) {
                const float sum = a[i] + b[i];

                b[i] = a[i] - b[i];
                a[i] = sum;
            }
        }
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] *= scale;
    }
}

#endif
