/* SPDX-License-Identifier: Apache-2.0 */
/* What each kernel of a step takes, by the device's own clock (kernels/cuda/times.cu), as CSV: the
 * heaviest first, and an event alone, which is in each launch's time. Kernels run one by one for
 * it, none beside another, so their sum is more than a step. */

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/speed/bench.h"
#include "kernels/cuda/bench.h"
#include "kernels/module.h"

struct kernels {
    const struct cuda_bench *clock;
    FILE *out;
    struct cuda_bench_time time[CUDA_BENCH_TIMES];
};

int kernels_create(const char *path, struct kernels **ret, struct error *reterr)
{
    const struct cuda_bench *clock = module_symbol(CUDA_BENCH_SYMBOL);
    struct kernels *k;

    *ret = NULL;
    if (!clock || clock->bytes != sizeof(*clock)) {
        return error_set(reterr, -ENOTSUP,
                         "--kernels: only the backend cuda of this build times "
                         "its kernels");
    }
    k = calloc(1, sizeof(*k));
    if (!k) {
        return error_set(reterr, -ENOMEM, "no memory for the times of kernels");
    }
    k->clock = clock;
    k->out = fopen(path, "we");
    if (!k->out) {
        int r = error_set_errno(reterr, -errno, "cannot write %s", path);

        free(k);
        return r;
    }
    (void)fprintf(k->out,
                  "model,kv,what,tokens,batch,kernel,grid,steps,launches,us_a_launch,us_a_step\n");
    *ret = k;
    return 0;
}

int kernels_finish(struct kernels *k, struct error *reterr)
{
    int bad;

    if (!k) {
        return 0;
    }
    bad = ferror(k->out);
    bad = fclose(k->out) || bad;
    free(k);
    return bad ? error_set(reterr, -EIO, "the times of kernels could not be written") : 0;
}

void kernels_begin(struct kernels *k)
{
    k->clock->times_begin();
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct cuda_bench_time *)a)->ns;
    double y = ((const struct cuda_bench_time *)b)->ns;

    return (x < y) - (x > y);
}

int kernels_end(struct kernels *k, const char *label, struct error *reterr)
{
    int64_t steps = 0;
    int n = 0;
    int r = k->clock->times_end(&steps);

    if (r < 0) {
        return error_set_errno(reterr, r, "the times of kernels");
    }
    while (n < CUDA_BENCH_TIMES && k->clock->times_read(n, &k->time[n]) == 0) {
        n++;
    }
    qsort(k->time, (size_t)n, sizeof(k->time[0]), by_time);
    for (int i = 0; i < n; i++) {
        const struct cuda_bench_time *t = &k->time[i];
        int bare = t->kernel[0] == '('; /* as the launch's macro was given it */

        (void)fprintf(k->out, "%s,\"%.*s\",%ux%ux%u,%" PRId64 ",%" PRId64 ",%.2f,%.2f\n", label,
                      (int)strlen(t->kernel) - 2 * bare, t->kernel + bare, t->grid[0], t->grid[1],
                      t->grid[2], steps, t->launches, t->ns / (double)t->launches / 1e3,
                      t->ns / (double)(steps > 0 ? steps : 1) / 1e3);
    }
    return 0;
}
