/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_REQUEST_H
#define PIPIT_ENGINE_SCHED_REQUEST_H

/* A request from submit to its last event, and the lists of those that wait and those that run.
 *
 * One text: `tokens` holds the prompt, then the new tokens (forced ones first). n_fed of them are
 * in the cache, the one at n_fed is fed next. While n_fed < n_prompt the prompt is being read. */

#include "engine/engine.h"
#include "engine/kv/kv.h"

struct principal {
    uint64_t id;
    int32_t n_requests;  /* waiting and running */
    uint64_t admit_turn;  /* when one of its requests was last admitted, */
    uint64_t chunk_turn; /* and when one last had a chunk of its prompt read; 0: never */
};

struct request {
    struct request *next;
    uint64_t handle;
    enum engine_kind kind;
    struct principal *principal;
    int32_t urgency;
    void *user;
    int32_t *tokens; /* (n_tokens_max) */
    int32_t n_prompt;
    int32_t n_forced;
    int32_t n_new; /* known new tokens, forced ones counted once their turn has come */
    int32_t max_new;
    int32_t n_tokens_max; /* n_prompt + max_new */
    int32_t n_fed;
    bool until_ctx;  /* max_new is what the context leaves */
    bool ignore_end;
    bool report_forced;
    int32_t most_drafted; /* tokens drafted a step, at most; 0: none */
    int32_t n_drafting;   /* in the batch that is built or run */
    int32_t n_proposing;  /* rows of it there that the early-exit head is to fill */
    int32_t n_drafted;
    int32_t n_accepted;
    int32_t n_exited;
    struct policy policy;
    int32_t use; /* row of the table of policies */
    struct geometry_text text;
    uint64_t fork_of;       /* handle of one whose text this one begins with, 0: none */
    struct snapshot *saved; /* to begin with, until it is loaded: once admitted, it is being loaded */
    void *saved_copy;       /* of its block, where that lay in memory */
    bool resumed;           /* began with one, or with a synthetic cache */
    bool unsaved;           /* as engine_request's: behind its end nobody looks into its cache */
    struct sampler sampler;
    float *logits;
    int32_t logits_rows;
    int32_t score_first;
    float *hidden; /* EMBED: the caller's */
    float *sum;    /* (n_embd) of rows so far, and (n_embd) the row that is read */
    enum engine_pool pool;
    bool unit;
    int64_t n_scored; /* rows scored, or embedded */
    int64_t credit;
    bool synthetic;    /* its prompt's K and V are */
    bool needs_peak; /* the cache's one region for long prompts */
    bool stashes;    /* scored from hidden states that are set aside */
    int32_t seq;    /* -1: waiting */
    bool in_batch;
    bool cancelled;
    bool finished; /* DONE was emitted; kept while a batch holds its rows, or it is being saved */
    struct snapshot_writer *save; /* since its DONE, until sched_save_end() */
    bool rests;                   /* in the list of those that are only there to be saved */
    enum engine_reason reason;
    int64_t submit_ns;
    int64_t first_row_ns;
    int64_t first_token_ns;
};

struct request_list {
    struct request *first; /* in order of submission */
    int32_t n;
};

/* Copies and checks nothing: sched.c did. -ENOMEM. */
int request_create(const struct engine_request *r, int32_t max_new, struct request **ret,
                   struct error *reterr) WARN_UNUSED;
void request_destroy(struct request *r); /* takes NULL */
void request_drop_saved(struct request *r);

void request_append(struct request_list *l, struct request *r);
void request_remove(struct request_list *l, struct request *r);
struct request *request_find(const struct request_list *l, uint64_t handle);

#endif
