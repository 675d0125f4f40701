/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy says of slots and of where they lie. */

#include "engine/kv/policy/policy.h"

bool policy_spills(const struct policy *p)
{
    return p->select == POLICY_INFINIGEN && p->pool == POLICY_POOL_SLOTS && p->full == POLICY_SPILL;
}

bool policy_on_disk(const struct policy *p)
{
    return p->select == POLICY_INFINIGEN && (p->pool == POLICY_POOL_DISK || policy_spills(p));
}

const char *policy_disk_option(const struct policy *p)
{
    return policy_spills(p) ? "full=spill" : "pool=disk";
}

static int32_t slots_of(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    int64_t of = p->budget_kind == POLICY_PERCENT_CTX ? ctx : n_tokens;
    int64_t slots = p->budget;

    if (p->budget_kind == POLICY_SLOTS) {
        slots += p->place == POLICY_WINDOW ? p->sinks : 0;
    } else {
        slots = of * p->budget / 100;
        slots = slots < p->min ? p->min : slots;
    }
    return slots > ctx ? ctx : (int32_t)slots;
}

int32_t policy_budget(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return p->place == POLICY_FULL ? 0 : slots_of(p, n_tokens, ctx);
}

int32_t policy_pool_slots(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return policy_spills(p) ? slots_of(p, n_tokens, ctx) : 0;
}
