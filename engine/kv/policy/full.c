/* SPDX-License-Identifier: Apache-2.0 */
/* full: a token's slot is its position, nothing is observed, nothing is evicted. */

#include "engine/kv/policy/word.h"

const struct place_ops place_full = {.evicts = false, .scores = false};

static const struct word_option *const options[] = {&option_chunk, NULL};

const struct policy_word policy_word_full = {
    .name = "full",
    .axis = AXIS_PLACE,
    .help = "everything",
    .options = options,
    .place = &place_full,
};
