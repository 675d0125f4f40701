/* SPDX-License-Identifier: Apache-2.0 */
/* kvzap:N (Jegou and Jeblick, 2026): what a key will be worth is read off the hidden state that it
 * is made of, by a linear map of each layer that an overlay brings (pipit-calibrate --scores). The
 * map was fitted to KVzip's scores (Kim et al., 2025): the most that a slot is attended to while
 * the text is said once more. So no attention is observed, and a slot has its score for good when
 * it is written: a prompt may be cut while it is read.
 *
 * The paper drops what scores below a threshold, so that each head keeps as many slots as its text
 * is worth. Here all heads of a store keep equally many. */

#include <errno.h>

#include "engine/kv/policy/word.h"

enum { WINDOW };

/* At most half of a small budget. */
static int32_t spared(const struct policy *p, int32_t budget)
{
    int32_t window = p->own[WINDOW] ? p->own[WINDOW] : 128;

    return window < budget / 2 ? window : budget / 2;
}

static void guard(const struct policy *p, const struct place_when *when, struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - spared(p, when->budget) + 1,
        .drop = -1,
    };
}

static int join(struct policy *p, char *what, size_t size)
{
    (void)what;
    (void)size;
    p->sinks = p->sinks < 0 ? 4 : p->sinks;
    return 0;
}

static void settle(struct policy *p)
{
    p->own[WINDOW] = p->own[WINDOW] ? p->own[WINDOW] : 128;
}

static int needs(const struct policy *p, const struct policy_host *h, struct error *reterr)
{
    (void)p;
    if (h->split) {
        return error_set(reterr, -ENOTSUP,
                         "kvzap: layers beyond SwiftKV's split have no hidden states of their own "
                         "in a prompt");
    }
    return h->no_surrogate >= 0
               ? error_set(reterr, -ENOTSUP,
                           "kvzap: layer %d has no map from hidden states to scores; %s",
                           h->no_surrogate,
                           h->untapped || h->softcap || h->alibi || h->sinks
                               ? "no tool makes such maps for a model of this kind"
                               : "pipit-calibrate --scores makes an overlay of such maps")
               : 0;
}

static const struct place_ops place_kvzap = {
    .evicts = true, .scores = true, .surrogate = true, .spared = spared, .guard = guard};

static const struct word_option window = {
    .name = "window",
    .type = WORD_INT,
    .offset = WORD_FIELD(own[WINDOW]),
    .min = 1,
    .max = 65536,
    .normal = "128",
    .help = "the latest tokens, which stay whatever their scores; at most half of the budget"};

static const struct word_option *const options[] = {&window,       &option_prefill, &option_min,
                                                    &option_chunk, &option_layers,  NULL};

const struct policy_word policy_word_kvzap = {
    .name = "kvzap",
    .axis = AXIS_PLACE,
    .help =
        "the first 4 (or `sinks:M`) and those that an overlay's map of hidden states expects to "
        "be attended to (Jegou and Jeblick 2026)",
    .amount = &option_budget,
    .amount_says = WORD_BUDGET_SAYS,
    .options = options,
    .place = &place_kvzap,
    .join = join,
    .settle = settle,
    .needs = needs,
};
