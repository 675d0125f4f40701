/* SPDX-License-Identifier: Apache-2.0 */
/* Anonymous memory, counted. From 2 MiB up a mapping is placed on a 2 MiB boundary by mapping 2 MiB
 * too much and giving the ends back; MADV_HUGEPAGE is a wish, and its refusal is not an error (a
 * kernel without transparent huge pages runs everything, slower). Below 2 MiB the C library's heap
 * does, which lets sanitizers see overruns of small state.
 *
 * Every page is touched before the caller gets it: what a plan counts is then resident from the
 * start, so the process grows no further, no token waits for a page fault, and a machine that
 * promised more than it has says so while loading. The kernel clears what is touched at some
 * gigabytes a second and thread, half of the time that loading a model takes, so large mappings are
 * touched by several threads. The counter holds what callers asked for, rounded as it was rounded
 * for them. */

#include "base/memory.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"

#define HUGE_BYTES ((size_t)2 << 20)
#define LINE_BYTES ((size_t)64)
#define PAGE_BYTES ((size_t)4096)
#define SHARE_BYTES ((size_t)32 << 20) /* the least that is worth a thread */

enum { MOST_TOUCHING = 8 };

static _Atomic uint64_t mapped_bytes;

/* Linux 5.14; older headers lack it and older kernels refuse it. */
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

uint64_t memory_rounded(uint64_t size)
{
    return checked_round_up(size, size >= HUGE_BYTES ? PAGE_BYTES : LINE_BYTES);
}

static void touch(uint8_t *p, size_t bytes)
{
    if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0) {
        return;
    }
    for (size_t i = 0; i < bytes; i += PAGE_BYTES) {
        ((volatile uint8_t *)p)[i] = 0;
    }
}

struct share {
    uint8_t *p;
    size_t bytes;
};

static void *touch_share(void *arg)
{
    const struct share *s = arg;

    touch(s->p, s->bytes);
    return NULL;
}

/* CPUs that this thread may use. */
static size_t n_cpus(void)
{
    cpu_set_t set;

    return sched_getaffinity(0, sizeof(set), &set) ? 1 : (size_t)CPU_COUNT(&set);
}

/* By a thread for each share; this thread takes the last one, and those that got no thread. */
static void touch_all(uint8_t *p, size_t bytes)
{
    struct share share[MOST_TOUCHING];
    pthread_t thread[MOST_TOUCHING];
    size_t n = bytes / SHARE_BYTES;
    size_t cpus = n_cpus();
    size_t begun = 0;
    size_t at = 0;

    n = n < MOST_TOUCHING ? n : MOST_TOUCHING;
    n = n < cpus ? n : cpus;
    if (n < 2) {
        touch(p, bytes);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t end = i + 1 == n ? bytes : bytes / n * (i + 1) & ~(HUGE_BYTES - 1);

        share[i] = (struct share){p + at, end - at};
        at = end;
    }
    while (begun + 1 < n && !pthread_create(&thread[begun], NULL, touch_share, &share[begun])) {
        begun++;
    }
    for (size_t i = begun; i < n; i++) {
        touch(share[i].p, share[i].bytes);
    }
    for (size_t i = 0; i < begun; i++) {
        (void)pthread_join(thread[i], NULL);
    }
}

static void *map_huge(size_t bytes)
{
    uint8_t *raw = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (raw == MAP_FAILED) {
        return NULL;
    }
    size_t head = (HUGE_BYTES - ((uintptr_t)raw & (HUGE_BYTES - 1))) & (HUGE_BYTES - 1);
    uint8_t *p = raw + head;

    if (head) {
        (void)munmap(raw, head);
    }
    (void)munmap(p + bytes, HUGE_BYTES - head);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    touch_all(p, bytes);
    return p;
}

int memory_map(size_t size, const char *what, void **ret, struct error *reterr)
{
    size_t bytes = (size_t)memory_rounded(size);
    void *p;

    if (size == 0) {
        *ret = NULL;
        return 0;
    }
    if (bytes == 0 || bytes > SIZE_MAX - HUGE_BYTES) {
        return error_set(reterr, -ENOMEM, "%s: %zu bytes are more than an address space", what,
                         size);
    }
    if (bytes >= HUGE_BYTES) {
        p = map_huge(bytes);
    } else {
        p = aligned_alloc(LINE_BYTES, bytes);
        if (p) {
            memset(p, 0, bytes);
        }
    }
    if (!p) {
        return error_set(reterr, -ENOMEM, "%s: no memory for %zu bytes", what, size);
    }
    atomic_fetch_add_explicit(&mapped_bytes, bytes, memory_order_relaxed);
    *ret = p;
    return 0;
}

void memory_unmap(void *p, size_t size)
{
    size_t bytes = (size_t)memory_rounded(size);

    if (!p) {
        return;
    }
    if (bytes >= HUGE_BYTES) {
        (void)munmap(p, bytes);
    } else {
        free(p);
    }
    atomic_fetch_sub_explicit(&mapped_bytes, bytes, memory_order_relaxed);
}

uint64_t memory_mapped_bytes(void)
{
    return atomic_load_explicit(&mapped_bytes, memory_order_relaxed);
}

void *memory_arena_take(struct memory_arena *a, size_t bytes)
{
    size_t at = a->used;

    assert(bytes <= SIZE_MAX - at - LINE_BYTES);
    a->used = (at + bytes + LINE_BYTES - 1) & ~(LINE_BYTES - 1);
    if (!a->base) {
        return NULL;
    }
    assert(a->used <= a->size);
    return a->base + at;
}
