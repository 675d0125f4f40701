/* SPDX-License-Identifier: Apache-2.0 */
/* base/checked.h at the edges of 64 bits. */

#include <criterion/criterion.h>

#include "base/checked.h"

Test(checked, add_and_mul_refuse_overflow)
{
    uint64_t r = 7;

    cr_assert(checked_add_u64(UINT64_MAX - 1, 1, &r));
    cr_assert_eq(r, UINT64_MAX);
    r = 7;
    cr_assert_not(checked_add_u64(UINT64_MAX, 1, &r));
    cr_assert_eq(r, 7, "left alone on failure");
    cr_assert(checked_mul_u64(1ull << 32, (1ull << 32) - 1, &r));
    cr_assert_eq(r, 0xffffffff00000000ull);
    r = 7;
    cr_assert_not(checked_mul_u64(1ull << 32, 1ull << 32, &r));
    cr_assert_eq(r, 7);
}

Test(checked, range_cannot_wrap)
{
    cr_assert(checked_range(0, 0, 0));
    cr_assert(checked_range(10, 0, 10));
    cr_assert(checked_range(4, 6, 10));
    cr_assert_not(checked_range(4, 7, 10));
    cr_assert_not(checked_range(11, 0, 10));
    cr_assert_not(checked_range(UINT64_MAX, 2, 10));
    cr_assert_not(checked_range(2, UINT64_MAX, 10));
}

Test(checked, round_up)
{
    cr_assert_eq(checked_round_up(0, 64), 0);
    cr_assert_eq(checked_round_up(1, 64), 64);
    cr_assert_eq(checked_round_up(64, 64), 64);
    cr_assert_eq(checked_round_up(UINT64_MAX - 63, 64), UINT64_MAX - 63);
    cr_assert_eq(checked_round_up(UINT64_MAX - 62, 64), 0, "does not fit");
}
