/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_DRAFT_H
#define PIPIT_ENGINE_SCHED_DRAFT_H

/* Drafts: what each sequence's text predicts, and what steps with drafted rows cost. */

#include "engine/sched/batch.h"
#include "engine/sched/draft_cost.h"
#include "engine/sched/draft_rounds.h"
#include "engine/sched/lookup.h"
#include "engine/sched/sched.h"

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

#endif
