/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's pool of so many slots (Lee et al., 2024, 4.4): what goes when a token comes and the
 * pool is full. fifo: the oldest. lru: what was listed for a layer longest ago. counter: what was
 * listed least often; a new token has not been listed at all, so the latest `exempt` stay.
 *
 * Scores are what speculation keeps of its lists (ops.h enum ops_use), so attention is not
 * observed. A prompt lists nothing: at its end the oldest go under every rule, but for `sinks`. */

#include "engine/kv/policy/place.h"

static void guard(const struct policy *p, const struct place_when *when, struct place_guard *ret)
{
    /* The token itself is one. Under lru the one before it, too: a row is written with a score of
     * 0, and the speculation that gives it its position comes after this search. */
    int32_t exempt = p->place == POLICY_COUNTER ? p->exempt : p->place == POLICY_LRU ? 2 : 1;

    *ret = (struct place_guard){
        .budget = when->budget,
        .sinks = p->sinks,
        .pos_protect = when->last - exempt + 1,
        .drop = -1,
    };
    if (when->cut || p->place == POLICY_FIFO) {
        ret->pos_protect = INT32_MAX;
        ret->by_position = true;
    }
}

const struct place_ops place_pool_fifo = {.evicts = true, .scores = false, .guard = guard};
const struct place_ops place_pool_used = {.evicts = true, .scores = true, .guard = guard};
