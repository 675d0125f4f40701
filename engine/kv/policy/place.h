/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_PLACE_H
#define PIPIT_ENGINE_KV_POLICY_PLACE_H

/* Which tokens stay: one small table of functions a policy word (DESIGN §5 rule 2). A policy says
 * what may not be dropped and what attention is to observe; the search for a victim, the cut and
 * the sums are backend operations, so these files know no backend. A new policy is one file here,
 * a value of enum policy_place (policy.h), a row in place.c and one in policy_words.c, and where it evicts or
 * scores its bit in policy_words.h. */

#include "engine/kv/policy/policy.h"

/* What a victim or a cut spares; fields as in ops_victim and ops_cut. */
struct place_guard {
    int32_t budget; /* slots that a cut leaves */
    int32_t sinks;
    int32_t pos_protect;
    int32_t drop;   /* a position that a cut drops whatever its score, or -1 */
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

struct place_ops {
    bool evicts;
    bool scores; /* keeps a score for each slot */
    void (*guard)(const struct policy *p, const struct place_when *when, struct place_guard *ret);
    /* What to observe in these rows; layer is set by the forward pass. NULL: scores, if any, are not
     * of attention. */
    void (*observe)(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret);
};

const struct place_ops *place_find(enum policy_place place);

/* Does a query of a new token read all, under positions of its own, and drop nothing? Then rows may
 * be tried and taken back. */
bool place_only_appends(const struct policy *p);

extern const struct place_ops place_full;
extern const struct place_ops place_window;
extern const struct place_ops place_h2o;
extern const struct place_ops place_keyformer;
extern const struct place_ops place_recency;
extern const struct place_ops place_pool_fifo;
extern const struct place_ops place_pool_used;

/* For scoring policies: sinks, and the policy's recent share of the budget. */
void place_guard_recent(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret);

#endif
