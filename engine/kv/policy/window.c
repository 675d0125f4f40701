/* SPDX-License-Identifier: Apache-2.0 */
/* The first `sinks` positions and the latest others, by position alone: StreamingLLM's choice of
 * tokens with their original positions (its renumbering is pos=new), or a plain window without
 * sinks. No scores, so attention observes nothing. */

#include "engine/kv/policy/word.h"

static const struct place_ops place_window = {
    .evicts = true, .sinks_beside = true, .spared = place_spared_one, .guard = place_guard_latest};

static const struct word_option *const options[] = {&option_pos,   &option_prefill, &option_min,
                                                    &option_chunk, &option_layers,  NULL};

const struct policy_word policy_word_window = {
    .name = "window",
    .axis = AXIS_PLACE,
    .help = "the latest N",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_window,
};
