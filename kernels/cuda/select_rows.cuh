/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_SELECT_ROWS_CUH
#define PIPIT_KERNELS_CUDA_SELECT_ROWS_CUH

/* Decode rows that read some of their slots, inside: what the kernels that rank (select_rank.cu),
 * choose (select.cu) and read what was chosen (select_chosen.cu) share. */

#include "kernels/cuda/select.cuh"

enum { SELECT_HB = 4 /* query heads of a block */, SELECT_DIM_MAX = 256 };

struct select {
    struct attend a;
    int32_t kind, k, local; /* of all rows of the launch */
    int32_t r;
    int32_t most[CUDA_SEQS]; /* slots of its lists at most: its chunks follow from that */
    int32_t tile_slots[CUDA_SEQS];
    int32_t entry[CUDA_SEQS];
    struct ops_chosen chosen;
    bool renorm;
    bool packed; /* entry i of a list is in slot i of the pages; its number says its position */
    bool mean[CUDA_SEQS];
    float *approx;
    float *mass;    /* (n, n_q, max_slots), of which a list has a row */
    float *tile;    /* (n, n_q, max_tiles, 2): largest logit, sum of e^(logit - largest) */
    int32_t *count; /* (n, n_q, SELECT_BINS), of which a list has a row: slots by their mass */
    int32_t *list;
    int32_t *list_n;
    float *stats;
    int32_t max_tiles;
    int32_t mass_slots; /* of a block of sum_heads */
    int32_t run;        /* query heads in a row that read one K head and one V head */
};

static_assert(sizeof(struct select) <= CUDA_CALL_BYTES, "what a launch can carry");

CUDA_INLINE int32_t lists_of(const struct select *p)
{
    const struct cuda_layout *l = &p->a.seqs.layout;

    return p->kind == OPS_SELECT_TOPV ? l->n_groups * l->v_heads : l->n_groups;
}

CUDA_INLINE int32_t list_of(const struct select *p, int32_t head)
{
    return head / (p->a.n_q / lists_of(p));
}

CUDA_INLINE int32_t list_length(const struct select *p, int32_t seq, int32_t list)
{
    return p->kind == OPS_SELECT_GIVEN ? p->chosen.n[p->entry[seq]] + 1
                                       : p->list_n[(size_t)(seq * p->a.n_q + list) * 2];
}

/* Slot i of a list of `n`. */
CUDA_INLINE int32_t list_slot(const struct select *p, int32_t seq, int32_t list, int32_t i,
                              int32_t n)
{
    if (p->kind != OPS_SELECT_GIVEN) {
        return p->list[(size_t)(seq * p->a.n_q + list) * p->a.max_slots + i];
    }
    return i == n - 1
               ? kv_own_slot(&p->a.seqs.s[seq], list)
               : p->chosen
                     .slots[(size_t)(p->entry[seq] * p->chosen.max_groups + list) * p->chosen.ld +
                            i];
}

/* Rows of scratch: (rows of the launch, n_q, max_slots). */
CUDA_INLINE size_t head_at(const struct select *p, int32_t seq, int32_t head)
{
    return (size_t)(seq * p->a.n_q + head) * p->a.max_slots;
}

/* Rows of logits and masses end with -INFINITY and -1 up to here. */
CUDA_INLINE int32_t padded_of(int32_t n_slots)
{
    return (n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;
}

CUDA_INLINE float *tile_at(const struct select *p, int32_t seq, int32_t head)
{
    return p->tile + (size_t)(seq * p->a.n_q + head) * p->max_tiles * 2;
}

CUDA_INLINE const float *query(const struct select *p, int32_t seq, int32_t head)
{
    return p->a.q + (size_t)p->a.seqs.s[seq].row0 * p->a.ldq +
           (size_t)head * p->a.seqs.layout.k_dim;
}

/* Logits that rank slots, and tiles of them; `most_tiles`: of one sequence. */
int cuda_select_rank(struct cuda *cu, const struct select *p, int32_t most_tiles);
/* Attention over the lists. */
int cuda_attend_chosen(struct cuda *cu, const struct select *p);

#endif
