/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ATTENTION_H
#define PIPIT_KERNELS_CPU_ATTENTION_H

/* What decode (attention_decode.c) and prefill (attention_prefill.c) share: a unit of work, its
 * pages' positions, one pair's logits and what a policy observes of them (attention.c). */

#include "kernels/cpu/kv.h"

struct att_job {
    const struct cpu *cpu;
    const struct ops_attention *p;
    struct pool_counter next;
    struct pool_counter next_merge; /* att_select() */
    struct pool_counter next_score;
    struct kv_rank_table ranks; /* pos=new */
    int32_t row0;               /* decode: the wave's rows */
    int32_t n_rows;
    int32_t n_units;
};

/* How a row's observed weights come about (ops.h struct ops_observe). */
enum att_mode {
    ATT_UNSEEN,
    ATT_SOFTMAX,  /* tau 1, no noise (or a constant, which cancels): the softmax itself */
    ATT_GUMBEL,   /* tau 1: the softmax's exponentials times e^noise */
    ATT_TEMPERED, /* logits, maximum and exponentials of its own */
};

/* One thread's view of one sequence and group. */
struct att_unit {
    const struct cpu *cpu;
    const struct ops_attention *p;
    const struct ops_seq *seq;
    const struct ops_observe *observe; /* NULL: off */
    const struct ops_kv_layout *l;
    const struct kv_thread *t;
    int32_t group;
    int32_t n_heads; /* query heads of the group */
    int32_t share_k; /* query heads of one K head, one V head */
    int32_t share_v;
};

struct att_unit att_unit_make(const struct cpu *cpu, const struct ops_attention *p, int32_t seq,
                              int32_t group, const struct kv_thread *t);

/* Positions of slots [slot0, slot0 + 64), -1 from n_slots on; written to `pos`. */
void att_positions(const struct att_unit *u, int32_t slot0, int32_t *pos);

/* Dot products (64) to logits for one pair and page; returns the largest. `distance`: positions for
 * ALiBi, pos for masking. */
float att_logits(const struct att_unit *u, int32_t row, int32_t head, const uint16_t *k_scale,
                 const int32_t *pos, const int32_t *distance, bool masked, float *x);

/* Do decode rows, too, go over pages that are decoded to f32? (att_prefill) Those of GGUF's blocks
 * do, which are there to be compared with. */
static inline bool att_by_page(const struct ops_kv_layout *l)
{
    return l->k_unrotated || (kv_page_by_slot(l->k_type) && l->k_type != OPS_KV_G4) ||
           (kv_page_by_slot(l->v_type) && l->v_type != OPS_KV_G4);
}

/* Does the row miss any of the page's 64 slots? */
bool att_is_masked(const struct att_unit *u, int32_t row, int32_t slot0);

enum att_mode att_mode(const struct att_unit *u, int32_t row);
/* A head's sum of 2^(logit - max) with its sink, where there are sinks and a slot was seen. */
float att_with_sink(const struct ops_attention *p, int32_t head, float max, float sum);

float att_tau(const struct att_unit *u, int32_t row);
/* e^noise (ATT_GUMBEL) or noise (ATT_TEMPERED) of a page's keys; NULL: none. */
const float *att_noise(const struct att_unit *u, enum att_mode mode, int32_t row, int32_t head,
                       const int32_t *pos);
/* Adds the rows' weights to the scores of slots [slot0, slot0 + 64). */
void att_score(const struct att_unit *u, int32_t slot0, const struct cpu_kv_score *rows);
/* Scores of slots [slot0, slot0 + n) times damp^observed rows. */
void att_damp(const struct att_unit *u, int32_t slot0, int32_t n);

/* pos=new (unrotated.c). Ranks of the unit's slots to u->t.rank; returns D. */
int32_t att_rank(const struct att_unit *u);
struct kv_rank_table att_rank_table(const struct cpu *cpu, const struct kv_scratch *s,
                                    const struct ops_rope *r);
void att_rotate_keys(const struct att_unit *u, const struct kv_rank_table *t, int32_t slot0,
                     float *k);
void att_turn_query(const struct att_unit *u, int32_t d, const float *q, float *dst);

int att_decode(struct cpu *cpu, const struct ops_attention *p);
/* Decode rows where some select; the others go to att_decode(). */
int att_select(struct cpu *cpu, const struct ops_attention *p);
int att_prefill(struct cpu *cpu, const struct ops_attention *p);

#endif
