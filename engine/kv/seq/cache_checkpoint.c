/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: copies of recurrent states at the ends of prompts' blocks, which units of the prefix
 * cache hold beside pages of K and V (cache_keep.c). */

#include "engine/kv/seq/cache_impl.h"

/* A unit's copy of one state. */
struct copy {
    struct pages *pages;
    int32_t store;
    uint32_t *page; /* PREFIX_NONE: none */
};

/* That of the next state from store `from` on; false: there is none. */
static bool next_copy(struct cache *c, uint32_t unit, int32_t from, struct copy *ret)
{
    const struct geometry *s = &c->geometry;
    uint32_t *page = cache_unit_pages(c, unit);

    for (int32_t i = 0; i < s->config.n_stores; page += s->arrays[i++].n_groups) {
        if (i >= from && s->arrays[i].kind->state) {
            *ret = (struct copy){&c->classes[geometry_class_of(s, 0, i)], i, page};
            return true;
        }
    }
    return false;
}

static uint32_t committed(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    return cache_host_pages(q, &c->geometry.arrays[store])[q->stores[store].at];
}

static int copy_page(const struct pages *p, uint32_t to, uint32_t from)
{
    return p->ops->copy(p->be, p->pool + p->page_bytes * to, p->pool + p->page_bytes * from,
                        p->page_bytes);
}

static void forget(struct cache *c, uint32_t unit)
{
    struct copy at;

    cache_each_page(c, 0, unit, true, pages_let_go);
    for (int32_t i = 0; next_copy(c, unit, i, &at); i = at.store + 1) {
        *at.page = PREFIX_NONE;
    }
    c->prefix.units[unit].checkpoint = 0;
}

int cache_restore_states(struct cache *c, struct cache_seq *q, uint32_t unit)
{
    struct copy at;
    int r = 0;

    for (int32_t i = 0; !r && next_copy(c, unit, i, &at); i = at.store + 1) {
        r = cache_take_pages(c, q, at.store, cache_slots_after(c, q, at.store, 0));
        r = r ? r : copy_page(at.pages, committed(c, q, at.store), *at.page);
    }
    prefix_use(&c->prefix, unit);
    return r;
}

/* Copies of a sequence's states, into pages that are reserved. */
static int copy_states(struct cache *c, const struct cache_seq *q, uint32_t unit)
{
    struct copy at;
    int r = 0;

    for (int32_t i = 0; next_copy(c, unit, i, &at); i = at.store + 1) {
        uint32_t page;

        r = r ? r : pages_take(at.pages, q->principal, &page);
        if (r) {
            pages_unreserve(at.pages, 1);
            continue;
        }
        *at.page = page;
        r = copy_page(at.pages, page, committed(c, q, at.store));
        pages_keep(at.pages, page);
        (void)pages_unref(at.pages, &page); /* the unit alone holds it */
    }
    return r;
}

void cache_add_checkpoint(struct cache *c, const struct cache_seq *q, uint32_t unit)
{
    uint32_t need[GEOMETRY_MAX_CLASSES] = {0};
    struct copy at;

    if (c->prefix.units[unit].checkpoint == 0) {
        for (int32_t i = 0; next_copy(c, unit, i, &at); i = at.store + 1) {
            need[at.pages - c->classes]++;
        }
        if (!cache_reserve(c, need)) {
            return;
        }
        if (copy_states(c, q, unit)) { /* the device failed: what is there of it is no checkpoint */
            forget(c, unit);
            return;
        }
    }
    prefix_use(&c->prefix, unit);
}

/* Does nobody go on from its checkpoint at this moment? */
static bool rests(void *arg, uint32_t unit)
{
    struct cache *c = arg;
    struct copy at;
    bool rests = true;

    for (int32_t i = 0; next_copy(c, unit, i, &at); i = at.store + 1) {
        rests = rests && at.pages->refs[*at.page] == 1;
    }
    return rests;
}

void cache_reclaim_states(struct cache *c, const struct pages *p, uint32_t n)
{
    while (n > p->n_free - p->n_reserved) {
        uint32_t unit = prefix_oldest_checkpoint(&c->prefix, rests, c);

        if (unit == PREFIX_NONE) {
            return;
        }
        forget(c, unit);
    }
}
