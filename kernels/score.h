/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_SCORE_H
#define PIPIT_KERNELS_SCORE_H

/* Scores that a map of hidden states gives (kvzap) go to the slots of their rows. */

#include "kernels/backend.h"

/* For each sequence, row and head group: kv.score of the row's slot becomes the sum of exp(x) over
 * the group's K heads, at most FLT_MAX, or 0 where that is no number. Behind rope_store, which
 * makes it 0. Not of rings; ldx is at most 4096. */
struct ops_score {
    struct ops_rows rows;
    const float *x; /* device (n, ldx): logarithms of scores, by K head */
    int32_t ldx;
    const struct ops_seq *seqs; /* host (n_seqs); their rows may be some of all */
    int32_t n_seqs;
};

/* On the host, for any backend: a row has only as many scores as there are K heads. */
int score_host(struct backend *be, const struct ops_score *p);

#endif
