/* SPDX-License-Identifier: Apache-2.0 */
/* What words share. Those that go by position keep the sinks and the latest tokens, of which the
 * one that is being placed is spared. Those that score: a budget of B slots gives its recent share,
 * w = B * recent / 100, to the latest w positions whatever their scores. The token that is being
 * placed is one of these w, so with w = 0 it competes from its first step on, and with w = B the
 * oldest token goes: a window. */

#include "engine/kv/policy/place.h"

int32_t place_spared_recent(const struct policy *p, int32_t budget)
{
    return (int32_t)((int64_t)budget * p->recent / 100);
}

void place_guard_recent(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - place_spared_recent(p, when->budget) + 1,
        .drop = -1,
        .shared = p->scope != POLICY_PER_HEAD,
    };
}

int32_t place_spared_one(const struct policy *p, int32_t budget)
{
    (void)p;
    (void)budget;
    return 1;
}

void place_guard_latest(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .drop = -1,
        .sinks = p->sinks,
        .pos_protect = INT32_MAX,
        .by_position = true,
    };
}
