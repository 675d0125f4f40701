/* SPDX-License-Identifier: Apache-2.0 */
/* The thread pool under load, without the test framework: for -Db_sanitize=thread, which
 * Criterion's process model does not survive. Plain data passes through pool_run and pool_barrier
 * in every direction, with threads spinning, sleeping, and outnumbering the CPUs. */

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/pool.h"

enum { MAX = 7 };

struct job {
    struct pool *pool;
    long cell[MAX]; /* plain: the pool orders every access */
    long sum;
    long piece[MAX][50];
};

static void step(void *arg, int tid, int n_threads)
{
    struct job *j = arg;

    j->cell[tid]++;
    pool_barrier(j->pool, tid);
    if (tid == n_threads - 1) {
        for (int i = 0; i < n_threads; i++) {
            j->sum += j->cell[i];
        }
    }
    pool_barrier(j->pool, tid);
    j->cell[(tid + 1) % n_threads] += j->sum > 0;
}

/* Shares, entered by some of the threads; plain sums again. */
static void take(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    int32_t n;

    for (int i = 0; i < n_threads; i++) {
        int share = (tid + i) % n_threads;

        for (int32_t at; (at = pool_take(j->pool, tid, share, 50, 4, &n)) >= 0;) {
            for (int32_t k = at; k < at + n; k++) {
                j->piece[share][k]++;
            }
        }
    }
}

static long count_pieces(struct job *j, int n_threads)
{
    long sum = 0;

    for (int s = 0; s < n_threads; s++) {
        for (int k = 0; k < 50; k++) {
            sum += j->piece[s][k];
        }
    }
    return sum;
}

int main(void)
{
    for (int n = 1; n <= MAX; n++) {
        struct job j = {0};
        struct error e = {0};
        long want = 0;
        long all = 0;
        int runs = n < 3 ? 2000 : 300;

        if (pool_create(n, &j.pool, &e) < 0) {
            (void)fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        for (int i = 0; i < runs; i++) {
            pool_run(j.pool, step, &j);
            pool_share(j.pool, take, &j);
            if (count_pieces(&j, n) != 50L * n * (i + 1)) {
                (void)fprintf(stderr, "%d threads: pieces\n", n);
                return 1;
            }
            all += n;
            want += all;
            all += n;
            if (i % 100 == 0) {
                (void)usleep(500); /* long enough to fall asleep */
            }
        }
        pool_destroy(j.pool);
        if (j.sum != want) {
            (void)fprintf(stderr, "%d threads: %ld, not %ld\n", n, j.sum, want);
            return 1;
        }
    }
    return 0;
}
