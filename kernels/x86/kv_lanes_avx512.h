/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_KV_LANES_AVX512_H
#define PIPIT_KERNELS_X86_KV_LANES_AVX512_H

/* kernels/cpu/kv_lanes_c.h on one 512-bit register. */

#include <stdbool.h>

#include "kernels/x86/lanes_avx512.h"
#include "quant/gauss4.h"
#include "quant/half.h"

enum {
    KV_ROWS = 7, /* 28 sums, one vector of K or V, one broadcast */
    KV_COLS = 4,
};

/* clang-format off */
LANES_INLINE lf kv_fma(lf a, lf b, lf c) { return _mm512_fmadd_ps(a, b, c); }
/* Sign-extended to 16 bits and shifted by 7 the code is an f16 but for a copy of its sign in bit
 * 14. */
LANES_INLINE lf lf_of_fp8(const uint8_t *p)
{
    __m256i w = _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const void *)p)), 7);

    return _mm512_cvtph_ps(_mm256_and_si256(w, _mm256_set1_epi16((short)0xbfff)));
}
LANES_INLINE lf lf_of_g4(const uint8_t *p, bool high)
{
    __m512i code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    __m128i table = _mm_loadu_si128((const void *)gauss4_level);
    __m512 level = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(table));

    /* of an index the permutation reads the low four bits */
    return _mm512_permutexvar_ps(high ? _mm512_srli_epi32(code, 4) : code, level);
}
LANES_INLINE void lf_store_f16(void *p, lf a) { _mm256_storeu_si256(p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)); }
LANES_INLINE void li_store_16(void *p, li a) { _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(a)); }
LANES_INLINE lf lf_sqrt(lf a) { return _mm512_sqrt_ps(a); }
LANES_INLINE li li_xor(li a, li b) { return _mm512_xor_si512(a, b); }
/* Shuffles, where a shift would do: the multiplications have the shifts' port to themselves. What
 * both need is made once. */
LANES_INLINE li li_mul_low(li a, uint32_t b)
{
    __m512i m = _mm512_set1_epi32((int)b);
    __m512i odd = _mm512_mul_epu32(_mm512_shuffle_epi32(a, _MM_PERM_DDBB), m);

    return _mm512_mask_shuffle_epi32(_mm512_mul_epu32(a, m), 0xaaaa, odd, _MM_PERM_CCAA);
}
LANES_INLINE li li_mul_high(li a, uint32_t b)
{
    __m512i m = _mm512_set1_epi32((int)b);
    __m512i odd = _mm512_mul_epu32(_mm512_shuffle_epi32(a, _MM_PERM_DDBB), m);

    return _mm512_mask_shuffle_epi32(odd, 0x5555, _mm512_mul_epu32(a, m), _MM_PERM_DDBB);
}
LANES_INLINE li li_greater(li a, li b) { return _mm512_movm_epi32(_mm512_cmpgt_epi32_mask(a, b)); }
LANES_INLINE uint32_t li_mask(li a) { return _mm512_movepi32_mask(a); }
LANES_INLINE lf lf_select(li mask, lf a, lf b) { return _mm512_mask_blend_ps(_mm512_movepi32_mask(mask), b, a); }
LANES_INLINE li li_select(li mask, li a, li b) { return _mm512_mask_blend_epi32(_mm512_movepi32_mask(mask), b, a); }
LANES_INLINE lf lf_swap_1(lf a) { return _mm512_permute_ps(a, 0xb1); }
LANES_INLINE lf lf_swap_2(lf a) { return _mm512_permute_ps(a, 0x4e); }
LANES_INLINE lf lf_swap_4(lf a) { return _mm512_shuffle_f32x4(a, a, 0xb1); }
LANES_INLINE lf lf_swap_8(lf a) { return _mm512_shuffle_f32x4(a, a, 0x4e); }
LANES_INLINE float lf_max_of(lf a) { return _mm512_reduce_max_ps(a); }
/* clang-format on */

#define LANES_HAS_SUMS

/* lf_sum() of four, in the same order: halves, quarters, pairs, neighbours. */
LANES_INLINE void lf_store_sums(float *to, lf a, lf b, lf c, lf d)
{
    __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
    __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
    __m512 all =
        _mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
    const __m512i heads = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);

    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xee));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x55));
    _mm_storeu_ps(to, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, all)));
}

#endif
