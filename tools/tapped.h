/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_TAPPED_H
#define PIPIT_TOOLS_TAPPED_H

/* A model that reads a text as ever, on the backend cpu with an f32 cache, but through a table of
 * operations in which two are taps: attention, and products by weights. Layers run in order, so a
 * count tells which: an attention tap adds 1 to `layer`, and both hand on to `ops`. */

#include <stdatomic.h>

#include "engine/model/model.h"

enum { TAPPED_CHUNK = 512 };

struct cache;
struct forward;

typedef int tapped_attention(struct backend *be, const struct ops_attention *p);
typedef int tapped_matmul(struct backend *be, const struct ops_matmul *p);

struct tapped {
    struct model *m; /* set before it is made; the run owns it */
    const struct backend_ops *ops; /* the backend's own */
    struct backend_ops table;
    struct backend *be;
    struct geometry_store *stores;
    struct cache *cache;
    struct forward *forward;
    uint8_t *slot; /* one, as it is exported */
    int32_t n_all; /* positions of a text */
    int32_t seq;   /* -1: none */
    int32_t layer; /* whose attention runs next */
    int32_t pos0;  /* of the chunk */
    atomic_int interrupt;
};

/* Loads t->m for texts of n_all tokens. 0, or a negative errno with its cause. */
int tapped_make(struct tapped *t, int32_t n_all, int n_threads, tapped_attention *attention,
                tapped_matmul *matmul, struct error *reterr) WARN_UNUSED;
/* ids (n_all): a new sequence, t->seq, in chunks of TAPPED_CHUNK. */
int tapped_feed(struct tapped *t, const int32_t *ids, struct error *reterr) WARN_UNUSED;
/* *ret: the key (k_dim) or value (v_dim) that a K or V head has in a slot, until the next call. */
int tapped_key(struct tapped *t, const struct ops_kv *kv, int32_t head, int32_t slot,
               const float **ret) WARN_UNUSED;
int tapped_value(struct tapped *t, const struct ops_kv *kv, int32_t head, int32_t slot,
                 const float **ret) WARN_UNUSED;
/* Closes the model, too, also of a run that was not made or half made. */
void tapped_finish(struct tapped *t);

#endif
