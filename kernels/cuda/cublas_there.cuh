/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUBLAS_THERE_CUH
#define PIPIT_KERNELS_CUDA_CUBLAS_THERE_CUH

/* Preprocessed at configuration time: has the toolkit cublasLt's header? */

#include <cublasLt.h>

#endif
