/* SPDX-License-Identifier: Apache-2.0 */
/* Products with FP8 keys and weighted sums of FP8 values, for AVX2.
 *
 * A code's seven bits of exponent and mantissa are the first of a float's where sign, exponent and
 * mantissa are moved apart: 8 shifts and masks make 32 codes four vectors of floats, 2^-120 times
 * their values, for all query heads. By way of f16 they take twice as many, of which vpmovsxbw and
 * vcvtph2ps are the slow ones on Zen 3 (1.2 cycles and 1). Weights are brought up by 2^64, sums by
 * the rest: powers of two, so that nothing is rounded but sums.
 *
 * Codes of 2^-9 to 7 * 2^-9 become floats below the normal ones, whose products some CPUs leave to
 * microcode: they count as 0 here. The largest code of a head is 448, of which that is 2^-15. */

#include <immintrin.h>

#include "kernels/cpu/kv_prefetch.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/x86.h"

enum {
    ROWS = 6,    /* pairs at once; up to 3 with all sums of 32 codes in registers */
    WIDTH = 32,  /* codes of one vector: dims of V, slots of K */
    BLOCK = 256, /* weights brought up at once: dims of a query, slots of a page */
};

static const float up = 0x1p64f;     /* weights */
static const float sum_up = 0x1p48f; /* sums: the cache's FP8 is e4m3 * 2^-8 */

/* Of 32 codes the even or the odd ones: 0 and 2 of each four, or 1 and 3. */
static inline void unpack(bool odd, __m256i codes, __m256 ret[2])
{
    const __m256i kept = _mm256_set1_epi16((short)0x87f0); /* but copies of the sign */
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);

    codes = odd ? _mm256_srai_epi16(codes, 4) : _mm256_maddubs_epi16(_mm256_set1_epi16(16), codes);
    codes = _mm256_and_si256(codes, kept);
    ret[0] = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 16));
    ret[1] = _mm256_castsi256_ps(_mm256_and_si256(codes, high));
}

/* sum[r][2 part and 2 part + 1] += 32 codes' even (part 0) or odd ones times w[r * BLOCK]. */
UNROLL_INLINE void add_part(int rows, int part, __m256i codes, const float *w, __m256 sum[ROWS][4])
{
    __m256 v[2];

    unpack(part == 1, codes, v);
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        __m256 *to = &sum[r][2 * part];
        __m256 weight;

        /* Volatile: brought twice rather than kept where sums have no register then. */
        __asm__ volatile("vbroadcastss %1, %0" : "=x"(weight) : "m"(w[r * BLOCK]));
        to[0] = _mm256_fmadd_ps(weight, v[0], to[0]);
        to[1] = _mm256_fmadd_ps(weight, v[1], to[1]);
    }
}

/* ret[r][0 and 1] (even codes), [2 and 3] (odd) or all = the sums over n rows of 32 codes, `stride`
 * bytes apart, of w[r * BLOCK] and on times them. One pair has two chains of sums, which else wait
 * for each other. */
UNROLL_INLINE void multiply(int rows, bool even, bool odd, const uint8_t *codes, size_t stride,
                            int32_t n, const float *w, __m256 ret[ROWS][4], uint32_t due,
                            struct cpu_kv_prefetch *ahead)
{
    const int chains = rows == 1 ? 2 : 1;
    __m256 sum[2][ROWS][4];
    int32_t s = 0;

    UNROLL_LOOP
    for (int r = 0; r < chains * rows; r++) {
        __m256 *x = sum[r / rows][r % rows];

        x[0] = x[1] = x[2] = x[3] = _mm256_setzero_ps();
    }
    for (; s + chains <= n; s += chains) {
        if (ahead && s % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
        UNROLL_LOOP
        for (int c = 0; c < chains; c++, codes += stride) {
            const __m256i x = _mm256_loadu_si256((const void *)codes);

            if (even) {
                add_part(rows, 0, x, w + s + c, sum[c]);
            }
            if (odd) {
                add_part(rows, 1, x, w + s + c, sum[c]);
            }
        }
    }
    if (chains == 2 && s < n) {
        const __m256i x = _mm256_loadu_si256((const void *)codes);

        add_part(rows, 0, x, w + s, sum[0]);
        add_part(rows, 1, x, w + s, sum[0]);
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int i = 0; i < 4; i++) {
            if (i < 2 ? even : odd) {
                ret[r][i] = chains == 2 ? _mm256_add_ps(sum[0][r][i], sum[1][r][i]) : sum[0][r][i];
            }
        }
    }
}

/* In order: 32 floats. */
static inline void in_order(const __m256 v[4], __m256 ret[4])
{
    __m256 a = _mm256_unpacklo_ps(v[0], v[2]);
    __m256 b = _mm256_unpacklo_ps(v[1], v[3]);
    __m256 c = _mm256_unpackhi_ps(v[0], v[2]);
    __m256 d = _mm256_unpackhi_ps(v[1], v[3]);
    __m256 e = _mm256_shuffle_ps(a, b, 0x44);
    __m256 f = _mm256_shuffle_ps(a, b, 0xee);
    __m256 g = _mm256_shuffle_ps(c, d, 0x44);
    __m256 h = _mm256_shuffle_ps(c, d, 0xee);

    ret[0] = _mm256_permute2f128_ps(e, f, 0x20);
    ret[1] = _mm256_permute2f128_ps(g, h, 0x20);
    ret[2] = _mm256_permute2f128_ps(e, f, 0x31);
    ret[3] = _mm256_permute2f128_ps(g, h, 0x31);
}

typedef void sums_fn(const uint8_t *codes, size_t stride, int32_t n, const float *w,
                     __m256 ret[ROWS][4], uint32_t due, struct cpu_kv_prefetch *ahead);

#define SUMS(rows)                                                                                 \
    static __attribute__((noinline)) void sums_##rows(                                             \
        const uint8_t *codes, size_t stride, int32_t n, const float *w, __m256 ret[ROWS][4],       \
        uint32_t due, struct cpu_kv_prefetch *ahead)                                               \
    {                                                                                              \
        if (rows <= 3) {                                                                           \
            multiply(rows, true, true, codes, stride, n, w, ret, due, ahead);                      \
        } else {                                                                                   \
            multiply(rows, true, false, codes, stride, n, w, ret, due, ahead);                     \
            multiply(rows, false, true, codes, stride, n, w, ret, 0, NULL);                        \
        }                                                                                          \
    }

SUMS(1)
SUMS(2)
SUMS(3)
SUMS(4)
SUMS(5)
SUMS(6)

static sums_fn *const sums[ROWS + 1] = {NULL, sums_1, sums_2, sums_3, sums_4, sums_5, sums_6};

/* Seven are four and three rather than six and one. */
static inline int32_t rows_of(int32_t n)
{
    return n <= ROWS ? n : 4;
}

static inline void bring_up(const float *x, int32_t n, float *ret)
{
    int32_t i = 0;

    for (; i + 8 <= n; i += 8) {
        _mm256_storeu_ps(ret + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(up)));
    }
    for (; i < n; i++) {
        ret[i] = x[i] * up;
    }
}

/* Denormal operands count as 0 from here on; returns what _mm_setcsr() brings back. */
static inline unsigned flush(void)
{
    unsigned before = _mm_getcsr();

    _mm_setcsr(before | 0x40);
    return before;
}

static void qk_fp8_avx2bits(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                            float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const unsigned csr = flush();
    const __m256 factor = _mm256_set1_ps(sum_up);
    float w[ROWS][BLOCK];

    for (int32_t rows; n > 0; n -= rows) {
        rows = rows_of(n);
        for (int32_t d = 0; d < k_dim; d += BLOCK) {
            const int32_t n_dims = k_dim - d < BLOCK ? k_dim - d : BLOCK;
            const uint8_t *from = (const uint8_t *)k + (size_t)d * CPU_KV_SLOTS;
            const uint32_t due = kv_prefetch_share(ahead, WIDTH * (size_t)n_dims, n_dims);

            for (int32_t r = 0; r < rows; r++) {
                bring_up(q + (size_t)r * ldq + d, n_dims, w[r]);
            }
            for (int c = 0; c < CPU_KV_SLOTS; c += WIDTH) {
                __m256 sum[ROWS][4];

                sums[rows](from + c, CPU_KV_SLOTS, n_dims, w[0], sum, due, ahead);
                for (int32_t r = 0; r < rows; r++) {
                    float *to = x + (size_t)r * ldx + c;
                    __m256 v[4];

                    in_order(sum[r], v);
                    for (int i = 0; i < 4; i++) {
                        __m256 before = d > 0 ? _mm256_loadu_ps(to + 8 * i) : _mm256_setzero_ps();

                        _mm256_storeu_ps(to + 8 * i, _mm256_fmadd_ps(v[i], factor, before));
                    }
                }
            }
        }
        q += (size_t)rows * ldq;
        x += (size_t)rows * ldx;
        ahead = NULL; /* and K is in L1 now */
    }
    _mm_setcsr(csr);
}

/* Of the last 16 dims 32 are read: behind V the page has its scales. */
static void pv_fp8_avx2bits(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                            int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead)
{
    const unsigned csr = flush();
    const __m256 factor = _mm256_set1_ps(sum_up);
    const uint32_t due = kv_prefetch_share(ahead, WIDTH * (size_t)n_slots, n_slots);
    float w[ROWS][BLOCK];

    for (int32_t rows; n > 0; n -= rows) {
        rows = rows_of(n);
        for (int32_t r = 0; r < rows; r++) {
            bring_up(e + (size_t)r * lde, n_slots, w[r]);
        }
        for (int32_t d = 0; d < v_pad; d += WIDTH) {
            __m256 sum[ROWS][4];

            sums[rows]((const uint8_t *)v + d, (size_t)v_pad, n_slots, w[0], sum, due, ahead);
            for (int32_t r = 0; r < rows; r++) {
                float *to = acc + (size_t)r * (size_t)v_pad + d;
                __m256 x[4];

                in_order(sum[r], x);
                for (int i = 0; i < 4 && d + 8 * i < v_pad; i++) {
                    _mm256_storeu_ps(to + 8 * i,
                                     _mm256_fmadd_ps(x[i], factor, _mm256_loadu_ps(to + 8 * i)));
                }
            }
        }
        e += (size_t)rows * lde;
        acc += (size_t)rows * (size_t)v_pad;
        ahead = NULL;
    }
    _mm_setcsr(csr);
}

void x86_table_kv_avx2_fp8(struct cpu_table *t)
{
    CPU_TABLE_SET(t, qk_fp8, avx2bits);
    CPU_TABLE_SET(t, pv_fp8, avx2bits);
}
