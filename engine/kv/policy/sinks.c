/* SPDX-License-Identifier: Apache-2.0 */
/* sinks:M beside a word that evicts: the first M positions stay. Every such word's guard spares
 * them. */

#include "engine/kv/policy/word.h"

static const struct word_option amount = {
    .name = "sinks", .type = WORD_INT, .offset = WORD_FIELD(sinks), .max = 4096};

const struct policy_word policy_word_sinks = {
    .name = "sinks",
    .axis = AXIS_SINKS,
    .help = "the first M tokens as well, beside any word that evicts",
    .amount = &amount,
    .amount_says = "a number of slots must follow",
};
