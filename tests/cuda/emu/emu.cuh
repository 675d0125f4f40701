/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_EMU_EMU_CUH
#define PIPIT_TESTS_CUDA_EMU_EMU_CUH

/* CUDA C on a CPU, for tests: the kernels of kernels/cuda/ compiled by a C++ compiler and run one
 * block after another, each thread of a block a fiber that runs until it waits for the others.
 * Index arithmetic and numerics are those of the real thing; time and memory order are not.
 *
 * What it finds beside wrong results:
 *   - a barrier that some threads of a warp or block do not reach: the process ends with its name
 *   - a missing barrier: streams take turns in running threads forwards, backwards and shuffled, so
 *     results of the three sides of a check differ
 *   - host code that touches device memory: it is inaccessible but in kernels and copies
 *   - shared memory read before it is written: it starts as NaN; so does memory from cudaMalloc
 *   - a read before the wait that an asynchronous copy or product needs: it is made at the wait
 *   - a kernel with more dynamic shared memory than it was allowed when it runs, and one whose code
 *     was not loaded by cudaFuncGetAttributes() before
 *   - a kernel that does not wait for one beside it (a second stream, a branch of a graph) which
 *     writes what it reads: the one beside runs when it is waited for, in a graph at its end
 *   - where it is built with EMU_ORDER, four blocks take turns, at barriers, fences and atomic
 *     operations: a block that touches what another wrote before fences and a count allow it
 *
 * Kernels write CUDA C without inline PTX; what needs PTX is in kernels/cuda/prim.cuh, which calls
 * the emu_ functions below instead. Launches go through CUDA_LAUNCH there. */

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#if defined(EMU_ORDER)
#define __shared__ static thread_local /* grid.cc: each block has its own */
#else
#define __shared__ static
#endif

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct uint2 {
    unsigned x, y;
} __align__(8);
struct uint4 {
    unsigned x, y, z, w;
} __align__(16);
struct float2 {
    float x, y;
} __align__(8);
struct float4 {
    float x, y, z, w;
} __align__(16);

static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return uint2{x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return uint4{x, y, z, w};
}
static inline float2 make_float2(float x, float y)
{
    return float2{x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return float4{x, y, z, w};
}

/* ---- inside a kernel ------------------------------------------------------------------------ */

struct emu_where {
    dim3 thread, block, block_dim, grid_dim;
};
extern struct emu_where emu_where; /* of the fiber that runs */

inline const dim3 &threadIdx = emu_where.thread;
inline const dim3 &blockIdx = emu_where.block;
inline const dim3 &blockDim = emu_where.block_dim;
inline const dim3 &gridDim = emu_where.grid_dim;

void *emu_shared(void); /* the block's dynamic shared memory */
void emu_sync_block(const char *file, int line);
void emu_sync_warp(unsigned mask, const char *file, int line);
/* Every lane of the mask gives a word and sees those of all lanes. */
const uint64_t *emu_exchange(unsigned mask, uint64_t word, const char *file, int line);
int emu_lane(void);

/* griddepcontrol.wait. Of a kernel that a graph launches early every thread must come here, and
 * before that device memory is inaccessible. */
void emu_grid_wait(const char *file, int line);
/* Between true and false a thread may read device memory all the same. */
void emu_grid_ahead(bool on);

#define __syncthreads() emu_sync_block(__FILE__, __LINE__)
static inline int emu_sync_count(int p, const char *file, int line)
{
    __shared__ int sum;
    int ret;

    sum += p != 0;
    emu_sync_block(file, line); /* sum: complete */
    ret = sum;
    emu_sync_block(file, line); /* sum: read by all */
    sum = 0;
    emu_sync_block(file, line); /* sum: cleared */
    return ret;
}

#define __syncthreads_count(p) emu_sync_count(p, __FILE__, __LINE__)
#define __syncwarp() emu_sync_warp(0xffffffffu, __FILE__, __LINE__)

template <typename T>
static inline T emu_shuffle(unsigned mask, T v, int from, const char *file, int line)
{
    uint64_t word = 0;
    T r;

    static_assert(sizeof(T) <= 8, "one word");
    memcpy(&word, &v, sizeof(T));
    word = emu_exchange(mask, word, file, line)[from & 31];
    memcpy(&r, &word, sizeof(T));
    return r;
}

#define __shfl_xor_sync(mask, v, m) emu_shuffle(mask, v, emu_lane() ^ (m), __FILE__, __LINE__)
#define __shfl_sync(mask, v, from) emu_shuffle(mask, v, from, __FILE__, __LINE__)

static inline int emu_any(unsigned mask, int p, const char *file, int line)
{
    const uint64_t *w = emu_exchange(mask, p != 0, file, line);
    int any = 0;

    for (int i = 0; i < 32; i++) {
        any |= mask >> i & 1 ? (int)w[i] : 0;
    }
    return any;
}
#define __any_sync(mask, p) emu_any(mask, p, __FILE__, __LINE__)

static inline unsigned emu_ballot(unsigned mask, int p, const char *file, int line)
{
    const uint64_t *w = emu_exchange(mask, p != 0, file, line);
    unsigned bits = 0;

    for (int i = 0; i < 32; i++) {
        bits |= mask >> i & 1 ? (unsigned)w[i] << i : 0;
    }
    return bits;
}
#define __ballot_sync(mask, p) emu_ballot(mask, p, __FILE__, __LINE__)

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

int atomicAdd(int *p, int v);
unsigned long long atomicAdd(unsigned long long *p, unsigned long long v);
unsigned atomicInc(unsigned *p, unsigned last);
void emu_fence(const char *file, int line);
#define __threadfence() emu_fence(__FILE__, __LINE__)

template <typename T> static inline T __ldcg(const T *p)
{
    return *p;
}

template <typename T> static inline T min(T a, T b)
{
    return a < b ? a : b;
}
template <typename T> static inline T max(T a, T b)
{
    return a > b ? a : b;
}

/* No contraction here: the compiler is told so. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

/* Byte k is the one that nibble k of `at` (0..7; 8 and up not emulated) names of b, a. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned at)
{
    unsigned long long from = (unsigned long long)b << 32 | a;
    unsigned r = 0;

    for (int k = 0; k < 4; k++) {
        r |= (unsigned)(from >> (8 * (at >> (4 * k) & 7)) & 255) << (8 * k);
    }
    return r;
}

static inline unsigned __float_as_uint(float x)
{
    unsigned u;

    memcpy(&u, &x, 4);
    return u;
}
static inline float __uint_as_float(unsigned u)
{
    float x;

    memcpy(&x, &u, 4);
    return x;
}
static inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(3.14159265358979323846 * (double)x);
    *c = (float)cos(3.14159265358979323846 * (double)x);
}

/* d = a b + c by one warp: the fragments of mma.sync m16n8k16 (f16 or bf16) and m16n8k32, m16n8k16
 * (signed bytes), as the PTX manual draws them. */
void emu_mma_half(float c[4], const uint32_t a[4], const uint32_t b[2], bool bf16);
/* ldmatrix.x4; ends the process when an address is not a multiple of 16, or two rows of one matrix
 * lie in one bank. */
void emu_matrix_load4(const void *row, uint32_t ret[4], bool trans);
/* movmatrix */
static inline uint32_t emu_matrix_turn(uint32_t pair)
{
    const uint64_t *all = emu_exchange(~0u, pair, "movmatrix", 0);
    int t = emu_lane() % 4;
    int g = emu_lane() / 4;
    uint64_t lo = all[8 * t + g / 2] >> (g % 2 * 16) & 0xffff;
    uint64_t hi = all[8 * t + 4 + g / 2] >> (g % 2 * 16) & 0xffff;

    return (uint32_t)(lo | hi << 16);
}
void emu_mma_s8(int c[4], const uint32_t *a, const uint32_t *b, int n_b);

/* wgmma m64nNk16 by 4 warps, each its 16 rows; made when it is waited for, in group_wait() of
 * prim.cuh. Matrices in shared memory have their 16-byte pieces swapped by row; `panel`: of b in
 * bytes. */
uint64_t emu_group_matrix(const void *at, uint32_t panel);
void emu_group_mma(float *x, uint64_t a, uint64_t b, bool add, bool bf16);
void emu_group_mma_values(float *x, const uint32_t *a, uint64_t b, int n, bool bf16);
void emu_group_commit(void);
void emu_group_wait(int n_pending);

/* cp.async: the copy happens when it is waited for, as late as it may. */
void emu_async_copy(void *to, const void *from, size_t bytes);
void emu_async_commit(void);
void emu_async_wait(int n_pending);

/* ---- the run-time library ------------------------------------------------------------------- */

enum cudaError_t {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInsufficientDriver = 35,
    cudaErrorInvalidConfiguration = 9,
    cudaErrorInvalidDeviceFunction = 98,
    cudaErrorNoDevice = 100,
    cudaErrorDevicesUnavailable = 46,
    cudaErrorSystemDriverMismatch = 803,
    cudaErrorNoKernelImageForDevice = 209,
    cudaErrorUnsupportedPtxVersion = 222,
    cudaErrorECCUncorrectable = 214,
    cudaErrorHardwareStackError = 714,
    cudaErrorIllegalInstruction = 715,
    cudaErrorMisalignedAddress = 716,
    cudaErrorInvalidAddressSpace = 717,
    cudaErrorInvalidPc = 718,
    cudaErrorLaunchFailure = 719,
    cudaErrorIllegalAddress = 700,
    cudaErrorLaunchTimeout = 702,
    cudaErrorAssert = 710,
    cudaErrorNotSupported = 801,
    cudaErrorUnknown = 999,
};
enum cudaMemcpyKind {
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault, /* between memory that kernels reach */
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaStreamNonBlocking = 1 };
typedef struct emu_stream *cudaStream_t;

/* What another library may do on a stream: work(arg) runs as a kernel would, on these bytes of the
 * device. */
struct emu_range {
    const void *at;
    size_t bytes;
};
struct emu_stream {
    int schedule;
    bool second;             /* made with a priority: beside the first */
    struct emu_later *later; /* its kernels run when they are waited for */
    cudaError_t (*run)(const char *name, void (*work)(void *arg), void *arg,
                       const struct emu_range *touched, int n);
    /* What that library takes of the device for itself, for good; NULL: not counted. */
    cudaError_t (*take)(uint64_t bytes);
};

struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, integrated;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
};

const char *cudaGetErrorString(cudaError_t e);
const char *cudaGetErrorName(cudaError_t e);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *ret);
enum { cudaDeviceScheduleBlockingSync = 4 };
cudaError_t cudaSetDeviceFlags(unsigned flags);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device);
cudaError_t cudaDriverGetVersion(int *ret);
cudaError_t cudaRuntimeGetVersion(int *ret);
cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total);
cudaError_t cudaMalloc(void **ret, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMallocHost(void **ret, size_t bytes);
cudaError_t cudaFreeHost(void *p);
enum { cudaHostAllocMapped = 2 };
cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags);
cudaError_t cudaHostGetDevicePointer(void **ret, void *host, unsigned flags);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags);
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t s);
cudaError_t cudaStreamSynchronize(cudaStream_t s);
typedef struct emu_event *cudaEvent_t;
enum { cudaEventBlockingSync = 1, cudaEventDisableTiming = 2 };
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t e);
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s);
cudaError_t cudaEventSynchronize(cudaEvent_t e);
cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to);
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t s);
/* What the emulator's own files share: the call's injected failure; bytes of dynamic shared memory
 * that a kernel may have, 0: its code is not loaded. */
enum { EMU_SHARED_MAX = 227 << 10 };
cudaError_t emu_fails(void);
size_t emu_shared_allowed(const void *kernel);
cudaError_t emu_func_shared(const void *kernel, size_t bytes);
struct cudaFuncAttributes {
    size_t localSizeBytes, sharedSizeBytes;
};
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *ret, const void *kernel);

template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute a, int value)
{
    (void)a;
    return emu_func_shared(reinterpret_cast<const void *>(kernel), (size_t)value);
}

/* Kernels are launched by address, their arguments an array of pointers: `call` unpacks them. */
typedef void emu_call_fn(const void *kernel, void **args);
void emu_register(const char *name, const void *kernel, emu_call_fn *call, const size_t *sizes,
                  int n);

template <typename... P, size_t... I>
static inline void emu_unpack(const void *kernel, void **args, std::index_sequence<I...>)
{
    reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel))(*static_cast<P *>(args[I])...);
}

template <typename... P> static inline void emu_known(const char *name, void (*kernel)(P...))
{
    static const size_t sizes[] = {sizeof(P)...};

    emu_register(
        name, reinterpret_cast<const void *>(kernel),
        [](const void *k, void **args) {
            emu_unpack<P...>(k, args, std::make_index_sequence<sizeof...(P)>());
        },
        sizes, (int)sizeof...(P));
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream);

typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph *cudaGraphExec_t;
typedef struct emu_node *cudaGraphNode_t;
struct cudaKernelNodeParams {
    void *func;
    dim3 gridDim, blockDim;
    unsigned sharedMemBytes;
    void **kernelParams;
    void **extra;
};
cudaError_t cudaGraphCreate(cudaGraph_t *ret, unsigned flags);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *ret, cudaGraph_t g,
                                   const cudaGraphNode_t *after, size_t n_after,
                                   const struct cudaKernelNodeParams *p);
#define CUDART_VERSION 13000
enum { cudaGraphKernelNodePortProgrammatic = 1 };
enum cudaGraphDependencyType { cudaGraphDependencyTypeProgrammatic = 1 };
struct cudaGraphEdgeData {
    unsigned char from_port, to_port, type, reserved[5];
};
cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to,
                                     const struct cudaGraphEdgeData *edge, size_t n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long flags);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t g, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p);
cudaError_t cudaGraphUpload(cudaGraphExec_t g, cudaStream_t stream);
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t stream);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g);
cudaError_t cudaGraphDestroy(cudaGraph_t g);

/* ---- for tests ------------------------------------------------------------------------------ */

extern "C" {
/* The n-th call from now on to the run-time library (launches too) fails with `code`; a sticky
 * code then stays. n = 0: none. */
void emu_fail(int n, int code);
/* Has the call that was to fail not come yet? */
int emu_pending(void);
/* Bytes that cudaMalloc and cudaMallocHost gave and nobody gave back, and streams open. */
uint64_t emu_held(void);
/* 0: as on a machine without a device or driver. */
void emu_devices(int n);
/* Calls since the last time: kernels launched one by one, graphs instantiated, nodes changed,
 * graphs launched. */
void emu_counts(int ret[4]);
/* Host and device share their memory, as on Jetson: no call may then move bulk data between them.
 */
void emu_integrated(int yes);
}

#endif
