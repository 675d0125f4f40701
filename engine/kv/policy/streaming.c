/* SPDX-License-Identifier: Apache-2.0 */
/* streaming:N (StreamingLLM, Xiao et al., 2023): the first tokens (sinks:4 where nothing else is
 * said) and the latest N, with positions counted within the cache: pos=new. No position that the
 * model sees exceeds the slots, so the text may go on beyond the context for as long as it is asked
 * to.
 *
 * Prompts are evicted from as they are read, chunk by chunk (prefill=bounded); chunk=1 is the
 * published order, token by token. The N latest include the token that asks. */

#include "engine/kv/policy/word.h"

static int join(struct policy *p, char *what, size_t size)
{
    (void)what;
    (void)size;
    p->pos_new = true;
    p->prefill = POLICY_BOUNDED;
    p->sinks = p->sinks < 0 ? 4 : p->sinks;
    return 0;
}

static const struct place_ops place_streaming = {.evicts = true,
                                                 .sinks_beside = true,
                                                 .endless = true,
                                                 .spared = place_spared_one,
                                                 .guard = place_guard_latest};

static const struct word_option *const options[] = {&option_min, &option_chunk, &option_layers,
                                                    NULL};

const struct policy_word policy_word_streaming = {
    .name = "streaming",
    .axis = AXIS_PLACE,
    .help =
        "the first 4 (or `sinks:M`) and the latest N, positions counted within the cache, so that "
        "a text may go beyond the context (Xiao et al. 2023)",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_streaming,
    .join = join,
};
