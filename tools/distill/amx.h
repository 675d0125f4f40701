/* SPDX-License-Identifier: Apache-2.0 */
/* What the passes on AMX share (bf16 in, f32 sums): tiles, packing, and `product`, whose sums go
 * straight to what comes next. Products of a layer's shapes are bound by what moves between caches
 * more than by the tile unit, so a block of rows goes through all of a block's products and the
 * work between them while it is in the L2 cache.
 *
 * Operands. Left: rows in tiles, for each 16 rows, for each 32 of k, 16 x 32 values (1 KB). Right:
 * packed once; for each 32 columns, for each 32 of k, two tiles of 16 columns, whose row r is the
 * pairs (2r, 2r + 1) of k. The 32 x 32 sums stay in four tile registers over the whole of k. Rows,
 * k and columns are multiples of 32.
 *
 * What is only read again much later (for the way back) leaves by streaming stores of whole lines:
 * an ordinary store first fetches the line, which took longer than the product that made it.
 *
 * One thread a call; scratch is the caller's, all arrays are aligned to 64 bytes. ops.py and
 * layers.py compile and call this where the processor has AMX; kernels of the same meaning in
 * PyTorch are what tests/tools/test_distill.py compares with.
 */

#ifndef PIPIT_DISTILL_AMX_H
#define PIPIT_DISTILL_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

enum { TILE = 512, DIM = 64 };

/* Rows that go through a block's products together: there, and back, where more is held. */
enum { BLOCK = 256, BLOCK_BACK = 128 };

struct tile_config {
    uint8_t palette;
    uint8_t start;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void configure(void)
{
    struct tile_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

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

/* Compilers know of no memory that a tile's load reads: what was stored before must be there. */
static inline void written(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The 32 x 32 sums of left rows (`low`: 16 rows further) and a panel, stored at c, rows `ld` apart;
 * with `more`, added to what is there. */
static inline __attribute__((always_inline)) void block(int more, const uint16_t *a,
                                                        const uint16_t *low, int64_t a_step,
                                                        int64_t a_bytes, const uint16_t *b,
                                                        int64_t steps, float *c, int64_t ld)
{
    written();
    if (more) {
        _tile_loadd(0, c, ld * 4);
        _tile_loadd(1, c + 16, ld * 4);
        _tile_loadd(2, c + 16 * ld, ld * 4);
        _tile_loadd(3, c + 16 * ld + 16, ld * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < steps; k++) {
        _tile_loadd(4, a + k * a_step, a_bytes);
        _tile_loadd(6, b + k * 2 * TILE, 64);
        _tile_loadd(7, b + k * 2 * TILE + TILE, 64);
        _tile_loadd(5, low + k * a_step, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ld * 4);
    _tile_stored(1, c + 16, ld * 4);
    _tile_stored(2, c + 16 * ld, ld * 4);
    _tile_stored(3, c + 16 * ld + 16, ld * 4);
    written();
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
 *   EXP        of each 32 rows the first 16 are of 16 positions' students, then of their teachers.
 *              y f32: a factor, then a shift for each row of a pair. With e = 2^(sum * factor -
 *              shift), c keeps e bf16 as GATE's x; x f32 (n / 2, 3, 16) += lane by lane the
 *              student's e, the teacher's, and the teacher's times the exponents' difference
 *   TOP        rows as in EXP: x f32 (n / 2, 3, 16), its first two are the largest so far */
enum mode { SUM, F32, ADD, GATE, GATE_BACK, HEADS, ROPE, EXP, TOP };

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
        case EXP:
        case TOP:
            break;
        }
    }
}

/* Panels of b are `stride` values apart; each is fetched towards the L2 cache, from the one that
 * all processors share, while the one before is at work. The rows of one block of sums are finished
 * between the tile instructions of the next: on their own they wait for the tile unit, and it for
 * them. */
static inline __attribute__((always_inline)) void product(enum mode mode, const uint16_t *a,
                                                          int64_t n, int64_t k, const uint16_t *b,
                                                          int64_t stride, int64_t m, void *c,
                                                          void *x, void *y)
{
    _Alignas(64) float sums[2][1024];
    const int64_t steps = k / 32;
    const int64_t each = ((31 + steps) / steps + 1) / 2 * 2;
    const int64_t lines = (1023 + n) / n; /* of the next panel, for each step of each block */
    int64_t row = 0;
    int64_t col = 0;
    int64_t i = 32;
    int turn = 0;

    written();
    for (int64_t p = 0; p < m / 32; p++) {
        const uint16_t *panel = b + p * stride;
        const char *next = (const char *)(panel + stride);

        for (int64_t r = 0; r < n; r += 32) {
            const uint16_t *top = a + r * k;
            const uint16_t *low = top + 16 * k;
            const float *last = sums[turn ^ 1];
            float *s = sums[turn];

            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t q = 0; q < steps; q++) {
                _tile_loadd(4, top + q * TILE, 64);
                _tile_loadd(6, panel + q * 2 * TILE, 64);
                _tile_loadd(7, panel + q * 2 * TILE + TILE, 64);
                _tile_loadd(5, low + q * TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
                for (int64_t line = 0; line < lines; line++) {
                    _mm_prefetch(next, _MM_HINT_T1);
                    next += 64;
                }
                if (i < 32) {
                    int64_t end = i + each < 32 ? i + each : 32;

                    finish(mode, last, i, end, row, col, n, m, c, x, y);
                    i = end;
                }
            }
            _tile_stored(0, s, 64);
            _tile_stored(1, s + 256, 64);
            _tile_stored(2, s + 512, 64);
            _tile_stored(3, s + 768, 64);
            row = r;
            col = p * 32;
            i = 0;
            turn ^= 1;
        }
    }
    finish(mode, sums[turn ^ 1], 0, 32, row, col, n, m, c, x, y);
}

void amx_pack(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain, uint16_t *dst);

/* One K/V head and its `heads` query heads (amx_attention.c). o and its like are bf16 (heads, s,
 * 64) where `width` is 0, else a left operand of `width` columns, of which these heads begin at
 * `col`. */
void attend(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t heads, int64_t s,
            float scale, uint16_t *o, int64_t width, int64_t col, float *log_sum, uint8_t *scratch);
void attend_back(const uint16_t *q, const uint16_t *k, const uint16_t *v, const uint16_t *o,
                 int64_t width, int64_t col, const float *log_sum, const uint16_t *dout,
                 int64_t heads, int64_t s, float scale, uint16_t *dq, float *dk, float *dv,
                 uint8_t *scratch);
/* Bytes. */
static inline int64_t attend_scratch(int64_t s)
{
    return s * 448 + 2048;
}
static inline int64_t attend_back_scratch(int64_t s)
{
    return s * (640 + 128 + 4) + 2 * s * s + 4096;
}

#endif
