/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_TILE_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_TILE_CUH

/* Of the kernel of attention_stream.cu: what a warp does with a tile of 16 slots. */

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

/* What a warp keeps of heads 2t and 2t + 1. Sums of weights are the lane's own, over its slots.
 * Weights are e^(logit - top), where a logit may be up to ABOVE larger than top, so that most tiles
 * leave top as it is. For products of f16 they are multiplied by 2^14: what is left of one after
 * f16 is far from f16's smallest. Of codes they are multiplied by V's scales, too, and divided by a
 * power of two that is larger than half of all scales: as f16 they stay below 2^15 e^ABOVE. */
#define STREAM_ABOVE 0.5f
struct stream_state {
    float top[2], sum[2];
    float unit;  /* the power of two */
    float times; /* 2^14 over it */
};

CUDA_INLINE float stream_max_slots(float x) /* over the lanes that share t */
{
    for (int m = 4; m < WARP; m <<= 1) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

CUDA_INLINE float stream_inverse(float power_of_2)
{
    return __uint_as_float(0x7f000000 - __float_as_uint(power_of_2));
}

/* Larger logits, or scales up to `scale`: other tops, another unit. */
template <int SUMS>
CUDA_INLINE void stream_grow(struct stream_state *st, const float x[4], float scale,
                             float acc[SUMS][4])
{
    float factor[2];
    float units = 1.0f;

    if (__any_sync(ALL_LANES, scale >= 2 * st->unit)) {
        float unit = __uint_as_float(__float_as_uint(warp_max(scale)) & 0x7f800000);

        units = st->unit * stream_inverse(unit);
        st->unit = unit;
        st->times = 16384.0f * stream_inverse(unit);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(st->top[h], stream_max_slots(fmaxf(x[h], x[2 + h])));

        factor[h] = top == st->top[h] ? 1.0f : expf(st->top[h] - top);
        st->top[h] = top;
        st->sum[h] *= factor[h];
        factor[h] *= units;
    }
#pragma unroll
    for (int i = 0; i < SUMS * 4; i++) {
        acc[i / 4][i % 4] *= factor[i % 2];
    }
}

/* x becomes weights. `scale`: the largest of V's that multiply them, or 0. */
template <int SUMS>
CUDA_INLINE void stream_weights(struct stream_state *st, float x[4], float scale,
                                float acc[SUMS][4])
{
    if (__any_sync(ALL_LANES, fmaxf(x[0], x[2]) > st->top[0] + STREAM_ABOVE ||
                                  fmaxf(x[1], x[3]) > st->top[1] + STREAM_ABOVE ||
                                  scale >= 2 * st->unit)) {
        stream_grow<SUMS>(st, x, scale, acc);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = exp2_about((x[i] - st->top[i % 2]) * 1.44269504f);
        st->sum[i % 2] += x[i];
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

/* Of a tile of which some slots are not seen (`seen`: lanes whose first, whose second is): they may
 * hold anything, which becomes 0. */
template <class SHAPE> CUDA_INLINE void stream_clear_unseen(uint8_t *at, const uint32_t seen[2])
{
    using value = typename SHAPE::value;
    int lane = (int)threadIdx.x % WARP;

#pragma unroll 1
    for (int g = 0; g < STREAM_TILE; g++) {
        int slot = stream_slot(g % 8) + g / 8 * 8;

        if ((g < 8 ? seen[0] : seen[1]) >> (g % 8 * 4) & 1) {
            continue;
        }
        if (!value::FOUR && lane < value::PARTS) {
            *reinterpret_cast<uint4 *>(at + SHAPE::V_AT + stream_at<value>(slot, lane)) =
                make_uint4(0, 0, 0, 0);
        }
        if (value::SCALES && lane < value::SCALES / (2 * STREAM_TILE)) {
            reinterpret_cast<uint16_t *>(
                at + SHAPE::V_SCALES_AT)[slot * (value::SCALES / (2 * STREAM_TILE)) + lane] = 0;
        }
    }
    __syncwarp(); /* zeros: written by some lanes, read by all */
}

/* Logits of a tile that is not wholly seen, or not by the scale alone. False: none is seen. */
template <class SHAPE>
CUDA_INLINE bool stream_logits(const struct attend *p, const struct stream_block *b,
                               const struct stream_lane *lane, int32_t tile, uint8_t *at,
                               float x[4])
{
    int32_t pos[2];
    bool visible[2];
    bool elsewhere[2];
    uint32_t seen[2];

#pragma unroll
    for (int i = 0; i < 2; i++) {
        int own = lane->own + i * 8;
        int32_t slot = tile * STREAM_TILE + own;

        pos[i] = b->s->slot_pos ? reinterpret_cast<const int32_t *>(at + SHAPE::POS_AT)[own] : slot;
        pos[i] = slot < b->n_slots ? pos[i] : -1;
        visible[i] = (uint32_t)(pos[i] - b->seen_from) < (uint32_t)b->n_seen;
        elsewhere[i] = SHAPE::value::FOUR && pos[i] >= 0 && latest_has(b->s, b->pos0, pos[i]);
        seen[i] = __ballot_sync(ALL_LANES, visible[i]);
    }
    if (!lane->plain) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { /* in turn through x[0]: one copy of the code */
            float v = attend_logit(p, x[0], i % 2 ? lane->slope[1] : lane->slope[0],
                                   i / 2 ? pos[1] : pos[0], b->pos0);

            x[0] = x[1];
            x[1] = x[2];
            x[2] = x[3];
            x[3] = v;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = visible[i / 2] ? x[i] : -INFINITY;
    }
    if (b->observed) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t head = (int)threadIdx.x % 4 * 2 + h;
            float *to = p->logits + (size_t)(b->seq * p->n_q + b->head0 + head) * p->max_slots +
                        tile * STREAM_TILE + lane->own;

            if (head < b->n_heads && !elsewhere[0]) {
                to[0] = x[h];
            }
            if (head < b->n_heads && !elsewhere[1]) {
                to[8] = x[2 + h];
            }
        }
    }
    if ((seen[0] | seen[1]) == 0) {
        return false;
    }
    if ((seen[0] & seen[1]) != ALL_LANES) {
        stream_clear_unseen<SHAPE>(at, seen);
    }
    return true;
}

template <int KF, int VF, int DIM>
CUDA_INLINE void stream_tile(const struct attend *p, const struct stream_block *b, int32_t tile,
                             uint8_t *at, const struct stream_queries<stream_shape<KF, VF, DIM>> *q,
                             const struct stream_lane *lane, struct stream_state *st,
                             float acc[stream_shape<KF, VF, DIM>::SUMS][4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    using value = typename shape::value;
    constexpr int V_SCALES = value::FOUR ? value::PARTS : 1; /* of a slot */
    const uint16_t *k_scales = reinterpret_cast<const uint16_t *>(at + shape::K_SCALES_AT);
    const uint16_t *v_scales = reinterpret_cast<const uint16_t *>(at + shape::V_SCALES_AT);
    float v_scale[2][V_SCALES];
    float most = 0; /* of V's scales, or more */
    float x[4];

    if constexpr (key::FOUR) {
        stream_sum_keys_four<shape>(at, lane, q->at, x);
    } else {
        stream_sum_keys<KF, shape>(at, lane, q, x);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] *= lane->factor[i % 2];
        x[i] *= key::CODES ? f32_of_f16(k_scales[lane->own + i / 2 * 8]) : 1.0f;
        x[i] = lane->plain ? fminf(fmaxf(x[i], -1e30f), 1e30f) : x[i];
    }
    if (b->ragged || tile < b->tile_whole || tile >= b->tile_whole_end) {
        if (!stream_logits<shape>(p, b, lane, tile, at, x)) {
            return;
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * V_SCALES && value::SCALES > 0; i++) {
        float scale =
            f32_of_f16(v_scales[(lane->own + i / V_SCALES * 8) * V_SCALES + i % V_SCALES]);

        v_scale[i / V_SCALES][i % V_SCALES] = scale;
        most = value::FOUR ? most + scale : fmaxf(most, scale);
    }
    stream_weights<shape::SUMS>(st, x, most, acc);
#pragma unroll
    for (int i = 0; i < 4 && !shape::BF16; i++) {
        x[i] *= value::CODES ? st->times * v_scale[i / 2][0] : st->times;
    }
    if constexpr (value::FOUR) {
        stream_sum_values_four<shape>(at + shape::V_AT, lane, x, v_scale, acc);
    } else {
        stream_sum_values<VF, shape>(at + shape::V_AT, lane, x, acc);
    }
}

#endif
