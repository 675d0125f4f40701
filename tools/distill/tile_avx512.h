/* SPDX-License-Identifier: Apache-2.0 */
/* The products of tile.h in AVX-512 registers, where there are no tiles: 11, 11 and 10 rows of a
 * block's 32, each in two registers of 16 columns over the whole of k. Of each pair of k, a row's
 * values come as broadcasts from memory.
 *
 * With TILE_DOTS the pairs go through vdpbf16ps as they are. Some processors do one of these while
 * they do four products of f32 (Emerald Rapids: 90 and 179 GFLOP/s a core at 2.8 GHz), so without
 * it both operands are widened: columns where they are used, two instructions for 22 products;
 * rows, which are used by every panel, once. With TILE_HALVES only `block` is taken from here
 * (tile_halves.h). ops.py takes what is fastest on the machine.
 */

#ifndef PIPIT_DISTILL_TILE_AVX512_H
#define PIPIT_DISTILL_TILE_AVX512_H

#include "tools/distill/tile_finish.h"

static inline void tiles_begin(void)
{
}

static inline void tiles_end(void)
{
}

/* Values of left operands that are widened together: 1 MB, in the L2 cache. 32 rows at least, so
 * neither k nor a sequence is longer than WIDE / 32 (ops.WIDEST). */
enum { WIDE = 1 << 18 };

#ifdef TILE_DOTS
typedef uint16_t left_value;
#else
typedef float left_value;
#endif

/* One for each thread, WIDE values (tile_attention.c). */
float *tile_wide(void);

/* n bf16 values, a multiple of 32, as `rows_of` reads them. */
static inline void widen(const uint16_t *from, int64_t n, left_value *to)
{
#ifdef TILE_DOTS
    memcpy(to, from, (size_t)n * sizeof(*to));
#else
    for (int64_t i = 0; i < n; i += 16) {
        _mm512_store_ps(to + i, load16(from + i));
    }
#endif
}

/* Where 32 x 32 sums go: row i at (i < 16 ? top : low) + i % 16 * ld, its second 16 columns `half`
 * further. */
struct sums {
    float *top;
    float *low;
    int64_t ld;
    int64_t half;
};

/* `count` rows from `first` of 32: tiles of left values from `a`, the second 16 rows' `low` values
 * further, the next 32 of k `step` further. */
static inline __attribute__((always_inline)) void rows_of(int first, int count, int more,
                                                          const left_value *a, int64_t low,
                                                          int64_t step, const uint16_t *b,
                                                          int64_t steps, struct sums c)
{
    __m512 s[11][2];

#pragma GCC unroll 11
    for (int i = 0; i < count; i++) {
        const float *to = first + i < 16 ? c.top : c.low;

        to += (first + i) % 16 * c.ld;
        s[i][0] = more ? _mm512_loadu_ps(to) : _mm512_setzero_ps();
        s[i][1] = more ? _mm512_loadu_ps(to + c.half) : _mm512_setzero_ps();
    }
    for (int64_t k = 0; k < steps; k++, a += step) {
        const left_value *under = a + low;

        for (int64_t pair = 0; pair < 16; pair++, b += 32) {
            const __m512i b0 = _mm512_load_si512(b);
            const __m512i b1 = _mm512_load_si512(b + TILE);
#ifndef TILE_DOTS
            const __m512i odd = _mm512_set1_epi32((int)0xffff0000);
            const __m512 even0 = (__m512)_mm512_slli_epi32(b0, 16);
            const __m512 even1 = (__m512)_mm512_slli_epi32(b1, 16);
            const __m512 odd0 = (__m512)_mm512_and_si512(b0, odd);
            const __m512 odd1 = (__m512)_mm512_and_si512(b1, odd);
#endif

#pragma GCC unroll 11
            for (int i = 0; i < count; i++) {
                const left_value *from = first + i < 16 ? a : under;

                from += (first + i) % 16 * 32 + 2 * pair;
#ifdef TILE_DOTS
                int both;

                memcpy(&both, from, sizeof(both));
                __m512bh x = (__m512bh)_mm512_set1_epi32(both);

                s[i][0] = _mm512_dpbf16_ps(s[i][0], x, (__m512bh)b0);
                s[i][1] = _mm512_dpbf16_ps(s[i][1], x, (__m512bh)b1);
#else
                __m512 x = _mm512_set1_ps(from[0]);
                __m512 y = _mm512_set1_ps(from[1]);

                s[i][0] = _mm512_fmadd_ps(x, even0, s[i][0]);
                s[i][1] = _mm512_fmadd_ps(x, even1, s[i][1]);
                s[i][0] = _mm512_fmadd_ps(y, odd0, s[i][0]);
                s[i][1] = _mm512_fmadd_ps(y, odd1, s[i][1]);
#endif
            }
        }
        b += TILE;
    }
#pragma GCC unroll 11
    for (int i = 0; i < count; i++) {
        float *to = first + i < 16 ? c.top : c.low;

        to += (first + i) % 16 * c.ld;
        _mm512_storeu_ps(to, s[i][0]);
        _mm512_storeu_ps(to + c.half, s[i][1]);
    }
}

static inline __attribute__((always_inline)) void rows_32(int more, const left_value *a,
                                                          int64_t low, int64_t step,
                                                          const uint16_t *b, int64_t steps,
                                                          struct sums c)
{
    rows_of(0, 11, more, a, low, step, b, steps, c);
    rows_of(11, 11, more, a, low, step, b, steps, c);
    rows_of(22, 10, more, a, low, step, b, steps, c);
}

/* The 32 x 32 sums of left rows (`low`: 16 rows further; rows `a_bytes` apart, the next 32 of k
 * `a_step` values further) and a panel, stored at c, rows `ld` apart; with `more`, added to what is
 * there. */
static inline void block(int more, const uint16_t *a, const uint16_t *low, int64_t a_step,
                         int64_t a_bytes, const uint16_t *b, int64_t steps, float *c, int64_t ld)
{
    const struct sums to = {c, c + 16 * ld, ld, 16};
    left_value *wide = (left_value *)tile_wide();

#ifdef TILE_DOTS
    if (a_bytes == 64) { /* as `widen` would leave them */
        if (more) {
            rows_32(1, a, low - a, a_step, b, steps, to);
        } else {
            rows_32(0, a, low - a, a_step, b, steps, to);
        }
        return;
    }
#endif
    for (int64_t k = 0; k < steps; k++) {
        for (int64_t i = 0; i < 16; i++) {
            widen(a + k * a_step + i * a_bytes / 2, 32, wide + k * 2 * TILE + i * 32);
            widen(low + k * a_step + i * a_bytes / 2, 32, wide + k * 2 * TILE + TILE + i * 32);
        }
    }
    if (more) {
        rows_32(1, wide, TILE, 2 * TILE, b, steps, to);
    } else {
        rows_32(0, wide, TILE, 2 * TILE, b, steps, to);
    }
}

#ifndef TILE_HALVES

/* All of the operand's rows that fit go through each panel together. */
static inline __attribute__((always_inline)) void product(enum mode mode, const uint16_t *a,
                                                          int64_t n, int64_t k, const uint16_t *b,
                                                          int64_t stride, int64_t m, void *c,
                                                          void *x, void *y)
{
    _Alignas(64) float s[1024];
    const struct sums to = {s, s + 512, 16, 256};
    const int64_t most = WIDE / k / 32 * 32;
    left_value *wide = (left_value *)tile_wide();

    for (int64_t from = 0; from < n; from += most) {
        int64_t end = n - from < most ? n : from + most;

        widen(a + from * k, (end - from) * k, wide);
        for (int64_t p = 0; p < m / 32; p++) {
            for (int64_t r = from; r < end; r += 32) {
                rows_32(0, wide + (r - from) * k, 16 * k, TILE, b + p * stride, k / 32, to);
                finish(mode, s, 0, 32, r, p * 32, n, m, c, x, y);
            }
        }
    }
}

#endif

#endif
