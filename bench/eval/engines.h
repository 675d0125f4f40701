/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_EVAL_ENGINES_H
#define PIPIT_EVAL_ENGINES_H

/* One engine for each class (the same pages, what queries read) of the policies to be compared,
 * planned so that a sequence of any placement policy fits: texts under several policies then share
 * batches, and weights are read once a step for all of them. What a sequence computes does not
 * depend on its company, and a prompt that is held whole gives the bits of one read by layers.
 *
 * One engine is open at a time: with as many sequences as a batch has, the cache of each is
 * gigabytes. */

#include "engine/engine.h"
#include "engine/kv/policy/policy.h"

enum { ENGINES_MAX_POLICIES = 256, ENGINES_MAX = 16 };

/* What the policies of one class need of their engine. */
struct engines_class {
    struct policy policy; /* types, positions, selection; the longest chunk of any */
    bool evicts;
    int n_policies;
};

struct engines {
    int n;
    struct engines_class class[ENGINES_MAX];
    int of[ENGINES_MAX_POLICIES]; /* policy -> class */
    struct engine_config base;
    struct engine_config first; /* of class 0, which is the first policy's alone where `apart` */
    bool apart;
    int n_texts;
    struct engine *open;
    int open_class;
};

/* `base`: everything but kv; its n_seqs is the most that any engine has. `against`: the model and
 * the overlays of the first policy, where they differ; or NULL. Each policy meets at most n_texts
 * sequences. Opens the engine of the first policy. */
int engines_open(const struct engine_config *base, const struct engine_config *against,
                 const char *const *kv, int n_kv, int n_texts, struct engines *ret,
                 struct error *reterr) WARN_UNUSED;

/* The engine of a class, in *ret, until the next call; another class's is closed first, with the
 * requests it still has. */
int engines_use(struct engines *v, int class, struct engine **ret,
                struct error *reterr) WARN_UNUSED;
void engines_close(struct engines *v);

/* Tokens whose keys and values a decode step reads of one head, on average over the steps: the text
 * so far, or what was held at the end where that is less (a budget does not grow while generating).
 * What a query that reads part of the cache (sparq, topv) leaves out is counted here. */
double engines_tokens_read(const struct engine *e, const struct engine_usage *u);

#endif
