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

/* A lane's part of keys as f16: of rows g and g + 8, `words` of each, to factors of products. */
template <int KF>
CUDA_INLINE void stream_widen_keys(const uint32_t wa[4], const uint32_t wb[4], int i, uint32_t f[4])
{
    if (KF == STREAM_FP8 || KF == STREAM_I8) {
        uint32_t fa[2];
        uint32_t fb[2];

        stream_widen<KF>(wa[i], fa);
        stream_widen<KF>(wb[i], fb);
        f[0] = fa[0], f[1] = fb[0], f[2] = fa[1], f[3] = fb[1];
    } else {
        f[0] = wa[2 * i % 4], f[1] = wb[2 * i % 4];
        f[2] = wa[2 * i % 4 + 1], f[3] = wb[2 * i % 4 + 1];
    }
}

/* x[i]: products of slot stream_slot(g) + i / 2 * 8 and head 2t + i % 2. Of four bits a load is a
 * block, whose sum its scale multiplies. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_products(const uint8_t *at, const uint2 *q, float x[4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    int lane = (int)threadIdx.x % WARP;
    int row = stream_slot(lane / 4);
    float c[shape::PIECES][4] = {};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = 0;
    }
#pragma unroll
    for (int u = 0; u < shape::K_LOADS; u++) {
        uint32_t wa[4];
        uint32_t wb[4];

        if (key::FOUR) {
            const uint8_t *from = at + stream_at<key>(row, u) + lane % 4 * 4;

            four_levels(*reinterpret_cast<const uint32_t *>(from), wa);
            four_levels(*reinterpret_cast<const uint32_t *>(from + 8 * key::ROW), wb);
        } else {
            const uint8_t *from = at + stream_at<key>(row, u * 4 + lane % 4);
            uint4 a = *reinterpret_cast<const uint4 *>(from);
            uint4 b = *reinterpret_cast<const uint4 *>(from + 8 * key::ROW);

            wa[0] = a.x, wa[1] = a.y, wa[2] = a.z, wa[3] = a.w;
            wb[0] = b.x, wb[1] = b.y, wb[2] = b.z, wb[3] = b.w;
        }
#pragma unroll
        for (int i = 0; i < key::VEC / 4; i++) {
            uint32_t f[4];

            stream_widen_keys<KF>(wa, wb, i, f);
#pragma unroll
            for (int n = 0; n < shape::PIECES; n++) {
                uint2 w = q[((u * (key::VEC / 4) + i) * shape::PIECES + n) * WARP + lane];
                uint32_t h[2] = {w.x, w.y};

                mma_half<shape::BF16>(c[n], f, h);
            }
        }
        if (key::FOUR) {
            const uint16_t *scales =
                reinterpret_cast<const uint16_t *>(at + shape::K_SCALES_AT) + row * key::PARTS + u;

#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] += (c[0][i] + c[1][i]) * f32_of_f16(scales[i / 2 * 8 * key::PARTS]);
                c[0][i] = 0;
                c[1][i] = 0;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 && !key::FOUR; i++) {
        x[i] = c[0][i] + c[1][i];
        if (shape::PIECES > 2) {
            x[i] += c[shape::PIECES - 1][i];
        }
    }
}

/* What a warp keeps of heads 2t and 2t + 1. Sums of weights are the lane's own, over its slots.
 * Of codes, weights are multiplied by a slot's scale of V and
 * divided by `unit`, a power of two near the largest of those, so that f16 holds them. */
struct stream_state {
    float top[2], sum[2];
    float unit;
};

CUDA_INLINE float stream_max_slots(float x) /* over the lanes that share t */
{
    for (int m = 4; m < WARP; m <<= 1) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

/* x becomes weights. */
template <int SUMS>
CUDA_INLINE void stream_weights(struct stream_state *st, float x[4], float acc[SUMS][4])
{
    float factor[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(st->top[h], stream_max_slots(fmaxf(x[h], x[2 + h])));

        factor[h] = top == st->top[h] ? 1.0f : expf(st->top[h] - top);
        st->top[h] = top;
    }
    if (__any_sync(ALL_LANES, factor[0] != 1 || factor[1] != 1)) {
        st->sum[0] *= factor[0];
        st->sum[1] *= factor[1];
#pragma unroll
        for (int i = 0; i < SUMS * 4; i++) {
            acc[i / 4][i % 4] *= factor[i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = x[i] > -INFINITY ? expf(x[i] - st->top[i % 2]) : 0.0f;
        st->sum[i % 2] += x[i];
    }
}

CUDA_INLINE float stream_inverse(float power_of_2)
{
    return __uint_as_float(0x7f000000 - __float_as_uint(power_of_2));
}

/* The weights times the scales of V. */
template <int SUMS>
CUDA_INLINE void stream_scale_values(struct stream_state *st, const float scale[2], float x[4],
                                     float acc[SUMS][4])
{
    float top = fmaxf(scale[0], scale[1]);

    if (__any_sync(ALL_LANES, top >= 2 * st->unit)) {
        float unit = __uint_as_float(__float_as_uint(warp_max(top)) & 0x7f800000);
        float factor = st->unit * stream_inverse(unit);

        st->unit = unit;
#pragma unroll
        for (int i = 0; i < SUMS * 4; i++) {
            acc[i / 4][i % 4] *= factor;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] *= scale[i / 2] * stream_inverse(st->unit);
    }
}

/* Values of one load as f16 pairs of two slots: f[i] are factors of the product of dims 2 i and
 * 2 i + 1 of a lane's part. */
template <int VF>
CUDA_INLINE void stream_widen_values(const uint32_t w[4][4], int i, uint32_t f[2][4])
{
    if (VF == STREAM_FP8 || VF == STREAM_I8) {
#pragma unroll
        for (int j = 0; j < 2; j++) { /* of slots of rows 2t, 2t + 1 and 2t + 8, 2t + 9 */
            uint32_t pair[2];

            stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x5140), pair);
            f[0][2 * j] = pair[0], f[0][2 * j + 1] = pair[1];
            stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x7362), pair);
            f[1][2 * j] = pair[0], f[1][2 * j + 1] = pair[1];
        }
    } else {
        f[0][0] = __byte_perm(w[0][i], w[1][i], 0x5410);
        f[0][1] = __byte_perm(w[0][i], w[1][i], 0x7632);
        f[0][2] = __byte_perm(w[2][i], w[3][i], 0x5410);
        f[0][3] = __byte_perm(w[2][i], w[3][i], 0x7632);
    }
}

/* The same of four bits, one word of each slot: four products. `scale`: of the slots of rows 2t and
 * 2t + 1, 2t + 8 and 2t + 9. */
CUDA_INLINE void stream_four_values(const uint32_t w[4], const uint32_t scale[2], uint32_t f[4][4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a = w[2 * j];
        uint32_t b = w[2 * j + 1];
        uint32_t even[4];
        uint32_t odd[4];

        four_levels((a & 0x0f0f0f0f) | (b << 4 & 0xf0f0f0f0), even);
        four_levels((a >> 4 & 0x0f0f0f0f) | (b & 0xf0f0f0f0), odd);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[i][2 * j] = half2_product(even[i], scale[j]);
            f[i][2 * j + 1] = half2_product(odd[i], scale[j]);
        }
    }
}

/* acc += weights times values of four bits. */
template <class SHAPE>
CUDA_INLINE void stream_sum_four(const uint8_t *at, const uint8_t *scales_at,
                                 const uint32_t weight[2][2], const uint32_t seen[2],
                                 float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;
    constexpr int WORDS = SHAPE::V_VEC / 8;
    int lane = (int)threadIdx.x % WARP;
    int byte = lane / 4 * WORDS * 4; /* of the row: the lane's */
    uint32_t w[4][WORDS];
    uint32_t scale[2] = {0, 0};

#pragma unroll
    for (int j = 0; j < 4; j++) {
        int g = lane % 4 * 2 + j % 2;
        int slot = stream_slot(g) + j / 2 * 8;
        const uint8_t *from = at + stream_at<value>(slot, byte / 16) + byte % 16;
        uint32_t s = reinterpret_cast<const uint16_t *>(scales_at)[slot * value::PARTS + byte / 16];

        /* what nobody sees may be anything; 515.5 times 127 is what f16 holds */
        s = seen[j / 2] >> (g * 4) & 1 ? min(s, 0x6007u) : 0u;
        scale[j / 2] |= s << (j % 2 * 16);
        if constexpr (WORDS == 4) {
            uint4 v = *reinterpret_cast<const uint4 *>(from);

            w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
        } else if constexpr (WORDS == 2) {
            uint2 v = *reinterpret_cast<const uint2 *>(from);

            w[j][0] = v.x, w[j][1] = v.y;
        } else {
            w[j][0] = *reinterpret_cast<const uint32_t *>(from);
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint32_t own[4] = {w[0][i], w[1][i], w[2][i], w[3][i]};
        uint32_t f[4][4];

        stream_four_values(own, scale, f);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            mma_half<false>(acc[i * 4 + k], f[k], weight[0]);
            mma_half<false>(acc[i * 4 + k], f[k], weight[1]);
        }
    }
}

/* acc += weights times values of 16 or 8 bits. */
template <int VF, class SHAPE>
CUDA_INLINE void stream_sum_values(const uint8_t *at, const uint32_t weight[2][2],
                                   float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;
    constexpr int TURNS = value::VEC / 8; /* products of 2 dims of a word */
    int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int r = 0; r < SHAPE::V_LOADS; r++) {
        uint32_t w[4][4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            int slot = stream_slot(lane % 4 * 2 + j % 2) + j / 2 * 8;
            uint4 v = *reinterpret_cast<const uint4 *>(
                at + stream_at<value>(slot, r * 8 + lane / 4));
            w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t f[2][4];

            stream_widen_values<VF>(w, i, f);
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int k = 0; k < TURNS; k++) {
                    mma_half<SHAPE::BF16>(acc[((r * 4 + i) * TURNS + k) % SHAPE::SUMS], f[k],
                                          weight[n]);
                }
            }
        }
    }
}

/* acc += weights times values. `seen`: lanes whose first slot (seen[0]), second (seen[1]) is
 * visible. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_values(uint8_t *at, const uint8_t *scales_at, const float x[4],
                               const uint32_t seen[2],
                               float acc[stream_shape<KF, VF, DIM>::SUMS][4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using value = typename shape::value;
    int lane = (int)threadIdx.x % WARP;
    uint32_t weight[2][2]; /* piece, half of the slots */

    if (!value::FOUR && (seen[0] & seen[1]) != ALL_LANES) { /* unseen may be anything: 0 */
#pragma unroll 1
        for (int g = 0; g < STREAM_TILE; g++) {
            if (!((g < 8 ? seen[0] : seen[1]) >> (g % 8 * 4) & 1) && lane < value::PARTS) {
                *reinterpret_cast<uint4 *>(
                    at + stream_at<value>(stream_slot(g % 8) + g / 8 * 8, lane)) =
                    make_uint4(0, 0, 0, 0);
            }
        }
        __syncwarp(); /* zeros: written by some lanes, read by all */
    }

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t w = half2_of_f32<shape::BF16>(x[2 * i], x[2 * i + 1]);
        float lo = x[2 * i] - f32_of_half<shape::BF16>(w & 0xffff);
        float hi = x[2 * i + 1] - f32_of_half<shape::BF16>(w >> 16);

        weight[0][i] = matrix_turn(w);
        weight[1][i] = matrix_turn(half2_of_f32<shape::BF16>(lo, hi));
    }
    if constexpr (value::FOUR) {
        stream_sum_four<shape>(at, scales_at, weight, seen, acc);
    } else {
        stream_sum_values<VF, shape>(at, weight, acc);
    }
}

template <int KF, int VF, int DIM>
CUDA_INLINE void stream_tile(const struct attend *p, const struct stream_block *b, int32_t tile,
                             uint8_t *at, const uint2 *q, const float factor[2],
                             const float slope[2], struct stream_state *st,
                             float acc[stream_shape<KF, VF, DIM>::SUMS][4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    using value = typename shape::value;
    int lane = (int)threadIdx.x % WARP;
    int first = stream_slot(lane / 4);
    int32_t row_pos = b->s->pos0;
    int32_t pos[2];
    bool visible[2];
    bool elsewhere[2] = {false, false};
    float v_scale[2];
    uint32_t seen[2];
    float x[4];

    stream_products<KF, VF, DIM>(at, q, x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int own = first + i * 8;
        int32_t slot = tile * STREAM_TILE + own;
        const uint16_t *k_scales = reinterpret_cast<const uint16_t *>(at + shape::K_SCALES_AT);
        const uint16_t *v_scales = reinterpret_cast<const uint16_t *>(at + shape::V_SCALES_AT);
        float k_scale = key::CODES ? key::UNIT * f32_of_f16(k_scales[own]) : 1.0f;

        pos[i] = b->s->slot_pos ? reinterpret_cast<const int32_t *>(at + shape::POS_AT)[own] : slot;
        pos[i] = slot < b->s->n_slots ? pos[i] : -1;
        if (value::FOUR) {
            elsewhere[i] = latest_has(b->s, row_pos, pos[i]);
            pos[i] = elsewhere[i] ? -1 : pos[i];
        }
        visible[i] = kv_visible(pos[i], row_pos, p->window);
        seen[i] = __ballot_sync(ALL_LANES, visible[i]);
        v_scale[i] = value::CODES && visible[i] ? f32_of_f16(v_scales[own]) : 0.0f;
        x[2 * i] *= factor[0] * k_scale;
        x[2 * i + 1] *= factor[1] * k_scale;
    }
    if (p->softcap > 0 || p->alibi_max > 0) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { /* in turn through x[0]: one copy of the code */
            float v = attend_logit(p, x[0], i % 2 ? slope[1] : slope[0], i / 2 ? pos[1] : pos[0],
                                   row_pos);

            x[0] = x[1];
            x[1] = x[2];
            x[2] = x[3];
            x[3] = v;
        }
    } else { /* the same, shorter */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = visible[i / 2] ? fminf(fmaxf(p->scale * x[i], -1e30f), 1e30f) : -INFINITY;
        }
    }
    if (b->observed) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t head = lane % 4 * 2 + h;
            float *to = p->logits + (size_t)(b->seq * p->n_q + b->head0 + head) * p->max_slots +
                        tile * STREAM_TILE + first;

            if (head < b->n_heads && !elsewhere[0]) {
                to[0] = x[h];
            }
            if (head < b->n_heads && !elsewhere[1]) {
                to[8] = x[2 + h];
            }
        }
    }
    stream_weights<shape::SUMS>(st, x, acc);
    if (value::CODES) {
        stream_scale_values<shape::SUMS>(st, v_scale, x, acc);
    }
    if (!shape::BF16) { /* what is left of a weight after f16 is far from its smallest */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= 16384.0f;
        }
    }
    stream_values<KF, VF, DIM>(at + shape::V_AT, at + shape::V_SCALES_AT, x, seen, acc);
}

#endif
