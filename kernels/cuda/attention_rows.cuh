/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_ROWS_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_ROWS_CUH

/* What both kernels of prefill rows share: sets of heads and their pairs, codes as f16, sums of a
 * row that lies in 4 lanes.
 *
 * Query heads that share a K head and a V head are one set, and (row, head) a pair of it: pair i is
 * row i / set, head i % set. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_four.cuh"

#define LOG2E 1.44269504088896340736f

/* What a block works on. */
struct part {
    const struct cuda_seq *s;
    int32_t group, k_head, v_head;
    int32_t head0, set; /* query heads [head0, head0 + set) */
    int32_t pair0;
    int32_t first_pos, last_pos; /* of its rows */
};

/* A row that 4 lanes share: `top`, which its sums are relative to, in logits times log2(e); this
 * lane's sum of 2^(x - top). */
struct running {
    float top, sum;
};

/* Consecutive query heads that share a K head and a V head. */
static inline __host__ __device__ int32_t heads_of_set(const struct cuda_layout *l, int32_t n_q)
{
    int32_t a = n_q / l->n_groups / l->k_heads;
    int32_t b = n_q / l->n_groups / l->v_heads;

    while (b > 0) {
        int32_t rest = a % b;

        a = b;
        b = rest;
    }
    return a;
}

/* A grid of blocks of n pairs. Sets lie beside their rows in x, which alone may have more than
 * 65,535 blocks. */
static inline dim3 grid_of_parts(const struct attend *p, int32_t rows, int32_t n)
{
    int32_t set = heads_of_set(&p->seqs.layout, p->n_q);

    return dim3((unsigned)(p->n_q / set) * cuda_div_up((uint64_t)rows * (uint64_t)set, (uint64_t)n),
                (unsigned)p->seqs.n);
}

/* The n pairs of this block, those of the last rows first; false: the sequence has none of them. */
CUDA_INLINE bool part_of(const struct attend *p, int32_t n, struct part *ret)
{
    const struct cuda_seq *s = &p->seqs.s[blockIdx.y];
    int32_t sets;
    struct attend_head h;

    ret->s = s;
    ret->set = heads_of_set(&p->seqs.layout, p->n_q);
    sets = p->n_q / ret->set;
    ret->head0 = (int32_t)blockIdx.x % sets * ret->set;
    ret->pair0 = ((int32_t)gridDim.x / sets - 1 - (int32_t)blockIdx.x / sets) * n;
    h = attend_head_of(p, ret->head0);
    ret->group = h.group;
    ret->k_head = h.k_head;
    ret->v_head = h.v_head;
    ret->first_pos = s->pos0 + ret->pair0 / ret->set;
    ret->last_pos = s->pos0 + min((ret->pair0 + n - 1) / ret->set, s->n_rows - 1);
    return ret->pair0 < s->n_rows * ret->set;
}

/* The next tile from s0 on that some row sees; n_slots and beyond: none. */
template <int SLOTS>
CUDA_INLINE int32_t next_tile(const struct attend *p, const struct part *b, int32_t s0)
{
    while (s0 < b->s->n_slots && attend_unseen(p, b->s, s0, SLOTS, b->first_pos, b->last_pos)) {
        s0 += SLOTS;
    }
    return s0;
}

CUDA_INLINE uint8_t *page_at(const struct attend *p, const struct part *b, uint32_t page)
{
    return b->s->pool + (size_t)page * p->seqs.layout.page_bytes;
}

/* The first row of the block's head of K or V. */
template <bool IS_K>
CUDA_INLINE const uint8_t *head_of(const struct attend *p, const struct part *b, uint32_t page)
{
    const struct cuda_layout *l = &p->seqs.layout;

    return IS_K ? kv_k_row(l, page_at(p, b, page), b->k_head, 0)
                : kv_v_row(l, page_at(p, b, page), b->v_head, 0);
}

/* For what is observed of a row (attention_observe.cu): its top, and 1 / the sum relative to it,
 * which its 4 lanes have. */
CUDA_INLINE void leave_sums(const struct attend *p, const struct part *b, int32_t row, int32_t head,
                            float top, float sum)
{
    if (attend_observed(p, (int32_t)blockIdx.y) && threadIdx.x % 4 == 0) {
        float *to = p->sums + ((size_t)(b->s->row0 + row) * p->n_q + head) * 2;

        to[0] = top;
        to[1] = sum > 0 ? 1.0f / sum : 0.0f;
    }
}

/* Eight codes as f16; of V times the scale. */
template <bool IS_K>
CUDA_INLINE uint4 widen8(int32_t type, uint32_t lo, uint32_t hi, uint16_t scale)
{
    uint32_t w[4];

    if (type == OPS_KV_FP8) {
        half4_of_fp8(lo, w);
        half4_of_fp8(hi, w + 2);
    } else {
        half4_of_s8(lo, w);
        half4_of_s8(hi, w + 2);
    }
#pragma unroll
    for (int i = 0; i < 4 && !IS_K; i++) {
        w[i] = half2_times(w[i], scale);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
