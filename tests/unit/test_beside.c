/* SPDX-License-Identifier: Apache-2.0 */
/* Experts beside a dense FFN (gemma4): what their tensors must be, by name; factors of experts
 * count. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/unit/bend.h"
#include "tests/unit/engine_run.h"

static const char model[] = "arch_gemma4_moe.gguf";

/* Each must be there and have its size; the factors must have theirs. */
Test(beside, tensors_that_are_missing_or_of_another_size)
{
    static const char names[][24] = {
        "ffn_gate.weight",        "ffn_down.weight",        "ffn_gate_inp.weight",
        "ffn_gate_inp.scale",     "ffn_down_exps.weight",   "pre_ffw_norm_2.weight",
        "post_ffw_norm_1.weight", "post_ffw_norm_2.weight", "post_ffw_norm.weight",
        "ffn_down_exps.scale",
    };
    char full[64];

    bend_refused(model, &(struct bend){.key = NULL}, 0, NULL);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct bend b = {.tensor = full};
        bool may_lack = strcmp(names[i], "ffn_down_exps.scale") == 0;

        (void)snprintf(full, sizeof(full), "blk.1.%.23s", names[i]);
        bend_refused(model, &b, may_lack ? 0 : -EBADMSG, may_lack ? NULL : full);
        b.wider = strcmp(names[i], "ffn_down_exps.weight") != 0; /* bend_file() knows no stacks */
        if (b.wider) {
            bend_refused(model, &b, -EBADMSG, full);
        }
    }
    bend_refused(model, &(struct bend){.tensor = "blk.0.ffn_gate_up_exps.weight"}, -EBADMSG,
                 "blk.0.ffn_gate_exps.weight is missing");
}

Test(beside, keys_that_are_missing_or_wrong)
{
    static const struct {
        struct bend bend;
        const char *text;
    } cases[] = {
        {{.key = "gemma4.expert_count", .value = 5}, "blk.0.ffn_gate_inp.weight is (32, 6)"},
        {{.key = "gemma4.expert_used_count", .value = 7}, "gemma4.expert_used_count"},
        {{.key = "gemma4.expert_used_count", .drop = true}, "gemma4.expert_used_count is missing"},
        {{.key = "gemma4.expert_feed_forward_length", .value = 25},
         "blk.0.ffn_gate_up_exps.weight is (32, 48"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bend_refused(model, &cases[i].bend, -EBADMSG, cases[i].text);
    }
    /* Without it the file has no experts, and tensors that nobody reads. */
    bend_refused(model, &(struct bend){.key = "gemma4.expert_count", .drop = true}, -ENOTSUP,
                 "blk.0.post_ffw_norm_1.weight is not part of");
}
