/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/loop.h: timers in order, removal from inside callbacks, a
 * change of events that the kernel had no memory for. */

#include <criterion/criterion.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "daemon/front/loop.h"

enum { N = 500 };

static struct loop l;
static int64_t last;
static int n_fired;

static void fire(void *arg)
{
    const struct loop_timer *t = arg;

    cr_assert_geq(t->when_ns, last);
    last = t->when_ns;
    n_fired++;
}

static void stop(void *arg)
{
    (void)arg;
    loop_stop(&l);
}

Test(loop, timers_fire_in_order_and_only_if_armed)
{
    static struct loop_timer t[N];
    struct loop_timer end = {0};
    struct error e = {0};
    int64_t now = clock_ns();
    uint32_t x = 1;
    int want = 0;

    cr_assert_eq(loop_init(&l, N + 1, &e), 0);
    for (int i = 0; i < N; i++) {
        x = x * 1664525u + 1013904223u;
        loop_timer_at(&l, &t[i], now + (x >> 12), fire, &t[i]);
    }
    for (int i = 0; i < N; i += 3) {
        loop_timer_off(&l, &t[i]);
        loop_timer_off(&l, &t[i]);
    }
    for (int i = 1; i < N; i += 5) {
        x = x * 1664525u + 1013904223u;
        loop_timer_at(&l, &t[i], now + (x >> 12), fire, &t[i]);
    }
    for (int i = 0; i < N; i++) {
        want += t[i].index != 0;
    }
    cr_assert_eq(want, (int)l.n_timers);
    loop_timer_at(&l, &end, now + 20000000, stop, NULL);
    cr_assert_eq(loop_run(&l, NULL, NULL), 0);
    cr_assert_eq(n_fired, want);
    cr_assert_geq(clock_ns(), now + 20000000, "never early");
    loop_finish(&l);
}

static struct loop_timer near_by;
static struct loop_watch wake;
static int64_t near_ns;

static void on_near(void *arg)
{
    (void)arg;
    near_ns = clock_ns();
    loop_stop(&l);
}

static void on_wake(void *arg, uint32_t events)
{
    (void)arg;
    (void)events;
    loop_del(&l, &wake);
    loop_timer_at(&l, &near_by, clock_ns() + 5000000, on_near, NULL);
}

static void never(void *arg)
{
    (void)arg;
    cr_assert_fail("it was taken away, or its time is not over");
}

/* The loop waits for one timer already when an earlier one is armed. */
Test(loop, an_earlier_timer_does_not_wait_for_a_later_one)
{
    struct loop_timer far_off = {0};
    struct loop_timer gone = {0};
    struct error e = {0};
    int64_t now = clock_ns();

    cr_assert_eq(loop_init(&l, N + 1, &e), 0);
    wake = (struct loop_watch){.fd = eventfd(1, 0), .events = EPOLLIN, .fn = on_wake};
    cr_assert_eq(loop_add(&l, &wake), 0);
    loop_timer_at(&l, &far_off, now + 2000000000, never, NULL);
    loop_timer_at(&l, &gone, now + 1000000, never, NULL);
    loop_timer_off(&l, &gone);
    cr_assert_eq(loop_run(&l, NULL, NULL), 0);
    cr_assert_geq(near_ns, now + 5000000, "never early");
    (void)close(wake.fd);
    loop_finish(&l);
}

static struct loop_watch a;
static struct loop_watch b;
static int n_events;

/* Whichever comes first removes the other, which is in the same batch. */
static void on_event(void *arg, uint32_t events)
{
    (void)events;
    n_events++;
    loop_del(&l, arg == &a ? &b : &a);
    loop_del(&l, arg == &a ? &a : &b);
    loop_stop(&l);
}

Test(loop, a_removed_watch_is_not_called)
{
    struct error e = {0};

    cr_assert_eq(loop_init(&l, N + 1, &e), 0);
    a = (struct loop_watch){.fd = eventfd(1, 0), .events = EPOLLIN, .fn = on_event, .arg = &a};
    b = (struct loop_watch){.fd = eventfd(1, 0), .events = EPOLLIN, .fn = on_event, .arg = &b};
    cr_assert_eq(loop_add(&l, &a), 0);
    cr_assert_eq(loop_add(&l, &b), 0);
    cr_assert_eq(loop_run(&l, NULL, NULL), 0);
    cr_assert_eq(n_events, 1);
    (void)close(a.fd);
    (void)close(b.fd);
    loop_finish(&l);
}

static void on_late(void *arg, uint32_t events)
{
    (void)arg;
    n_events += events == EPOLLOUT;
    loop_stop(&l);
}

/* No descriptor is what fails here; the one that is taken back meanwhile is not tried again. */
Test(loop, a_change_that_failed_is_made_later)
{
    struct error e = {0};
    int fd;

    cr_assert_eq(loop_init(&l, 1, &e), 0);
    a = (struct loop_watch){.fd = eventfd(0, 0), .events = EPOLLIN, .fn = on_late};
    b = (struct loop_watch){.fd = eventfd(0, 0), .events = EPOLLIN, .fn = on_late};
    cr_assert_eq(loop_add(&l, &a), 0);
    cr_assert_eq(loop_add(&l, &b), 0);
    fd = a.fd;
    a.fd = -1;
    loop_events(&l, &a, EPOLLOUT);
    a.fd = fd;
    fd = b.fd;
    b.fd = -1;
    loop_events(&l, &b, EPOLLOUT);
    b.fd = fd;
    loop_del(&l, &b);
    cr_assert_eq(loop_run(&l, NULL, NULL), 0);
    cr_assert_eq(n_events, 1);
    cr_assert_null(l.late);
    (void)close(a.fd);
    (void)close(b.fd);
    loop_finish(&l);
}
