/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_KV_H
#define PIPIT_ENGINE_KV_KV_H

/* The door to the key-value cache: what the scheduler, the forward pass and engine.c see of it.
 *
 * A step computes rows of some sequences. The scheduler prepares the rows (kv_step_prepare: pages,
 * and the slots that are overwritten), names them (kv_step_begin, kv_step_add), runs the forward
 * pass, and commits or undoes them. The forward pass makes one call for each layer and phase
 * (kv_layer). What a policy observes, selects, sums, fetches or stages is decided behind it.
 *
 *     kv_step_prepare, kv_step_begin, kv_step_add ...
 *         KV_PREDICT   the next layer's slots are ranked by queries made ahead of time
 *         KV_FETCH     the next layer's K and V begin to come where attention reads them
 *         KV_LAND      the layer's own have come
 *         KV_STORE     the rows' K and V are written, queries rotated
 *         KV_ATTEND    attention
 *     kv_step_commit or kv_step_undo
 *
 * There is one step at a time; it may be given up and begun again until it is committed. */

#include "engine/kv/plan/plan.h"
#include "engine/kv/seq/cache.h"
#include "engine/kv/seq/snapshot.h"

/* Rows of one sequence in a step: consecutive tokens, of the prompt or after it. */
struct kv_rows {
    int32_t seq;  /* the sequence's slot index */
    int32_t row0; /* of the batch */
    int32_t n_rows;
    int32_t pos0;     /* position of the first */
    int32_t n_beyond; /* so many of the last go on beyond SwiftKV's split */
    /* The call as the policy sees it, of which these rows may be a part: a chunk of a prompt. */
    int32_t chunk_pos0;
    int32_t chunk_rows;
};

/* Room for n_rows more tokens (one, when the sequence is beyond its prompt). */
int kv_step_prepare(struct cache *c, int32_t seq, int32_t n_rows) WARN_UNUSED;
void kv_step_begin(struct cache *c);
/* In order of row0, decode rows first. The rows are prepared, or the sequence is read layer-wise.
 */
void kv_step_add(struct cache *c, const struct kv_rows *rows);
/* Does the step change scores or sums? Then it is taken up where it stopped, never run again. */
bool kv_step_once(const struct cache *c);
/* The sequence's first n_rows prepared rows are in. The others stay prepared: they are committed
 * later, in order, or undone, and then the cache is as if they had never been. */
void kv_step_commit(struct cache *c, int32_t seq, int32_t n_rows);
void kv_step_undo(struct cache *c, int32_t seq);

enum kv_phase { KV_PREDICT, KV_FETCH, KV_LAND, KV_STORE, KV_ATTEND };

/* Rows that are running where these are not all of the step's: of sequence i the rows
 * [first[i], first[i] + count[i]), which begin at row0[i] of the buffers. */
struct kv_part {
    const int32_t *row0;
    const int32_t *first;
    const int32_t *count;
};

struct kv_args {
    int32_t layer;
    int32_t store;              /* that the layer reads */
    struct ops_rows rows;       /* that are running */
    const struct kv_part *part; /* NULL: all */
    /* KV_STORE: queries, K and V of the rows (n_q 0: only K and V, n_k 0: only queries).
     * KV_PREDICT: queries, or NULL where kv_predicts() is false. seqs are filled in. */
    struct ops_rope_store *store_rows;
    struct ops_matmul *qkv;        /* KV_STORE: the product that makes them, where it is fused */
    struct ops_attention *attend;  /* KV_ATTEND; seqs, observe, select are filled in */
    struct ops_speculate *predict; /* KV_PREDICT, with store_rows; likewise */
};

int kv_layer(struct cache *c, enum kv_phase phase, const struct kv_args *args) WARN_UNUSED;
/* Does a row of the step read slots that are predicted? */
bool kv_predicts(struct cache *c, const struct kv_args *args);
/* Memory for predictions, (n_seqs) lists for stores of even and of odd numbers. */
void kv_step_lists(struct cache *c, const struct ops_chosen lists[2]);

/* First position, from pos0 on, of a chunk's n rows whose attention the policy observes; INT32_MAX:
 * none. Such rows go through all layers. */
int32_t kv_observed_from(const struct cache *c, int32_t seq, int32_t pos0, int32_t n);
/* How many of a chunk's n rows may be dealt out to calls of any size; the rest goes at once.
 * as_chunks: each call is then a chunk of its own. */
int32_t kv_divisible(const struct cache *c, int32_t seq, int32_t pos0, int32_t n, bool as_chunks);

#endif
