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
int tensors_find(const struct model_source *source, struct model *m, struct error *reterr) WARN_UNUSED;

/* 1 and factors (n_rot / 2) where the file has rope_freqs.weight, 0 where not. */
int tensors_rope_factors(const struct gguf *g, int32_t n_rot, float *factors,
                         struct error *reterr) WARN_UNUSED;

#endif
