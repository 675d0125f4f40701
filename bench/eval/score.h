/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_EVAL_SCORE_H
#define PIPIT_BENCH_EVAL_SCORE_H

/* Teacher-forced logits of chunks of a text, row by row, in two ways.
 *
 * prefill: the chunk is one prompt and every position from `first` on is scored, as llama.cpp's
 * perplexity tool does. decode: positions [0, first] are the prompt, the rest is decoded one by one
 * with the text's own tokens; what a policy does in decode shows only here. Both score the same
 * rows:
 * row i is the distribution after position first + i, of the token at first + i + 1. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"

struct score_chunk {
    const int32_t *tokens; /* (n) */
    int32_t n;
    int32_t first;         /* n - 1 - first rows are scored */
    const char *kv;        /* policy text, NULL: the engine's default */
};

/* Called for each row of each chunk, rows of a chunk in order. logits (n_vocab) is valid during the
 * call. `logprob` is the engine's own figure for the token that follows. */
typedef void score_row(void *arg, int chunk, int row, const float *logits, float logprob);

/* Called once a chunk, after its rows: what the engine said of its cache. */
typedef void score_done(void *arg, int chunk, const struct engine_usage *usage);

/* Runs n_chunks chunks, each under its policy, as many at once as the engine has sequences.
 * `buffer`:
 * (n_chunks * window, n_vocab) f32 scratch of the caller, window >= 1; 1 is enough in decode
 * mode. */
int score_run(struct engine *e, bool decode, const struct score_chunk *chunks, int n_chunks,
              float *buffer, int window, score_row *row, score_done *done, void *arg,
              struct error *reterr) WARN_UNUSED;

/* KL(p || q) in nats of two rows of logits whose normalisers are lp and lq. */
double score_kl(const float *p, double lp, const float *q, double lq, int n);

/* Index of the largest, the lower one on a tie. */
int score_argmax(const float *logits, int n);

#endif
