/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_PLACE_H
#define PIPIT_ENGINE_KV_POLICY_PLACE_H

/* Which tokens stay: one small table of functions a policy word. A word says what may not be
 * evicted and what attention is to observe; the search for a victim, the cut and the sums are
 * backend operations, so these files know no backend. */

#include "engine/kv/policy/policy.h"

/* What a victim or a cut spares; fields as in ops_victim and ops_cut. */
struct place_guard {
    int32_t budget; /* slots that a cut leaves */
    int32_t sinks;
    int32_t pos_protect;
    int32_t drop; /* a position that a cut drops whatever its score, or -1 */
    bool by_position;
    bool shared;
};

/* The moment: a cut, or the search for a victim of the token at position `last`. */
struct place_when {
    bool cut;
    int32_t budget;
    int32_t n_prompt;
    int32_t last; /* the newest position that will be held */
};

/* Rows of one sequence in one call. */
struct place_rows {
    bool prefill;
    int32_t pos0;
    int32_t n_rows;
    int32_t n_prompt;
    int32_t step;    /* decode: the first row's new token, from 1 */
    int32_t n_steps; /* over which tau runs */
};

/* Scores that rescore() sees before and behind those that it changes. */
enum { PLACE_HALO = 31 };

struct place_ops {
    bool evicts;
    bool scores;       /* keeps a score for each slot */
    bool expects;      /* scores are of keys and values, and of statistics of the prompt's queries
                          (ops_expect.h): at the end of a prompt, and every so many new tokens */
    bool surrogate;    /* scores are what the model's maps make of hidden states, as a slot is
                          written (KV_SCORE) */
    bool sinks_beside; /* a budget in slots does not include the sinks; one in percent does */
    bool endless; /* the model never sees a position beyond the slots: no context bounds the text */
    enum ops_use use; /* scores are not of attention, but of what selection lists */
    /* Of a budget, the latest slots that no eviction takes. */
    int32_t (*spared)(const struct policy *p, int32_t budget);
    /* And those that new tokens take one after the other before any of them goes. NULL: none. */
    int32_t (*taken)(const struct policy *p, int32_t budget);
    void (*guard)(const struct policy *p, const struct place_when *when, struct place_guard *ret);
    /* What to observe in these rows; layer is set by the forward pass. NULL: scores, if any, are
     * not of attention. */
    void (*observe)(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret);
    /* What a cut ranks by in place of n scores of a head group, in order of position.
     * score[-PLACE_HALO] to score[n + PLACE_HALO - 1] may be read; it is 0 where there is no
     * evictable slot. NULL: the scores. Only for words that refuse prefill=bounded: slot is
     * position until the cut. */
    void (*rescore)(const struct policy *p, const float *score, int32_t n, float *ret);
};

extern const struct place_ops place_full;
/* pool.c: by enum policy_victim, for infinigen's pool of so many slots. */
extern const struct place_ops *const place_pool[];

/* recent.c, for words that go by position: the token that is being placed is spared; beside it the
 * sinks stay and the oldest goes. */
int32_t place_spared_one(const struct policy *p, int32_t budget);
void place_guard_latest(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret);
/* recent.c, for words that score: the policy's recent share of a budget. */
int32_t place_spared_recent(const struct policy *p, int32_t budget);
/* And sinks, and that share. */
void place_guard_recent(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret);

#endif
