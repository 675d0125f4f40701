/* SPDX-License-Identifier: Apache-2.0 */
/* base/budget.h: what is forgiven over a day, a reboot, a clock that starts anew; slots that are
 * cut short; refusals that say when. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/budget.h"

#define S 1000000000ll
#define DAY (86400 * S)
enum { LIMIT = 864000 }; /* 10 bytes a second */

static char folder[] = "/tmp/budget-XXXXXX";
static int dir;

static void setup(void)
{
    cr_assert(mkdtemp(folder));
    dir = open(folder, O_RDONLY | O_DIRECTORY);
    cr_assert_geq(dir, 0);
}

static void teardown(void)
{
    (void)unlinkat(dir, BUDGET_FILE, 0);
    (void)rmdir(folder);
}

TestSuite(budget, .init = setup, .fini = teardown);

static struct budget at(int boot, int64_t ns)
{
    struct budget_time now = {.boot = {(uint8_t)boot}, .ns = ns};
    struct budget b;

    cr_assert_eq(budget_read(dir, LIMIT, &now, &b), 0);
    return b;
}

static int charge(int boot, int64_t ns, uint64_t bytes)
{
    struct budget b = at(boot, ns);

    return budget_charge(dir, &b, bytes);
}

Test(budget, a_day_is_forgiven_in_a_day)
{
    struct budget b = at(1, 100 * S);

    cr_assert_eq(budget_left(&b), LIMIT);
    cr_assert_neq(access(folder, F_OK), -1);
    cr_assert_eq(faccessat(dir, BUDGET_FILE, F_OK, 0), -1, "reading makes nothing");
    cr_assert_eq(budget_charge(dir, &b, LIMIT), 0);
    cr_assert_eq(budget_charge(dir, &b, 1), -EDQUOT);
    b = at(1, 100 * S);
    cr_assert_eq(budget_left(&b), 0);
    b = at(1, 160 * S);
    cr_assert_eq(budget_left(&b), 600);
    cr_assert_eq(budget_wait_s(&b, 600), 0);
    cr_assert_eq(budget_wait_s(&b, 601), 1);
    cr_assert_eq(budget_wait_s(&b, 1600), 101);
    cr_assert_eq(budget_wait_s(&b, LIMIT + 1), -1);
    cr_assert_eq(charge(1, 160 * S, 601), -EDQUOT);
    b = at(1, 260 * S);
    cr_assert_eq(budget_left(&b), 1600, "a refusal counts nothing");
    b = at(1, 100 * S + DAY);
    cr_assert_eq(budget_left(&b), LIMIT);
    cr_assert_eq(b.written, LIMIT);
}

/* No more in a day and a bit than what may be written at once and what the time gives. */
Test(budget, never_more_than_that)
{
    uint64_t written = 0;

    for (int64_t t = 0; t <= DAY; t += 97 * S) {
        for (uint64_t n = 40000; n >= 10; n /= 2) {
            while (charge(1, t, n) == 0) {
                written += n;
            }
        }
    }
    cr_assert_leq(written, 2 * LIMIT);
    cr_assert_geq(written, 2 * LIMIT - 2000);
    cr_assert_eq(at(1, DAY).written, written);
}

/* After a reboot only the time since then is known. */
Test(budget, a_reboot_forgives_nothing_by_itself)
{
    cr_assert_eq(charge(1, 5000 * S, LIMIT), 0);
    cr_assert_eq(budget_left(&(struct budget[]){at(2, 0)}[0]), 0);
    cr_assert_eq(budget_left(&(struct budget[]){at(2, 30 * S)}[0]), 300);
    cr_assert_eq(charge(2, 30 * S, 300), 0);
    cr_assert_eq(budget_left(&(struct budget[]){at(2, 30 * S)}[0]), 0);
    cr_assert_eq(budget_left(&(struct budget[]){at(3, 10 * S)}[0]), 100);
}

/* One whose id could not be read may be the same: it does not forgive the time that the machine
 * runs.
 */
Test(budget, an_unknown_boot_forgives_the_least)
{
    struct budget b;

    cr_assert_eq(charge(1, DAY, LIMIT), 0);
    b = at(0, DAY + 60 * S);
    cr_assert_eq(budget_left(&b), 600);
    cr_assert_eq(budget_charge(dir, &b, 600), 0);
    b = at(1, DAY + 120 * S);
    cr_assert_eq(budget_left(&b), 600);
    b = at(0, 30 * S);
    cr_assert_eq(budget_left(&b), 300, "another one for certain: its clock is behind");
}

Test(budget, a_smaller_limit_counts_at_once)
{
    struct budget_time now = {.boot = {1}, .ns = 0};
    struct budget b;

    cr_assert_eq(charge(1, 0, LIMIT), 0);
    cr_assert_eq(budget_read(dir, 86400, &now, &b), 0);
    cr_assert_eq(budget_left(&b), 0);
    cr_assert_eq(b.used, LIMIT);
    cr_assert_eq(budget_wait_s(&b, 86401), -1);
    cr_assert_eq(budget_wait_s(&b, 86400), 86401);
    now.ns = DAY * 9 / 10 + 50 * S; /* ten times as much as it is: nine tenths of a day */
    cr_assert_eq(budget_read(dir, 86400, &now, &b), 0);
    cr_assert_eq(budget_left(&b), 500);
    now.ns = DAY;
    cr_assert_eq(budget_read(dir, 86400, &now, &b), 0);
    cr_assert_eq(budget_left(&b), 86400);
}

/* A limit that was lower for a moment, with a write under it, forgives nothing of before. */
Test(budget, a_limit_that_comes_and_goes)
{
    struct budget_time now = {.boot = {1}, .ns = 0};
    struct budget b;

    cr_assert_eq(charge(1, 0, LIMIT), 0);
    now.ns = DAY * 95 / 100; /* 43200 are left of it */
    cr_assert_eq(budget_read(dir, 50000, &now, &b), 0);
    cr_assert_eq(budget_charge(dir, &b, 6000), 0);
    cr_assert_eq(at(1, now.ns).used, 49200);
    cr_assert_eq(budget_read(dir, 10000, &now, &b), 0);
    cr_assert_eq(budget_charge(dir, &b, 1), -EDQUOT);
    cr_assert_eq(at(1, now.ns).used, 49200);
}

/* Without one all is counted, and a day later forgotten. */
Test(budget, without_a_limit)
{
    struct budget_time now = {.boot = {1}, .ns = 0};
    struct budget b;

    for (int i = 1; i <= 3; i++) {
        cr_assert_eq(budget_read(dir, 0, &now, &b), 0);
        cr_assert_eq(budget_left(&b), UINT64_MAX);
        cr_assert_eq(budget_wait_s(&b, LIMIT), 0);
        cr_assert_eq(budget_charge(dir, &b, LIMIT), 0);
        cr_assert_eq(b.written, (uint64_t)i * LIMIT);
    }
    cr_assert_eq(at(1, 0).used, 3 * LIMIT);
    cr_assert_eq(charge(1, 0, 1), -EDQUOT);
    now.ns = DAY;
    cr_assert_eq(budget_read(dir, 0, &now, &b), 0);
    cr_assert_eq(b.used, 0);
    cr_assert_eq(b.written, 3 * LIMIT);
}

Test(budget, what_was_not_written_is_given_back)
{
    struct budget b;

    cr_assert_eq(charge(1, 0, 1000), 0);
    cr_assert_eq(charge(1, 10 * S, 5000), 0); /* 100 forgiven */
    b = at(1, 20 * S);
    cr_assert_eq(budget_give_back(dir, &b, 4000), 0);
    b = at(1, 20 * S);
    cr_assert_eq(b.used, 1800);
    cr_assert_eq(b.written, 2000);
    cr_assert_eq(budget_give_back(dir, &b, 4000), 0);
    b = at(1, 20 * S);
    cr_assert_eq(b.used, 0);
    cr_assert_eq(b.written, 0);
}

/* Each byte of the newest slot damaged in turn: the one before counts, and never a wrong number. */
Test(budget, a_slot_that_was_cut_short)
{
    int fd;

    cr_assert_eq(charge(1, 0, 1000), 0);
    cr_assert_eq(charge(1, 0, 500), 0); /* serial 2: the first slot */
    fd = openat(dir, BUDGET_FILE, O_RDWR);
    for (off_t i = 0; i < 72; i++) {
        uint8_t was;
        uint8_t bad;

        cr_assert_eq(pread(fd, &was, 1, i), 1);
        bad = was ^ 0x40;
        cr_assert_eq(pwrite(fd, &bad, 1, i), 1);
        cr_assert_eq(at(1, 0).used, 1000, "byte %d", (int)i);
        cr_assert_eq(pwrite(fd, &was, 1, i), 1);
    }
    cr_assert_eq(at(1, 0).used, 1500);
    cr_assert_eq(ftruncate(fd, 10), 0); /* neither */
    cr_assert_eq(at(1, 0).used, 0);
    cr_assert_eq(charge(1, 0, 7), 0);
    cr_assert_eq(at(1, 0).used, 7);
    (void)close(fd);
}

Test(budget, what_is_no_file_is_an_error)
{
    struct budget_time now = {.ns = 1};
    struct budget b;

    cr_assert_eq(mkdirat(dir, BUDGET_FILE, 0700), 0);
    cr_assert_eq(budget_read(dir, LIMIT, &now, &b), -EISDIR);
    cr_assert_eq(unlinkat(dir, BUDGET_FILE, AT_REMOVEDIR), 0);
    cr_assert_eq(symlinkat("/dev/zero", dir, BUDGET_FILE), 0);
    cr_assert_eq(budget_read(dir, LIMIT, &now, &b), -ELOOP);
}

Test(budget, the_real_clock)
{
    struct budget_time a;
    struct budget_time b;
    static const uint8_t zero[16];

    budget_now(&a);
    budget_now(&b);
    cr_assert_arr_eq(a.boot, b.boot, sizeof(a.boot));
    cr_assert_arr_neq(a.boot, zero, sizeof(zero));
    cr_assert_gt(a.ns, 0);
    cr_assert_geq(b.ns, a.ns);
}
