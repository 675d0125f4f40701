/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_QUANTIZE_MODEL_H
#define PIPIT_TOOLS_QUANTIZE_MODEL_H

/* One model file into another, its matrices encoded anew. */

#include <stdio.h>

#include "base/options.h"
#include "base/pool.h"
#include "gguf/gguf.h"

struct quantize_plan {
    enum dtype type;                /* of matrices */
    /* of output.weight, or token_embd.weight where it is the head */
    enum dtype head_type;
    bool mix; /* attn_v and ffn_down of the first and last eighth of the layers, and of every third
                 between, in Q6_K: GGUF's "_M" mixes */
    const struct option_list *keep; /* shell patterns of tensors that keep their bytes */
    struct pool *pool;
    FILE *report;                   /* one line a tensor; NULL: none */
};

/* -EBADMSG when a tensor cannot be encoded (its name, and why); errors of reading and writing. */
int quantize_model(const struct quantize_plan *plan, const struct gguf *in, const char *out_path,
                   struct error *reterr) WARN_UNUSED;

#endif
