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
    SELECT_TILE = 256,         /* slots that are ranked by one block, */
    SELECT_NEAR = 16384,       /* of a sequence of up to so many; */
    SELECT_TILE_FAR = 1024,    /* of a longer one */
    SELECT_BINS = 2048         /* of slots by their mass */
};

/* Of a row that sees so many slots: sums of logits have the order of tiles. */
static inline __host__ __device__ int32_t select_tile(int32_t n_slots)
{
    return n_slots <= SELECT_NEAR ? SELECT_TILE : SELECT_TILE_FAR;
}

/* Tiles that a sequence of up to `max_slots` can have: drafts may lie behind what a row sees. */
static inline __host__ __device__ int32_t select_max_tiles(int32_t max_slots)
{
    return (max_slots + SELECT_TILE - 1) / SELECT_TILE;
}

/* Largest value and 1 / sum of e^(x - largest); all threads of the block get them. */
CUDA_INLINE void softmax_sums(const float *x, int32_t n, float *part, float *ret_max,
                              float *ret_inv)
{
    float top = -INFINITY;
    float sum = 0;

#pragma unroll 4
    for (int32_t s = (int32_t)threadIdx.x; s < n; s += TOPK_THREADS) {
        top = fmaxf(top, x[s]);
    }
    top = block_max(top, part, TOPK_WARPS);
#pragma unroll 4
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

/* Slots whose key is at most `last`, in ascending order; a thread has TOPK_AT_ONCE in a row. */
CUDA_INLINE int32_t write_list(const struct mass *m, int32_t n_slots, uint64_t last, int32_t *list,
                               int32_t *part)
{
    int32_t n = 0;

    for (int32_t s0 = 0; s0 < n_slots; s0 += TOPK_AT_ONCE * TOPK_THREADS) {
        int32_t first = s0 + (int32_t)threadIdx.x * TOPK_AT_ONCE;
        uint32_t in = 0;

#pragma unroll
        for (int j = 0; j < TOPK_AT_ONCE; j++) {
            uint64_t key = first + j < n_slots ? topk_key(m, 0, first + j) : TOPK_NONE;

            in |= (uint32_t)(key != TOPK_NONE && key <= last) << j;
        }
        n = topk_append<TOPK_AT_ONCE>(in, first, list, n, part);
    }
    return n;
}

/* ---- the calls ------------------------------------------------------------------------------ */

bool cuda_select_valid(const struct cuda *cu, const struct ops_attention *p, int32_t seq);

/* One decode row a sequence; all of them with the same kind, k, r, local, renorm and chosen.
 * `seen`: slots up to the row's own, of each. */
int cuda_attend_select(struct cuda *cu, const struct attend *a, const struct ops_select *select,
                       const int32_t *seen);

#endif
