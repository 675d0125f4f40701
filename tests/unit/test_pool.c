/* SPDX-License-Identifier: Apache-2.0 */
/* base/pool.h: every thread runs every job once, barriers separate steps, sleeping threads wake,
 * and threads without a CPU of their own still finish. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/pool.h"

#define MAX 9

struct job {
    struct pool *pool;
    int runs[MAX];     /* by tid, plain: the pool orders them */
    int steps[2][MAX]; /* written before a barrier, read by all after it */
    struct pool_counter counter;
    int taken[1000];
    int wrong;
};

static void count_runs(void *arg, int tid, int n_threads)
{
    struct job *j = arg;

    j->runs[tid]++;
    if (n_threads != pool_n_threads(j->pool)) {
        j->wrong++;
    }
}

static void step_through(void *arg, int tid, int n_threads)
{
    struct job *j = arg;

    for (int s = 1; s <= 20; s++) {
        j->steps[s & 1][tid] = s;
        pool_barrier(j->pool, tid);
        for (int t = 0; t < n_threads; t++) {
            if (j->steps[s & 1][t] != s) {
                j->runs[tid] = -1000;
            }
        }
        j->runs[tid]++;
    }
}

static void take_all(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    int i;

    (void)tid;
    (void)n_threads;
    while ((i = pool_counter_take(&j->counter)) < 1000) {
        j->taken[i]++;
    }
}

static void check(int n_threads, int n_runs, int pause_us)
{
    struct job j = {0};
    struct error e = {0};

    cr_assert_eq(pool_create(n_threads, &j.pool, &e), 0, "%s", e.text);
    cr_assert_eq(pool_n_threads(j.pool), n_threads);
    for (int i = 0; i < n_runs; i++) {
        pool_run(j.pool, count_runs, &j);
        if (pause_us) {
            (void)usleep((useconds_t)pause_us);
        }
    }
    for (int t = 0; t < n_threads; t++) {
        cr_assert_eq(j.runs[t], n_runs);
        j.runs[t] = 0;
    }
    for (int i = 0; i < 20; i++) {
        pool_run(j.pool, step_through, &j);
    }
    for (int t = 0; t < n_threads; t++) {
        cr_assert_eq(j.runs[t], 400, "a barrier let a thread through early");
    }
    pool_run(j.pool, take_all, &j);
    for (int i = 0; i < 1000; i++) {
        cr_assert_eq(j.taken[i], 1);
    }
    cr_assert_eq(j.wrong, 0);
    pool_destroy(j.pool);
}

Test(pool, every_thread_runs_every_job, .timeout = 30)
{
    for (int n = 1; n <= 4; n++) {
        check(n, 2000, 0);
    }
}

Test(pool, more_threads_than_cpus, .timeout = 30)
{
    check(MAX, 200, 0);
}

Test(pool, sleeping_threads_wake, .timeout = 30)
{
    check(3, 20, 2000);
}

Test(pool, default_size_and_refusals)
{
    struct pool *p = NULL;
    struct error e = {0};

    cr_assert_eq(pool_create(0, &p, &e), 0);
    cr_assert_eq(pool_n_threads(p), cpu_count());
    pool_destroy(p);
    pool_destroy(NULL);
    cr_assert_eq(pool_create(-1, &p, &e), -EINVAL);
    cr_assert_eq(pool_create(1 << 20, &p, NULL), -EINVAL);
    cr_assert(strstr(e.text, "threads"), "%s", e.text);
}

/* Not a limit that fails: a crowded machine decides the figure. It is printed for the reader. */
Test(pool, time_of_a_run, .timeout = 30)
{
    struct job j = {0};
    int64_t best = INT64_MAX;

    cr_assert_eq(pool_create(2, &j.pool, NULL), 0);
    for (int rep = 0; rep < 20; rep++) {
        int64_t t0 = clock_ns();

        for (int i = 0; i < 500; i++) {
            pool_run(j.pool, count_runs, &j);
        }
        int64_t ns = (clock_ns() - t0) / 500;
        best = ns < best ? ns : best;
    }
    cr_log_info("two threads: %lld ns a run\n", (long long)best);
    cr_assert_eq(j.runs[0], 10000);
    cr_assert_eq(j.runs[1], 10000);
    pool_destroy(j.pool);
}
