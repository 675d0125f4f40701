/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SURROGATE_RUN_H
#define PIPIT_TOOLS_SURROGATE_RUN_H

/* KVzip's scores (Kim et al., 2025), as KVzap takes them for its target (Jegou and Jeblick, 2026,
 * KVzip+): a text is read, then a request to repeat it, then the text again. What a slot of the
 * first reading is worth to a K head h is
 *
 *     log max over queries q of the second reading, and query heads of h, of
 *         softmax(q.k) |Wo v| / |x|
 *
 * with x the normed input of q's layer and row, and Wo the head's columns of the output
 * projection. */

#include "engine/model/model.h"
#include "tools/skew_run.h"

struct surrogate_job {
    const int32_t *ids; /* the texts, one behind the other, each of n_text tokens */
    int32_t n_texts;
    int32_t n_text;
    const int32_t *ask; /* the request */
    int32_t n_ask;
    int32_t bos; /* -1: none */
    int n_threads;
    /* Of one text and a layer that owns a store with all positions: inputs (n_text, n_embd) and
     * scores (n_text, n_k). */
    int (*take)(void *arg, int32_t text, int32_t layer, const float *x, const float *y);
    void *arg;
};

int surrogate_run(struct model *m, const struct surrogate_job *job,
                  struct error *reterr) WARN_UNUSED;

#endif
