/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_HPARAMS_H
#define PIPIT_ENGINE_MODEL_HPARAMS_H

/* A model's sizes and constants, read from GGUF keys, each within a range. */

#include "base/error.h"
#include "engine/model/arch.h"
#include "gguf/gguf.h"

enum {
    HPARAMS_MAX_LAYERS = 1024,
    HPARAMS_MAX_CTX = 1 << 24,
    HPARAMS_MAX_HEADS = 1024,
    HPARAMS_MAX_HEAD_DIM = 1024,
};

/* Of a model's recurrent layers, all alike. ARCH_RECUR_DELTA: a short convolution of the channels
 * of Q, K and V, then the gated delta rule (struct ops_conv, ops_delta). ARCH_RECUR_CONV: a
 * convolution between two gates, which are made of the input too. ARCH_RECUR_SCAN: a convolution of
 * x, B and C, then a state space (struct ops_scan), n_k being its groups. A state has the
 * convolution's rows first. */
struct recur_sizes {
    int32_t width; /* of the convolution */
    int32_t n_channels;
    int32_t n_in;  /* made of a row of the input, without z, alpha and beta */
    int32_t n_out; /* what comes out of a row */
    int32_t n_k;   /* heads of the delta rule or state space, 0: none; n_v is a multiple */
    int32_t n_v;
    int32_t k_dim; /* of one head, queries alike */
    int32_t v_dim;
    uint64_t delta_at;  /* bytes, where in a state the heads' matrices are */
    uint64_t state_bytes;
};

/* What may differ between the layers of a model. */
struct layer_sizes {
    bool recurrent; /* a state in place of K and V: no heads of these, their sizes are 0 */
    bool bare;      /* neither, an FFN alone: `reads` is that of the layer before it */
    int32_t n_q;    /* query heads */
    int32_t n_k;    /* K heads; n_q is a multiple */
    int32_t n_v;    /* V heads; n_q is a multiple */
    int32_t k_dim;  /* of one head, queries alike */
    int32_t v_dim;
    int32_t q_dim;  /* of a query head as it is projected: k_dim, unless the store is wide */
    int32_t o_dim;  /* of a head as the output projection reads it: v_dim, unless it is */
    int32_t n_rot;  /* leading dims of a head that rotate, even */
    int32_t n_ff;
    int32_t n_ff_expert; /* of each expert, else 0 */
    bool experts;        /* a mixture of experts in place of one FFN */
    bool rotates;   /* RoPE */
    int32_t window; /* of a sliding layer, else 0 */
    float attn_scale;
    int32_t reads;  /* the layer whose K and V it attends over: itself, or an earlier one */
};

enum rope_scaling { ROPE_SCALING_NONE, ROPE_SCALING_LINEAR, ROPE_SCALING_YARN, ROPE_SCALING_LONG };

struct hparams {
    int32_t n_layers;
    int32_t n_unused; /* behind them in the file: what predicts more than one token ahead */
    int32_t n_embd;
    int32_t n_vocab;
    int32_t n_ctx_train;       /* the longest text that model and overlay were trained on */
    struct layer_sizes most;   /* the largest of every size, each for itself */
    struct layer_sizes *layer; /* (n_layers) */
    int32_t n_expert;          /* of a layer, 0: none */
    int32_t n_used;            /* of them for a row */
    int32_t n_ff_shared;       /* of the shared expert, 0: none */
    enum ops_router router;
    bool experts_normed;       /* the weights of a row's experts are made to sum to 1 */
    float experts_scale;       /* and multiplied by this; 0: 1 */
    int32_t ple;               /* width of a per-layer embedding, 0: none */
    int32_t aug_q;             /* width of augmented Q's gate, 0: none */
    bool uneven;               /* layers have heads of different number or size */
    bool has_recurrent;        /* some layers are, which have these sizes */
    struct recur_sizes recur;
    bool q_gated;              /* each head of Q is followed by its gate on attention's output */
    bool shared;               /* some layer reads the K and V of one that is not just before it */
    float norm_eps;
    float embed_scale;
    float attn_scale;    /* of every layer; 0: 1 / sqrt(k_dim) of each */
    float residual_scale; /* of what attention and FFN add to the residual stream; 0: 1 */
    float logit_scale;    /* 0: 1 */
    float attn_softcap;  /* 0: none */
    float final_softcap; /* 0: none */
    float alibi_max;
    float rope_base;
    float rope_base_window; /* of sliding layers */
    enum rope_scaling rope_scaling;
    float rope_factor;     /* positions are divided by it, 1: none */
    float rope_attn_factor;
    float rope_beta_fast;
    float rope_beta_slow;
    float rope_log_mul; /* YaRN: share of its growth of cosines that the model was trained without */
    int32_t rope_orig_ctx;
    float temperature; /* of queries, which grows with each rope_orig_ctx positions; 0: none */
    int32_t swift_layers; /* layers with K and V of their own input; n_layers without SwiftKV */
    int32_t swift_group;  /* deep layers that share a store */
    bool wide; /* deep stores have heads of their own sizes, which maps of each query head join to
                  the model's: k_dim and v_dim of deep layers are the store's (tensors_wide.c) */
};

/* `swift`: the file that holds the pipit.swiftkv keys (the base or an overlay), or NULL.
 * -EBADMSG naming the key, -ENOTSUP for what this build cannot run. ret is then finished by
 * hparams_finish(), which takes a zeroed one, too. */
void hparams_finish(struct hparams *h);
int hparams_read(const struct gguf *g, const struct gguf *swift, const struct arch *arch,
                 struct hparams *ret, struct error *reterr) WARN_UNUSED;

#endif
