/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_KV_PART_CUH
#define PIPIT_KERNELS_CUDA_KV_PART_CUH

/* Partial keys (ops.h part_dims): where those of a slot lie, made from K as it reads back, moved.
 *
 * A page has them by dim, [k_heads][part_dims][64], so that ranking reads whole sectors; in fp8 one
 * f16 scale a slot and K head follows, [k_heads][64], which is of these values alone: all of them
 * are made before the first is encoded, in the shared memory that the head came from. */

#include "kernels/cuda/kv.cuh"

/* Those of the page that holds a slot. */
CUDA_INLINE uint8_t *kv_part_page(const struct cuda_layout *l, const struct cuda_seq *s,
                                  int32_t group, int32_t slot)
{
    uint32_t page = s->pages[(size_t)group * s->max_pages + slot / OPS_PAGE_SLOTS];

    return s->part + (size_t)page * l->part_bytes;
}

/* Dim j of slots [0, 64) of a page's head. */
CUDA_INLINE uint8_t *kv_part_dim(const struct cuda_layout *l, uint8_t *part_page, int32_t head,
                                 int32_t j)
{
    return part_page +
           (size_t)(head * l->part_dims + j) * OPS_PAGE_SLOTS * kv_element_bytes(l->part_type);
}

/* Of a slot's partial key, where its type has one: behind all heads' dims. */
CUDA_INLINE uint16_t *kv_part_scale(const struct cuda_layout *l, uint8_t *part_page, int32_t head,
                                    int32_t slot)
{
    return kv_scale(kv_part_dim(l, part_page, l->k_heads, 0), 0, head, slot);
}

enum { SKEW_ROWS = 8, SKEW_LANE_DIMS = 256 / WARP };

/* Rows [0, n_rows) of A (n_rows, n) times a vector of which lane i holds elements i, i + 32, ...; by
 * one warp, eight rows at once: their lines are under way together, and 9 shuffles add up all of
 * them. Lane 4 i gets row i's. */
CUDA_INLINE float kv_skew_rows(const float *a, int32_t n_rows, int32_t n,
                               const float x[SKEW_LANE_DIMS])
{
    int lane = (int)threadIdx.x % WARP;
    float dot[SKEW_ROWS] = {};

#pragma unroll
    for (int i = 0; i < SKEW_LANE_DIMS; i++) {
        int32_t d = i * WARP + lane;

#pragma unroll
        for (int j = 0; j < SKEW_ROWS; j++) {
            if (d < n && j < n_rows) {
                dot[j] += a[(size_t)j * n + d] * x[i];
            }
        }
    }
#pragma unroll
    for (int keep = SKEW_ROWS / 2; keep > 0; keep /= 2) { /* a lane keeps half of the rows */
        bool upper = (lane & keep * 4) != 0;

#pragma unroll
        for (int i = 0; i < SKEW_ROWS / 2; i++) {
            if (i < keep) {
                float other = __shfl_xor_sync(ALL_LANES, upper ? dot[i] : dot[i + keep], keep * 4);

                dot[i] = (upper ? dot[i + keep] : dot[i]) + other;
            }
        }
    }
    dot[0] += __shfl_xor_sync(ALL_LANES, dot[0], 2);
    return dot[0] + __shfl_xor_sync(ALL_LANES, dot[0], 1);
}

/* Value i of those that begin at `part`, without the slot's scale. */
CUDA_INLINE float kv_part_value(const struct cuda_layout *l, const uint8_t *part, int32_t i)
{
    return l->part_type == OPS_KV_F32   ? reinterpret_cast<const float *>(part)[i]
           : l->part_type == OPS_KV_FP8 ? f32_of_fp8(part[i])
                                        : f32_of_f16(reinterpret_cast<const uint16_t *>(part)[i]);
}

/* kv_code_encode() of a slot's values x (part_dims) to the page; by one warp. */
CUDA_INLINE void kv_part_encode(const struct cuda_layout *l, const float *x, uint8_t *part,
                                int32_t head, int32_t slot)
{
    int32_t in_page = slot % OPS_PAGE_SLOTS;
    int lane = (int)threadIdx.x % WARP;
    float inverse = 0;

    if (l->part_type == OPS_KV_FP8) {
        float top = 0;
        uint16_t scale;

        for (int32_t j = lane; j < l->part_dims; j += WARP) {
            top = fmaxf(top, fabsf(x[j]));
        }
        scale = kv_code_scale(OPS_KV_FP8, warp_max(top));
        inverse = kv_code_inverse(OPS_KV_FP8, scale);
        if (lane == 0) {
            *kv_part_scale(l, part, head, slot) = scale;
        }
    }
    for (int32_t j = lane; j < l->part_dims; j += WARP) {
        uint8_t *to = kv_part_dim(l, part, head, j);

        if (l->part_type == OPS_KV_F32) {
            reinterpret_cast<float *>(to)[in_page] = x[j];
        } else if (l->part_type == OPS_KV_FP8) {
            to[in_page] = fp8_of_f32(__fmul_rn(x[j], inverse));
        } else {
            reinterpret_cast<uint16_t *>(to)[in_page] =
                f16_of_f32(fminf(fmaxf(x[j], -65504.0f), 65504.0f));
        }
    }
}

/* The first part_dims values of A k, k as it reads back from the page; by one warp. x: shared
 * (part_dims), the warp's own; what lay there has been read. */
CUDA_INLINE void kv_part_row(const struct cuda_layout *l, const struct cuda_seq *s, uint8_t *page,
                             int32_t group, int32_t head, int32_t slot, float *x)
{
    const uint8_t *row = kv_k_row(l, page, head, slot);
    const float *a = s->skew + (size_t)(group * l->k_heads + head) * l->k_dim * l->k_dim;
    int lane = (int)threadIdx.x % WARP;
    float k[SKEW_LANE_DIMS];
    float scale;

    if (l->part_dims == 0 || !s->part) {
        return;
    }
    scale = kv_scale_of(l->k_type, page, l->k_scale_at, head, slot);
#pragma unroll
    for (int i = 0; i < SKEW_LANE_DIMS; i++) {
        int32_t d = i * WARP + lane;

        k[i] = d < l->k_dim ? kv_element(l->k_type, row, d, scale) : 0.0f;
    }
    for (int32_t j0 = 0; j0 < l->part_dims; j0 += SKEW_ROWS) {
        float dot = kv_skew_rows(a + (size_t)j0 * l->k_dim, l->part_dims - j0, l->k_dim, k);

        if (lane % 4 == 0 && j0 + lane / 4 < l->part_dims) {
            x[j0 + lane / 4] = dot;
        }
    }
    __syncwarp(); /* x: written by every fourth lane, read by all */
    kv_part_encode(l, x, kv_part_page(l, s, group, slot), head, slot);
    __syncwarp(); /* x: read, before its owner writes there again */
}

/* The slot `from` of a head to slot `to`, the pages being those that hold them; by one block. */
CUDA_INLINE void kv_part_move(const struct cuda_layout *l, uint8_t *page_to, int32_t to,
                              uint8_t *page_from, int32_t from, int32_t head)
{
    int32_t i = to % OPS_PAGE_SLOTS;
    int32_t j = from % OPS_PAGE_SLOTS;

    for (int32_t d = (int32_t)threadIdx.x; d < l->part_dims; d += (int32_t)blockDim.x) {
        uint8_t *a = kv_part_dim(l, page_to, head, d);
        const uint8_t *b = kv_part_dim(l, page_from, head, d);

        if (l->part_type == OPS_KV_F32) {
            reinterpret_cast<float *>(a)[i] = reinterpret_cast<const float *>(b)[j];
        } else if (l->part_type == OPS_KV_FP8) {
            a[i] = b[j];
        } else {
            reinterpret_cast<uint16_t *>(a)[i] = reinterpret_cast<const uint16_t *>(b)[j];
        }
    }
    if (l->part_dims > 0 && kv_has_scale(l->part_type) && threadIdx.x == 0) {
        *kv_part_scale(l, page_to, head, to) = *kv_part_scale(l, page_from, head, from);
    }
}

#endif
