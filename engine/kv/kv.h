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
 *         KV_SCORE     under kvzap: the scores that the layer's map made for the new slots
 *         KV_ATTEND    attention
 *     kv_step_commit or kv_step_undo
 *
 * There is one step at a time; it may be given up and begun again until it is committed. */

#include "engine/kv/plan/plan.h"
#include "engine/kv/seq/snapshot.h"

struct cache;

/* ---- the cache, and who is in it --------------------------------------------------------------
 *
 * All memory is taken at creation. A sequence reserves what it will need at most when it is
 * admitted, so no step can run out. Creator: kv_create; freed by kv_destroy. One thread. */

/* Takes the geometry over (the caller's becomes zeroed), also on failure. */
int kv_create(struct geometry *geometry, struct backend *be, struct cache **ret,
              struct error *reterr) WARN_UNUSED;
void kv_destroy(struct cache *c); /* takes NULL */
/* The planned policies; the first is the default. */
const struct policy_mix *kv_mix(const struct cache *c);

/* Can it ever be admitted? -ENOMEM for what the plan lacks, with numbers; -ENOTSUP for what no plan
 * has. */
int kv_check(const struct cache *c, const struct policy *p, const struct geometry_text *text,
             struct error *reterr) WARN_UNUSED;
/* Would its prompt be read layer by layer? Would it need the one region for long prompts, and has
 * somebody that? */
bool kv_reads_layerwise(const struct cache *c, const struct policy *p,
                        const struct geometry_text *text);
bool kv_needs_peak(const struct cache *c, const struct policy *p, const struct geometry_text *text);
bool kv_peak_is_taken(const struct cache *c);

/* The slot index of the admitted sequence, or -EBUSY until others are released. Of its first
 * n_known tokens those that are kept are there already: kv_n_tokens(). */
int kv_admit(struct cache *c, const struct policy *p, uint64_t principal,
             const struct geometry_text *text, const int32_t *tokens, int32_t n_known);
void kv_release(struct cache *c, int32_t seq);
/* Admits one that begins as a copy of a sequence at rest whose prompt is read: same policy and
 * n_prompt, room for text->n_tokens. All pages are shared until one of the two writes. The new slot
 * index, or -EBUSY (no slot or pages, or the other is not at rest), or the device's error. */
int kv_fork(struct cache *c, int32_t parent, const struct geometry_text *text);
/* Can two sequences under the policy share pages, with equal n_steps or not? */
bool kv_may_fork(const struct policy *p, bool same_steps);
/* For measurements: K and V of the prompt are made up, as many and laid out as the policy would
 * have them. The text of such a request says that its prompt is held; -ENOTSUP. */
int kv_text_filled(const struct cache *c, const struct policy *p, struct geometry_text *text,
                   struct error *reterr) WARN_UNUSED;
int kv_fill(struct cache *c, int32_t seq) WARN_UNUSED;

int32_t kv_n_tokens(const struct cache *c, int32_t seq); /* committed */
/* Is its prompt being read layer by layer? May a chunk of it go through one layer after the other
 * while others decode? */
bool kv_is_layerwise(const struct cache *c, int32_t seq);
bool kv_may_interleave(const struct cache *c, int32_t seq);
/* How many rows a decode step may write that are undone: nothing may be overwritten by them,
 * nothing counted, and each must read what it would alone. */
int32_t kv_spare_rows(const struct cache *c, int32_t seq);
/* Have its K and V been lost? A negative errno with the cause; it must then be ended. */
int kv_failed(const struct cache *c, int32_t seq, struct error *ret);

struct kv_usage {
    uint64_t bytes;            /* of the pages that it holds */
    uint64_t full_token_bytes; /* that a token would take in f16, all kept */
    int64_t n_slots;           /* live, summed over stores and groups */
    int64_t n_evicted;
};

void kv_usage(const struct cache *c, int32_t seq, struct kv_usage *ret);
void kv_totals(const struct cache *c, uint64_t *ret_used, uint64_t *ret_total);
int32_t kv_token_slots(const struct cache *c); /* of one token, summed over stores */
void kv_file_counts(const struct cache *c, struct tier_counts *ret);

/* What a decode step moves of one store for one layer: lines of memory read, bytes of positions,
 * scores and sums. first: no layer before it reads the store. Added to *sum. -ENOENT: the plan has
 * no such pages. */
struct kv_traffic {
    double lines;
    uint64_t state_bytes;
};

int kv_traffic(const struct cache *c, const struct policy *p, int32_t n_prompt, int32_t n_tokens,
               int32_t store, bool first, struct kv_traffic *sum) WARN_UNUSED;

/* ---- prompts ----------------------------------------------------------------------------------
 */

/* The prompt is read so far; its first n tokens may be kept for others. */
void kv_keep(struct cache *c, int32_t seq, const int32_t *tokens, int32_t n);
/* After a commit, while or after the prompt is read: evicts what is above the budget, gives back
 * the pages above it. `last`: the prompt is complete. */
int kv_cut(struct cache *c, int32_t seq, bool last) WARN_UNUSED;
/* Layer-wise prefill: one store after the other takes the whole prompt, and is cut to the budget
 * when all of it is in. A commit and kv_cut() end it. */
int kv_layer_cut(struct cache *c, int32_t seq, int32_t store) WARN_UNUSED;
/* Hidden states: f32 rows of the whole prompt, and of those that go on beyond the split. */
float *kv_hidden(const struct cache *c);
float *kv_survivors(const struct cache *c);

/* ---- a step -----------------------------------------------------------------------------------
 */

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
/* The same under any policy, of which slots and sums may have changed: the sequence holds no more
 * than before, and can only be released. */
void kv_step_drop(struct cache *c, int32_t seq);

enum kv_phase { KV_PREDICT, KV_FETCH, KV_LAND, KV_STORE, KV_SCORE, KV_ATTEND };

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
    struct ops_score *score;       /* KV_SCORE: what the layer's map made of the rows; likewise */
    struct ops_attention *attend;  /* KV_ATTEND; seqs, observe, select are filled in */
    struct ops_predict *predict; /* KV_PREDICT, with store_rows; likewise */
};

int kv_layer(struct cache *c, enum kv_phase phase, const struct kv_args *args) WARN_UNUSED;
/* A recurrent layer has no phases: the states of the sequences, for its operations. */
int kv_states(struct cache *c, const struct kv_args *args, const struct ops_state **ret,
              int32_t *ret_n) WARN_UNUSED;
/* Has a row of the step a score by the layer's map? */
bool kv_scores(struct cache *c, const struct kv_args *args);
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
/* May a call have several chunks of its prompt? */
bool kv_joins_chunks(const struct cache *c, int32_t seq);

#endif
