/* SPDX-License-Identifier: Apache-2.0 */
/* Products with FP8 keys and weighted sums of FP8 values in f16 arithmetic, for AVX-512 FP16.
 *
 * Converting FP8 to f32 costs more than reading it: 24 instructions for 64 values beside 4
 * multiplications (one query head). Here the even and the odd bytes of a vector become two vectors
 * of f16 by shifts and masks, 5 instructions, and 2 multiplications a query head follow.
 *
 * Values: sums stay in f16 for one page, two chains of 32 slots each, and go to f32 with its end.
 * Weights are brought below 2 by a power of two of the page's own, so neither range of f16 is
 * reached (32 * 2 * 1.75). Keys: the query is brought below 2 by a power of two of its own and
 * rounded to f16; sums stay in f16 for 16 dims, two chains of 8 each.
 *
 * What is rounded, 2^-12 of a query's component and of each partial sum, is a thousandth of FP8's
 * own error (2^-4 of each value) in squares (tests/kernels/tolerance.h). */

#include <immintrin.h>

#include "kernels/cpu/kv_prefetch.h"
#include "kernels/x86/x86.h"

enum {
    ROWS = 4,   /* pairs at once: 16 sums, 2 vectors of codes */
    WIDTH = 64, /* codes of one vector: dims of V, slots of K */
    BLOCK = 64, /* numbers that become f16 at once: weights of a page, dims of a query */
    RUN = 16,   /* dims of K between two sums in f32 */
};

/* 64 codes to e4m3 * 2^-8: sign to bit 15, exponent and mantissa to bits 13..7. */
static inline void unpack(__m512i codes, __m512h *ret_even, __m512h *ret_odd)
{
    const __m512i kept = _mm512_set1_epi16((short)0xbf80); /* the shift copies the sign to bit 14 */
    __m512i even = _mm512_srai_epi16(_mm512_slli_epi16(codes, 8), 1);

    *ret_even = (__m512h)_mm512_and_si512(even, kept);
    *ret_odd = (__m512h)_mm512_and_si512(_mm512_srai_epi16(codes, 1), kept);
}

static inline __mmask16 lanes_of(int32_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* The power of two that brings n floats below 2, and its inverse. */
struct half_scale {
    float down;
    float up;
};

static inline struct half_scale scale_of(const float *x, int32_t n)
{
    __m512 largest = _mm512_setzero_ps();
    uint32_t exponent;
    union {
        float f;
        uint32_t u;
    } max, down, up;

    for (int32_t i = 0; i < n; i += 16) {
        largest =
            _mm512_max_ps(largest, _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes_of(n - i), x + i)));
    }
    max.f = _mm512_reduce_max_ps(largest);
    exponent = max.u >> 23;
    exponent = exponent < 1 ? 1 : exponent > 253 ? 253 : exponent;
    up.u = exponent << 23;
    down.u = (254 - exponent) << 23;
    return (struct half_scale){down.f, up.f};
}

/* n of BLOCK floats as pairs of equal f16, then zeros. */
static inline void to_half(const float *x, int32_t n, float factor, uint32_t *ret)
{
    for (int i = 0; i < BLOCK; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(lanes_of(n - i), x + i);
        __m256i half = _mm512_cvtps_ph(_mm512_mul_ps(v, _mm512_set1_ps(factor)),
                                       _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512i wide = _mm512_cvtepu16_epi32(half);

        _mm512_storeu_si512(ret + i, _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16)));
    }
}

static inline __m512 low_f32(__m512h x)
{
    return _mm512_cvtph_ps(_mm512_castsi512_si256((__m512i)x));
}

static inline __m512 high_f32(__m512h x)
{
    return _mm512_cvtph_ps(_mm512_extracti64x4_epi64((__m512i)x, 1));
}

static inline __m512 interleave_low(__m512 even, __m512 odd)
{
    const __m512i at = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);

    return _mm512_permutex2var_ps(even, at, odd);
}

static inline __m512 interleave_high(__m512 even, __m512 odd)
{
    const __m512i at =
        _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);

    return _mm512_permutex2var_ps(even, at, odd);
}

/* ---- values ---------------------------------------------------------------------------------- */

/* acc[0, n) += factor * values, at most 32, whose even and odd places come apart. */
static inline void add(float *acc, int32_t n, __m512 even, __m512 odd, __m512 factor)
{
    if (n > 0) {
        _mm512_storeu_ps(acc,
                         _mm512_fmadd_ps(interleave_low(even, odd), factor, _mm512_loadu_ps(acc)));
    }
    if (n > 16) {
        _mm512_storeu_ps(acc + 16, _mm512_fmadd_ps(interleave_high(even, odd), factor,
                                                   _mm512_loadu_ps(acc + 16)));
    }
}

/* n rows of codes, `stride` bytes apart, times w; sums of even and odd rows apart. */
static inline __attribute__((always_inline)) void multiply(int rows, int n, const uint8_t *codes,
                                                           size_t stride, __mmask64 mask,
                                                           const uint32_t *w, __m512h even[ROWS][2],
                                                           __m512h odd[ROWS][2])
{
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        __m512h a;
        __m512h b;

        unpack(_mm512_maskz_loadu_epi8(mask, codes + (size_t)i * stride), &a, &b);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512h x = (__m512h)_mm512_set1_epi32((int)w[r * BLOCK + i]);

            even[r][i % 2] = _mm512_fmadd_ph(x, a, even[r][i % 2]);
            odd[r][i % 2] = _mm512_fmadd_ph(x, b, odd[r][i % 2]);
        }
    }
}

/* 64 dims from `d0` on (or the `n` that are left) of `rows` pairs. */
static inline __attribute__((always_inline)) void
pv_tile(int rows, const uint8_t *v, int32_t v_pad, int32_t d0, int32_t n, const uint32_t *w,
        const struct half_scale *scale, int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead)
{
    const __mmask64 mask = n >= WIDTH ? ~0ull : (1ull << n) - 1;
    const uint32_t due = kv_prefetch_share(ahead, (size_t)n_slots * (size_t)n, n_slots);
    const size_t stride = (size_t)v_pad;
    int32_t s = 0;
    __m512h even[ROWS][2];
    __m512h odd[ROWS][2];

    v += d0;
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm512_setzero_ph();
    }
    for (; s + KV_PREFETCH_ROWS <= n_slots; s += KV_PREFETCH_ROWS) {
        if (ahead) {
            kv_prefetch_due(ahead, due);
        }
        multiply(rows, KV_PREFETCH_ROWS, v + (size_t)s * stride, stride, mask, w + s, even, odd);
    }
    for (; s + 2 <= n_slots; s += 2) {
        multiply(rows, 2, v + (size_t)s * stride, stride, mask, w + s, even, odd);
    }
    if (s < n_slots) {
        multiply(rows, 1, v + (size_t)s * stride, stride, mask, w + s, even, odd);
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const __m512 f = _mm512_set1_ps(scale[r].up);
        float *to = acc + (size_t)r * (size_t)v_pad + d0;

        add(to, n, _mm512_add_ps(low_f32(even[r][0]), low_f32(even[r][1])),
            _mm512_add_ps(low_f32(odd[r][0]), low_f32(odd[r][1])), f);
        add(to + 32, n - 32, _mm512_add_ps(high_f32(even[r][0]), high_f32(even[r][1])),
            _mm512_add_ps(high_f32(odd[r][0]), high_f32(odd[r][1])), f);
    }
}

static void pv_fp8_avx512fp16(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                              int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead)
{
    uint32_t w[ROWS * BLOCK];
    struct half_scale scale[ROWS];

    while (n > 0) {
        int rows = n < ROWS ? n : ROWS;

        for (int r = 0; r < rows; r++) {
            scale[r] = scale_of(e + (size_t)r * lde, n_slots);
            to_half(e + (size_t)r * lde, n_slots, scale[r].down, w + r * BLOCK);
        }
        for (int32_t d = 0; d < v_pad; d += WIDTH) {
            int32_t left = v_pad - d < WIDTH ? v_pad - d : WIDTH;

            switch (rows) {
            case 1:
                pv_tile(1, v, v_pad, d, left, w, scale, n_slots, acc, ahead);
                break;
            case 2:
                pv_tile(2, v, v_pad, d, left, w, scale, n_slots, acc, ahead);
                break;
            case 3:
                pv_tile(3, v, v_pad, d, left, w, scale, n_slots, acc, ahead);
                break;
            default:
                pv_tile(ROWS, v, v_pad, d, left, w, scale, n_slots, acc, ahead);
                break;
            }
        }
        e += (size_t)rows * lde;
        acc += (size_t)rows * (size_t)v_pad;
        n -= rows;
        ahead = NULL;
    }
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* x = or += the products of at most BLOCK dims, without the queries' scales. */
static inline __attribute__((always_inline)) void qk_tile(int rows, const uint8_t *k,
                                                          int32_t n_dims, const uint32_t *w,
                                                          const struct half_scale *scale,
                                                          bool first, float *x, size_t ldx,
                                                          struct cpu_kv_prefetch *ahead)
{
    const uint32_t due = kv_prefetch_share(ahead, CPU_KV_SLOTS * (size_t)n_dims, n_dims);
    __m512 sum[ROWS][4];

#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm512_setzero_ps();
    }
    for (int32_t d = 0; d < n_dims;) {
        const int32_t end = d + RUN < n_dims ? d + RUN : n_dims;
        __m512h even[ROWS][2];
        __m512h odd[ROWS][2];

#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            even[r][0] = even[r][1] = odd[r][0] = odd[r][1] = _mm512_setzero_ph();
        }
        for (; d + KV_PREFETCH_ROWS <= end; d += KV_PREFETCH_ROWS) {
            if (ahead) {
                kv_prefetch_due(ahead, due);
            }
            multiply(rows, KV_PREFETCH_ROWS, k + (size_t)d * CPU_KV_SLOTS, CPU_KV_SLOTS, ~0ull,
                     w + d, even, odd);
        }
        for (; d + 2 <= end; d += 2) {
            multiply(rows, 2, k + (size_t)d * CPU_KV_SLOTS, CPU_KV_SLOTS, ~0ull, w + d, even, odd);
        }
        for (; d < end; d++) {
            multiply(rows, 1, k + (size_t)d * CPU_KV_SLOTS, CPU_KV_SLOTS, ~0ull, w + d, even, odd);
        }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            __m512h e = _mm512_add_ph(even[r][0], even[r][1]);
            __m512h o = _mm512_add_ph(odd[r][0], odd[r][1]);

            sum[r][0] = _mm512_add_ps(sum[r][0], low_f32(e));
            sum[r][1] = _mm512_add_ps(sum[r][1], low_f32(o));
            sum[r][2] = _mm512_add_ps(sum[r][2], high_f32(e));
            sum[r][3] = _mm512_add_ps(sum[r][3], high_f32(o));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
        const __m512 f = _mm512_set1_ps(scale[r].up);
        float *to = x + (size_t)r * ldx;

#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            __m512 low = interleave_low(sum[r][2 * i], sum[r][2 * i + 1]);
            __m512 high = interleave_high(sum[r][2 * i], sum[r][2 * i + 1]);

            low = first ? _mm512_mul_ps(low, f)
                        : _mm512_fmadd_ps(low, f, _mm512_loadu_ps(to + 32 * i));
            high = first ? _mm512_mul_ps(high, f)
                         : _mm512_fmadd_ps(high, f, _mm512_loadu_ps(to + 32 * i + 16));
            _mm512_storeu_ps(to + 32 * i, low);
            _mm512_storeu_ps(to + 32 * i + 16, high);
        }
    }
}

static void qk_fp8_avx512fp16(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                              float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    uint32_t w[ROWS * BLOCK];
    struct half_scale scale[ROWS];

    while (n > 0) {
        int rows = n < ROWS ? n : ROWS;

        for (int r = 0; r < rows; r++) {
            scale[r] = scale_of(q + (size_t)r * ldq, k_dim);
        }
        for (int32_t d = 0; d < k_dim; d += BLOCK) {
            const uint8_t *from = (const uint8_t *)k + (size_t)d * CPU_KV_SLOTS;
            int32_t left = k_dim - d < BLOCK ? k_dim - d : BLOCK;

            for (int r = 0; r < rows; r++) {
                to_half(q + (size_t)r * ldq + d, left, scale[r].down, w + r * BLOCK);
            }
            switch (rows) {
            case 1:
                qk_tile(1, from, left, w, scale, d == 0, x, ldx, ahead);
                break;
            case 2:
                qk_tile(2, from, left, w, scale, d == 0, x, ldx, ahead);
                break;
            case 3:
                qk_tile(3, from, left, w, scale, d == 0, x, ldx, ahead);
                break;
            default:
                qk_tile(ROWS, from, left, w, scale, d == 0, x, ldx, ahead);
                break;
            }
        }
        q += (size_t)rows * ldq;
        x += (size_t)rows * ldx;
        n -= rows;
        ahead = NULL;
    }
}

void x86_table_kv_avx512fp16(struct cpu_table *t)
{
    CPU_TABLE_SET(t, qk_fp8, avx512fp16);
    CPU_TABLE_SET(t, pv_fp8, avx512fp16);
}
