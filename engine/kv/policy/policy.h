/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_POLICY_H
#define PIPIT_ENGINE_KV_POLICY_POLICY_H

/* The policy text (DESIGN §5): which precision, which tokens stay, which of them a query reads, how
 * a prompt is read.
 *
 *     policy = word {"+" word}            word = name [":" amount] {"," key "=" value}
 *     mix    = policy ["=" percent] {";" policy "=" percent}
 *
 * One word an axis. Precision: f32 f16 bf16 fp8 kv8 k16v8 q8_0 q4_0. Place: full, window:N,
 * h2o:N, keyformer:N, recency:N, and beside them sinks:N. N is slots, "50%" of the text at the end
 * of the prompt, or "50%ctx" of the planned context. Select: sparq, topv:K, infinigen. Early exit:
 * exit:P or exit:draft. The first
 * option of sparq and infinigen may follow a ':' as well. A number as infinigen's pool= is a place of
 * its own: `place` is then its victim's rule. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "kernels/ops.h"

enum policy_place {
    POLICY_FULL,
    POLICY_WINDOW,
    POLICY_H2O,
    POLICY_KEYFORMER,
    POLICY_RECENCY,
    /* infinigen's pool of so many slots: the victim's rule */
    POLICY_FIFO,
    POLICY_LRU,
    POLICY_COUNTER,
};

enum policy_budget { POLICY_SLOTS, POLICY_PERCENT, POLICY_PERCENT_CTX };
enum policy_prefill { POLICY_DENSE, POLICY_LAYERED, POLICY_BOUNDED };
enum policy_noise { POLICY_ONCE, POLICY_FRESH, POLICY_GAUSS, POLICY_CONST, POLICY_NO_NOISE };
enum policy_mode { POLICY_PAPER, POLICY_AS_SHIPPED };
enum policy_scope { POLICY_PER_HEAD, POLICY_PER_LAYER, POLICY_SHARED };
enum policy_select { POLICY_READ_ALL, POLICY_SPARQ, POLICY_TOPV, POLICY_INFINIGEN };
enum policy_pool { POLICY_POOL_DEVICE, POLICY_POOL_DISK, POLICY_POOL_SLOTS, POLICY_POOL_HOST };
enum policy_full { POLICY_DROP, POLICY_SPILL };
enum policy_mean { POLICY_MEAN_AUTO, POLICY_MEAN_ON, POLICY_MEAN_OFF };

struct policy {
    enum ops_kv_type k_type;
    enum ops_kv_type v_type;
    enum policy_place place;
    enum policy_budget budget_kind;
    int32_t
        budget;  /* slots or percent; window: the sinks are beside it in slots, inside in percent */
    int32_t min; /* slots that a budget in percent has at least */
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
    float tau0;
    float tau1;
    float damp;  /* scores are multiplied by it at each new token */
    float decay; /* recency: weight of a query against the one after it */
    /* What a query of a new token reads: */
    int32_t select;
    int32_t r;     /* sparq: dims that rank */
    int32_t top_k; /* slots that are read; topv: whose V is */
    int32_t local; /* sparq: of these, the latest */
    int32_t select_mode;
    int32_t mean; /* sparq: the mean of V stands for what is not read; auto: without shared heads */
    int32_t rank; /* enum ops_rank */
    int32_t renorm;
    /* infinigen: */
    float alpha;   /* slots within this of the largest speculated logit */
    int32_t cap;   /* at most this percent of the text */
    int32_t count; /* instead: as many as this; 0 */
    int32_t share; /* or this percent of the text; 0 */
    float partial; /* share of a key's dims that the partial key has */
    int32_t partial8; /* in fp8, else in f16 (f32 where K is) */
    int32_t skew;  /* partial keys by the overlay's rotation, else by its columns of K as it is */
    int32_t pool;  /* enum policy_pool: where K and V of all slots lie, or `budget` of them on the device */
    int32_t victim; /* of these, which goes: POLICY_FIFO, POLICY_LRU or POLICY_COUNTER */
    int32_t exempt; /* counter: the latest slots, which stay */
    int32_t full;   /* enum policy_full: a victim is lost, or read from disk when it is listed again; then
                       `place` is POLICY_FULL */
    /* A new token to which the early-exit head gives a larger probability needs no deep layers; 0: every
     * one does. */
    float exit;
    int32_t exit_draft; /* the early-exit head proposes tokens, the whole model verifies them */
};

enum { POLICY_MAX_MIX = 4, POLICY_TEXT_MAX = 512, POLICY_DEFAULT_CHUNK = 512 };

struct policy_mix {
    int32_t n;
    struct {
        struct policy policy;
        int32_t share;      /* percent of the cache's bytes; they sum to 100 */
    } part[POLICY_MAX_MIX]; /* the first is the default */
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

/* Do K and V of all slots lie in a file? And is there a pool of slots in memory beside it? */
bool policy_on_disk(const struct policy *p);
bool policy_spills(const struct policy *p);
/* Of a policy on disk: the option that put it there, for messages; a constant. */
const char *policy_disk_option(const struct policy *p);
/* The slots of that pool for a head group, 0 where there is none. */
int32_t policy_pool_slots(const struct policy *p, int32_t n_tokens, int32_t ctx);

/* Slots that a head group holds of a text of n_tokens, 0 for all. Never more than ctx. */
int32_t policy_budget(const struct policy *p, int32_t n_tokens, int32_t ctx);

#endif
