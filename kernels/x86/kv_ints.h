/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_KV_INTS_H
#define PIPIT_KERNELS_X86_KV_INTS_H

/* What attention by integer products has in common, whatever the width of its vectors
 * (kv_avx2_int.c, kv_avx512vnni.c). */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/unroll.h"

/* call(rows), of a number up to KV_INT_ROWS that is a constant in each case. */
#define KV_INT_ROWS 7
#define KV_INT_CASE(n, call)                                                                       \
    case n:                                                                                        \
        call(n);                                                                                   \
        break
#define KV_INT_CASES(rows, call)                                                                   \
    switch (rows) {                                                                                \
        KV_INT_CASE(1, call);                                                                      \
        KV_INT_CASE(2, call);                                                                      \
        KV_INT_CASE(3, call);                                                                      \
        KV_INT_CASE(4, call);                                                                      \
        KV_INT_CASE(5, call);                                                                      \
        KV_INT_CASE(6, call);                                                                      \
        KV_INT_CASE(7, call);                                                                      \
    }

/* x / whole, or 0 where the quotient could be no number. */
static inline float kv_int_part(float x, float whole)
{
    return whole > 0x1p-120f ? x / whole : 0.0f;
}

/* n slots' scales of a block, `stride` bytes apart, without a vector instruction; read as a vector
 * much later. */
UNROLL_INLINE void kv_int_scales(const uint8_t *block, size_t stride, int n, uint16_t *ret)
{
    UNROLL_LOOP
    for (int i = 0; i < n; i++) {
        memcpy(ret + i, block + (size_t)i * stride, sizeof(uint16_t));
    }
}

#endif
