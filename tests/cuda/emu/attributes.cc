/* SPDX-License-Identifier: Apache-2.0 */
/* What a driver keeps of a kernel: whether its code is loaded, and how much dynamic shared memory a
 * launch may have. The limit takes effect at once, also for launches that were written down before:
 * launch.cc asks for it as a kernel runs. And what it says of itself. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>

enum { MAX_KERNELS = 512, SHARED_UNASKED = 48 << 10 };

struct attributes {
    const void *kernel;
    size_t shared;
};

static struct attributes all[MAX_KERNELS];
static int n_all;

static struct attributes *find(const void *kernel)
{
    for (int i = 0; i < n_all; i++) {
        if (all[i].kernel == kernel) {
            return &all[i];
        }
    }
    return NULL;
}

size_t emu_shared_allowed(const void *kernel)
{
    const struct attributes *a = find(kernel);

    return a ? a->shared : 0;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *kernel)
{
    cudaError_t e = emu_fails();

    memset(ret, 0, sizeof(*ret));
    if (e == cudaSuccess && !find(kernel)) {
        if (n_all == MAX_KERNELS) {
            fprintf(stderr, "emu: more kernels than the emulator keeps\n");
            abort();
        }
        all[n_all++] = {kernel, SHARED_UNASKED};
    }
    return e;
}

cudaError_t emu_func_shared(const void *kernel, size_t bytes)
{
    cudaError_t e = emu_fails();
    struct attributes *a = find(kernel);

    if (e != cudaSuccess || bytes > emu_shared_most() || !a) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    a->shared = bytes > (size_t)SHARED_UNASKED ? bytes : (size_t)SHARED_UNASKED;
    return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned)
{
    return emu_fails();
}

cudaError_t cudaSetDevice(int)
{
    return emu_fails();
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = 13000;
    return emu_fails();
}

cudaError_t cudaRuntimeGetVersion(int *ret)
{
    *ret = 13000;
    return emu_fails();
}
