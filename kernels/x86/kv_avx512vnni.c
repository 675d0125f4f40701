/* SPDX-License-Identifier: Apache-2.0 */
/* Products with int8 keys in integers, for AVX-512 VNNI.
 *
 * The query becomes 15 bits, two int8 halves of absmax / 16256 (hi * 128 + lo), so a product is
 * exact but for 2^-15 of the query's largest component; int8 keys are known to 2^-8 of theirs. Four
 * dims of 64 slots are interleaved by 8 shuffles into 4 vectors, shared by all query heads; 8
 * instructions a query head multiply and add. Keys enter as unsigned bytes, k + 128; sums
 * begin at -128 times the sum of the query. */

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/kv_prefetch.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/x86.h"

enum {
    ROWS = 3,    /* pairs at once: 24 sums */
    BLOCK = 128, /* dims between two sums in f32: 128 * 255 * 128 is far from 2^31 */
    QUERY = 16256,
};

/* One query's dims of a block, by fours. */
struct query {
    int32_t half[2][BLOCK / 4]; /* hi, lo */
    int32_t sum[2];
    float scale;
    float inverse;
};

static inline __mmask16 lanes_of(int32_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

static inline void set_scale(const float *q, int32_t n, struct query *ret)
{
    __m512 max = _mm512_setzero_ps();

    for (int32_t i = 0; i < n; i += 16) {
        max = _mm512_max_ps(max, _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes_of(n - i), q + i)));
    }
    ret->scale = _mm512_reduce_max_ps(max) / (float)QUERY;
    ret->inverse = ret->scale > 0x1p-120f ? 1.0f / ret->scale : 0.0f;
}

static inline void quantize(const float *q, int32_t n, struct query *ret)
{
    const __m512i most = _mm512_set1_epi32(QUERY);
    __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};

    for (int32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes_of(n - i), q + i),
                                 _mm512_set1_ps(ret->inverse));
        __m512i v = _mm512_min_epi32(_mm512_cvtps_epi32(x), most);
        __m512i hi;
        __m512i lo;

        v = _mm512_max_epi32(v, _mm512_sub_epi32(_mm512_setzero_si512(), most));
        hi = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(64)), 7);
        lo = _mm512_sub_epi32(v, _mm512_slli_epi32(hi, 7));
        sum[0] = _mm512_add_epi32(sum[0], hi);
        sum[1] = _mm512_add_epi32(sum[1], lo);
        _mm_storeu_si128((void *)&ret->half[0][i / 4], _mm512_cvtepi32_epi8(hi));
        _mm_storeu_si128((void *)&ret->half[1][i / 4], _mm512_cvtepi32_epi8(lo));
    }
    ret->sum[0] = _mm512_reduce_add_epi32(sum[0]);
    ret->sum[1] = _mm512_reduce_add_epi32(sum[1]);
}

/* Four dims (the n that are left) of 64 slots: lane L of vector j has slots 16 L + 4 j ... + 3. */
UNROLL_INLINE void four_dims(const uint8_t *k, int32_t n, __m512i ret[4])
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i r[4];
    __m512i a[4];

    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        r[i] = i < n ? _mm512_loadu_si512(k + i * CPU_KV_SLOTS) : _mm512_setzero_si512();
    }
    UNROLL_LOOP
    for (int i = 0; i < 2; i++) {
        __m512i x = _mm512_xor_si512(r[2 * i], flip);
        __m512i y = _mm512_xor_si512(r[2 * i + 1], flip);

        a[i] = _mm512_unpacklo_epi8(x, y);
        a[i + 2] = _mm512_unpackhi_epi8(x, y);
    }
    ret[0] = _mm512_unpacklo_epi16(a[0], a[1]);
    ret[1] = _mm512_unpackhi_epi16(a[0], a[1]);
    ret[2] = _mm512_unpacklo_epi16(a[2], a[3]);
    ret[3] = _mm512_unpackhi_epi16(a[2], a[3]);
}

UNROLL_INLINE void tile(int rows, const uint8_t *k, int32_t n_dims, const struct query *q,
                        bool first, float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const uint32_t due = kv_prefetch_share(ahead, CPU_KV_SLOTS * (size_t)n_dims, n_dims);
    __m512i sum[ROWS][2][4];

    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int i = 0; i < 8; i++) {
            sum[r][i / 4][i % 4] = _mm512_set1_epi32(-128 * q[r].sum[i / 4]);
        }
    }
    for (int32_t d = 0; d < n_dims; d += 4) {
        const int32_t n = n_dims - d;
        __m512i v[4];

        if (ahead && d % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
        four_dims(k + (size_t)d * CPU_KV_SLOTS, n, v);
        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            UNROLL_LOOP
            for (int i = 0; i < 8; i++) {
                const __m512i w = _mm512_set1_epi32(q[r].half[i / 4][d / 4]);

                sum[r][i / 4][i % 4] = _mm512_dpbusd_epi32(sum[r][i / 4][i % 4], v[i % 4], w);
            }
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        float *to = x + (size_t)r * ldx;
        __m512 f[4];
        __m512 out[4];

        UNROLL_LOOP
        for (int j = 0; j < 4; j++) {
            f[j] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][0][j]), _mm512_set1_ps(128.0f),
                                   _mm512_cvtepi32_ps(sum[r][1][j]));
        }
        __m512 t0 = _mm512_shuffle_f32x4(f[0], f[1], 0x44);
        __m512 t1 = _mm512_shuffle_f32x4(f[2], f[3], 0x44);
        __m512 t2 = _mm512_shuffle_f32x4(f[0], f[1], 0xee);
        __m512 t3 = _mm512_shuffle_f32x4(f[2], f[3], 0xee);

        out[0] = _mm512_shuffle_f32x4(t0, t1, 0x88);
        out[1] = _mm512_shuffle_f32x4(t0, t1, 0xdd);
        out[2] = _mm512_shuffle_f32x4(t2, t3, 0x88);
        out[3] = _mm512_shuffle_f32x4(t2, t3, 0xdd);
        UNROLL_LOOP
        for (int j = 0; j < 4; j++) {
            const __m512 scale = _mm512_set1_ps(q[r].scale);

            _mm512_storeu_ps(to + 16 * j,
                             first ? _mm512_mul_ps(out[j], scale)
                                   : _mm512_fmadd_ps(out[j], scale, _mm512_loadu_ps(to + 16 * j)));
        }
    }
}

static void qk_i8_avx512vnni(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                             float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    struct query w[ROWS];

    while (n > 0) {
        int rows = n < ROWS ? n : ROWS;

        for (int r = 0; r < rows; r++) {
            set_scale(q + (size_t)r * ldq, k_dim, &w[r]);
        }
        for (int32_t d = 0; d < k_dim; d += BLOCK) {
            const uint8_t *from = (const uint8_t *)k + (size_t)d * CPU_KV_SLOTS;
            int32_t left = k_dim - d < BLOCK ? k_dim - d : BLOCK;

            for (int r = 0; r < rows; r++) {
                quantize(q + (size_t)r * ldq + d, left, &w[r]);
            }
            switch (rows) {
            case 1:
                tile(1, from, left, w, d == 0, x, ldx, ahead);
                break;
            case 2:
                tile(2, from, left, w, d == 0, x, ldx, ahead);
                break;
            default:
                tile(ROWS, from, left, w, d == 0, x, ldx, ahead);
                break;
            }
        }
        q += (size_t)rows * ldq;
        x += (size_t)rows * ldx;
        n -= rows;
        ahead = NULL;
    }
}

void x86_table_kv_avx512vnni(struct cpu_table *t)
{
    CPU_TABLE_SET(t, qk_i8, avx512vnni);
}
