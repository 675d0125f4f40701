/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SKEW_RUN_H
#define PIPIT_TOOLS_SKEW_RUN_H

/* A text read once by a model, with what its queries and keys are gathered: for each store that the
 * third layer or a later one owns, Q^T Q and sums of |q| + |k| of every K head, after RoPE, over
 * all positions, query heads and layers that read it. */

#include <stdio.h>

#include "base/options.h"
#include "engine/model/model.h"

enum { SKEW_MAX_OVERLAYS = MODEL_MAX_OVERLAYS };

/* Where a store has n_k K heads of d dims, the model's widest store has the most values: */
struct skew_sums {
    double *qq;      /* (n_k, d, d); of stores that are not asked for 0 */
    double *mean;    /* (n_k, d): of keys; 0 unless asked for */
    double *size;    /* (n_k, d) */
    double *queries; /* (n_stores): vectors of each K head that qq is the sum over */
    double *reach;   /* (n_layers): keys that hold 0.9 of a query's weight; 0: the layer slides */
    size_t squares;  /* from store to store in qq */
    size_t rows;     /* and in mean and size */
};

static inline double *skew_qq(const struct skew_sums *s, int32_t store)
{
    return s->qq + (size_t)store * s->squares;
}

static inline double *skew_mean(const struct skew_sums *s, int32_t store)
{
    return s->mean + (size_t)store * s->rows;
}

static inline double *skew_size(const struct skew_sums *s, int32_t store)
{
    return s->size + (size_t)store * s->rows;
}

struct skew_model {
    struct gguf *base;
    struct gguf *overlays[SKEW_MAX_OVERLAYS];
    int n_overlays;
    char sha256[65];
    char overlay_sha256[SKEW_MAX_OVERLAYS][65];
    struct model *model;
};

/* Does the store have a skew? */
bool skew_wanted(const struct model *m, int32_t store);

/* Are keys of the store rounded for its queries (engine/model/carry.h)? */
bool skew_has_queries(const struct model *m, int32_t store);

/* A store as an overlay's writer sees it; the run has closed the model by then. */
struct skew_store {
    int32_t layer;
    int32_t n_k;
    int32_t dim;
    bool wanted;  /* skew_wanted() */
    bool queries; /* skew_has_queries() */
    bool deep;    /* beyond SwiftKV's split */
};

struct skew_job {
    const char *model;
    const struct option_list *overlays;
    const char *text;
    int32_t n_tokens; /* of the text's start */
    int n_threads;
    bool means;   /* gathers mean keys, Q^T Q of all stores and `reach`, and nothing else */
    FILE *report; /* or NULL: cosine of each layer's input with the one before, and `reach` */
    /* May the overlay be made? */
    int (*check)(const struct skew_model *m, struct error *reterr);
    /* Its own keys; then, where `declare`, the tensors of one store, else their data. */
    int (*put_keys)(struct gguf_writer *w, const struct skew_sums *sums, int32_t n_layers);
    int (*put_store)(struct gguf_writer *w, const struct skew_sums *sums, int32_t store,
                     const struct skew_store *s, bool declare);
};

/* Reads the text's first tokens; closes the model. */
int skew_run(struct skew_model *m, const struct skew_job *job, const char *text, size_t len,
             struct skew_sums *ret, struct error *reterr) WARN_UNUSED;
void skew_sums_finish(struct skew_sums *s);

/* skew_make.c. Opens what a tool reads; skew_close() undoes it, also what is half open. The text is
 * the caller's to free, the writer his to finish. */
int skew_open(const char *path, const struct option_list *overlays, struct skew_model *ret,
              struct error *reterr) WARN_UNUSED;
void skew_close(struct skew_model *m);
int skew_read_text(const char *path, char **ret, size_t *ret_len, struct error *reterr) WARN_UNUSED;
/* With the keys that name what it belongs to. */
int skew_create_overlay(const struct skew_model *m, const char *path, struct gguf_writer **ret,
                        struct error *reterr) WARN_UNUSED;

/* Reads the text with the model and writes the overlay to the one word. */
int skew_make(const struct skew_job *job, const struct option_list *words,
              struct error *reterr) WARN_UNUSED;

#endif
