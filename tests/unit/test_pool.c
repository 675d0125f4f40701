/* SPDX-License-Identifier: Apache-2.0 */
/* base/pool.h: every thread runs every job once, barriers separate steps, sleeping threads wake,
 * and threads without a CPU of their own still finish. */

#include <criterion/criterion.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
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
    int pieces[MAX][200];
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

/* Shares of unequal size, the last thread's empty. */
static int32_t share_size(int share, int n_threads)
{
    return share == n_threads - 1 && n_threads > 1 ? 0 : 100 + 10 * share;
}

static void take_shares(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    int32_t n;

    for (int i = 0; i < n_threads; i++) {
        int share = (tid + i) % n_threads;

        for (int32_t at;
             (at = pool_take(j->pool, tid, share, share_size(share, n_threads), 7, &n)) >= 0;) {
            for (int32_t k = at; k < at + n; k++) {
                j->pieces[share][k]++;
            }
        }
    }
}

static void check_shares(int n_threads, int n_runs)
{
    static struct job j;
    struct error e = {0};

    memset(&j, 0, sizeof(j));
    cr_assert_eq(pool_create(n_threads, &j.pool, &e), 0, "%s", e.text);
    for (int i = 0; i < n_runs; i++) {
        pool_share(j.pool, take_shares, &j);
        if (i % 10 == 0) { /* the two kinds of jobs in turn */
            pool_run(j.pool, count_runs, &j);
        }
        if (i % 100 == 0) {
            (void)usleep(500);
        }
    }
    for (int s = 0; s < n_threads; s++) {
        for (int32_t k = 0; k < 200; k++) {
            cr_assert_eq(j.pieces[s][k], k < share_size(s, n_threads) ? n_runs : 0);
        }
        cr_assert_eq(j.runs[s], (n_runs + 9) / 10);
    }
    pool_destroy(j.pool);
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

Test(pool, every_thread_runs_every_job)
{
    for (int n = 1; n <= 4; n++) {
        check(n, 2000, 0);
    }
}

Test(pool, more_threads_than_cpus)
{
    check(MAX, 200, 0);
}

Test(pool, sleeping_threads_wake)
{
    check(3, 20, 2000);
}

Test(pool, pieces_of_shares_are_taken_once)
{
    for (int n = 1; n <= 4; n++) {
        check_shares(n, 1000);
    }
    check_shares(MAX, 100);
}

/* Three on one CPU: the caller, a worker and a stranger who never sleeps. pool_run() has to wait
 * until the worker gets its turn, pool_share() has not. */
Test(pool, a_late_thread_is_not_waited_for)
{
    struct job j = {0};
    cpu_set_t before;
    cpu_set_t one;
    int cpu = 0;
    pid_t stranger;
    int64_t ns[2];

    cr_assert_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    while (!CPU_ISSET(cpu, &before)) {
        cpu++;
    }
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    stranger = fork();
    if (stranger == 0) {
        for (;;) {
        }
    }
    cr_assert_eq(pool_create(2, &j.pool, NULL), 0);
    for (int kind = 0; kind < 2; kind++) {
        int64_t t0 = clock_ns();

        for (int i = 0; i < 40; i++) {
            (kind ? pool_share : pool_run)(j.pool, count_runs, &j);
        }
        ns[kind] = clock_ns() - t0;
    }
    pool_destroy(j.pool);
    (void)kill(stranger, SIGKILL);
    (void)waitpid(stranger, NULL, 0);
    cr_log_info("all wait %lld us, no one %lld us\n", (long long)ns[0] / 40000,
                (long long)ns[1] / 40000);
    cr_assert_lt(ns[1], ns[0]);
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
Test(pool, time_of_a_run)
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
