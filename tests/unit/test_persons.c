/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/persons.h: lines of /etc/subuid, whose they are, and what is left out. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "daemon/front/persons.h"

static int owner(const char *name, uint32_t *ret)
{
    if (strcmp(name, "alice") == 0) {
        *ret = 1000;
        return 0;
    }
    return -ENOENT;
}

static struct persons parse(const char *text)
{
    struct persons p;
    struct error e = {0};

    cr_assert_eq(persons_parse(text, strlen(text), owner, &p, &e), 0, "%s", e.text);
    return p;
}

Test(persons, ranges_belong_to_their_owners)
{
    struct persons p = parse("alice:100000:65536\n1001:165536:65536\n# nothing\nalice:300000:1");

    cr_assert_eq(p.n, 3);
    cr_assert_eq(persons_of(&p, 1000), 1000);
    cr_assert_eq(persons_of(&p, 99999), 99999);
    cr_assert_eq(persons_of(&p, 100000), 1000);
    cr_assert_eq(persons_of(&p, 165535), 1000);
    cr_assert_eq(persons_of(&p, 165536), 1001);
    cr_assert_eq(persons_of(&p, 300000), 1000);
    cr_assert_eq(persons_of(&p, 300001), 300001);
    cr_assert_eq(persons_of(&p, 0), 0);
    cr_assert_eq(persons_of(NULL, 100000), 100000);
    persons_clear(&p);
    cr_assert_eq(persons_of(&p, 100000), 100000);
}

Test(persons, lines_without_sense_are_left_out)
{
    static const char *const bad[] = {"bob:100000:65536",
                                      "alice:0:10",
                                      "alice:100000:0",
                                      "alice:100000",
                                      "alice:x:10",
                                      ":100000:10",
                                      "",
                                      "alice:4294967295:2",
                                      "alice:100000:4294967295",
                                      "alice:18446744073709551615:18446744073709551615"};
    char text[400];

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        (void)snprintf(text, sizeof(text), "%s\nalice:500000:10\n", bad[i]);
        struct persons p = parse(text);

        cr_assert_eq(p.n, 1, "%s", bad[i]);
        cr_assert_eq(persons_of(&p, 500009), 1000);
        cr_assert_eq(persons_of(&p, 100000), 100000);
        persons_clear(&p);
    }
}

Test(persons, one_in_another_ones_range_and_a_circle)
{
    struct persons p = parse("alice:100000:65536\n100005:200000:10\n7:8:1\n8:7:1\n");

    cr_assert_eq(persons_of(&p, 200003), 1000);
    cr_assert(persons_of(&p, 7) == 7 || persons_of(&p, 7) == 8);
    persons_clear(&p);
}

Test(persons, a_file_that_is_not_there)
{
    struct persons p;
    struct error e = {0};

    cr_assert_eq(persons_load("/nonexistent/subuid", &p, &e), 0);
    cr_assert_eq(p.n, 0);
    persons_clear(&p);
}
