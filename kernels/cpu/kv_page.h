/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_PAGE_H
#define PIPIT_KERNELS_CPU_KV_PAGE_H

/* The cpu backend's page: 64 slots of one head group.
 *
 *     K        (k_heads, k_dim, 64)   a dim of 64 slots is one stretch: logits need no shuffles;
 *                                     types of blocks: (k_heads, 64, k_dim), and so V
 *     V        (v_heads, 64, v_pad)   v_pad = v_dim rounded up to 16, the rest zeros
 *     K scales (k_heads, 64) f16      types fp8 and i8 only
 *     V scales (v_heads, 64) f16
 *     K rows   (k_heads, 64, k_pad)  K by slot, with OPS_RANK_2K and OPS_RANK_8 (kv_copy.c)
 *     K ranks  (k_heads, k_dim, 64)  K in fp8, with OPS_RANK_8, and its scales (k_heads, 64) f16
 *     partial  (k_heads, part_dims, 64)  partial keys: f32, f16 or fp8, then the scales of fp8,
 *                                        (k_heads, 64) f16
 *
 * Every part begins on a 64-byte line. */

#include "kernels/ops.h"

static inline int32_t kv_page_pad(int32_t n)
{
    return (n + 15) & ~15;
}

static inline size_t kv_page_element(enum ops_kv_type type)
{
    return (size_t)ops_kv_type_bytes(type, 1);
}

/* q8_0, q4_0, g4: no element stands alone, so a head of a slot is a row of blocks, in K as in V.
 * For q8_0 and q4_0 pages are decoded to f32, also for decode rows (attention_prefill.c). */
static inline bool kv_page_by_slot(enum ops_kv_type type)
{
    return ops_kv_block_dims(type) > 1;
}

/* Bytes of one head's K, V of 64 slots. */
static inline size_t kv_page_k_bytes(const struct ops_kv_layout *l)
{
    return (size_t)ops_kv_type_bytes(l->k_type, l->k_dim) * OPS_PAGE_SLOTS;
}

/* Of one slot and head of V. */
static inline size_t kv_page_v_row_bytes(const struct ops_kv_layout *l)
{
    return (size_t)ops_kv_type_bytes(l->v_type, kv_page_pad(l->v_dim));
}

static inline size_t kv_page_v_bytes(const struct ops_kv_layout *l)
{
    return kv_page_v_row_bytes(l) * OPS_PAGE_SLOTS;
}

static inline uint8_t *kv_page_of(const struct ops_kv *kv, int32_t group, int32_t slot)
{
    size_t entry = (size_t)group * (size_t)kv->max_pages + (size_t)(slot / OPS_PAGE_SLOTS);

    return kv->pool + (size_t)kv->pages[entry] * kv->layout->page_bytes;
}

static inline uint8_t *kv_page_k(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    return page + (size_t)head * kv_page_k_bytes(l);
}

static inline uint8_t *kv_page_v(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    return kv_page_k(l, page, l->k_heads) + (size_t)head * kv_page_v_bytes(l);
}

/* (64) f16, or NULL for types without. */
static inline uint16_t *kv_page_k_scale(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    uint8_t *scales = kv_page_v(l, page, l->v_heads);

    return ops_kv_scale_bytes(l->k_type)
               ? (uint16_t *)(void *)scales + (size_t)head * OPS_PAGE_SLOTS
               : NULL;
}

static inline uint16_t *kv_page_v_scale(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    uint8_t *scales = kv_page_v(l, page, l->v_heads) +
                      (size_t)l->k_heads * OPS_PAGE_SLOTS * ops_kv_scale_bytes(l->k_type);

    return ops_kv_scale_bytes(l->v_type)
               ? (uint16_t *)(void *)scales + (size_t)head * OPS_PAGE_SLOTS
               : NULL;
}

/* ---- copies of K for queries that select ---- */

static inline size_t kv_page_row_bytes(const struct ops_kv_layout *l)
{
    return (size_t)kv_page_pad(l->k_dim) * OPS_PAGE_SLOTS * kv_page_element(l->k_type);
}

static inline uint8_t *kv_page_rows(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    return kv_page_v(l, page, l->v_heads) +
           OPS_PAGE_SLOTS * ((size_t)l->k_heads * ops_kv_scale_bytes(l->k_type) +
                             (size_t)l->v_heads * ops_kv_scale_bytes(l->v_type)) +
           (size_t)head * kv_page_row_bytes(l);
}

static inline uint8_t *kv_page_rank(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    return kv_page_rows(l, page, l->k_heads) + (size_t)head * (size_t)l->k_dim * OPS_PAGE_SLOTS;
}

static inline uint16_t *kv_page_rank_scale(const struct ops_kv_layout *l, uint8_t *page,
                                           int32_t head)
{
    return (uint16_t *)(void *)kv_page_rank(l, page, l->k_heads) + (size_t)head * OPS_PAGE_SLOTS;
}

static inline size_t kv_page_copy_bytes(const struct ops_kv_layout *l)
{
    size_t rows = l->rank == OPS_RANK_ONCE ? 0 : kv_page_row_bytes(l);
    size_t rank = l->rank == OPS_RANK_8 ? (size_t)(l->k_dim + 2) * OPS_PAGE_SLOTS : 0;

    return (size_t)l->k_heads * (rows + rank);
}

/* ---- partial keys (kv_part.c) ---- */

/* Of all heads, scales included. */
static inline size_t kv_page_part_bytes(const struct ops_kv_layout *l)
{
    return (size_t)l->k_heads * OPS_PAGE_SLOTS * (size_t)ops_kv_part_bytes(l);
}

/* The last of the page. */
static inline uint8_t *kv_page_part(const struct ops_kv_layout *l, uint8_t *page, int32_t head)
{
    return page + l->page_bytes - kv_page_part_bytes(l) +
           (size_t)(head * l->part_dims * OPS_PAGE_SLOTS) * kv_page_element(l->part_type);
}

/* (64) f16, or NULL for types without. */
static inline uint16_t *kv_page_part_scale(const struct ops_kv_layout *l, uint8_t *page,
                                           int32_t head)
{
    return ops_kv_scale_bytes(l->part_type)
               ? (uint16_t *)(void *)kv_page_part(l, page, l->k_heads) +
                     (size_t)head * OPS_PAGE_SLOTS
               : NULL;
}

#endif
