/* SPDX-License-Identifier: Apache-2.0 */
/* Recency: what the latest queries attend to. A prompt's last `observe` queries score it, the last
 * with weight 1 and each one before with `decay` of its successor's; then every new token's query
 * counts 1 and the old scores shrink by `decay`. Early keys get no more terms than late ones,
 * which is what H2O's sums over the whole prompt get wrong. */

#include "engine/kv/policy/word.h"

#include <math.h>

static void observe(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret)
{
    /* A bounded prefill cuts after each chunk, so each chunk's last queries must have scored it. */
    int32_t end = p->prefill == POLICY_BOUNDED ? rows->pos0 + rows->n_rows : rows->n_prompt;
    int32_t first = end - p->observe - rows->pos0;

    *ret = (struct ops_observe){
        .noise = OPS_NOISE_NONE,
        .row_weight0 = 1.0f,
        .row_growth = 1.0f,
        .damp = p->decay,
        .tau0 = 1.0f,
    };
    if (rows->prefill) {
        first = first < 0 ? 0 : first;
        ret->row_first = first;
        ret->row_weight0 = powf(p->decay, (float)(end - 1 - rows->pos0 - first));
        ret->row_growth = 1.0f / p->decay;
        ret->damp = p->prefill == POLICY_BOUNDED ? p->decay : 1.0f;
    }
}

/* At decay 0.99 the 256th query before the last still counts 8 %. */
static void settle(struct policy *p)
{
    p->observe = p->observe < 0 ? 256 : p->observe;
}

static const struct place_ops place_recency = {.evicts = true,
                                               .scores = true,
                                               .spared = place_spared_recent,
                                               .guard = place_guard_recent,
                                               .observe = observe};

static const struct word_option decay = {.name = "decay",
                                         .type = WORD_FLOAT,
                                         .offset = WORD_FIELD(decay),
                                         .min = 0.01,
                                         .max = 1,
                                         .help = "weight of a query against the one after it"};

static const struct word_option *const options[] = {
    &option_recent,  &decay,      &option_scope, &option_pos,    &option_prefill,
    &option_observe, &option_min, &option_chunk, &option_layers, NULL};

const struct policy_word policy_word_recency = {
    .name = "recency",
    .axis = AXIS_PLACE,
    .help = "those that the latest queries attend to",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_recency,
    .settle = settle,
};
