/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_SUMS_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_SUMS_CUH

/* Of the kernel of attention_stream.cu: the products of a tile of 16 slots by one warp, with keys
 * and with values, in each form. */

#include "kernels/cuda/attention_stream_part.cuh"

template <int FORM> CUDA_INLINE void stream_widen(uint32_t codes, uint32_t ret[2])
{
    if (FORM == STREAM_FP8) {
        half4_of_e4m3(codes, ret);
    } else {
        half4_of_s8(codes, ret);
    }
}

/* Keys of 8 bits as f16: four of rows g and g + 8 each, to factors of a product. */
template <int KF> CUDA_INLINE void stream_widen_keys(uint32_t a, uint32_t b, uint32_t f[4])
{
    uint32_t fa[2];
    uint32_t fb[2];

    stream_widen<KF>(a, fa);
    stream_widen<KF>(b, fb);
    f[0] = fa[0], f[1] = fb[0], f[2] = fa[1], f[3] = fb[1];
}

/* What is the same for all tiles. Bytes of a stage where this lane reads: */
struct stream_lane {
    int k;           /* K of row g, and k ^ 64: stream_at() of odd parts */
    int v[2];        /* V of the slots of rows 2t and 2t + 1; of 16 bits v[0] alone: */
                     /* there k and v[0] are rows of the matrices of matrix_load4() */
    int own;         /* slot of row g */
    float factor[2]; /* of heads 2t and 2t + 1: their products come to logits by it */
    float slope[2];
    bool plain; /* nothing but the scale between product and logit */
};

template <class SHAPE> CUDA_INLINE void stream_lane_places(struct stream_lane *n)
{
    using key = typename SHAPE::key;
    using value = typename SHAPE::value;
    int g = (int)threadIdx.x % WARP / 4;
    int t = (int)threadIdx.x % 4;

    n->own = stream_slot(g);
    static_assert(key::HALVES == value::HALVES, "v[0] is one or the other");
    if constexpr (key::HALVES) { /* lane 8 i + r: row r of matrix i */
        int i = (int)threadIdx.x % WARP / 8;
        int slot = stream_slot((int)threadIdx.x % 8);

        /* not made anew for each tile: registers are there */
        n->k = anew(stream_at<key>(slot + i % 2 * 8, i / 2));
        n->v[0] = anew(stream_at<value>(slot + i / 2 * 8, i % 2));
    } else {
        n->k = key::FOUR ? stream_at<key>(n->own, 0) + t * 4 : stream_at<key>(n->own, t);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int slot = stream_slot(2 * t + j);

            n->v[j] = value::FOUR ? stream_at<value>(slot, 0) + g * 2 : stream_at<value>(slot, g);
        }
    }
}

/* x[i]: products of slot stream_slot(g) + i / 2 * 8 and head 2t + i % 2. */
template <class SHAPE>
CUDA_INLINE void stream_sum_keys_four(const uint8_t *at, const struct stream_lane *lane,
                                      const uint4 *q, float x[4])
{
    using key = typename SHAPE::key;
    const uint8_t *from = at + lane->k;
    const uint16_t *scales =
        reinterpret_cast<const uint16_t *>(at + SHAPE::K_SCALES_AT) + lane->own * key::PARTS;

#pragma unroll
    for (int u = 0; u < key::PARTS; u++) { /* a block, whose sums its scale multiplies */
        float c[4] = {};
        uint32_t a[4];
        uint32_t b[4];

        four_halves(*reinterpret_cast<const uint32_t *>(from + u * 16), a);
        four_halves(*reinterpret_cast<const uint32_t *>(from + u * 16 + 8 * key::ROW), b);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            uint4 w = q[(u * 2 + i) * WARP + (int)threadIdx.x % WARP];
            uint32_t f[4] = {a[2 * i], b[2 * i], a[2 * i + 1], b[2 * i + 1]};
            uint32_t first[2] = {w.x, w.y};
            uint32_t second[2] = {w.z, w.w};

            mma_half<false>(c, f, first);
            mma_half<false>(c, f, second);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float scale = f32_of_f16(scales[i / 2 * 8 * key::PARTS + u]);

            x[i] = u == 0 ? c[i] * scale : x[i] + c[i] * scale;
        }
    }
}

/* A lane's factors of the queries: in shared memory from `at` on, or held in registers. */
template <class SHAPE> struct stream_queries {
    const uint4 *at;
    uint4 two[SHAPE::HELD ? SHAPE::STEPS : 1]; /* of a step, the first two pieces */
    uint2 third[SHAPE::HELD ? SHAPE::STEPS : 1];
};

template <class SHAPE>
CUDA_INLINE void stream_queries_read(const uint4 *at, int u, uint4 *two, uint2 *third)
{
    int i = u * WARP + (int)threadIdx.x % WARP;

    *two = at[i];
    if (SHAPE::PIECES > 2) {
        *third = reinterpret_cast<const uint2 *>(at + SHAPE::STEPS * WARP)[i];
    }
}

template <class SHAPE>
CUDA_INLINE void stream_queries_of(const uint4 *at, struct stream_queries<SHAPE> *q)
{
    q->at = at;
#pragma unroll
    for (int u = 0; u < SHAPE::STEPS && SHAPE::HELD; u++) {
        stream_queries_read<SHAPE>(at, u, &q->two[u], &q->third[u]);
    }
}

/* c += products of 16 slots and 16 dims, `f`, and of step `u` of the queries. */
template <class SHAPE>
CUDA_INLINE void stream_add_keys(float c[SHAPE::PIECES][4], const uint32_t f[4],
                                 const struct stream_queries<SHAPE> *q, int u)
{
    uint4 w;
    uint2 v;

    if constexpr (SHAPE::HELD) {
        w = q->two[u];
        v = q->third[u];
    } else {
        stream_queries_read<SHAPE>(q->at, u, &w, &v);
    }
    uint32_t first[2] = {w.x, w.y};
    uint32_t second[2] = {w.z, w.w};

    mma_half<SHAPE::BF16>(c[0], f, first);
    mma_half<SHAPE::BF16>(c[1], f, second);
    if constexpr (SHAPE::PIECES > 2) {
        uint32_t last[2] = {v.x, v.y};

        mma_half<SHAPE::BF16>(c[2], f, last);
    }
}

/* The same of keys of 16 or 8 bits. */
template <int KF, class SHAPE>
CUDA_INLINE void stream_sum_keys(const uint8_t *at, const struct stream_lane *lane,
                                 const struct stream_queries<SHAPE> *q, float x[4])
{
    using key = typename SHAPE::key;
    float c[SHAPE::PIECES][4] = {};
    uint32_t f[4];

    if constexpr (key::HALVES) {
#pragma unroll
        for (int u = 0; u < SHAPE::STEPS; u++) {
            matrix_load4<false>(at + (lane->k ^ u % 4 * 32) + u / 4 * 128, f);
            stream_add_keys<SHAPE>(c, f, q, u);
        }
    } else {
        const uint8_t *even = at + lane->k;
        const uint8_t *odd = at + (lane->k ^ 64);

#pragma unroll
        for (int u = 0; u < SHAPE::K_LOADS; u++) {
            const uint8_t *from = (u % 2 ? odd : even) + u / 2 * 128;
            uint4 a = *reinterpret_cast<const uint4 *>(from);
            uint4 b = *reinterpret_cast<const uint4 *>(from + 8 * key::ROW);
            uint32_t wa[4] = {a.x, a.y, a.z, a.w};
            uint32_t wb[4] = {b.x, b.y, b.z, b.w};

#pragma unroll
            for (int i = 0; i < 4; i++) {
                stream_widen_keys<KF>(wa[i], wb[i], f);
                stream_add_keys<SHAPE>(c, f, q, u * 4 + i);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = c[0][i] + c[1][i];
        if constexpr (SHAPE::PIECES > 2) {
            x[i] += c[2][i];
        }
    }
}

/* Values of 8 bits of one load as f16 pairs of two slots: f[i] are factors of the product of dims
 * 2 i and 2 i + 1 of a lane's part. */
template <int VF>
CUDA_INLINE void stream_widen_values(const uint32_t w[4][4], int i, uint32_t f[2][4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) { /* of slots of rows 2t, 2t + 1 and 2t + 8, 2t + 9 */
        uint32_t pair[2];

        stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x5140), pair);
        f[0][2 * j] = pair[0], f[0][2 * j + 1] = pair[1];
        stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x7362), pair);
        f[1][2 * j] = pair[0], f[1][2 * j + 1] = pair[1];
    }
}

/* acc += weights times values of four bits: a block's products have its scales in their weights,
 * rounded once to f16; levels are exact. `scale`: of the slots of rows g and g + 8, by blocks. */
template <class SHAPE>
CUDA_INLINE void stream_sum_values_four(const uint8_t *at, const struct stream_lane *lane,
                                        const float x[4], const float scale[2][SHAPE::value::PARTS],
                                        float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;

#pragma unroll
    for (int u = 0; u < value::PARTS; u++) {
        uint32_t weight[2];
        uint32_t f[2][4];

#pragma unroll
        for (int j = 0; j < 2; j++) { /* slots of rows 2t, 2t + 1, then of 2t + 8, 2t + 9 */
            const uint8_t *from = at + u * 16 + j * 8 * value::ROW;
            uint32_t a = *reinterpret_cast<const uint16_t *>(from + lane->v[0]);
            uint32_t b = *reinterpret_cast<const uint16_t *>(from + lane->v[1]);
            uint32_t h[4];

            weight[j] = matrix_turn(
                half2_of_f32<false>(x[2 * j] * scale[j][u], x[2 * j + 1] * scale[j][u]));
            four_halves(__byte_perm(a, b, 0x5140), h);
            f[0][2 * j] = h[0], f[0][2 * j + 1] = h[1];
            f[1][2 * j] = h[2], f[1][2 * j + 1] = h[3];
        }
        mma_half<false>(acc[2 * u], f[0], weight);
        mma_half<false>(acc[2 * u + 1], f[1], weight);
    }
}

/* acc += weights times values of 16 or 8 bits. */
template <int VF, class SHAPE>
CUDA_INLINE void stream_sum_values(const uint8_t *at, const struct stream_lane *lane,
                                   const float x[4], float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;
    uint32_t weight[2][2]; /* piece, half of the slots */

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t w = half2_of_f32<SHAPE::BF16>(x[2 * i], x[2 * i + 1]);
        float lo = x[2 * i] - f32_of_half<SHAPE::BF16>(w & 0xffff);
        float hi = x[2 * i + 1] - f32_of_half<SHAPE::BF16>(w >> 16);

        weight[0][i] = matrix_turn(w);
        weight[1][i] = matrix_turn(half2_of_f32<SHAPE::BF16>(lo, hi));
    }
    if constexpr (value::HALVES) { /* acc[u][i]: dim 16 u + i / 2 * 8 + g */
#pragma unroll
        for (int u = 0; u < SHAPE::SUMS; u++) {
            uint32_t f[4];

            matrix_load4<true>(at + (lane->v[0] ^ u % 4 * 32) + u / 4 * 128, f);
            mma_half<SHAPE::BF16>(acc[u], f, weight[0]);
            mma_half<SHAPE::BF16>(acc[u], f, weight[1]);
        }
    } else {
#pragma unroll
        for (int r = 0; r < SHAPE::V_LOADS; r++) {
            uint32_t w[4][4];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                uint4 v = *reinterpret_cast<const uint4 *>(at + lane->v[j % 2] + r * 128 +
                                                           j / 2 * 8 * value::ROW);
                w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t f[2][4];

                stream_widen_values<VF>(w, i, f);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    mma_half<SHAPE::BF16>(acc[((r * 4 + i) * 2 + n % 2) % SHAPE::SUMS], f[n % 2],
                                          weight[n / 2]);
                }
            }
        }
    }
}

#endif
