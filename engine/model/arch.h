/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_ARCH_H
#define PIPIT_ENGINE_MODEL_ARCH_H

/* Architectures as rows of data: what differs between two model families is a row here and a list
 * of tensors, never a forward pass of its own. GGUF names (the GGUF specification and the tensor
 * names that converters write). */

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops_experts.h"

/* A layer's tensors, in the order in which a step reads them. Seven are SwiftKV's: a deep layer
 * has SWIFT_Q in place of Q, a group's leader SWIFT_K and SWIFT_V. SWIFT_O, where
 * there is one, is read as O: [LT_O] holds it, [LT_SWIFT_O] nothing; a bias stays the base's. LT_SKEW
 * and LT_COLUMNS are InfiniGen's, made by pipit-skew. */
enum layer_tensor {
    LT_ATTN_NORM,
    LT_ATTN_NORM_B,
    LT_Q,
    LT_Q_B,
    LT_K,
    LT_K_B,
    LT_V,
    LT_V_B,
    LT_Q_GATE, /* augmented Q: q = down(act(gate q) * up q) */
    LT_Q_UP,
    LT_Q_DOWN,
    LT_Q_NORM, /* per head */
    LT_K_NORM,
    LT_Q_NORM_WIDE, /* of all heads as one row */
    LT_K_NORM_WIDE,
    LT_SINKS, /* a logit of each head that no slot has (ops_attention.sinks) */
    LT_MIX, /* a recurrent layer: Q, K and V as one, or all that a convolution takes, */
    LT_Z,   /* the gate of what its heads give, */
    LT_ALPHA, /* the input of its decay */
    LT_BETA,  /* and of how much it learns, */
    LT_CONV,
    LT_CONV_B,
    LT_DECAY,
    LT_DECAY_B,
    LT_MIX_NORM, /* of a head's output */
    LT_SCAN_DECAY, /* a state space's decay, */
    LT_SCAN_SKIP,  /* what of its input passes it by, */
    LT_SCAN_NORM,  /* and the norms of its groups */
    LT_MIX_O,
    LT_O,
    LT_O_B,
    LT_POST_ATTN_NORM, /* of attention's output, before it joins the residual */
    LT_FFN_NORM,
    LT_FFN_NORM_B,
    LT_GATE,
    LT_GATE_B,
    LT_UP,
    LT_UP_B,
    LT_DOWN,
    LT_DOWN_B,
    LT_ROUTER, /* a mixture of experts, in place of gate, up and down (kernels/ops_experts.h) */
    LT_EXPERTS_GATE,
    LT_EXPERTS_UP,
    LT_EXPERTS_DOWN,
    LT_ROUTER_B,
    LT_EXPERTS_GATE_B,
    LT_EXPERTS_UP_B,
    LT_EXPERTS_DOWN_B,
    LT_SHARED_ROUTER, /* one row: how much of the shared expert counts */
    LT_SHARED_GATE,
    LT_SHARED_UP,
    LT_SHARED_DOWN,
    LT_ROUTER_NORM,       /* experts beside one FFN: of the router's input, */
    LT_EXPERTS_NORM,      /* of theirs, */
    LT_POST_BESIDE_NORM,  /* of what the FFN gives */
    LT_POST_EXPERTS_NORM, /* and of what they give, before both are one */
    LT_EXPERTS_FACTOR,    /* one for each expert, of what it gives */
    LT_POST_FFN_NORM,
    LT_PLE_IN,   /* rows of per_layer_model_proj that are this layer's */
    LT_PLE_GATE, /* per-layer embeddings: x += norm(proj(act(gate x) * embedding)) */
    LT_PLE_PROJ,
    LT_PLE_NORM,
    LT_SWIFT_Q,
    LT_SWIFT_Q_B,
    LT_SWIFT_K,
    LT_SWIFT_K_B,
    LT_SWIFT_V,
    LT_SWIFT_V_B,
    LT_SWIFT_O,
    LT_SKEW, /* of a store's owner: K heads' rotation (A transposed: its columns are rows) by which
              */
    LT_COLUMNS, /* slots are ranked a layer ahead; and a permutation in its place */
    LT_CENTER,  /* of a store's owner: what its keys may be stored less (center.h) */
    LT_BALANCE, /* of a store's owner: factors of its keys' dims (balance.h); in no file */
    LT_SCORE,   /* of a store's owner: a map of its normed input to scores of its keys, */
    LT_SCORE_B, /* a row a K head (kvzap); made by pipit-calibrate */
    LT_CARRY, /* of a store's owner: how its keys' rounding errors are carried on (carry.h); files
               * have the mean of q q^T */
    LT_CARRY_TURNED, /* the same of keys that are rotated; in no file */
    LT_COUNT,
};

enum model_tensor {
    MT_EMBED,
    MT_PLE_NORM, /* of the projection that joins a per-layer embedding */
    MT_ONES,     /* ours: the weight of a norm that has none */
    MT_ROPE_FREQS, /* divides the frequencies (Llama 3); read by the host only */
    MT_SWIFT_NORM, /* of the hidden state from which all deep K and V come */
    MT_EXIT_NORM, /* early exit, an overlay's: norm and head on the split's hidden state; */
    MT_EXIT_HEAD, /* a row a word of pipit.exit.words, the last for every other word */
    MT_OUTPUT_NORM,
    MT_OUTPUT_NORM_B,
    MT_OUTPUT, /* absent: tied to MT_EMBED */
    MT_OUTPUT_B,
    MT_COUNT,
};

/* A side of a tensor, known once the hyperparameters are. */
enum tensor_dim {
    DIM_1,
    DIM_EMBD,
    DIM_VOCAB,
    DIM_FF,
    DIM_EXPERTS,
    DIM_EXPERT_FF, /* of one expert */
    DIM_SHARED_FF,
    DIM_AUG_Q,
    DIM_Q,      /* n_q * q_dim */
    DIM_Q_OUT,  /* the same, and as much for gates where Q has them */
    DIM_K,      /* n_k * k_dim */
    DIM_V,      /* n_v * v_dim */
    DIM_ATT,    /* n_q * o_dim */
    DIM_HEAD,   /* k_dim */
    DIM_HEADS,  /* n_q */
    DIM_K_HEADS, /* n_k */
    DIM_ROT2,   /* n_rot / 2 */
    DIM_PLE,    /* of a per-layer embedding */
    DIM_MIX,    /* what a recurrent layer makes of its input */
    DIM_CHANNELS, /* of its convolution, */
    DIM_WIDTH,    /* whose width is this, */
    DIM_MIX_V,  /* and what comes out */
    DIM_MIX_N,  /* V heads of the delta rule, */
    DIM_MIX_HEAD, /* and a head's size */
    DIM_GROUPS,   /* of a state space's heads, */
    DIM_GROUP,    /* and what comes out of one */
    DIM_DEEP_K, /* a whole number of heads, read from the file */
    DIM_DEEP_V,
    DIM_EXIT, /* 2 to n_vocab, read from the file */
};

struct tensor_row {
    const char *name; /* "blk.%d." goes before a layer's */
    enum ops_role role;
    enum tensor_dim rows; /* outputs */
    enum tensor_dim cols; /* inputs; GGUF's first dimension */
    bool stack;           /* so a matrix for each expert; GGUF's third dimension */
};

extern const struct tensor_row arch_layer_tensors[LT_COUNT];
extern const struct tensor_row arch_model_tensors[MT_COUNT];

/* A set of a layer's tensors. */
__extension__ typedef unsigned __int128 layer_set;

#define LT_BIT(t) ((layer_set)1 << (t))
_Static_assert(LT_COUNT <= 128, "sets of a layer's tensors are 128 bits");

/* A tensor that a family's files call otherwise, or most of them. */
struct tensor_alias {
    const struct tensor_row *row;
    const char *name;
};

enum { ARCH_MAX_ALIASES = 5 };

/* What layers without attention are. */
enum arch_recurrence {
    ARCH_RECUR_NONE,
    ARCH_RECUR_DELTA, /* gated delta rule; by recurrent_layers, or full_attention_interval */
    ARCH_RECUR_CONV,  /* short convolution between two gates; where head_count_kv is 0 */
    ARCH_RECUR_SCAN,  /* Mamba-2's state space behind a short convolution; as those */
};

struct arch {
    const char *name; /* general.architecture, and the prefix of its keys */
    enum ops_norm_kind norm;
    enum ops_rope_form rope;
    enum ops_act act;
    bool gated;             /* FFN is down(act(gate) * up), else down(act(up)) */
    bool parallel;          /* FFN and attention both read attn_norm(x) */
    bool embed_scaled;      /* embeddings times sqrt(n_embd) */
    bool caps_attn;         /* key attn_logit_softcapping counts */
    bool caps_logits;       /* key final_logit_softcapping counts */
    bool fused_ffn;         /* ffn_up holds gate's rows, then up's */
    int32_t no_rope_period; /* every no_rope_period-th layer does not rotate; 0: all do */
    bool rope_local_only;   /* where some layers slide, the others do not rotate */
    bool rope_switch;       /* key rope.scaling.finetuned = false: no layer rotates */
    bool temperature;       /* key attention.temperature_scale counts */
    bool multipliers;       /* keys embedding_scale, residual_scale and logit_scale count */
    bool experts;           /* key expert_count counts; LT_ROUTER required: it must */
    bool experts_normed;    /* the weights of a row's experts are made to sum to 1 */
    enum ops_router router; /* what makes the router's logits weights, unless: */
    bool router_key;        /* key expert_gating_func counts */
    bool weights_keys;      /* keys expert_weights_norm and expert_weights_scale count */
    bool router_chooses;    /* LT_ROUTER_B joins the weights, where experts are chosen only */
    bool experts_lead;      /* leading_dense_block_count: so many layers have no experts */
    bool experts_step;      /* interleave_moe_layer_step: every so many-th has */
    bool experts_beside;    /* layers with experts have the one FFN, too: both are added */
    bool shared_counted;    /* the shared expert is as wide as expert_shared_count experts */
    bool experts_whole;     /* each is as wide as feed_forward_length; else the key
                               expert_feed_forward_length says it, or a row's share that length */
    bool ffn_scales;        /* scales of a layer's matrices (".scale") count in its FFN too */
    bool diff_kv;           /* n_k and n_v are keys of their own (DiffQKV) */
    bool v_norm;            /* V heads are normed, without a weight; a file without V: V is K */
    bool per_layer;         /* embedding_length_per_layer_input counts */
    bool out_scale;         /* layers may have a layer_output_scale */
    enum arch_recurrence recurrence;
    bool single;            /* a layer is an FFN, where feed_forward_length is not 0, or has none */
    bool recurrent;         /* every layer is, and has no FFN: no key counts that says otherwise */
    bool q_gated;           /* each head of Q is followed by its gate */
    bool sections;          /* rope.dimension_sections: of a text, all have its positions */
    bool predictors;        /* nextn_predict_layers: so many of the last layers are left out */
    bool shared_kv;         /* attention.shared_kv_layers: the last layers read earlier ones' K and V */
    int32_t window_period;  /* of the model's sliding window: every window_period-th layer is
                               global; 0: no layer slides; -1: the file must say which */
    int32_t window;         /* that a file without a key for it has; 0: none */
    int32_t window_layers;  /* only the size with so many layers slides: no key tells; 0: all do */
    float window_rope_base; /* RoPE base of sliding layers; 0: the model's */
    bool window_scaled;     /* sliding layers take part in the file's scaling of RoPE */
    float attn_scale;       /* of logits; 0: what the file's key says, else 1 / sqrt(k_dim) */
    int32_t even_split_layers; /* 1 / sqrt(n_embd / n_q) in the model of so many layers: no key
                                  tells; 0: none */
    float attn_softcap;     /* of a file without a key for it; 0: none */
    float final_softcap;
    float alibi_max;        /* 0: no ALiBi */
    layer_set required;       /* LT_BIT()s of a layer */
    layer_set optional;
    layer_set recur_required; /* of a recurrent layer, in place of both */
    layer_set recur_optional;
    struct tensor_alias names[ARCH_MAX_ALIASES];
};

/* NULL for an architecture this build does not know. */
const struct arch *arch_find(const char *name);
/* What a tensor is called there. */
const char *arch_tensor_name(const struct arch *arch, const struct tensor_row *row);
/* The known names that fit, separated by ", ", for messages; size at least 64. */
void arch_names(char *buf, size_t size);

#endif
