/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_JOIN_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_JOIN_CUH

/* Of decode attention: chunks of slots are added up. */

#include "kernels/cuda/attention_stream_part.cuh"
#include "kernels/cuda/codes.cuh"

enum { JOIN_WARPS = 4, JOIN_LOADS = 8 };

/* Block a row and query head: each warp adds every fourth chunk, in order, then the warps' sums are
 * added in order. `memory`: (JOIN_WARPS, v_dim), then weights of chunks. With `codes` those of the
 * only row are made, too: heads are whole blocks of 32, and a warp ends with one. */
CUDA_KERNEL void __launch_bounds__(JOIN_WARPS *WARP)
    decode_join(struct attend p, struct stream_plan plan, struct cuda_codes codes)
{
    CUDA_SHARED(float, memory);
    __shared__ float inv;
    const struct cuda_seq *s = &p.seqs.s[blockIdx.y];
    int32_t head = (int32_t)blockIdx.x;
    int32_t v_dim = p.seqs.layout.v_dim;
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int32_t n = stream_parts(s, &plan);
    const float *part =
        p.part + (size_t)((int32_t)blockIdx.y * p.n_q + head) * p.n_chunks * p.part_len;
    float *weights = memory + JOIN_WARPS * v_dim;

    grid_begin();
    grid_wait();
    if (n == 1) {
        return; /* the row is there already */
    }
    if (warp == 0) {
        float top = -INFINITY;
        float sum = 0;

#pragma unroll 1
        for (int32_t c = lane; c < n; c += WARP) {
            top = fmaxf(top, part[(size_t)c * p.part_len]);
        }
        top = warp_max(top);
#pragma unroll 1
        for (int32_t c = lane; c < n; c += WARP) {
            float own = part[(size_t)c * p.part_len];
            float w = own > -INFINITY ? expf(own - top) : 0.0f;

            weights[c] = w;
            sum += w * part[(size_t)c * p.part_len + 1];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            inv = attend_with_sink(&p, head, top, sum > 0 ? 1.0f / sum : 0.0f);
        }
    }
    for (int32_t d0 = 0; d0 < v_dim; d0 += 4 * WARP) {
        int32_t d = d0 + lane * 4;
        float4 v = make_float4(0, 0, 0, 0);
        bool waited = d0 > 0;

        for (int32_t c0 = warp; c0 < n || !waited; c0 += JOIN_WARPS * JOIN_LOADS) {
            float4 a[JOIN_LOADS];

#pragma unroll
            for (int i = 0; i < JOIN_LOADS; i++) { /* on their way while the first warp sums */
                int32_t c = c0 + i * JOIN_WARPS;

                a[i] =
                    c < n && d < v_dim
                        ? *reinterpret_cast<const float4 *>(part + (size_t)c * p.part_len + 4 + d)
                        : make_float4(0, 0, 0, 0);
            }
            if (!waited) {
                __syncthreads(); /* weights, inv: written by a warp, read by all */
                waited = true;
            }
#pragma unroll
            for (int i = 0; i < JOIN_LOADS; i++) {
                int32_t c = c0 + i * JOIN_WARPS;
                float w = c < n ? weights[c] : 0.0f;

                v.x += w * a[i].x, v.y += w * a[i].y, v.z += w * a[i].z, v.w += w * a[i].w;
            }
        }
        if (d < v_dim) {
            *reinterpret_cast<float4 *>(memory + warp * v_dim + d) = v;
        }
    }
    __syncthreads(); /* sums of warps: written by all, read by all */
    for (int32_t d = (int32_t)threadIdx.x; d < v_dim; d += JOIN_WARPS * WARP) {
        float sum = 0;

        for (int w = 0; w < JOIN_WARPS; w++) {
            sum += memory[w * v_dim + d];
        }
        if (s->v_hadamard) {
            memory[d] = sum * inv; /* the first warp's sum, which this thread alone reads */
        } else {
            p.out[(size_t)s->row0 * p.ldo + (size_t)head * v_dim + d] = sum * inv;
        }
        if (codes.xq) {
            codes_end(&codes, sum * inv, (head * v_dim + d) / 32);
        }
    }
    if (s->v_hadamard) {
        __syncthreads(); /* memory: the row, written by all, read by the first warp */
        if (warp == 0) {
            hadamard_by_warp(memory, v_dim);
            for (int32_t d = lane; d < v_dim; d += WARP) {
                p.out[(size_t)s->row0 * p.ldo + (size_t)head * v_dim + d] = memory[d];
            }
        }
    }
}

#endif
