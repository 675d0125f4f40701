/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_EVAL_TEXT_H
#define PIPIT_EVAL_TEXT_H

/* A text scored under several policies: perplexity of each; and beside a reference the mean and the
 * 99th percentile of the KL divergence of the next-token distributions, and the share of rows with
 * the same top token. The reference is the list's first policy, or another model with its overlays
 * and policy.
 *
 * The text is cut into chunks (each beginning with the model's BOS where it wants one) and the
 * second half of each is scored (score.h). A policy's line goes to `out` as soon as its last
 * chunk is done, so that a run that is stopped leaves what it has:
 *
 *     policy,mode,ctx,chunks,rows,perplexity,mean_kl,p99_kl,same_top1,kv_bytes,tokens_per_step,
 *     chunk_nll,chunk_kl,more_percent,more_95,differs,kl_95
 *
 * Token ids in a file's place are one chunk, of which each id from `first` on gives a row: what a
 * model says after it. So the logits of `dump` can be laid beside another engine's, for models
 * without a tokenizer too.
 *
 * tokens_per_step: engines_tokens_read(), in prefill mode 0. chunk_nll, chunk_kl: means of each
 * chunk, with spaces between. more_percent: perplexity above the first policy's. more_95, kl_95:
 * half the width of the 95 % intervals of more_percent and mean_kl over the chunks (interval.h).
 * differs: "none" where more_percent lies within its interval, else "more" or "less". */

#include <stdio.h>

#include "base/error.h"
#include "engine/engine.h"

struct text_job {
    const char *path; /* a text, or NULL: */
    const char *ids;  /* decimal token ids, with white space or commas between; ctx and n_chunks are
                         then not read */
    int32_t first;    /* of ids */
    int32_t ctx;
    int n_chunks;
    bool decode;
    const char *const *kv;
    int n_kv;
    const struct engine_config *against; /* model, overlays and kv that all policies are compared
                                            with, or NULL: the first policy of `kv` is */
    const char *dump;        /* first policy's logits as .npy, f32 (rows, vocabulary), or NULL */
    uint64_t reference_bytes; /* that may be held of the first policy's logits */
    struct engine_config engine; /* kv is not read */
    FILE *out;
};

int text_run(const struct text_job *job, struct error *reterr) WARN_UNUSED;

#endif
