/* SPDX-License-Identifier: Apache-2.0 */
/* How a piece of work is timed: whole, as the daemon launches it, or kernel by kernel.
 *
 * Whole: rounds of pieces as graphs between two marks of the device's clock; a sample is so many
 * rounds that it takes 10 ms, and the median of seven counts. Kernel by kernel: an event behind
 * each launch (kernels/cuda/times.cu), the mean of some rounds. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/kernels/kbench.h"

enum {
    SAMPLES = 7,
    LEAST_NS = 10 * 1000 * 1000,
    MOST_ROUNDS = 256,
    KERNEL_ROUNDS = 4,
    MOST_KERNELS = 16,
    NAME = 48
};

static int one_round(struct kbench *k, kbench_round *round, void *arg, int n)
{
    int r = k->clock->begin(k->be);

    r = r ? r : round(k, arg, n);
    return r ? r : k->clock->end(k->be);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int sample(struct kbench *k, kbench_round *round, void *arg, int n, int n_rounds,
                  double *ret_ns)
{
    int r = k->clock->mark(k->be, 0);

    for (int i = 0; i < n_rounds && !r; i++) {
        r = one_round(k, round, arg, n);
    }
    r = r ? r : k->clock->mark(k->be, 1);
    return r ? r : k->clock->elapsed(k->be, ret_ns);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return x < y ? -1 : x > y;
}

int kbench_time(struct kbench *k, kbench_round *round, void *arg, int n, double *ret_ns,
                struct error *reterr)
{
    double ns[SAMPLES];
    int n_samples = k->small ? 1 : SAMPLES;
    int n_rounds = 1;
    int r = 0;

    for (int i = k->small; i < 3 && !r; i++) { /* the graph is made at the second */
        r = one_round(k, round, arg, n);
    }
    if (!r && !k->small) {
        r = sample(k, round, arg, n, 1, &ns[0]);
        double want = LEAST_NS / (ns[0] > 1000 ? ns[0] : 1000);

        n_rounds = want < 2 ? 2 : want > MOST_ROUNDS ? MOST_ROUNDS : (int)want;
    }
    for (int i = 0; i < n_samples && !r; i++) {
        r = sample(k, round, arg, n, n_rounds, &ns[i]);
    }
    if (r) {
        return error_set_errno(reterr, r, "a timed kernel");
    }
    qsort(ns, (size_t)n_samples, sizeof(ns[0]), compare);
    *ret_ns = ns[n_samples / 2] / n_rounds / n;
    return 0;
}

/* ---- kernel by kernel ------------------------------------------------------------------------ */

struct alone {
    char name[NAME];
    double ns;
    int64_t launches;
};

/* "(experts_q<F, 4>)", as the launch names it, is experts_q. */
static void plain_name(const char *from, char to[NAME])
{
    from += *from == '(';
    (void)snprintf(to, NAME, "%.*s", (int)strcspn(from, "<)"), from);
}

/* The sums of all grids and template arguments of a kernel. */
static int sum_up(struct kbench *k, struct alone *sums)
{
    struct cuda_bench_time t;
    int n = 0;

    for (int i = 0; !k->clock->times_read(i, &t); i++) {
        char name[NAME];
        int at = 0;

        plain_name(t.kernel, name);
        while (at < n && strcmp(sums[at].name, name) != 0) {
            at++;
        }
        if (at == n && n < MOST_KERNELS) {
            memcpy(sums[n++].name, name, NAME);
        }
        if (at < n) {
            sums[at].ns += t.ns;
            sums[at].launches += t.launches;
        }
    }
    return n;
}

int kbench_kernels(struct kbench *k, kbench_round *round, void *arg, int n, const char *name,
                   const struct kbench_kernel *known, struct error *reterr)
{
    struct alone sums[MOST_KERNELS] = {0};
    int n_rounds = k->small ? 1 : KERNEL_ROUNDS;
    int64_t steps;
    int n_sums;
    int ended;
    int r = 0;

    k->clock->times_begin();
    for (int i = 0; i < n_rounds && !r; i++) {
        r = one_round(k, round, arg, n);
    }
    ended = k->clock->times_end(&steps);
    r = r ? r : ended;
    if (r) {
        return error_set_errno(reterr, r, "kernels timed alone");
    }
    n_sums = sum_up(k, sums);
    for (int i = 0; i < n_sums; i++) {
        bool event = strchr(sums[i].name, ' ') != NULL;
        double ns = sums[i].ns / (event ? (double)sums[i].launches : (double)n_rounds * n);
        const struct kbench_kernel *of = known;
        char line[160];

        while (of && of->kernel && strcmp(of->kernel, sums[i].name) != 0) {
            of++;
        }
        (void)snprintf(line, sizeof(line), "%.100s: %.*s", name, NAME - 1, sums[i].name);
        if (!event || !known) {
            kbench_print(k, line, ns, of && of->kernel ? of->bytes : 0, 0);
        }
    }
    return 0;
}
