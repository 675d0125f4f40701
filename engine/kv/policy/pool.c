/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's pool of so many slots (Lee et al., 2024, 4.4): what goes when a token comes and the
 * pool is full. fifo: the oldest. lru: what was listed for a layer longest ago. counter: what was
 * listed least often; a new token has not been listed at all, so the latest `exempt` stay.
 *
 * Scores are what prediction keeps of its lists (ops.h enum ops_use), so attention is not
 * observed. A prompt lists nothing: at its end the oldest go under every rule, but for `sinks`. */

#include "engine/kv/policy/place.h"

static void guard(const struct policy *p, const struct place_when *when, int32_t spared,
                  struct place_guard *ret)
{
    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - spared + 1,
        .drop = -1,
    };
    if (when->cut) {
        ret->pos_protect = INT32_MAX;
        ret->by_position = true;
    }
}

static void guard_fifo(const struct policy *p, const struct place_when *when,
                       struct place_guard *ret)
{
    guard(p, when, 1, ret);
    ret->pos_protect = INT32_MAX;
    ret->by_position = true;
}

/* The token itself is spared, and the one before it, too: a row is written with a score of 0, and
 * the prediction that gives it its position comes after this search. */
static void guard_lru(const struct policy *p, const struct place_when *when,
                      struct place_guard *ret)
{
    guard(p, when, 2, ret);
}

static void guard_counter(const struct policy *p, const struct place_when *when,
                          struct place_guard *ret)
{
    guard(p, when, p->exempt, ret);
}

static int32_t spared_exempt(const struct policy *p, int32_t budget)
{
    (void)budget;
    return p->exempt;
}

static const struct place_ops fifo = {
    .evicts = true, .spared = place_spared_one, .guard = guard_fifo};
static const struct place_ops lru = {.evicts = true,
                                     .scores = true,
                                     .use = OPS_USE_LAST,
                                     .spared = place_spared_one,
                                     .guard = guard_lru};
static const struct place_ops counter = {.evicts = true,
                                         .scores = true,
                                         .use = OPS_USE_COUNT,
                                         .spared = spared_exempt,
                                         .guard = guard_counter};

const struct place_ops *const place_pool[] = {
    [POLICY_FIFO] = &fifo, [POLICY_LRU] = &lru, [POLICY_COUNTER] = &counter};
