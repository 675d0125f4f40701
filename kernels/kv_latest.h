/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_KV_LATEST_H
#define PIPIT_KERNELS_KV_LATEST_H

/* The latest tokens of a sequence in int8, beside pages of four bits (ops_kv.latest). An entry
 * holds one position's K heads, then V heads, of the sides that are in four bits: of each head its
 * codes and its f16 scale. */

#include <string.h>

#include "kernels/kv_code.h"

static inline uint64_t kv_latest_head_bytes(int32_t dim)
{
    return ops_kv_type_bytes(OPS_KV_I8, dim) + ops_kv_scale_bytes(OPS_KV_I8);
}

static inline uint8_t *kv_latest_k(const struct ops_kv *kv, int32_t group, int32_t pos,
                                   int32_t head)
{
    return kv->latest +
           (uint64_t)(group * OPS_LATEST_ENTRIES + pos % OPS_LATEST_ENTRIES) *
               ops_kv_latest_bytes(kv->layout) +
           (uint64_t)head * kv_latest_head_bytes(kv->layout->k_dim);
}

static inline uint8_t *kv_latest_v(const struct ops_kv *kv, int32_t group, int32_t pos,
                                   int32_t head)
{
    const struct ops_kv_layout *l = kv->layout;
    bool k = ops_kv_in_four_bits(l->k_type);

    return kv_latest_k(kv, group, pos, k ? l->k_heads : 0) +
           (uint64_t)head * kv_latest_head_bytes(l->v_dim);
}

/* Does row `row` of the sequence's call write its entry? Later rows of the call may take it. */
static inline bool kv_latest_takes(const struct ops_seq *seq, int32_t row)
{
    return seq->kv.latest && row + OPS_LATEST_ENTRIES >= seq->n_rows;
}

/* Does a row of class decode at row_pos read position pos from its entry? */
static inline bool kv_latest_has(const struct ops_kv *kv, int32_t row_pos, int32_t pos)
{
    return pos > row_pos - OPS_LATEST && pos <= row_pos && pos >= kv->latest_from;
}

static inline void kv_latest_store(uint8_t *entry, const float *x, int32_t n)
{
    uint16_t scale;

    kv_code_encode(OPS_KV_I8, x, entry, &scale, n);
    memcpy(entry + n, &scale, sizeof(scale));
}

static inline void kv_latest_load(const uint8_t *entry, float *x, int32_t n)
{
    uint16_t scale;

    memcpy(&scale, entry + n, sizeof(scale));
    kv_code_decode(OPS_KV_I8, entry, scale, x, n);
}

#endif
