/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_BENCH_H
#define PIPIT_KERNELS_CUDA_BENCH_H

/* What bench/kernels/ needs of the module beside the backend's operations: the device's own clock,
 * graphs, and kernels that only read or do nothing. The module exports the table by its symbol. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct backend;
struct ops_weight;

#define CUDA_BENCH_SYMBOL "pipit_cuda_bench"

enum { CUDA_BENCH_TIMES = 128 };

/* What launches of one kernel and grid took, all together; of CUDA_BENCH_TIMES at most. */
struct cuda_bench_time {
    const char *kernel; /* its name, the module's */
    uint32_t grid[3];   /* of cublasLt: rows and columns of the weight */
    int64_t launches;
    double ns;
};

struct cuda_bench {
    uint64_t bytes; /* sizeof(struct cuda_bench) of the module's build */
    int (*open)(struct backend *be);
    void (*close)(struct backend *be);
    /* Launches from here to the next mark or end go as one graph, from the second time on that the
     * same list comes. */
    int (*begin)(struct backend *be);
    int (*end)(struct backend *be);
    /* Notes the device's time behind all that was launched; `which` is 0 or 1. */
    int (*mark)(struct backend *be, int which);
    /* Waits for mark 1; ns since mark 0. */
    int (*elapsed)(struct backend *be, double *ret_ns);
    /* A kernel that reads `bytes` (a multiple of 16) and writes nothing. */
    int (*read)(struct backend *be, const void *from, uint64_t bytes);
    /* A kernel of one block that does nothing with `value`; early: it begins before the one ahead
     * has ended, where the device can. */
    int (*nothing)(struct backend *be, int32_t value, bool early);
    /* All of a quantised weight to `to`, as bf16: what prompts' products by cublasLt begin with. */
    int (*unpack)(struct backend *be, const struct ops_weight *w, void *to);
    /* Quantised weights by so many decode rows and more go by gemm_q_few.cu, by fewer by
     * gemm_q_stream.cu; returns what it was. One row: neither. */
    int32_t (*few_from)(struct backend *be, int32_t rows);
    /* From here on each launch of all backends of this process is timed by itself; times.cu says
     * how. What was there is forgotten. */
    void (*times_begin)(void);
    /* No longer; and how many steps began meanwhile. Waits. */
    int (*times_end)(int64_t *ret_steps);
    /* The i-th kernel's; -ENOENT: there are no more. "an event alone": what is in every launch's
     * time. */
    int (*times_read)(int i, struct cuda_bench_time *ret);
};

#endif
