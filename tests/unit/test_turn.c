/* SPDX-License-Identifier: Apache-2.0 */
/* tests/turn.h: which of many cases run. */

#include <criterion/criterion.h>
#include <string.h>

#include "tests/turn.h"

enum { CASES = 1200, MOST = 120 };

Test(turn, each_case_runs_once)
{
    for (int every = 1; every <= MOST; every++) {
        for (int i = 0; i < CASES; i++) {
            int n = 0;

            for (int begin = 0; begin < every; begin++) {
                n += case_has_turn(i, every, begin);
            }
            cr_assert_eq(n, 1, "case %d of every %d runs %d times", i, every, n);
        }
    }
}

/* Shapes in an inner loop, types in an outer one: a run must not see the same shape with each type,
 * nor the same type with each shape, whatever the loops' lengths. */
Test(turn, no_inner_loop_decides)
{
    for (int every = 3; every <= MOST; every++) {
        for (int inner = 3; inner <= MOST; inner++) {
            bool seen[MOST] = {false};
            int n_seen = 0;
            int n = 0;

            for (int i = 0; i < CASES; i++) {
                if (case_has_turn(i, every, 0)) {
                    n_seen += !seen[i % inner];
                    seen[i % inner] = true;
                    n++;
                }
            }
            cr_assert_gt(3 * n_seen, n < inner ? n : inner, "one of %d: %d of %d places in %d runs",
                         every, n_seen, inner, n);
        }
    }
}
