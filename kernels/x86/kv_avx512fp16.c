/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted sums of FP8 values in f16 arithmetic, for AVX-512 FP16.
 *
 * Converting FP8 to f32 costs more than reading it: 20 instructions for 64 values beside 12
 * multiplications (three query heads). Here the even and the odd bytes of a vector become two
 * vectors of f16 by shifts and masks, 7 instructions, and 6 multiplications follow. Sums stay in
 * f16 for one page, two chains of 32 slots each, and go to f32 with its end. Weights are brought
 * below 2 by a power of two of the page's own, so neither range of f16 is reached (32 * 2 * 1.75).
 *
 * The rounding, 2^-12 of each partial sum, is a thousandth of FP8's own error in squares
 * (tests/kernels/tolerance.h). Dot products with K stay in f32: a logit's error is multiplied
 * by the logit's size, and e^ makes it a relative one. */

#include <immintrin.h>

#include "kernels/x86/x86.h"

enum {
    ROWS = 4,  /* pairs at once: 16 sums, 4 vectors of values */
    DIMS = 64, /* of one vector of bytes */
};

/* 64 codes to e4m3 * 2^-8: sign to bit 15, exponent and mantissa to bits 13..7. */
static inline void unpack(const uint8_t *p, __mmask64 mask, __m512h *ret_even, __m512h *ret_odd)
{
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const __m512i rest = _mm512_set1_epi16(0x3f80);
    __m512i odd = _mm512_maskz_loadu_epi8(mask, p);
    __m512i even = _mm512_slli_epi16(odd, 8);

    /* 0xf8: a | (b & c) */
    *ret_even = (__m512h)_mm512_ternarylogic_epi32(_mm512_and_si512(even, sign),
                                                   _mm512_srli_epi16(even, 1), rest, 0xf8);
    *ret_odd = (__m512h)_mm512_ternarylogic_epi32(_mm512_and_si512(odd, sign),
                                                  _mm512_srli_epi16(odd, 1), rest, 0xf8);
}

/* Weights of a page as pairs of equal f16, below 2; returns what they are to be multiplied with. */
static inline float to_half(const float *e, int32_t n_slots, uint32_t *ret)
{
    __m512 v[CPU_KV_SLOTS / 16];
    __m512 largest = _mm512_setzero_ps();
    uint32_t exponent;
    union {
        float f;
        uint32_t u;
    } max, down, up;

    for (int i = 0; i < CPU_KV_SLOTS / 16; i++) {
        int32_t left = n_slots - 16 * i;
        __mmask16 mask = left >= 16 ? 0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1);

        v[i] = _mm512_maskz_loadu_ps(mask, e + 16 * i);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(v[i]));
    }
    max.f = _mm512_reduce_max_ps(largest);
    exponent = max.u >> 23;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    up.u = exponent << 23;
    down.u = (254 - exponent) << 23;
    for (int i = 0; i < CPU_KV_SLOTS / 16; i++) {
        __m256i half = _mm512_cvtps_ph(_mm512_mul_ps(v[i], _mm512_set1_ps(down.f)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512i wide = _mm512_cvtepu16_epi32(half);

        _mm512_storeu_si512(ret + 16 * i, _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16)));
    }
    return up.f;
}

static inline __m512 low_f32(__m512h x)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)x));
}

static inline __m512 high_f32(__m512h x)
{
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)x, 1));
}

/* acc[0, 64) += factor * values, whose even and odd places come apart. */
static inline void add(float *acc, int32_t n, __m512 even, __m512 odd, __m512 factor)
{
    const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i high =
        _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);

    if (n > 0) {
        __m512 x = _mm512_permutex2var_ps(even, low, odd);

        _mm512_storeu_ps(acc, _mm512_fmadd_ps(x, factor, _mm512_loadu_ps(acc)));
    }
    if (n > 16) {
        __m512 x = _mm512_permutex2var_ps(even, high, odd);

        _mm512_storeu_ps(acc + 16, _mm512_fmadd_ps(x, factor, _mm512_loadu_ps(acc + 16)));
    }
}

/* 64 dims from `d0` on (or the `n` that are left) of `rows` pairs. */
static inline __attribute__((always_inline)) void tile(int rows, const uint8_t *v, int32_t v_pad,
                                                       int32_t d0, int32_t n, const uint32_t *w,
                                                       const float *factor, int32_t n_slots,
                                                       float *acc, const uint8_t *const *ahead)
{
    const __mmask64 mask = n >= DIMS ? ~0ull : (1ull << n) - 1;
    __m512h even[ROWS][2];
    __m512h odd[ROWS][2];

#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm512_setzero_ph();
    }
    for (int32_t s = 0; s < n_slots; s += 2) {
#pragma GCC unroll 2
        for (int chain = 0; chain < 2; chain++) {
            const int32_t at = s + chain;
            const size_t row = (size_t)at * (size_t)v_pad + (size_t)d0;
            __m512h a;
            __m512h b;

            if (at >= n_slots) {
                break;
            }
            if (ahead) { /* for as many lines, spread as in kv_body.h */
                size_t line = row / 64;
                size_t slice = line & 7;

                _mm_prefetch(ahead[(line >> 6) + 8 - slice] + 512 * slice + 64 * (line >> 3 & 7),
                             _MM_HINT_T0);
            }
            unpack(v + row, mask, &a, &b);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) {
                __m512h x = (__m512h)_mm512_set1_epi32((int)w[r * CPU_KV_SLOTS + at]);

                even[r][chain] = _mm512_fmadd_ph(x, a, even[r][chain]);
                odd[r][chain] = _mm512_fmadd_ph(x, b, odd[r][chain]);
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const __m512 f = _mm512_set1_ps(factor[r]);
        float *to = acc + (size_t)r * (size_t)v_pad + d0;

        add(to, n, _mm512_add_ps(low_f32(even[r][0]), low_f32(even[r][1])),
            _mm512_add_ps(low_f32(odd[r][0]), low_f32(odd[r][1])), f);
        add(to + 32, n - 32, _mm512_add_ps(high_f32(even[r][0]), high_f32(even[r][1])),
            _mm512_add_ps(high_f32(odd[r][0]), high_f32(odd[r][1])), f);
    }
}

static void pv_fp8_avx512fp16(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                              int32_t n_slots, float *acc, const uint8_t *const *ahead)
{
    uint32_t w[ROWS * CPU_KV_SLOTS];
    float factor[ROWS];

    while (n > 0) {
        int rows = n < ROWS ? n : ROWS;

        for (int r = 0; r < rows; r++) {
            factor[r] = to_half(e + (size_t)r * lde, n_slots, w + r * CPU_KV_SLOTS);
        }
        for (int32_t d = 0; d < v_pad; d += DIMS) {
            int32_t left = v_pad - d < DIMS ? v_pad - d : DIMS;

            switch (rows) {
            case 1:
                tile(1, v, v_pad, d, left, w, factor, n_slots, acc, ahead);
                break;
            case 2:
                tile(2, v, v_pad, d, left, w, factor, n_slots, acc, ahead);
                break;
            case 3:
                tile(3, v, v_pad, d, left, w, factor, n_slots, acc, ahead);
                break;
            default:
                tile(ROWS, v, v_pad, d, left, w, factor, n_slots, acc, ahead);
                break;
            }
        }
        e += (size_t)rows * lde;
        acc += (size_t)rows * (size_t)v_pad;
        n -= rows;
        ahead = NULL;
    }
}

void x86_table_kv_avx512fp16(struct cpu_table *t)
{
    CPU_TABLE_SET(t, pv_fp8, avx512fp16);
}
