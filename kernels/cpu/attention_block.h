/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ATTENTION_BLOCK_H
#define PIPIT_KERNELS_CPU_ATTENTION_BLOCK_H

/* A block of prefill rows of one sequence and head group: what attention_prefill.c, which owns it,
 * shares with attention_tiles.c. */

#include "kernels/cpu/attention.h"

struct att_block {
    struct att_unit u;
    int32_t seq;
    int32_t index; /* of the block within the sequence */
    int32_t row0;  /* rows of the sequence */
    int32_t n_rows;
    int32_t n_pairs;                   /* pair = head * n_rows + row */
    int32_t ld_rows;                   /* of a head in t.acc: n_rows, or whole tiles */
    int32_t n_pages;                   /* of the slots the block may see */
    const struct kv_rank_table *ranks; /* pos=new */
    int32_t rank_offset;
    bool tiles;                       /* products go as tiles of bf16 (attention_tiles.c) */
    bool turned;                      /* pos=new with RoPE: queries lie turned back in u.t.q */
    int32_t pos_min;                  /* of the page's slots; -1 where one is empty */
    int32_t pos_max;
    int32_t distance[OPS_PAGE_SLOTS]; /* of the page's slots, for ALiBi: positions, or ranks + D */
    /* (n_pairs) each, in t.state */
    float *max;
    float *sum;
    float *seen_max;
    float *seen_sum;
};

/* Where a pair's observed weights of a page lie, and the maximum they go by. */
static inline float *att_seen_of(const struct att_block *b, int32_t pair, int32_t page)
{
    return b->u.t->seen + ((size_t)pair * (size_t)b->n_pages + (size_t)page) * OPS_PAGE_SLOTS;
}

static inline float *att_seen_max_of(const struct att_block *b, int32_t pair, int32_t page)
{
    return b->u.t->seen_max + (size_t)pair * (size_t)b->n_pages + (size_t)page;
}

/* Does no row of the block see a slot of this page? Such pages are left out: their weights would be
 * exactly 0. */
bool att_page_hidden(const struct att_block *b, int32_t page);

/* A row's observed weights of one page from its logits x (64) and noise (NULL: none): ATT_TEMPERED.
 * Row i of the block. */
void att_temper(const struct att_block *b, int32_t head, int32_t i, int32_t page, const float *x,
                const float *noise);

/* Do products of this unit go as tiles? Depends on the CPU and the model alone. */
bool att_tiles_serve(const struct att_unit *u);
/* Rows that a block should have; any number is right. */
int32_t att_tiles_rows(const struct att_unit *u);
/* All pages from first_page on: acc, max, sum, and what is seen. */
void att_tiles_block(struct att_block *b, int32_t first_page);

#endif
