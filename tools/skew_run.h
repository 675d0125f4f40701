/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SKEW_RUN_H
#define PIPIT_TOOLS_SKEW_RUN_H

/* A text read once by a model, with what its queries and keys are gathered: for each store that the
 * third layer or a later one owns, Q^T Q and sums of |q| + |k| of every K head, after RoPE, over
 * all positions, query heads and layers that read it. */

#include <stdio.h>

#include "engine/model/model.h"

enum { SKEW_MAX_OVERLAYS = MODEL_MAX_OVERLAYS };

struct skew_sums {
    double *qq;    /* (n_stores, max K heads, d, d); stores without a skew stay 0 */
    double *mean;  /* (n_stores, max K heads, d): of keys; 0 unless asked for */
    double *size;  /* (n_stores, max K heads, d) */
    int32_t heads; /* max K heads */
};

struct skew_model {
    struct gguf *base;
    struct gguf *overlays[SKEW_MAX_OVERLAYS];
    int n_overlays;
    char sha256[65];
    char overlay_sha256[SKEW_MAX_OVERLAYS][65];
    struct model *model;
};

int skew_open(const char *path, char *const *overlays, size_t n_overlays, struct skew_model *ret,
              struct error *reterr) WARN_UNUSED;
void skew_close(struct skew_model *m);

/* Does the store have a skew? */
bool skew_wanted(const struct model *m, int32_t store);

/* Reads the text's first n_tokens. `means`: gathers the mean keys of all stores, and nothing else.
 * `report` (or NULL): what prediction can hope for by layer: cosine of a layer's input with the
 * one before, and keys that hold 0.9 of the weight, in the last chunk. */
int skew_run(struct skew_model *m, const char *text, size_t len, int32_t n_tokens, int n_threads,
             FILE *report, bool means, struct skew_sums *ret, struct error *reterr) WARN_UNUSED;
void skew_sums_finish(struct skew_sums *s);

/* A whole file; the caller frees it. */
int skew_read_text(const char *path, char **ret, size_t *ret_len, struct error *reterr) WARN_UNUSED;
/* An overlay of this model and its overlays, without tensors so far. */
int skew_overlay_create(const struct skew_model *m, const char *path, struct gguf_writer **ret,
                        struct error *reterr) WARN_UNUSED;

#endif
