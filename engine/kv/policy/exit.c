/* SPDX-License-Identifier: Apache-2.0 */
/* exit:P and exit:draft: the early-exit head of a SwiftKV overlay ends a token's pass at the split,
 * or proposes tokens that the whole model verifies. What they conflict with is in rules.c, as both
 * conflict with kinds of words and not with words. */

#include <errno.h>

#include "engine/kv/policy/word.h"

static const struct word_option amount = {
    .name = "exit", .type = WORD_CHANCE, .offset = WORD_FIELD(exit), .min = 0.01, .max = 1};

static int needs(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    (void)p;
    if (!h->exit_head) {
        return error_set(
            reterr, -ENOTSUP,
            "policy: exit needs a model with an early-exit head, which a SwiftKV overlay "
            "may bring (exit_head.weight)%s",
            h->split ? "; this one's brings none" : "");
    }
    return 0;
}

const struct policy_word policy_word_exit = {
    .name = "exit",
    .axis = AXIS_EXIT,
    .help = "a new token goes no further than SwiftKV's split where the early-exit head gives a "
            "word a probability above P; `draft`: that head proposes tokens, the whole model "
            "verifies them",
    .amount = &amount,
    .amount_says = "a probability must follow (0.95)",
    .needs = needs,
};
