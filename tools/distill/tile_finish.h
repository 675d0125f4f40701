/* SPDX-License-Identifier: Apache-2.0 */
/* Operands of tile.h's products, and what is done on the way with a block's 32 x 32 sums. */

#ifndef PIPIT_DISTILL_TILE_FINISH_H
#define PIPIT_DISTILL_TILE_FINISH_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { TILE = 512, DIM = 64 };

static inline __m512 load16(const uint16_t *p)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

static inline void store16(uint16_t *p, __m512 v)
{
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(v));
}

/* 2^x: least largest relative error over -0.5 to 0.5 of that degree, 3e-6. */
static inline __m512 exp2_16(__m512 x)
{
    __m512 n = _mm512_roundscale_ps(x, 0);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(9.56051e-3f);

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.591704e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.4024981e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.9312197e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.99999919f));
    return _mm512_scalef_ps(p, n);
}

#define LOG2E 1.44269504f

static inline __m512 sigmoid16(__m512 x)
{
    __m512 e = exp2_16(_mm512_mul_ps(x, _mm512_set1_ps(-LOG2E)));

    return _mm512_div_ps(_mm512_set1_ps(1), _mm512_add_ps(e, _mm512_set1_ps(1)));
}

/* Where a left operand with k columns keeps row r, columns from col (a multiple of 16). */
static inline uint16_t *tiled(uint16_t *t, int64_t k, int64_t r, int64_t col)
{
    return t + (r / 16 * (k / 32) + col / 32) * TILE + r % 16 * 32 + col % 32;
}

static inline void store32(uint16_t *p, __m512 low, __m512 high)
{
    _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/* What becomes of the sums of n rows and m columns:
 *   SUM        c f32 (n, m) += sum
 *   F32        c f32 (n, m) = sum
 *   ADD        c f32 (n, m) = x f32 + sum; c may be x
 *   GATE       columns are 16 of gate, 16 of up by turns: c, a left operand of m / 2 columns, =
 *              silu(gate) * up; x, unless null, keeps gate and up: for each 32 rows, for each 32
 *              columns, 32 lines of 32 values
 *   GATE_BACK  sum is the gradient by silu(gate) * up, x what GATE kept: c, a left operand of 2 m
 *              columns, has the gradients by gate (first m) and by up
 *   HEADS      columns in the order of `halves` in layers.py: c bf16 (m / 64, n, 64) = sum
 *   ROPE       the same, turned by cosine x and sine y f32 (n, 32)
 *   PLAIN      c bf16 (n, m) = sum
 *   LEFT       c, a left operand of x[0] columns, has the sums in its columns from x[1] (int64_t)
 *   TURN       columns in the order of `halves` of one head of m: c bf16 (n, m) = sum, turned by
 *              cosine x and sine y f32 (n, m / 2)
 *   EXP        of each 32 rows the first 16 are of 16 positions' students, then of their teachers.
 *              y f32: a factor, then a shift for each row of a pair. With e = 2^(sum * factor -
 *              shift), c keeps e bf16 as GATE's x; x f32 (n / 2, 3, 16) += lane by lane the
 *              student's e, the teacher's, and the teacher's times the exponents' difference
 *   TOP        rows as in EXP: x f32 (n / 2, 3, 16), its first two are the largest so far */
enum mode { SUM, F32, ADD, GATE, GATE_BACK, HEADS, ROPE, PLAIN, LEFT, TURN, EXP, TOP };

static inline __attribute__((always_inline)) void finish_pairs(enum mode mode, const float *s,
                                                               int64_t i, int64_t end, int64_t r,
                                                               int64_t col, int64_t n, uint16_t *c,
                                                               float *x, const float *y)
{
    const __m512 f = _mm512_set1_ps(y[0]);

    for (i /= 2; i < end / 2; i++) {
        int64_t at = r / 2 + i;
        float *stats = x + at * 48;
        __m512 q[2] = {_mm512_load_ps(s + i * 16), _mm512_load_ps(s + i * 16 + 256)};
        __m512 p[2] = {_mm512_load_ps(s + i * 16 + 512), _mm512_load_ps(s + i * 16 + 768)};

        if (mode == TOP) {
            _mm512_storeu_ps(stats,
                             _mm512_max_ps(_mm512_loadu_ps(stats), _mm512_max_ps(q[0], q[1])));
            _mm512_storeu_ps(stats + 16,
                             _mm512_max_ps(_mm512_loadu_ps(stats + 16), _mm512_max_ps(p[0], p[1])));
            continue;
        }
        uint16_t *line = c + (col / 32 * (n / 32) + r / 32) * 1024 + i * 32;
        __m512 shift_q = _mm512_set1_ps(y[1 + 2 * at]);
        __m512 shift_p = _mm512_set1_ps(y[2 + 2 * at]);
        __m512 cross = _mm512_loadu_ps(stats + 32);

        for (int64_t h = 0; h < 2; h++) {
            __m512 a = _mm512_fmsub_ps(q[h], f, shift_q);
            __m512 b = _mm512_fmsub_ps(p[h], f, shift_p);

            q[h] = exp2_16(a);
            p[h] = exp2_16(b);
            cross = _mm512_fmadd_ps(p[h], _mm512_sub_ps(b, a), cross);
        }
        _mm512_stream_si512((void *)line, (__m512i)_mm512_cvtne2ps_pbh(q[1], q[0]));
        _mm512_stream_si512((void *)(line + 512), (__m512i)_mm512_cvtne2ps_pbh(p[1], p[0]));
        _mm512_storeu_ps(stats, _mm512_add_ps(_mm512_loadu_ps(stats), _mm512_add_ps(q[0], q[1])));
        _mm512_storeu_ps(stats + 16,
                         _mm512_add_ps(_mm512_loadu_ps(stats + 16), _mm512_add_ps(p[0], p[1])));
        _mm512_storeu_ps(stats + 32, cross);
    }
}

static inline __attribute__((always_inline)) void finish(enum mode mode, const float *s, int64_t i,
                                                         int64_t end, int64_t r, int64_t col,
                                                         int64_t n, int64_t m, void *c, void *x,
                                                         void *y)
{
    if (mode == EXP || mode == TOP) {
        finish_pairs(mode, s, i, end, r, col, n, c, x, y);
        return;
    }
    for (; i < end; i++) {
        const float *row = s + i / 16 * 512 + i % 16 * 16;
        __m512 a = _mm512_load_ps(row);
        __m512 b = _mm512_load_ps(row + 256);
        int64_t at = (r + i) * m + col;

        switch (mode) {
        case SUM:
            _mm512_storeu_ps((float *)c + at, _mm512_add_ps(a, _mm512_loadu_ps((float *)c + at)));
            _mm512_storeu_ps((float *)c + at + 16,
                             _mm512_add_ps(b, _mm512_loadu_ps((float *)c + at + 16)));
            break;
        case F32:
            _mm512_storeu_ps((float *)c + at, a);
            _mm512_storeu_ps((float *)c + at + 16, b);
            break;
        case ADD:
            _mm512_storeu_ps((float *)c + at, _mm512_add_ps(a, _mm512_loadu_ps((float *)x + at)));
            _mm512_storeu_ps((float *)c + at + 16,
                             _mm512_add_ps(b, _mm512_loadu_ps((float *)x + at + 16)));
            break;
        case GATE:
            store16(tiled(c, m / 2, r + i, col / 2),
                    _mm512_mul_ps(_mm512_mul_ps(a, sigmoid16(a)), b));
            if (x) {
                uint16_t *line = (uint16_t *)x + (r / 32 * (m / 32) + col / 32) * 1024 + i * 32;

                _mm512_stream_si512((void *)line, (__m512i)_mm512_cvtne2ps_pbh(b, a));
            }
            break;
        case GATE_BACK: {
            const __m512 one = _mm512_set1_ps(1);
            __m512 by[4];

            for (int64_t h = 0; h < 2; h++) {
                __m512 d = h ? b : a;
                const uint16_t *line =
                    (uint16_t *)x + (r / 32 * (m / 16) + col / 16 + h) * 1024 + i * 32;
                __m512 g = load16(line);
                __m512 sig = sigmoid16(g);
                __m512 slope = _mm512_mul_ps(sig, _mm512_fmadd_ps(g, _mm512_sub_ps(one, sig), one));

                by[h] = _mm512_mul_ps(_mm512_mul_ps(d, load16(line + 16)), slope);
                by[2 + h] = _mm512_mul_ps(_mm512_mul_ps(d, g), sig);
            }
            store32(tiled(c, 2 * m, r + i, col), by[0], by[1]);
            store32(tiled(c, 2 * m, r + i, m + col), by[2], by[3]);
            break;
        }
        case ROPE:
        case HEADS: {
            uint16_t *head = (uint16_t *)c + (col / 64 * n + r + i) * DIM + col % 64 / 2;

            if (mode == ROPE) {
                __m512 cosine = _mm512_loadu_ps((float *)x + (r + i) * 32 + col % 64 / 2);
                __m512 sine = _mm512_loadu_ps((float *)y + (r + i) * 32 + col % 64 / 2);
                __m512 low = _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine));

                b = _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine));
                a = low;
            }
            store16(head, a);
            store16(head + 32, b);
            break;
        }
        case PLAIN:
            store32((uint16_t *)c + at, a, b);
            break;
        case LEFT: {
            const int64_t *to = x;

            store32(tiled(c, to[0], r + i, to[1] + col), a, b);
            break;
        }
        case TURN: {
            const int64_t half = (r + i) * (m / 2) + col / 2;
            uint16_t *head = (uint16_t *)c + (r + i) * m + col / 2;
            __m512 cosine = _mm512_loadu_ps((float *)x + half);
            __m512 sine = _mm512_loadu_ps((float *)y + half);

            store16(head, _mm512_fmsub_ps(a, cosine, _mm512_mul_ps(b, sine)));
            store16(head + m / 2, _mm512_fmadd_ps(b, cosine, _mm512_mul_ps(a, sine)));
            break;
        }
        case EXP:
        case TOP:
            break;
        }
    }
}

#endif
