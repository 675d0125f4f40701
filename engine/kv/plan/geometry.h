/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_PLAN_GEOMETRY_H
#define PIPIT_ENGINE_KV_PLAN_GEOMETRY_H

/* The cache's geometry: from the model's stores, the context, the number of sequences and the mix
 * of policies to page classes, pages and bytes. The plan prints it, the cache is built by it: one
 * computation, so they cannot differ. */

#include "engine/kv/policy/policy.h"
#include "engine/kv/home/staging.h"
#include "engine/kv/home/tier.h"
#include "engine/kv/store/kind.h"
#include "kernels/backend.h"

enum {
    GEOMETRY_MAX_CLASSES = 16,
    GEOMETRY_CLASS_NAME = 64,
    GEOMETRY_CHECKPOINTS = 4,       /* of recurrent states, a sequence, that prompts may leave, */
    GEOMETRY_LEAST_CHECKPOINTS = 8, /* and in all at least */
    GEOMETRY_MOST_SEQS = 1024,      /* that pipitd --sequences takes, and plans offer */
};

/* What one layer owns. */
struct geometry_store {
    int32_t layer;
    int32_t n_k;
    int32_t n_v;
    int32_t k_dim;
    int32_t v_dim;
    int32_t window;       /* of a sliding layer: its slots are a ring; else 0 */
    uint64_t state_bytes; /* of a recurrent layer, which has a state and no K and V; else 0 */
    bool deep;            /* written at SwiftKV's split */
    bool shared;          /* read by several layers */
    /* What partial keys are made with (struct ops_kv), loaded later; NULL: the overlay has none, or
     * the store is read by the first layers, which nothing can predict for. */
    const struct ops_weight *skew;
    const struct ops_weight *columns; /* the same without rotation: a permutation */
    int32_t weight; /* for layers=measured: its part of all, 0 to LAYER_WEIGHT_MOST */
    const struct ops_weight *balance; /* what its rotated keys are multiplied by, or NULL */
    const struct ops_weight *carry;  /* how rounding errors of its keys are carried on, or NULL; */
    const struct ops_weight *carry_turned; /* of rotated keys */
    const struct ops_weight *center; /* what its keys may be stored less (ops_kv.center), or NULL */
    bool surrogate; /* its layer has a map from hidden states to scores */
};

struct geometry_config {
    const struct backend_ops *ops;
    const struct geometry_store *stores; /* (n_stores), must outlive the geometry */
    int32_t n_stores;
    int32_t ctx;
    int32_t n_seqs;
    int32_t max_chunk;     /* rows of one sequence in a batch, at most */
    int32_t n_q;           /* query heads of a layer */
    bool keep_prefixes;    /* pages of prompts are kept for texts that begin alike (prefix.h) */
    uint64_t hidden_bytes; /* of one row of hidden states, for layered prefill */
    struct policy_mix mix;
    bool one_memory;                     /* the device shares the host's */
    bool sinks;                          /* its heads have a logit that no slot has */
    bool exit_head;                      /* the model has an early-exit head */
    bool split;                          /* it has SwiftKV's split */
    bool alibi;                          /* its attention has ALiBi */
    bool softcap;                        /* its attention caps logits */
    bool wide;                           /* queries read a shared store by maps of their own */
    bool untapped; /* layers differ in their heads, are recurrent or gated: no tool reads them */
    bool shared;                         /* layers read stores of layers long before them: no prompt
                                            is read layer by layer */
    const char *tier_dir;                /* where pool=disk has its file, or NULL */
    const struct tier_calls *tier_calls; /* NULL: the system's */
};

struct geometry_class {
    char name[GEOMETRY_CLASS_NAME]; /* "f16 1x64 + f16 1x64" */
    uint64_t page_bytes;
    uint64_t
        part_bytes; /* not 0: pages lie in the host's memory, and so much of each on the device */
    uint32_t n_pages;
    bool state; /* a page holds a state, not slots */
};

/* Where a sequence's arrays for one store are, in bytes from the start of its part. */
struct geometry_arrays {
    const struct store_kind *kind;
    int32_t n_groups;
    int32_t group0;      /* of all stores before it, the groups */
    int32_t ring;        /* slots of a ring, 0: none */
    int32_t cap;         /* slots with position and score, per group; 0: nobody evicts here */
    int32_t peak_cap;    /* while a prompt is read in the peak region */
    int32_t max_pages;   /* per group */
    uint64_t pages_off;  /* u32 (n_groups, max_pages), in the tables */
    uint64_t ring_off;   /* i32 (n_groups, ring), in the tables */
    uint64_t pos_off;    /* i32 (n_groups, cap), in the state */
    uint64_t score_off;  /* f32 (n_groups, cap), in the state */
    uint64_t victim_off; /* i32 (n_groups), in the state */
    uint64_t sum_off;    /* f32 (n_v, v_dim), in the state */
    uint64_t latest_off; /* (n_groups, OPS_LATEST_ENTRIES) entries of ops_kv.latest, in the state */
    uint64_t expect_off; /* f32 (n_groups, expect_words()), in the state (kernels/ops_expect.h) */
    uint64_t peak_pos_off; /* (n_groups, peak_cap), in the one peak region */
    uint64_t peak_score_off;
    uint64_t layer_score_off; /* layered: the region is one store's at a time, positions at 0 */
};

struct geometry {
    struct geometry_config config;
    int32_t n_classes;
    struct geometry_class classes[GEOMETRY_MAX_CLASSES];
    /* By precision: variant i is that of mix.part[i] (the same for equal precisions). */
    int32_t variant[KV_MAX_MIX];
    struct ops_kv_layout *layouts;  /* (mix.n, n_stores) */
    uint8_t *class_of;              /* (mix.n, n_stores) */
    struct geometry_arrays *arrays; /* (n_stores) */
    int32_t steady_cap;             /* the most of any store's cap; 0: no policy evicts */
    int32_t least_cap;              /* the least of those that are not 0 */
    bool peak;                      /* some prompts need the peak region */
    bool scores;
    bool observes;                 /* there is scratch to observe attention by */
    bool expects;                  /* statistics of queries may be kept */
    bool divides;                  /* head groups may keep unequal numbers of slots */
    int32_t n_groups;              /* of all stores */
    bool selects;                  /* queries may select */
    bool predicts;                 /* a layer ahead */
    struct tier_config tier;       /* n_stores 0: no policy has its K and V on disk */
    struct staging_config staging; /* seq_bytes 0: no policy has its pages on the host */
    int32_t tier_variant;          /* whose format the file has */
    const char *tier_option;       /* and what asked for it first, policy_disk_option's */
    uint64_t prompt_read_bytes;    /* from the file, for a prompt as long as the context */
    bool sums;                     /* sequences keep sums of V */
    bool layered;                  /* a planned policy reads prompts layer by layer */
    bool whole_peak;               /* one reads them through all layers at once */
    uint64_t table_bytes;          /* of one sequence */
    uint64_t state_bytes;          /* of one sequence */
    uint64_t peak_state_bytes;     /* hidden states included */
    uint64_t hidden_off;           /* layered: f32 rows of the whole prompt, in the peak region */
    uint64_t survivors_off;        /* layered beyond the split: f32 rows that are observed */
    int32_t max_survivors;
    uint64_t kv_bytes;         /* all pages but those for the peak */
    uint64_t peak_bytes;       /* pages that only a prompt being read needs */
    uint64_t seq_bytes;        /* pages of one sequence of the default policy, filled */
    uint64_t full_token_bytes; /* f16, keep all: bytes that one position takes */
    int32_t n_states;          /* stores that hold a state */
    int32_t n_checkpoints;     /* of all of them together, that prompts may leave */
};

/* A text as the cache sees it before it sits down. */
struct geometry_text {
    int32_t n_prompt;
    int32_t n_tokens;   /* that may be fed in the end */
    int32_t n_steps;    /* new tokens over which a policy's tau runs */
    int32_t held;       /* restored from a snapshot: tokens, */
    int32_t held_slots; /* slots of a global store, */
    int32_t budget;     /* and the budget, which a new turn may raise; 0 otherwise */
};

/* The pages a sequence needs, by class: for good, and beside them while its prompt is read. */
struct geometry_need {
    uint32_t pages[GEOMETRY_MAX_CLASSES];
    uint32_t peak[GEOMETRY_MAX_CLASSES];
    bool peak_state;  /* needs the one region: a store's slots are more than its cap, or layered */
    bool beyond_peak; /* a store's slots are more than even that region has */
    bool layered;     /* the prompt is longer than the budget and read layer by layer */
};

/* -ENOTSUP for types the backend lacks, -EINVAL, -ENOMEM where a share does not hold one sequence.
 */
int geometry_make(const struct geometry_config *config, struct geometry *ret,
                  struct error *reterr) WARN_UNUSED;
void geometry_finish(struct geometry *s); /* takes a zeroed struct */

/* Can this model and backend do what the policy asks? -ENOTSUP, -EINVAL. */
int geometry_check_host(const struct geometry *s, const struct policy *p,
                        struct error *reterr) WARN_UNUSED;
/* Does a sequence under the policy keep the sum of V of a store? */
bool geometry_keeps_sum(const struct geometry *s, const struct policy *p, int32_t store);

/* Numbers of one group's statistics of queries in a store. */
uint64_t geometry_expect_words(const struct geometry *s, int32_t store);

/* Does such a sequence store its keys less the store's center? */
bool geometry_centers(const struct geometry *s, const struct policy *p, int32_t store);

/* May pages of prompts stay for texts to come? Each store must have something to keep. */
bool geometry_keeps_prefixes(const struct geometry *s);

/* Can it be predicted which slots of a store are read? Not where the first two layers read it: no
 * layer before them has an input that predicts theirs. A sliding layer reads its whole ring. */
static inline bool geometry_is_predictable(int32_t first_layer, int32_t window)
{
    return first_layer >= 2 && window == 0;
}

/* Which of the mix's precisions a policy has; -ENOENT. */
int geometry_variant(const struct geometry *s, const struct policy *p);
/* Do two policies want the same pages? */
bool geometry_same_pages(const struct policy *a, const struct policy *b);

/* For a policy of a known variant. */
void geometry_need(const struct geometry *s, const struct policy *p, int32_t variant,
                   const struct geometry_text *text, struct geometry_need *ret);

/* Slots per group of the mean global store for a text, 0: all. */
int32_t geometry_budget(const struct geometry *s, const struct policy *p,
                        const struct geometry_text *text);

/* What a store has of such a budget; 0: it keeps all, or a ring's. */
int32_t geometry_store_budget(const struct geometry *s, const struct policy *p, int32_t budget,
                              int32_t store);

/* The most slots that a group of a store has of such a budget: more than that under
 * heads=adaptive. */
int32_t geometry_most_slots(const struct geometry *s, const struct policy *p, int32_t budget,
                            int32_t store);

/* Does the policy drop tokens of this store? Not where its kind has none to drop, nor does a pool
 * of those that nothing can be predicted for. */
bool geometry_evicts(const struct geometry *s, const struct policy *p, int32_t store);

/* Its K and V lie in the file: its number there, else -1. */
int32_t geometry_on_disk(const struct geometry *s, const struct policy *p, int32_t store);

/* The slots per group that a store holds at most of n_tokens under a budget (0: all) of its own. */
int32_t geometry_slots(const struct geometry *s, int32_t store, int32_t budget, int32_t n_tokens);

static inline const struct ops_kv_layout *geometry_layout(const struct geometry *s, int32_t variant,
                                                          int32_t store)
{
    return &s->layouts[variant * s->config.n_stores + store];
}

static inline int32_t geometry_class_of(const struct geometry *s, int32_t variant, int32_t store)
{
    return s->class_of[variant * s->config.n_stores + store];
}

#endif
