/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUBLAS_CUH
#define PIPIT_KERNELS_CUDA_CUBLAS_CUH

/* Products of prefill rows by cublasLt, where it can be had (cublas.cu); of quantised weights as
 * bf16 (cublas_products.cu). */

#include "kernels/cuda/gemm.cuh"

/* Rows of one product, at most; sums that are finished by a kernel of our own lie in scratch. And
 * quantised weights that are unpacked at a time, at most: 128 MiB of bf16. */
enum { CUDA_LT_ROWS = 2048, CUDA_LT_SLAB = 64 << 20 };

/* Opens the library for the device that `cu` has open; sets cu->lt, or leaves it NULL with the
 * cause in the description. Fails only where `prefill` asks for it and it cannot be had. */
int cuda_lt_create(struct cuda *cu, enum backend_prefill prefill, struct error *reterr);
void cuda_lt_destroy(struct cuda *cu);
/* What a backend of this configuration has it multiply, for which it takes scratch: as the backend
 * that was created last. */
struct cuda_lt_use cuda_lt_planned(const struct backend_config *config);
/* The same of this one. */
struct cuda_lt_use cuda_lt_held(const struct cuda *cu);
/* Scratch has moved, limits have changed: the weights to come are asked for again, unless their
 * shapes were tried with limits as large. */
void cuda_lt_limits(struct cuda *cu);
/* backend_ops.weights_try: algorithms of all shapes are chosen, by weights of random numbers in
 * memory that is given back, so that their kernels are on the device before a plan asks what is
 * free (cublas_try.cu). */
int cuda_lt_weights_try(struct backend *be, const struct backend_limits *limits,
                        const struct ops_weight_desc *const *list, int32_t n,
                        struct error *reterr);
/* A weight's values are there: which algorithm serves its shape, if any, where that is not known
 * yet. Fails with the device. */
int cuda_lt_weight(struct cuda *cu, const struct ops_weight *w);
/* "prefill ...", for the description. */
void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size);

/* Does it multiply prefill rows by this weight? Never, or always: rows do not decide. */
bool cuda_lt_takes(const struct cuda *cu, const struct ops_weight *w);
/* The same, by activations in bf16. */
bool cuda_lt_reads(const struct cuda *cu, const struct ops_weight *w);
/* Prefill tokens [p->token0, p->token_end) of the parts' weights, by activations in 16 bits: f16 or
 * bf16 ones, of one type, by cublasLt where it takes them, the others by cuda_gemm_half_tiles;
 * quantised ones only where it takes all of them, activations in bf16. */
int cuda_lt_products(struct cuda *cu, struct gemm *p, const struct ops_weight *const *weights);

#endif
