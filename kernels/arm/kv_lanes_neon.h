/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ARM_KV_LANES_NEON_H
#define PIPIT_KERNELS_ARM_KV_LANES_NEON_H

/* kernels/cpu/kv_lanes_c.h on four 128-bit registers. */

#include <stdbool.h>

#include "kernels/arm/lanes_neon.h"
#include "quant/gauss4.h"
#include "quant/half.h"

enum {
    KV_ROWS = 6, /* 24 registers of sums, 4 of K or V, one broadcast */
    KV_COLS = 1,
};

/* clang-format off */
LANES_INLINE lf kv_fma(lf x, lf y, lf z) { return lf_fma(x, y, z); }
/* Widened with its sign and shifted by 7 the code is an f16 but for a copy of its sign in bit
 * 14. */
LANES_INLINE lf lf_of_fp8(const uint8_t *p)
{
    const int16x8_t kept = vdupq_n_s16((int16_t)0xbfff);
    int8x16_t v = vreinterpretq_s8_u8(vld1q_u8(p));
    int16x8_t lo = vandq_s16(vshll_n_s8(vget_low_s8(v), 7), kept);
    int16x8_t hi = vandq_s16(vshll_high_n_s8(v, 7), kept);

    return lf_of_halves(vreinterpretq_f16_s16(lo), vreinterpretq_f16_s16(hi));
}
LANES_INLINE lf lf_of_g4(const uint8_t *p, bool high)
{
    uint8x16_t b = vld1q_u8(p);
    uint8x16_t code = high ? vshrq_n_u8(b, 4) : vandq_u8(b, vdupq_n_u8(15));
    int8x16_t v = vqtbl1q_s8(vld1q_s8(gauss4_level), code);
    int16x8_t lo = vmovl_s8(vget_low_s8(v));
    int16x8_t hi = vmovl_high_s8(v);

    return (lf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(lo))), vcvtq_f32_s32(vmovl_high_s16(lo)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(hi))), vcvtq_f32_s32(vmovl_high_s16(hi))};
}
LANES_INLINE void lf_store_f16(void *p, lf x)
{
    uint8_t *h = p;

    vst1q_u8(h, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
    vst1q_u8(h + 16, vreinterpretq_u8_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}
LANES_INLINE void li_store_16(void *p, li x)
{
    uint8_t *h = p;

    vst1q_u8(h, vreinterpretq_u8_s16(neon_narrow(x.a, x.b)));
    vst1q_u8(h + 16, vreinterpretq_u8_s16(neon_narrow(x.c, x.d)));
}
LANES_INLINE lf lf_sqrt(lf x) { return (lf)LANES_1(vsqrtq_f32, x); }
LANES_INLINE li li_xor(li x, li y) { return (li)LANES_2(veorq_s32, x, y); }
LANES_INLINE int32x4_t neon_mul_low(int32x4_t x, uint32_t b) { return vreinterpretq_s32_u32(vmulq_n_u32(vreinterpretq_u32_s32(x), b)); }
LANES_INLINE int32x4_t neon_mul_high(int32x4_t x, uint32_t b)
{
    uint32x4_t u = vreinterpretq_u32_s32(x);
    uint64x2_t lo = vmull_n_u32(vget_low_u32(u), b);
    uint64x2_t hi = vmull_high_n_u32(u, b);

    return vuzp2q_s32(vreinterpretq_s32_u64(lo), vreinterpretq_s32_u64(hi));
}
LANES_INLINE li li_mul_low(li x, uint32_t b) { return (li){neon_mul_low(x.a, b), neon_mul_low(x.b, b), neon_mul_low(x.c, b), neon_mul_low(x.d, b)}; }
LANES_INLINE li li_mul_high(li x, uint32_t b) { return (li){neon_mul_high(x.a, b), neon_mul_high(x.b, b), neon_mul_high(x.c, b), neon_mul_high(x.d, b)}; }
LANES_INLINE int32x4_t neon_greater(int32x4_t x, int32x4_t y) { return vreinterpretq_s32_u32(vcgtq_s32(x, y)); }
LANES_INLINE li li_greater(li x, li y) { return (li)LANES_2(neon_greater, x, y); }
LANES_INLINE uint32_t li_mask(li x)
{
    static const uint8_t bit[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    int8x16_t all = vmovn_high_s16(vmovn_s16(neon_narrow(x.a, x.b)), neon_narrow(x.c, x.d));
    uint8x16_t v = vandq_u8(vreinterpretq_u8_s8(all), vld1q_u8(bit));

    return (uint32_t)vaddv_u8(vget_low_u8(v)) | (uint32_t)vaddv_u8(vget_high_u8(v)) << 8;
}
LANES_INLINE float32x4_t neon_select_f(int32x4_t mask, float32x4_t x, float32x4_t y) { return vbslq_f32(vreinterpretq_u32_s32(mask), x, y); }
LANES_INLINE int32x4_t neon_select_i(int32x4_t mask, int32x4_t x, int32x4_t y) { return vbslq_s32(vreinterpretq_u32_s32(mask), x, y); }
LANES_INLINE lf lf_select(li mask, lf x, lf y) { return (lf)LANES_3(neon_select_f, mask, x, y); }
LANES_INLINE li li_select(li mask, li x, li y) { return (li)LANES_3(neon_select_i, mask, x, y); }
LANES_INLINE lf lf_swap_1(lf x) { return (lf)LANES_1(vrev64q_f32, x); }
LANES_INLINE float32x4_t neon_swap_2(float32x4_t x) { return vextq_f32(x, x, 2); }
LANES_INLINE lf lf_swap_2(lf x) { return (lf)LANES_1(neon_swap_2, x); }
LANES_INLINE lf lf_swap_4(lf x) { return (lf){x.b, x.a, x.d, x.c}; }
LANES_INLINE lf lf_swap_8(lf x) { return (lf){x.c, x.d, x.a, x.b}; }
LANES_INLINE float lf_max_of(lf x) { return vmaxnmvq_f32(neon_max(neon_max(x.a, x.b), neon_max(x.c, x.d))); }
/* clang-format on */

#endif
