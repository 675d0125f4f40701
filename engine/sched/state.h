/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_STATE_H
#define PIPIT_ENGINE_SCHED_STATE_H

/* The scheduler's state, and how a request ends. Private to engine/sched. */

#include "engine/sched/batch.h"
#include "engine/sched/draft.h"
#include "engine/sched/output.h"
#include "engine/sched/prompt.h"
#include "engine/sched/sched.h"
#include "engine/sched/token_budget.h"
#include "engine/sched/uses.h"

struct sched {
    struct sched_config config;
    const struct backend_ops *ops;
    struct backend *be;
    struct forward *forward;
    atomic_int interrupt;
    atomic_bool notice; /* no step is begun ahead of its turn */
    struct request_list waiting;
    struct request_list running;
    struct request_list resting;   /* finished, being saved: they hold a sequence and no row */
    int64_t step_ns;               /* what a step took last, but for loading */
    bool full;                     /* one that waits found no free sequence, and none was released since */
    struct principal **principals; /* (n_principals) */
    int32_t n_principals;
    int32_t cap_principals;
    uint64_t turn;
    uint64_t next_handle;
    struct batch batch;
    struct token_budget token_budget;
    struct prompt whole;
    struct prompt chunk;
    bool chunk_next; /* whose turn it is of the two */
    struct stash stash;
    struct drafts drafts;
    void *stash_memory;
    uint64_t stash_bytes;
    float *logits; /* host (logit rows, n_vocab) */
    uint64_t logits_bytes;
    float *logprobs; /* host (logit rows) */
    void *sampler_memory;
    void *batch_memory; /* the batch's arrays, and logprobs */
    struct sampler_scratch sampler;
    struct engine_event event; /* being built: large, so not on the stack */
    engine_emit *emit;
    void *emit_arg;
    struct engine_counters counters;
    struct uses uses;
};

/* Ends a request: DONE is emitted, its sequence is released (at once, or when the pending batch
 * is over). */
void sched_finish(struct sched *s, struct request *r, enum engine_reason reason,
                  const struct error *error);
/* ... because the device had no memory left. */
void sched_finish_without_memory(struct sched *s, struct request *r);
/* One that has ended releases its sequence, or rests in it while it is being saved. */
void sched_leave(struct sched *s, struct request *r);
/* submit.c */
void sched_leave_principal(struct sched *s, struct principal *p);
void sched_emit(struct sched *s, struct request *r);

#endif
