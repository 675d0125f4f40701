/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_SLOT_RANK_CUH
#define PIPIT_KERNELS_CUDA_SLOT_RANK_CUH

/* The order in which a store's slots are evicted: by score above position, or by position alone
 * (ops.h ops_victim, ops_cut). */

#include "kernels/cuda/topk.cuh"

struct slot_rank {
    const int32_t *slot_pos; /* (n_groups, cap) or NULL: slot = position */
    const float *score;      /* the same */
    int32_t cap, n_groups, sinks, pos_protect;
    bool by_position, shared;
};

static inline struct slot_rank slot_rank_of(const struct ops_kv *kv, int32_t sinks,
                                            int32_t pos_protect, bool by_position, bool shared)
{
    return {kv->slot_pos, kv->score, kv->cap, kv->layout->n_groups, sinks, pos_protect, by_position,
            shared};
}

/* The key by which slots of `group` are chosen; TOPK_NONE for those that may not go. */
CUDA_INLINE uint64_t topk_key(const struct slot_rank *p, int32_t group, int32_t slot)
{
    size_t at = (size_t)group * p->cap + slot;
    int32_t pos = p->slot_pos ? p->slot_pos[at] : slot;
    float score = 0;

    if (pos < 0 || pos < p->sinks || pos >= p->pos_protect) {
        return TOPK_NONE;
    }
    if (p->by_position) {
        return (uint64_t)(uint32_t)pos;
    }
    if (p->shared) {
        for (int32_t g = 0; g < p->n_groups; g++) {
            score += p->score[(size_t)g * p->cap + slot];
        }
    } else {
        score = p->score[at];
    }
    return (uint64_t)topk_sortable(score) << 32 | (uint32_t)pos;
}

#endif
