/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_TILE_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_TILE_CUH

/* Of the kernel of attention_stream.cu: what a warp does with a tile of 16 slots:
 * logits, weights, sums. */

#include "kernels/cuda/attention_stream_sums.cuh"

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
