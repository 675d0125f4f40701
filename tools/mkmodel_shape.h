/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_MKMODEL_SHAPE_H
#define PIPIT_TOOLS_MKMODEL_SHAPE_H

/* The shape of a model to be made: numbers as in the GGUF keys, and what its architecture adds. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct mkmodel_arch {
    const char *name;    /* "llama", also the prefix of its keys */
    bool qkv_bias;       /* attn_{q,k,v}.bias */
    bool qk_norm;        /* attn_{q,k}_norm.weight, head_dim long */
    bool post_norms;     /* post_attention_norm, post_ffw_norm */
    bool sliding_window; /* most layers see a window only */
    bool uneven_heads;   /* numbers of K and V heads of their own, augmented Q */
    float eps;
};

/* NULL for an unknown name. */
const struct mkmodel_arch *mkmodel_arch_find(const char *name);

struct mkmodel_shape {
    const struct mkmodel_arch *arch;
    int64_t n_layers;
    int64_t hidden;
    int64_t ffn;
    int64_t n_heads;
    int64_t n_k_heads;
    int64_t n_v_heads;
    int64_t head_dim;
    int64_t aug_q;  /* width of augmented Q, 0: none */
    int64_t vocab;
    int64_t ctx;
    int64_t window; /* of sliding layers */
    double rope_base;
    bool tied;      /* no output.weight of its own */
};

/* A published model's shape by name; false for an unknown one. */
bool mkmodel_preset_find(const char *name, struct mkmodel_shape *ret);

/* -EINVAL with the option's name and the reason. */
int mkmodel_shape_check(const struct mkmodel_shape *s, struct error *reterr) WARN_UNUSED;

#endif
