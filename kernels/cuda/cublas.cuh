/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUBLAS_CUH
#define PIPIT_KERNELS_CUDA_CUBLAS_CUH

/* Products of prefill rows and 16-bit weights by cublasLt, where it can be had (cublas.cu). */

#include "kernels/cuda/gemm.cuh"

/* Rows of one product, at most; sums that are finished by a kernel of our own lie in scratch. */
enum { CUDA_LT_ROWS = 2048 };

/* Opens the library for the device that `cu` has open; sets cu->lt, or leaves it NULL with the
 * cause in the description. Fails only where `prefill` asks for it and it cannot be had. */
int cuda_lt_create(struct cuda *cu, enum backend_prefill prefill, struct error *reterr);
void cuda_lt_destroy(struct cuda *cu);
/* Bytes of workspace that a backend of this configuration takes of scratch; 0: own tiles. As the
 * backend that was created last has it. */
uint64_t cuda_lt_workspace(const struct backend_config *config);
/* The same of this one. */
uint64_t cuda_lt_held(const struct cuda *cu);
/* Scratch has moved, limits have changed: the weights to come are asked for again. */
void cuda_lt_limits(struct cuda *cu);
/* A weight's values are there: which algorithm serves its shape, if any. Fails with the device. */
int cuda_lt_weight(struct cuda *cu, const struct ops_weight *w);
/* "prefill ...", for the description. */
void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size);

/* Prefill tokens [p->token0, p->token_end) of weights of one type: by cublasLt those whose shape it
 * serves, the others by cuda_gemm_half_tiles. */
int cuda_lt_products(struct cuda *cu, struct gemm *p, bool bf16);

#endif
