/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_LANES_AVX512_H
#define PIPIT_KERNELS_X86_LANES_AVX512_H

/* kernels/cpu/lanes_c.h on one 512-bit register. With VNNI where the compiler may use it. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/unroll.h"


#ifdef __AVX512VNNI__
#define LANES_FN(name) name##_avx512vnni
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, avx512vnni)
#else
#define LANES_FN(name) name##_avx512
#define LANES_SET(t, slot) CPU_TABLE_SET(t, slot, avx512)
#endif
#define LANES_INLINE UNROLL_INLINE

enum {
    LANES_TILE = 16,
    LANES_ABREAST = 4,
#ifdef __AVX512VNNI__
    LANES_SIGNED8 = 0,
#else
    LANES_SIGNED8 = 1,
#endif
};

typedef __m512 lf;
typedef __m512i li;

/* clang-format off */
LANES_INLINE lf lf_load(const float *p) { return _mm512_loadu_ps(p); }
LANES_INLINE lf lf_set1(float x) { return _mm512_set1_ps(x); }
LANES_INLINE lf lf_add(lf a, lf b) { return _mm512_add_ps(a, b); }
LANES_INLINE lf lf_sub(lf a, lf b) { return _mm512_sub_ps(a, b); }
LANES_INLINE lf lf_mul(lf a, lf b) { return _mm512_mul_ps(a, b); }
LANES_INLINE lf lf_div(lf a, lf b) { return _mm512_div_ps(a, b); }
LANES_INLINE lf lf_fma(lf a, lf b, lf c) { return _mm512_fmadd_ps(a, b, c); }
LANES_INLINE lf lf_fnma(lf a, lf b, lf c) { return _mm512_fnmadd_ps(a, b, c); }
LANES_INLINE lf lf_min(lf a, lf b) { return _mm512_min_ps(a, b); }
LANES_INLINE lf lf_max(lf a, lf b) { return _mm512_max_ps(a, b); }
LANES_INLINE lf lf_bits(li a) { return _mm512_castsi512_ps(a); }
LANES_INLINE lf lf_of_int(li a) { return _mm512_cvtepi32_ps(a); }
LANES_INLINE lf lf_of_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
LANES_INLINE void lf_store(float *p, lf a) { _mm512_storeu_ps(p, a); }

LANES_INLINE li li_load(const void *p) { return _mm512_loadu_si512(p); }
LANES_INLINE li li_set1(int32_t x) { return _mm512_set1_epi32(x); }
LANES_INLINE li li_set1_8(uint8_t x) { return _mm512_set1_epi8((char)x); }
LANES_INLINE li li_bits(lf a) { return _mm512_castps_si512(a); }
LANES_INLINE li li_and(li a, li b) { return _mm512_and_si512(a, b); }
LANES_INLINE li li_or(li a, li b) { return _mm512_or_si512(a, b); }
LANES_INLINE li li_add(li a, li b) { return _mm512_add_epi32(a, b); }
LANES_INLINE li li_sub(li a, li b) { return _mm512_sub_epi32(a, b); }
LANES_INLINE li li_shl(li a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
LANES_INLINE li li_shr(li a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
LANES_INLINE li li_max_u32(li a, li b) { return _mm512_max_epu32(a, b); }
LANES_INLINE li li_of_u8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)); }
LANES_INLINE li li_of_i8(const int8_t *p) { return _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)); }
LANES_INLINE lf lf_of_bf16(const void *p) { return lf_bits(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16)); }
LANES_INLINE li li_lookup(const uint8_t *t, li x) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)t)), x); }
LANES_INLINE li li_round(lf a) { return _mm512_cvtps_epi32(a); }
LANES_INLINE void li_store_i8(int8_t *p, li a) { _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8(a)); }
LANES_INLINE int32_t li_sum(li a) { return _mm512_reduce_add_epi32(a); }
LANES_INLINE uint32_t li_max_of_u32(li a) { return _mm512_reduce_max_epu32(a); }
LANES_INLINE void lanes_prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T0); }
LANES_INLINE void lanes_prefetch_write(void *p) { __builtin_prefetch(p, 1, 3); }
/* clang-format on */

LANES_INLINE float lf_sum(lf a)
{
    __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));

    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_movehdup_ps(h2)));
}

LANES_INLINE int32_t lanes_dword(const int8_t *p)
{
    int32_t v;

    memcpy(&v, p, 4);
    return v;
}

#ifdef __AVX512VNNI__

/* Four chains of vpdpbusd (latency 4, two a cycle) side by side. */
LANES_INLINE void li_dots(li *dot, const li *u, const int8_t *a, size_t stride, int m, int n,
                          int bits)
{
    (void)bits;
    UNROLL_LOOP
    for (int j = 0; j < n; j++) {
        UNROLL_LOOP
        for (int t = 0; t < m; t++) {
            const int8_t *x = a + (size_t)t * stride + 4 * j;

            dot[t] = _mm512_dpbusd_epi32(dot[t], u[j], _mm512_set1_epi32(lanes_dword(x)));
        }
    }
}

#else

/* Sums of two products fit int16; so do sums of as many of them as (bits) allows, before they are
 * widened. 8-bit codes are taken as code - 128 = +-|code - 128|, the sign moved to the other
 * side. */
LANES_INLINE li lanes_dots_1(li acc, const li *u, const int8_t *a, int n, int bits)
{
    const int group = bits == 8 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8;
    const li ones = _mm512_set1_epi16(1);
    li sum = _mm512_setzero_si512();

    UNROLL_LOOP
    for (int j = 0; j < n; j++) {
        li w = u[j];
        li x = _mm512_set1_epi32(lanes_dword(a + 4 * j));
        li p;

        if (bits == 8) {
            w = _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80));
            x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
            w = _mm512_abs_epi8(w);
        }
        p = _mm512_maddubs_epi16(w, x);
        sum = j % group == 0 ? p : _mm512_add_epi16(sum, p);
        if (j % group == group - 1 || j == n - 1) {
            acc = _mm512_add_epi32(acc, _mm512_madd_epi16(sum, ones));
        }
    }
    return acc;
}

LANES_INLINE void li_dots(li *dot, const li *u, const int8_t *a, size_t stride, int m, int n,
                          int bits)
{
    UNROLL_LOOP
    for (int t = 0; t < m; t++) {
        dot[t] = lanes_dots_1(dot[t], u, a + (size_t)t * stride, n, bits);
    }
}

#endif

#endif
