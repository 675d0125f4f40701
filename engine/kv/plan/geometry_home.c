/* SPDX-License-Identifier: Apache-2.0 */
/* What queries that select need, and where K and V lie: checks against model and backend, the
 * disk's file, the staging of pages on the host. */

#include "engine/kv/plan/geometry_impl.h"

#include <errno.h>

#include "engine/kv/policy/select.h"

/* What model and backend are, as policies ask it. Partial keys are of stores that are read from the
 * third layer on. */
static struct policy_host host_of(const struct geometry *s)
{
    const struct geometry_store *first = NULL;
    struct policy_host h = {.ops = s->config.ops,
                            .one_memory = s->config.one_memory,
                            .exit_head = s->config.exit_head,
                            .sinks = s->config.sinks,
                            .split = s->config.split,
                            .alibi = s->config.alibi,
                            .softcap = s->config.softcap,
                            .wide = s->config.wide,
                            .untapped = s->config.untapped,
                            .stateful = s->n_states == s->config.n_stores,
                            .least_k_dim = INT32_MAX,
                            .no_part_keys = -1,
                            .no_surrogate = -1,
                            .uneven = {-1, -1}};

    for (int32_t i = 0; i < s->config.n_stores; i++) {
        const struct geometry_store *st = &s->config.stores[i];

        if (s->arrays[i].kind->state) {
            continue; /* no policy acts on it */
        }
        h.weighed = h.weighed || st->weight > 0;
        if (!st->surrogate && s->arrays[i].kind->evicts && h.no_surrogate < 0) {
            h.no_surrogate = st->layer;
        }
        h.least_k_dim = st->k_dim < h.least_k_dim ? st->k_dim : h.least_k_dim;
        if (geometry_is_predictable(st->layer, st->window) && !st->skew && h.no_part_keys < 0) {
            h.no_part_keys = st->layer;
        }
        if (!st->skew) {
            continue;
        }
        h.part_keys = true;
        if (first && h.uneven[0] < 0 &&
            (st->n_k != first->n_k || st->n_v != first->n_v || st->k_dim != first->k_dim ||
             st->v_dim != first->v_dim)) {
            h.uneven[0] = first->layer;
            h.uneven[1] = st->layer;
        }
        first = st;
    }
    return h;
}

int geometry_check_host(const struct geometry *s, const struct policy *p, struct error *reterr)
{
    struct policy_host h = host_of(s);

    return policy_check_host(p, &h, reterr);
}

bool geometry_centers(const struct geometry *s, const struct policy *p, int32_t store)
{
    return s->config.stores[store].center && policy_centers(p);
}

bool geometry_keeps_sum(const struct geometry *s, const struct policy *p, int32_t store)
{
    const struct geometry_store *st = &s->config.stores[store];

    return s->arrays[store].kind->evicts && select_means(p, s->config.n_q, st->n_k, st->n_v);
}

int geometry_lay_select(struct geometry *s, struct error *reterr)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;
        int r = geometry_check_host(s, p, reterr);

        if (r) {
            return r;
        }
        s->selects = s->selects || policy_selects(p);
        s->predicts = s->predicts || policy_predicts(p);
        for (int32_t i = 0; i < s->config.n_stores; i++) {
            s->sums = s->sums || geometry_keeps_sum(s, p, i);
        }
    }
    return 0;
}

/* ---- homes -------------------------------------------------------------------------------------
 */

int32_t geometry_on_disk(const struct geometry *s, const struct policy *p, int32_t store)
{
    int32_t n = 0;

    if (!policy_on_disk(p) || !s->config.stores[store].skew) {
        return -1;
    }
    for (int32_t i = 0; i < store; i++) {
        n += s->config.stores[i].skew != NULL;
    }
    return n;
}

/* One format for every policy on disk; what their pages hold may differ in the first layers' only.
 */
static int lay_disk(struct geometry *s, struct error *reterr)
{
    const struct policy *first = NULL;

    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;
        int32_t last = -1;

        for (int32_t i = 0; i < s->config.n_stores; i++) {
            if (geometry_on_disk(s, p, i) < 0) {
                continue;
            }
            last = i;
            s->tier.n_stores = geometry_on_disk(s, p, i) + 1;
        }
        int32_t pool = policy_pool_slots(p, s->config.ctx, s->config.ctx);

        s->tier.pool_slots = pool > s->tier.pool_slots ? pool : s->tier.pool_slots;
        if (last < 0) {
            continue;
        }
        if (first && !geometry_same_pages(first, p)) {
            return error_set(reterr, -ENOTSUP,
                             "%s beside %s in one mix: the file has keys and values of one format",
                             policy_disk_option(first), policy_disk_option(p));
        }
        first = first ? first : p;
        s->tier.layout = *geometry_layout(s, s->variant[v], last);
        s->tier_variant = s->variant[v];
        s->tier_option = policy_disk_option(first);
    }
    s->tier.ops = s->config.ops;
    s->tier.n_seqs = s->config.n_seqs;
    s->tier.ctx = s->config.ctx;
    s->tier.max_chunk = s->config.max_chunk;
    for (int32_t i = 0; first && i < s->config.n_stores; i++) {
        s->prompt_read_bytes += geometry_on_disk(s, first, i) < 0
                                    ? 0
                                    : tier_prompt_bytes(&s->tier, s->config.ctx, first->chunk,
                                                        s->config.stores[i].deep);
    }
    return 0;
}

/* The largest store of those whose pages lie on the host, and the widest. */
static void lay_staging(struct geometry *s)
{
    s->staging = (struct staging_config){.ops = s->config.ops,
                                         .n_seqs = s->config.n_seqs,
                                         .max_pages = geometry_pages_of(s->config.ctx)};
    for (int32_t i = 0; i < s->config.mix.n * s->config.n_stores; i++) {
        const struct ops_kv_layout *l = &s->layouts[i];
        uint64_t bytes = (uint64_t)l->n_groups * (uint64_t)s->staging.max_pages * l->page_bytes;

        if (l->part_apart) {
            s->staging.seq_bytes = bytes > s->staging.seq_bytes ? bytes : s->staging.seq_bytes;
            s->staging.max_groups =
                l->n_groups > s->staging.max_groups ? l->n_groups : s->staging.max_groups;
        }
    }
}

int geometry_lay_homes(struct geometry *s, struct error *reterr)
{
    lay_staging(s);
    return lay_disk(s, reterr);
}
