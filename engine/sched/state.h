/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_STATE_H
#define PIPIT_ENGINE_SCHED_STATE_H

/* What sched.c, batch.c and output.c share. Private to engine/sched. */

#include "engine/sched/draft_cost.h"
#include "engine/sched/draft_rounds.h"
#include "engine/sched/lookup.h"
#include "engine/sched/request.h"
#include "engine/sched/sched.h"
#include "engine/sched/token_budget.h"

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
    int32_t *ids;                /* (batch_tokens) */
    struct ops_rows rows;
    struct wanted *wanted; /* (batch_tokens) */
    int32_t *wanted_rows;  /* (batch_tokens) */
    struct ops_sample_row *draws; /* (n_seqs) */
    int32_t *drawn;               /* (n_seqs) */
    int32_t n_wanted;
    int32_t done_wanted;
    int64_t begun_ns;            /* the step, 0: not to be timed */
    double took_ns;              /* it, when it is over; 0: not timed */
    int32_t urgency;             /* the highest of those that decode, */
    struct principal *principal; /* and whose they are, NULL: several principals' */
};

/* Hidden states of scored rows that wait for room at the reader (one request at a time). */
struct stash {
    struct request *r;
    float *hidden; /* device (n, ld) */
    int32_t pos0;  /* position of row 0 */
    int32_t n;
    int32_t done;
};

/* Where a prompt is that is read layer by layer. */
enum prompt_stage {
    PROMPT_SHALLOW, /* every row through a layer that writes its own store */
    PROMPT_DEEP_KV, /* every row's K and V into a deep store */
    PROMPT_DEEP,    /* the rows that go on through a layer that reads it */
    PROMPT_OUTPUT,  /* what is wanted of its hidden states */
};

/* A prompt, or a chunk of one, of which all rows go through one layer before the next. */
struct prompt {
    struct request *r; /* NULL: none */
    bool whole;        /* layer-wise prefill; else a chunk */
    enum prompt_stage stage;
    bool pending; /* a unit has begun and not ended */
    bool hurries; /* somebody urgent waits for the chunk */
    int32_t layer;
    int32_t store;  /* PROMPT_DEEP_KV */
    int32_t pos0;   /* of its first row */
    int32_t n;      /* rows, */
    int32_t at;     /* and the first of them that is not through the layer */
    int32_t n_rows; /* of the running unit */
    int32_t first;  /* the first row that goes on beyond the split */
    int32_t end;    /* PROMPT_OUTPUT: of the wanted rows */
    float *hidden;  /* device (n, forward_ld()) */
    float *beyond;  /* device: rows from `first` on, beyond the split; NULL: they go on in `hidden` */
    struct kv_rows rows;
    int64_t n_read; /* rows times layers */
    int32_t progress;
};

/* Of a policy that requests ask for (uses.c); n_evicted by those that have ended. */
struct use {
    char policy[KV_TEXT_MAX]; /* canonical */
    int32_t n_live;               /* requests that wait or run */
    uint64_t n_requests;
    uint64_t n_evicted;
    uint64_t turn; /* when one last came */
};

enum { USES_MAX = 8 };
#define USES_OTHERS "others"

struct uses {
    int32_t n_planned;
    int32_t n;
    uint64_t turn;
    struct use rows[USES_MAX + 1]; /* the last: of all others */
};

void uses_init(struct uses *u, const struct policy_mix *mix);
/* A request comes: its row, which it leaves through n_live. */
int32_t uses_join(struct uses *u, const struct policy *p);

/* Drafts: what each sequence's text predicts, and what steps with drafted rows cost (draft.c). */
struct drafts {
    struct lookup *of;      /* (n_seqs) by sequence */
    uint64_t *handle;       /* (n_seqs) whose text it is; 0: nobody's */
    double *chance;         /* (n_seqs) that all its drafts so far come true */
    int32_t *room;          /* (n_seqs) tokens that may be drafted in this step */
    struct request **order; /* (draft_rows) to whom rows were given, in order */
    struct draft_cost cost; /* of steps with so many rows */
    struct lookup_counts counts;
    struct draft_rounds rounds; /* what the early-exit head proposes, */
    const struct draft_sure **sure; /* (n_seqs) for whom in this step, */
    int32_t *asks;                  /* (n_seqs) and how many tokens at most */
    uint64_t crowd;   /* the sequences that the cost of a plain step is of */
    int64_t begun_ns; /* the running step, 0: not to be timed */
    int32_t n_rows;   /* drafted rows in it, */
    int32_t n_rounds; /* and rounds of proposals that were planned, */
    int32_t n_done;   /* and run */
    void *memory;
};

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

/* Ends a request: DONE is emitted, its sequence is released (at once, or when the pending batch is over).
 */
void sched_finish(struct sched *s, struct request *r, enum engine_reason reason,
                  const struct error *error);
/* One that has ended releases its sequence, or rests in it while it is being saved. */
void sched_leave(struct sched *s, struct request *r);
/* submit.c */
void sched_leave_principal(struct sched *s, struct principal *p);
void sched_emit(struct sched *s, struct request *r);

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

/* draft.c */
uint64_t draft_bytes(const struct sched_config *c);
int draft_create(struct sched *s, struct error *reterr) WARN_UNUSED;
void draft_destroy(struct sched *s);
/* Before a batch is built: n_drafting of all who take part in it. */
void draft_choose(struct sched *s);
/* It is built; only a step of decode rows alone is timed. */
void draft_built(struct sched *s, bool decode_only);
/* The tokens after the one that r is fed next. */
void draft_write(struct sched *s, const struct request *r, int32_t *ret);
/* The batch with them has been computed; r is its sequence seq. */
void draft_count(struct sched *s, struct request *r, int32_t seq);
/* Is the batch's wanted row that of r's text? One after the newest token is when the token came
 * that was drafted; it is then committed. */
bool draft_holds(struct sched *s, struct request *r, const struct wanted *w);
/* What r has drafted and not said, or began ahead, is as if it had never been. Not while the batch
 * is pending. */
void draft_take_back(struct sched *s, struct request *r);
/* A step has ended with r (0, or it was cut short); its batch is not yet released. */
void draft_measure(struct sched *s, int r);

/* interleave.c. Units of prompts that are read layer by layer, one at least and as many as those
 * who decode may be kept waiting for; -EINTR to go on later. */
int interleave_run(struct sched *s) WARN_UNUSED;
/* Has one begun and not ended? Then nothing else is computed. */
bool interleave_pending(const struct sched *s);

/* prompt.c. Is r's prompt read whole? It begins; or its next chunk does. */
bool prompt_is_whole(const struct sched *s, const struct request *r);
void prompt_start_whole(struct sched *s, struct request *r);
int prompt_start_chunk(struct sched *s, struct request *r) WARN_UNUSED;
void prompt_forget(struct sched *s, const struct request *r);
/* The unit that comes next; begins with so many of its rows; it is over. */
struct token_budget_unit prompt_unit(const struct sched *s, const struct prompt *p);
void prompt_begin(struct sched *s, struct prompt *p, int32_t n_rows);
int prompt_end(struct sched *s, struct prompt *p) WARN_UNUSED;
void prompt_progress(struct sched *s);

/* fork.c. Does r wait for another's prompt, to go on from it? */
bool fork_waits(const struct sched *s, const struct request *r);
/* Sequences r beside the one it forks, where that has got no further than r's known text; -ENOENT
 * when there is nothing to join, -EBUSY without room. */
int fork_admit(struct sched *s, struct request *r) WARN_UNUSED;
/* The prompt of p is read, and these logits follow it: those who wait for it draw theirs. */
int fork_first_tokens(struct sched *s, struct request *p, const float *logits) WARN_UNUSED;

/* output.c. Logits, tokens and scores of the batch's wanted rows; -EINTR to go on later. */
int output_run(struct sched *s) WARN_UNUSED;
/* Scores what the reader has room for. True when rows were written. */
int output_drain(struct sched *s) WARN_UNUSED;
bool output_can_drain(const struct sched *s);
/* The same of rows [pos, pos + n) of r's prompt alone, that are committed and have these hidden
 * states. r may be gone when it returns. No batch is held. */
int output_rows(struct sched *s, struct request *r, float *hidden, int32_t pos,
                int32_t n) WARN_UNUSED;
/* The next new token of r, which the device has drawn; below 0: it could not. */
void output_drawn(struct sched *s, struct request *r, int32_t id);
/* The next new token of r, drawn from these logits or given. */
void output_token(struct sched *s, struct request *r, const float *logits);
/* A whole scored prompt's hidden states from score_first on, to be scored as credit allows. */
int output_stash(struct sched *s, struct request *r, float *hidden) WARN_UNUSED;

#endif
