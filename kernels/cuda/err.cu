/* SPDX-License-Identifier: Apache-2.0 */
/* Where CUDA's errors become errno. A sticky error (the context is lost) is -ENODEV; the engine
 * process then ends with the recorded call as its cause, and the front reloads and replays. */

#include "kernels/cuda/cuda.h"

#include <errno.h>
#include <stdio.h>

#include <cublas_v2.h>

static int errno_of(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return 0;
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
    case cudaErrorLaunchOutOfResources:
        return -EINVAL;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorSystemDriverMismatch:
        return -ENODEV;
    default:
        return -ENODEV; /* illegal address, ECC, launch failure, device lost: the context is gone */
    }
}

int cuda_check(struct cuda_backend *b, cudaError_t e, const char *what)
{
    int err = errno_of(e);

    if (err && b && !b->err) {
        b->err = err;
        (void)snprintf(b->err_text, sizeof(b->err_text), "%s: %s (%s)", what, cudaGetErrorString(e),
                       cudaGetErrorName(e));
    }
    return err;
}

int cuda_check_blas(struct cuda_backend *b, int status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    int err = status == CUBLAS_STATUS_ALLOC_FAILED ? -ENOMEM : -ENODEV;

    if (b && !b->err) {
        b->err = err;
        (void)snprintf(b->err_text, sizeof(b->err_text), "%s: cuBLAS status %d", what, status);
    }
    return err;
}

int cuda_launched(struct cuda_backend *b, const char *kernel)
{
    return cuda_check(b, cudaGetLastError(), kernel);
}
