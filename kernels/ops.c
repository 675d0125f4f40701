/* SPDX-License-Identifier: Apache-2.0 */
/* The helpers of kernels/ops.h that belong to no backend: sizes and names of the cache's element
 * types, the canonical size of a slot, ALiBi's slopes. */

#include "kernels/ops.h"

#include <math.h>

static const struct {
    const char *name;
    int32_t block_len;
    int32_t block_bytes;
    int32_t scale_bytes; /* of one slot and head, apart from the elements */
} kv_types[] = {
    [OPS_KV_F32] = {"f32", 1, 4, 0},     [OPS_KV_F16] = {"f16", 1, 2, 0},
    [OPS_KV_BF16] = {"bf16", 1, 2, 0},   [OPS_KV_FP8] = {"fp8", 1, 1, 2},
    [OPS_KV_I8] = {"i8", 1, 1, 2},       [OPS_KV_Q8_0] = {"q8_0", 32, 34, 0},
    [OPS_KV_Q4_0] = {"q4_0", 32, 18, 0}, [OPS_KV_G4] = {"kv4", 32, 18, 0},
};

uint64_t ops_kv_type_bytes(enum ops_kv_type type, int32_t n)
{
    return (uint64_t)(n / kv_types[type].block_len) * (uint64_t)kv_types[type].block_bytes;
}

uint64_t ops_kv_scale_bytes(enum ops_kv_type type)
{
    return (uint64_t)kv_types[type].scale_bytes;
}

uint64_t ops_kv_part_bytes(const struct ops_kv_layout *l)
{
    return l->part_dims == 0
               ? 0
               : ops_kv_type_bytes(l->part_type, l->part_dims) + ops_kv_scale_bytes(l->part_type);
}

int32_t ops_kv_block_dims(enum ops_kv_type type)
{
    return kv_types[type].block_len;
}

const char *ops_kv_type_name(enum ops_kv_type type)
{
    return kv_types[type].name;
}

bool ops_kv_in_four_bits(enum ops_kv_type type)
{
    return type == OPS_KV_G4;
}

uint64_t ops_kv_latest_bytes(const struct ops_kv_layout *l)
{
    struct ops_kv_layout i8 = {.k_heads = ops_kv_in_four_bits(l->k_type) ? l->k_heads : 0,
                               .v_heads = ops_kv_in_four_bits(l->v_type) ? l->v_heads : 0,
                               .k_dim = l->k_dim,
                               .v_dim = l->v_dim,
                               .k_type = OPS_KV_I8,
                               .v_type = OPS_KV_I8};

    return l->k_unrotated ? 0 : ops_kv_slot_bytes(&i8);
}

uint64_t ops_kv_slot_bytes(const struct ops_kv_layout *l)
{
    uint64_t k = ops_kv_type_bytes(l->k_type, l->k_dim) + ops_kv_scale_bytes(l->k_type);
    uint64_t v = ops_kv_type_bytes(l->v_type, l->v_dim) + ops_kv_scale_bytes(l->v_type);

    return (uint64_t)l->k_heads * k + (uint64_t)l->v_heads * v;
}

bool ops_sample_covers(const struct ops_sample_row *row, int32_t n_vocab)
{
    return row->temperature <= 0 || row->top_k <= OPS_SAMPLE_MAX_K || row->top_k >= n_vocab;
}

float ops_alibi_slope(int32_t head, int32_t n_heads, float max)
{
    int32_t pow2 = 1;

    while (pow2 * 2 <= n_heads) {
        pow2 *= 2;
    }
    /* Heads beyond the power of two take the odd steps of the next power's finer series. */
    double step = head < pow2 ? (double)(head + 1) : (double)(head - pow2) + 0.5;
    return (float)exp2(-(double)max * step / (double)pow2);
}
