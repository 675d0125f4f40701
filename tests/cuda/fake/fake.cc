/* SPDX-License-Identifier: Apache-2.0 */
/* The run-time library of fake.h. Declarations are the emulator's (../emu/emu.cuh), so the same
 * sources are compiled the same way; what kernels would call ends the process. */

#include "fake.h"
#include "emu.cuh"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#define EXPORT extern "C" __attribute__((visibility("default")))

/* ---- what kernels call: they do not run ----------------------------------------------------- */

struct emu_where emu_where;

[[noreturn]] static void ran(void)
{
    fprintf(stderr, "fake: a kernel runs\n");
    abort();
}

/* clang-format off */
#define NEVER(call) call { ran(); }
NEVER(void *emu_shared(void))
NEVER(void emu_grid_wait(const char *, int))
NEVER(void emu_grid_ahead(bool))
NEVER(void emu_sync_block(const char *, int))
NEVER(void emu_sync_warp(unsigned, const char *, int))
NEVER(const uint64_t *emu_exchange(unsigned, uint64_t, const char *, int))
NEVER(int emu_lane(void))
NEVER(int atomicAdd(int *, int))
NEVER(unsigned long long atomicAdd(unsigned long long *, unsigned long long))
NEVER(unsigned atomicInc(unsigned *, unsigned))
NEVER(void emu_fence(const char *, int))
NEVER(void emu_mma_half(float[4], const uint32_t[4], const uint32_t[2], bool))
NEVER(void emu_matrix_load4(const void *, uint32_t[4], bool))
NEVER(void emu_mma_s8(int[4], const uint32_t *, const uint32_t *, int))
NEVER(uint64_t emu_group_matrix(const void *, uint32_t))
NEVER(void emu_group_mma(float *, uint64_t, uint64_t, bool, bool))
NEVER(void emu_group_mma_values(float *, const uint32_t *, uint64_t, int, bool))
NEVER(void emu_group_commit(void))
NEVER(void emu_group_wait(int))
NEVER(void emu_async_copy(void *, const void *, size_t))
NEVER(void emu_async_commit(void))
NEVER(void emu_async_wait(int))
/* clang-format on */

/* ---- state ---------------------------------------------------------------------------------- */

enum { MAX_CALLS = 1 << 16, MAX_PIECES = 256, MAX_KERNELS = 512, MAX_COPIES = 4096, MAX_ARGS = 16 };
static const size_t SHARED_UNASKED = 48 << 10;

struct piece {
    uint8_t *at;
    size_t bytes;
    bool pinned;
    bool mapped; /* pinned, and kernels reach it */
};

struct kernel {
    const char *name;
    const void *kernel;
    const size_t *sizes;
    int n;
    size_t shared; /* that was asked for */
    bool loaded;
};

/* A copy out of pinned memory that is not yet waited for. */
struct copy {
    const uint8_t *from;
    size_t bytes;
    uint64_t sum;
};

static struct fake_device device = {9, 0, 132, 0, 227 << 10, (uint64_t)80 << 30, 0, 13000, 1, 0};
static struct fake_call calls[MAX_CALLS];
static struct piece pieces[MAX_PIECES];
static struct kernel kernels[MAX_KERNELS];
static struct copy copies[MAX_COPIES];
static int n_calls, n_pieces, n_kernels, n_copies, n_objects;
static uint64_t graph_held, code_held, library_held, most;
static unsigned waits; /* fake_waits() */
static char broken[256];
static int fail_after;
static cudaError_t fail_code, fail_free, last_error;
static bool fail_sticky;
static enum fake_kind refused;
static cudaError_t refused_code;
static int refused_times;
static uint64_t ran_sum;
static int n_ran;

static void break_rule(const char *format, ...)
{
    if (!broken[0]) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(broken, sizeof(broken), format, args);
        va_end(args);
    }
}

static struct fake_call *note(enum fake_kind kind)
{
    static struct fake_call none;
    struct fake_call *c = n_calls < MAX_CALLS ? &calls[n_calls++] : &none;

    if (c == &none) {
        break_rule("more calls than are kept");
    }
    *c = {};
    c->kind = kind;
    return c;
}

/* What is no success stays for cudaGetLastError. */
static cudaError_t ended(cudaError_t e)
{
    last_error = e != cudaSuccess ? e : last_error;
    return e;
}

static cudaError_t fails(void)
{
    if (fail_sticky) {
        return ended(fail_code);
    }
    if (fail_after > 0 && --fail_after == 0) {
        fail_sticky = (fail_code >= 700 && fail_code < 800) ||
                      fail_code == cudaErrorECCUncorrectable || fail_code == cudaErrorUnknown;
        return ended(fail_code);
    }
    return cudaSuccess;
}

/* The same for a call that would be noted as `kind`. */
static cudaError_t refuses(enum fake_kind kind)
{
    cudaError_t e = fails();

    if (e == cudaSuccess && kind == refused && refused_times > 0) {
        refused_times--;
        return ended(refused_code);
    }
    return e;
}

static uint64_t held(uint64_t grain, bool pinned)
{
    uint64_t sum = 0;

    for (int i = 0; i < n_pieces; i++) {
        sum += pieces[i].pinned == pinned && !pieces[i].mapped
                   ? (pieces[i].bytes + grain - 1) / grain * grain
                   : 0;
    }
    return sum;
}

EXPORT uint64_t fake_device_bytes(uint64_t grain)
{
    return held(grain, false) + graph_held + code_held;
}

EXPORT uint64_t fake_library_bytes(void)
{
    return library_held;
}

EXPORT uint64_t fake_most_bytes(void)
{
    return most;
}

EXPORT uint64_t fake_pinned_bytes(void)
{
    return held(1, true);
}

EXPORT uint64_t fake_mapped_bytes(void)
{
    uint64_t sum = 0;

    for (int i = 0; i < n_pieces; i++) {
        sum += pieces[i].mapped ? pieces[i].bytes : 0;
    }
    return sum;
}

EXPORT int fake_objects(void)
{
    return n_objects;
}

EXPORT unsigned fake_waits(void)
{
    return waits;
}

EXPORT const char *fake_broken(void)
{
    return broken[0] ? broken : NULL;
}

EXPORT void fake_log_clear(void)
{
    n_calls = 0;
    n_ran = 0;
    ran_sum = 0;
}

EXPORT uint64_t fake_ran(int *ret_n)
{
    *ret_n = n_ran;
    return ran_sum;
}

EXPORT const struct fake_call *fake_log(int *ret_n)
{
    *ret_n = n_calls;
    return calls;
}

EXPORT void fake_fail(int n, int code)
{
    fail_after = n;
    fail_code = (cudaError_t)code;
    fail_sticky = false;
    fail_free = cudaSuccess;
    last_error = cudaSuccess;
}

EXPORT void fake_refuse(enum fake_kind kind, int code, int times)
{
    refused = kind;
    refused_code = (cudaError_t)code;
    refused_times = times;
}

EXPORT void fake_fail_free(int code)
{
    fail_free = (cudaError_t)code;
}

EXPORT void fake_graph_bytes(uint64_t bytes)
{
    device.graph_bytes = bytes;
}

EXPORT int fake_pending(void)
{
    return fail_after > 0;
}

EXPORT void fake_start(const struct fake_device *d)
{
    device = *d;
    broken[0] = 0;
    waits = 0;
    if (n_pieces > 0 || n_objects > 0 || graph_held > 0) {
        break_rule("%d pieces of memory and %d objects are still held", n_pieces, n_objects);
    }
    for (int i = 0; i < n_kernels; i++) {
        kernels[i].shared = 0;
        kernels[i].loaded = false;
    }
    code_held = library_held = 0;
    most = 0;
    n_copies = 0;
    fake_log_clear();
    fake_fail(0, 0);
    fake_refuse(FAKE_LAUNCH, 0, 0);
}

/* ---- memory --------------------------------------------------------------------------------- */

static cudaError_t give(void **ret, size_t bytes, bool pinned)
{
    cudaError_t e = fails();
    void *p;

    if (e != cudaSuccess) {
        return e;
    }
    if (!pinned && fake_device_bytes(1) + library_held + bytes > device.memory) {
        return ended(cudaErrorMemoryAllocation);
    }
    p = pinned ? malloc(bytes)
               : mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!p || p == MAP_FAILED || n_pieces == MAX_PIECES) {
        break_rule("no room for %zu bytes", bytes);
        return ended(cudaErrorMemoryAllocation);
    }
    pieces[n_pieces++] = {static_cast<uint8_t *>(p), bytes, pinned, false};
    if (!pinned) {
        note(FAKE_ALLOC)->bytes = bytes;
        most = fake_device_bytes(1) > most ? fake_device_bytes(1) : most;
    }
    *ret = p;
    return cudaSuccess;
}

static cudaError_t take_back(void *p, bool pinned)
{
    for (int i = 0; p && i < n_pieces; i++) {
        if (pieces[i].at == p && pieces[i].pinned == pinned) {
            if (pinned) {
                free(p);
            } else {
                (void)munmap(p, pieces[i].bytes);
            }
            pieces[i] = pieces[--n_pieces];
            return cudaSuccess;
        }
    }
    if (p) {
        break_rule("a free of what was not given");
    }
    return ended(p ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    return give(ret, bytes, false);
}

cudaError_t cudaFree(void *p)
{
    return take_back(p, false);
}

cudaError_t cudaMallocHost(void **ret, size_t bytes)
{
    return give(ret, bytes, true);
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    cudaError_t e = give(ret, bytes, true);

    if (flags != cudaHostAllocMapped || device.integrated) {
        break_rule("memory of the host is mapped that is the device's anyway");
    }
    if (e == cudaSuccess) {
        pieces[n_pieces - 1].mapped = true;
        note(FAKE_MAP)->bytes = bytes;
    }
    return e;
}

cudaError_t cudaHostGetDevicePointer(void **ret, void *host, unsigned)
{
    *ret = host;
    return fails();
}

cudaError_t cudaFreeHost(void *p)
{
    return take_back(p, true);
}

static const struct piece *piece_of(const void *p, size_t bytes)
{
    const uint8_t *at = static_cast<const uint8_t *>(p);

    for (int i = 0; i < n_pieces; i++) {
        if (at >= pieces[i].at && at < pieces[i].at + pieces[i].bytes) {
            if (bytes > (size_t)(pieces[i].at + pieces[i].bytes - at)) {
                break_rule("%zu bytes from %zu of an allocation of %zu", bytes,
                           (size_t)(at - pieces[i].at), pieces[i].bytes);
            }
            return &pieces[i];
        }
    }
    return NULL;
}

/* Is it device memory, or on a device that shares it, pinned memory? */
static bool on_device(const void *p, size_t bytes)
{
    const struct piece *q = piece_of(p, bytes);

    return q && (!q->pinned || q->mapped || device.integrated);
}

static uint64_t sum_of(const uint8_t *p, size_t n)
{
    uint64_t h = 0xcbf29ce484222325ull;

    for (size_t i = 0; i < n; i++) {
        h = (h ^ p[i]) * 0x100000001b3ull;
    }
    return h;
}

static void check_copies(void)
{
    for (int i = 0; i < n_copies; i++) {
        if (piece_of(copies[i].from, copies[i].bytes) &&
            sum_of(copies[i].from, copies[i].bytes) != copies[i].sum) {
            break_rule("%zu pinned bytes changed before the copy of them was waited for",
                       copies[i].bytes);
        }
    }
    n_copies = 0;
}

static void copy_out(const uint8_t *from, size_t bytes)
{
    const struct piece *p = piece_of(from, bytes);
    uint64_t sum;

    if (bytes > 0 && (!p || !p->pinned)) { /* is it all there? */
        (void)*static_cast<const volatile uint8_t *>(from);
        (void)*static_cast<const volatile uint8_t *>(from + bytes - 1);
    }
    if (p && p->pinned) {
        sum = sum_of(from, bytes);
        if (n_copies == MAX_COPIES) {
            break_rule("more copies under way than are kept");
            n_copies = 0;
        }
        copies[n_copies++] = {from, bytes, sum};
    }
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind k, cudaStream_t)
{
    cudaError_t e = fails();
    size_t to_bytes = height ? (height - 1) * to_pitch + width : 0;
    size_t from_bytes = height ? (height - 1) * from_pitch + width : 0;

    if (e != cudaSuccess) {
        return e;
    }
    if (on_device(to, to_bytes) != (k != cudaMemcpyDeviceToHost) ||
        on_device(from, from_bytes) != (k != cudaMemcpyHostToDevice)) {
        /* pinned memory of a device that shares it is on either side */
        if (!device.integrated) {
            break_rule("a copy between the wrong sides");
            return ended(cudaErrorInvalidValue);
        }
    }
    if (k == cudaMemcpyHostToDevice) {
        for (size_t i = 0; i < height; i++) {
            copy_out(static_cast<const uint8_t *>(from) + i * from_pitch, width);
        }
        note(FAKE_WRITE)->bytes = width * height;
    } else if (k == cudaMemcpyDeviceToHost) {
        for (size_t i = 0; i < height; i++) {
            memset(static_cast<uint8_t *>(to) + i * to_pitch, 0, width);
        }
        note(FAKE_READ)->bytes = width * height;
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, k, s);
}

cudaError_t cudaMemsetAsync(void *p, int, size_t n, cudaStream_t)
{
    cudaError_t e = fails();

    if (e == cudaSuccess && n > 0 && !on_device(p, n)) {
        break_rule("memory that is not the device's is set");
        return ended(cudaErrorInvalidValue);
    }
    return e;
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    uint64_t n = fake_device_bytes(1) + library_held;

    *ret_total = device.memory;
    *ret_free = n < device.memory ? device.memory - n : 0;
    if (fail_free != cudaSuccess) {
        return ended(fail_free);
    }
    return fails();
}

/* ---- device and streams --------------------------------------------------------------------- */

/* What another library does on a stream: noted as a launch, not done. */
static cudaError_t run_work(const char *name, void (*)(void *), void *,
                            const struct emu_range *touched, int n)
{
    cudaError_t e = fails();

    if (e == cudaSuccess) {
        (void)snprintf(note(FAKE_LAUNCH)->name, sizeof(calls[0].name), "%s", name);
    }
    for (int i = 0; i < n && e == cudaSuccess; i++) {
        if (!on_device(touched[i].at, touched[i].bytes)) {
            break_rule("%s: operand %d is not the device's", name, i);
            return ended(cudaErrorInvalidValue);
        }
    }
    return e;
}

static cudaError_t take_for_library(uint64_t bytes)
{
    if (fake_device_bytes(1) + library_held + bytes > device.memory) {
        return cudaErrorMemoryAllocation;
    }
    library_held += bytes;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    static char text[48];

    (void)snprintf(text, sizeof(text), "CUDA error %d", (int)e);
    return text;
}

const char *cudaGetErrorName(cudaError_t e)
{
    return cudaGetErrorString(e);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = fail_sticky ? fail_code : cudaSuccess;
    return e;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
    cudaError_t e = fails();
    const char *loading = getenv("CUDA_MODULE_LOADING");

    if (!loading || strcmp(loading, "LAZY") != 0) { /* or cublasLt loads all that it has */
        break_rule("CUDA_MODULE_LOADING is %s", loading ? loading : "not set");
    }
    *ret = device.n_devices;
    return e != cudaSuccess         ? e
           : device.driver < 12060 ? ended(cudaErrorInsufficientDriver)
           : device.n_devices == 0 ? ended(cudaErrorNoDevice)
                                   : cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    waits |= flags;
    return fails();
}

cudaError_t cudaSetDevice(int)
{
    return fails();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int)
{
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "fake %d.%d", device.major, device.minor);
    ret->major = device.major;
    ret->minor = device.minor;
    ret->multiProcessorCount = device.n_sms;
    ret->integrated = device.integrated;
    ret->totalGlobalMem = device.memory;
    ret->sharedMemPerBlockOptin = device.shared_max;
    return fails();
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = device.driver;
    return fails();
}

cudaError_t cudaRuntimeGetVersion(int *ret)
{
    *ret = 13000;
    return fails();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned)
{
    cudaError_t e = fails();

    if (e == cudaSuccess) {
        *ret = static_cast<cudaStream_t>(calloc(1, sizeof(**ret)));
        (*ret)->run = run_work;
        (*ret)->take = take_for_library;
        n_objects++;
    }
    return e;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    free(s);
    n_objects--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    check_copies();
    (void)note(FAKE_WAIT);
    return fails();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int)
{
    cudaError_t e = cudaStreamCreateWithFlags(ret, flags);

    if (e == cudaSuccess) {
        (*ret)->second = true;
    }
    return e;
}

struct emu_event {
    cudaStream_t at;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    cudaError_t e = fails();

    waits |= flags & cudaEventBlockingSync;
    if (e == cudaSuccess) {
        *ret = static_cast<cudaEvent_t>(calloc(1, sizeof(**ret)));
        n_objects++;
    }
    return e;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    n_objects--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->at = s;
    return fails();
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    if (!e->at || e->at == s) {
        break_rule("a stream waits for itself, or for nothing");
    }
    note(FAKE_FOLLOW)->stream = s->second;
    return fails();
}

cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t, cudaEvent_t)
{
    *ret_ms = 1;
    return fails();
}

cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    (void)note(FAKE_EVENT);
    return fails();
}

/* ---- kernels -------------------------------------------------------------------------------- */

static struct kernel *find_kernel(const void *k)
{
    for (int i = 0; i < n_kernels; i++) {
        if (kernels[i].kernel == k) {
            return &kernels[i];
        }
    }
    return NULL;
}

void emu_register(const char *name, const void *kernel, emu_call_fn *, const size_t *sizes, int n)
{
    struct kernel *k = find_kernel(kernel);

    if (!k && n_kernels == MAX_KERNELS) {
        break_rule("more kernels than are kept");
        return;
    }
    if (!k) {
        k = &kernels[n_kernels++];
        *k = {name, kernel, sizes, n, 0, false};
    }
    if (!k->sizes) { /* its attributes were set first */
        k->name = name;
        k->sizes = sizes;
        k->n = n;
    }
}

cudaError_t emu_func_shared(const void *kernel, size_t bytes)
{
    cudaError_t e = fails();

    if (e != cudaSuccess) {
        return e;
    }
    if (bytes > device.shared_max) {
        break_rule("%zu bytes of shared memory asked for, the device has %zu", bytes,
                   device.shared_max);
        return ended(cudaErrorInvalidValue);
    }
    if (!find_kernel(kernel) || !find_kernel(kernel)->loaded ||
        (find_kernel(kernel)->shared && find_kernel(kernel)->shared != bytes)) {
        break_rule("a kernel's limit is set before its code is loaded, or anew");
        return ended(cudaErrorInvalidValue);
    }
    find_kernel(kernel)->shared = bytes;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *kernel)
{
    cudaError_t e = fails();

    memset(ret, 0, sizeof(*ret));
    if (e == cudaSuccess && !device.no_code) {
        if (!find_kernel(kernel)) {
            emu_register("", kernel, NULL, NULL, 0);
        }
        find_kernel(kernel)->loaded = true;
    }
    return ended(e == cudaSuccess && device.no_code ? cudaErrorNoKernelImageForDevice : e);
}

/* Within what any device of sm_80 and later takes? Notes the call. */
static cudaError_t check_launch(enum fake_kind kind, const void *kernel, dim3 g, dim3 b,
                                size_t shared)
{
    struct kernel *k = find_kernel(kernel);
    struct fake_call *c = note(kind);
    size_t bytes = 0;

    if (!k || !k->sizes) {
        break_rule("a launch of what is no kernel");
        return ended(cudaErrorInvalidValue);
    }
    if (!k->loaded) { /* after the start: what no plan holds */
        code_held += 1 << 20;
        break_rule("%s: its code takes memory when it is first launched", k->name);
    }
    k->loaded = true;
    (void)snprintf(c->name, sizeof(c->name), "%s", k->name);
    c->grid[0] = g.x, c->grid[1] = g.y, c->grid[2] = g.z;
    c->block[0] = b.x, c->block[1] = b.y, c->block[2] = b.z;
    c->shared = shared;
    for (int i = 0; i < k->n; i++) {
        bytes = (bytes + k->sizes[i] + 7) / 8 * 8;
    }
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffffu || g.y > 65535 || g.z > 65535) {
        break_rule("%s: a grid of %u x %u x %u", k->name, g.x, g.y, g.z);
    } else if (b.x * b.y * b.z == 0 || b.x * b.y * b.z > 1024 || b.z > 64) {
        break_rule("%s: a block of %u x %u x %u", k->name, b.x, b.y, b.z);
    } else if (shared > (k->shared > SHARED_UNASKED ? k->shared : SHARED_UNASKED)) {
        break_rule("%s: %zu bytes of shared memory, %zu were asked for", k->name, shared,
                   k->shared);
    } else if (bytes > 4096) {
        break_rule("%s: %zu bytes of arguments", k->name, bytes);
    } else {
        return ended(device.no_code ? cudaErrorNoKernelImageForDevice : cudaSuccess);
    }
    return ended(cudaErrorInvalidConfiguration);
}

static uint64_t mixed(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x100000001b3ull;
    return h ^ h >> 29;
}

/* Words that are addresses count as their place. */
static uint64_t sum_of_arg(uint64_t h, const uint8_t *arg, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = 0;

        memcpy(&word, arg + at, bytes - at < 8 ? bytes - at : 8);
        for (int i = 0; i < n_pieces; i++) {
            uint64_t from = (uint64_t)(uintptr_t)pieces[i].at;

            if (word >= from && word < from + pieces[i].bytes) {
                word = (uint64_t)(i + 1) << 48 | (word - from);
                break;
            }
        }
        h = mixed(h, word);
    }
    return h;
}

/* Of a launch of `kernel`, which is known. */
static uint64_t sum_of_launch(const void *kernel, dim3 g, dim3 b, size_t shared, void **args)
{
    const struct kernel *k = find_kernel(kernel);
    uint64_t h = sum_of(reinterpret_cast<const uint8_t *>(k->name), strlen(k->name));

    for (uint64_t v : {(uint64_t)g.x, (uint64_t)g.y, (uint64_t)g.z, (uint64_t)b.x, (uint64_t)b.y,
                       (uint64_t)b.z, (uint64_t)shared}) {
        h = mixed(h, v);
    }
    for (int i = 0; i < k->n; i++) {
        h = sum_of_arg(h, static_cast<const uint8_t *>(args[i]), k->sizes[i]);
    }
    return h;
}

static void run_one(uint64_t sum)
{
    ran_sum = mixed(ran_sum, sum);
    n_ran++;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t s)
{
    cudaError_t e = refuses(FAKE_LAUNCH);

    e = e != cudaSuccess ? e : check_launch(FAKE_LAUNCH, kernel, grid, block, shared);
    if (e == cudaSuccess && n_calls > 0) {
        calls[n_calls - 1].stream = s->second;
    }
    if (e == cudaSuccess) {
        run_one(sum_of_launch(kernel, grid, block, shared, args));
    }
    return e;
}

/* ---- graphs --------------------------------------------------------------------------------- */

struct emu_node {
    struct emu_graph *graph;
    const void *kernel;
    struct emu_node *before, *next; /* before: what the first edge comes from */
    int number;
    struct fake_call *call;
    uint64_t sum; /* of its launch */
};

struct emu_graph {
    struct emu_node *first, *last;
    struct emu_graph *of; /* an instance: of which graph */
    int n, n_early;
    uint64_t bytes;
};

cudaError_t cudaGraphCreate(cudaGraph_t *ret, unsigned)
{
    cudaError_t e = fails();

    if (e == cudaSuccess) {
        *ret = static_cast<cudaGraph_t>(calloc(1, sizeof(**ret)));
        n_objects++;
    }
    return e;
}

/* May the next node's first edge come from there? */
static bool follows(const struct emu_graph *g, const struct emu_node *from)
{
    return from == g->last || (g->last && from == g->last->before);
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *ret, cudaGraph_t g,
                                   const cudaGraphNode_t *after, size_t n_after,
                                   const struct cudaKernelNodeParams *p)
{
    cudaError_t e = refuses(FAKE_NODE);
    struct emu_node *n;

    if (e == cudaSuccess) {
        e = check_launch(FAKE_NODE, p->func, p->gridDim, p->blockDim, p->sharedMemBytes);
    }
    if (e != cudaSuccess) {
        return e;
    }
    if (n_after > 2 || (n_after && !follows(g, after[0])) || !p->kernelParams || p->extra) {
        break_rule("a node that does not follow the one before");
        return ended(cudaErrorInvalidValue);
    }
    n = static_cast<struct emu_node *>(calloc(1, sizeof(*n)));
    *n = {g,
          p->func,
          n_after ? after[0] : NULL,
          NULL,
          g->n + 1,
          n_calls > 0 ? &calls[n_calls - 1] : NULL,
          sum_of_launch(p->func, p->gridDim, p->blockDim, p->sharedMemBytes, p->kernelParams)};
    for (size_t i = 0; i < n_after && n->call; i++) {
        n->call->after[i] = after[i]->number;
    }
    if (n->call) {
        n->call->node = n->number;
    }
    (g->last ? g->last->next : g->first) = n;
    g->last = n;
    g->n++;
    *ret = n;
    return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to,
                                     const struct cudaGraphEdgeData *edge, size_t n)
{
    cudaError_t e = refuses(FAKE_EARLY);

    if (e != cudaSuccess) {
        return e;
    }
    if (n != 1 || *to != g->last || g->last->before || (*from)->graph != g || *from == *to) {
        break_rule("an edge that is not from a node before");
    }
    if (device.major < 9 || edge->from_port != cudaGraphKernelNodePortProgrammatic ||
        edge->type != cudaGraphDependencyTypeProgrammatic) {
        break_rule("a programmatic edge that this device has not");
    }
    note(FAKE_EARLY);
    g->n_early++;
    g->last->before = *from;
    g->last->call->after[0] = (*from)->number;
    return e;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long)
{
    cudaError_t e = refuses(FAKE_GRAPH);

    for (struct emu_node *n = g->first; n; n = n->next) {
        if (!n->before && n != g->first) {
            break_rule("a node that does not follow the one before");
        }
    }

    if (e == cudaSuccess &&
        fake_device_bytes(1) + library_held + device.graph_bytes > device.memory) {
        e = ended(cudaErrorMemoryAllocation);
    }
    if (e == cudaSuccess) {
        note(FAKE_GRAPH)->n = g->n;
        *ret = static_cast<cudaGraphExec_t>(calloc(1, sizeof(**ret)));
        (*ret)->of = g;
        (*ret)->n = g->n;
        (*ret)->n_early = g->n_early;
        n_objects++;
    }
    return e;
}

/* The driver takes its memory here. */
cudaError_t cudaGraphUpload(cudaGraphExec_t g, cudaStream_t)
{
    cudaError_t e = fails();

    if (e == cudaSuccess && g->bytes == 0) {
        g->bytes = device.graph_bytes;
        graph_held += g->bytes;
        most = fake_device_bytes(1) > most ? fake_device_bytes(1) : most;
    }
    return e;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t g, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    cudaError_t e = refuses(FAKE_CHANGE);

    if (e == cudaSuccess) {
        e = check_launch(FAKE_CHANGE, p->func, p->gridDim, p->blockDim, p->sharedMemBytes);
    }
    if (e == cudaSuccess && (node->graph != g->of || node->kernel != p->func)) {
        break_rule("a change of another graph's node, or to another kernel");
        return ended(cudaErrorInvalidValue);
    }
    if (e == cudaSuccess) {
        node->sum =
            sum_of_launch(p->func, p->gridDim, p->blockDim, p->sharedMemBytes, p->kernelParams);
    }
    return e;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s)
{
    cudaError_t e = refuses(FAKE_GRAPH_LAUNCH);

    if (e == cudaSuccess) {
        struct fake_call *c = note(FAKE_GRAPH_LAUNCH);

        c->n = g->n;
        c->n_early = g->n_early;
        if (g->bytes == 0) {
            break_rule("a graph takes its memory when it is first launched");
            e = cudaGraphUpload(g, s);
        }
        for (struct emu_node *node = g->of->first; node; node = node->next) {
            run_one(node->sum);
        }
    }
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    graph_held -= g->bytes;
    free(g);
    n_objects--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    for (struct emu_node *n = g->first; n;) {
        struct emu_node *next = n->next;

        free(n);
        n = next;
    }
    free(g);
    n_objects--;
    return cudaSuccess;
}
