/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_KERNELS_LAYERS_H
#define PIPIT_BENCH_KERNELS_LAYERS_H

/* K and V of some layers and sequences for the figures of attention (attention.c, select.c): each
 * launch reads another layer's pages, of which there are more than the device's caches hold. */

#include "bench/kernels/kbench.h"

enum { LAYERS_MOST = 32, LAYERS_SEQS = 8, LAYERS_DIM = 256 };

/* How a model's heads are: query heads, K (and V) heads, dims of each. */
struct layers_heads {
    int32_t n_q;
    int32_t n_k;
    int32_t dim;
};

struct layers {
    struct layers_heads heads;
    struct ops_kv_layout layout;
    struct ops_seq seqs[LAYERS_MOST][LAYERS_SEQS];
    struct ops_attention op;
    uint8_t *pool;
    void *pages;
    uint8_t *latest; /* of caches of four bits: all layers and sequences share one */
    void *q;         /* noise, and room for results: layers_open */
    void *out;
    int n;           /* layers */
};

/* Queries and results of 32 heads of 128, or what is as large, by all rows. */
int layers_open(struct kbench *k, struct layers *l, struct error *reterr) WARN_UNUSED;
void layers_close(struct kbench *k, struct layers *l);

/* The layout of pages, and attention as it is for these heads. `part_dims`: of partial keys in f16;
 * 0: none. */
int layers_describe(struct kbench *k, struct layers *l, const struct layers_heads *heads,
                    enum ops_kv_type k_type, enum ops_kv_type v_type, enum ops_rank rank,
                    int32_t part_dims, struct error *reterr) WARN_UNUSED;

/* Pages of all layers and sequences, `depth` slots each, and the batch of one decode row each.
 * `touched`: bytes of a layer that a piece reads; 0: all. */
int layers_make(struct kbench *k, struct layers *l, int32_t depth, int n_seqs, uint64_t touched,
                struct error *reterr) WARN_UNUSED;
void layers_drop(struct kbench *k, struct layers *l);

/* A kbench_round: attention (struct layers). */
int layers_attend(struct kbench *k, void *arg, int n);
/* How many pieces a round of decode rows has. */
int layers_pieces(const struct kbench *k, const struct layers *l);

#endif
