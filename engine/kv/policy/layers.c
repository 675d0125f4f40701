/* SPDX-License-Identifier: Apache-2.0 */
/* layers=equal|pyramid|measured: how the budgets of all stores that evict share their sum. The sum
 * is at most n budgets, and each store's budget grows with the policy's, so a plan that is made for
 * the longest text holds every other. Pages are counted for each store, so unequal budgets may take
 * some more of them.
 *
 * pyramid (PyramidKV, Cai et al., 2024): a straight line from the first store to the last, whose
 * end is a twentieth of the mean. measured: in proportion to weights that an overlay brings, beyond
 * what each store needs at least. */

#include "engine/kv/policy/place.h"

enum { BETA = 20 };

int32_t policy_least_budget(const struct policy *p, int32_t budget)
{
    int32_t low = p->sinks + 1; /* too few */
    int32_t high = budget;

    while (high - low > 1) {
        int32_t b = low + (high - low) / 2;

        if (p->sinks + p->place->spared(p, b) + 1 > b) {
            low = b;
        } else {
            high = b;
        }
    }
    return high;
}

static int64_t pyramid(int32_t budget, int32_t least, int32_t rank, int32_t n)
{
    int64_t last = budget / BETA > least ? budget / BETA : least;
    int64_t fall = 2 * (budget - last) * rank;

    return 2 * (int64_t)budget - last - (fall + n - 2) / (n - 1); /* down, so that the sum holds */
}

int32_t policy_store_budget(const struct policy *p, int32_t budget, const struct policy_share *s,
                            int32_t ctx)
{
    int64_t slots = budget;

    if (p->layers == POLICY_LAYERS_PYRAMID && s->n > 1) {
        slots = pyramid(budget, policy_least_budget(p, budget), s->rank, s->n);
    } else if (p->layers == POLICY_LAYERS_MEASURED && s->sum > 0) {
        int32_t least = policy_least_budget(p, budget);

        slots = least + (int64_t)(budget - least) * s->n * s->weight / s->sum;
    }
    return slots > ctx ? ctx : (int32_t)slots;
}
