/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_REF_ATTENTION_H
#define PIPIT_KERNELS_REF_ATTENTION_H
/* What attention of all slots (attention.c) and of some (select.c) share: a unit of work, its pages
 * decoded once for all rows and heads that read them, and the softmax between K and V. */

#include "kernels/ref/ref.h"

/* Rows [row, row_end) of `seq`, a block of them at a time. */
struct ref_unit {
    const struct ops_attention *p;
    const struct ops_seq *seq;
    const struct ops_observe *observe; /* NULL: not observed */
    const struct ops_select *select;   /* NULL: rows read all they see */
    const struct ops_kv_layout *l;
    const struct ref_thread *t;
    size_t max_slots; /* row length of t->logits */
    int32_t group;
    int32_t n_heads; /* query heads of the group */
    int32_t row;
    int32_t row_end;
    int32_t rank_offset; /* pos=new: D of ops.h */
    int32_t hidden;      /* 1 + a slot that no row sees, or 0 */
    bool round_k;        /* K is seen rounded to fp8 (OPS_RANK_8) */
};

/* What is done with one decoded page for one row and query head; logits (n_slots). */
typedef void ref_pair_fn(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                         float *logits);

/* Decodes each page of each K (or V) head once and calls fn for the rows [r0, r1) and the query
 * heads that read it, with their row of t->logits. */
void ref_over_pages(const struct ref_unit *u, int32_t r0, int32_t r1, bool keys, ref_pair_fn *fn);
void ref_page_logits(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                     float *logits);
void ref_value_pair(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                    float *logits);

const float *ref_query(const struct ref_unit *u, int32_t row, int32_t head);
float *ref_out(const struct ref_unit *u, int32_t row, int32_t head);
bool ref_visible(const struct ref_unit *u, int32_t slot, int32_t row_pos);
/* ALiBi's slope of a query head, 0 without. */
float ref_slope(const struct ref_unit *u, int32_t head);
/* A dot product's logit, -Inf where the row does not see the slot. */
float ref_finish_logit(const struct ref_unit *u, float dot, float slope, int32_t slot,
                       int32_t row_pos);
/* x becomes e^(x - max); returns 1 / their sum, 0 when all are -Inf. */
float ref_softmax(float *x, int32_t n);
/* Adds one row's probabilities to the scores; logits (n_heads, max_slots). */
void ref_observe_row(const struct ref_unit *u, int32_t row, const float *logits);

/* select.c */
bool ref_selects(const struct ref_unit *u, int32_t row);
void ref_select_row(const struct ref_unit *u, int32_t row);
/* Marks in t->chosen the k best visible slots for a row at this position, by the sum of t->approx
 * over heads [h0, h1) of the group, the latest `local` first. True when that is all of them. */
bool ref_choose(const struct ref_unit *u, int32_t row_pos, int32_t k, int32_t local, int32_t h0,
                int32_t h1);
bool ref_select_valid(const struct ref *ref, const struct ops_attention *p, int32_t seq);

#endif
