/* SPDX-License-Identifier: Apache-2.0 */
/* Matmul of many tokens on AMX: weights unpacked from panels (kernels/cpu/panel.h) to bf16 tiles as
 * they are needed, products of bf16 summed in f32.
 *
 * A code becomes a number without conversion: shifted into the top of the mantissa of 1.0 it reads
 * 1 + q / 2^bits, and one fma with scale * 2^bits and minimum - scale * 2^bits gives the weight to
 * 2^-16 of its scale or better, before it is rounded to bf16. That is 72 vector operations for the
 * 512 weights of a tile: against 256 tokens some 6 % of the product's time. */

#include "kernels/x86/amx.h"

#include "kernels/cpu/panel.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/lanes_avx512.h"
#include "kernels/x86/x86.h"

#include "kernels/cpu/panel_block.h"

static void tile_begin_amx(void)
{
    amx_begin();
}

static void tile_end_amx(void)
{
    amx_end();
}

static void tile_acts_amx(const float *x, int32_t n, uint16_t *dst)
{
    for (; n >= TILE_COLS; n -= TILE_COLS, x += TILE_COLS, dst += TILE_ELEMENTS) {
        __m512 lo = _mm512_loadu_ps(x);
        __m512 hi = _mm512_loadu_ps(x + 16);

        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
    if (n > 0) {
        uint32_t mask = (1u << n) - 1;
        __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, x);
        __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), x + 16);

        _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
}

/* ---- the product ------------------------------------------------------------------------------
 */

/* Two rows of tiles by two output blocks. Kept free of branches in its loop. */
static inline void mul_2x2(const uint16_t *a0, const uint16_t *a1, const uint16_t *b, int32_t n_k)
{
    for (int32_t k = 0; k < n_k; k++) {
        _tile_loadd(4, a0, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE_ELEMENTS, 64);
        _tile_loadd(5, a1, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
        a0 += TILE_ELEMENTS;
        a1 += TILE_ELEMENTS;
        b += 2 * TILE_ELEMENTS;
    }
}

static inline void mul_1x2(const uint16_t *a0, const uint16_t *b, int32_t n_k)
{
    for (int32_t k = 0; k < n_k; k++) {
        _tile_loadd(4, a0, 64);
        _tile_loadd(6, b, 64);
        _tile_loadd(7, b + TILE_ELEMENTS, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        a0 += TILE_ELEMENTS;
        b += 2 * TILE_ELEMENTS;
    }
}

static void tile_mul_amx(const struct cpu_tile_mul *m)
{
    const size_t s0 = m->ldc[0] * sizeof(float);
    const size_t s1 = m->ldc[1] * sizeof(float);
    const uint16_t *a = m->a;
    float *c0 = m->c[0];
    float *c1 = m->c[1];
    int32_t i = 0;

    for (; i + 32 <= m->n_rows; i += 32) {
        float *d0 = c0 + 16 * m->ldc[0];
        float *d1 = c1 + 16 * m->ldc[1];

        if (m->add) {
            _tile_loadd(0, c0, s0);
            _tile_loadd(1, c1, s1);
            _tile_loadd(2, d0, s0);
            _tile_loadd(3, d1, s1);
        } else {
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
        }
        mul_2x2(a, a + m->lda, m->b, m->n_k);
        _tile_stored(0, c0, s0);
        _tile_stored(1, c1, s1);
        _tile_stored(2, d0, s0);
        _tile_stored(3, d1, s1);
        a += 2 * m->lda;
        c0 += 32 * m->ldc[0];
        c1 += 32 * m->ldc[1];
    }
    if (i < m->n_rows) {
        if (m->add) {
            _tile_loadd(0, c0, s0);
            _tile_loadd(1, c1, s1);
        } else {
            _tile_zero(0);
            _tile_zero(1);
        }
        mul_1x2(a, m->b, m->n_k);
        _tile_stored(0, c0, s0);
        _tile_stored(1, c1, s1);
    }
}

/* ---- weights ----------------------------------------------------------------------------------
 */

/* w = scale * q + min, as what multiplies and what is added to 1 + q / 2^bits. */
struct line {
    __m512 mul;
    __m512 add;
};

static inline struct line line_of(__m512 scale, __m512 min, int bits)
{
    __m512 mul = _mm512_mul_ps(scale, _mm512_set1_ps((float)(1 << bits)));

    return (struct line){mul, _mm512_sub_ps(min, mul)};
}

/* The weight whose code lies in bits [at, at + bits) of each dword. */
UNROLL_INLINE __m512 weight(__m512i v, int at, int bits, struct line l)
{
    const int shift = 23 - bits - at; /* to the top of the mantissa */
    const __m512i mask = _mm512_set1_epi32(((1 << bits) - 1) << (23 - bits));
    const __m512i one = _mm512_set1_epi32(0x3f800000);
    __m512i s = shift >= 0 ? _mm512_slli_epi32(v, (unsigned)(shift >= 0 ? shift : 0))
                           : _mm512_srli_epi32(v, (unsigned)(shift < 0 ? -shift : 0));

    s = _mm512_ternarylogic_epi32(s, mask, one, 0xea); /* (s & mask) | one */
    return _mm512_fmadd_ps(l.mul, _mm512_castsi512_ps(s), l.add);
}

/* Four columns of a vector of codes: two rows of the tile. */
UNROLL_INLINE void four(__m512i v, int at, int bits, struct line l, __m512i il, uint16_t *dst)
{
    _mm512_storeu_si512(dst, amx_pair(weight(v, at, bits, l), weight(v, at + 8, bits, l), il));
    _mm512_storeu_si512(dst + 32,
                        amx_pair(weight(v, at + 16, bits, l), weight(v, at + 24, bits, l), il));
}

/* One block of 4 to 8 bit codes; `lo` for columns 0..15, `hi` for 16..31. */
UNROLL_INLINE void unpack(int bits, const uint8_t *w, struct line lo, struct line hi, __m512i il,
                          uint16_t *dst)
{
    const __m512i low = _mm512_set1_epi8(15);

    UNROLL_LOOP
    for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_loadu_si512(w + 64 * j);
        __m512i h;

        if (bits == 8) {
            four(v, 0, 8, lo, il, dst + 64 * j);
            four(_mm512_loadu_si512(w + 64 * (j + 4)), 0, 8, hi, il, dst + 64 * (j + 4));
        } else if (bits == 4) {
            four(v, 0, 4, lo, il, dst + 64 * j);
            four(v, 4, 4, hi, il, dst + 64 * (j + 4));
        } else if (bits == 5) { /* bit j (or 4 + j) of each byte becomes bit 4 */
            const __m512i bit = _mm512_set1_epi8(16);

            h = _mm512_loadu_si512(w + PANEL_NIBBLES);
            four(_mm512_or_si512(_mm512_and_si512(v, low),
                                 _mm512_and_si512(_mm512_slli_epi32(h, (unsigned)(4 - j)), bit)),
                 0, 5, lo, il, dst + 64 * j);
            four(_mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(v, 4), low),
                                 _mm512_and_si512(_mm512_srli_epi32(h, (unsigned)j), bit)),
                 0, 5, hi, il, dst + 64 * (j + 4));
        } else { /* bits 2j, 2j + 1 of the vector of each half become bits 4, 5 */
            const __m512i two = _mm512_set1_epi8(48);
            const unsigned up = j < 2 ? (unsigned)(4 - 2 * j) : 0;
            const unsigned down = j < 2 ? 0 : (unsigned)(2 * j - 4);

            h = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_loadu_si512(w + PANEL_NIBBLES), up),
                                  down);
            four(_mm512_or_si512(_mm512_and_si512(v, low), _mm512_and_si512(h, two)), 0, 6, lo, il,
                 dst + 64 * j);
            h = _mm512_srli_epi32(_mm512_slli_epi32(_mm512_loadu_si512(w + PANEL_NIBBLES + 64), up),
                                  down);
            four(_mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(v, 4), low),
                                 _mm512_and_si512(h, two)),
                 0, 6, hi, il, dst + 64 * (j + 4));
        }
    }
}

/* One block whose codes are places in a table of 8-bit codes. */
UNROLL_INLINE void unpack_looked_up(enum dtype type, const uint8_t *w, struct line l, __m512i il,
                                    uint16_t *dst)
{
    const __m512i low = _mm512_set1_epi8(15);
    const __m512i table = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)panel_table(type)));

    UNROLL_LOOP
    for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_loadu_si512(w + 64 * j);

        four(_mm512_shuffle_epi8(table, _mm512_and_si512(v, low)), 0, 8, l, il, dst + 64 * j);
        v = _mm512_and_si512(_mm512_srli_epi32(v, 4), low);
        four(_mm512_shuffle_epi8(table, v), 0, 8, l, il, dst + 64 * (j + 4));
    }
}

static inline __m512 f16_at(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

/* Types with one scale a block. `zero`: what is taken from a code; -1: a minimum follows the scale.
 */
UNROLL_INLINE void tile_32(int bits, int zero, const uint8_t *panel, int32_t b0, int32_t n,
                           uint16_t *dst, size_t step)
{
    const int code_bytes = bits == 8   ? PANEL_BYTES
                           : bits == 5 ? PANEL_NIBBLES + PANEL_HIGH1
                                       : PANEL_NIBBLES;
    const int block = code_bytes + (zero < 0 ? 2 : 1) * PANEL_SCALES;
    const __m512i il = amx_interleave();
    const uint8_t *w = panel + (size_t)b0 * (size_t)block;

    for (int32_t i = 0; i < n; i++, w += block, dst += step) {
        __m512 d = f16_at(w + code_bytes);
        __m512 m = zero < 0 ? f16_at(w + code_bytes + PANEL_SCALES)
                            : _mm512_mul_ps(d, _mm512_set1_ps((float)-zero));
        struct line l = line_of(d, m, bits);

        for (int p = 0; p < block; p += 64) {
            _mm_prefetch((const char *)w + 4096 + p, _MM_HINT_T0);
        }
        unpack(bits, w, l, l, il, dst);
    }
}

/* K-quants: a head for eight blocks. */
UNROLL_INLINE void tile_256(int bits, const uint8_t *panel, int32_t b0, int32_t n, uint16_t *dst,
                            size_t step)
{
    const int code_bytes = PANEL_NIBBLES + (bits == 5 ? PANEL_HIGH1 : bits == 6 ? PANEL_HIGH2 : 0);
    const int super = PANEL_SUPER_HEAD + PANEL_SUPER * code_bytes;
    const __m512i il = amx_interleave();

    for (int32_t b = b0; b < b0 + n; b++, dst += step) {
        const uint8_t *head = panel + (size_t)(b / PANEL_SUPER) * (size_t)super;
        const int g = b % PANEL_SUPER;
        const uint8_t *w = head + PANEL_SUPER_HEAD + g * code_bytes;
        __m512 d = f16_at(head);
        struct line lo;
        struct line hi;

        for (int p = 0; p < code_bytes; p += 64) {
            _mm_prefetch((const char *)w + 4096 + p, _MM_HINT_T0);
        }
        if (bits == 6) {
            const uint8_t *sc = head + PANEL_SUPER_SC + 32 * g;
            const __m512 zero = _mm512_set1_ps(-32.0f);
            __m512 s0 = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)sc)));
            __m512 s1 =
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)(sc + 16))));

            s0 = _mm512_mul_ps(d, s0);
            s1 = _mm512_mul_ps(d, s1);
            lo = line_of(s0, _mm512_mul_ps(s0, zero), 6);
            hi = line_of(s1, _mm512_mul_ps(s1, zero), 6);
        } else {
            const uint8_t *sc = head + PANEL_SUPER_SC + 16 * g;
            const uint8_t *mn = head + PANEL_SUPER_MN + 16 * g;
            __m512 s = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)sc)));
            __m512 m = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)mn)));

            m = _mm512_mul_ps(f16_at(head + PANEL_SCALES), m);
            lo = line_of(_mm512_mul_ps(d, s), _mm512_sub_ps(_mm512_setzero_ps(), m), bits);
            hi = lo;
        }
        unpack(bits, w, lo, hi, il, dst);
    }
}

/* Types with tables; IQ4_XS has a head for eight blocks. */
UNROLL_INLINE void tile_looked_up(enum dtype type, const uint8_t *panel, int32_t b0, int32_t n,
                                  uint16_t *dst, size_t step)
{
    const __m512i il = amx_interleave();
    const __m512 zero = _mm512_set1_ps(type == DTYPE_MXFP4 ? -16.0f : -128.0f);

    for (int32_t b = b0; b < b0 + n; b++, dst += step) {
        const uint8_t *w = panel + (size_t)b * (PANEL_NIBBLES + PANEL_SCALES);
        __m512 d;

        if (type == DTYPE_IQ4_XS) {
            const uint8_t *head =
                panel + (size_t)(b / PANEL_SUPER) * (PANEL_XS_HEAD + PANEL_SUPER * PANEL_NIBBLES);
            const uint8_t *sc = head + PANEL_SUPER_SC + 16 * (b % PANEL_SUPER);

            w = head + PANEL_XS_HEAD + (size_t)PANEL_NIBBLES * (size_t)(b % PANEL_SUPER);
            d = _mm512_mul_ps(f16_at(head), _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                                _mm_loadu_si128((const void *)sc))));
        } else if (type == DTYPE_MXFP4) {
            d = lf_of_bf16(w + PANEL_NIBBLES);
        } else {
            d = f16_at(w + PANEL_NIBBLES);
        }
        for (int p = 0; p < PANEL_NIBBLES; p += 64) {
            _mm_prefetch((const char *)w + 4096 + p, _MM_HINT_T0);
        }
        unpack_looked_up(type, w, line_of(d, _mm512_mul_ps(d, zero), 8), il, dst);
    }
}

#define TILE_32(name, bits, zero)                                                                  \
    static void tile_##name##_amx(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n,     \
                                  uint16_t *dst, size_t step)                                      \
    {                                                                                              \
        (void)n_cols;                                                                              \
        tile_32(bits, zero, panel, b0, n, dst, step);                                              \
    }

#define TILE_256(name, bits)                                                                       \
    static void tile_##name##_amx(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n,     \
                                  uint16_t *dst, size_t step)                                      \
    {                                                                                              \
        (void)n_cols;                                                                              \
        tile_256(bits, panel, b0, n, dst, step);                                                   \
    }

TILE_32(q4_0, 4, 8)
TILE_32(q4_1, 4, -1)
TILE_32(q5_0, 5, 16)
TILE_32(q5_1, 5, -1)
TILE_32(q8_0, 8, 128)
TILE_256(q4_k, 4)
TILE_256(q5_k, 5)
TILE_256(q6_k, 6)

#define TILE_LOOKED_UP(name, type)                                                                 \
    static void tile_##name##_amx(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n,     \
                                  uint16_t *dst, size_t step)                                      \
    {                                                                                              \
        (void)n_cols;                                                                              \
        tile_looked_up(type, panel, b0, n, dst, step);                                             \
    }

TILE_LOOKED_UP(iq4_nl, DTYPE_IQ4_NL)
TILE_LOOKED_UP(iq4_xs, DTYPE_IQ4_XS)
TILE_LOOKED_UP(mxfp4, DTYPE_MXFP4)

/* Float panels may end inside a tile: the rest is zeros. */
static void tile_f16_amx(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n, uint16_t *dst,
                         size_t step)
{
    const __m512i il = amx_interleave();

    for (int32_t b = b0; b < b0 + n; b++, dst += step) {
        for (int32_t i = 0; i < TILE_ROWS; i++) {
            int32_t k = TILE_COLS * b + 2 * i;
            const uint8_t *w = panel + 32 * (size_t)k;
            __m512 even = k < n_cols ? f16_at(w) : _mm512_setzero_ps();
            __m512 odd = k + 1 < n_cols ? f16_at(w + 32) : _mm512_setzero_ps();

            _mm512_storeu_si512(dst + 32 * i, amx_pair(even, odd, il));
        }
    }
}

/* BF16 panels hold pairs already. */
static void tile_bf16_amx(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n,
                          uint16_t *dst, size_t step)
{
    for (int32_t b = b0; b < b0 + n; b++, dst += step) {
        for (int32_t i = 0; i < TILE_ROWS; i++) {
            int32_t k = TILE_COLS * b + 2 * i;
            const uint8_t *w = panel + 32 * (size_t)k;

            _mm512_storeu_si512(dst + 32 * i,
                                k < n_cols ? _mm512_loadu_si512(w) : _mm512_setzero_si512());
        }
    }
}

void x86_table_amx(struct cpu_table *t)
{
    CPU_TABLE_SET(t, tile_begin, amx);
    CPU_TABLE_SET(t, tile_end, amx);
    CPU_TABLE_SET(t, tile_acts, amx);
    CPU_TABLE_SET(t, tile_mul, amx);
    CPU_TABLE_SET(t, tile_f16, amx);
    CPU_TABLE_SET(t, tile_bf16, amx);
    CPU_TABLE_SET(t, tile_q4_0, amx);
    CPU_TABLE_SET(t, tile_q4_1, amx);
    CPU_TABLE_SET(t, tile_q5_0, amx);
    CPU_TABLE_SET(t, tile_q5_1, amx);
    CPU_TABLE_SET(t, tile_q8_0, amx);
    CPU_TABLE_SET(t, tile_q4_k, amx);
    CPU_TABLE_SET(t, tile_q5_k, amx);
    CPU_TABLE_SET(t, tile_q6_k, amx);
    CPU_TABLE_SET(t, tile_iq4_nl, amx);
    CPU_TABLE_SET(t, tile_iq4_xs, amx);
    CPU_TABLE_SET(t, tile_mxfp4, amx);
    x86_table_kv_amx(t);
}
