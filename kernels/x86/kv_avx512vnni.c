/* SPDX-License-Identifier: Apache-2.0 */
/* Products with int8 keys, and with keys and values of 4 bits, in integers, for AVX-512 VNNI.
 *
 * The query becomes 15 bits, two int8 halves of absmax / 16256 (hi * 128 + lo), so a product is
 * exact but for 2^-15 of the query's largest component; int8 keys are known to 2^-8 of theirs.
 * That is done once for all pages that the query meets (query_i8, query_g4). Keys enter as unsigned
 * bytes, k + 128; sums begin at -128 times the sum of the query.
 *
 * Int8: four dims of 64 slots are interleaved by 8 shuffles into 4 vectors, shared by all query
 * heads; 8 instructions a query head multiply and add. From four heads on slots go in two halves,
 * so that the sums of seven heads are registers: each half needs only its own 4 shuffles.
 *
 * 4 bits: the blocks of 16 slots are turned so that a vector has four codes pairs of each slot; a
 * level is an int8 that one shuffle finds. A block's sum is exact and meets its scale as a float:
 * no sum crosses lanes. Values: weights take their slot's scale in and become 16 bits of the page's
 * largest, two bytes; levels of four slots are interleaved, so that a page's sum is exact. */

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/kv_page.h"
#include "kernels/cpu/kv_prefetch.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/kv_ints.h"
#include "kernels/x86/x86.h"
#include "quant/gauss4.h"

enum {
    ROWS = KV_INT_ROWS, /* pairs at once: 28 sums of half of the slots, 14 of four bits' 16 */
    BLOCK = 128,        /* dims between two sums in f32: 128 * 255 * 128 is far from 2^31 */
    QUERY = 16256,
    GROUP = 16, /* slots of a vector */
};

/* ---- queries ----------------------------------------------------------------------------------
 */

/* Within kv_page_pad(n) words: of each four dims hi and lo (a byte a dim each), then the scale, and
 * of each block of dims -128 times the sum of its 15-bit numbers. */
static inline const int32_t *halves_of(const float *q, int32_t d)
{
    return (const int32_t *)(const void *)q + d / 4 * 2;
}

static inline float scale_of(const float *q, int32_t n)
{
    return q[kv_page_pad(n) / 2];
}

static inline const int32_t *bias_of(const float *q, int32_t n)
{
    return halves_of(q, kv_page_pad(n)) + 1;
}

static inline __mmask16 lanes_of(int32_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

static inline float largest(const float *q, int32_t n)
{
    __m512 max = _mm512_setzero_ps();

    for (int32_t i = 0; i < n; i += 16) {
        max = _mm512_max_ps(max, _mm512_abs_ps(_mm512_maskz_loadu_ps(lanes_of(n - i), q + i)));
    }
    return _mm512_reduce_max_ps(max);
}

/* n dims in blocks; ret: see above. */
static inline void pack(const float *q, int32_t n, int32_t block, float *ret)
{
    const __m512i most = _mm512_set1_epi32(QUERY);
    const float scale = largest(q, n) / (float)QUERY;
    const __m512 inverse = _mm512_set1_ps(scale > 0x1p-120f ? 1.0f / scale : 0.0f);
    const int32_t pad = kv_page_pad(n);
    int32_t *bias = (int32_t *)(void *)ret + pad / 2 + 1;
    __m512i sum = _mm512_setzero_si512();

    ret[pad / 2] = scale;
    for (int32_t i = 0; i < n; i += 16) {
        __m512 x = _mm512_mul_ps(_mm512_maskz_loadu_ps(lanes_of(n - i), q + i), inverse);
        __m512i v = _mm512_min_epi32(_mm512_cvtps_epi32(x), most);
        __m512i hi;
        __m128i h;
        __m128i l;

        v = _mm512_max_epi32(v, _mm512_sub_epi32(_mm512_setzero_si512(), most));
        hi = _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(64)), 7);
        h = _mm512_cvtepi32_epi8(hi);
        l = _mm512_cvtepi32_epi8(_mm512_sub_epi32(v, _mm512_slli_epi32(hi, 7)));
        sum = _mm512_add_epi32(sum, v);
        _mm_storeu_si128((void *)(ret + i / 2), _mm_unpacklo_epi32(h, l));
        _mm_storeu_si128((void *)(ret + i / 2 + 4), _mm_unpackhi_epi32(h, l));
        if ((i + 16) % block == 0 || i + 16 >= n) {
            *bias++ = -128 * _mm512_reduce_add_epi32(sum);
            sum = _mm512_setzero_si512();
        }
    }
}

static void query_i8_avx512vnni(const float *q, int32_t k_dim, float *ret)
{
    pack(q, k_dim, BLOCK, ret);
}

static void query_g4_avx512vnni(const float *q, int32_t k_dim, float *ret)
{
    pack(q, k_dim, GAUSS4_BLOCK, ret);
}

/* A block's sum of hi * 128 + lo: at most 128 * 127 * 16256 in size. */
static inline __m512 joined(__m512i hi, __m512i lo)
{
    return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(hi, 7), lo));
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* Four dims of 64 slots: lane L of vector j has slots 16 L + 4 j ... + 3. Vectors [first, first +
 * count), which is all or one half. */
UNROLL_INLINE void four_dims(const uint8_t *k, int first, int count, __m512i ret[4])
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    __m512i r[4];

    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_xor_si512(_mm512_loadu_si512(k + i * CPU_KV_SLOTS), flip);
    }
    if (first == 0) {
        __m512i a = _mm512_unpacklo_epi8(r[0], r[1]);
        __m512i b = _mm512_unpacklo_epi8(r[2], r[3]);

        ret[0] = _mm512_unpacklo_epi16(a, b);
        ret[1] = _mm512_unpackhi_epi16(a, b);
    }
    if (first + count == 4) {
        __m512i a = _mm512_unpackhi_epi8(r[0], r[1]);
        __m512i b = _mm512_unpackhi_epi8(r[2], r[3]);

        ret[2 - first] = _mm512_unpacklo_epi16(a, b);
        ret[3 - first] = _mm512_unpackhi_epi16(a, b);
    }
}

/* x = or += scale * sums of 64 slots, or of each 16 the first or last 8. */
UNROLL_INLINE void put(int first, int count, const __m512 f[4], float scale, bool add, float *x)
{
    const __m512 factor = _mm512_set1_ps(scale);
    __m512 out[4];

    if (count == 4) {
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
            float *to = x + 16 * j;

            _mm512_storeu_ps(to, add ? _mm512_fmadd_ps(out[j], factor, _mm512_loadu_ps(to))
                                     : _mm512_mul_ps(out[j], factor));
        }
        return;
    }
    out[0] = _mm512_permutex2var_ps(
        f[0], _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23), f[1]);
    out[1] = _mm512_permutex2var_ps(
        f[0], _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31),
        f[1]);
    UNROLL_LOOP
    for (int j = 0; j < 4; j++) {
        float *to = x + 16 * j + 4 * first;
        __m256 v =
            j % 2 ? _mm512_extractf32x8_ps(out[j / 2], 1) : _mm512_castps512_ps256(out[j / 2]);
        __m256 by = _mm512_castps512_ps256(factor);

        _mm256_storeu_ps(to,
                         add ? _mm256_fmadd_ps(v, by, _mm256_loadu_ps(to)) : _mm256_mul_ps(v, by));
    }
}

/* _mm512_dpbusd_epi32(), for which gcc 12 copies the sum to another register and back in loops:
 * with 28 sums two of three of them then lie in memory, at half of the speed. */
UNROLL_INLINE __m512i dot(__m512i sum, __m512i v, __m512i w)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(v), "v"(w));
    return sum;
}

/* One block: dims [d0, d0 + n_dims) of k_dim. Dims are read by fours, those behind the last, which
 * the page has, times the zeros of a packed query. */
UNROLL_INLINE void tile(int rows, int first, int count, const uint8_t *k, int32_t k_dim, int32_t d0,
                        const float *q, size_t ldq, float *x, size_t ldx,
                        struct cpu_kv_prefetch *ahead)
{
    const int32_t n_dims = k_dim - d0 < BLOCK ? k_dim - d0 : BLOCK;
    const uint32_t due = kv_prefetch_share(ahead, CPU_KV_SLOTS * (size_t)n_dims, n_dims);
    const int32_t *w = halves_of(q, d0);
    __m512i sum[ROWS][2][4];

    k += (size_t)d0 * CPU_KV_SLOTS;
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int j = 0; j < count; j++) {
            sum[r][0][j] = _mm512_setzero_si512();
            sum[r][1][j] = _mm512_set1_epi32(bias_of(q + (size_t)r * ldq, k_dim)[d0 / BLOCK]);
        }
    }
    for (int32_t d = 0; d < n_dims; d += 4, w += 2) {
        __m512i v[4];

        if (ahead && d % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
        four_dims(k + (size_t)d * CPU_KV_SLOTS, first, count, v);
        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            const __m512i h = _mm512_set1_epi32(w[(size_t)r * ldq]);
            const __m512i l = _mm512_set1_epi32(w[(size_t)r * ldq + 1]);

            UNROLL_LOOP
            for (int j = 0; j < count; j++) {
                sum[r][0][j] = dot(sum[r][0][j], v[j], h);
                sum[r][1][j] = dot(sum[r][1][j], v[j], l);
            }
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        __m512 f[4];

        UNROLL_LOOP
        for (int j = 0; j < count; j++) {
            f[j] = joined(sum[r][0][j], sum[r][1][j]);
        }
        put(first, count, f, scale_of(q + (size_t)r * ldq, k_dim), d0 > 0, x + (size_t)r * ldx);
    }
}

typedef void tile_fn(const uint8_t *k, int32_t k_dim, int32_t d0, const float *q, size_t ldq,
                     float *x, size_t ldx, struct cpu_kv_prefetch *ahead);

/* Each is a function of its own: with all in one gcc 12 keeps most of the sums in memory, at half
 * of the speed. */
#define TILE(name, rows, first, count)                                                             \
    static __attribute__((noinline)) void name(const uint8_t *k, int32_t k_dim, int32_t d0,        \
                                               const float *q, size_t ldq, float *x, size_t ldx,   \
                                               struct cpu_kv_prefetch *ahead)                      \
    {                                                                                              \
        tile(rows, first, count, k, k_dim, d0, q, ldq, x, ldx, ahead);                             \
    }

TILE(whole_1, 1, 0, 4)
TILE(whole_2, 2, 0, 4)
TILE(whole_3, 3, 0, 4)
TILE(low_4, 4, 0, 2)
TILE(low_5, 5, 0, 2)
TILE(low_6, 6, 0, 2)
TILE(low_7, 7, 0, 2)
TILE(high_4, 4, 2, 2)
TILE(high_5, 5, 2, 2)
TILE(high_6, 6, 2, 2)
TILE(high_7, 7, 2, 2)

static tile_fn *const tiles[ROWS + 1][2] = {
    {NULL, NULL},    {whole_1, NULL}, {whole_2, NULL}, {whole_3, NULL},
    {low_4, high_4}, {low_5, high_5}, {low_6, high_6}, {low_7, high_7},
};

static void qk_i8_avx512vnni(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                             float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    for (int32_t rows; n > 0; n -= rows) {
        rows = n < ROWS ? n : ROWS;
        for (int32_t d = 0; d < k_dim; d += BLOCK) {
            tiles[rows][0](k, k_dim, d, q, ldq, x, ldx, ahead);
            if (tiles[rows][1]) {
                tiles[rows][1](k, k_dim, d, q, ldq, x, ldx, NULL);
            }
        }
        q += (size_t)rows * ldq;
        x += (size_t)rows * ldx;
        ahead = NULL; /* and K is in L1 now */
    }
}

/* ---- 4 bits ---------------------------------------------------------------------------------- */

/* The codes of one block of 16 slots, `stride` bytes apart: vector j has bytes 4 j ... + 3 of each
 * slot's. */
UNROLL_INLINE void turned(const uint8_t *codes, size_t stride, __m512i ret[4])
{
    __m512i z[4];

    UNROLL_LOOP
    for (int i = 0; i < 4; i++) { /* slots i, i + 4, i + 8, i + 12 */
        const uint8_t *at = codes + (size_t)i * stride;

        z[i] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)at));
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(at + 4 * stride)), 1);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(at + 8 * stride)), 2);
        z[i] = _mm512_inserti32x4(z[i], _mm_loadu_si128((const void *)(at + 12 * stride)), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(z[0], z[1]);
    __m512i b = _mm512_unpacklo_epi32(z[2], z[3]);
    __m512i c = _mm512_unpackhi_epi32(z[0], z[1]);
    __m512i d = _mm512_unpackhi_epi32(z[2], z[3]);

    ret[0] = _mm512_unpacklo_epi64(a, b);
    ret[1] = _mm512_unpackhi_epi64(a, b);
    ret[2] = _mm512_unpacklo_epi64(c, d);
    ret[3] = _mm512_unpackhi_epi64(c, d);
}

/* 16 slots' keys. */
UNROLL_INLINE void group(int rows, const uint8_t *k, int32_t k_dim, const float *q, size_t ldq,
                         float *x, size_t ldx)
{
    const size_t stride = (size_t)(k_dim / GAUSS4_BLOCK) * sizeof(struct gauss4_block);
    const __m512i levels =
        _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *)gauss4_level)),
                         _mm512_set1_epi8((char)0x80));
    const __m512i four_bits = _mm512_set1_epi8(0x0f);
    __m512 out[ROWS];

    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        out[r] = _mm512_setzero_ps();
    }
    for (int32_t b = 0; b < k_dim / GAUSS4_BLOCK; b++) {
        const uint8_t *block = k + (size_t)b * sizeof(struct gauss4_block);
        const int32_t *w = halves_of(q, b * GAUSS4_BLOCK);
        __m512i sum[ROWS][2];
        __m512i codes[4];
        uint16_t scales[GROUP];

        kv_int_scales(block, stride, GROUP, scales);
        turned(block + sizeof(uint16_t), stride, codes);
        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            sum[r][0] = _mm512_setzero_si512();
            sum[r][1] = _mm512_set1_epi32(bias_of(q + (size_t)r * ldq, k_dim)[b]);
        }
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) { /* dims 4 j ... + 3 */
            __m512i code = j < 4 ? codes[j % 4] : _mm512_srli_epi16(codes[j % 4], 4);
            __m512i v = _mm512_shuffle_epi8(levels, _mm512_and_si512(code, four_bits));

            UNROLL_LOOP
            for (int r = 0; r < rows; r++) {
                const int32_t *at = w + (size_t)r * ldq + 2 * j;

                sum[r][0] = _mm512_dpbusd_epi32(sum[r][0], v, _mm512_set1_epi32(at[0]));
                sum[r][1] = _mm512_dpbusd_epi32(sum[r][1], v, _mm512_set1_epi32(at[1]));
            }
        }
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const void *)scales));

        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            out[r] = _mm512_fmadd_ps(joined(sum[r][0], sum[r][1]), scale, out[r]);
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        __m512 scale = _mm512_set1_ps(scale_of(q + (size_t)r * ldq, k_dim));

        _mm512_storeu_ps(x + (size_t)r * ldx, _mm512_mul_ps(out[r], scale));
    }
}

static void qk_g4_avx512vnni(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                             float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const size_t stride = (size_t)(k_dim / GAUSS4_BLOCK) * sizeof(struct gauss4_block);
    const uint32_t due = kv_prefetch_share(ahead, stride * CPU_KV_SLOTS, CPU_KV_SLOTS);
    const uint8_t *from = k;

    for (int32_t s = 0; s < CPU_KV_SLOTS; s += GROUP, from += GROUP * stride) {
        if (ahead) {
            kv_prefetch_due(ahead, GROUP / KV_PREFETCH_ROWS * due);
        }
        for (int32_t done = 0, rows; done < n; done += rows) {
            const float *queries = q + (size_t)done * ldq;
            float *to = x + (size_t)done * ldx + (size_t)s;

            rows = n - done < ROWS ? n - done : ROWS;
#define GROUP_OF(rows) group(rows, from, k_dim, queries, ldq, to, ldx)
            KV_INT_CASES(rows, GROUP_OF)
#undef GROUP_OF
        }
    }
}

/* ---- values of 4 bits -------------------------------------------------------------------------
 */

enum {
    WEIGHT = 65280,           /* what the largest weight can become, of 16 bits */
    FOURS = CPU_KV_SLOTS / 4, /* of slots */
};

/* What pairs of one page share: of each four slots a block's levels of dims 0 to 15 and of dims 16
 * to 31, a dim's four in a word; and of up to ROWS pairs the weights, low bytes and high bytes of
 * four slots beside each other in the order of at_of(). */
struct values {
    __mmask16 there[4]; /* slots */
    int8_t levels[FOURS][2][64];
    int32_t weights[ROWS][2 * FOURS];
    float scale[CPU_KV_SLOTS];
    float factor[ROWS]; /* of a sum of levels times weights */
};

static inline int at_of(int four)
{
    return four / 8 * 16 + four % 4 * 4 + four / 4 % 2 * 2;
}

/* Zeros where no slot is: there may be anything. */
static inline void ready_scales(const uint16_t half[CPU_KV_SLOTS], struct values *ret)
{
    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_ps(ret->scale + 16 * i,
                         _mm512_maskz_cvtph_ps(ret->there[i],
                                               _mm256_loadu_si256((const void *)(half + 16 * i))));
    }
}

static inline void bring_levels(const uint8_t *v, size_t stride, int32_t n_fours,
                                struct values *ret, uint32_t due, struct cpu_kv_prefetch *ahead)
{
    const __m512i levels = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)gauss4_level));
    const __m512i four_bits = _mm512_set1_epi8(0x0f);
    const __m512i words = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    uint16_t scales[CPU_KV_SLOTS];

    for (int32_t i = 0; i < n_fours; i++, v += 4 * stride) {
        const uint8_t *at = v + sizeof(uint16_t);
        __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const void *)at));

        kv_int_scales(v, stride, 4, scales + 4 * i);
        if (ahead && i % (KV_PREFETCH_ROWS / 4) == 0) {
            kv_prefetch_due(ahead, due);
        }
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(at + stride)), 1);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(at + 2 * stride)), 2);
        x = _mm512_inserti32x4(x, _mm_loadu_si128((const void *)(at + 3 * stride)), 3);
        x = _mm512_shuffle_epi8(_mm512_permutexvar_epi32(words, x), bytes);
        _mm512_storeu_si512(ret->levels[i][0],
                            _mm512_shuffle_epi8(levels, _mm512_and_si512(x, four_bits)));
        x = _mm512_and_si512(_mm512_srli_epi16(x, 4), four_bits);
        _mm512_storeu_si512(ret->levels[i][1], _mm512_shuffle_epi8(levels, x));
    }
    ready_scales(scales, ret);
}

/* e * scale in 16 bits of the largest. Slots that the row does not see have no part in that: what
 * lies there may differ with the rows beside it. */
static inline void bring_weights(const float *e, int row, struct values *ret)
{
    const __m512i bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    __m512 x[4];
    __m512 inverse;
    __m512i w[4];
    float largest;

    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        __m512 weight = _mm512_maskz_loadu_ps(ret->there[i], e + 16 * i);
        __mmask16 seen = _mm512_cmp_ps_mask(weight, _mm512_setzero_ps(), _CMP_NEQ_UQ);

        x[i] = _mm512_maskz_mul_ps(seen, weight, _mm512_loadu_ps(ret->scale + 16 * i));
    }
    largest =
        _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(x[0], x[1]), _mm512_max_ps(x[2], x[3])));
    inverse = _mm512_set1_ps(kv_int_part(WEIGHT, largest));
    ret->factor[row] = largest / (float)WEIGHT;
    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        w[i] = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inverse));
    }
    UNROLL_LOOP
    for (int i = 0; i < 2; i++) {
        __m512i v = _mm512_packus_epi32(w[2 * i], w[2 * i + 1]);

        _mm512_storeu_si512(ret->weights[row] + 16 * i, _mm512_shuffle_epi8(v, bytes));
    }
}

/* acc[0, 32) of `rows` pairs, v_pad floats apart. */
UNROLL_INLINE void add_values(int rows, const struct values *b, int32_t n_fours, float *acc,
                              size_t v_pad)
{
    __m512i sum[ROWS][2][2]; /* low and high bytes, lower and upper dims */

    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        sum[r][0][0] = sum[r][0][1] = sum[r][1][0] = sum[r][1][1] = _mm512_setzero_si512();
    }
    for (int32_t i = 0; i < n_fours; i++) {
        const int32_t *w = b->weights[0] + at_of(i);
        const __m512i lower = _mm512_loadu_si512(b->levels[i][0]);
        const __m512i upper = _mm512_loadu_si512(b->levels[i][1]);

        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            UNROLL_LOOP
            for (int h = 0; h < 2; h++) {
                const __m512i x = _mm512_set1_epi32(w[r * 2 * FOURS + h]);

                sum[r][h][0] = dot(sum[r][h][0], x, lower);
                sum[r][h][1] = dot(sum[r][h][1], x, upper);
            }
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int j = 0; j < 2; j++) {
            float *to = acc + (size_t)r * v_pad + 16 * j;
            __m512 x = _mm512_cvtepi32_ps(
                _mm512_add_epi32(_mm512_slli_epi32(sum[r][1][j], 8), sum[r][0][j]));

            _mm512_storeu_ps(to,
                             _mm512_fmadd_ps(x, _mm512_set1_ps(b->factor[r]), _mm512_loadu_ps(to)));
        }
    }
}

typedef void values_fn(const struct values *b, int32_t n_fours, float *acc, size_t v_pad);

#define VALUES(name, rows)                                                                         \
    static __attribute__((noinline)) void name(const struct values *b, int32_t n_fours,            \
                                               float *acc, size_t v_pad)                           \
    {                                                                                              \
        add_values(rows, b, n_fours, acc, v_pad);                                                  \
    }

VALUES(values_1, 1)
VALUES(values_2, 2)
VALUES(values_3, 3)
VALUES(values_4, 4)
VALUES(values_5, 5)
VALUES(values_6, 6)
VALUES(values_7, 7)

static values_fn *const values[ROWS + 1] = {NULL,     values_1, values_2, values_3,
                                            values_4, values_5, values_6, values_7};

static void pv_g4_avx512vnni(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                             int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead)
{
    const int32_t n_blocks = v_pad / GAUSS4_BLOCK;
    const size_t stride = (size_t)n_blocks * sizeof(struct gauss4_block);
    const uint32_t due = kv_prefetch_share(ahead, stride * (size_t)n_slots, n_slots);
    const int32_t n_fours = (n_slots + 3) / 4;

    struct values page;

    for (int i = 0; i < 4; i++) {
        page.there[i] = lanes_of(n_slots - 16 * i);
    }
    for (int32_t done = 0, rows; done < n; done += rows) {
        rows = n - done < ROWS ? n - done : ROWS;
        for (int32_t b = 0; b < n_blocks; b++) {
            bring_levels((const uint8_t *)v + (size_t)b * sizeof(struct gauss4_block), stride,
                         n_fours, &page, due, b == 0 ? ahead : NULL);
            for (int r = 0; r < rows; r++) {
                bring_weights(e + (size_t)r * lde, r, &page);
            }
            values[rows](&page, n_fours, acc + b * GAUSS4_BLOCK, (size_t)v_pad);
        }
        e += (size_t)rows * lde;
        acc += (size_t)rows * (size_t)v_pad;
        ahead = NULL;
    }
}

void x86_table_kv_avx512vnni(struct cpu_table *t)
{
    CPU_TABLE_SET(t, query_i8, avx512vnni);
    CPU_TABLE_SET(t, query_g4, avx512vnni);
    CPU_TABLE_SET(t, qk_i8, avx512vnni);
    CPU_TABLE_SET(t, qk_g4, avx512vnni);
    CPU_TABLE_SET(t, pv_g4, avx512vnni);
}
