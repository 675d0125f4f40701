/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache's users ask of it, a few lines each. */

#include "engine/kv/kv.h"

#include <errno.h>

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"

const struct policy_mix *kv_mix(const struct cache *c)
{
    return &c->geometry.config.mix;
}

/* ---- policies and texts -----------------------------------------------------------------------
 */

bool kv_reads_layerwise(const struct cache *c, const struct policy *p,
                        const struct geometry_text *text)
{
    struct geometry_need need;

    geometry_need(&c->geometry, p, geometry_variant(&c->geometry, p), text, &need);
    return need.layered;
}

bool kv_needs_peak(const struct cache *c, const struct policy *p, const struct geometry_text *text)
{
    struct geometry_need need;

    geometry_need(&c->geometry, p, geometry_variant(&c->geometry, p), text, &need);
    return need.peak_state;
}

bool kv_may_fork(const struct policy *p, bool same_steps)
{
    return !policy_on_disk(p) && (same_steps || !policy_scores(p));
}

int kv_text_filled(const struct cache *c, const struct policy *p, struct geometry_text *text,
                   struct error *reterr)
{
    int32_t budget = policy_budget(p, text->n_prompt, c->geometry.config.ctx);

    if (policy_on_disk(p)) {
        return error_set(reterr, -ENOTSUP, "%s: a prompt is not made up there",
                         policy_disk_option(p));
    }
    text->held = text->n_prompt;
    text->held_slots = budget && budget < text->n_prompt ? budget : text->n_prompt;
    return 0;
}

/* ---- sequences --------------------------------------------------------------------------------
 */

bool kv_peak_is_taken(const struct cache *c)
{
    return c->peak_holder >= 0;
}

int32_t kv_n_tokens(const struct cache *c, int32_t seq)
{
    return c->seqs[seq].n_tokens;
}

bool kv_is_layerwise(const struct cache *c, int32_t seq)
{
    return c->seqs[seq].layered;
}

/* Not on devices that work while the host does; so no unit of a chunk needs staging for pages on
 * the host, which are such devices' alone. */
bool kv_may_interleave(const struct cache *c, int32_t seq)
{
    return !c->geometry.config.ops->async && !policy_on_disk(&c->seqs[seq].policy);
}

int kv_failed(const struct cache *c, int32_t seq, struct error *ret)
{
    return home_failed(c, seq, ret);
}

/* ---- figures ----------------------------------------------------------------------------------
 */

void kv_usage(const struct cache *c, int32_t seq, struct kv_usage *ret)
{
    const struct cache_seq *q = &c->seqs[seq];

    *ret = (struct kv_usage){.n_evicted = q->n_evicted,
                             .full_token_bytes = c->geometry.full_token_bytes};
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        int32_t n = c->geometry.arrays[i].n_groups;
        int32_t class = geometry_class_of(&c->geometry, q->variant, i);

        ret->bytes += (uint64_t)cache_store_pages(c, q, i) * c->classes[class].page_bytes;
        for (int32_t g = 0; g < n && !c->geometry.arrays[i].kind->state; g++) {
            ret->n_slots +=
                cache_slots_after(c, q, i, 0) - OPS_PAGE_SLOTS * cache_first_page(c, q, i, g);
        }
    }
}

void kv_totals(const struct cache *c, uint64_t *ret_used, uint64_t *ret_total)
{
    *ret_used = 0;
    *ret_total = 0;
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        const struct pages *p = &c->classes[i];

        *ret_used += (uint64_t)(p->n_pages - p->n_free - p->n_idle) * p->page_bytes;
        *ret_total += (uint64_t)p->n_pages * p->page_bytes;
    }
}

int32_t kv_token_slots(const struct cache *c)
{
    int32_t n = 0;

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        n += c->geometry.arrays[i].kind->state ? 0 : c->geometry.arrays[i].n_groups;
    }
    return n;
}

void kv_file_counts(const struct cache *c, struct tier_counts *ret)
{
    *ret = (struct tier_counts){0};
    if (c->tier) {
        tier_counts(c->tier, ret);
    }
}
