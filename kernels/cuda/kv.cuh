/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_KV_CUH
#define PIPIT_KERNELS_CUDA_KV_CUH

/* Slots of the cache as kernels see them: where a row of a page lies (struct cuda_layout), and how
 * eight of its elements become f32. The element type is the same for a whole launch, so the
 * branches on it do not diverge. */

#include "kernels/cuda/cuda.cuh"

enum { KV_VEC = 8 }; /* elements of one load */

/* v_sum of sequences that have one loses what their one decode row's victims hold (kv_sum.cu). */
int cuda_kv_sum_drop(struct cuda *cu, const struct cuda_seqs *seqs, int32_t n_decode);

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

CUDA_INLINE uint8_t *kv_k_row(const struct cuda_layout *l, uint8_t *page, int32_t head,
                              int32_t slot)
{
    return page + (size_t)(head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS) * l->k_row;
}

CUDA_INLINE uint8_t *kv_v_row(const struct cuda_layout *l, uint8_t *page, int32_t head,
                              int32_t slot)
{
    return page + l->v_at + (size_t)(head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS) * l->v_row;
}

CUDA_INLINE uint16_t *kv_scale(uint8_t *page, uint32_t at, int32_t head, int32_t slot)
{
    return reinterpret_cast<uint16_t *>(page + at) + head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS;
}

/* The n scales of a slot and head. */
CUDA_INLINE uint16_t *kv_scales(uint8_t *page, uint32_t at, int32_t n, int32_t head, int32_t slot)
{
    return kv_scale(page, at, 0, 0) + (head * OPS_PAGE_SLOTS + slot % OPS_PAGE_SLOTS) * n;
}

/* One scale a slot and head? */
static inline __host__ __device__ bool kv_has_scale(int32_t type)
{
    return type == OPS_KV_FP8 || type == OPS_KV_I8;
}

static inline __host__ __device__ bool kv_four(int32_t type)
{
    return type == OPS_KV_G4;
}

/* The levels of gauss4.h by size, as the two sources of a byte permutation. */
#define FOUR_SIZES_LOW 0x2c1f1206
#define FOUR_SIZES_HIGH 0x7f604b3a

/* Elements [8 i, 8 i + 8) of a row, without their scale. */
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
    } else if (kv_four(type)) {
        uint32_t codes = reinterpret_cast<const uint32_t *>(row)[i];

        for (int j = 0; j < KV_VEC; j++) {
            uint32_t code = codes >> (4 * j);
            float size = (float)(__byte_perm(FOUR_SIZES_LOW, FOUR_SIZES_HIGH, code & 7) & 0xff);

            ret[j] = code & 8 ? size : -size;
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

/* The same in two steps, so that several loads are under way before the first is looked at; of
 * types with elements of their own (not blocks). Zeros are {}. */
template <int TYPE> struct kv_raw {
    uint32_t w[TYPE == OPS_KV_F32 ? 8 : TYPE == OPS_KV_F16 || TYPE == OPS_KV_BF16 ? 4 : 2];
};

template <int TYPE> CUDA_INLINE struct kv_raw<TYPE> kv_raw_load(const uint8_t *row, int32_t i)
{
    struct kv_raw<TYPE> r;

    if constexpr (TYPE == OPS_KV_F32 || TYPE == OPS_KV_F16 || TYPE == OPS_KV_BF16) {
        constexpr int n = TYPE == OPS_KV_F32 ? 2 : 1;

#pragma unroll
        for (int j = 0; j < n; j++) {
            uint4 v = reinterpret_cast<const uint4 *>(row)[n * i + j];

            r.w[4 * j] = v.x, r.w[4 * j + 1] = v.y;
            r.w[4 * j + 2] = v.z, r.w[4 * j + 3] = v.w;
        }
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(row)[i];

        r.w[0] = v.x, r.w[1] = v.y;
    }
    return r;
}

template <int TYPE> CUDA_INLINE void kv_raw_floats(const struct kv_raw<TYPE> &r, float ret[KV_VEC])
{
#pragma unroll
    for (int j = 0; j < KV_VEC; j++) {
        if constexpr (TYPE == OPS_KV_F32) {
            ret[j] = __uint_as_float(r.w[j]);
        } else if constexpr (TYPE == OPS_KV_F16 || TYPE == OPS_KV_BF16) {
            uint16_t h = (uint16_t)(r.w[j / 2] >> (j % 2 * 16));

            ret[j] = TYPE == OPS_KV_F16 ? f32_of_f16(h) : f32_of_bf16(h);
        } else {
            uint8_t b = (uint8_t)(r.w[j / 4] >> (j % 4 * 8));

            ret[j] = TYPE == OPS_KV_FP8 ? f32_of_fp8(b) : (float)(int8_t)b;
        }
    }
}

/* The scale of one slot and head, 1 for types without. */
CUDA_INLINE float kv_scale_of(int32_t type, uint8_t *page, uint32_t at, int32_t head, int32_t slot)
{
    return kv_has_scale(type) ? f32_of_f16(*kv_scale(page, at, head, slot)) : 1.0f;
}

/* One element, times the scale. */
CUDA_INLINE float kv_element(int32_t type, const uint8_t *row, int32_t i, float scale)
{
    switch (type) {
    case OPS_KV_F32:
        return reinterpret_cast<const float *>(row)[i];
    case OPS_KV_F16:
        return f32_of_f16(reinterpret_cast<const uint16_t *>(row)[i]);
    case OPS_KV_BF16:
        return f32_of_bf16(reinterpret_cast<const uint16_t *>(row)[i]);
    case OPS_KV_FP8:
        return f32_of_fp8(row[i]) * scale;
    default:
        return (float)(int8_t)row[i] * scale;
    }
}

CUDA_INLINE int32_t kv_element_bytes(int32_t type)
{
    return type == OPS_KV_F32 ? 4 : kv_has_scale(type) ? 1 : 2;
}

/* ---- the ranking copy ----------------------------------------------------------------------- */

CUDA_INLINE int32_t kv_rank_type(const struct cuda_layout *l)
{
    return l->rank == OPS_RANK_8 ? (int32_t)OPS_KV_FP8 : l->k_type;
}

/* Dim d of slots [0, 64) of a page's head. */
CUDA_INLINE uint8_t *kv_rank_dim(const struct cuda_layout *l, uint8_t *page, int32_t head,
                                 int32_t d)
{
    return page + l->rank_at +
           (size_t)(head * l->k_dim + d) * OPS_PAGE_SLOTS * kv_element_bytes(kv_rank_type(l));
}

CUDA_INLINE float kv_rank_scale(const struct cuda_layout *l, uint8_t *page, int32_t head,
                                int32_t slot)
{
    return kv_scale_of(kv_rank_type(l), page,
                       l->rank == OPS_RANK_8 ? l->rank_scale_at : l->k_scale_at, head, slot);
}

/* The scale of a row of codes with the largest absolute value `top` (kernels/kv_code.h). */
CUDA_INLINE uint16_t kv_code_scale(int32_t type, float top)
{
    uint16_t scale = f16_of_f32(top / (type == OPS_KV_FP8 ? 1.75f : 127.0f));

    return scale > 0x7bff ? 0x7bff : scale;
}

CUDA_INLINE float kv_code_inverse(int32_t type, uint16_t scale)
{
    return scale ? (type == OPS_KV_FP8 ? 256.0f : 1.0f) / f32_of_f16(scale) : 0.0f;
}

/* A slot's part of the ranking copy from K as it lies in the page; by one warp. */
CUDA_INLINE void kv_rank_row(const struct cuda_layout *l, uint8_t *page, int32_t head, int32_t slot)
{
    const uint8_t *row = kv_k_row(l, page, head, slot);
    int32_t in_page = slot % OPS_PAGE_SLOTS;
    int lane = (int)threadIdx.x % WARP;

    if (l->rank == OPS_RANK_2K) {
        int32_t bytes = kv_element_bytes(l->k_type);

        for (int32_t i = lane; i < l->k_dim * bytes; i += WARP) {
            kv_rank_dim(l, page, head, i / bytes)[in_page * bytes + i % bytes] = row[i];
        }
    } else if (l->rank == OPS_RANK_8) {
        float scale = kv_scale_of(l->k_type, page, l->k_scale_at, head, slot);
        float top = 0;
        float inverse;
        uint16_t code;

        for (int32_t d = lane; d < l->k_dim; d += WARP) {
            top = fmaxf(top, fabsf(kv_element(l->k_type, row, d, scale)));
        }
        code = kv_code_scale(OPS_KV_FP8, warp_max(top));
        inverse = kv_code_inverse(OPS_KV_FP8, code);
        for (int32_t d = lane; d < l->k_dim; d += WARP) {
            kv_rank_dim(l, page, head, d)[in_page] =
                fp8_of_f32(__fmul_rn(kv_element(l->k_type, row, d, scale), inverse));
        }
        if (lane == 0) {
            *kv_scale(page, l->rank_scale_at, head, slot) = code;
        }
    }
}

/* The slot that the sequence's one row takes (ops.h ops_predict). */
CUDA_INLINE int32_t kv_own_slot(const struct cuda_seq *s, int32_t group)
{
    return s->victim ? s->victim[group] : s->slot0;
}

/* What a row may see (ops.h). */
CUDA_INLINE bool kv_visible(int32_t pos, int32_t row_pos, int32_t window)
{
    return pos >= 0 && pos <= row_pos && (window == 0 || pos > row_pos - window);
}

#endif
