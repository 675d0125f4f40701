/* SPDX-License-Identifier: Apache-2.0 */
/* The device: is there one that this module has code for, and one backend on it from its streams,
 * events and pinned memory to their end.
 *
 * cuda_probe() leaves nothing behind and says why there is no device. A backend is one `struct
 * cuda`, from calloc: what is not there yet is NULL, so cuda_destroy() takes one that is half
 * built. Scratch and weights come later (scratch.cu, weight.cu). */

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/backend.cuh"
#include "kernels/cuda/cublas.cuh"

/* ---- is there one? -------------------------------------------------------------------------- */

/* A device on one chip with its host (Orin, Thor) takes no binary made for another kind, nor does a
 * card take its. */
static bool is_tegra(int major, int minor)
{
    int sm = major * 10 + minor;

    return sm == 87 || sm == 88 || sm == 101 || sm == 110;
}

/* Is there code for a device of this kind? Its own; for a card, of the same major number, also what
 * was compiled for a card of a lower minor one; what is newer than all takes PTX. */
static bool has_code(int major, int minor)
{
    char *end;
    long newest = 0;

    for (const char *s = CUDA_ARCHS; *s; s = *end ? end + 1 : end) {
        newest = strtol(s, &end, 10);
        if (newest == major * 10 + minor ||
            (newest / 10 == major && newest % 10 < minor && !is_tegra(major, minor) &&
             !is_tegra((int)(newest / 10), (int)(newest % 10)))) {
            return true;
        }
    }
    return major * 10 + minor >= newest;
}

/* The first call of the run-time library in the process: the driver reads then how code is to be
 * loaded. LAZY: own kernels are loaded by cuda_code_load(), those of cublasLt as they are used. Who
 * has set the variable, knows why: that changes nothing then. pipit-engine has, before it had
 * threads; only another program is changed here. */
int cuda_probe(struct error *reterr)
{
    int n = 0;
    int driver = 0;
    int runtime = 0;
    bool lazy = setenv("CUDA_MODULE_LOADING", "LAZY", 0) == 0;
    cudaError_t e = lazy ? cudaGetDeviceCount(&n) : cudaErrorMemoryAllocation;

    if (e == cudaSuccess && n > 0) {
        cudaDeviceProp prop;

        e = cudaGetDeviceProperties(&prop, 0);
        if (e == cudaSuccess && prop.major < 8) {
            return error_set(reterr, -ENODEV,
                             "no CUDA device: %s is sm_%d%d, this build needs sm_80", prop.name,
                             prop.major, prop.minor);
        }
        if (e == cudaSuccess && !has_code(prop.major, prop.minor)) {
            return error_set(reterr, -ENODEV,
                             "no CUDA device: %s is sm_%d%d, this build has code for sm_%s",
                             prop.name, prop.major, prop.minor, CUDA_ARCHS);
        }
        if (e == cudaSuccess) {
            return 0;
        }
    }
    (void)cudaGetLastError();
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0) {
        return error_set(reterr, -ENODEV, "no CUDA device: no NVIDIA driver is loaded");
    }
    if (e == cudaErrorInsufficientDriver) {
        return error_set(reterr, -ENODEV,
                         "no CUDA device: the driver offers CUDA %d.%d, this build needs %d.%d",
                         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    }
    return error_set(reterr, -ENODEV, "no CUDA device: %s",
                     cudaGetErrorString(e == cudaSuccess ? cudaErrorNoDevice : e));
}

/* ---- its streams, events and memory ---------------------------------------------------------- */

/* Of all that was compiled, the last. A device from sm_90 on runs code of its own major number or
 * this, so if this is older, kernels have no grid_wait(). */
static long newest_code(void)
{
    const char *last = strrchr(CUDA_ARCHS, ',');

    return strtol(last ? last + 1 : CUDA_ARCHS, NULL, 10);
}

static int open_device(struct cuda *cu, struct error *reterr)
{
    struct cudaDeviceProp prop;
    void *stage = NULL;
    unsigned event = cudaEventDisableTiming | (cu->wait_asleep ? cudaEventBlockingSync : 0);
    int r = 0;

    if (cu->wait_asleep) { /* before the context is made; streams are waited for so */
        r = cuda_error(cu, cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync), "cudaSetDeviceFlags",
                       reterr);
    }
    if (r == 0) {
        r = cuda_error(cu, cudaSetDevice(cu->device), "cudaSetDevice", reterr);
    }
    if (r == 0) {
        r = cuda_error(cu, cudaGetDeviceProperties(&prop, cu->device), "cudaGetDeviceProperties",
                       reterr);
    }
    if (r == 0 && prop.major < 8) {
        r = error_set(reterr, -ENODEV, "CUDA device \"%s\" is sm_%d%d, at least sm_80 is needed",
                      prop.name, prop.major, prop.minor);
    }
    if (r == 0) {
        (void)snprintf(cu->device_name, sizeof(cu->device_name), "%.64s, sm_%d%d", prop.name,
                       prop.major, prop.minor);
        cu->n_sms = prop.multiProcessorCount;
        cu->sm_major = prop.major;
        cu->sm_minor = prop.minor;
        cu->integrated = prop.integrated != 0;
        cu->early = prop.major >= 9 && newest_code() >= 90;
        cu->shared_max = prop.sharedMemPerBlockOptin;
        cu->few_from = CUDA_FEW_FROM;
        r = cuda_code_load(cu, reterr);
    }
    if (r == 0) {
        r = cuda_error(cu, cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking),
                       "cudaStreamCreate", reterr);
        cu->have_stream = r == 0;
    }
    if (r == 0) { /* 0: no more urgent than the other */
        r = cuda_error(cu, cudaStreamCreateWithPriority(&cu->side, cudaStreamNonBlocking, 0),
                       "cudaStreamCreate", reterr);
    }
    for (cudaEvent_t *at : {&cu->main_at, &cu->side_at}) {
        r = r < 0 ? r
                  : cuda_error(cu, cudaEventCreateWithFlags(at, cudaEventDisableTiming),
                               "cudaEventCreate", reterr);
    }
    if (r == 0) {
        r = cuda_error(cu, cudaMallocHost(&stage, CUDA_PINNED), "cudaMallocHost", reterr);
        cu->stage = static_cast<uint8_t *>(stage);
    }
    for (int i = 0; i < BACKEND_FETCHES && r == 0; i++) {
        r = cuda_error(cu, cudaEventCreateWithFlags(&cu->fetched[i], event), "cudaEventCreate",
                       reterr);
    }
    return r;
}

void cuda_destroy(struct backend *be)
{
    struct cuda *cu = cuda_of(be);

    if (!cu) {
        return;
    }
    if (cu->have_stream) {
        cuda_free(be, cu->scratch_base, 0);
        cuda_free(be, cu->slab, 0);
        cuda_lt_destroy(cu);
        (void)cudaStreamDestroy(cu->stream);
    }
    if (cu->side) {
        (void)cudaStreamDestroy(cu->side);
    }
    for (cudaEvent_t at : {cu->main_at, cu->side_at}) {
        if (at) {
            (void)cudaEventDestroy(at);
        }
    }
    for (int i = 0; i < BACKEND_FETCHES; i++) {
        if (cu->fetched[i]) {
            (void)cudaEventDestroy(cu->fetched[i]);
        }
    }
    cuda_queue_destroy(cu);
    (void)cudaFreeHost(cu->stage);
    free(cu);
}

int cuda_create(const struct backend_config *config, struct backend **ret, struct error *reterr)
{
    struct cuda *cu;
    int r = cuda_probe(reterr);

    if (r < 0) {
        return r;
    }
    cu = static_cast<struct cuda *>(calloc(1, sizeof(*cu)));
    if (!cu) {
        return error_set(reterr, -ENOMEM, "no memory for the cuda backend");
    }
    cu->be.ops = &cuda_backend;
    cu->wait_asleep = config->wait_asleep;
    r = cuda_queue_create(cu);
    r = r < 0 ? error_set(reterr, r, "no memory for the cuda backend") : open_device(cu, reterr);
    r = r < 0 ? r : cuda_lt_create(cu, config->prefill, reterr);
    if (r < 0) {
        cuda_destroy(&cu->be);
        return r;
    }
    *ret = &cu->be;
    return 0;
}
