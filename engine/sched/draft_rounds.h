/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_DRAFT_ROUNDS_H
#define PIPIT_ENGINE_SCHED_DRAFT_ROUNDS_H

/* How many tokens the early-exit head is to propose a step (exit:draft).
 *
 * A round is one pass through the shallow layers for all sequences that still propose. It is run
 * only where the head is sure enough of a word, so two shares are counted of every sequence: how
 * often the head was sure when it was asked (s), and how often it was then right (a), each
 * proposal once what comes there is known. With R rounds a step yields 1 + sum (s a)^k tokens a
 * sequence and takes 1 + sum P(round k is run) (T(k) - T(k - 1)), where T(k) is what steps with k
 * rounds have taken (draft_cost.h). R is where the quotient is largest, none where that gains too
 * little; then the head is asked for one token every DRAFT_ROUNDS_AGAIN steps, in case the text has
 * changed. */

#include <stdbool.h>

#include "engine/sched/draft_cost.h"

enum { DRAFT_ROUNDS_AGAIN = 64 };

/* Decaying counts. */
struct draft_sure {
    float asked;
    float sure;
    float tried; /* proposals that were verified: those behind a wrong one are not, */
    float right; /* and came */
};

struct draft_rounds {
    struct draft_cost cost; /* of steps with so many rounds */
    struct draft_sure all;  /* what a new sequence begins with */
    struct draft_sure *of;  /* (n_seqs) by sequence */
    int32_t n_idle;         /* steps since the head was last asked */
};

void draft_sure_init(struct draft_sure *c);
/* A new text: little weight of what was seen of others. */
void draft_sure_begin(struct draft_sure *c, const struct draft_sure *all);
/* The head was asked n times and was sure each time, and once more in vain (`ended`). */
void draft_sure_asked(struct draft_sure *c, int32_t n, bool ended);
/* A proposal was verified. */
void draft_sure_tried(struct draft_sure *c, bool right);

/* Rounds of the next step, at most `most`: room[i] tokens may be proposed for a sequence with the
 * counts *of[i], n of them, of n_seqs that decode. */
int32_t draft_rounds_choose(struct draft_rounds *d, const struct draft_sure *const *of,
                            const int32_t *room, int32_t n, int32_t n_seqs, int32_t most);

#endif
