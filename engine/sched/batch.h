/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_BATCH_H
#define PIPIT_ENGINE_SCHED_BATCH_H

/* The rows of one step: who takes part, and what is wanted of them. */

#include "engine/sched/request.h"

struct sched;

/* A row whose next-token distribution is wanted. */
struct wanted {
    struct request *r;
    int32_t seq; /* of the batch, */
    int32_t row; /* and row of it */
    int32_t pos;
};

/* The batch that is being run; it outlives a step that was interrupted. */
struct batch {
    bool pending; /* the forward pass has begun and not ended */
    bool exits;
    bool proposes;
    bool anew; /* built in the place of one that was given up for a cancel */
    bool surplus; /* a row of each beyond what is said is prepared (async_step.c) */
    int32_t n_seqs;
    struct request **of;         /* (n_seqs) whose rows */
    struct kv_rows *seqs;        /* (n_seqs) */
    float *exit;                 /* (n_seqs) */
    int32_t *propose;            /* (n_seqs) */
    float least;                 /* probability of a token that is worth proposing */
    int32_t *ids;                /* (most_rows) */
    struct ops_rows rows;
    struct wanted *wanted; /* (most_rows) */
    int32_t *wanted_rows;  /* (most_rows) */
    struct ops_sample_row *draws; /* (n_seqs) */
    int32_t *drawn;               /* (n_seqs) */
    int32_t n_wanted;
    int32_t done_wanted;
    int64_t begun_ns;            /* the step, 0: not to be timed */
    double took_ns;              /* it, when it is over; 0: not timed */
    bool patient;                /* nobody's next token is waited for; else */
    int32_t urgency;             /* the highest of those that decode, */
    struct principal *principal; /* and whose they are, NULL: several principals' */
};

/* batch.c. Builds a batch of the running requests: the number of rows, or an error. */
int batch_build(struct sched *s) WARN_UNUSED;
/* The forward pass over the batch starts; drawn: its tokens are those that the device drew last. */
void batch_begin(struct sched *s, bool drawn);
/* The forward pass is over: tokens are in the cache, prompts are cut. */
int batch_commit(struct sched *s) WARN_UNUSED;

/* n of r's prompt's rows are through all layers: they are in the cache, and at a chunk's end kept,
 * cut and told of. */
int batch_commit_prompt(struct sched *s, struct request *r, int32_t n_rows) WARN_UNUSED;
/* The batch holds nobody any more; those who ended meanwhile go. */
void batch_release(struct sched *s);

/* While others decode: whose next chunk is interleaved; and whether somebody urgent waits for
 * the chunk that is: it is his, or he lacks the room that it takes (`room`: what there was for
 * prompts). */
int batch_choose_chunk(struct sched *s, int32_t room) WARN_UNUSED;

/* Rows of the chunk of its prompt that r reads next. */
int32_t batch_chunk(const struct request *r);
/* Has it a new token that is not in the cache yet? */
bool batch_decodes(const struct request *r);

/* First position of the prompt whose hidden state is wanted. */
int32_t batch_first_wanted(const struct request *r);

/* How many of the last of n_rows go on beyond SwiftKV's split: those that are wanted, and those
 * whose attention a policy observes. */
int32_t batch_rows_beyond(const struct sched *s, const struct request *r, int32_t pos0,
                          int32_t n_rows);

/* async_step.c. The batch is computed: draws its tokens on the device, and begins the step after it
 * without waiting for them, as long as it may; all that was begun is over when it returns.
 * -ENOTSUP: the host draws; -EINTR to go on later. */
int async_step_run(struct sched *s) WARN_UNUSED;

#endif
