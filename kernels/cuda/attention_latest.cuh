/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_LATEST_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_LATEST_CUH

/* A part of a decode row's sums: the latest tokens of a cache of four bits, which lie in 8 bits
 * elsewhere (ops_kv.latest). 32 positions in f32, beside the chunks of a row in the same launch,
 * which must not wait for it: all codes and queries are asked for at once and come to shared
 * memory, then a warp takes a head, a lane a position of K and a word of V. Where slots are no
 * positions, the block looks through all of them for the positions. Included by
 * attention_stream_part.cuh, behind struct stream_block. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_four.cuh"

/* The slots of the latest tokens by position, -1: none. `slots`: shared (OPS_LATEST). */
CUDA_INLINE void stream_find_latest(const struct cuda_seq *s, int32_t group, int32_t *slots)
{
    int32_t first = s->pos0 - OPS_LATEST + 1;
    int32_t tid = (int32_t)threadIdx.x;

    if (tid < OPS_LATEST) {
        int32_t pos = first + tid;

        slots[tid] =
            !s->slot_pos && pos >= 0 && pos < s->n_slots && latest_has(s, s->pos0, pos) ? pos : -1;
    }
    __syncthreads(); /* slots: written by a warp, by others below */
    for (int32_t i = tid; i < s->n_slots && s->latest && s->slot_pos; i += (int32_t)blockDim.x) {
        int32_t pos = kv_pos(s, group, i);

        if (pos >= 0 && latest_has(s, s->pos0, pos)) {
            slots[pos - first] = i;
        }
    }
    __syncthreads(); /* slots: written by some, read by all */
}

/* Heads of up to DIM in shared memory: rows of words, an odd number of them apart. */
template <int DIM> struct stream_latest_memory {
    int32_t slots[OPS_LATEST];
    float k_scale[OPS_LATEST], v_scale[OPS_LATEST];
    float weight[STREAM_HEADS][OPS_LATEST];
    float q[STREAM_HEADS][DIM];
    uint32_t k[OPS_LATEST][DIM / 4 + 1], v[OPS_LATEST][DIM / 4 + 1];
};

CUDA_INLINE float stream_byte(uint32_t word, int i) /* a signed one */
{
    return __uint_as_float(__byte_perm(word ^ 0x80808080, 0x4b000000, 0x7540 | i)) - 8388736.0f;
}

/* K and V of the positions i = warp, warp + n_warps, ...; 0 where there is no slot. */
template <int DIM>
CUDA_INLINE void stream_latest_bring(const struct attend *p, const struct stream_block *b,
                                     struct stream_latest_memory<DIM> *m)
{
    constexpr int LOADS = DIM / 2 / WARP; /* of two bytes */
    constexpr int ROWS = OPS_LATEST / STREAM_WARPS_MAX;
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = b->s;
    int lane = (int)threadIdx.x % WARP;
    int warps = (int)blockDim.x / WARP;

#pragma unroll 1
    for (int i0 = (int)threadIdx.x / WARP; i0 < OPS_LATEST; i0 += warps * ROWS) {
        uint16_t k[ROWS][LOADS];
        uint16_t v[ROWS][LOADS];
        uint16_t scale[ROWS];

#pragma unroll
        for (int r = 0; r < ROWS; r++) { /* on their way together */
            int i = i0 + r * warps;
            int32_t pos = b->pos0 - OPS_LATEST + 1 + i;
            int32_t slot = i < OPS_LATEST ? m->slots[i] : -1;
            const uint16_t *k_from = NULL;
            const uint16_t *v_from = NULL;
            const uint16_t *k_scale = NULL;

            if (slot >= 0) {
                v_from = reinterpret_cast<const uint16_t *>(
                    latest_head(l, s, b->group, pos, false, b->k_head));
                if (kv_four(l->k_type)) {
                    k_from = reinterpret_cast<const uint16_t *>(
                        latest_head(l, s, b->group, pos, true, b->k_head));
                    k_scale = k_from + l->k_dim / 2;
                } else {
                    uint8_t *page = kv_page(l, s, b->group, slot);

                    k_from = reinterpret_cast<const uint16_t *>(kv_k_row(l, page, b->k_head, slot));
                    k_scale = kv_scale(page, l->k_scale_at, b->k_head, slot);
                }
            }
#pragma unroll
            for (int j = 0; j < LOADS; j++) {
                int at = lane + j * WARP;

                k[r][j] = slot >= 0 && at * 2 < l->k_dim ? k_from[at] : (uint16_t)0;
                v[r][j] = slot >= 0 && at * 2 < l->v_dim ? v_from[at] : (uint16_t)0;
            }
            scale[r] = slot >= 0 && lane < 2 ? *(lane == 0 ? k_scale : v_from + l->v_dim / 2)
                                             : (uint16_t)0;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int i = i0 + r * warps;

            if (i < OPS_LATEST) {
#pragma unroll
                for (int j = 0; j < LOADS; j++) {
                    reinterpret_cast<uint16_t *>(m->k[i])[lane + j * WARP] = k[r][j];
                    reinterpret_cast<uint16_t *>(m->v[i])[lane + j * WARP] = v[r][j];
                }
                if (lane < 2) {
                    (lane == 0 ? m->k_scale : m->v_scale)[i] = f32_of_f16(scale[r]);
                }
            }
        }
    }
}

/* The part of the latest tokens. `memory`: shared, for stream_latest_memory. */
template <int DIM>
CUDA_INLINE void stream_latest(const struct attend *p, const struct stream_block *b, void *memory)
{
    struct stream_latest_memory<DIM> *m =
        reinterpret_cast<struct stream_latest_memory<DIM> *>(memory);
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = b->s;
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int warps = (int)blockDim.x / WARP;
    int32_t pos = b->pos0 - OPS_LATEST + 1 + lane;

#pragma unroll 1
    for (int h = warp; h < b->n_heads; h += warps) {
        const float *q = p->q + (size_t)s->row0 * p->ldq + (size_t)(b->head0 + h) * l->k_dim;

#pragma unroll
        for (int d = lane; d < DIM; d += WARP) {
            if (d < l->k_dim) {
                async_copy4(&m->q[h][d], q + d);
            } else {
                m->q[h][d] = 0;
            }
        }
    }
    async_commit();
    stream_find_latest(s, b->group, m->slots);
    stream_latest_bring<DIM>(p, b, m);
    async_wait<0>();
    __syncthreads(); /* m: copied by all warps, read by all */
#pragma unroll 1
    for (int h = warp; h < b->n_heads; h += warps) {
        float *to = p->part + ((size_t)(b->seq * p->n_q + b->head0 + h) * p->n_chunks + b->chunk) *
                                  p->part_len;
        int32_t slot = m->slots[lane];
        float dot[4] = {};
        float own;
        float top;
        float e;
        float sum;

#pragma unroll 4
        for (int i = 0; i < DIM / 4; i++) {
            float4 q = *reinterpret_cast<const float4 *>(&m->q[h][i * 4]);
            uint32_t k = m->k[lane][i];

            dot[0] += q.x * stream_byte(k, 0);
            dot[1] += q.y * stream_byte(k, 1);
            dot[2] += q.z * stream_byte(k, 2);
            dot[3] += q.w * stream_byte(k, 3);
        }
        own = slot < 0 ? -INFINITY
                       : attend_logit(p, (dot[0] + dot[1] + (dot[2] + dot[3])) * m->k_scale[lane],
                                      attend_slope(p, b->head0 + h), pos, b->pos0);
        top = warp_max(own);
        e = own > -INFINITY ? expf(own - top) : 0.0f;
        sum = warp_sum(e);
        if (b->observed && slot >= 0) {
            p->logits[(size_t)(b->seq * p->n_q + b->head0 + h) * p->max_slots + slot] = own;
        }
        if (lane == 0) {
            to[0] = top;
            to[1] = sum;
        }
        m->weight[h][lane] = e * m->v_scale[lane];
        __syncwarp(); /* weights: a lane's, read by all */
#pragma unroll 1
        for (int32_t d = lane * 4; d < l->v_dim; d += 4 * WARP) {
            float4 acc = make_float4(0, 0, 0, 0);

#pragma unroll 4
            for (int i = 0; i < OPS_LATEST; i++) {
                float w = m->weight[h][i];
                uint32_t v = m->v[i][d / 4];

                acc.x += w * stream_byte(v, 0);
                acc.y += w * stream_byte(v, 1);
                acc.z += w * stream_byte(v, 2);
                acc.w += w * stream_byte(v, 3);
            }
            *reinterpret_cast<float4 *>(to + 4 + d) = acc;
        }
    }
}

#endif
