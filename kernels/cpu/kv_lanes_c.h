/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_LANES_C_H
#define PIPIT_KERNELS_CPU_KV_LANES_C_H

/* What the cache's kernels (kv_body.h) need beyond lanes_c.h, in plain C.
 * kernels/x86/kv_lanes_avx2.h and kv_lanes_avx512.h offer the same names. */

#include <stdbool.h>

#include "kernels/cpu/lanes_c.h"
#include "quant/gauss4.h"
#include "quant/half.h"

enum {
    KV_ROWS = 2, /* pairs and vectors of 16 that the inner loops keep in registers */
    KV_COLS = 1,
};

/* clang-format off */
/* a * b + c; rounded twice here, once elsewhere: a fused one is a call to the C library. */
LANES_INLINE lf kv_fma(lf a, lf b, lf c) { return (lf){a.v * b.v + c.v}; }
/* e4m3 codes times 2^-8 */
LANES_INLINE lf lf_of_fp8(const uint8_t *p)
{
    const li c = li_of_u8(p);

    return lf_of_half(li_or(li_shl(li_and(c, li_set1(0x80)), 8), li_shl(li_and(c, li_set1(0x7f)), 7)));
}
/* levels of quant/gauss4.h, of the low or the high halves of 16 bytes */
LANES_INLINE lf lf_of_g4(const uint8_t *p, bool high)
{
    LANES_EACH(lf, gauss4_level[high ? p[i] >> 4 : p[i] & 15]);
}
LANES_INLINE void lf_store_f16(void *p, lf a)
{
    uint16_t h[16];

    for (int i = 0; i < 16; i++) {
        h[i] = half_f16_from_f32(a.v[i]);
    }
    memcpy(p, h, 32);
}
/* the low 16 bits of each lane; the low 8 bits */
LANES_INLINE void li_store_16(void *p, li a)
{
    uint16_t h[16];

    for (int i = 0; i < 16; i++) {
        h[i] = (uint16_t)a.v[i];
    }
    memcpy(p, h, 32);
}
LANES_INLINE lf lf_sqrt(lf a) { LANES_EACH(lf, sqrtf(a.v[i])); }
LANES_INLINE li li_xor(li a, li b) { return (li){a.v ^ b.v}; }
LANES_INLINE li li_mul_low(li a, uint32_t b) { return LANES_OF_U32(LANES_U32(a) * b); }
LANES_INLINE li li_mul_high(li a, uint32_t b) { LANES_EACH(li, (int32_t)((uint64_t)(uint32_t)a.v[i] * b >> 32)); }
/* all ones where a > b (signed) */
LANES_INLINE li li_greater(li a, li b) { return (li){a.v > b.v}; }
/* bit i: is lane i all ones? */
LANES_INLINE uint32_t li_mask(li a)
{
    uint32_t bits = 0;

    for (int i = 0; i < 16; i++) {
        bits |= (uint32_t)(a.v[i] != 0) << i;
    }
    return bits;
}
/* lane i is lane i ^ 1, 2, 4, 8 of a */
LANES_INLINE lf lf_swap_1(lf a) { LANES_EACH(lf, a.v[i ^ 1]); }
LANES_INLINE lf lf_swap_2(lf a) { LANES_EACH(lf, a.v[i ^ 2]); }
LANES_INLINE lf lf_swap_4(lf a) { LANES_EACH(lf, a.v[i ^ 4]); }
LANES_INLINE lf lf_swap_8(lf a) { LANES_EACH(lf, a.v[i ^ 8]); }
LANES_INLINE float lf_max_of(lf a)
{
    float m = a.v[0];

    for (int i = 1; i < 16; i++) {
        m = a.v[i] > m ? a.v[i] : m;
    }
    return m;
}
/* clang-format on */

#endif
