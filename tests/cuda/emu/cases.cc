/* SPDX-License-Identifier: Apache-2.0 */
/* Small kernels whose blocks depend on each other, one right and the others each wrong in one way,
 * for ../test_order.sh: the emulator must find what is wrong. Compiled as kernels/cuda/ is. */

#include "tests/cuda/emu/emu_impl.cuh"

enum { THREADS = 64, BLOCKS = 6, N = THREADS * BLOCKS, LARGE = 90 << 10 };

/* What `message` does wrong. */
enum fault {
    NOTHING,
    NO_BARRIER_BEFORE,
    NO_FENCE_BEFORE,
    NO_FENCE_AFTER,
    NO_BARRIER_AFTER,
    FENCED_BY_ALL,   /* each thread its own part, ahead of the barrier; another thread counts */
    WRITTEN_AT_LAST, /* between the fence and the count */
    PLAIN_COUNT,     /* a count without an atomic operation */
};

struct message {
    float *part; /* (BLOCKS, THREADS) */
    unsigned *arrived;
    float *sum; /* (THREADS) */
    enum fault fault;
};

/* The last block that has written its part adds up all of them. */
static void message(struct message p)
{
    __shared__ bool last;
    unsigned own = threadIdx.x;
    unsigned all = gridDim.x - 1;
    float *part = p.part + (size_t)blockIdx.x * THREADS;

    part[own] = (float)(blockIdx.x * THREADS + own);
    if (p.fault == FENCED_BY_ALL) {
        __threadfence();
    }
    if (p.fault != NO_BARRIER_BEFORE) {
        __syncthreads(); /* part: written by all */
    }
    if (own == 0) {
        if (p.fault != NO_FENCE_BEFORE && p.fault != FENCED_BY_ALL) {
            __threadfence();
        }
        if (p.fault == WRITTEN_AT_LAST) {
            part[1] = (float)(blockIdx.x * THREADS + 1);
        }
        if (p.fault == PLAIN_COUNT) {
            last = (*p.arrived)++ == all;
        } else {
            last = atomicInc(p.arrived, all) == all;
        }
        if (p.fault != NO_FENCE_AFTER) {
            __threadfence();
        }
    }
    if (p.fault != NO_BARRIER_AFTER) {
        __syncthreads(); /* last: written by one */
    }
    if (last) {
        float sum = 0;

        for (unsigned i = 0; i < gridDim.x; i++) {
            sum += __ldcg(p.part + i * THREADS + own);
        }
        p.sum[own] = sum;
    }
}

/* Reads what the next block writes. */
static void neighbour(float *x, float *y)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;

    x[i] = 1;
    __syncthreads();
    y[i] = x[(i + THREADS) % N];
}

/* All blocks write one word, all the same value. */
static void same_word(float *x)
{
    if (threadIdx.x == 0) {
        x[3] = 1;
    }
}

/* Blocks that run at once, each with its own shared memory: others[block] is how many it has met,
 * wrong[block] whether it found what was not its own. */
static void beside(int *running, int *others, int *wrong)
{
    __shared__ int fixed[THREADS];
    int *dynamic = (int *)emu_shared();
    int own = (int)threadIdx.x;
    int block = (int)blockIdx.x;
    int bad = 0;

    fixed[own] = block;
    dynamic[own] = block;
    if (own == 0) {
        others[block] = atomicAdd(running, 1);
    }
    for (int i = 0; i < 4; i++) {
        __syncthreads();
        bad += fixed[(own + 1) % THREADS] != block || dynamic[(own + 1) % THREADS] != block;
    }
    if (__syncthreads_count(bad) > 0) {
        bad = 1;
    }
    if (own == 0) {
        atomicAdd(running, -1);
        wrong[block] = bad;
    }
}

enum reading { UNASKED, WAITS, AHEAD, AHEAD_OLD };

/* Of the kernel ahead it reads what it does not wait for; or it waits; or it says that it reads
 * ahead, what that one wrote or what nobody did. */
static void early(float *x, float *y, enum reading reading)
{
    float v = 1;

    if (reading == WAITS) {
        emu_grid_wait(__FILE__, __LINE__);
    }
    emu_grid_ahead(reading >= AHEAD);
    v = reading == AHEAD_OLD ? y[threadIdx.x] + 1 : x[threadIdx.x];
    emu_grid_ahead(false);
    if (reading != WAITS) {
        emu_grid_wait(__FILE__, __LINE__);
    }
    y[(blockIdx.x + 1) * THREADS + threadIdx.x] = v;
}

static void large(float *x)
{
    x[blockIdx.x * THREADS + threadIdx.x] = 1;
}

static void copies(const float *from, float *to)
{
    to[blockIdx.x * THREADS + threadIdx.x] = from[blockIdx.x * THREADS + threadIdx.x];
}

/* ---- the cases ------------------------------------------------------------------------------ */

static cudaStream_t stream;
static float *x, *y; /* (N) of the device */
static int *words;   /* (N) */

template <typename... P> static void known(const char *name, void (*kernel)(P...))
{
    struct cudaFuncAttributes a;

    emu_known(name, kernel);
    cudaFuncGetAttributes(&a, (const void *)kernel);
}

static cudaError_t launch(const void *kernel, void **args)
{
    return cudaLaunchKernel(kernel, dim3(BLOCKS), dim3(THREADS), args, THREADS * sizeof(int),
                            stream);
}

template <typename... P> static bool runs(const char *name, void (*kernel)(P...), P... arg)
{
    void *args[] = {&arg...};

    known(name, kernel);
    return launch((const void *)kernel, args) == cudaSuccess;
}

template <typename T> static void fetch(T *to, const T *from, size_t n)
{
    cudaMemcpyAsync(to, from, n * sizeof(T), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
}

static bool sends(enum fault fault)
{
    struct message p = {x, (unsigned *)words, y, fault};
    float sum[THREADS];
    bool right = true;

    for (int i = 0; i < 3; i++) { /* the count is 0 again each time */
        cudaMemsetAsync(y, 0, sizeof(sum), stream);
        right = right && runs("message", message, p);
        fetch(sum, y, THREADS);
        for (int j = 0; j < THREADS; j++) {
            right = right && sum[j] == (float)(THREADS * BLOCKS * (BLOCKS - 1) / 2 + BLOCKS * j);
        }
    }
    return right;
}

static bool run_beside(void)
{
    int *others = words + 1;
    int *wrong = others + BLOCKS;
    int got[2 * BLOCKS];
    int most = 0;
    bool right = runs("beside", beside, words, others, wrong);

    fetch(got, words + 1, 2 * BLOCKS);
    for (int i = 0; i < BLOCKS; i++) {
        most = max(most, got[i]);
        right = right && got[BLOCKS + i] == 0;
    }
    return right && most == EMU_BLOCKS - 1;
}

static struct cudaKernelNodeParams node(const void *kernel, void **args, unsigned shared)
{
    return {const_cast<void *>(kernel), dim3(BLOCKS), dim3(THREADS), shared, args, NULL};
}

static bool run_early(enum reading reading)
{
    static const struct cudaGraphEdgeData edge = {cudaGraphKernelNodePortProgrammatic, 0,
                                                  cudaGraphDependencyTypeProgrammatic, {}};
    void *args[] = {&x, &y, &reading};
    struct cudaKernelNodeParams first = node((const void *)large, args, 0);
    struct cudaKernelNodeParams second = node((const void *)early, args, 0);
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaGraphNode_t n[2];
    float got[N];
    bool right;

    known("large", large);
    known("early", early);
    cudaMemsetAsync(y, 0, THREADS * sizeof(*y), stream);
    cudaGraphCreate(&g, 0);
    cudaGraphAddKernelNode(&n[0], g, NULL, 0, &first);
    cudaGraphAddKernelNode(&n[1], g, NULL, 0, &second);
    cudaGraphAddDependencies(g, &n[0], &n[1], &edge, 1);
    right = cudaGraphInstantiate(&e, g, 0) == cudaSuccess &&
            cudaGraphLaunch(e, stream) == cudaSuccess;
    fetch(got, y + THREADS, N);
    return right && got[0] == 1 && got[N - 1] == 1;
}

/* A limit of dynamic shared memory that is lowered, for a later launch, while one that was written
 * down before needs more: that one fails. */
static bool run_lowered(void)
{
    void *args[] = {&x};
    struct cudaKernelNodeParams p = node((const void *)large, args, LARGE);
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaGraphNode_t n;

    known("large", large);
    cudaGraphCreate(&g, 0);
    if (cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE) ||
        cudaGraphAddKernelNode(&n, g, NULL, 0, &p) || cudaGraphInstantiate(&e, g, 0) ||
        cudaGraphLaunch(e, stream)) {
        return false;
    }
    return cudaFuncSetAttribute(large, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE / 2) ==
               cudaSuccess &&
           cudaGraphLaunch(e, stream) == cudaErrorInvalidConfiguration;
}

/* What a kernel of the main chain does beside one on the side, which copies x to y. */
enum besides { APART, READS_RESULT, WRITES_SOURCE };

/* The main chain: x is written, something beside, z made of y, which waits for the side. */
static bool run_side(enum besides besides, bool graph)
{
    float *z = (float *)words;
    void *fill[] = {&x};
    void *side[] = {&x, &y};
    void *main[] = {besides == READS_RESULT ? &y : &x, &z};
    void *join[] = {&y, &z};
    cudaStream_t second;
    cudaEvent_t event[2];
    cudaGraph_t g;
    cudaGraphExec_t e;
    cudaGraphNode_t n[4];
    struct cudaKernelNodeParams p[] = {
        node((const void *)large, fill, 0), node((const void *)copies, side, 0),
        besides == WRITES_SOURCE ? node((const void *)large, fill, 0)
                                 : node((const void *)copies, main, 0),
        node((const void *)copies, join, 0)};
    cudaGraphNode_t behind[2];
    float got[N];
    bool right;

    known("large", large);
    known("copies", copies);
    if (graph) {
        cudaGraphCreate(&g, 0);
        cudaGraphAddKernelNode(&n[0], g, NULL, 0, &p[0]);
        cudaGraphAddKernelNode(&n[1], g, &n[0], 1, &p[1]);
        cudaGraphAddKernelNode(&n[2], g, &n[0], 1, &p[2]);
        behind[0] = n[2];
        behind[1] = n[1];
        cudaGraphAddKernelNode(&n[3], g, behind, 2, &p[3]);
        right = cudaGraphInstantiate(&e, g, 0) == cudaSuccess &&
                cudaGraphLaunch(e, stream) == cudaSuccess;
    } else {
        cudaStreamCreateWithPriority(&second, cudaStreamNonBlocking, 0);
        cudaEventCreateWithFlags(&event[0], cudaEventDisableTiming);
        cudaEventCreateWithFlags(&event[1], cudaEventDisableTiming);
        right = launch(p[0].func, p[0].kernelParams) == cudaSuccess;
        cudaEventRecord(event[0], stream);
        cudaStreamWaitEvent(second, event[0], 0);
        cudaLaunchKernel(p[1].func, dim3(BLOCKS), dim3(THREADS), side, 0, second);
        right = launch(p[2].func, p[2].kernelParams) == cudaSuccess && right;
        cudaEventRecord(event[1], second);
        cudaStreamWaitEvent(stream, event[1], 0);
        right = launch(p[3].func, p[3].kernelParams) == cudaSuccess && right;
    }
    fetch(got, z, N);
    return right && got[0] == 1 && got[N - 1] == 1;
}

/* 1: what the case computes is right. A process runs one case. */
EMU_API int emu_case(int i)
{
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    cudaMalloc((void **)&x, N * sizeof(*x));
    cudaMalloc((void **)&y, (N + THREADS) * sizeof(*y));
    cudaMalloc((void **)&words, N * sizeof(*words));
    cudaMemsetAsync(words, 0, N * sizeof(*words), stream);
    switch (i - PLAIN_COUNT) {
    case 1:
        return runs("neighbour", neighbour, x, y);
    case 2:
        return runs("same_word", same_word, x);
    case 3:
        return run_beside();
    case 4:
        return run_early(WAITS);
    case 5:
        return run_early(UNASKED);
    case 6:
        return run_lowered();
    case 7:
        return run_early(AHEAD);
    case 8:
        return run_early(AHEAD_OLD);
    case 9:
    case 10:
    case 11:
    case 12:
    case 13:
    case 14:
        return run_side((enum besides)((i - PLAIN_COUNT - 9) % 3), i - PLAIN_COUNT < 12);
    default:
        return sends((enum fault)i);
    }
}
