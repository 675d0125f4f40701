/* SPDX-License-Identifier: Apache-2.0 */
/* The free list is a stack: the page freed last is taken first, which keeps the working set small
 * and, in a run of one sequence, its pages where they were. Nothing is allocated after creation. */

#include "engine/kv/store/pages.h"

#include <assert.h>
#include <errno.h>

#include "base/memory.h"

static void lay_host(struct memory_arena *a, struct pages *p)
{
    size_t n = p->n_pages ? p->n_pages : 1;

    p->free_list = memory_arena_take(a, n * sizeof(*p->free_list));
    p->refs = memory_arena_take(a, n * sizeof(*p->refs));
    p->copies = memory_arena_take(a, n * sizeof(*p->copies));
    p->principal = memory_arena_take(a, n * sizeof(*p->principal));
    p->used = memory_arena_take(a, n * sizeof(*p->used));
    p->kept = memory_arena_take(a, n * sizeof(*p->kept));
}

static size_t host_bytes(uint32_t n_pages)
{
    struct memory_arena plan = {0};
    struct pages p = {.n_pages = n_pages};

    lay_host(&plan, &p);
    return plan.used;
}

uint64_t pages_bytes(uint64_t page_bytes, uint64_t part_bytes, uint32_t n_pages)
{
    return memory_rounded(page_bytes * n_pages) + memory_rounded(part_bytes * n_pages) +
           memory_rounded(host_bytes(n_pages));
}

uint64_t pages_mapped_bytes(uint64_t page_bytes, uint64_t part_bytes, uint32_t n_pages)
{
    return part_bytes ? memory_rounded(page_bytes * n_pages) : 0;
}

static int create(const struct backend_ops *ops, struct backend *be, uint64_t page_bytes,
                  uint64_t part_bytes, uint32_t n_pages, struct pages *ret, struct error *reterr)
{
    struct pages p = {.ops = ops,
                      .be = be,
                      .page_bytes = page_bytes,
                      .part_bytes = part_bytes,
                      .n_pages = n_pages};
    struct memory_arena a = {.size = host_bytes(n_pages)};
    void *pool = NULL;
    void *part = NULL;
    void *host = NULL;
    int r = memory_map(a.size, "tables of cache pages", &host, reterr);

    if (r) {
        goto fail;
    }
    a.base = host;
    lay_host(&a, &p);
    r = part_bytes ? ops->alloc_mapped(be, page_bytes * n_pages, "cache pages", &pool, reterr)
                   : ops->alloc(be, page_bytes * n_pages, "cache pages", &pool, reterr);
    p.pool = pool;
    if (!r && part_bytes) {
        r = ops->alloc(be, part_bytes * n_pages, "partial keys", &part, reterr);
        p.part = part;
    }
    if (r) {
        goto fail;
    }
    for (uint32_t i = 0; i < n_pages; i++) {
        p.free_list[i] = n_pages - 1 - i;
    }
    p.n_free = n_pages;
    *ret = p;
    return 0;
fail:
    pages_destroy(&p);
    return r;
}

int pages_create(const struct backend_ops *ops, struct backend *be, uint64_t page_bytes,
                 uint32_t n_pages, struct pages *ret, struct error *reterr)
{
    return create(ops, be, page_bytes, 0, n_pages, ret, reterr);
}

int pages_create_mapped(const struct backend_ops *ops, struct backend *be, uint64_t page_bytes,
                        uint64_t part_bytes, uint32_t n_pages, struct pages *ret,
                        struct error *reterr)
{
    return create(ops, be, page_bytes, part_bytes, n_pages, ret, reterr);
}

void pages_destroy(struct pages *p)
{
    if (p->pool && p->part_bytes) {
        p->ops->free_mapped(p->be, p->pool, p->page_bytes * p->n_pages);
    } else if (p->pool) {
        p->ops->free(p->be, p->pool, p->page_bytes * p->n_pages);
    }
    if (p->part) {
        p->ops->free(p->be, p->part, p->part_bytes * p->n_pages);
    }
    memory_unmap(p->free_list, host_bytes(p->n_pages)); /* the arena's first */
    *p = (struct pages){0};
}

bool pages_reserve(struct pages *p, uint32_t n)
{
    if (n > p->n_free - p->n_reserved) {
        return false;
    }
    p->n_reserved += n;
    return true;
}

void pages_unreserve(struct pages *p, uint32_t n)
{
    assert(n <= p->n_reserved);
    p->n_reserved -= n;
}

int pages_take(struct pages *p, uint64_t principal, uint32_t *ret)
{
    assert(p->n_reserved > 0 && p->n_free > 0);
    uint32_t page = p->free_list[p->n_free - 1];

    assert(p->refs[page] == 0);
    if (p->used[page] && p->principal[page] != principal) {
        int r = p->ops->zero(p->be, p->pool + p->page_bytes * page, p->page_bytes);

        if (!r && p->part) {
            r = p->ops->zero(p->be, p->part + p->part_bytes * page, p->part_bytes);
        }
        if (r) {
            return r; /* nothing is taken */
        }
    }
    p->n_free--;
    p->n_reserved--;
    p->refs[page] = 1;
    p->used[page] = true;
    p->principal[page] = principal;
    *ret = page;
    return 0;
}

void pages_put_back(struct pages *p, uint32_t *page)
{
    assert(p->refs[*page] == 1 && !p->kept[*page] && p->copies[*page] == 0);
    (void)pages_unref(p, page);
    p->n_reserved++;
}

void pages_ref(struct pages *p, uint32_t page)
{
    assert(p->refs[page] > 0 && p->refs[page] < UINT16_MAX);
    p->n_idle -= p->kept[page] && p->refs[page] == 1;
    p->refs[page]++;
}

void pages_keep(struct pages *p, uint32_t page)
{
    assert(!p->kept[page]);
    pages_ref(p, page);
    p->kept[page] = true;
}

void pages_let_go(struct pages *p, uint32_t page)
{
    assert(p->kept[page]);
    p->n_idle -= p->refs[page] == 1;
    p->kept[page] = false;
    (void)pages_unref(p, &page);
}

void pages_share(struct pages *p, uint32_t page)
{
    pages_ref(p, page);
    assert(p->n_reserved > 0);
    p->copies[page]++;
}

int pages_own(struct pages *p, uint64_t principal, uint32_t *page)
{
    uint32_t from = *page;
    uint32_t to = UINT32_MAX;

    if (p->refs[from] == 1) {
        return 0;
    }
    assert(p->copies[from] > 0);
    int r = pages_take(p, principal, &to);

    if (!r) {
        r = p->ops->copy(p->be, p->pool + p->page_bytes * to, p->pool + p->page_bytes * from,
                         p->page_bytes);
    }
    if (!r && p->part) {
        r = p->ops->copy(p->be, p->part + p->part_bytes * to, p->part + p->part_bytes * from,
                         p->part_bytes);
    }
    if (r) {
        if (to != UINT32_MAX) {
            pages_put_back(p, &to);
        }
        return r;
    }
    p->copies[from]--;
    p->refs[from]--;
    *page = to;
    return 1;
}

bool pages_unref(struct pages *p, uint32_t *page)
{
    uint32_t i = *page;

    *page = UINT32_MAX;
    assert(i < p->n_pages && p->refs[i] > 0);
    if (--p->refs[i] > 0) {
        if (p->copies[i] >= p->refs[i]) { /* one writer fewer: its copy will not be needed */
            p->copies[i]--;
            p->n_reserved--;
        }
        p->n_idle += p->kept[i] && p->refs[i] == 1;
        return false;
    }
    p->free_list[p->n_free++] = i;
    return true;
}
