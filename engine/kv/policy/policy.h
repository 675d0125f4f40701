/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_POLICY_H
#define PIPIT_ENGINE_KV_POLICY_POLICY_H

/* A policy: which precision, which tokens stay, which of them a query reads, how a prompt is read.
 *
 *     policy = word {"+" word}            word = name [":" amount] {"," key "=" value}
 *     mix    = policy ["=" percent] {";" policy "=" percent}
 *
 * Each word is one file of this folder (word.h), listed by registry.c; docs/guide/policies.md has
 * the tables.
 * Callers outside engine/kv ask the questions below and know no word. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/ops.h"

struct backend_ops;
struct place_ops;
struct select_ops;

enum policy_budget { POLICY_SLOTS, POLICY_PERCENT, POLICY_PERCENT_CTX };
enum policy_prefill { POLICY_DENSE, POLICY_LAYERED, POLICY_BOUNDED };
enum policy_noise { POLICY_ONCE, POLICY_FRESH, POLICY_GAUSS, POLICY_CONST, POLICY_NO_NOISE };
enum policy_mode { POLICY_PAPER, POLICY_AS_SHIPPED };
enum policy_scope { POLICY_PER_HEAD, POLICY_PER_LAYER, POLICY_SHARED };
enum policy_pool { POLICY_POOL_DEVICE, POLICY_POOL_DISK, POLICY_POOL_SLOTS, POLICY_POOL_HOST };
enum policy_victim { POLICY_FIFO, POLICY_LRU, POLICY_COUNTER };
enum policy_full { POLICY_DROP, POLICY_SPILL };
enum policy_center { POLICY_CENTER_AUTO, POLICY_CENTER_OFF };
enum policy_rot { POLICY_ROT_AUTO, POLICY_ROT_ON, POLICY_ROT_OFF };
enum policy_stores { POLICY_STORES_SAME, POLICY_STORES_KV8 };
enum policy_layers { POLICY_LAYERS_EQUAL, POLICY_LAYERS_PYRAMID, POLICY_LAYERS_MEASURED };
enum policy_heads { POLICY_HEADS_EQUAL, POLICY_HEADS_ADAPTIVE };
enum policy_mean { POLICY_MEAN_AUTO, POLICY_MEAN_ON, POLICY_MEAN_OFF };

struct policy {
    enum ops_kv_type k_type;
    enum ops_kv_type v_type;
    const struct place_ops *place;   /* which tokens stay (place.h) */
    const struct select_ops *select; /* which of them a new token reads (select.h); NULL: all */
    enum policy_budget budget_kind;
    int32_t budget; /* slots or percent */
    int32_t layers; /* enum policy_layers: how the budgets of all stores share their sum */
    int32_t heads;  /* enum policy_heads: how a layer's budgets are divided among head groups */
    int32_t safeguard; /* adaptive: percent of what competes that each group has for sure */
    int32_t min;    /* slots that a budget in percent has at least */
    int32_t sinks;  /* first positions that stay */
    int32_t recent; /* percent of the budget that the latest tokens have for sure */
    int32_t mode;   /* the enums above; int32_t so that one table describes every field */
    int32_t noise;
    int32_t scope;
    int32_t pos_new;
    int32_t prefill;
    int32_t observe; /* last rows of a prompt that score where not all do */
    int32_t chunk;   /* rows of a prompt read at once */
    int32_t seed;
    int32_t own[4]; /* what one word of placement alone knows; its file names them */
    float tau0;
    float tau1;
    float damp;  /* scores are multiplied by it at each new token */
    float decay; /* recency: weight of a query against the one after it */
    /* expected: */
    int32_t ahead; /* positions to come over which queries are averaged */
    int32_t every; /* new tokens between two rounds of scores */
    int32_t cov;   /* the queries' covariance counts, too */
    float floor;   /* added to a key's expected weight before V's size multiplies it */
    /* What a query of a new token reads: */
    int32_t r;     /* sparq: dims that rank */
    int32_t top_k; /* slots that are read; topv: whose V is */
    int32_t local; /* sparq: of these, the latest */
    int32_t select_mode;
    int32_t mean; /* sparq: the mean of V stands for what is not read; auto: without shared heads */
    int32_t rank; /* enum ops_rank */
    int32_t renorm;
    /* infinigen: */
    float alpha;      /* slots within this of the largest predicted logit */
    int32_t cap;      /* at most this percent of the text */
    int32_t count;    /* instead: as many as this; 0 */
    int32_t share;    /* or this percent of the text; 0 */
    float partial;    /* share of a key's dims that the partial key has */
    int32_t partial8; /* in fp8, else in f16 (f32 where K is) */
    int32_t skew; /* partial keys by the overlay's rotation, else by its columns of K as it is */
    int32_t pool; /* enum policy_pool: where K and V of all slots are, or that `budget` are kept */
    int32_t victim; /* enum policy_victim: of these, which goes */
    int32_t exempt; /* counter: the latest slots, which stay */
    int32_t full;   /* enum policy_full: a victim is lost, or read from disk when it is listed
                       again; then `place` is that of full */
    /* A new token to which the early-exit head gives a larger probability needs no deep layers; 0:
     * every one does. */
    float exit;
    int32_t center;     /* enum policy_center: keys are stored less what all keys of a head share */
    int32_t rot;        /* enum policy_rot: heads are stored as their Hadamard transforms */
    int32_t shared;     /* enum policy_stores: types of stores that several layers share */
    int32_t exit_draft; /* the early-exit head proposes tokens, the whole model verifies them */
};

enum {
    KV_MAX_MIX = 4,
    KV_TEXT_MAX = 512,
    KV_DEFAULT_CHUNK = 512,
    KV_ENDLESS_TOKENS = 1 << 20, /* of one sequence, where no context bounds it */
};

struct policy_mix {
    int32_t n;
    struct {
        struct policy policy;
        int32_t share;  /* percent of the cache's bytes; they sum to 100 */
    } part[KV_MAX_MIX]; /* the first is the default */
};

/* NULL or "" is "full". -EINVAL with the position of the fault (from 1) and the allowed values. */
int policy_parse(const char *text, struct policy *ret, struct error *reterr) WARN_UNUSED;
int policy_parse_mix(const char *text, struct policy_mix *ret, struct error *reterr) WARN_UNUSED;

/* The canonical, fully expanded text; parsing it gives the same policy. */
void policy_print(const struct policy *p, char *buf, size_t size);

/* May a sequence that was saved under one policy (its text) go on under the other? Where they
 * differ at most in where K and V of all slots lie: pool=device, host or disk, or beside a pool
 * that spills. */
bool policy_same_saved(const struct policy *p, const char *text);

/* What model and backend are, for what a policy may need of them. */
struct policy_host {
    const struct backend_ops *ops;
    bool one_memory;      /* the device shares the host's */
    bool exit_head;       /* the model has an early-exit head, */
    bool sinks;           /* heads have a logit that no slot has */
    bool split;           /* or at least SwiftKV's split */
    bool alibi;           /* attention's logits have a bias by distance, */
    bool softcap;         /* or are capped */
    bool wide;            /* queries read a shared store by maps of their own */
    bool untapped;        /* tools that run a text through a model take none like this */
    bool stateful;        /* no layer has keys and values: all are recurrent */
    int32_t least_k_dim;  /* of all stores */
    bool part_keys;       /* some store has what partial keys are made with, */
    int32_t no_part_keys; /* and this layer lacks it; -1: none does */
    bool weighed;         /* weights of layers were measured */
    int32_t no_surrogate; /* a layer whose slots may be evicted and which has no map from hidden
                             states to scores; -1: none is */
    int32_t uneven[2];    /* two layers with partial keys whose heads differ; [0] -1: none */
};

/* Can model and backend do what the policy asks? -ENOTSUP, -EINVAL. */
int policy_check_host(const struct policy *p, const struct policy_host *h,
                      struct error *reterr) WARN_UNUSED;

/* Which tokens stay: are any evicted, is a score kept for each slot, is attention observed? */
bool policy_evicts(const struct policy *p);
bool policy_scores(const struct policy *p);
bool policy_observes(const struct policy *p);
/* Are statistics of the prompt's queries kept, which keys are scored by (ops_expect.h)? */
bool policy_expects(const struct policy *p);
/* Are scores what the model's maps make of hidden states? */
bool policy_has_surrogate(const struct policy *p);
/* Does a new token's query read less than all slots? And are they chosen a layer ahead, from
 * partial keys? */
bool policy_selects(const struct policy *p);
bool policy_predicts(const struct policy *p);
/* Does a query of a new token read all, under positions of its own, and is nothing evicted? Then
 * rows may be tried and taken back. */
bool policy_only_appends(const struct policy *p);
/* Is a long prompt cut after each chunk? */
bool policy_cuts_chunks(const struct policy *p);
/* Does nothing happen between the chunks of a prompt, so that a step may take several of them? Not
 * where tokens are evicted (their scores count from chunks), nor where a file is written chunk by
 * chunk. */
bool policy_joins_chunks(const struct policy *p);
/* Is the key set fixed at the end of the first prompt, so that there is no second turn? */
bool policy_one_turn(const struct policy *p);
/* Are keys stored less a constant, where the model has one (engine/model/center.h)? In 8 bits or
 * fewer; not with pos=new, where a constant is turned by another angle for every slot. */
bool policy_centers(const struct policy *p);
/* The word of its precision, a constant. */
const char *policy_precision(const struct policy *p);
/* What K and V of a store are stored in: `shared`: of one that several layers read. */
enum ops_kv_type policy_k_type(const struct policy *p, bool shared);
enum ops_kv_type policy_v_type(const struct policy *p, bool shared);
/* Are heads in this type stored as their Hadamard transforms? In integers with a scale; not with
 * pos=new, which turns keys as they are read, nor where queries rank keys by single dims. */
bool policy_rotates(const struct policy *p, enum ops_kv_type type);
/* May a sequence with these types be rotated, under some value of `rot`? */
bool policy_may_rotate(const struct policy *p);
/* A canonical text out of a file: like policy_parse(), but what texts before an option was there do
 * not say has the meaning that it had then (center: off, rot: off). */
int policy_parse_saved(const char *text, struct policy *ret, struct error *reterr) WARN_UNUSED;

/* Do K and V of all slots lie in a file? And is there a pool of slots in memory beside it? */
bool policy_on_disk(const struct policy *p);
bool policy_spills(const struct policy *p);
/* Of a policy on disk: the option that put it there, for messages; a constant. */
const char *policy_disk_option(const struct policy *p);
/* Do pages lie in the host's memory? */
bool policy_on_host(const struct policy *p);
/* The slots of the pool beside a file for a head group, 0 where there is none. */
int32_t policy_pool_slots(const struct policy *p, int32_t n_tokens, int32_t ctx);

/* Tokens that a sequence may have: the context, or more under a policy that renumbers positions and
 * forgets. */
int32_t policy_most_tokens(const struct policy *p, int32_t ctx);

/* Slots that a head group holds of a text of n_tokens, 0 for all. Never more than ctx. */
int32_t policy_budget(const struct policy *p, int32_t n_tokens, int32_t ctx);

/* One of the stores that evict, first layer first. */
struct policy_share {
    int32_t rank; /* of n */
    int32_t n;
    int32_t weight; /* measured, 0 to LAYER_WEIGHT_MOST; */
    int64_t sum;    /* of all n; 0: none were measured */
};

enum { LAYER_WEIGHT_MOST = 1 << 16 };

/* layers.c. What the store has of a budget: all n have n budgets together at most, and none more
 * than ctx. */
int32_t policy_store_budget(const struct policy *p, int32_t budget, const struct policy_share *s,
                            int32_t ctx);
/* The slots that a store needs in any case, so that one beside sinks and recent tokens may go; at
 * most `budget`. */
int32_t policy_least_budget(const struct policy *p, int32_t budget);

/* heads.c. Slots that each head group of a store has for sure of a budget, and at most; both are
 * the budget but under heads=adaptive. Whole pages of them, and as many in all as equal heads take:
 * so memory is planned as for these, but for positions and scores. */
bool policy_divides_heads(const struct policy *p);
int32_t policy_sure_slots(const struct policy *p, int32_t budget);
int32_t policy_most_slots(const struct policy *p, int32_t budget, int32_t n_groups, int32_t ctx);
/* Do these leave pages to compete for? */
bool policy_heads_compete(const struct policy *p, int32_t budget);

/* A head group of a store that is cut. */
struct policy_head {
    const float *page; /* sums of scores by pages of slots, the last to be dropped first, */
    int32_t live;      /* of so many slots */
};

/* The pages that each group keeps, ret (n_groups): those beyond what is sure go one by one to the
 * group whose next one, full, has the largest sum (ties: the lower group). */
void policy_divide(const struct policy *p, int32_t budget, const struct policy_head *heads,
                   int32_t n_groups, int32_t *ret);

#endif
