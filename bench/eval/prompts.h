/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BENCH_EVAL_PROMPTS_H
#define PIPIT_BENCH_EVAL_PROMPTS_H

/* A file of prompts (generate.h) as tokens. */

#include <stdint.h>

#include "base/error.h"
#include "engine/engine.h"

struct prompt {
    char *id;
    int32_t *tokens;  /* (n_tokens + n_forced) */
    int32_t n_tokens; /* of the prompt */
    int32_t n_forced; /* given and scored tokens behind it; 0: it is answered */
    int32_t n_given;  /* of them, not scored */
    int32_t family;   /* the first line of those before it that have the same prompt */
    int32_t max_tokens;
    int32_t n_draft;
    float temperature;
};

struct prompts {
    struct prompt *v;
    int n;
};

/* Errors name the line. The caller clears *ret. */
int prompts_load(const struct engine *e, const char *path, const char *chat_template,
                 struct prompts *ret, struct error *reterr) WARN_UNUSED;
void prompts_clear(struct prompts *list);

#endif
