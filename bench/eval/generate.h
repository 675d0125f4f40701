/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_EVAL_GENERATE_H
#define PIPIT_BENCH_EVAL_GENERATE_H

/* Greedy answers to a file of prompts under one policy, for tasks that are scored by their text
 * (retrieval, repetition, summaries). Prompts and answers are JSON lines; bench/quality/ makes the
 * first and scores the second.
 *
 * A prompt: {"id": STRING, "prompt": TEXT} or {"id": STRING, "user": TEXT[, "system": TEXT]} (through the
 * model's chat template), with "max_tokens": N and optionally "min_tokens" (end tokens before are ignored).
 * An answer: {"id", "policy", "text", "n_prompt", "n_new", "reason", "kv_bytes", "kv_bytes_full", "n_slots",
 * "n_evicted", "prefill_ms", "decode_ms"}. */

#include <stdio.h>

#include "base/error.h"
#include "engine/engine.h"

struct generate_prompt {
    char *id;
    int32_t *tokens;
    int32_t n_tokens;
    int32_t max_tokens;
};

struct generate_list {
    struct generate_prompt *v;
    int n;
};

/* Reads and tokenizes; -EBADMSG with the line number. */
int generate_load(struct engine *e, const char *path, struct generate_list *ret,
                  struct error *reterr) WARN_UNUSED;
void generate_clear(struct generate_list *list);

/* Runs all prompts, at most n_seqs at once, and writes their answers to `out` in order. A prompt that
 * does not fit the context is an error. */
int generate_run(struct engine *e, const struct generate_list *list, int n_seqs, const char *policy,
                 FILE *out, struct error *reterr) WARN_UNUSED;

#endif
