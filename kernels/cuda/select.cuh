/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_SELECT_CUH
#define PIPIT_KERNELS_CUDA_SELECT_CUH

/* Rows that select, as attention.cu hands them on; and what choosing slots by their summed
 * probabilities needs, for them and for rows to come (predict.cu). */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/topk.cuh"

enum {
    SELECT_ON_CHIP = 22 << 10, /* slots whose sums a block of any sm_80 and later holds: 88 KB */
    SELECT_CHUNK_MAX = 1024,   /* cuda_chunk's largest */
};

/* Largest value and 1 / sum of e^(x - largest); all threads of the block get them. */
CUDA_INLINE void softmax_sums(const float *x, int32_t n, float *part, float *ret_max,
                              float *ret_inv)
{
    float top = -INFINITY;
    float sum = 0;

    for (int32_t s = (int32_t)threadIdx.x; s < n; s += TOPK_THREADS) {
        top = fmaxf(top, x[s]);
    }
    top = block_max(top, part, TOPK_WARPS);
    for (int32_t s = (int32_t)threadIdx.x; s < n && top > -INFINITY; s += TOPK_THREADS) {
        sum += expf(x[s] - top);
    }
    sum = block_sum(sum, part, TOPK_WARPS);
    *ret_max = top;
    *ret_inv = sum > 0 ? 1.0f / sum : 0.0f;
}

/* What topk_key ranks a list's slots by. */
struct mass {
    const struct cuda_seq *s;
    const float *p; /* (n_slots), -1 for slots that the row does not see */
    int32_t group, pos_local;
};

CUDA_INLINE uint64_t topk_key(const struct mass *m, int32_t list, int32_t slot)
{
    int32_t pos;

    if (m->p[slot] < 0) {
        return TOPK_NONE;
    }
    pos = kv_pos(m->s, m->group, slot);
    if (pos >= m->pos_local) {
        return (uint32_t)pos; /* before all others */
    }
    return (uint64_t)~topk_sortable(m->p[slot]) << 32 | (uint32_t)pos;
}

/* Slots whose key is at most `last`, in ascending order. */
CUDA_INLINE int32_t write_list(const struct mass *m, int32_t n_slots, uint64_t last, int32_t *list,
                               int32_t *part)
{
    int32_t n = 0;

    for (int32_t s0 = 0; s0 < n_slots; s0 += TOPK_THREADS) {
        int32_t slot = s0 + (int32_t)threadIdx.x;
        uint64_t key = slot < n_slots ? topk_key(m, 0, slot) : TOPK_NONE;
        bool in = key != TOPK_NONE && key <= last;
        int32_t before;
        int32_t all = topk_scan(in, part, &before);

        if (in) {
            list[n + before] = slot;
        }
        n += all;
    }
    return n;
}

/* ---- the calls ------------------------------------------------------------------------------ */

bool cuda_select_valid(const struct cuda *cu, const struct ops_attention *p, int32_t seq);

/* One decode row a sequence; all of them with the same kind, k, r, local, renorm and chosen. */
int cuda_attend_select(struct cuda *cu, const struct attend *a, const struct ops_select *select);

#endif
