/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_TIMES_CUH
#define PIPIT_KERNELS_CUDA_TIMES_CUH

/* What each kernel takes (times.cu). */

#include "kernels/cuda/cuda.cuh"

/* Are kernels timed? Then they go one by one, none beside another. */
bool cuda_times_on(void);

/* Makes the device wait until the host has launched some `n` kernels behind it. */
int cuda_times_hold(struct cuda *cu, int32_t n);

/* A step begins. */
void cuda_times_step(void);

/* Ahead of a launch, and behind it. `name` lives as long as the module; NULL: what ran is counted
 * for nobody. */
int cuda_times_ready(struct cuda *cu);
int cuda_times_note(struct cuda *cu, const char *name, dim3 grid);

/* Of struct cuda_bench (bench.h). */
struct cuda_bench_time;
void cuda_times_begin(void);
int cuda_times_end(int64_t *ret_steps);
int cuda_times_read(int i, struct cuda_bench_time *ret);

#endif
