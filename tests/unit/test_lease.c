/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/lease.h: ranges never overlap, names go stale, owners change as drawn. */

#include <criterion/criterion.h>
#include <errno.h>

#include "daemon/front/lease.h"
#include "proto/lane/record.h"

enum { PAGE = LEASE_ALIGN };

static struct lease_table t;
static uint64_t largest;

static void begin(void)
{
    lease_init(&t, 16 * PAGE, 8 * PAGE, 4 * PAGE);
}

static uint32_t get(uint32_t arena, uint64_t length)
{
    uint32_t buf = 0;

    cr_assert_eq(lease_get(&t, arena, length, &buf, &largest), 0);
    return buf;
}

Test(lease, the_request_buffer_is_always_there, .init = begin)
{
    struct lease *l = lease_of_client(&t, LANE_ARENA_C2E, LEASE_REQUEST_BUF, 1);

    cr_assert_not_null(l);
    cr_assert(l->offset == 0 && l->length == 4 * PAGE);
    cr_assert_eq(lease_put(&t, LANE_ARENA_C2E, LEASE_REQUEST_BUF, 1), -EPERM);
    cr_assert_null(lease_of_client(&t, LANE_ARENA_E2C, LEASE_REQUEST_BUF, 1));
    cr_assert_eq(t.v[get(LANE_ARENA_C2E, 1) - 1].offset, 4 * PAGE);
}

Test(lease, names_go_stale, .init = begin)
{
    uint32_t buf = get(LANE_ARENA_E2C, 100);
    uint32_t generation = t.v[buf - 1].generation;

    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, buf, generation + 1), -ENOENT);
    cr_assert_eq(lease_put(&t, LANE_ARENA_C2E, buf, generation), -ENOENT);
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, 0, generation), -ENOENT);
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, UINT32_MAX, generation), -ENOENT);
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, buf, generation), 0);
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, buf, generation), -ENOENT);
    cr_assert_eq(get(LANE_ARENA_E2C, 100), buf);
    cr_assert_neq(t.v[buf - 1].generation, generation);
    cr_assert_null(lease_of_client(&t, LANE_ARENA_E2C, buf, generation));
}

Test(lease, limits, .init = begin)
{
    uint32_t buf;

    cr_assert_eq(lease_get(&t, LANE_ARENA_E2C, 0, &buf, &largest), -EINVAL);
    cr_assert_eq(lease_get(&t, LANE_ARENA_E2C, 8 * PAGE + 1, &buf, &largest), -E2BIG);
    cr_assert_eq(largest, 8 * PAGE);
    cr_assert_eq(lease_get(&t, LANE_ARENA_E2C, UINT64_MAX, &buf, &largest), -E2BIG);
    (void)get(LANE_ARENA_E2C, 3 * PAGE);
    cr_assert_eq(lease_get(&t, LANE_ARENA_E2C, 6 * PAGE, &buf, &largest), -E2BIG);
    cr_assert_eq(largest, 5 * PAGE);
    (void)get(LANE_ARENA_E2C, largest);
    cr_assert_eq(lease_get(&t, LANE_ARENA_E2C, 1, &buf, &largest), -E2BIG);
    cr_assert_eq(largest, 0);

    lease_init(&t, 100 * PAGE, PAGE, PAGE);
    for (int i = 0; i < LEASE_MAX - 1; i++) {
        (void)get(LANE_ARENA_C2E, 1);
    }
    cr_assert_eq(lease_get(&t, LANE_ARENA_C2E, 1, &buf, &largest), -EBUSY);
}

Test(lease, what_the_engine_has_is_not_the_clients, .init = begin)
{
    uint32_t buf = get(LANE_ARENA_E2C, PAGE);
    uint32_t generation = t.v[buf - 1].generation;

    lease_lend(lease_of_client(&t, LANE_ARENA_E2C, buf, generation));
    cr_assert_null(lease_of_client(&t, LANE_ARENA_E2C, buf, generation));
    lease_give_back(&t, buf);
    cr_assert_not_null(lease_of_client(&t, LANE_ARENA_E2C, buf, generation));

    lease_lend(lease_of_client(&t, LANE_ARENA_E2C, buf, generation));
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, buf, generation), 0);
    cr_assert_eq(lease_put(&t, LANE_ARENA_E2C, buf, generation), -ENOENT);
    cr_assert_eq(get(LANE_ARENA_E2C, PAGE), buf + 1, "still the engine's");
    lease_give_back(&t, buf);
    cr_assert_eq(get(LANE_ARENA_E2C, PAGE), buf);
}

Test(lease, random_life_never_overlaps, .init = begin)
{
    uint32_t x = 1;

    for (int step = 0; step < 20000; step++) {
        uint32_t arena = (x >> 8) & 1;
        uint32_t buf;

        x = x * 1664525u + 1013904223u;
        if (x >> 31) {
            (void)!lease_get(&t, arena, (x >> 9) % (5 * PAGE), &buf, &largest);
        } else {
            buf = 1 + (x >> 10) % LEASE_MAX;
            (void)!lease_put(&t, arena, buf, t.v[buf - 1].generation);
        }
        for (int i = 0; i < LEASE_MAX; i++) {
            const struct lease *a = &t.v[i];

            for (int k = 0; k < i && a->owner; k++) {
                const struct lease *b = &t.v[k];

                cr_assert(!b->owner || a->arena != b->arena || a->offset + a->length <= b->offset ||
                          b->offset + b->length <= a->offset);
            }
            cr_assert(!a->owner || a->offset + a->length <= t.arena_bytes[a->arena]);
        }
    }
}
