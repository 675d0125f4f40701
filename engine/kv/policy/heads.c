/* SPDX-License-Identifier: Apache-2.0 */
/* heads=equal|adaptive: how a layer's slots are divided among its head groups when a prompt is cut
 * (Ada-KV, Feng et al., 2024). The paper lets all heads' keys compete by score for one total, and
 * each head keeps a share whatever its scores, the safeguard.
 *
 * Here what competes are pages. Whatever a group's last page does not hold would be reserved for
 * nothing, so a group keeps whole pages, and all of them together as many as equal budgets take. A
 * page is worth the sum of its slots' scores. These fall with each further page of a group, so
 * taking the best one after the other keeps the most. No group has more than twice its equal share,
 * which bounds its positions and scores, and what a step reads. */

#include "engine/kv/policy/place.h"

static int32_t pages_of(int32_t n_slots)
{
    return (n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

bool policy_divides_heads(const struct policy *p)
{
    return p->heads == POLICY_HEADS_ADAPTIVE;
}

/* What no eviction takes, what new tokens will take, and of the rest the safeguard: one slot at
 * least. Without the second a small group loses to new tokens all that was chosen of the prompt. */
int32_t policy_sure_slots(const struct policy *p, int32_t budget)
{
    const int32_t spared = (p->sinks > 0 ? p->sinks : 0) + p->place->spared(p, budget) +
                           (p->place->taken ? p->place->taken(p, budget) : 0);
    const int32_t share = (int32_t)((int64_t)(budget - spared) * p->safeguard / 100);
    const int32_t sure = spared + (share > 0 ? share : 1);

    return policy_divides_heads(p) && sure < budget ? sure : budget;
}

static int32_t sure_pages(const struct policy *p, int32_t budget)
{
    return pages_of(policy_sure_slots(p, budget));
}

bool policy_heads_compete(const struct policy *p, int32_t budget)
{
    return sure_pages(p, budget) < pages_of(budget);
}

int32_t policy_most_slots(const struct policy *p, int32_t budget, int32_t n_groups, int32_t ctx)
{
    if (!policy_divides_heads(p) || budget == 0) {
        return budget;
    }
    const int64_t equal = pages_of(budget);
    const int64_t all = n_groups * equal - (n_groups - 1) * (int64_t)sure_pages(p, budget);
    const int64_t most = (all < 2 * equal ? all : 2 * equal) * OPS_PAGE_SLOTS;

    return most < ctx ? (int32_t)most : ctx;
}

void policy_divide(const struct policy *p, int32_t budget, const struct policy_head *heads,
                   int32_t n_groups, int32_t *ret)
{
    const int32_t equal = pages_of(budget);
    const int32_t sure = sure_pages(p, budget);

    for (int32_t g = 0; g < n_groups; g++) {
        ret[g] = sure < pages_of(heads[g].live) ? sure : pages_of(heads[g].live);
    }
    for (int64_t left = (int64_t)n_groups * (equal - sure); left > 0; left--) {
        int32_t best = -1;

        for (int32_t g = 0; g < n_groups; g++) {
            if (ret[g] < 2 * equal && ret[g] < heads[g].live / OPS_PAGE_SLOTS &&
                (best < 0 || heads[g].page[ret[g]] > heads[best].page[ret[best]])) {
                best = g;
            }
        }
        if (best < 0) {
            break;
        }
        ret[best]++;
    }
}
