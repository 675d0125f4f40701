/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/blame.h: who is charged, how that is forgiven, and who must wait. */

#include <criterion/criterion.h>
#include <string.h>

#include "daemon/front/blame.h"

#define SECOND 1000000000ll

static struct blame b;

Test(blame, a_charge_is_forgiven_by_time_and_by_conduct)
{
    int64_t now = 5 * SECOND;

    cr_assert_eq(blame_of(&b, 1000, now), 0);
    blame_charge(&b, 1000, BLAME_CONVICTED, now);
    blame_charge(&b, 1000, BLAME_WITHDRAWN, now);
    cr_assert_eq(blame_of(&b, 1000, now), 3);
    cr_assert_eq(blame_of(&b, 1001, now), 0);
    blame_clear_one(&b, 1000, now);
    cr_assert_eq(blame_of(&b, 1000, now + 59 * SECOND), 2);
    cr_assert_eq(blame_of(&b, 1000, now + 61 * SECOND), 1);
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
    cr_assert_eq(blame_wait_ms(&b, 7, now), 60000);
    cr_assert_eq(blame_of(&b, 7, now + 20 * 60 * SECOND), 0);
}

Test(blame, a_slot_keeps_the_worse_of_two_users)
{
    int64_t now = SECOND;

    blame_charge(&b, 3, BLAME_CONVICTED, now);
    blame_charge(&b, 3 + BLAME_USERS, BLAME_WITHDRAWN, now);
    cr_assert_eq(blame_of(&b, 3, now), 2);
    cr_assert_eq(blame_of(&b, 3 + BLAME_USERS, now), 0);
    blame_charge(&b, 3 + BLAME_USERS, BLAME_CONVICTED, now);
    cr_assert_eq(blame_of(&b, 3, now), 0);
    cr_assert_eq(blame_of(&b, 3 + BLAME_USERS, now), 2);
}
