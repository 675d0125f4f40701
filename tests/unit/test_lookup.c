/* SPDX-License-Identifier: Apache-2.0 */
/* Texts that predict themselves: the place that agrees for longest, against a search of all; what
 * lies beyond the end; counts. */

#include <criterion/criterion.h>
#include <stdlib.h>

#include "engine/sched/lookup.h"
#include "tests/unit/engine_run.h"

enum { CAP = 600 };

static struct lookup_counts all;

static struct lookup make(void **ret)
{
    struct lookup l;

    *ret = calloc(1, lookup_bytes(CAP));
    cr_assert(*ret);
    lookup_init(&l, *ret, CAP);
    lookup_begin(&l);
    lookup_counts_init(&all);
    return l;
}

/* Longest agreement of any earlier place with the end of n tokens; 0 where it is less than 2. */
static int32_t longest(const int32_t *t, int32_t n)
{
    int32_t best = 0;

    for (int32_t end = 1; end < n - 1; end++) {
        int32_t k = 0;

        while (k <= end && k < LOOKUP_LONGEST && t[end - k] == t[n - 1 - k]) {
            k++;
        }
        best = k > best ? k : best;
    }
    return best > 1 ? best : 0;
}

/* What is followed token by token has the longest agreement that there is, as long as chains are
 * short enough to be searched to their end. */
Test(lookup, the_longest_agreement)
{
    void *memory;
    struct lookup l = make(&memory);
    int32_t t[CAP];

    run_tokens(7, 30, t, CAP);
    for (int32_t i = 200; i < 300; i++) {
        t[i] = t[i - 120];
    }
    for (int32_t n = 1; n <= CAP; n++) {
        int32_t want = longest(t, n);

        lookup_follow(&l, t, n, 0, &all);
        cr_assert_eq(l.at > 0, want > 0, "after %d tokens", n);
        if (want > 0) {
            int32_t most = l.length < LOOKUP_LONGEST ? l.length : LOOKUP_LONGEST;

            cr_assert_eq(most, want, "after %d tokens: %d, not %d", n, l.length, want);
            for (int32_t k = 0; k < most; k++) {
                cr_assert_eq(t[l.at - 1 - k], t[n - 1 - k]);
            }
        }
    }
    free(memory);
}

/* The same state whether tokens come one by one or many at once, but for what is counted. */
Test(lookup, in_pieces)
{
    void *a_memory;
    void *b_memory;
    struct lookup a = make(&a_memory);
    struct lookup b = make(&b_memory);
    int32_t t[CAP];
    int32_t x[9];
    int32_t y[9];

    run_tokens(8, 12, t, CAP);
    for (int32_t n = 0; n < CAP;) {
        int32_t to = n + 1 + t[n] % 7;

        to = to < CAP ? to : CAP;
        lookup_follow(&a, t, to, CAP, &all);
        while (n < to) {
            lookup_follow(&b, t, ++n, CAP, &all);
        }
        int32_t n_x = lookup_foretell(&a, t, 9, x);

        cr_assert_eq(n_x, lookup_foretell(&b, t, 9, y));
        cr_assert_eq(a.length, b.length);
        for (int32_t i = 0; i < n_x; i++) {
            cr_assert_eq(x[i], y[i]);
        }
    }
    free(a_memory);
    free(b_memory);
}

Test(lookup, beyond_the_end_it_repeats)
{
    static const int32_t t[] = {9, 1, 2, 3, 1, 2, 3, 1, 2};
    void *memory;
    struct lookup l = make(&memory);
    int32_t next[8];

    lookup_follow(&l, t, 9, 9, &all);
    cr_assert_eq(lookup_foretell(&l, t, 8, next), 8);
    for (int32_t i = 0; i < 8; i++) {
        cr_assert_eq(next[i], 1 + (i + 2) % 3);
    }
    cr_assert_eq(l.length, 5);
    free(memory);
}

Test(lookup, nothing_to_say)
{
    static const int32_t t[] = {5, 6, 7, 8, 6};
    void *memory;
    struct lookup l = make(&memory);
    int32_t next[4];

    for (int32_t n = 1; n <= 5; n++) {
        lookup_follow(&l, t, n, 0, &all);
        cr_assert_eq(lookup_foretell(&l, t, 4, next), 0, "after %d", n);
    }
    lookup_follow(&l, (const int32_t[]){5, 6, 7, 8, 6, 7}, 6, 0, &all);
    cr_assert_eq(lookup_foretell(&l, (const int32_t[]){5, 6, 7, 8, 6, 7}, 1, next), 1);
    cr_assert_eq(next[0], 8);
    lookup_begin(&l);
    lookup_follow(&l, t, 4, 0, &all);
    cr_assert_eq(lookup_foretell(&l, t, 4, next), 0, "another text's pairs");
    free(memory);
}

Test(lookup, chances_follow_what_came)
{
    void *memory;
    struct lookup l = make(&memory);
    int32_t t[CAP];

    cr_assert_float_eq(lookup_chance(&l, 0, &all), 0.5, 1e-6);
    for (int32_t i = 0; i < CAP; i++) { /* pairs come again, what follows them does not */
        t[i] = i % 3 < 2 ? i % 3 : 100 + i;
    }
    lookup_follow(&l, t, CAP, 10, &all);
    l.length = 2;
    cr_assert_lt(lookup_chance(&l, 0, &all), 0.05);
    lookup_begin(&l);
    cr_assert_lt(lookup_chance(&l, 0, &all), 0.05, "a new text begins with what all have seen");
    for (int32_t i = 0; i < CAP; i++) {
        t[i] = i % 5;
    }
    lookup_follow(&l, t, CAP, 5, &all);
    cr_assert_gt(lookup_chance(&l, 0, &all), 0.95);
    free(memory);
}
