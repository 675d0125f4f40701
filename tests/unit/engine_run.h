/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_ENGINE_RUN_H
#define PIPIT_TESTS_UNIT_ENGINE_RUN_H

/* Engines on the small models of tests/data, and requests whose tokens and logits are kept. */

#include "engine/engine.h"
#include "engine/kv/home/tier.h"

enum { RUN_MAX_NEW = 256, RUN_MAX_SCORED = 512 };

struct run {
    uint64_t handle;
    int32_t n_new;
    int32_t tokens[RUN_MAX_NEW];
    float logprobs[RUN_MAX_SCORED]; /* of tokens, or of scored positions */
    int32_t n_scored;
    int32_t n_hidden; /* rows */
    int32_t n_vocab;
    float *logits; /* (RUN_MAX_NEW, n_vocab) one row a new token; freed by run_clear */
    int32_t n_progress;
    int32_t progress; /* the last one */
    bool done;
    enum engine_reason reason;
    struct error error;
    struct engine_usage usage;
};

/* Threads of the engines made from here on; 1 unless changed. */
extern int run_threads;

/* Tokens that they draft a step, always; 0 unless changed. A request of run_request() drafts as
 * many, where it does not keep logits. */
extern int32_t run_draft;

/* The CPU's flags; set to ~AMX by tests that compare backends closely: its products round to bf16.
 */
extern uint32_t run_cpu_mask;

/* What their steps with prompts may take beside others; 0, twice a plain step, unless changed. */
extern int32_t run_gap_target_ms;

/* Whether they keep prompts' pages; not unless changed. */
extern bool run_keep_prefixes;

/* Their engine_config.prompt_rows; 0 unless changed. */
extern int32_t run_prompt_rows;

/* How the file of pool=disk, which lies in /tmp, is read and written; NULL, as ever, unless
 * changed. */
extern const struct tier_calls *run_tier_calls;

/* An overlay that the one of run_engine_overlay() builds on; NULL, as ever, unless changed. */
extern const char *run_overlay_below;

/* tests/data/NAME; or NAME where that is a whole path. */
const char *run_data(const char *name);

/* Skips the test, loudly, when the backend has no cache. `kv` NULL: "full". */
struct engine *run_engine(const char *model, const char *backend, int32_t ctx, int32_t n_seqs,
                          const char *kv);
struct engine *run_engine_overlay(const char *model, const char *overlay, const char *backend,
                                  int32_t ctx, int32_t n_seqs, const char *kv);

/* A greedy request of n_new tokens that ignores end tokens; change it before run_submit. */
struct engine_request run_request(const int32_t *prompt, int32_t n_prompt, int32_t n_new);
/* Submits it with r as its user; logits are kept. Asserts success. */
void run_submit(struct engine *e, const struct engine_request *q, struct run *r);
/* Steps until idle. */
void run_all(struct engine *e);
/* Steps once with the events going to their runs. */
int run_step(struct engine *e);
void run_clear(struct run *r);

/* Same tokens and, to the bit, same logits. */
bool run_same(const struct run *a, const struct run *b);

/* n token ids below n_vocab, from a seed. */
void run_tokens(uint64_t seed, int32_t n_vocab, int32_t *ids, int32_t n);

#endif
