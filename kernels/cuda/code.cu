/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of the module are loaded when the backend is opened.
 *
 * With CUDA_MODULE_LOADING=LAZY a kernel's code takes device memory when the kernel is first used.
 * After the start that memory would be in no plan, so each kernel is asked for its attributes here,
 * which loads it. EAGER would load them too, but governs every library of the process: cublasLt has
 * hundreds of megabytes of kernels, of which a model needs a handful.
 *
 * The limit of dynamic shared memory is a property of the kernel, not of a launch, and takes effect
 * at once, while launches wait in the queue (queue.cu). So kernels that may need more than a block
 * has unasked get all that the device has, once, here.
 *
 * Kernels are listed by CUDA_LAUNCH itself: each use of one instantiates cuda_code_of<kernel>,
 * whose entry joins the list as the module is opened. None can be launched and be missing from it.
 */

#include <cerrno>

#include "kernels/cuda/cuda.cuh"

enum { SHARED_UNASKED = 48 << 10 };

static struct cuda_code *first;

int cuda_code_add(struct cuda_code *c)
{
    c->next = first;
    first = c;
    return 1;
}

static int load(struct cuda *cu, const struct cuda_code *c, struct error *reterr)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, c->kernel);

    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorInvalidDeviceFunction ||
        e == cudaErrorUnsupportedPtxVersion) {
        (void)cudaGetLastError();
        return error_set(reterr, -ENODEV,
                         "this build has code for sm_%s, the CUDA device is %s: %s", CUDA_ARCHS,
                         cu->device_name, cudaGetErrorString(e));
    }
    if (e != cudaSuccess || !c->large || cu->shared_max <= SHARED_UNASKED) {
        return cuda_error(cu, e, "cudaFuncGetAttributes", reterr);
    }
    return cuda_error(cu,
                      cudaFuncSetAttribute(c->kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           (int)(cu->shared_max - a.sharedSizeBytes)),
                      "cudaFuncSetAttribute", reterr);
}

int cuda_code_load(struct cuda *cu, struct error *reterr)
{
    int r = 0;

    for (const struct cuda_code *c = first; c && r == 0; c = c->next) {
        r = load(cu, c, reterr);
    }
    return r;
}
