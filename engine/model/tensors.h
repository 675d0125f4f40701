/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_TENSORS_H
#define PIPIT_ENGINE_MODEL_TENSORS_H

/* Finding and checking a model's tensors. Private to engine/model. */

#include "engine/model/model.h"

struct model_weight {
    struct ops_weight_desc desc; /* name points at `name` */
    struct ops_weight *dst;
    uint64_t file_bytes;
    bool loaded;
    char name[64];
};

/* Fills m->list, the heads of deep stores and n_params; -EBADMSG and -ENOTSUP by name. Until they
 * are loaded, present weights have their n_rows and n_cols set and nothing else. */
int tensors_find(const struct model_source *source, struct model *m,
                 struct error *reterr) WARN_UNUSED;

/* The weight of m->list that is loaded into `dst`; NULL: the model has none. */
const struct model_weight *tensors_listed(const struct model *m, const struct ops_weight *dst);

/* Factors that divide RoPE's frequencies, (n_rot / 2): which the file has, or a negative errno. Of
 * LongRoPE's two sets the one for a context that is longer than the model's first (`is_long`), or
 * not. */
enum { ROPE_FACTORS_NONE, ROPE_FACTORS_ONE, ROPE_FACTORS_SHORT, ROPE_FACTORS_LONG };
int tensors_rope_factors(const struct gguf *g, const struct hparams *h, int32_t n_rot, bool is_long,
                         float *factors, struct error *reterr) WARN_UNUSED;

/* Of the tables of wide stores (tensors_wide.c). */
uint64_t tensors_wide_bytes(const struct model *m);

#endif
