/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_MODEL_H
#define PIPIT_ENGINE_MODEL_MODEL_H

/* A model: its row of arch.h, its sizes, and its tensors, found and checked in the base file and
 * its overlays. Opening reads headers only, which is all that a plan needs; loading prepares the
 * weights on a backend, in the order in which a step reads them.
 *
 * Creator: model_open; freed by model_close, after the backend's other users and before the
 * backend. The gguf files must outlive it. One thread. */

#include "engine/model/hparams.h"
#include "kernels/backend.h"

enum { MODEL_MAX_OVERLAYS = 8 };

/* The K and V of one layer, which the layers of an AcrossKV group read too, or later layers of a
 * model that was trained so (layer_sizes.reads). */
struct model_store {
    int32_t layer;  /* the owner */
    int32_t n_k;
    int32_t n_v;
    int32_t k_dim;
    int32_t v_dim;
    int32_t window; /* of a sliding layer, else 0 */
    uint64_t state_bytes; /* of a recurrent layer, which has no heads; else 0 */
    bool deep;      /* written at the split, from the split's hidden state */
    int32_t weight; /* of its layer, the largest is LAYER_WEIGHT_MOST; 0: none was measured */
    bool own_output; /* its layers read attn_output_swiftkv */
};

struct model_layer {
    int32_t store; /* index into stores */
    bool owner;    /* writes the store */
    bool deep;     /* beyond SwiftKV's split */
    bool local;    /* sliding window, its own RoPE base */
    bool v_is_k;   /* V is what K was before its norm and RoPE */
    float out_scale; /* of what the layer leaves; 1: as it is */
    struct ops_weight w[LT_COUNT]; /* n_cols 0: absent */
    float scale[LT_COUNT];         /* of a matrix's products; 0: 1 */
};

struct model_rope {
    struct ops_rope op;
    float inv_freq[HPARAMS_MAX_HEAD_DIM / 2];
};

struct model_weight; /* a tensor to prepare */

/* A table of which a token reads one row, cut by layers (ple.h). */
struct model_ple {
    const struct gguf *file; /* in whose map it stays */
    const uint8_t *data;     /* (n_vocab, row_bytes); NULL: the model has none */
    enum dtype type;
    uint64_t row_bytes;
    uint64_t layer_bytes; /* of a row that are one layer's */
    uint64_t bytes;
    uint64_t touched; /* may be resident of it, since it was last let go */
};

struct model {
    const struct arch *arch;
    struct hparams h;
    int32_t n_stores;
    struct model_store *stores; /* (n_stores), ascending by layer */
    struct model_layer *layers; /* (h.n_layers) */
    struct ops_weight w[MT_COUNT];
    struct model_rope rope;       /* of global layers */
    struct model_rope rope_local; /* of sliding ones */
    struct ops_rope rope_none;    /* of layers that do not rotate */
    bool long_rope;               /* the context is longer than the one that the model began with, */
                                  /* and so its long factors are in the tables */
    uint64_t n_params;
    int32_t *exit_words; /* (w[MT_EXIT_HEAD].n_rows - 1) ascending token ids; NULL without that head */

    struct model_ple ple;
    float *ones;               /* (h.most.v_dim) what MT_ONES is made of, or NULL */
    float *centers;            /* (n_stores, n_k * k_dim): those made of biases; NULL: none */
    bool rotates;              /* set before model_load: keys may be rotated, and so want these: */
    struct model_carry *carries; /* (n_stores): carry.h; NULL: no overlay has them */
    float *carry_values;         /* of one weight at a time */
    float *balances;           /* (n_stores, n_k * k_dim): factors of keys' dims; NULL: none */
    struct ops_weight *wide_maps; /* of wide stores: deep layers' maps, n_q of queries, n_q of V */
    struct ops_rope *wide_rope;   /* (n_stores) how keys of a wide one rotate; NULL: none is wide */
    float *wide_freq;             /* (n_stores, h.most.k_dim / 2) its tables */
    struct model_weight *list; /* every weight, in order of execution */
    int32_t n_list;
    const struct gguf *base;       /* the file */
    bool experts_mapped;           /* set by model_load: experts stay in it */
    const struct backend_ops *ops; /* the same */
    struct backend *be;
};

struct model_source {
    const struct gguf *base;
    const struct gguf *const *overlays; /* (n_overlays), each may add tensors, none may replace one */
    int32_t n_overlays;
    const char *base_sha256;                /* 64 hex digits; needed with overlays only */
    const char *const *overlay_sha256;      /* (n_overlays) */
    bool rounds;       /* backend_ops.rounds; then, of keys rounded for queries (carry.h): */
    bool holds;        /* some planned policy has them, */
    bool holds_turned; /* and may rotate them */
};

/* -EBADMSG naming the key or tensor; -ENOTSUP for an architecture or tensor this build lacks. */
int model_open(const struct model_source *source, struct model **ret, struct error *reterr) WARN_UNUSED;
/* Before the first step: LongRoPE has two sets of factors, and the context's length decides. */
int model_set_context(struct model *m, const struct gguf *base, int32_t ctx,
                      struct error *reterr) WARN_UNUSED;
void model_close(struct model *m); /* takes NULL */

/* What model_open holds: the lists of layers and tensors. */
uint64_t model_table_bytes(const struct model *m);

/* What model_load will hold, and what of the files it will read in place (mapped). */
void model_weight_bytes(const struct model *m, const struct backend_ops *ops,
                        const struct backend_config *config, uint64_t *ret_held, uint64_t *ret_mapped);

/* Of both together, matrices that a layer has one of for each expert. */
uint64_t model_expert_bytes(const struct model *m, const struct backend_ops *ops,
                            const struct backend_config *config);

/* An operation of the model's layers that the backend has not; NULL: it has all. */
const char *model_lacks(const struct model *m, const struct backend_ops *ops);

/* The first of its weights whose type the backend does not offer, and that type; NULL: none. */
const char *model_lacks_type(const struct model *m, const struct backend_ops *ops,
                             enum dtype *ret_type);

/* backend_ops.weights_try with all weights. */
int model_try(const struct model *m, const struct backend_ops *ops, struct backend *be,
              const struct backend_limits *limits, struct error *reterr);

/* The largest sides, for backend_limits. */
void model_limits(const struct model *m, struct backend_limits *ret);
/* The largest gate, up and down of an expert, as the backend would hold them; 0: there are none. */
uint64_t model_one_expert_bytes(const struct model *m, const struct backend_ops *ops);
uint64_t model_n_experts(const struct model *m); /* of all layers, without shared ones */
/* Lets go of the file's pages that a layer's experts brought in, where they stay there. */
void model_drop_experts(const struct model *m, int32_t layer);

/* `progress` as in engine.h. */
int model_load(struct model *m, const struct backend_ops *ops, struct backend *be,
               const struct backend_config *config, bool (*progress)(void *arg, float done), void *arg, struct error *reterr) WARN_UNUSED;

/* Has it a head from which tokens may exit before the deep layers? */
static inline bool model_can_exit(const struct model *m)
{
    return m->w[MT_EXIT_HEAD].n_cols != 0;
}

/* Has any layer keys and values? */
static inline bool model_attends(const struct model *m)
{
    return m->h.most.n_q > 0;
}

/* Has each head a logit that no slot has? */
static inline bool model_has_sinks(const struct model *m)
{
    return (m->arch->required & LT_BIT(LT_SINKS)) != 0;
}

/* What keeps tools that run a text through a model (tools/skew_make.c) from those like it; NULL:
 * nothing. */
static inline const char *model_untapped(const struct model *m)
{
    return m->h.uneven                            ? "whose layers have different heads"
           : m->h.has_recurrent || m->h.q_gated ? "whose layers are recurrent or gated"
                                                  : NULL;
}

/* The weight, or NULL where the layer has none. */
static inline const struct ops_weight *model_opt(const struct ops_weight *w)
{
    return w->n_cols ? w : NULL;
}

/* Maps of wide stores in all; a deep layer's of queries, one for each head, and of V. */
static inline int32_t model_n_maps(const struct model *m)
{
    return 2 * m->h.most.n_q * (m->h.n_layers - m->h.swift_layers);
}

static inline struct ops_weight *model_q_maps(const struct model *m, int32_t layer)
{
    return m->wide_maps + (ptrdiff_t)2 * m->h.most.n_q * (layer - m->h.swift_layers);
}

static inline struct ops_weight *model_v_maps(const struct model *m, int32_t layer)
{
    return model_q_maps(m, layer) + m->h.most.n_q;
}

/* Does a layer read a store whose heads are not as wide as its own? */
static inline bool model_is_wide(const struct model *m, int32_t layer)
{
    return m->h.wide && m->layers[layer].deep;
}

/* How a layer rotates queries and keys. */
static inline const struct ops_rope *model_rope(const struct model *m, int32_t layer)
{
    if (model_is_wide(m, layer)) {
        return &m->wide_rope[m->layers[layer].store];
    }
    if (!m->h.layer[layer].rotates) {
        return &m->rope_none;
    }
    return m->layers[layer].local ? &m->rope_local.op : &m->rope.op;
}

#endif
