/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_DRAFT_COST_H
#define PIPIT_ENGINE_SCHED_DRAFT_COST_H

/* What drafted rows cost: times of steps with n of them, as multiples of a step of the same
 * sequences with none (a plain one).
 *
 * Other processes lengthen a step, or the plain one it is compared with, so no single sample
 * decides anything: the plain time is the median of the last DRAFT_COST_PLAIN plain steps, and
 * there is no ratio before there are as many; a sample moves what is known of n by a fixed part of
 * the way, up as down, and by how much it may differ is limited; and what has not been sampled for
 * DRAFT_COST_AGE steps is forgotten. */

#include <stdbool.h>
#include <stdint.h>

enum {
    DRAFT_COST_PLAIN = 3,
    DRAFT_COST_AGE = 256,  /* timed steps, plain ones included */
    DRAFT_COST_EVERY = 64, /* with drafts, then a plain one: contexts grow, and with them steps */
};

struct draft_cost {
    int32_t n_rows;                 /* at most in a step */
    double *of;                     /* (n_rows + 1); 0: never sampled */
    int64_t *at;                    /* (n_rows + 1) n_steps when it was last sampled */
    int64_t n_steps;                /* timed so far */
    double plain[DRAFT_COST_PLAIN]; /* ns, of the sequences that decode now */
    int64_t n_plain;
    int32_t n_since; /* timed steps with drafts since the last plain one */
};

/* Other sequences decode from now on: their plain step is not known. Ratios stay. */
void draft_cost_anew(struct draft_cost *c);

/* A step with n drafted rows took ns. */
void draft_cost_add(struct draft_cost *c, int32_t n, double ns);

/* Time of a step with n drafted rows, 0..n_rows, as a multiple of a plain one's. */
double draft_cost_of(const struct draft_cost *c, int32_t n);

/* The next step should be a plain one. */
bool draft_cost_wants_plain(const struct draft_cost *c);

#endif
