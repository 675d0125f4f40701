/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_EVAL_ENGINES_H
#define PIPIT_EVAL_ENGINES_H

/* One engine for each page class (types of K and V, positions, what queries read) among the policies to be compared,
 * planned so that a sequence of any placement policy fits: texts under several policies then share
 * batches, and weights are read once a step for all of them. What a sequence computes does not
 * depend on its company, and a prompt that is held whole gives the bits of one read by layers. */

#include "engine/engine.h"

enum { ENGINES_MAX_POLICIES = 256, ENGINES_MAX = 16 };

struct engines {
    int n;
    struct engine *e[ENGINES_MAX];
    int of[ENGINES_MAX_POLICIES]; /* policy -> engine */
};

/* `base`: everything but kv, with room for one sequence at least. */
int engines_open(const struct engine_config *base, const char *const *kv, int n_kv,
                 struct engines *ret, struct error *reterr) WARN_UNUSED;
void engines_close(struct engines *v);

/* Tokens whose keys and values a decode step reads of one head, on average over the steps: the text so
 * far, or what was held at the end where that is less (a budget does not grow while generating). What a
 * query that reads part of the cache (sparq, topv) leaves out is counted here. */
double engines_tokens_read(const struct engine *e, const struct engine_usage *u);

#endif
