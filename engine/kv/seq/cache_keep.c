/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that stay for texts to come: the cache's side of prefix.h.
 *
 * A kept page is full and will not be written again by anybody: its sequence keeps all, and holds
 * it like any page. So a text that begins alike takes the pages into its table, and no copy is
 * ever made. Where pages are asked for and none are free, units go, the oldest first: those that
 * nobody else holds, and, where that is not enough (a sequence may hold the end of a chain whose
 * beginning it read for itself), any.
 *
 * A recurrent layer's state is written at every step, so a unit has a copy of it, its checkpoint,
 * and a text that goes on from there has another one. Checkpoints go by themselves: their units
 * stay, as the way to those behind them. */

#include "engine/kv/seq/cache_impl.h"

void cache_each_page(struct cache *c, int32_t variant, uint32_t unit, bool states,
                     cache_page_fn *fn)
{
    const uint32_t *page = cache_unit_pages(c, unit);

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        struct pages *p = &c->classes[geometry_class_of(&c->geometry, variant, i)];

        for (int32_t g = 0; g < c->geometry.arrays[i].n_groups; g++, page++) {
            if (c->geometry.arrays[i].kind->state == states && *page != PREFIX_NONE) {
                fn(p, *page);
            }
        }
    }
}

/* To each page of K and V of a chain, and to the checkpoint at its end. */
static void each_of_chain(struct cache *c, int32_t variant, uint32_t unit, cache_page_fn *fn)
{
    if (unit != PREFIX_NONE) {
        cache_each_page(c, variant, unit, true, fn);
    }
    for (; unit != PREFIX_NONE; unit = c->prefix.units[unit].parent) {
        cache_each_page(c, variant, unit, false, fn);
    }
}

/* ---- finding and holding --------------------------------------------------------------------- */

int32_t cache_find_kept(struct cache *c, const struct policy *p, uint64_t principal,
                        const int32_t *tokens, int32_t n, uint32_t *ret_unit)
{
    int32_t block = prefix_block(&c->prefix, p);
    int32_t n_units = block ? n / PREFIX_TOKENS : 0;

    n_units = prefix_find(&c->prefix, principal, p, tokens, n_units, ret_unit);
    *ret_unit = prefix_trim(&c->prefix, block, *ret_unit, &n_units); /* it may have lost its end */
    prefix_touch(&c->prefix, *ret_unit);
    return n_units;
}

static void release(struct pages *p, uint32_t page)
{
    (void)pages_unref(p, &page);
}

void cache_hold_kept(struct cache *c, int32_t variant, uint32_t unit)
{
    each_of_chain(c, variant, unit, pages_ref);
}

void cache_release_kept(struct cache *c, int32_t variant, uint32_t unit)
{
    each_of_chain(c, variant, unit, release);
}

void cache_kept_pages(const struct cache *c, int32_t variant, int32_t n_units, uint32_t *ret)
{
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        ret[i] = 0;
    }
    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        ret[geometry_class_of(&c->geometry, variant, i)] +=
            c->geometry.arrays[i].kind->state
                ? 0
                : (uint32_t)(c->geometry.arrays[i].n_groups * n_units);
    }
}

int cache_attach(struct cache *c, struct cache_seq *q, uint32_t unit, int32_t n_units)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    uint32_t last = unit;
    int r = 0;

    for (int32_t at = n_units; at-- > 0; unit = c->prefix.units[unit].parent) {
        const uint32_t *page = cache_unit_pages(c, unit);

        for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
            const struct geometry_arrays *st = &c->geometry.arrays[i];

            for (int32_t g = 0; g < st->n_groups; g++, page++) {
                if (!st->kind->state) {
                    cache_host_pages(q, st)[(size_t)g * (size_t)st->max_pages + (size_t)at] = *page;
                }
            }
        }
    }
    for (int32_t i = 0; i < c->geometry.config.n_stores && n_units > 0; i++) {
        const struct geometry_arrays *st = &c->geometry.arrays[i];

        if (st->kind->state) {
            continue;
        }
        for (int32_t g = 0; !r && g < st->n_groups; g++) {
            size_t row = (size_t)g * (size_t)st->max_pages;

            r = ops->write(c->be, q->tables + st->pages_off + row * sizeof(uint32_t),
                           cache_host_pages(q, st) + row, (uint64_t)n_units * sizeof(uint32_t));
        }
        q->stores[i].n_pages = n_units;
    }
    if (c->prefix.states && n_units > 0) {
        r = r ? r : cache_restore_states(c, q, last);
        cache_each_page(c, q->variant, last, true, release); /* it was held until here */
    }
    q->n_tokens = n_units * PREFIX_TOKENS;
    q->n_kept = q->n_tokens;
    q->prepared = q->n_tokens;
    return r;
}

/* ---- keeping --------------------------------------------------------------------------------- */

static void forget(struct cache *c, uint32_t unit)
{
    int32_t variant = prefix_variant(&c->prefix, unit);

    cache_each_page(c, variant, unit, false, pages_let_go);
    cache_each_page(c, variant, unit, true, pages_let_go);
    prefix_drop(&c->prefix, unit);
}

/* A unit behind `parent` with the sequence's pages at `at`. */
static uint32_t add_unit(struct cache *c, const struct cache_seq *q, uint32_t parent, int32_t at,
                         const int32_t *tokens)
{
    struct prefix *p = &c->prefix;
    uint32_t unit = prefix_add(p, q->principal, &q->policy, q->variant, parent, tokens);

    if (unit == PREFIX_NONE && p->oldest != parent && p->units[p->oldest].n_children == 0) {
        forget(c, p->oldest);
        unit = prefix_add(p, q->principal, &q->policy, q->variant, parent, tokens);
    }
    if (unit == PREFIX_NONE) {
        return unit;
    }
    uint32_t *page = cache_unit_pages(c, unit);

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        const struct geometry_arrays *st = &c->geometry.arrays[i];

        for (int32_t g = 0; g < st->n_groups; g++) {
            size_t from = (size_t)g * (size_t)st->max_pages + (size_t)at;

            *page++ = st->kind->state ? PREFIX_NONE : cache_host_pages(q, st)[from];
        }
    }
    cache_each_page(c, q->variant, unit, false, pages_keep);
    return unit;
}

void kv_keep(struct cache *c, int32_t seq, const int32_t *tokens, int32_t n)
{
    struct cache_seq *q = &c->seqs[seq];
    int32_t block = prefix_block(&c->prefix, &q->policy);
    uint32_t unit;

    n = block ? n / block * block : 0;
    if (n <= q->n_kept) {
        return;
    }
    int32_t n_units = n / PREFIX_TOKENS;
    int32_t at = prefix_find(&c->prefix, q->principal, &q->policy, tokens, n_units, &unit);

    prefix_touch(&c->prefix, unit);
    for (; at < n_units; at++) {
        uint32_t next = add_unit(c, q, unit, at, tokens + (size_t)at * PREFIX_TOKENS);

        if (next == PREFIX_NONE) {
            break;
        }
        unit = next;
    }
    prefix_touch(&c->prefix, unit);
    if (c->prefix.states && at == n_units && q->n_tokens == n) {
        cache_add_checkpoint(c, q, unit);
    }
    q->n_kept = n;
}

/* ---- giving up ------------------------------------------------------------------------------- */

/* Does nobody else hold the unit? All its pages of K and V have the same holders. */
static bool idle(const struct cache *c, uint32_t unit)
{
    const uint32_t *page = cache_unit_pages(c, unit);
    int32_t i = 0;

    for (; c->geometry.arrays[i].kind->state; i++) {
        page++;
    }
    int32_t class = geometry_class_of(&c->geometry, prefix_variant(&c->prefix, unit), i);

    return c->prefix.units[unit].n_children == 0 && c->classes[class].refs[*page] == 1;
}

void cache_reclaim(struct cache *c, int32_t class, uint32_t n)
{
    const struct pages *p = &c->classes[class];
    uint32_t unit = c->prefix.oldest;

    if (c->geometry.classes[class].state) {
        cache_reclaim_states(c, p, n);
        return;
    }
    while (unit != PREFIX_NONE && n > p->n_free - p->n_reserved) {
        uint32_t next = c->prefix.units[unit].newer;

        if (idle(c, unit)) {
            forget(c, unit);
        }
        unit = next;
    }
    while (c->prefix.oldest != PREFIX_NONE && n > p->n_free - p->n_reserved) {
        forget(c, c->prefix.oldest);
    }
}
