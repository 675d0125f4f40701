/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_OUTPUT_H
#define PIPIT_ENGINE_SCHED_OUTPUT_H

/* What follows a computed row: logits, tokens, scores, embeddings. */

#include "engine/sched/request.h"

struct sched;

/* Hidden states of scored rows that wait for room at the reader (one request at a time). */
struct stash {
    struct request *r;
    float *hidden; /* device (n, ld) */
    int32_t pos0;  /* position of row 0 */
    int32_t n;
    int32_t done;
};

/* Logits, tokens and scores of the batch's wanted rows; -EINTR to go on later. */
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
