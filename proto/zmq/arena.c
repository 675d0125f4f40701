/* SPDX-License-Identifier: Apache-2.0 */
/* The capped bump allocator of decoded messages (arena.h). Its pages come from memory_map() once
 * and are touched as messages need them. Clearing zeroes what was used; after an unusually large
 * message it gives the pages back instead, so that one of them does not raise the process's size
 * for good. */

#include "proto/zmq/arena.h"

#include <string.h>
#include <sys/mman.h>

#include "base/memory.h"

enum { ARENA_ALIGN = 16, ARENA_KEEP_BYTES = 1 << 20 };

static void *take(void *data, size_t size)
{
    struct arena *a = data;
    size_t left = a->size - a->used;
    void *p;

    if (a->n_allocs++ == a->fail_at || size > left || left - size < ARENA_ALIGN) {
        a->exhausted = true;
        return NULL;
    }
    p = a->base + a->used;
    a->used += (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return p;
}

static void give(void *data, void *p)
{
    (void)data;
    (void)p;
}

int arena_init(struct arena *a, size_t size, struct error *reterr)
{
    void *base;
    int rc = memory_map(size, "messages", &base, reterr);

    if (rc) {
        return rc;
    }
    *a = (struct arena){
        .hook = {.alloc = take, .free = give, .allocator_data = a},
        .base = base,
        .size = size,
        .fail_at = -1,
    };
    return 0;
}

void arena_finish(struct arena *a)
{
    memory_unmap(a->base, a->size);
    *a = (struct arena){.fail_at = -1};
}

void arena_clear(struct arena *a)
{
    if (a->used > ARENA_KEEP_BYTES && madvise(a->base, a->size, MADV_DONTNEED) == 0) {
        a->used = 0; /* private anonymous pages read as zero again */
    }
    memset(a->base, 0, a->used);
    a->used = 0;
    a->exhausted = false;
    a->n_allocs = 0;
}
