/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_PROMPT_H
#define PIPIT_ENGINE_SCHED_PROMPT_H

/* Prompts that are read layer by layer, whole or in chunks, between the steps of others. */

#include "engine/sched/request.h"
#include "engine/sched/token_budget.h"

struct sched;

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

/* interleave.c. Units of prompts that are read layer by layer, one at least and as many as those
 * who decode may be kept waiting for; -EINTR to go on later. */
int interleave_run(struct sched *s) WARN_UNUSED;
/* Has one begun and not ended? Then nothing else is computed. */
bool interleave_pending(const struct sched *s);

#endif
