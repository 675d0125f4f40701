/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_LATEST_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_LATEST_CUH

/* A part of a decode row's sums: the latest tokens of a cache of four bits, which lie in 8 bits
 * elsewhere (ops_kv.latest). 32 positions in f32, beside the chunks of a row in the same launch.
 * Where slots are no positions, the block looks through all of them for the positions. Included by
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

        slots[tid] = !s->slot_pos && pos >= 0 && pos < s->n_slots && latest_has(s, s->pos0, pos)
                         ? pos
                         : -1;
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

/* The part of the latest tokens: 32 positions, a warp one of them at a time, then a thread a dim of
 * V. `memory`: shared, OPS_LATEST (STREAM_HEADS + 1) words. */
CUDA_INLINE void stream_latest(const struct attend *p, const struct stream_block *b, float *memory)
{
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = b->s;
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int warps = (int)blockDim.x / WARP;
    int32_t *slots = reinterpret_cast<int32_t *>(memory);
    float *x = memory + OPS_LATEST;
    float *to = p->part + ((size_t)(b->seq * p->n_q + b->head0) * p->n_chunks + b->chunk) *
                              p->part_len;
    size_t ld = (size_t)p->n_chunks * p->part_len;

    stream_find_latest(s, b->group, slots);
#pragma unroll 1
    for (int i = warp; i < OPS_LATEST; i += warps) {
        int32_t pos = s->pos0 - OPS_LATEST + 1 + i;
        int32_t slot = slots[i];
        float k[KV_VEC] = {};

        if (slot >= 0 && lane * KV_VEC < l->k_dim) {
            uint8_t *page = kv_page(l, s, b->group, slot);
            const uint8_t *entry = latest_head(l, s, b->group, pos, true, b->k_head);
            float scale;

            if (kv_four(l->k_type)) {
                latest_load8(entry, lane, k);
                scale = latest_scale(entry, l->k_dim);
            } else {
                kv_load8(l->k_type, kv_k_row(l, page, b->k_head, slot), lane, k);
                scale = kv_scale_of(l->k_type, page, l->k_scale_at, b->k_head, slot);
            }
            for (int j = 0; j < KV_VEC; j++) {
                k[j] *= scale;
            }
        }
#pragma unroll 1
        for (int h = 0; h < STREAM_HEADS; h++) {
            const float *q = p->q + (size_t)s->row0 * p->ldq +
                             (size_t)(b->head0 + h) * l->k_dim + lane * KV_VEC;
            float dot = 0;

            for (int j = 0; j < KV_VEC; j++) {
                dot += h < b->n_heads && lane * KV_VEC < l->k_dim ? q[j] * k[j] : 0.0f;
            }
            dot = warp_sum(dot);
            if (lane == 0) {
                x[h * OPS_LATEST + i] =
                    slot < 0 || h >= b->n_heads
                        ? -INFINITY
                        : attend_logit(p, dot, attend_slope(p, b->head0 + h), pos, s->pos0);
            }
        }
    }
    __syncthreads(); /* x: logits, written by all warps, read by others */
#pragma unroll 1
    for (int h = warp; h < STREAM_HEADS; h += warps) {
        float own = x[h * OPS_LATEST + lane];
        float top = warp_max(own);
        float e = own > -INFINITY ? expf(own - top) : 0.0f;
        float sum = warp_sum(e);

        if (b->observed && h < b->n_heads && slots[lane] >= 0) {
            p->logits[(size_t)(b->seq * p->n_q + b->head0 + h) * p->max_slots + slots[lane]] = own;
        }
        if (lane == 0 && h < b->n_heads) {
            to[h * ld] = top;
            to[h * ld + 1] = sum;
        }
        x[h * OPS_LATEST + lane] = e;
    }
    __syncthreads(); /* x: weights, written by all warps, read by all */
#pragma unroll 1
    for (int32_t d = (int32_t)threadIdx.x; d < l->v_dim; d += (int32_t)blockDim.x) {
        float acc[STREAM_HEADS] = {};

#pragma unroll 4
        for (int i = 0; i < OPS_LATEST; i++) {
            int32_t pos = s->pos0 - OPS_LATEST + 1 + i;

            if (slots[i] >= 0) {
                const uint8_t *entry = latest_head(l, s, b->group, pos, false, b->k_head);
                float v = (float)(int8_t)entry[d] * latest_scale(entry, l->v_dim);

#pragma unroll
                for (int h = 0; h < STREAM_HEADS; h++) {
                    acc[h] += x[h * OPS_LATEST + i] * v;
                }
            }
        }
#pragma unroll
        for (int h = 0; h < STREAM_HEADS; h++) {
            if (h < b->n_heads) {
                to[h * ld + 4 + d] = acc[h];
            }
        }
    }
}

#endif
