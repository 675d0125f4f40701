/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_TENSORS_IMPL_H
#define PIPIT_ENGINE_MODEL_TENSORS_IMPL_H

/* What the files that look tensors up share. Private to tensors*.c. */

#include "engine/model/tensors.h"

struct finder {
    const struct model_source *source;
    struct model *m;
    struct error *reterr;
    bool *used[1 + MODEL_MAX_OVERLAYS]; /* by tensor, base first */
    int32_t cap;
};

/* The base with 0, else an overlay. */
static inline const struct gguf *tensors_file(const struct finder *f, int32_t i)
{
    return i == 0 ? f->source->base : f->source->overlays[i - 1];
}

/* *ret is NULL, with 0, where nobody has it. */
int tensors_lookup(struct finder *f, const char *name, const struct gguf_tensor **ret) WARN_UNUSED;

/* tensors.c: a side's size in a layer, or of the model's own tensors (layer < 0). 0: the file
 * says. */
int32_t tensors_dim(const struct hparams *h, int32_t layer, enum tensor_dim d);

/* tensors.c: looks one tensor up and lists it. 1: there; 0: absent, and `required` was false. */
int tensors_find_one(struct finder *f, const struct tensor_row *row, int32_t layer, bool required,
                     struct ops_weight *dst) WARN_UNUSED;

/* tensors_cache.c: skews, centres, scores, balances and what keys are rounded by, of all stores. */
int tensors_cache(struct finder *f) WARN_UNUSED;

/* tensors_part.c: a tensor that files may hold in a larger one, Q, K and V of a layer as one, or
 * gate and up, of experts too: its rows there (of a bias: values), `total` in all. name NULL: by
 * itself. */
struct tensor_part {
    const char *name;
    int32_t first;
    int32_t n;
    int32_t total;
};
struct tensor_part tensors_part(const struct finder *f, const struct tensor_row *row,
                                int32_t layer);
/* Of what find_one() has set up for the whole, the part's: size, data and bytes. */
int tensors_take_part(const struct tensor_part *p, const struct gguf_tensor *t,
                      struct model_weight *w) WARN_UNUSED;

/* tensors_scale.c: the factor of what a layer's matrix gives, where the file has one. */
int tensors_scale(struct finder *f, int32_t il, int t) WARN_UNUSED;

/* tensors_wide.c, where the model has wide stores: a deep layer's maps, each a weight in the list;
 * a store's frequencies; the tables of all (before the list is filled), and their bytes. */
int tensors_wide_q(struct finder *f, int32_t il) WARN_UNUSED;
int tensors_wide_v(struct finder *f, int32_t il) WARN_UNUSED;
int tensors_wide_rope(struct finder *f, int32_t store) WARN_UNUSED;
/* -ENOTSUP where a layer has one: InfiniGen cannot predict what reads a wide store. */
int tensors_wide_skew(struct finder *f, int32_t il) WARN_UNUSED;
int tensors_wide_reserve(struct model *m) WARN_UNUSED;

/* tensors_ple.c: the table of per-layer embeddings; a layer's part of what is projected to join it;
 * the factor of a layer's output; the weight of a norm that has none. */
int tensors_ple_table(struct finder *f) WARN_UNUSED;
int tensors_ple_in(struct finder *f, int32_t il) WARN_UNUSED;
int tensors_out_scale(struct finder *f, int32_t il) WARN_UNUSED;
int tensors_ones(struct finder *f) WARN_UNUSED;

#endif
