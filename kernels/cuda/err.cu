/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where errors of the CUDA run-time library become errno.
 *
 * Sticky errors (a kernel that faulted, a device that fell off the bus) leave the process's context
 * unusable: the backend is marked lost with the call and the cause, every later operation answers
 * -ENODEV, and the engine process ends so that its parent can start another. Any other is news with
 * the call, but for a want of memory, which the requests that it ends tell: what fails a step has a
 * name. Who goes on without the call may say more. */

#include <cerrno>
#include <cstdio>

#include "kernels/cuda/cuda.cuh"

static bool is_sticky(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorECCUncorrectable:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

static int errno_of(cudaError_t e)
{
    switch (e) {
    case cudaSuccess:
        return 0;
    case cudaErrorMemoryAllocation:
        return -ENOMEM;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidConfiguration:
        return -EINVAL;
    case cudaErrorNotSupported: /* -ENOTSUP is an operation that is not offered: another is taken */
        return -EIO;
    default:
        return -ENODEV; /* no device, no driver, no code for it, or lost */
    }
}

int cuda_err(struct cuda *cu, cudaError_t e, const char *call)
{
    if (e == cudaSuccess) {
        return cu && cu->lost ? -ENODEV : 0;
    }
    (void)cudaGetLastError(); /* not to be reported a second time by the next launch */
    if (cu && is_sticky(e) && !cu->lost) {
        cu->lost = true;
        (void)snprintf(cu->cause, sizeof(cu->cause), "%s: %s", call, cudaGetErrorString(e));
        (void)snprintf(cu->news, sizeof(cu->news), "the CUDA device (%.60s) is lost: %.150s",
                       cu->device_name, cu->cause);
    }
    if (cu && !cu->lost && e != cudaErrorMemoryAllocation) {
        (void)snprintf(cu->news, sizeof(cu->news), "CUDA %.80s: %.120s", call,
                       cudaGetErrorString(e));
    }
    return is_sticky(e) ? -ENODEV : errno_of(e);
}

int cuda_error(struct cuda *cu, cudaError_t e, const char *call, struct error *reterr)
{
    int r = cuda_err(cu, e, call);

    if (r == 0) {
        return 0;
    }
    if (e == cudaSuccess) {
        return error_set(reterr, r, "CUDA device lost earlier: %s", cu->cause);
    }
    return error_set(reterr, r, "CUDA %s: %s", call, cudaGetErrorString(e));
}

int cuda_launched(struct cuda *cu, const char *kernel)
{
    int r = cuda_queue_error(cu);

    return r < 0 ? r : cuda_err(cu, cudaSuccess, kernel);
}
