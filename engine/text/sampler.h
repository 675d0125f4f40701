/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_TEXT_SAMPLER_H
#define PIPIT_ENGINE_TEXT_SAMPLER_H

/* From logits to the next token. The order of llama.cpp's default chain:
 *
 *   1. penalties, over the last `penalty_window` accepted tokens (the caller accepts prompt tokens
 *   and
 *      new ones alike), each distinct token once, with its count c in that window:
 *      l = l > 0 ? l / repeat : l * repeat;  l -= c * frequency + presence
 *   2. temperature 0: the largest logit, ties to the lower id, and no more steps
 *   3. top_k: the k largest logits, ties to the lower id
 *   4. top_p: of those, in falling order, the fewest whose probabilities sum to at least p
 *   5. min_p: those with at least min_p times the largest probability
 *   6. temperature: weights exp((l - max) / temperature), and one draw, over the survivors in
 *   falling
 *      order if top_k is on, else in order of id
 *
 * At least one token survives each step. The draw is number `index` of a Philox4x32 stream keyed by
 * `seed`: the n-th token of a request depends on its logits, seed and n, never on batch, threads or
 * history of draws. exp is our own, so every machine draws the same from the same logits.
 *
 * Log-probabilities are those of the model's own distribution: natural logs of the softmax of the
 * logits as given, before penalties, truncation and temperature (as llama.cpp's server and
 * vLLM). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { SAMPLER_MAX_LOGPROBS = 20, SAMPLER_MAX_WINDOW = 1024 };

struct sampler_params {
    float temperature;       /* 0..100; 0 is greedy */
    int32_t top_k;           /* 0..2^31-1; 0 is off */
    float top_p;             /* 0..1; 1 is off */
    float min_p;             /* 0..1; 0 is off */
    float repeat_penalty;    /* 0.01..100; 1 is off */
    float presence_penalty;  /* -100..100; 0 is off */
    float frequency_penalty; /* -100..100; 0 is off */
    int32_t penalty_window;  /* 0..SAMPLER_MAX_WINDOW tokens; 0 is off */
    int32_t n_logprobs;      /* -1..SAMPLER_MAX_LOGPROBS: alternatives wanted; 0: the token's own
                                logprob only; -1: none is computed (saves a pass over the logits) */
    uint64_t seed;
};

/* temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no penalties (window 64), n_logprobs -1, seed
 * 0. */
struct sampler_params sampler_params_default(void);
/* -EINVAL naming the parameter and its range; NaN is out of every range. */
int sampler_params_check(const struct sampler_params *p, struct error *reterr) WARN_UNUSED;
/* Do the penalties change any logit, of a token in the window? */
bool sampler_penalizes(const struct sampler_params *p);

/* One sequence's sampler: plain values, may be copied and saved as bytes. */
struct sampler {
    struct sampler_params params;
    int32_t n_window; /* tokens in the ring, at most params.penalty_window */
    int32_t next;     /* where the next one goes */
    int32_t window[SAMPLER_MAX_WINDOW];
};

/* Scratch of one worker thread, shared by its sequences: over caller's memory of
 * sampler_scratch_bytes(n_vocab) bytes, aligned to 64; nothing to free. */
struct sampler_scratch {
    int32_t n_vocab;
    float *logits;               /* (n_vocab) */
    struct sampler_alt *sorted;  /* (n_vocab) */
    uint16_t *counts;            /* (n_vocab) all zero between calls */
};

struct sampler_alt {
    int32_t id;
    float logprob;
};

struct sampler_result {
    int32_t id;
    float logprob; /* 0 with n_logprobs -1 */
    int32_t n_alts;
    /* (n_alts) the most likely, falling, ties by id */
    struct sampler_alt alts[SAMPLER_MAX_LOGPROBS];
};

size_t sampler_scratch_bytes(int32_t n_vocab);
void sampler_scratch_init(struct sampler_scratch *x, void *memory, int32_t n_vocab);

/* params must have passed sampler_params_check(). */
void sampler_init(struct sampler *s, const struct sampler_params *params);

/* logits: (scratch's n_vocab) f32, left as they are; -inf forbids a token. index: of the token
 * among the request's new tokens, forced ones counted. Does not accept the token. -EBADMSG: a NaN
 * or +inf among the logits, or all -inf. */
int sampler_sample(const struct sampler *s, struct sampler_scratch *x, const float *logits,
                   uint64_t index, struct sampler_result *ret) WARN_UNUSED;

/* Log-probability of a token that is given, not sampled, with alternatives as n_logprobs says
 * (forced tokens, scoring): the same figures as sampler_sample() would report. -EBADMSG as
 * above. */
int sampler_score(struct sampler_scratch *x, const float *logits, int32_t id, int32_t n_logprobs,
                  struct sampler_result *ret) WARN_UNUSED;

/* A token joins the text: remembered for the penalties. */
void sampler_accept(struct sampler *s, int32_t id);

#endif
