/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_BACKEND_CUH
#define PIPIT_KERNELS_CUDA_BACKEND_CUH

/* The backend beside its operations: the device, its memory, scratch. Which call waits and which
 * does not is kernels/backend.h's to say. */

#include "kernels/cuda/cuda.cuh"

extern const struct backend_ops cuda_backend; /* backend.cu */

static inline uint64_t cuda_round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- the device (device.cu) ------------------------------------------------------------------ */

/* Is there a device that this module can use? Nothing is left behind. */
int cuda_probe(struct error *reterr);
int cuda_create(const struct backend_config *config, struct backend **ret, struct error *reterr);
void cuda_destroy(struct backend *be);

/* ---- memory (memory.cu) ---------------------------------------------------------------------- */

int cuda_alloc(struct backend *be, uint64_t bytes, const char *what, void **ret,
               struct error *reterr);
void cuda_free(struct backend *be, void *device, uint64_t bytes);
int cuda_alloc_mapped(struct backend *be, uint64_t bytes, const char *what, void **ret,
                      struct error *reterr);
void cuda_free_mapped(struct backend *be, void *device, uint64_t bytes);
int cuda_free_bytes(struct backend *be, uint64_t *ret);
int cuda_sync(struct backend *be);
int cuda_write(struct backend *be, void *device, const void *host, uint64_t bytes);
int cuda_read(struct backend *be, void *host, const void *device, uint64_t bytes);
int cuda_fetch(struct backend *be, int place, const void *device, uint64_t bytes);
int cuda_fetched(struct backend *be, int place, void *host, uint64_t bytes);
int cuda_copy(struct backend *be, void *device, const void *from_device, uint64_t bytes);
int cuda_zero(struct backend *be, void *device, uint64_t bytes);

/* ---- scratch (scratch.cu) -------------------------------------------------------------------- */

/* All bytes that a backend takes beside weights, cache and activations. */
uint64_t cuda_scratch_bytes(const struct backend_config *config,
                            const struct backend_limits *limits);
int cuda_reserve(struct backend *be, const struct backend_limits *limits, struct error *reterr);

#endif
