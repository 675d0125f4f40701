/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_EVAL_GENERATE_H
#define PIPIT_BENCH_EVAL_GENERATE_H

/* Answers to a file of prompts under several policies, for tasks that are scored by their text
 * (retrieval, repetition, summaries). Prompts and answers are JSON lines; bench/quality/ makes the
 * first and scores the second.
 *
 * A prompt: {"id": STRING, "prompt": TEXT} or {"id": STRING, "user": TEXT[, "system": TEXT]}
 * (through the model's chat template), with "max_tokens": N and, where wanted, "draft": N (tokens
 * drafted a step, at most what --draft plans) and "temperature": T (the likeliest token without).
 * Or {"id": STRING, "prompt": TEXT[, "given": TEXT], "scored": TEXT}, which is not answered: the
 * prompt is read, `given` and `scored` are decoded token by token, so that a policy acts on them.
 * Lines in a row with one prompt share its pages. A file has lines of one kind.
 * An answer: {"id", "policy", "text", "n_prompt", "n_new", "reason", "kv_bytes", "kv_bytes_full",
 * "n_slots", "n_evicted", "tokens_per_step", "prefill_ms", "decode_ms", "n_drafted", "n_accepted",
 * "n_exited"}; of a scored line also "logprob" (natural log, the sum over the tokens of `scored`),
 * "n_scored" (tokens) and "likeliest" (was each of them the likeliest?). */

#include <stdio.h>

#include "base/error.h"
#include "engine/engine.h"

struct generate_job {
    const char *path; /* the prompts */
    const char *chat_template; /* engine/text/chat.h, chat_choose() */
    const char *const *kv;
    int n_kv;
    struct engine_config engine; /* kv is not read */
    FILE *out;
};

/* Runs all prompts under all policies, and writes a policy's answers, in the prompts' order, as
 * soon as it has the last one. A prompt that does not fit the context is an error. */
int generate_run(const struct generate_job *job, struct error *reterr) WARN_UNUSED;

#endif
