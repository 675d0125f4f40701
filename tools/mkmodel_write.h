/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_MKMODEL_WRITE_H
#define PIPIT_TOOLS_MKMODEL_WRITE_H

/* Writing made models: a whole one with random weights, or an overlay of an existing one. */

#include "base/pool.h"
#include "gguf/gguf.h"
#include "tools/mkmodel_shape.h"

struct mkmodel_plan {
    struct mkmodel_shape shape;
    enum dtype type;      /* of the layers' matrices */
    enum dtype embd_type; /* of token_embd and output */
    uint64_t seed;
    const char *name;     /* general.name */
};

/* Returns counts for a report in ret_params and ret_bytes. */
int mkmodel_write(const struct mkmodel_plan *plan, const char *path, struct pool *pool,
                  uint64_t *ret_params, uint64_t *ret_bytes, struct error *reterr) WARN_UNUSED;

enum { MKMODEL_MAX_HEAD = 1024 };

struct mkmodel_swiftkv {
    int64_t split; /* first deep layer */
    int64_t group; /* so many share keys and values */
    bool outputs;
    int64_t k_dim; /* of the one head of a wide store; 0: heads as the model's */
    int64_t v_dim;
    uint64_t seed; /* of a wide store's numbers */
};

/* The untrained start of a distillation: norm_swiftkv is the input norm of the split layer, each
 * deep layer's q its own, k and v of a group's leader the mean of the group's; with `outputs` each
 * deep layer has an output projection of its own, the mean of the group's, too. A wide store's k
 * and v and the maps of its heads are random: plans and speed are those of a trained one. -EINVAL
 * for a depth, a group or a width that the base does not have, -EBADMSG for a base without the
 * tensors. */
int mkmodel_swiftkv_write(const char *base_path, const struct mkmodel_swiftkv *what,
                          const char *path, struct error *reterr) WARN_UNUSED;

/* What infinigen needs of a model without a text: unit matrices for K heads from the third layer
 * on. */
int mkmodel_skew_write(const char *base_path, const char *path, struct error *reterr) WARN_UNUSED;

#endif
