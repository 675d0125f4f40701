/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_KV_LANES_AVX2_H
#define PIPIT_KERNELS_X86_KV_LANES_AVX2_H

/* kernels/cpu/kv_lanes_c.h on two 256-bit registers (lanes 0-7, 8-15). */

#include <stdbool.h>

#include "kernels/x86/lanes_avx2.h"
#include "quant/gauss4.h"
#include "quant/half.h"

enum {
    KV_ROWS = 6, /* 12 registers of sums, 2 of K or V, one broadcast */
    KV_COLS = 1,
};

/* clang-format off */
LANES_INLINE lf kv_fma(lf a, lf b, lf c) { return lf_fma(a, b, c); }
/* Sign-extended to 16 bits and shifted by 7 the code is an f16 but for a copy of its sign in bit
 * 14. */
LANES_INLINE lf lf_of_fp8(const uint8_t *p)
{
    __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)), 7);

    w = _mm256_and_si256(w, _mm256_set1_epi16((short)0xbfff));
    return (lf){_mm256_cvtph_ps(_mm256_castsi256_si128(w)), _mm256_cvtph_ps(_mm256_extracti128_si256(w, 1))};
}
LANES_INLINE lf lf_of_g4(const uint8_t *p, bool high)
{
    __m128i b = _mm_loadu_si128((const void *)p);

    b = _mm_and_si128(high ? _mm_srli_epi16(b, 4) : b, _mm_set1_epi8(15));
    b = _mm_shuffle_epi8(_mm_loadu_si128((const void *)gauss4_level), b);
    return (lf){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(b)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(b, 8)))};
}
LANES_INLINE void lf_store_f16(void *p, lf x)
{
    __m128i *h = p;

    _mm_storeu_si128(h, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128(h + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
LANES_INLINE void li_store_16(void *p, li x)
{
    const __m256i low = _mm256_set1_epi32(0xffff);
    __m256i w = _mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low));

    _mm256_storeu_si256(p, _mm256_permute4x64_epi64(w, 0xd8));
}
LANES_INLINE lf lf_sqrt(lf x) { return (lf){_mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)}; }
LANES_INLINE li li_xor(li x, li y) { return (li){_mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)}; }
LANES_INLINE __m256i kv_mul_low(__m256i a, __m256i m)
{
    __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);

    return _mm256_blend_epi32(_mm256_mul_epu32(a, m), _mm256_slli_epi64(odd, 32), 0xaa);
}
LANES_INLINE __m256i kv_mul_high(__m256i a, __m256i m)
{
    __m256i even = _mm256_mul_epu32(a, m);

    return _mm256_blend_epi32(_mm256_srli_epi64(even, 32), _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m), 0xaa);
}
LANES_INLINE li li_mul_low(li x, uint32_t b)
{
    __m256i m = _mm256_set1_epi32((int)b);

    return (li){kv_mul_low(x.a, m), kv_mul_low(x.b, m)};
}
LANES_INLINE li li_mul_high(li x, uint32_t b)
{
    __m256i m = _mm256_set1_epi32((int)b);

    return (li){kv_mul_high(x.a, m), kv_mul_high(x.b, m)};
}
LANES_INLINE li li_greater(li x, li y) { return (li){_mm256_cmpgt_epi32(x.a, y.a), _mm256_cmpgt_epi32(x.b, y.b)}; }
LANES_INLINE uint32_t li_mask(li x)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x.a)) | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(x.b)) << 8;
}
LANES_INLINE lf lf_select(li mask, lf x, lf y)
{
    return (lf){_mm256_blendv_ps(y.a, x.a, _mm256_castsi256_ps(mask.a)), _mm256_blendv_ps(y.b, x.b, _mm256_castsi256_ps(mask.b))};
}
LANES_INLINE li li_select(li mask, li x, li y)
{
    return (li){_mm256_blendv_epi8(y.a, x.a, mask.a), _mm256_blendv_epi8(y.b, x.b, mask.b)};
}
LANES_INLINE lf lf_swap_1(lf x)
{
    return (lf){_mm256_permute_ps(x.a, 0xb1), _mm256_permute_ps(x.b, 0xb1)};
}
LANES_INLINE lf lf_swap_2(lf x)
{
    return (lf){_mm256_permute_ps(x.a, 0x4e), _mm256_permute_ps(x.b, 0x4e)};
}
LANES_INLINE lf lf_swap_4(lf x)
{
    return (lf){_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
}
LANES_INLINE lf lf_swap_8(lf x) { return (lf){x.b, x.a}; }
LANES_INLINE float lf_max_of(lf x)
{
    __m256 m8 = _mm256_max_ps(x.a, x.b);
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(m8), _mm256_extractf128_ps(m8, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));

    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}
/* clang-format on */

#endif
