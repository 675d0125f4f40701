/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ATTENTION_SELECT_H
#define PIPIT_KERNELS_CPU_ATTENTION_SELECT_H
/* What the two halves of selecting attention share: ranking all slots (attention_select.c), and the
 * choice and what follows it (attention_chosen.c). */

#include "kernels/cpu/attention.h"

/* One row and group. Arrays by query head of the group. */
struct att_select {
    struct att_unit u;
    const struct ops_select *select;
    int32_t row;
    int32_t row_pos;
    int32_t hidden; /* 1 + a slot that is not ranked, or 0 */
    int32_t n_slots;
    int32_t n_dims;
    int32_t n_chunks;
    size_t ld;
    size_t ld_q;
    size_t ld_max;
    float *x;      /* (n_heads, ld): logits in units of log2, then weights */
    float *seen;   /* (n_heads, ld): what is observed */
    float *max;    /* (n_heads, ld_max): of chunks */
    float *q;      /* (n_heads, ld_q): packed */
    int32_t *dims; /* (n_heads, ld_q), of a K head at its first query head */
};

const float *att_select_query(const struct att_select *a, int32_t head);
/* From logits, or the slots given, to the output. */
void att_select_attend(const struct att_select *a);
/* From logits to the a->select->k best of what a->row_pos sees, ascending, by the sum over heads;
 * the logits become weights. Returns how many. */
int32_t att_select_list(const struct att_select *a, int32_t *list);

#endif
