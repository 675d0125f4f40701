/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_LANES_AVX2_H
#define PIPIT_KERNELS_X86_LANES_AVX2_H

/* kernels/cpu/lanes_c.h on two 256-bit registers (lanes 0-7, 8-15). With AVX-VNNI where the
 * compiler may use it. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/unroll.h"

#ifdef __AVXVNNI__
#define LANES_FN(name) name##_avxvnni
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, avxvnni)
#else
#define LANES_FN(name) name##_avx2
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, avx2)
#endif
#define LANES_INLINE UNROLL_INLINE

enum {
    LANES_TILE = 4,
    LANES_ABREAST = 1,
#ifdef __AVXVNNI__
    LANES_SIGNED8 = 0,
#else
    LANES_SIGNED8 = 1,
#endif
};

typedef struct {
    __m256 a, b;
} lf;

typedef struct {
    __m256i a, b;
} li;

/* clang-format off */
LANES_INLINE lf lf_load(const float *p) { return (lf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
LANES_INLINE lf lf_set1(float x) { return (lf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
LANES_INLINE lf lf_add(lf x, lf y) { return (lf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
LANES_INLINE lf lf_sub(lf x, lf y) { return (lf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
LANES_INLINE lf lf_mul(lf x, lf y) { return (lf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
LANES_INLINE lf lf_div(lf x, lf y) { return (lf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
LANES_INLINE lf lf_fma(lf x, lf y, lf z) { return (lf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
LANES_INLINE lf lf_fnma(lf x, lf y, lf z) { return (lf){_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
LANES_INLINE lf lf_min(lf x, lf y) { return (lf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
LANES_INLINE lf lf_max(lf x, lf y) { return (lf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
LANES_INLINE lf lf_bits(li x) { return (lf){_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
LANES_INLINE lf lf_of_int(li x) { return (lf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
LANES_INLINE void lf_store(float *p, lf x) { _mm256_storeu_ps(p, x.a); _mm256_storeu_ps(p + 8, x.b); }
LANES_INLINE lf lf_of_f16(const void *p)
{
    const __m128i *h = p;

    return (lf){_mm256_cvtph_ps(_mm_loadu_si128(h)), _mm256_cvtph_ps(_mm_loadu_si128(h + 1))};
}

LANES_INLINE li li_load(const void *p)
{
    const __m256i *v = p;

    return (li){_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
}
LANES_INLINE li li_set1(int32_t x) { return (li){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
LANES_INLINE li li_set1_8(uint8_t x) { return (li){_mm256_set1_epi8((char)x), _mm256_set1_epi8((char)x)}; }
LANES_INLINE li li_bits(lf x) { return (li){_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
LANES_INLINE li li_and(li x, li y) { return (li){_mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)}; }
LANES_INLINE li li_or(li x, li y) { return (li){_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
LANES_INLINE li li_add(li x, li y) { return (li){_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
LANES_INLINE li li_sub(li x, li y) { return (li){_mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)}; }
LANES_INLINE li li_shl(li x, int n) { return (li){_mm256_slli_epi32(x.a, n), _mm256_slli_epi32(x.b, n)}; }
LANES_INLINE li li_shr(li x, int n) { return (li){_mm256_srli_epi32(x.a, n), _mm256_srli_epi32(x.b, n)}; }
LANES_INLINE li li_max_u32(li x, li y) { return (li){_mm256_max_epu32(x.a, y.a), _mm256_max_epu32(x.b, y.b)}; }
LANES_INLINE li li_of_u8(const uint8_t *p) { return (li){_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8)))}; }
LANES_INLINE li li_of_i8(const int8_t *p) { return (li){_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)), _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))}; }
LANES_INLINE lf lf_of_bf16(const void *p) { return lf_bits((li){_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16), _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p + 1)), 16)}); }
LANES_INLINE li li_lookup(const uint8_t *t, li x)
{
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)t));

    return (li){_mm256_shuffle_epi8(v, x.a), _mm256_shuffle_epi8(v, x.b)};
}
LANES_INLINE li li_round(lf x) { return (li){_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
LANES_INLINE void lanes_prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T0); }
LANES_INLINE void lanes_prefetch_write(void *p) { __builtin_prefetch(p, 1, 3); }
/* clang-format on */

LANES_INLINE void li_store_i8(int8_t *p, li x)
{
    /* packs works inside 128-bit halves: dwords 0-3, 8-11 | 4-7, 12-15, put right at the end */
    __m256i w = _mm256_packs_epi32(x.a, x.b);
    __m256i o = _mm256_permute4x64_epi64(w, 0xd8);

    _mm_storeu_si128((void *)p,
                     _mm_packs_epi16(_mm256_castsi256_si128(o), _mm256_extracti128_si256(o, 1)));
}

LANES_INLINE float lf_sum(lf x)
{
    __m256 h8 = _mm256_add_ps(x.a, x.b);
    __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));

    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

LANES_INLINE int32_t li_sum(li x)
{
    __m256i h8 = _mm256_add_epi32(x.a, x.b);
    __m128i h4 = _mm_add_epi32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    __m128i h2 = _mm_add_epi32(h4, _mm_shuffle_epi32(h4, 0x4e));

    return _mm_cvtsi128_si32(_mm_add_epi32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

LANES_INLINE uint32_t li_max_of_u32(li x)
{
    __m256i h8 = _mm256_max_epu32(x.a, x.b);
    __m128i h4 = _mm_max_epu32(_mm256_castsi256_si128(h8), _mm256_extracti128_si256(h8, 1));
    __m128i h2 = _mm_max_epu32(h4, _mm_shuffle_epi32(h4, 0x4e));

    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epu32(h2, _mm_shuffle_epi32(h2, 0xb1)));
}

LANES_INLINE int32_t lanes_dword(const int8_t *p)
{
    int32_t v;

    memcpy(&v, p, 4);
    return v;
}

#ifdef __AVXVNNI__

LANES_INLINE li lanes_dots_1(li acc, const li *u, const int8_t *a, int n, int bits)
{
    (void)bits;
    UNROLL_LOOP
    for (int j = 0; j < n; j++) {
        __m256i x = _mm256_set1_epi32(lanes_dword(a + 4 * j));

        acc.a = _mm256_dpbusd_avx_epi32(acc.a, u[j].a, x);
        acc.b = _mm256_dpbusd_avx_epi32(acc.b, u[j].b, x);
    }
    return acc;
}

#else

/* p = the sums of pairs of products, in int16; see lanes_avx512.h for the 8-bit case. */
LANES_INLINE __m256i lanes_pairs(__m256i w, __m256i x, int bits)
{
    if (bits == 8) {
        w = _mm256_xor_si256(w, _mm256_set1_epi8((char)0x80));
        return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    }
    return _mm256_maddubs_epi16(w, x);
}

LANES_INLINE li lanes_dots_1(li acc, const li *u, const int8_t *a, int n, int bits)
{
    const int group = bits == 8 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8;
    const __m256i ones = _mm256_set1_epi16(1);
    li sum = {_mm256_setzero_si256(), _mm256_setzero_si256()};

    UNROLL_LOOP
    for (int j = 0; j < n; j++) {
        __m256i x = _mm256_set1_epi32(lanes_dword(a + 4 * j));
        li p = {lanes_pairs(u[j].a, x, bits), lanes_pairs(u[j].b, x, bits)};

        sum.a = j % group == 0 ? p.a : _mm256_add_epi16(sum.a, p.a);
        sum.b = j % group == 0 ? p.b : _mm256_add_epi16(sum.b, p.b);
        if (j % group == group - 1 || j == n - 1) {
            acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(sum.a, ones));
            acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(sum.b, ones));
        }
    }
    return acc;
}

#endif

LANES_INLINE void li_dots(li *dot, const li *u, const int8_t *a, size_t stride, int m, int n,
                          int bits)
{
    UNROLL_LOOP
    for (int t = 0; t < m; t++) {
        dot[t] = lanes_dots_1(dot[t], u, a + (size_t)t * stride, n, bits);
    }
}

#endif
