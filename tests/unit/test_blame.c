/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/blame.h: who is charged, how that is forgiven, and who must wait. */

#include <criterion/criterion.h>
#include <string.h>

#include "daemon/front/blame.h"

#define SECOND 1000000000ll

static struct blame b;

static void withdraw(uint32_t uid, int64_t now)
{
    blame_death(&b);
    cr_assert(blame_charge(&b, uid, BLAME_WITHDRAWN, now));
}

Test(blame, a_charge_is_forgiven_by_time_and_by_conduct)
{
    int64_t now = 5 * SECOND;

    cr_assert_eq(blame_of(&b, 1000, now), 0);
    blame_charge(&b, 1000, BLAME_CONVICTED, now);
    withdraw(1000, now);
    cr_assert_eq(blame_of(&b, 1000, now), 3);
    cr_assert_eq(blame_of(&b, 1001, now), 0);
    blame_clear_one(&b, 1000, now);
    blame_clear_one(&b, 1000, now + SECOND); /* one in ten minutes */
    cr_assert_eq(blame_of(&b, 1000, now + 599 * SECOND), 2);
    cr_assert_eq(blame_of(&b, 1000, now + 601 * SECOND), 1);
    blame_clear_one(&b, 1000, now + 602 * SECOND);
    cr_assert_eq(blame_of(&b, 1000, now + 602 * SECOND), 0);
    cr_assert_eq(blame_of(&b, 1000, now + 10000 * SECOND), 0);
    blame_clear_one(&b, 1000, now + 10000 * SECOND);
    cr_assert_eq(blame_of(&b, 1000, now + 10000 * SECOND), 0);
}

Test(blame, many_deaths_make_one_wait_and_the_wait_is_bounded)
{
    int64_t now = SECOND;

    blame_charge(&b, 7, BLAME_CONVICTED, now);
    blame_charge(&b, 7, BLAME_CONVICTED, now);
    cr_assert_eq(blame_wait_ms(&b, 7, now), 0);
    blame_charge(&b, 7, BLAME_CONVICTED, now);
    cr_assert_eq(blame_wait_ms(&b, 7, now), 10000);
    cr_assert_eq(blame_wait_ms(&b, 7, now + 4 * SECOND), 6000);
    cr_assert_eq(blame_wait_ms(&b, 7, now + 10 * SECOND), 0);
    cr_assert_eq(blame_wait_ms(&b, 8, now), 0);
    for (int i = 0; i < 1000; i++) {
        blame_charge(&b, 7, BLAME_CONVICTED, now);
    }
    cr_assert_eq(blame_of(&b, 7, now), BLAME_MOST);
    cr_assert_eq(blame_wait_ms(&b, 7, now), 3600000);
    cr_assert_eq(blame_of(&b, 7, now + 200 * 60 * SECOND), 0);
}

/* Whose clients go away whenever an engine dies beside them, but whose requests are harmless. */
Test(blame, a_bystander_who_leaves_is_soon_free)
{
    int64_t now = SECOND;

    for (int i = 0; i < 1 + BLAME_SPARE; i++) {
        withdraw(5, now);
        for (int more = 0; more < 10; more++) {
            cr_assert_not(blame_charge(&b, 5, BLAME_WITHDRAWN, now), "all died together");
        }
        cr_assert_eq(blame_of(&b, 5, now), 1);
        cr_assert_eq(blame_wait_ms(&b, 5, now), 0);
        now += SECOND;
        blame_clear_one(&b, 5, now);
        cr_assert_eq(blame_of(&b, 5, now), 0, "after %d", i);
    }
    withdraw(5, now);
    blame_clear_one(&b, 5, now + SECOND);
    cr_assert_eq(blame_of(&b, 5, now + SECOND), 1, "not for ever");
    cr_assert_eq(blame_of(&b, 5, now + 601 * SECOND), 0);
    withdraw(5, now + 3600 * SECOND);
    blame_charge(&b, 5, BLAME_CONVICTED, now + 3600 * SECOND);
    blame_clear_one(&b, 5, now + 3600 * SECOND);
    blame_clear_one(&b, 5, now + 3600 * SECOND);
    cr_assert_eq(blame_of(&b, 5, now + 3600 * SECOND), 2, "nothing is spared who is guilty");
}

/* One that is withdrawn each time it has killed, and followed by a harmless one and by another. */
Test(blame, who_kills_whenever_allowed_kills_rarely)
{
    int64_t now = SECOND;
    int late = 0;

    for (int i = 0; now < 3 * 3600 * SECOND; i++) {
        withdraw(9, now);
        late += now > 3600 * SECOND;
        now += blame_wait_ms(&b, 9, now) * (SECOND / 1000) + SECOND;
        blame_clear_one(&b, 9, now);
        cr_assert_lt(i, 100);
    }
    cr_assert_lt(late, 2 * 14, "%d deaths in two hours", late);
}

Test(blame, a_slot_keeps_the_worse_of_two_users)
{
    int64_t now = SECOND;

    blame_charge(&b, 3, BLAME_CONVICTED, now);
    blame_death(&b);
    cr_assert_not(blame_charge(&b, 3 + BLAME_USERS, BLAME_WITHDRAWN, now));
    cr_assert_eq(blame_of(&b, 3, now), 2);
    cr_assert_eq(blame_of(&b, 3 + BLAME_USERS, now), 0);
    blame_charge(&b, 3 + BLAME_USERS, BLAME_CONVICTED, now);
    cr_assert_eq(blame_of(&b, 3, now), 0);
    cr_assert_eq(blame_of(&b, 3 + BLAME_USERS, now), 2);
}
