/* SPDX-License-Identifier: Apache-2.0 */
/* The table of place policies, and the one thing that all scoring ones share: a budget of B slots
 * gives its recent share, w = B * recent / 100, to the latest w positions whatever their scores.
 * The token that is being placed is one of these w, so with w = 0 it competes from its first step
 * on, and with w = B the oldest token goes: a window. */

#include "engine/kv/policy/place.h"

#include <assert.h>

static const struct place_ops *const table[] = {
    [POLICY_FULL] = &place_full,       [POLICY_WINDOW] = &place_window,
    [POLICY_H2O] = &place_h2o,         [POLICY_KEYFORMER] = &place_keyformer,
    [POLICY_RECENCY] = &place_recency, [POLICY_FIFO] = &place_pool_fifo,
    [POLICY_LRU] = &place_pool_used,   [POLICY_COUNTER] = &place_pool_used,
};

const struct place_ops *place_find(enum policy_place place)
{
    assert((size_t)place < sizeof(table) / sizeof(table[0]));
    return table[place];
}

bool place_only_appends(const struct policy *p)
{
    return !place_find(p->place)->evicts && p->select == POLICY_READ_ALL && !p->pos_new;
}

void place_guard_recent(const struct policy *p, const struct place_when *when,
                        struct place_guard *ret)
{
    int32_t recent = (int32_t)((int64_t)when->budget * p->recent / 100);

    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - recent + 1,
        .drop = -1,
        .shared = p->scope != POLICY_PER_HEAD,
    };
}
