/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_KV_CUH
#define PIPIT_KERNELS_CUDA_KV_CUH

/* Slots of the cache as kernels see them: where a row of a page lies (struct cuda_layout), and how
 * eight of its elements become f32. The element type is the same for a whole launch, so the
 * branches on it do not diverge. */

#include "kernels/cuda/cuda.cuh"

enum { KV_VEC = 8 }; /* elements of one load */

CUDA_INLINE int32_t kv_pos(const struct cuda_seq *s, int32_t group, int32_t slot)
{
    return s->slot_pos ? s->slot_pos[(size_t)group * s->cap + slot] : slot;
}

CUDA_INLINE uint8_t *kv_page(const struct cuda_layout *l, const struct cuda_seq *s, int32_t group,
                             int32_t slot)
{
    uint32_t page = s->pages[(size_t)group * s->max_pages + slot / OPS_PAGE_SLOTS];

    return s->pool + (size_t)page * l->page_bytes;
}

CUDA_INLINE uint8_t *kv_k_row(const struct cuda_layout *l, uint8_t *page, int32_t head, int32_t slot)
{
    return page + (size_t)(head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS) * l->k_row;
}

CUDA_INLINE uint8_t *kv_v_row(const struct cuda_layout *l, uint8_t *page, int32_t head, int32_t slot)
{
    return page + l->v_at + (size_t)(head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS) * l->v_row;
}

CUDA_INLINE uint16_t *kv_scale(uint8_t *page, uint32_t at, int32_t head, int32_t slot)
{
    return reinterpret_cast<uint16_t *>(page + at) + head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS;
}

CUDA_INLINE bool kv_has_scale(int32_t type)
{
    return type == OPS_KV_FP8 || type == OPS_KV_I8;
}

/* Elements [8 i, 8 i + 8) of a row, without the row's scale. */
CUDA_INLINE void kv_load8(int32_t type, const uint8_t *row, int32_t i, float ret[KV_VEC])
{
    if (type == OPS_KV_F32) {
        float4 a = reinterpret_cast<const float4 *>(row)[2 * i];
        float4 b = reinterpret_cast<const float4 *>(row)[2 * i + 1];

        ret[0] = a.x, ret[1] = a.y, ret[2] = a.z, ret[3] = a.w;
        ret[4] = b.x, ret[5] = b.y, ret[6] = b.z, ret[7] = b.w;
    } else if (type == OPS_KV_F16 || type == OPS_KV_BF16) {
        uint4 v = reinterpret_cast<const uint4 *>(row)[i];
        uint32_t w[4] = {v.x, v.y, v.z, v.w};

        for (int j = 0; j < KV_VEC; j++) {
            uint16_t h = (uint16_t)(w[j / 2] >> (j % 2 * 16));

            ret[j] = type == OPS_KV_F16 ? f32_of_f16(h) : f32_of_bf16(h);
        }
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(row)[i];
        uint32_t w[2] = {v.x, v.y};

        for (int j = 0; j < KV_VEC; j++) {
            uint8_t b = (uint8_t)(w[j / 4] >> (j % 4 * 8));

            ret[j] = type == OPS_KV_FP8 ? f32_of_fp8(b) : (float)(int8_t)b;
        }
    }
}

/* The scale of one slot and head, 1 for types without. */
CUDA_INLINE float kv_scale_of(int32_t type, uint8_t *page, uint32_t at, int32_t head, int32_t slot)
{
    return kv_has_scale(type) ? f32_of_f16(*kv_scale(page, at, head, slot)) : 1.0f;
}

/* What a row may see (ops.h). */
CUDA_INLINE bool kv_visible(int32_t pos, int32_t row_pos, int32_t window)
{
    return pos >= 0 && pos <= row_pos && (window == 0 || pos > row_pos - window);
}

#endif
