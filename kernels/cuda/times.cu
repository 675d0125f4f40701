/* SPDX-License-Identifier: Apache-2.0 */
/* What each kernel takes, where pipit-bench --kernels asks for it.
 *
 * An event stands behind each launch, and a kernel's time is what lies between it and the one
 * before. The host launches more slowly than small kernels run, so the device first waits in a
 * kernel that does nothing (times_hold). Steps are no graphs then, and no kernel begins early, so
 * the sum is more than a step takes. Copies and what cublasLt starts beside its product count for
 * the kernel behind them.
 *
 * times_hold: one thread, a chain of additions, each of which waits for the one before: some 4
 * clocks. */

#include "kernels/cuda/times.cuh"

#include <cerrno>
#include <cstring>

extern "C" {
#include "kernels/cuda/bench.h"
}

enum {
    EVENTS = 4096,
    ALONE = 8,        /* events with nothing between them, for each hold */
    HOLD_ADDS = 8192, /* for each kernel to come: some 18 us */
    HOLD_MOST = 2048, /* kernels */
};

static const char *const nothing = "an event alone";

static struct {
    bool on;
    struct cuda *cu; /* NULL: nothing ran yet */
    int64_t steps;
    cudaEvent_t event[EVENTS];
    struct {
        const char *name; /* of what ran before it; NULL: nobody asks */
        dim3 grid;
    } of[EVENTS];
    int n;
    struct cuda_bench_time sum[CUDA_BENCH_TIMES];
    int n_sums;
} times;

CUDA_KERNEL void times_hold(int32_t n, float *never)
{
    float x = 0;

#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        x = __fadd_rn(x, 1.0f);
    }
    if (never) {
        *never = x;
    }
}

bool cuda_times_on(void)
{
    return times.on;
}

void cuda_times_step(void)
{
    times.steps += times.on;
}

/* Products of other shapes are told apart by their grids. NULL: there are too many. */
static struct cuda_bench_time *sum_of(const char *name, dim3 grid)
{
    for (int i = 0; i < times.n_sums; i++) {
        struct cuda_bench_time *t = &times.sum[i];

        if (strcmp(t->kernel, name) == 0 && t->grid[0] == grid.x && t->grid[1] == grid.y &&
            t->grid[2] == grid.z) {
            return t;
        }
    }
    if (times.n_sums == CUDA_BENCH_TIMES) {
        return NULL;
    }
    times.sum[times.n_sums] = {name, {grid.x, grid.y, grid.z}, 0, 0};
    return &times.sum[times.n_sums++];
}

/* Waits for all events and adds up what lies between them. */
static int collect(struct cuda *cu)
{
    int n = times.n;
    int r = n > 0 ? cuda_err(cu, cudaEventSynchronize(times.event[n - 1]), "cudaEventSynchronize")
                  : 0;

    times.n = 0;
    for (int i = 1; i < n && r == 0; i++) {
        struct cuda_bench_time *sum =
            times.of[i].name ? sum_of(times.of[i].name, times.of[i].grid) : NULL;
        float ms = 0;

        r = cuda_err(cu, cudaEventElapsedTime(&ms, times.event[i - 1], times.event[i]),
                     "cudaEventElapsedTime");
        if (sum) {
            sum->launches++;
            sum->ns += (double)ms * 1e6;
        }
    }
    return r;
}

int cuda_times_note(struct cuda *cu, const char *name, dim3 grid)
{
    cudaEvent_t *e = &times.event[times.n];
    int r = 0;

    times.cu = cu;
    if (!*e) {
        r = cuda_err(cu, cudaEventCreateWithFlags(e, 0), "cudaEventCreate");
    }
    r = r < 0 ? r : cuda_err(cu, cudaEventRecord(*e, cu->stream), "cudaEventRecord");
    times.of[times.n] = {name, grid};
    times.n += r == 0;
    return r;
}

int cuda_times_ready(struct cuda *cu)
{
    int r = times.n == EVENTS ? collect(cu) : 0;

    return r < 0 || times.n > 0 ? r : cuda_times_note(cu, NULL, dim3());
}

int cuda_times_hold(struct cuda *cu, int32_t n)
{
    int32_t adds = (n < HOLD_MOST ? n : HOLD_MOST) * HOLD_ADDS;
    float *never = NULL;
    void *args[] = {&adds, &never};
    int r = collect(cu);

    /* CUDA_LAUNCH would write it down behind what it is to run ahead of, and time it. */
    (void)&cuda_code_of<times_hold, false>::known;
    CUDA_KNOWN(times_hold);
    r = r < 0 ? r
              : cuda_err(cu,
                         cudaLaunchKernel(reinterpret_cast<const void *>(times_hold), dim3(1),
                                          dim3(1), args, 0, cu->stream),
                         "times_hold");
    r = r < 0 ? r : cuda_times_note(cu, NULL, dim3());
    for (int i = 0; i < ALONE && r == 0; i++) {
        r = cuda_times_note(cu, nothing, dim3());
    }
    return r;
}

/* ---- for pipit-bench ------------------------------------------------------------------------ */

void cuda_times_begin(void)
{
    times.on = true;
    times.cu = NULL;
    times.n = times.n_sums = 0;
    times.steps = 0;
}

int cuda_times_end(int64_t *ret_steps)
{
    int r = times.cu ? cuda_queue_flush(times.cu) : 0;

    r = r < 0 || !times.cu ? r : collect(times.cu);
    for (cudaEvent_t &e : times.event) {
        if (e) {
            (void)cudaEventDestroy(e);
        }
        e = NULL;
    }
    times.on = false;
    *ret_steps = times.steps;
    return r;
}

int cuda_times_read(int i, struct cuda_bench_time *ret)
{
    if (i < 0 || i >= times.n_sums) {
        return -ENOENT;
    }
    *ret = times.sum[i];
    return 0;
}
