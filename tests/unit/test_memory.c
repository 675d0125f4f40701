/* SPDX-License-Identifier: Apache-2.0 */
/* base/memory.h: alignment, zeroes, the counter, refusals, residence, and the two passes of an
 * arena. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "base/memory.h"

static void check_map(size_t size, size_t align)
{
    uint64_t before = memory_mapped_bytes();
    struct error e = {0};
    void *p = NULL;

    cr_assert_eq(memory_map(size, "test", &p, &e), 0, "%s", e.text);
    cr_assert_eq((uintptr_t)p % align, 0);
    cr_assert_geq(memory_mapped_bytes(), before + size);
    for (size_t i = 0; i < size; i += 997) {
        cr_assert_eq(((uint8_t *)p)[i], 0);
    }
    ((uint8_t *)p)[0] = 1;
    ((uint8_t *)p)[size - 1] = 1;
    memory_unmap(p, size);
    cr_assert_eq(memory_mapped_bytes(), before);
}

Test(memory, map_is_aligned_zeroed_and_counted)
{
    check_map(1, 64);
    check_map(4097, 64);
    check_map(((size_t)2 << 20) - 1, 64);
    check_map((size_t)2 << 20, (size_t)2 << 20);
    check_map(((size_t)5 << 20) + 123, (size_t)2 << 20);
}

/* Of all sizes that one thread or several touch, with odd ends. */
Test(memory, every_page_is_resident)
{
    static const size_t sizes[] = {(size_t)2 << 20, ((size_t)63 << 20) + 4095, (size_t)64 << 20,
                                   ((size_t)101 << 20) + 1};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        size_t n = (sizes[i] + 4095) / 4096;
        unsigned char *there = malloc(n);
        struct error e = {0};
        void *p = NULL;

        cr_assert_eq(memory_map(sizes[i], "test", &p, &e), 0, "%s", e.text);
        cr_assert_eq(mincore(p, sizes[i], there), 0);
        for (size_t k = 0; k < n; k++) {
            cr_assert(there[k] & 1, "page %zu of %zu", k, n);
        }
        memory_unmap(p, sizes[i]);
        free(there);
    }
}

Test(memory, zero_is_null_and_too_much_is_refused)
{
    struct error e = {0};
    void *p = &e;

    cr_assert_eq(memory_map(0, "nothing", &p, &e), 0);
    cr_assert_null(p);
    memory_unmap(NULL, 100);
    cr_assert_eq(memory_map(SIZE_MAX, "KV pages", &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "KV pages"), "%s", e.text);
    e = (struct error){0};
    cr_assert_eq(memory_map((size_t)1 << 60, "KV pages", &p, &e), -ENOMEM);
    cr_assert(strstr(e.text, "KV pages"), "%s", e.text);
    cr_assert_eq(memory_mapped_bytes(), 0);
}

Test(memory, arena_hands_out_what_it_planned)
{
    struct memory_arena a = {0};
    void *base;

    cr_assert_null(memory_arena_take(&a, 10));
    cr_assert_null(memory_arena_take(&a, 64));
    cr_assert_null(memory_arena_take(&a, 65));
    cr_assert_eq(a.used, 64 + 64 + 128);
    cr_assert_eq(memory_map(a.used, "arena", &base, NULL), 0);
    a = (struct memory_arena){.base = base, .size = a.used};
    cr_assert_eq(memory_arena_take(&a, 10), base);
    cr_assert_eq(memory_arena_take(&a, 64), (uint8_t *)base + 64);
    cr_assert_eq(memory_arena_take(&a, 65), (uint8_t *)base + 128);
    memory_unmap(base, a.size);
}
