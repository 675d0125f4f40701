/* SPDX-License-Identifier: Apache-2.0 */
/* engine/text/stop.h against a search of the whole text, however the text is cut, and its limits.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/stop.h"

static struct stop s;

static int init(const char *const *texts, size_t n)
{
    struct stop_text list[STOP_MAX_STRINGS + 1] = {0};
    struct error e = {0};

    for (size_t i = 0; i < n; i++) {
        list[i] = (struct stop_text){texts[i], strlen(texts[i])};
    }
    return stop_init(&s, list, n, &e);
}

/* Where the output must end, by definition; *ret_hit as stop.hit. */
static size_t expected(const char *text, size_t len, const char *const *stops, size_t n,
                       int *ret_hit)
{
    for (size_t end = 1; end <= len; end++) {
        size_t longest = 0;

        for (size_t i = 0; i < n; i++) {
            size_t size = strlen(stops[i]);

            if (size <= end && size > longest && !memcmp(text + end - size, stops[i], size)) {
                longest = size;
                *ret_hit = (int)i;
            }
        }
        if (longest) {
            return end - longest;
        }
    }
    *ret_hit = -1;
    return len;
}

Test(stop, held_back_and_released)
{
    const char *stops[] = {"\n\nUser:"};
    char out[512];

    cr_assert_eq(init(stops, 1), 0);
    cr_assert_eq(stop_push(&s, "ab\n", 3, out), 2);
    cr_assert_eq(stop_push(&s, "\nUs", 3, out), 0);
    cr_assert_eq(stop_push(&s, "e me", 4, out), 8);
    cr_assert_eq(memcmp(out, "\n\nUse me", 8), 0);
    cr_assert_eq(stop_push(&s, "\n\n\nUse", 6, out), 1, "one line break can go");
    cr_assert_eq(s.hit, -1);
    cr_assert_eq(stop_push(&s, "r: later", 8, out), 0);
    cr_assert_eq(s.hit, 0);
    cr_assert_eq(stop_push(&s, "more", 4, out), 0, "nothing after a hit");
    cr_assert_eq(stop_flush(&s, out), 0);
}

Test(stop, flush)
{
    const char *stops[] = {"END"};
    char out[512];

    cr_assert_eq(init(stops, 1), 0);
    cr_assert_eq(stop_push(&s, "xEN", 3, out), 1);
    cr_assert_eq(stop_flush(&s, out), 2);
    cr_assert_eq(memcmp(out, "EN", 2), 0);
    cr_assert_eq(stop_flush(&s, out), 0);
}

Test(stop, none)
{
    char out[512];

    cr_assert_eq(init(NULL, 0), 0);
    cr_assert_eq(stop_push(&s, "abc", 3, out), 3);
    cr_assert_eq(stop_flush(&s, out), 0);
}

Test(stop, first_complete_then_longest)
{
    const char *stops[] = {"c", "abc", "bcd"};
    char out[512];

    cr_assert_eq(init(stops, 3), 0);
    cr_assert_eq(stop_push(&s, "xabcd", 5, out), 1);
    cr_assert_eq(s.hit, 1);
}

/* Few letters, so that everything overlaps; random cuts; also through a copy of the state. */
Test(stop, random_against_definition)
{
    srand(2);
    for (int round = 0; round < 20000; round++) {
        char stops[4][8];
        const char *list[4];
        size_t n = 1 + (size_t)rand() % 4;
        char text[64];
        size_t len = (size_t)rand() % sizeof(text);
        char out[sizeof(text) + STOP_MAX_BYTES];
        char all[2 * sizeof(text)];
        size_t got = 0;
        int hit;

        for (size_t i = 0; i < n; i++) {
            size_t size = 1 + (size_t)rand() % 7;

            for (size_t j = 0; j < size; j++) {
                stops[i][j] = (char)('a' + rand() % 2);
            }
            stops[i][size] = '\0';
            list[i] = stops[i];
        }
        for (size_t i = 0; i < len; i++) {
            text[i] = (char)('a' + (rand() % 8 ? rand() % 2 : 2));
        }
        cr_assert_eq(init(list, n), 0);
        for (size_t pos = 0; pos < len;) {
            size_t size = 1 + (size_t)rand() % 5;
            struct stop copy = s;

            size = size < len - pos ? size : len - pos;
            s = copy;
            size_t more = stop_push(&s, text + pos, size, out);
            memcpy(all + got, out, more);
            got += more;
            pos += size;
        }
        size_t want = expected(text, len, list, n, &hit);
        got += stop_flush(&s, all + got);
        cr_assert_eq(got, want, "round %d", round);
        cr_assert_eq(memcmp(all, text, got), 0, "round %d", round);
        /* Equal strings: either index will do. */
        cr_assert(s.hit == hit || (hit >= 0 && s.hit >= 0 && !strcmp(stops[hit], stops[s.hit])));
    }
}

Test(stop, limits)
{
    char longest[STOP_MAX_BYTES + 2];
    const char *many[STOP_MAX_STRINGS + 1];
    char out[1024];

    for (int i = 0; i <= STOP_MAX_STRINGS; i++) {
        many[i] = "x";
    }
    cr_assert_eq(init(many, STOP_MAX_STRINGS), 0);
    cr_assert_eq(init(many, STOP_MAX_STRINGS + 1), -E2BIG);
    memset(longest, 'x', sizeof(longest));
    longest[STOP_MAX_BYTES] = '\0';
    many[0] = longest;
    cr_assert_eq(init(many, 1), 0);
    for (int i = 0; i < STOP_MAX_BYTES - 1; i++) {
        cr_assert_eq(stop_push(&s, "x", 1, out), 0);
    }
    cr_assert_eq(stop_push(&s, "y", 1, out), STOP_MAX_BYTES);
    for (int i = 0; i < STOP_MAX_BYTES; i++) {
        cr_assert_eq(stop_push(&s, "x", 1, out), 0);
    }
    cr_assert_eq(s.hit, 0);
    longest[STOP_MAX_BYTES] = 'x';
    longest[STOP_MAX_BYTES + 1] = '\0';
    cr_assert_eq(init(many, 1), -E2BIG);
    many[0] = "";
    cr_assert_eq(init(many, 1), -EINVAL);
    many[0] = "\xc3";
    cr_assert_eq(init(many, 1), -EINVAL);
}
