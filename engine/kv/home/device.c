/* SPDX-License-Identifier: Apache-2.0 */
/* Stores whose pages are on the device: the backend reads and writes them where they are, so a step
 * has nothing to do. And what every home of pages has in common. */

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"

uint64_t home_pages_bytes(const struct geometry *s, bool on_host)
{
    uint64_t n = 0;

    for (int32_t i = 0; i < s->n_classes; i++) {
        const struct geometry_class *k = &s->classes[i];

        n += on_host == (k->part_bytes > 0) ? pages_bytes(k->page_bytes, k->part_bytes, k->n_pages)
                                            : 0;
    }
    return n;
}

int home_pages_create(struct cache *c, bool on_host, struct error *reterr)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    int r = 0;

    for (int32_t i = 0; !r && i < c->geometry.n_classes; i++) {
        const struct geometry_class *k = &c->geometry.classes[i];

        if (on_host != (k->part_bytes > 0)) {
            continue;
        }
        r = on_host ? pages_create_mapped(ops, c->be, k->page_bytes, k->part_bytes, k->n_pages,
                                          &c->classes[i], reterr)
                    : pages_create(ops, c->be, k->page_bytes, k->n_pages, &c->classes[i], reterr);
    }
    return r;
}

void home_pages_destroy(struct cache *c, bool on_host)
{
    for (int32_t i = 0; i < c->geometry.n_classes; i++) {
        if (on_host == (c->geometry.classes[i].part_bytes > 0)) {
            pages_destroy(&c->classes[i]);
        }
    }
}

void home_pages_attach(const struct cache *c, int32_t seq, int32_t store, struct ops_kv *kv)
{
    const struct cache_seq *q = &c->seqs[seq];
    const struct geometry_arrays *st = &c->geometry.arrays[store];
    const struct pages *pages = &c->classes[geometry_class_of(&c->geometry, q->variant, store)];

    kv->layout = geometry_layout(&c->geometry, q->variant, store);
    kv->pool = pages->pool;
    kv->part = pages->part;
    kv->pages = (const uint32_t *)(const void *)(q->tables + st->pages_off);
    kv->max_pages = st->max_pages;
}

int home_pages_export(struct cache *c, int32_t seq, int32_t store, int32_t group, int32_t slot0,
                      int32_t n, void *to)
{
    struct ops_kv kv = cache_store_kv(c, seq, store);

    return c->geometry.config.ops->kv_export(
        c->be, &(struct ops_kv_slots){
                   .kv = &kv, .group = group, .host = to, .slot0 = slot0, .n_slots = n});
}

static uint64_t bytes(const struct geometry *s)
{
    return home_pages_bytes(s, false);
}

static int create(struct cache *c, struct error *reterr)
{
    return home_pages_create(c, false, reterr);
}

static void destroy(struct cache *c)
{
    home_pages_destroy(c, false);
}

const struct home_ops home_device = {.bytes = bytes,
                                     .create = create,
                                     .destroy = destroy,
                                     .attach = home_pages_attach,
                                     .export = home_pages_export};
