/* SPDX-License-Identifier: Apache-2.0 */
/* topv:K: every key is read, then V of the K slots with the largest weights. */

#include "engine/kv/policy/word.h"

static const struct word_value switches[] = {{"off", 0}, {"on", 1}, {NULL, 0}};
static const struct word_option amount = {
    .name = "topv", .type = WORD_INT, .offset = WORD_FIELD(top_k), .min = 1, .max = 1 << 24};
static const struct word_option renorm = {.name = "renorm",
                                          .type = WORD_VALUE,
                                          .offset = WORD_FIELD(renorm),
                                          .values = switches,
                                          .help = "the weights that are left sum to 1 again"};

static const struct word_option *const options[] = {&renorm, NULL};

static void make(const struct policy *p, struct ops_select *ret)
{
    ret->kind = OPS_SELECT_TOPV;
    ret->k = p->top_k;
    ret->renorm = p->renorm != 0;
}

static const struct select_ops select_topv = {.make = make};

const struct policy_word policy_word_topv = {
    .name = "topv",
    .axis = AXIS_SELECT,
    .help = "every key, then V of the K slots with the largest weights, for each V head",
    .amount = &amount,
    .amount_says = "a number of slots must follow",
    .options = options,
    .select = &select_topv,
};
