/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ARM_LANES_NEON_H
#define PIPIT_KERNELS_ARM_LANES_NEON_H

/* kernels/cpu/lanes_c.h on four 128-bit registers (lanes 0-3, 4-7, 8-11, 12-15). Dot products of
 * bytes are not among these: panels are multiplied a quarter of their rows at a time
 * (panel_neon.h). */

#include <arm_neon.h>
#include <stdint.h>

#include "kernels/cpu/unroll.h"

#define LANES_FN(name) name##_neon
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, neon)
#define LANES_INLINE UNROLL_INLINE

enum { LANES_TILE = 4 }; /* sets the width of recur_body.h's blocks; panel_neon.h has its own */

typedef struct {
    float32x4_t a, b, c, d;
} lf;

typedef struct {
    int32x4_t a, b, c, d;
} li;

/* clang-format off */
#define LANES_1(fn, x) {fn((x).a), fn((x).b), fn((x).c), fn((x).d)}
#define LANES_2(fn, x, y) {fn((x).a, (y).a), fn((x).b, (y).b), fn((x).c, (y).c), fn((x).d, (y).d)}
#define LANES_3(fn, x, y, z) {fn((x).a, (y).a, (z).a), fn((x).b, (y).b, (z).b), fn((x).c, (y).c, (z).c), fn((x).d, (y).d, (z).d)}

/* The second where either is NaN, as lanes_c.h wants it: fmin and fmax would give the NaN. */
LANES_INLINE float32x4_t neon_min(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }
LANES_INLINE float32x4_t neon_max(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
LANES_INLINE int32x4_t neon_max_u32(int32x4_t x, int32x4_t y) { return vreinterpretq_s32_u32(vmaxq_u32(vreinterpretq_u32_s32(x), vreinterpretq_u32_s32(y))); }
LANES_INLINE uint8x16_t neon_bytes(const void *p) { return vld1q_u8((const uint8_t *)p); }

LANES_INLINE lf lf_load(const float *p) { return (lf){vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}; }
LANES_INLINE lf lf_set1(float x) { float32x4_t v = vdupq_n_f32(x); return (lf){v, v, v, v}; }
LANES_INLINE lf lf_add(lf x, lf y) { return (lf)LANES_2(vaddq_f32, x, y); }
LANES_INLINE lf lf_sub(lf x, lf y) { return (lf)LANES_2(vsubq_f32, x, y); }
LANES_INLINE lf lf_mul(lf x, lf y) { return (lf)LANES_2(vmulq_f32, x, y); }
LANES_INLINE lf lf_div(lf x, lf y) { return (lf)LANES_2(vdivq_f32, x, y); }
LANES_INLINE lf lf_fma(lf x, lf y, lf z) { return (lf)LANES_3(vfmaq_f32, z, x, y); }
LANES_INLINE lf lf_fnma(lf x, lf y, lf z) { return (lf)LANES_3(vfmsq_f32, z, x, y); }
LANES_INLINE lf lf_min(lf x, lf y) { return (lf)LANES_2(neon_min, x, y); }
LANES_INLINE lf lf_max(lf x, lf y) { return (lf)LANES_2(neon_max, x, y); }
LANES_INLINE lf lf_bits(li x) { return (lf)LANES_1(vreinterpretq_f32_s32, x); }
LANES_INLINE lf lf_of_int(li x) { return (lf)LANES_1(vcvtq_f32_s32, x); }
LANES_INLINE void lf_store(float *p, lf x) { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); vst1q_f32(p + 8, x.c); vst1q_f32(p + 12, x.d); }
LANES_INLINE lf lf_of_halves(float16x8_t low, float16x8_t high)
{
    return (lf){vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)), vcvt_high_f32_f16(high)};
}
LANES_INLINE lf lf_of_f16(const void *p)
{
    return lf_of_halves(vreinterpretq_f16_u8(neon_bytes(p)), vreinterpretq_f16_u8(neon_bytes((const uint8_t *)p + 16)));
}
LANES_INLINE float32x4_t neon_of_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
LANES_INLINE lf lf_of_bf16(const void *p)
{
    const uint16_t *h = p;

    return (lf){neon_of_bf16(h), neon_of_bf16(h + 4), neon_of_bf16(h + 8), neon_of_bf16(h + 12)};
}

LANES_INLINE li li_load(const void *p)
{
    const int32_t *v = p;

    return (li){vld1q_s32(v), vld1q_s32(v + 4), vld1q_s32(v + 8), vld1q_s32(v + 12)};
}
LANES_INLINE li li_set1(int32_t x) { int32x4_t v = vdupq_n_s32(x); return (li){v, v, v, v}; }
LANES_INLINE li li_bits(lf x) { return (li)LANES_1(vreinterpretq_s32_f32, x); }
LANES_INLINE li li_and(li x, li y) { return (li)LANES_2(vandq_s32, x, y); }
LANES_INLINE li li_or(li x, li y) { return (li)LANES_2(vorrq_s32, x, y); }
LANES_INLINE li li_add(li x, li y) { return (li)LANES_2(vaddq_s32, x, y); }
LANES_INLINE li li_sub(li x, li y) { return (li)LANES_2(vsubq_s32, x, y); }
LANES_INLINE int32x4_t neon_shift(int32x4_t x, int n) { return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(x), vdupq_n_s32(n))); }
LANES_INLINE li li_shl(li x, int n) { return (li){neon_shift(x.a, n), neon_shift(x.b, n), neon_shift(x.c, n), neon_shift(x.d, n)}; }
LANES_INLINE li li_shr(li x, int n) { return li_shl(x, -n); }
LANES_INLINE li li_max_u32(li x, li y) { return (li)LANES_2(neon_max_u32, x, y); }
LANES_INLINE li li_of_u8(const uint8_t *p)
{
    uint8x16_t v = vld1q_u8(p);
    uint16x8_t lo = vmovl_u8(vget_low_u8(v));
    uint16x8_t hi = vmovl_high_u8(v);

    return (li){vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(lo))), vreinterpretq_s32_u32(vmovl_high_u16(lo)),
                vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(hi))), vreinterpretq_s32_u32(vmovl_high_u16(hi))};
}
LANES_INLINE li li_of_i8(const int8_t *p)
{
    int8x16_t v = vld1q_s8(p);
    int16x8_t lo = vmovl_s8(vget_low_s8(v));
    int16x8_t hi = vmovl_high_s8(v);

    return (li){vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)), vmovl_high_s16(hi)};
}
LANES_INLINE li li_round(lf x) { return (li)LANES_1(vcvtnq_s32_f32, x); }
/* the low 16 bits of each lane, lanes 0-7 or 8-15 */
LANES_INLINE int16x8_t neon_narrow(int32x4_t x, int32x4_t y) { return vmovn_high_s32(vmovn_s32(x), y); }
LANES_INLINE void li_store_i8(int8_t *p, li x)
{
    vst1q_s8(p, vmovn_high_s16(vmovn_s16(neon_narrow(x.a, x.b)), neon_narrow(x.c, x.d)));
}
LANES_INLINE int32_t li_sum(li x) { return vaddvq_s32(vaddq_s32(vaddq_s32(x.a, x.b), vaddq_s32(x.c, x.d))); }
LANES_INLINE uint32_t li_max_of_u32(li x)
{
    return vmaxvq_u32(vreinterpretq_u32_s32(neon_max_u32(neon_max_u32(x.a, x.b), neon_max_u32(x.c, x.d))));
}
LANES_INLINE void lanes_prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
LANES_INLINE void lanes_prefetch_write(void *p) { __builtin_prefetch(p, 1, 3); }
/* clang-format on */

/* The tree of lanes_c.h: 8, 4, 2, 1. */
LANES_INLINE float lf_sum(lf x)
{
    float32x4_t h4 = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    float32x2_t h2 = vadd_f32(vget_low_f32(h4), vget_high_f32(h4));

    return vget_lane_f32(h2, 0) + vget_lane_f32(h2, 1);
}

#endif
