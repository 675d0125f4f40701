/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that several sequences share: forks, and copy on write.
 *
 * A fork takes over its parent's page tables, positions and scores as they are and shares every
 * page. Which of them may still be written is known: under a policy that keeps all, only the page
 * that is not full; a ring's, all; where tokens are evicted, all. For each of these the fork
 * reserves a page, so whoever writes first finds one for its copy (pages.h): a fork never needs
 * more than a sequence of its own would, which the plan counts, and no step can run out.
 *
 * Where a victim's slot lies is known to the device alone. It is read back, a few numbers a store,
 * only while a sequence may share pages. */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "engine/kv/seq/cache_impl.h"

/* First page of a group that may be written again once n_tokens are in. */
static int32_t first_writable(const struct cache *c, const struct cache_seq *q, int32_t store)
{
    bool appends = !cache_evicts_from(q, store) && c->geometry.arrays[store].kind->appends;

    return appends ? cache_slots_after(c, q, store, 0) / OPS_PAGE_SLOTS : 0;
}

/* ---- copy on write --------------------------------------------------------------------------- */

static int own_page(struct cache *c, struct cache_seq *q, int32_t store, int32_t group,
                    int32_t index)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    struct pages *pages = &c->classes[geometry_class_of(&c->geometry, q->variant, store)];
    size_t at = (size_t)group * (size_t)st->max_pages + (size_t)index;
    uint32_t *page = cache_host_pages(q, st) + at;
    int r = pages_own(pages, q->principal, page);

    if (r == 1) {
        r = c->geometry.config.ops->write(c->be, q->tables + st->pages_off + at * sizeof(uint32_t),
                                          page, sizeof(*page));
    }
    return r;
}

/* Pages of slots [slot0, slot0 + n), in a ring modulo its size. */
static int own_slots(struct cache *c, struct cache_seq *q, int32_t store, int32_t slot0, int32_t n)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    int32_t first = slot0 / OPS_PAGE_SLOTS;
    int32_t last = (slot0 + n - 1) / OPS_PAGE_SLOTS;
    int32_t n_ring = st->ring / OPS_PAGE_SLOTS;
    int r = 0;

    for (int32_t g = 0; g < st->n_groups; g++) {
        for (int32_t i = first; !r && i <= last; i++) {
            r = own_page(c, q, store, g, n_ring ? i % n_ring : i);
        }
    }
    return r;
}

static int own_victims(struct cache *c, struct cache_seq *q, int32_t store)
{
    const struct ops_seq view = cache_view_of(c, q, store, q->n_tokens, 1);
    int32_t n_groups = c->geometry.arrays[store].n_groups;
    int r = 0;

    for (int32_t g = 0; !r && g < n_groups; g++) {
        int32_t slot;

        r = c->geometry.config.ops->read(c->be, &slot, view.victim + g, sizeof(slot));
        assert(r || (slot >= 0 && slot < q->stores[store].n_slots));
        r = r ? r : own_page(c, q, store, g, slot / OPS_PAGE_SLOTS);
    }
    return r;
}

int cache_own_pages(struct cache *c, struct cache_seq *q, int32_t n_rows)
{
    int r = 0;

    for (int32_t i = 0; !r && q->shares && i < c->geometry.config.n_stores; i++) {
        if (cache_is_full(q, i)) {
            r = own_victims(c, q, i);
        } else {
            r = own_slots(c, q, i, cache_view_of(c, q, i, q->n_tokens, n_rows).slot0,
                          c->geometry.arrays[i].kind->state ? 1 : n_rows);
        }
    }
    return r;
}

/* ---- forks ----------------------------------------------------------------------------------- */

/* What the fork must reserve: pages it has yet to fill, and one for each page that may be written.
 */
static void need_of_fork(const struct cache *c, const struct cache_seq *parent,
                         const struct geometry_text *text, struct geometry_need *ret_left,
                         uint32_t ret_all[GEOMETRY_MAX_CLASSES])
{
    const struct geometry *s = &c->geometry;

    geometry_need(s, &parent->policy, parent->variant, text, ret_left);
    memcpy(ret_all, ret_left->pages, sizeof(ret_left->pages));
    for (int32_t i = 0; i < s->config.n_stores; i++) {
        int32_t class = geometry_class_of(s, parent->variant, i);
        int32_t n = s->arrays[i].n_groups;
        int32_t held = parent->stores[i].n_pages;
        int32_t all = cache_store_pages(c, parent, i);
        int32_t full = first_writable(c, parent, i);

        assert((uint32_t)all <= ret_left->pages[class]);
        ret_left->pages[class] -= (uint32_t)all;
        ret_all[class] -= (uint32_t)(n * (full < held ? full : held));
    }
    memset(ret_left->peak, 0, sizeof(ret_left->peak)); /* the prompt is read */
}

static void share_pages(struct cache *c, struct cache_seq *q, int32_t store)
{
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    struct pages *pages = &c->classes[geometry_class_of(&c->geometry, q->variant, store)];
    int32_t full = first_writable(c, q, store);

    for (int32_t g = 0; g < st->n_groups; g++) {
        const uint32_t *row = cache_host_pages(q, st) + (size_t)g * (size_t)st->max_pages;

        for (int32_t i = cache_first_page(c, q, store, g); i < q->stores[store].n_pages; i++) {
            (i < full ? pages_ref : pages_share)(pages, row[i]);
        }
    }
}

static int copy_seq(struct cache *c, const struct cache_seq *from, struct cache_seq *to)
{
    const struct geometry *s = &c->geometry;
    int r = s->config.ops->copy(c->be, to->tables, from->tables, s->table_bytes);

    if (!r && s->state_bytes > 0) {
        r = s->config.ops->copy(c->be, to->state, from->state, s->state_bytes);
    }
    memcpy(to->pages, from->pages, (size_t)s->table_bytes);
    memcpy(to->stores, from->stores, (size_t)s->config.n_stores * sizeof(*to->stores));
    if (s->divides) {
        memcpy(to->first, from->first, (size_t)s->n_groups * sizeof(*to->first));
    }
    return r;
}

int kv_fork(struct cache *c, int32_t parent, const struct geometry_text *text)
{
    struct cache_seq *p = &c->seqs[parent];
    int32_t seq = cache_free_seq(c);
    uint32_t all[GEOMETRY_MAX_CLASSES];
    struct geometry_need left;

    if (seq < 0 || p->in_peak || p->layered || p->n_tokens < p->n_prompt ||
        p->prepared != p->n_tokens) {
        return -EBUSY;
    }
    assert(text->n_prompt == p->n_prompt && text->n_tokens >= p->n_tokens);
    need_of_fork(c, p, text, &left, all);
    if (!cache_reserve(c, all)) {
        return -EBUSY;
    }
    struct cache_seq *q = &c->seqs[seq];
    struct cache_seq own = *q;

    *q = *p;
    q->tables = own.tables;
    q->state = own.state;
    q->pages = own.pages;
    q->stores = own.stores;
    q->first = own.first;
    q->n_steps = text->n_steps;
    q->left = left;
    int r = copy_seq(c, p, q);

    for (int32_t i = 0; i < c->geometry.config.n_stores; i++) {
        share_pages(c, q, i);
    }
    p->shares = true;
    q->shares = true;
    if (r) {
        kv_release(c, seq);
    }
    return r ? r : seq;
}
