/* SPDX-License-Identifier: Apache-2.0 */
/* What a decode step moves of the cache. Keys and values count in lines of 64 bytes, as the cpu's
 * page has them (kernels/kv_lines.h), those of slots that were chosen by their mean; partial keys
 * once for the layers that share a store. A choice made by alpha counts as its cap; what pool=disk
 * reads of its file is in no figure here. */

#include <errno.h>

#include "engine/kv/policy/select.h"
#include "engine/kv/seq/cache.h"
#include "kernels/kv_lines.h"

/* Slots that a choice made ahead of n slots reads at most, the row's own among them; as `predict`
 * counts them. */
static int32_t predicted_slots(const struct policy *p, int32_t n)
{
    int64_t percent = (int64_t)(n - 1) * (p->share ? p->share : p->cap) / 100;
    int64_t k = p->count ? p->count : percent;

    k = k > 1 ? k : 1;
    return (int32_t)(k < n - 1 ? k : n - 1) + 1;
}

/* What a layer's query reads of a store with n slots. */
static struct ops_select select_of(const struct policy *p, const struct ops_kv_layout *l, int32_t n)
{
    struct ops_select ret;

    select_make(p, &ret);
    if (ret.kind == OPS_SELECT_GIVEN && l->part_dims == 0) {
        ret.kind = OPS_SELECT_ALL; /* nothing can be told for the first layers */
    } else if (ret.kind == OPS_SELECT_GIVEN) {
        ret.k = predicted_slots(p, n);
        ret.local = 1;
    }
    return ret;
}

int kv_traffic(const struct cache *c, const struct policy *p, int32_t n_prompt, int32_t n_tokens,
               int32_t store, bool first, struct kv_traffic *sum)
{
    const struct geometry *s = &c->geometry;
    int variant = geometry_variant(s, p);

    if (variant < 0) {
        return variant;
    }
    const struct ops_kv_layout *l = geometry_layout(s, variant, store);

    if (s->arrays[store].kind->state) { /* the one page read, the other written */
        sum->state_bytes += 2 * l->page_bytes;
        return 0;
    }
    int32_t window = s->config.stores[store].window;
    int32_t mean = policy_budget(p, n_prompt, s->config.ctx);
    int32_t n = geometry_slots(s, store, geometry_store_budget(s, p, mean, store), n_tokens);
    bool evicts = geometry_evicts(s, p, store);

    if (window && n > window) {
        n = window; /* a ring has room for a chunk besides */
    }
    struct ops_select select = select_of(p, l, n);
    bool ranks = first && select.kind == OPS_SELECT_GIVEN;
    uint64_t slots = (uint64_t)l->n_groups * (uint64_t)n;

    sum->lines += l->n_groups * (kv_lines_read(l, &select, n) + (ranks ? kv_lines_part(l, n) : 0));
    sum->state_bytes += evicts ? slots * sizeof(int32_t) : 0;
    sum->state_bytes += evicts && policy_scores(p) ? slots * 2 * sizeof(float) : 0;
    if (geometry_keeps_sum(s, p, store)) { /* the new token's V is added to it */
        sum->state_bytes +=
            2 * sizeof(float) * (uint64_t)(l->n_groups * l->v_heads) * (uint64_t)l->v_dim;
    }
    return 0;
}
