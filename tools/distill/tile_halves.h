/* SPDX-License-Identifier: Apache-2.0 */
/* `product` of tile.h by AVX-512's products of binary16, 32 at once: twice as many as of f32. Sums
 * of 32 products stay in that type, whose rounding (2^-11 of the sum so far) is less than what bf16
 * took off the operands; then they join sums in f32.
 *
 * Each row is scaled by the power of two that puts its largest value into [64, 128): bf16 has more
 * exponents than binary16, and gradients are small. Weights are not scaled: sums leave the range
 * where 32 of them are 32 in the mean, and what is below 2^-24 is lost. Panels have 32 columns for
 * each of k, rows are in tiles, every value twice in 32 bits, since only such can be broadcast by a
 * load alone.
 */

#ifndef PIPIT_DISTILL_TILE_HALVES_H
#define PIPIT_DISTILL_TILE_HALVES_H

#ifndef TILE_HALVES
#define TILE_HALVES
#endif
#include "tools/distill/tile_avx512.h"

/* n rows of a left operand of k columns; ret_scale (n): what gives the values back. */
static inline void widen_scaled(const uint16_t *a, int64_t n, int64_t k, uint32_t *to,
                                float *ret_scale)
{
    for (int64_t r = 0; r < n; r++) {
        const int64_t at = r / 16 * 16 * k + r % 16 * 32;
        __m512i top = _mm512_setzero_si512();

        for (int64_t q = 0; q < k / 32; q++) {
            __m512i v = _mm512_loadu_si512(a + at + q * TILE);

            top = _mm512_max_epu16(top, _mm512_and_si512(v, _mm512_set1_epi16(0x7fff)));
        }
        __m512i pairs = _mm512_max_epu32(_mm512_srli_epi32(top, 16),
                                         _mm512_and_si512(top, _mm512_set1_epi32(0xffff)));
        const int exponent = (int)(_mm512_reduce_max_epu32(pairs) >> 7) - 127;
        const int by = exponent > -120 && exponent < 128 ? 6 - exponent : 0; /* 2^by is finite */
        const __m512 factor = _mm512_scalef_ps(_mm512_set1_ps(1), _mm512_set1_ps((float)by));

        ret_scale[r] = __builtin_ldexpf(1, -by);
        for (int64_t q = 0; q < k / 32; q++) {
            for (int64_t i = 0; i < 32; i += 16) {
                __m512 v = _mm512_mul_ps(load16(a + at + q * TILE + i), factor);
                __m512i half = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));

                _mm512_store_si512(to + at + q * TILE + i,
                                   _mm512_or_si512(half, _mm512_slli_epi32(half, 16)));
            }
        }
    }
}

/* 8 rows from `first` of 32; the second 16 rows' values are `low` further. */
static inline __attribute__((always_inline)) void halves_of(int first, const uint32_t *a,
                                                            int64_t low, const float *scale,
                                                            const uint16_t *b, int64_t steps,
                                                            float *c)
{
    __m512 s[8][2];

    a += (first < 16 ? 0 : low) + first % 16 * 32;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        s[i][0] = s[i][1] = _mm512_setzero_ps();
    }
    for (int64_t q = 0; q < steps; q++, a += TILE) {
        __m512h h[8];

#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            h[i] = _mm512_setzero_ph();
        }
        for (int64_t k = 0; k < 32; k++, b += 32) {
            const __m512h columns = _mm512_load_ph(b);

#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                __m512i x = _mm512_set1_epi32((int)a[i * 32 + k]);

                h[i] = _mm512_fmadd_ph((__m512h)x, columns, h[i]);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            const __m512i v = (__m512i)h[i];
            const __m512 f = _mm512_set1_ps(scale[first + i]);
            __m512 v0 = _mm512_cvtxph_ps((__m256h)_mm512_castsi512_si256(v));
            __m512 v1 = _mm512_cvtxph_ps((__m256h)_mm512_extracti64x4_epi64(v, 1));

            s[i][0] = _mm512_fmadd_ps(v0, f, s[i][0]);
            s[i][1] = _mm512_fmadd_ps(v1, f, s[i][1]);
        }
    }
    c += first / 16 * 512 + first % 16 * 16;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        _mm512_store_ps(c + i * 16, s[i][0]);
        _mm512_store_ps(c + i * 16 + 256, s[i][1]);
    }
}

static inline __attribute__((always_inline)) void product(enum mode mode, const uint16_t *a,
                                                          int64_t n, int64_t k, const uint16_t *b,
                                                          int64_t stride, int64_t m, void *c,
                                                          void *x, void *y)
{
    _Alignas(64) float s[1024];
    float scale[WIDE / 32];
    const int64_t most = WIDE / k / 32 * 32;
    uint32_t *wide = (uint32_t *)tile_wide();

    for (int64_t from = 0; from < n; from += most) {
        int64_t end = n - from < most ? n : from + most;

        widen_scaled(a + from * k, end - from, k, wide, scale);
        for (int64_t p = 0; p < m / 32; p++) {
            for (int64_t r = from; r < end; r += 32) {
                const uint32_t *rows = wide + (r - from) * k;

                for (int first = 0; first < 32; first += 8) {
                    halves_of(first, rows, 16 * k, scale + r - from, b + p * stride, k / 32, s);
                }
                finish(mode, s, 0, 32, r, p * 32, n, m, c, x, y);
            }
        }
    }
}

#endif
