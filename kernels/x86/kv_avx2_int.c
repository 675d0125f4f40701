/* SPDX-License-Identifier: Apache-2.0 */
/* Products with int8 keys, and with keys and values of 4 bits, in integers, for AVX2.
 *
 * vpmaddwd multiplies 16 numbers of 16 bits where a fused multiply-add takes 8 floats. So the query
 * becomes 16 bits of its largest component, once for all pages that it meets (query_i8, query_g4),
 * and codes are widened to 16 bits: of two codes in a word the even one by vpmaddubsw with 1 and 0,
 * the odd one by a shift. Sums are exact.
 *
 * Int8 keys: four dims of 32 slots are interleaved by 8 shuffles, so that a word has the codes of
 * dims 0 and 1 or of 2 and 3, a pair of words dims 0 and 2 or 1 and 3 of a slot.
 *
 * Keys of 4 bits: the blocks of 8 slots are turned so that a vector has 4 bytes, two dims each, of
 * every slot; a level is an int8 that one shuffle finds. A block's sum meets its scale as a float:
 * no sum crosses lanes.
 *
 * Values of 4 bits: weights take their slot's scale in and become 15 bits of the page's largest.
 * Levels of four slots are interleaved; a register's lower lane has slots 0 to 3 of each 8, its
 * upper lane slots 4 to 7. */

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/kv_page.h"
#include "kernels/cpu/kv_prefetch.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/kv_ints.h"
#include "kernels/x86/x86.h"
#include "quant/gauss4.h"

enum {
    LARGEST = 32767,
    BLOCK = 256, /* int8 dims between two sums in f32: 256 * 128 * 32767 is half of 2^31 */
    ROWS_I8 = 4, /* pairs at once */
    ROWS_G4 = KV_INT_ROWS,
    GROUP = 8, /* slots of 4 bits together */
};

static inline float largest_of(__m256 x)
{
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 m2 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));

    return _mm_cvtss_f32(_mm_max_ss(m2, _mm_movehdup_ps(m2)));
}

/* ---- queries ----------------------------------------------------------------------------------
 */

/* Within kv_page_pad(n) words: of each four dims the pairs (0, 2) and (1, 3) of int16, then the
 * scale. */
static inline const int32_t *pairs_of(const float *q, int32_t d)
{
    return (const int32_t *)(const void *)q + d / 2;
}

static inline float scale_of(const float *q, int32_t n)
{
    return q[kv_page_pad(n) / 2];
}

/* Floats [i, i + 8) of n, zeros behind. */
static inline __m256 eight(const float *x, int32_t i, int32_t n)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return _mm256_maskload_ps(x + i, _mm256_cmpgt_epi32(_mm256_set1_epi32(n - i), lanes));
}

static void query_i8_avx2int(const float *q, int32_t k_dim, float *ret)
{
    const __m128i order = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const int32_t pad = kv_page_pad(k_dim);
    __m256 largest = _mm256_setzero_ps();
    __m256 inverse;
    float scale;

    for (int32_t i = 0; i < k_dim; i += 8) {
        largest =
            _mm256_max_ps(largest, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), eight(q, i, k_dim)));
    }
    scale = largest_of(largest) / (float)LARGEST;
    inverse = _mm256_set1_ps(kv_int_part(1, scale));
    for (int32_t i = 0; i < pad; i += 8) {
        __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(eight(q, i, k_dim), inverse));
        __m128i w = _mm_packs_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

        _mm_storeu_si128((void *)(ret + i / 2), _mm_shuffle_epi8(w, order));
    }
    ret[pad / 2] = scale;
}

static void query_g4_avx2int(const float *q, int32_t k_dim, float *ret)
{
    query_i8_avx2int(q, k_dim, ret);
}

/* The codes of a vector's even and odd bytes in 16 bits. */
static inline __m256i even_of(__m256i v)
{
    return _mm256_maddubs_epi16(_mm256_set1_epi16(1), v);
}

static inline __m256i odd_of(__m256i v)
{
    return _mm256_srai_epi16(v, 8);
}

/* sum + the products of codes with pairs x and y. */
UNROLL_INLINE __m256i dot(__m256i sum, __m256i even, __m256i odd, __m256i x, __m256i y)
{
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(even, x));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(odd, y));
    __asm__("" : "+x"(sum)); /* else gcc 12 adds all products at the end, from memory */
    return sum;
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* x = or += scale * sums of 16 slots: 0 to 3 and 16 to 19, 4 to 7 and 20 to 23. */
static inline void put(__m256i a, __m256i b, float scale, bool add, float *x)
{
    const __m256 factor = _mm256_set1_ps(scale);
    __m256 low = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(a, b, 0x20));
    __m256 high = _mm256_cvtepi32_ps(_mm256_permute2x128_si256(a, b, 0x31));

    low = add ? _mm256_fmadd_ps(low, factor, _mm256_loadu_ps(x)) : _mm256_mul_ps(low, factor);
    high =
        add ? _mm256_fmadd_ps(high, factor, _mm256_loadu_ps(x + 16)) : _mm256_mul_ps(high, factor);
    _mm256_storeu_ps(x, low);
    _mm256_storeu_ps(x + 16, high);
}

/* One block, dims [d0, d0 + n_dims) of k_dim, of 32 slots: of each 16 the first or last 8 (halves
 * 1), or all. Dims are read by fours, those behind the last, which the page has, times zeros. */
UNROLL_INLINE void tile(int rows, int first, int halves, const uint8_t *k, int32_t k_dim,
                        int32_t d0, const float *q, size_t ldq, float *x, size_t ldx,
                        struct cpu_kv_prefetch *ahead)
{
    const int32_t n_dims = k_dim - d0 < BLOCK ? k_dim - d0 : BLOCK;
    const uint32_t due = kv_prefetch_share(ahead, 16 * (size_t)(halves * n_dims), n_dims);
    const int32_t *w = pairs_of(q, d0);
    __m256i sum[ROWS_I8][4];

    k += (size_t)d0 * CPU_KV_SLOTS;
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int j = 0; j < 2 * halves; j++) {
            sum[r][j] = _mm256_setzero_si256();
        }
    }
    for (int32_t d = 0; d < n_dims; d += 4, w += 2, k += 4 * CPU_KV_SLOTS) {
        __m256i v[4];

        if (ahead && d % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
        UNROLL_LOOP
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_si256((const void *)(k + i * CPU_KV_SLOTS));
        }
        UNROLL_LOOP
        for (int h = first; h < first + halves; h++) {
            __m256i a = h ? _mm256_unpackhi_epi8(v[0], v[1]) : _mm256_unpacklo_epi8(v[0], v[1]);
            __m256i b = h ? _mm256_unpackhi_epi8(v[2], v[3]) : _mm256_unpacklo_epi8(v[2], v[3]);

            __m256i low = _mm256_unpacklo_epi16(a, b);
            __m256i high = _mm256_unpackhi_epi16(a, b);
            __m256i even[2] = {even_of(low), even_of(high)};
            __m256i odd[2] = {odd_of(low), odd_of(high)};

            UNROLL_LOOP
            for (int r = 0; r < rows; r++) {
                const __m256i even_q = _mm256_set1_epi32(w[(size_t)r * ldq]);
                const __m256i odd_q = _mm256_set1_epi32(w[(size_t)r * ldq + 1]);
                __m256i *to = &sum[r][2 * (h - first)];

                to[0] = dot(to[0], even[0], odd[0], even_q, odd_q);
                to[1] = dot(to[1], even[1], odd[1], even_q, odd_q);
            }
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        UNROLL_LOOP
        for (int h = 0; h < halves; h++) {
            put(sum[r][2 * h], sum[r][2 * h + 1], scale_of(q + (size_t)r * ldq, k_dim), d0 > 0,
                x + (size_t)r * ldx + 8 * (first + h));
        }
    }
}

typedef void tile_fn(const uint8_t *k, int32_t k_dim, int32_t d0, const float *q, size_t ldq,
                     float *x, size_t ldx, struct cpu_kv_prefetch *ahead);

#define TILE(name, rows, first, halves)                                                            \
    static __attribute__((noinline)) void name(const uint8_t *k, int32_t k_dim, int32_t d0,        \
                                               const float *q, size_t ldq, float *x, size_t ldx,   \
                                               struct cpu_kv_prefetch *ahead)                      \
    {                                                                                              \
        tile(rows, first, halves, k, k_dim, d0, q, ldq, x, ldx, ahead);                            \
    }

TILE(whole_1, 1, 0, 2)
TILE(whole_2, 2, 0, 2)
TILE(low_3, 3, 0, 1)
TILE(low_4, 4, 0, 1)
TILE(high_3, 3, 1, 1)
TILE(high_4, 4, 1, 1)

static tile_fn *const tiles[ROWS_I8 + 1][2] = {
    {NULL, NULL}, {whole_1, NULL}, {whole_2, NULL}, {low_3, high_3}, {low_4, high_4},
};

static void qk_i8_avx2int(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                          float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    for (int32_t rows; n > 0; n -= rows) {
        rows = n < ROWS_I8 ? n : ROWS_I8;
        for (int i = 0; i < 4; i++) { /* 32 slots' halves */
            tile_fn *fn = tiles[rows][i % 2];

            for (int32_t d = 0; fn && d < k_dim; d += BLOCK) {
                fn((const uint8_t *)k + 32 * (i / 2), k_dim, d, q, ldq, x + 32 * (i / 2), ldx,
                   ahead);
            }
        }
        q += (size_t)rows * ldq;
        x += (size_t)rows * ldx;
        ahead = NULL; /* and K is in L1 now */
    }
}

/* ---- 4 bits ---------------------------------------------------------------------------------- */

static inline size_t stride_of(int32_t dims)
{
    return (size_t)(dims / GAUSS4_BLOCK) * sizeof(struct gauss4_block);
}

/* The codes of slots i and i + 4 of a block, `stride` bytes apart. */
static inline __m256i two(const uint8_t *codes, size_t stride, int i)
{
    const uint8_t *at = codes + (size_t)i * stride;

    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)at)),
                                   _mm_loadu_si128((const void *)(at + 4 * stride)), 1);
}

/* The levels of codes' low or high halves. */
static inline __m256i levels_of(__m256i codes, bool high)
{
    const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const void *)gauss4_level));

    codes = high ? _mm256_srli_epi16(codes, 4) : codes;
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

/* The codes of a block of 8 slots: vector j has bytes 4 j ... + 3 of each. */
UNROLL_INLINE void turned(const uint8_t *codes, size_t stride, __m256i ret[4])
{
    __m256i z[4];

    UNROLL_LOOP
    for (int i = 0; i < 4; i++) {
        z[i] = two(codes, stride, i);
    }
    __m256i a = _mm256_unpacklo_epi32(z[0], z[1]);
    __m256i b = _mm256_unpacklo_epi32(z[2], z[3]);
    __m256i c = _mm256_unpackhi_epi32(z[0], z[1]);
    __m256i d = _mm256_unpackhi_epi32(z[2], z[3]);

    ret[0] = _mm256_unpacklo_epi64(a, b);
    ret[1] = _mm256_unpackhi_epi64(a, b);
    ret[2] = _mm256_unpacklo_epi64(c, d);
    ret[3] = _mm256_unpackhi_epi64(c, d);
}

/* 8 slots' keys. */
UNROLL_INLINE void group(int rows, const uint8_t *k, int32_t k_dim, const float *q, size_t ldq,
                         float *x, size_t ldx)
{
    const size_t stride = stride_of(k_dim);
    __m256 out[ROWS_G4];

    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        out[r] = _mm256_setzero_ps();
    }
    for (int32_t d = 0; d < k_dim; d += GAUSS4_BLOCK, k += sizeof(struct gauss4_block)) {
        const int32_t *w = pairs_of(q, d);
        __m256i sum[ROWS_G4];
        __m256i codes[4];
        uint16_t scales[GROUP];

        kv_int_scales(k, stride, GROUP, scales);
        turned(k + sizeof(uint16_t), stride, codes);
        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            sum[r] = _mm256_setzero_si256();
        }
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) { /* dims 4 j ... + 3 */
            __m256i level = levels_of(codes[j % 4], j >= 4);
            __m256i even = even_of(level);
            __m256i odd = odd_of(level);

            UNROLL_LOOP
            for (int r = 0; r < rows; r++) {
                const int32_t *at = w + (size_t)r * ldq + 2 * j;

                sum[r] = dot(sum[r], even, odd, _mm256_set1_epi32(at[0]), _mm256_set1_epi32(at[1]));
            }
        }
        const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const void *)scales));

        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            out[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), scale, out[r]);
        }
    }
    UNROLL_LOOP
    for (int r = 0; r < rows; r++) {
        __m256 scale = _mm256_set1_ps(scale_of(q + (size_t)r * ldq, k_dim));

        _mm256_storeu_ps(x + (size_t)r * ldx, _mm256_mul_ps(out[r], scale));
    }
}

static void qk_g4_avx2int(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                          float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const size_t stride = stride_of(k_dim);
    const uint32_t due = kv_prefetch_share(ahead, stride * CPU_KV_SLOTS, CPU_KV_SLOTS);
    const uint8_t *from = k;

    for (int32_t s = 0; s < CPU_KV_SLOTS; s += GROUP, from += GROUP * stride) {
        if (ahead) {
            kv_prefetch_due(ahead, GROUP / KV_PREFETCH_ROWS * due);
        }
        for (int32_t done = 0, rows; done < n; done += rows) {
            const float *queries = q + (size_t)done * ldq;
            float *to = x + (size_t)done * ldx + (size_t)s;

            rows = n - done < ROWS_G4 ? n - done : ROWS_G4;
#define GROUP_OF(rows) group(rows, from, k_dim, queries, ldq, to, ldx)
            KV_INT_CASES(rows, GROUP_OF)
#undef GROUP_OF
        }
    }
}

/* ---- values of 4 bits -------------------------------------------------------------------------
 */

enum {
    ROWS_V = 3, /* pairs at once: 12 sums of half of a block */
    GROUPS = CPU_KV_SLOTS / GROUP,
};

/* What pairs of one page share, and the weights of up to ROWS_V of them. */
struct values {
    __m256 there[GROUPS]; /* of 8 slots each: all ones */
    __m256 scale[GROUPS];
    /* A block's levels of 8 slots: vectors of dims 4 j ... + 3, a dim's four slots in a word. */
    __m256i levels[GROUPS][8];
    __m256i weights[ROWS_V][GROUPS][2]; /* slots 0 and 2, then 1 and 3 of each four */
    float factor[ROWS_V];               /* of a sum of levels times weights */
};

/* Zeros where no slot is: there may be anything. */
static inline void ready_scales(const uint16_t half[CPU_KV_SLOTS], struct values *ret)
{
    UNROLL_LOOP
    for (int g = 0; g < GROUPS; g++) {
        __m256 x = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(half + GROUP * g)));

        ret->scale[g] = _mm256_and_ps(x, ret->there[g]);
    }
}

static inline void bring_levels(const uint8_t *v, size_t stride, int32_t n_groups,
                                struct values *ret, uint32_t due, struct cpu_kv_prefetch *ahead)
{
    uint16_t scales[CPU_KV_SLOTS] = {0};

    for (int32_t g = 0; g < n_groups; g++, v += GROUP * stride) {
        const uint8_t *codes = v + sizeof(uint16_t);
        __m256i x[4];

        kv_int_scales(v, stride, GROUP, scales + GROUP * g);
        if (ahead) {
            kv_prefetch_due(ahead, GROUP / KV_PREFETCH_ROWS * due);
        }
        __m256i a = _mm256_unpacklo_epi8(two(codes, stride, 0), two(codes, stride, 1));
        __m256i b = _mm256_unpacklo_epi8(two(codes, stride, 2), two(codes, stride, 3));
        __m256i c = _mm256_unpackhi_epi8(two(codes, stride, 0), two(codes, stride, 1));
        __m256i d = _mm256_unpackhi_epi8(two(codes, stride, 2), two(codes, stride, 3));

        x[0] = _mm256_unpacklo_epi16(a, b);
        x[1] = _mm256_unpackhi_epi16(a, b);
        x[2] = _mm256_unpacklo_epi16(c, d);
        x[3] = _mm256_unpackhi_epi16(c, d);
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            ret->levels[g][j] = levels_of(x[j % 4], j >= 4);
        }
    }
    ready_scales(scales, ret);
}

/* e * scale in 15 bits of the largest. Slots that the row does not see have no part in that: what
 * lies there may differ with the rows beside it. */
static inline void bring_weights(const float *e, int row, struct values *ret)
{
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5, 0, 1, 4, 5));
    __m256 largest = _mm256_setzero_ps();
    __m256 x[GROUPS];
    __m256 inverse;

    UNROLL_LOOP
    for (int g = 0; g < GROUPS; g++) {
        __m256 weight = _mm256_and_ps(_mm256_loadu_ps(e + GROUP * g), ret->there[g]);
        __m256 seen = _mm256_cmp_ps(weight, _mm256_setzero_ps(), _CMP_NEQ_UQ);

        x[g] = _mm256_and_ps(_mm256_mul_ps(weight, ret->scale[g]), seen);
        largest = _mm256_max_ps(largest, x[g]);
    }
    ret->factor[row] = largest_of(largest) * (1.0f / (float)LARGEST);
    inverse = _mm256_set1_ps(kv_int_part(1, ret->factor[row]));
    UNROLL_LOOP
    for (int g = 0; g < GROUPS; g += 2) { /* lower lanes: slots 0 to 3 and 8 to 11 */
        __m256i w = _mm256_packs_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x[g], inverse)),
                                       _mm256_cvtps_epi32(_mm256_mul_ps(x[g + 1], inverse)));

        UNROLL_LOOP
        for (int i = 0; i < 4; i++) {
            __m256i from = _mm256_add_epi8(pairs, _mm256_set1_epi8((char)(i % 2 * 2 + i / 2 * 8)));

            ret->weights[row][g + i / 2][i % 2] = _mm256_shuffle_epi8(w, from);
        }
    }
}

/* acc[0, 8) += factor * the sums of both lanes of a (dims 0 to 3) and b. */
static inline void add_lanes(__m256i a, __m256i b, float factor, float *acc)
{
    __m256i sum = _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                                   _mm256_permute2x128_si256(a, b, 0x31));

    _mm256_storeu_ps(acc, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_set1_ps(factor),
                                          _mm256_loadu_ps(acc)));
}

/* acc[0, 32) of `rows` pairs, v_pad floats apart. */
UNROLL_INLINE void add_values(int rows, const struct values *b, int32_t n_groups, float *acc,
                              size_t v_pad)
{
    for (int half = 0; half < 2; half++) {
        __m256i sum[ROWS_V][4];

        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            sum[r][0] = sum[r][1] = sum[r][2] = sum[r][3] = _mm256_setzero_si256();
        }
        for (int32_t g = 0; g < n_groups; g++) {
            UNROLL_LOOP
            for (int j = 0; j < 4; j++) {
                const __m256i level = b->levels[g][4 * half + j];
                const __m256i even = even_of(level);
                const __m256i odd = odd_of(level);

                UNROLL_LOOP
                for (int r = 0; r < rows; r++) {
                    sum[r][j] = dot(sum[r][j], even, odd, b->weights[r][g][0], b->weights[r][g][1]);
                }
            }
        }
        UNROLL_LOOP
        for (int r = 0; r < rows; r++) {
            float *to = acc + (size_t)r * v_pad + 16 * half;

            add_lanes(sum[r][0], sum[r][1], b->factor[r], to);
            add_lanes(sum[r][2], sum[r][3], b->factor[r], to + 8);
        }
    }
}

static __attribute__((noinline)) void values_1(const struct values *b, int32_t n_groups, float *acc,
                                               size_t v_pad)
{
    add_values(1, b, n_groups, acc, v_pad);
}

static __attribute__((noinline)) void values_2(const struct values *b, int32_t n_groups, float *acc,
                                               size_t v_pad)
{
    add_values(2, b, n_groups, acc, v_pad);
}

static __attribute__((noinline)) void values_3(const struct values *b, int32_t n_groups, float *acc,
                                               size_t v_pad)
{
    add_values(3, b, n_groups, acc, v_pad);
}

static void pv_g4_avx2int(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                          int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead)
{
    const size_t stride = stride_of(v_pad);
    const uint32_t due = kv_prefetch_share(ahead, stride * (size_t)n_slots, n_slots);
    const int32_t n_groups = (n_slots + GROUP - 1) / GROUP;
    const uint8_t *from = v;
    struct values page;

    for (int g = 0; g < GROUPS; g++) {
        page.there[g] = _mm256_castsi256_ps(_mm256_cmpgt_epi32(
            _mm256_set1_epi32(n_slots - GROUP * g), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
    }
    for (int32_t d = 0; d < v_pad; d += GAUSS4_BLOCK, from += sizeof(struct gauss4_block)) {
        bring_levels(from, stride, n_groups, &page, due, d == 0 ? ahead : NULL);
        for (int32_t done = 0, rows; done < n; done += rows) {
            float *to = acc + (size_t)done * (size_t)v_pad + d;

            rows = n - done < ROWS_V ? n - done : ROWS_V;
            for (int32_t r = 0; r < rows; r++) {
                bring_weights(e + (size_t)(done + r) * lde, r, &page);
            }
            if (rows == 3) {
                values_3(&page, n_groups, to, (size_t)v_pad);
            } else if (rows == 2) {
                values_2(&page, n_groups, to, (size_t)v_pad);
            } else {
                values_1(&page, n_groups, to, (size_t)v_pad);
            }
        }
    }
}

void x86_table_kv_avx2_int(struct cpu_table *t)
{
    CPU_TABLE_SET(t, query_i8, avx2int);
    CPU_TABLE_SET(t, query_g4, avx2int);
    CPU_TABLE_SET(t, qk_i8, avx2int);
    CPU_TABLE_SET(t, qk_g4, avx2int);
    CPU_TABLE_SET(t, pv_g4, avx2int);
}
