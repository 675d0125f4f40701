/* SPDX-License-Identifier: Apache-2.0 */
/* What a text may take: it follows the length of the text in progress, and falls again. */

#include <criterion/criterion.h>

#include "daemon/worker/pace.h"

#define MS INT64_C(1000000)

static struct pace pace;

static void text(uint64_t bytes, int64_t ns)
{
    pace_begin(&pace, bytes);
    pace_end(&pace, ns);
}

static int64_t limit_of(uint64_t bytes)
{
    pace_begin(&pace, bytes);
    return pace_limit_ns(&pace);
}

Test(pace, nothing_is_known_at_first)
{
    cr_assert_eq(limit_of(1 << 20), 0);
}

Test(pace, the_text_in_progress_counts)
{
    text(64 << 10, 64 * MS);
    cr_assert_eq(limit_of(64 << 10), 4 * 64 * MS);
    cr_assert_eq(limit_of(4 << 20), INT64_C(4) * 4096 * MS);
    cr_assert_eq(limit_of(1), 4 * 16 * MS); /* a short one, after long ones */
}

Test(pace, a_slow_text_is_forgotten)
{
    text(64 << 10, 64 * MS);
    text(64 << 10, 3600000 * MS);
    cr_assert_eq(limit_of(64 << 10), INT64_C(4) * 3600000 * MS);
    for (int i = 0; i < 60; i++) {
        text(64 << 10, 64 * MS);
    }
    cr_assert_lt(limit_of(64 << 10), 5 * 64 * MS);
    cr_assert_geq(limit_of(64 << 10), 4 * 64 * MS);
}

Test(pace, short_texts_tell_little)
{
    text(10, 1600 * MS); /* not 164 s a MiB */
    cr_assert_eq(limit_of(1 << 20), INT64_C(4) * 64 * 1600 * MS);
}

Test(pace, numbers_of_any_size)
{
    text(1, INT64_MAX / 2);
    cr_assert_eq(limit_of(UINT64_MAX), INT64_MAX);
    cr_assert_gt(limit_of(1), 0);
}
