/* SPDX-License-Identifier: Apache-2.0 */
/* The first `sinks` positions and the latest others, by position alone: StreamingLLM's choice of
 * tokens with their original positions (its renumbering is pos=new), or a plain window without
 * sinks. No scores, so attention observes nothing. */

#include "engine/kv/policy/place.h"

static void guard(const struct policy *p, const struct place_when *when, struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .drop = -1,
        .sinks = p->sinks,
        .pos_protect = INT32_MAX,
        .by_position = true,
    };
}

const struct place_ops place_window = {.evicts = true, .scores = false, .guard = guard};
