/* SPDX-License-Identifier: Apache-2.0 */
/* A device as the run-time library shows it: errors, also injected ones,
 * properties, streams, events. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>
#include <unistd.h>

extern "C" {
#include "base/clock.h"
}

struct emu_event {
    uint64_t number; /* of the last copy before it */
    int64_t ns;
    unsigned launch; /* the last before it, where order is looked at */
    cudaStream_t stream;
};

static int n_devices = 1;
static int integrated;
static int fail_after;
static cudaError_t fail_code;
static cudaError_t last_error;
static bool fail_sticky;

/* ---- errors --------------------------------------------------------------------------------- */

/* The device is lost for the process that finds the file named by EMU_LOST, and takes it away. */
static bool is_lost(void)
{
    static const char *const file = getenv("EMU_LOST");

    return file && unlink(file) == 0;
}

cudaError_t emu_fails(void)
{
    if (fail_sticky) {
        return fail_code;
    }
    if (is_lost()) {
        fail_sticky = true;
        fail_code = cudaErrorLaunchFailure;
        return fail_code;
    }
    if (fail_after > 0 && --fail_after == 0) {
        fail_sticky = fail_code >= 700 && fail_code < 800;
        return fail_code;
    }
    return cudaSuccess;
}

EMU_API void emu_fail(int n, int code)
{
    fail_after = n;
    fail_code = (cudaError_t)code;
    fail_sticky = false;
    last_error = cudaSuccess;
}

EMU_API int emu_pending(void)
{
    return fail_after > 0;
}

EMU_API uint64_t emu_held(void)
{
    return emu_bytes_held;
}

EMU_API void emu_devices(int n)
{
    n_devices = n;
}

EMU_API void emu_integrated(int yes)
{
    integrated = yes;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                 ? "no error"
           : e == cudaErrorNoDevice         ? "no CUDA-capable device is detected"
           : e == cudaErrorMemoryAllocation ? "out of memory"
           : e == cudaErrorIllegalAddress   ? "an illegal memory access was encountered"
           : e == cudaErrorInvalidValue     ? "invalid argument"
           : e == cudaErrorInsufficientDriver
               ? "CUDA driver version is insufficient for CUDA runtime version"
               : "an error of the emulator";
}

const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError";
}

cudaError_t emu_set_error(cudaError_t e)
{
    return last_error = e;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
}

/* ---- properties ----------------------------------------------------------------------------- */

/* Shared memory of a block: sm_90's, or as many KB as EMU_SHARED says, 99 on sm_86 and sm_89. */
size_t emu_shared_most(void)
{
    static const char *const text = getenv("EMU_SHARED");
    size_t bytes = text ? (size_t)atoi(text) << 10 : (size_t)EMU_SHARED_MAX;

    return bytes < (size_t)EMU_SHARED_MAX ? bytes : (size_t)EMU_SHARED_MAX;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
    cudaError_t e = emu_fails();

    *ret = n_devices;
    return e != cudaSuccess ? e : n_devices > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int)
{
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "emulated on the CPU");
    ret->major = 9;
    ret->multiProcessorCount = EMU_BLOCKS == 1 ? 8 : 7; /* 7: blocks end inside heads */
    ret->integrated = integrated;
    ret->totalGlobalMem = EMU_DEVICE_BYTES;
    ret->sharedMemPerBlockOptin = emu_shared_most();
    return emu_fails();
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    *ret_total = EMU_DEVICE_BYTES;
    *ret_free = EMU_DEVICE_BYTES - emu_bytes_held;
    return emu_fails();
}

/* ---- streams and events --------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned)
{
    static int n_streams;
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaStream_t)calloc(1, sizeof(**ret));
        (*ret)->schedule = n_streams++ % 3;
        (*ret)->run = emu_run_work;
        emu_bytes_held++;
    }
    return e;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned, int)
{
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaStream_t)calloc(1, sizeof(**ret));
        (*ret)->schedule = 1;
        (*ret)->second = true;
        emu_bytes_held++;
    }
    return e;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    emu_drop_later(s);
    free(s);
    emu_bytes_held--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    emu_end_copies(emu_n_late);
    return emu_fails();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned)
{
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaEvent_t)calloc(1, sizeof(**ret));
        emu_bytes_held++;
    }
    return e;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    emu_bytes_held--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->number = emu_n_late;
    e->ns = clock_ns();
    e->stream = s;
    if constexpr (EMU_BLOCKS > 1) {
        e->launch = emu_order_now();
    }
    return emu_fails();
}

/* The emulator's time is the host's: kernels have run when they were launched. */
cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    *ret_ms = (float)((double)(to->ns - from->ns) / 1e6);
    return emu_fails();
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    emu_end_copies(e->number);
    return emu_fails();
}

/* The first stream's kernels have run anyway. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    cudaError_t r = emu_fails();

    if (r == cudaSuccess && s->second && !e->stream->second) {
        emu_set_after(e->launch);
    }
    return r == cudaSuccess && e->stream->second ? emu_run_later(e->stream) : r;
}
