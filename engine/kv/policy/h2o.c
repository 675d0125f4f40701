/* SPDX-License-Identifier: Apache-2.0 */
/* H2O (Zhang et al., 2023): the score of a key is the sum of the attention it has received from
 * every query since the prompt's first, so early keys have more terms; the victim is the lowest
 * outside the recent share. Over the query heads of a group and the layers of a store it is the
 * sum. `damp` multiplies the old sum at each new token (1: the published method). */

#include "engine/kv/policy/word.h"

static void observe(const struct policy *p, const struct place_rows *rows, struct ops_observe *ret)
{
    *ret = (struct ops_observe){
        .noise = OPS_NOISE_NONE,
        .row_weight0 = 1.0f,
        .row_growth = 1.0f,
        .damp = rows->prefill ? 1.0f : p->damp,
        .tau0 = 1.0f,
    };
}

static const struct place_ops place_h2o = {.evicts = true,
                                           .scores = true,
                                           .spared = place_spared_recent,
                                           .guard = place_guard_recent,
                                           .observe = observe};

static const struct word_option *const options[] = {
    &option_recent,  &option_damp, &option_scope, &option_pos,    &option_prefill,
    &option_observe, &option_min,  &option_chunk, &option_layers, NULL};

const struct policy_word policy_word_h2o = {
    .name = "h2o",
    .axis = AXIS_PLACE,
    .help = "those that have received most attention (Zhang et al. 2023)",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_h2o,
};
