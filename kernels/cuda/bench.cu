/* SPDX-License-Identifier: Apache-2.0 */
/* The module's part of bench/kernels/ (bench.h). Events time what lies between them on the stream,
 * so the host's launches do not count as long as the device does not wait for them.
 *
 *   bench_read      256 threads, 4 blocks a multiprocessor, four 16-byte loads a thread under way;
 *                   the sum decides whether a word is written, which never happens
 *   bench_empty     one block of 32 threads: what a launch costs in a chain
 *   bench_early     the same, begun early */

#include <cerrno>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/times.cuh"

extern "C" {
#include "kernels/cuda/bench.h"
}

enum { READ_THREADS = 256, READ_BLOCKS = 4, READ_LOADS = 4 };

static cudaEvent_t marks[2];

CUDA_KERNEL void __launch_bounds__(READ_THREADS)
    bench_read(const uint4 *from, uint64_t n, uint32_t *never)
{
    uint64_t stride = (uint64_t)gridDim.x * READ_THREADS;
    uint64_t i = (uint64_t)blockIdx.x * READ_THREADS + threadIdx.x;
    uint32_t sum = 0;

    for (; i + (READ_LOADS - 1) * stride < n; i += READ_LOADS * stride) {
        uint4 v[READ_LOADS];

#pragma unroll
        for (int k = 0; k < READ_LOADS; k++) {
            v[k] = from[i + (uint64_t)k * stride];
        }
#pragma unroll
        for (int k = 0; k < READ_LOADS; k++) {
            sum |= v[k].x | v[k].y | v[k].z | v[k].w;
        }
    }
    for (; i < n; i += stride) {
        sum |= from[i].x | from[i].y | from[i].z | from[i].w;
    }
    if (sum == 0x13579bdf && never) {
        *never = sum;
    }
}

CUDA_KERNEL void bench_empty(int32_t value, int32_t *never)
{
    if (never) {
        *never = value;
    }
}

CUDA_KERNEL void bench_early(int32_t value, int32_t *never)
{
    grid_begin();
    grid_wait();
    if (never) {
        *never = value;
    }
}

static void close(struct backend *be)
{
    (void)cuda_queue_flush(cuda_of(be));
    for (cudaEvent_t &m : marks) {
        if (m) {
            (void)cudaEventDestroy(m);
        }
        m = NULL;
    }
}

static int open(struct backend *be)
{
    int r = 0;

    for (cudaEvent_t &m : marks) {
        r = r < 0 ? r : cuda_err(cuda_of(be), cudaEventCreateWithFlags(&m, 0), "cudaEventCreate");
    }
    if (r < 0) {
        close(be);
    }
    return r;
}

static int begin(struct backend *be)
{
    int r = cuda_queue_flush(cuda_of(be));

    cuda_queue_begin(cuda_of(be));
    return r;
}

static int end(struct backend *be)
{
    return cuda_queue_flush(cuda_of(be));
}

static int mark(struct backend *be, int which)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_flush(cu);

    return r < 0 ? r : cuda_err(cu, cudaEventRecord(marks[which], cu->stream), "cudaEventRecord");
}

static int elapsed(struct backend *be, double *ret_ns)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_err(cu, cudaEventSynchronize(marks[1]), "cudaEventSynchronize");
    float ms = 0;

    if (r == 0) {
        r = cuda_err(cu, cudaEventElapsedTime(&ms, marks[0], marks[1]), "cudaEventElapsedTime");
        *ret_ns = (double)ms * 1e6;
    }
    return r;
}

static int read(struct backend *be, const void *from, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);

    CUDA_LAUNCH(cu, dim3((unsigned)(cu->n_sms * READ_BLOCKS)), dim3(READ_THREADS), 0, bench_read,
                static_cast<const uint4 *>(from), bytes / sizeof(uint4),
                static_cast<uint32_t *>(NULL));
    return cuda_launched(cu, "bench_read");
}

static int nothing(struct backend *be, int32_t value, bool early)
{
    struct cuda *cu = cuda_of(be);

    if (early) {
        CUDA_LAUNCH_EARLY(cu, dim3(1), dim3(WARP), 0, bench_early, value,
                          static_cast<int32_t *>(NULL));
    } else {
        CUDA_LAUNCH(cu, dim3(1), dim3(WARP), 0, bench_empty, value, static_cast<int32_t *>(NULL));
    }
    return cuda_launched(cu, "bench_empty");
}

static int unpack(struct backend *be, const struct ops_weight *w, void *to)
{
    return cuda_unpack(cuda_of(be), w->type, static_cast<const uint8_t *>(w->device), 0, w->n_rows,
                       w->n_cols, static_cast<uint16_t *>(to), w->n_cols);
}

static int32_t few_from(struct backend *be, int32_t rows)
{
    struct cuda *cu = cuda_of(be);
    int32_t before = cu->few_from;

    cu->few_from = rows;
    return before;
}

extern "C" __attribute__((visibility("default"))) const struct cuda_bench pipit_cuda_bench;
const struct cuda_bench pipit_cuda_bench = {
    .bytes = sizeof(struct cuda_bench),
    .open = open,
    .close = close,
    .begin = begin,
    .end = end,
    .mark = mark,
    .elapsed = elapsed,
    .read = read,
    .nothing = nothing,
    .unpack = unpack,
    .few_from = few_from,
    .times_begin = cuda_times_begin,
    .times_end = cuda_times_end,
    .times_read = cuda_times_read,
};
