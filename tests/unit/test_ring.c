/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/worker/ring.h: order and bounds, alone and between two threads that sleep. */

#include <criterion/criterion.h>
#include <pthread.h>

#include "daemon/worker/ring.h"

Test(ring, fills_empties_and_wraps)
{
    struct error e = {0};
    struct ring r;
    uint64_t v;

    cr_assert_eq(ring_init(&r, 8, sizeof(v), &e), 0);
    atomic_store(&r.head, UINT32_MAX - 3);
    atomic_store(&r.tail, UINT32_MAX - 3);
    for (uint64_t round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < 8; i++) {
            v = round * 8 + i;
            cr_assert(ring_push(&r, &v));
        }
        cr_assert_not(ring_push(&r, &v));
        for (uint64_t i = 0; i < 8; i++) {
            cr_assert(ring_pop(&r, &v));
            cr_assert_eq(v, round * 8 + i);
        }
        cr_assert(ring_empty(&r));
        cr_assert_not(ring_pop(&r, &v));
    }
    ring_finish(&r);
}

enum { MANY = 50000 };

static void *produce(void *arg)
{
    struct ring *r = arg;

    for (uint64_t i = 0; i < MANY;) {
        i += ring_push(r, &i);
    }
    return NULL;
}

Test(ring, no_wake_up_is_lost)
{
    struct error e = {0};
    struct ring r;
    pthread_t thread;
    uint64_t v;

    cr_assert_eq(ring_init(&r, 64, sizeof(v), &e), 0);
    cr_assert_eq(pthread_create(&thread, NULL, produce, &r), 0);
    for (uint64_t want = 0; want < MANY; want++) {
        while (!ring_pop(&r, &v)) {
            ring_wait(&r);
        }
        cr_assert_eq(v, want);
    }
    (void)pthread_join(thread, NULL);
    cr_assert(ring_empty(&r));
    ring_finish(&r);
}
