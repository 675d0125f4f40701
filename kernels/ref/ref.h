/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_REF_REF_H
#define PIPIT_KERNELS_REF_REF_H
/* The reference backend, inside: one file per operation, all sharing this struct.
 *
 * Plain C17, scalar, f32 accumulation in written order. Threads share out whole rows, tokens or
 * head groups and never a part of a sum, so the bits do not depend on their number. Private: the
 * rest of the tree sees ref_backend only. */

#include "base/pool.h"
#include "kernels/backend.h"

enum {
    REF_TILE = 16,  /* tokens that a matmul inner loop and slots that a logit loop take at once */
    REF_PAIRS = 32, /* (row, query head) pairs of one attention block, unless n_q is larger */
};

/* Scratch of one thread. */
struct ref_thread {
    float *w;      /* (2, max_cols): two decoded weight rows, or one row of activations;
                      with experts behind them (2, max_cols) and (max_experts): experts.c */
    float *logits; /* (max(REF_PAIRS, max_heads), max_slots) */
    float *page;   /* (OPS_PAGE_SLOTS, max_head_dim): one decoded head of one page */
    float *head;   /* (max_head_dim) */
    float *p;      /* (max_slots): probabilities of one observed row and head */
    float *p_sum;  /* (max_slots): their sum over the heads of a group */
    int32_t *rank; /* (max_slots): pos=new */
    /* Of queries that select: */
    float *approx;   /* (max_heads, max_slots): probabilities by which slots are chosen */
    int32_t *order;  /* (max_slots) */
    bool *chosen;    /* (max_slots) */
    bool *dims;      /* (max_heads, max_head_dim): of a K head, those that rank */
    float *shrink;   /* (max_heads): 1 / sqrt(share) */
    uint8_t *codes;  /* (max_head_dim): one head in fp8 */
};

struct ref {
    struct backend be;
    struct pool *pool;
    int n_threads;
    struct backend_limits limits;
    void *scratch;
    size_t scratch_size;
    struct ref_thread *threads; /* (n_threads) */
    float *xt;                  /* matmul: (tiles of rows, n_cols, REF_TILE) */
    int32_t *order;             /* cut: (max_slots) */
    float *score;               /* shared victim and cut: (max_slots) */
    uint8_t *fetched;           /* (BACKEND_FETCHES, BACKEND_FETCH_BYTES) */
};

extern const struct backend_ops ref_backend;

/* Where one slot of one group lies: K heads [k_heads][k_dim], V heads, and a scale per head. */
struct ref_slot {
    uint8_t *k;
    uint8_t *v;
    uint16_t *k_scale;
    uint16_t *v_scale;
};

/* ret (n) gets one V head of a slot. */
void ref_kv_value(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t v_head, float *ret);
/* Partial key of one slot and K head, its scale behind it; its values, ret (part_dims); and those
 * of a slot made anew from its K, k and x (k_dim) scratch. */
uint8_t *ref_kv_part(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t k_head);
void ref_kv_part_values(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t k_head,
                        float *ret);
void ref_kv_make_part(const struct ops_kv *kv, int32_t group, int32_t slot, float *k, float *x);
struct ref_slot ref_kv_slot(const struct ops_kv *kv, int32_t group, int32_t slot);
/* Position held by a slot, -1 when empty. */
int32_t ref_kv_pos(const struct ops_kv *kv, int32_t group, int32_t slot);
/* Where the one row of a sequence goes. */
int32_t ref_own_slot(const struct ops_seq *seq, int32_t group);
int ref_kv_layout(struct ops_kv_layout *layout, struct error *reterr);

/* One row of n values; y may be x. */
void ref_norm_row(const struct ops_norm *norm, const float *x, float *y, int32_t n);
float ref_act(enum ops_act act, float x);
float ref_gated(enum ops_act act, float gate, float up);
/* One head at angle position `pos`, in place. */
void ref_rope_head(const struct ops_rope *rope, float *x, int32_t pos);

int ref_embed(struct backend *be, const struct ops_embed *p);
int ref_norm(struct backend *be, const struct ops_norm_op *p);
int ref_matmul(struct backend *be, const struct ops_matmul *p);
int ref_experts(struct backend *be, const struct ops_experts *p);
int ref_gather(struct backend *be, const struct ops_gather *p);
int ref_mul(struct backend *be, const struct ops_mul *p);
int ref_softcap(struct backend *be, const struct ops_softcap *p);
int ref_rope_store(struct backend *be, const struct ops_rope_store *p);
int ref_attention(struct backend *be, const struct ops_attention *p);
int ref_conv(struct backend *be, const struct ops_conv *p);
int ref_delta(struct backend *be, const struct ops_delta *p);
int ref_scan(struct backend *be, const struct ops_scan *p);
int ref_gate(struct backend *be, const struct ops_gate *p);
int ref_predict(struct backend *be, const struct ops_predict *p);
int ref_kv_sum(struct backend *be, const struct ops_kv_sum *p);
int ref_victim(struct backend *be, const struct ops_victim *p);
int ref_cut(struct backend *be, const struct ops_cut *p);
int ref_kv_export(struct backend *be, const struct ops_kv_slots *p);
int ref_kv_import(struct backend *be, const struct ops_kv_slots *p);
int ref_sample(struct backend *be, const struct ops_sample *p);
int ref_fetch(struct backend *be, int place, const void *device, uint64_t bytes);
int ref_fetched(struct backend *be, int place, void *host, uint64_t bytes);

#endif
