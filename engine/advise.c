/* SPDX-License-Identifier: Apache-2.0 */
/* The first policy of the table of advice whose plan fits. Each candidate is planned as it would be
 * run, so the answer is exact to the byte. */

#include <errno.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/kv/kv.h"
#include "engine/kv/policy/advice.h"

bool engine_asks_advice(const struct engine_config *c)
{
    return c->kv && strcmp(c->kv, "auto") == 0;
}

int engine_advise(const struct engine_config *c, struct plan *ret,
                  const struct policy_advice **ret_advice, struct error *reterr)
{
    const struct policy_advice *best = NULL;
    const struct policy_advice *a;
    uint64_t least = UINT64_MAX;

    /* A context that nobody asked for is cut before tokens are evicted for it. */
    for (int i = 0; (a = policy_advice(i)) && (c->ctx > 0 || !a->evicts); i++) {
        struct engine_config one = *c;
        struct error e = {0};
        int r;

        one.kv = a->kv;
        r = engine_plan(&one, ret, &e);
        if (r == -ENOTSUP && best) {
            continue; /* such as heads that are no whole blocks of four bits */
        }
        if (r && r != -ENOMEM) {
            *reterr = e; /* no policy mends this */
            return r;
        }
        if (r == 0 && !ret->ctx_is_cut) {
            *ret_advice = ret->advice = a;
            return 0;
        }
        /* Else the one that needs least: its context is cut, or it is refused with its figures. */
        if (!best || r == 0 || ret->total_bytes + ret->mapped_bytes < least) {
            best = a;
            least = ret->total_bytes + ret->mapped_bytes;
        }
    }
    struct engine_config last = *c;
    int r;

    last.kv = best->kv;
    r = engine_plan(&last, ret, reterr);
    if (r == 0) {
        *ret_advice = ret->advice = best;
    }
    return r;
}

int engine_take_advice(struct engine_config *c, struct plan *scratch, struct error *reterr)
{
    const struct policy_advice *advice;
    int r;

    if (!engine_asks_advice(c)) {
        return 0;
    }
    r = engine_advise(c, scratch, &advice, reterr);
    if (!r) {
        c->kv = advice->kv;
    }
    return r;
}
