/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda backend's table: the device, its memory, scratch, and the module's entry point.
 *
 * Memory is cudaMalloc's, zeroed on the stream; after weights are loaded nothing is allocated.
 * Small writes (page tables, every few tokens) go through pinned memory and do not wait; when it is
 * used up, the stream is waited for once. Large ones (weights, snapshots) are copied straight and
 * waited for. Scratch is one allocation whose size follows from the limits, so that the plan needs
 * no device. */

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/cublas.cuh"
#include "kernels/cuda/expect.cuh"
#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/select.cuh"

extern "C" {
#include "kernels/module.h"
}

extern const struct backend_ops cuda_backend;

/* ---- scratch -------------------------------------------------------------------------------- */

static uint64_t at_least_one(int32_t n)
{
    return n > 0 ? (uint64_t)n : 1;
}

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

struct taker {
    uint8_t *base;
    uint64_t used;
};

template <typename T> static void take(struct taker *t, uint64_t n, T **ret)
{
    *ret = t->base ? reinterpret_cast<T *>(t->base + t->used) : NULL;
    t->used += round_up(n * sizeof(T), 256);
}

uint64_t cuda_scratch(const struct backend_limits *l, struct cuda_lt_use lt, uint8_t *base,
                      struct cuda_scratch *ret)
{
    struct taker t = {base, 0};
    uint64_t rows = at_least_one(cuda_prepared_rows(l));
    uint64_t cols = round_up(at_least_one(l->max_cols), 256);
    uint64_t heads = at_least_one(l->max_heads);
    uint64_t slots = round_up(at_least_one(l->max_slots), 64);
    uint64_t decode = at_least_one(l->max_decode);
    uint64_t chunks = 1;
    uint64_t observed = 0;
    uint64_t selected = 0;
    uint64_t expects = l->expect ? heads : 0;
    uint64_t dims = (uint64_t)expect_padded((int32_t)at_least_one(l->max_head_dim));
    uint64_t entries = l->max_experts > 0 ? at_least_one(cuda_entries(l)) : 0;
    uint64_t lt_rows = rows < (uint64_t)CUDA_LT_ROWS ? rows : (uint64_t)CUDA_LT_ROWS;
    uint64_t lt_weights = l->max_quantised < (uint64_t)CUDA_LT_SLAB ? l->max_quantised
                                                                    : (uint64_t)CUDA_LT_SLAB;

    for (int32_t n = 1; n < l->max_slots; n = n < 64 ? 64 : n * 2) { /* not monotonous */
        uint64_t c = cuda_div_up((uint64_t)n, (uint64_t)cuda_chunk(n));

        chunks = c > chunks ? c : chunks;
    }
    if (l->max_slots > 0) {
        uint64_t c = cuda_div_up(slots, (uint64_t)cuda_chunk(l->max_slots));

        chunks = c > chunks ? c : chunks;
    }
    if (l->max_slots > 0) {
        uint64_t c = (uint64_t)cuda_stream_chunks_most(l->max_slots);

        chunks = c > chunks ? c : chunks;
    }
    if (l->observe) { /* as many rows at once as 64 MiB hold */
        observed = ((uint64_t)64 << 20) / (heads * slots * sizeof(float));
        observed = observed < 1 ? 1 : observed > decode ? decode : observed;
    }
    lt_rows = lt.work > 0 ? lt_rows : 0;
    lt_weights = lt.work > 0 && lt.unpacks ? lt_weights : 0;
    if (l->select) {
        selected = ((uint64_t)64 << 20) / (heads * slots * sizeof(float));
        selected = selected < 1 ? 1 : selected > decode ? decode : selected;
        selected = selected < (uint64_t)CUDA_SEQS ? selected : (uint64_t)CUDA_SEQS; /* a launch's */
    }
    take(&t, rows * cols, &ret->xf);
    take(&t, 2 * rows * cols, &ret->xq);
    take(&t, rows * cols / 32, &ret->xd);
    take(&t, rows * cols / 32, &ret->xs);
    take(&t, 3 * rows * cols, &ret->xh);
    take(&t, rows, &ret->xe);
    take(&t, 2 * CUDA_CODES_BYTES(cols), &ret->row_codes);
    take(&t, decode * heads * chunks * (at_least_one(l->max_head_dim) + 4), &ret->part);
    take(&t, l->observe ? rows * heads * 2 : 0, &ret->sums);
    take(&t, observed * heads * slots, &ret->logits);
    take(&t, l->observe ? rows * heads * round_up(at_least_one(l->max_head_dim), 8) : 0,
         &ret->queries);
    take(&t, l->observe ? rows * heads : 0, &ret->query_factor);
    take(&t, selected * heads * slots, &ret->approx);
    take(&t, selected * heads * slots, &ret->mass);
    take(&t, selected * heads * (uint64_t)select_max_tiles(l->max_slots) * 2, &ret->tile);
    take(&t, selected * heads * SELECT_BINS, &ret->count);
    take(&t, selected * heads * slots, &ret->list);
    take(&t, selected * heads * 2, &ret->list_n);
    take(&t, selected * heads * 4, &ret->stats);
    take(&t, selected * heads * at_least_one(l->max_head_dim), &ret->skewed);
    take(&t, selected * heads, &ret->near);
    take(&t, (heads + 1) * slots, &ret->order);
    take(&t, heads + 1, &ret->flag);
    take(&t, lt_rows > 0 ? (lt_rows + 1) * round_up(at_least_one(l->max_outputs), 16) : 0,
         &ret->lt_sums);
    take(&t, lt.work, &ret->lt_work);
    take(&t, lt_weights, &ret->lt_slab);
    take(&t, entries * (uint64_t)(l->max_experts + 1), &ret->router);
    take(&t, entries, &ret->chosen);
    take(&t, entries, &ret->chosen_weight);
    take(&t, entries, &ret->entries);
    take(&t, entries, &ret->tiles);
    take(&t, entries * cols, &ret->hidden);
    take(&t, entries * cols, &ret->expert_out);
    take(&t, entries * cols, &ret->shared);
    take(&t, expects * dims, &ret->expect_mean);
    take(&t, expects * dims * dims, &ret->expect_square);
    take(&t, expects * 2, &ret->expect_tops);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * CUDA_SAMPLE_GROUPS, &ret->sample_best);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * CUDA_SAMPLE_GROUPS, &ret->sample_mass);
    take(&t, (uint64_t)CUDA_SAMPLE_ROWS * 2, &ret->sample_bounds);
    ret->bytes = t.used;
    take(&t, 3 * heads, &ret->arrived);
    take(&t, CUDA_SAMPLE_ROWS, &ret->sample_arrived);
    ret->n_observed = (int32_t)observed;
    ret->n_selected = (int32_t)selected;
    ret->lt_rows = (int32_t)lt_rows;
    ret->lt_weights = lt_weights;
    return t.used;
}

static uint64_t scratch_bytes(const struct backend_config *config,
                              const struct backend_limits *limits)
{
    struct cuda_scratch plan;

    return cuda_scratch(limits, cuda_lt_planned(config), NULL, &plan) + CUDA_PINNED +
           cuda_queue_bytes() + cuda_graph_bytes() + (uint64_t)CUDA_ALLOCS * CUDA_GRAIN;
}

static int reserve(struct backend *be, const struct backend_limits *limits, struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    struct cuda_scratch plan;
    struct cuda_lt_use lt = cuda_lt_held(cu);
    uint64_t bytes = cuda_scratch(limits, lt, NULL, &plan);
    void *base = NULL;
    int r = be->ops->alloc(be, bytes, "scratch of the cuda backend", &base, reterr);

    if (r < 0) {
        return r;
    }
    be->ops->free(be, cu->scratch_base, 0);
    cu->scratch_base = base;
    cu->limits = *limits;
    (void)cuda_scratch(limits, lt, static_cast<uint8_t *>(base), &cu->scratch);
    cuda_lt_limits(cu);
    return 0;
}

/* ---- memory --------------------------------------------------------------------------------- */

static int alloc(struct backend *be, uint64_t bytes, const char *what, void **ret,
                 struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    void *p = NULL;
    int r = cuda_queue_flush(cu);
    cudaError_t e;

    if (r < 0) {
        return error_set_errno(reterr, r, "%s", what);
    }
    e = cudaMalloc(&p, bytes > 0 ? (size_t)bytes : 1);

    if (e == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0;
        size_t total = 0;

        (void)cudaMemGetInfo(&free_bytes, &total);
        (void)cudaGetLastError();
        return error_set(reterr, -ENOMEM, "%s: %llu bytes, the device has %zu of %zu free", what,
                         (unsigned long long)bytes, free_bytes, total);
    }
    r = cuda_error(cu, e, what, reterr);
    if (r == 0) {
        r = cuda_error(cu, cudaMemsetAsync(p, 0, (size_t)bytes, cu->stream), what, reterr);
    }
    if (r < 0) {
        (void)cudaFree(p);
        return r;
    }
    *ret = p;
    return 0;
}

static void free_device(struct backend *be, void *device, uint64_t bytes)
{
    (void)bytes;
    if (device) {
        (void)cuda_queue_flush(cuda_of(be));
        (void)cudaStreamSynchronize(cuda_of(be)->stream);
        (void)cudaFree(device);
    }
}

/* The device's address of memory of the host. On every device that is served (64 bits, unified
 * addresses) it is the host's own. */
static int alloc_mapped(struct backend *be, uint64_t bytes, const char *what, void **ret,
                        struct error *reterr)
{
    struct cuda *cu = cuda_of(be);
    void *host = NULL;
    void *device = NULL;
    int r = cuda_queue_flush(cu);
    int place = 0;
    cudaError_t e;

    while (place < CUDA_MAPPED && cu->mapped[place].at) {
        place++;
    }
    r = r == 0 && place == CUDA_MAPPED ? -ENOSPC : r;
    if (r < 0) {
        return error_set_errno(reterr, r, "%s", what);
    }
    e = cudaHostAlloc(&host, bytes > 0 ? (size_t)bytes : 1, cudaHostAllocMapped);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(reterr, -ENOMEM,
                         "%s: the driver does not pin %llu bytes of the host's memory", what,
                         (unsigned long long)bytes);
    }
    r = cuda_error(cu, e, what, reterr);
    if (r < 0) {
        return r;
    }
    r = cuda_error(cu, cudaHostGetDevicePointer(&device, host, 0), what, reterr);
    if (r == 0 && device != host) {
        r = error_set(reterr, -ENOTSUP, "%s: the device has other addresses than the host", what);
    }
    if (r < 0) {
        (void)cudaFreeHost(host);
        return r;
    }
    memset(host, 0, (size_t)bytes);
    cu->mapped[place] = {static_cast<uint8_t *>(host), bytes};
    *ret = device;
    return 0;
}

static void free_mapped(struct backend *be, void *device, uint64_t bytes)
{
    (void)bytes;
    if (device) {
        (void)cuda_queue_flush(cuda_of(be));
        (void)cudaStreamSynchronize(cuda_of(be)->stream);
        for (auto &m : cuda_of(be)->mapped) {
            m.at = m.at == device ? NULL : m.at;
        }
        (void)cudaFreeHost(device);
    }
}

static int free_bytes(struct backend *be, uint64_t *ret)
{
    size_t available = 0;
    size_t total = 0;
    int r;

    if (cuda_of(be)->integrated) {
        *ret = UINT64_MAX; /* what the kernel says is free is right, what the driver says is not */
        return 1;
    }
    r = cuda_err(cuda_of(be), cudaMemGetInfo(&available, &total), "cudaMemGetInfo");

    if (r == 0) {
        *ret = available;
    }
    return r;
}

static int sync(struct backend *be)
{
    struct cuda *cu = cuda_of(be);
    int launched = cuda_queue_flush(cu);
    int r = cuda_err(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize");

    cu->stage_used = 0;
    return launched < 0 ? launched : r;
}

static int write(struct backend *be, void *device, const void *host, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    size_t n = (size_t)round_up(bytes, 256);
    int r = cuda_queue_flush(cu);

    if (bytes == 0 || r < 0) {
        return r < 0 ? r : cuda_err(cu, cudaSuccess, "write");
    }
    if (n > CUDA_STAGE / 4) {
        r = cuda_err(
            cu, cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, cu->stream),
            "write");
        return r < 0 ? r : sync(be);
    }
    if (cu->stage_used + n > CUDA_STAGE) {
        r = sync(be); /* what was copied into it before must have left it */
    }
    if (r == 0) {
        uint8_t *at = cu->stage + cu->stage_used;

        memcpy(at, host, (size_t)bytes);
        cu->stage_used += n;
        r = cuda_err(cu,
                     cudaMemcpyAsync(device, at, (size_t)bytes, cudaMemcpyHostToDevice, cu->stream),
                     "write");
    }
    return r;
}

static int read(struct backend *be, void *host, const void *device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_flush(cu);

    if (bytes > 0 && r == 0) {
        r = cuda_err(
            cu, cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, cu->stream),
            "read");
    }
    return r < 0 ? r : sync(be);
}

/* A copy behind what was launched, and an event behind the copy: what is launched afterwards is not
 * waited for. */
static int fetch(struct backend *be, int place, const void *device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_flush(cu);

    if (bytes > BACKEND_FETCH_BYTES || place < 0 || place >= BACKEND_FETCHES) {
        return -EINVAL;
    }
    if (r == 0) {
        r = cuda_err(cu,
                     cudaMemcpyAsync(cu->stage + CUDA_STAGE + place * BACKEND_FETCH_BYTES, device,
                                     (size_t)bytes, cudaMemcpyDeviceToHost, cu->stream),
                     "fetch");
    }
    return r < 0 ? r : cuda_err(cu, cudaEventRecord(cu->fetched[place], cu->stream), "fetch");
}

static int fetched(struct backend *be, int place, void *host, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    int r;

    if (bytes > BACKEND_FETCH_BYTES || place < 0 || place >= BACKEND_FETCHES) {
        return -EINVAL;
    }
    r = cuda_err(cu, cudaEventSynchronize(cu->fetched[place]), "cudaEventSynchronize");
    if (r == 0) {
        memcpy(host, cu->stage + CUDA_STAGE + place * BACKEND_FETCH_BYTES, (size_t)bytes);
    }
    return r;
}

/* ---- pieces --------------------------------------------------------------------------------- */

int cuda_piece_take(struct cuda *cu, uint64_t least, uint64_t most, struct cuda_piece *ret)
{
    void *own = NULL;
    int r = 0;

    *ret = {};
    r = cuda_queue_flush(cu);
    if (r < 0) {
        return r;
    }
    if (cu->integrated && least <= CUDA_STAGE) {
        r = sync(&cu->be); /* small writes may still be under way from there */
        ret->host = cu->stage;
        ret->device = cu->stage;
        ret->bytes = CUDA_STAGE;
    } else if (cu->scratch_base && least <= cu->scratch.bytes) {
        ret->device = static_cast<uint8_t *>(cu->scratch_base);
        ret->bytes = cu->scratch.bytes;
    } else {
        r = cuda_err(cu, cudaMalloc(&own, (size_t)most), "cudaMalloc");
        ret->device = static_cast<uint8_t *>(own);
        ret->bytes = most;
        ret->own = r == 0;
    }
    ret->bytes = ret->bytes > most ? most : ret->bytes;
    return r;
}

int cuda_piece_drop(struct cuda *cu, struct cuda_piece *p, int r)
{
    int waited = sync(&cu->be);

    if (p->own) {
        (void)cudaFree(p->device);
    }
    *p = {};
    return r < 0 ? r : waited;
}

int cuda_piece_write(struct cuda *cu, struct cuda_piece *p, const void *from, uint64_t bytes)
{
    int r;

    if (!p->host) {
        return write(&cu->be, p->device, from, bytes);
    }
    r = sync(&cu->be); /* what was there before has been used */
    if (r == 0) {
        memcpy(p->host, from, (size_t)bytes);
    }
    return r;
}

int cuda_piece_read(struct cuda *cu, struct cuda_piece *p, void *to, uint64_t bytes)
{
    int r;

    if (!p->host) {
        return read(&cu->be, to, p->device, bytes);
    }
    r = sync(&cu->be);
    if (r == 0) {
        memcpy(to, p->host, (size_t)bytes);
    }
    return r;
}

static int copy(struct backend *be, void *device, const void *from_device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);

    int r = cuda_queue_flush(cu);

    if (bytes == 0 || r < 0) {
        return r;
    }
    return cuda_err(
        cu, cudaMemcpyAsync(device, from_device, (size_t)bytes, cudaMemcpyDefault, cu->stream),
        "copy");
}

static bool is_mapped(const struct cuda *cu, const void *p)
{
    for (const auto &m : cu->mapped) {
        if (m.at && static_cast<const uint8_t *>(p) >= m.at &&
            static_cast<const uint8_t *>(p) < m.at + m.bytes) {
            return true;
        }
    }
    return false;
}

static int zero(struct backend *be, void *device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);

    int r = cuda_queue_flush(cu);

    if (bytes == 0 || r < 0) {
        return r;
    }
    if (is_mapped(cu, device)) { /* cudaMemsetAsync is for the device's memory */
        r = sync(be);
        if (r == 0) {
            memset(device, 0, (size_t)bytes);
        }
        return r;
    }
    return cuda_err(cu, cudaMemsetAsync(device, 0, (size_t)bytes, cu->stream), "zero");
}

/* ---- the device ----------------------------------------------------------------------------- */

static void destroy(struct backend *be)
{
    struct cuda *cu = cuda_of(be);

    if (!cu) {
        return;
    }
    if (cu->have_stream) {
        free_device(be, cu->scratch_base, 0);
        free_device(be, cu->slab, 0);
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

/* Is there a device that this module can use? Nothing is left behind.
 *
 * The first call of the run-time library in the process: the driver reads then how code is to be
 * loaded. LAZY: own kernels are loaded by cuda_code_load(), those of cublasLt as they are used. Who
 * has set the variable, knows why: that changes nothing then. pipit-engine has, before it had
 * threads; only another program is changed here. */
static int probe(struct error *reterr)
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

static int create(const struct backend_config *config, struct backend **ret, struct error *reterr)
{
    struct cuda *cu;
    int r = probe(reterr);

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
        destroy(&cu->be);
        return r;
    }
    *ret = &cu->be;
    return 0;
}

static void describe(const struct backend *be, char *buf, size_t size)
{
    const struct cuda *cu = reinterpret_cast<const struct cuda *>(be);
    char prefill[400];

    cuda_lt_describe(cu, prefill, sizeof(prefill));
    (void)snprintf(buf, size, "cuda: %s, %d multiprocessors, prefill_mma, %s%s%s%s",
                   cu->device_name, cu->n_sms, prefill,
                   cu->integrated ? ", shared memory with the host" : "",
                   cu->lost ? ", lost: " : "", cu->lost ? cu->cause : "");
}

static bool news(struct backend *be, char *buf, size_t size)
{
    struct cuda *cu = cuda_of(be);
    bool any = cu->news[0] != '\0';

    if (any) {
        (void)snprintf(buf, size, "%s", cu->news);
        cu->news[0] = '\0';
    }
    return any;
}

const struct backend_ops cuda_backend = {
    .name = "cuda",
    .selects = true,
    .async = true,
    .create = create,
    .destroy = destroy,
    .describe = describe,
    .news = news,
    .alloc = alloc,
    .free = free_device,
    .alloc_mapped = alloc_mapped,
    .free_mapped = free_mapped,
    .bring = cuda_bring,
    .free_bytes = free_bytes,
    .write = write,
    .read = read,
    .copy = copy,
    .zero = zero,
    .sync = sync,
    .scratch_bytes = scratch_bytes,
    .reserve = reserve,
    .weights_reserve = cuda_weights_reserve,
    .weight_bytes = cuda_weight_bytes,
    .weight_create = cuda_weight_create,
    .weight_destroy = cuda_weight_destroy,
    .kv_layout = cuda_kv_layout,
    .embed = cuda_embed,
    .norm = cuda_norm,
    .matmul = cuda_matmul,
    .experts = cuda_experts,
    .gather = cuda_gather,
    .mul = cuda_mul,
    .softcap = cuda_softcap,
    .rope_store = cuda_rope_store,
    .qkv_store = cuda_qkv_store,
    .attention = cuda_attention,
    .predict = cuda_predict,
    .conv = cuda_conv,
    .delta = cuda_delta,
    .gate = cuda_gate,
    .scan = cuda_scan,
    .kv_sum = cuda_kv_sum,
    .victim = cuda_victim,
    .cut = cuda_cut,
    .expect = cuda_expect,
    .kv_export = cuda_kv_export,
    .kv_import = cuda_kv_import,
    .sample = cuda_sample,
    .fetch = fetch,
    .fetched = fetched,
};

extern "C" __attribute__((visibility("default"))) const struct module pipit_backend_module;
const struct module pipit_backend_module = {
    .magic = MODULE_MAGIC,
    .ops_bytes = sizeof(struct backend_ops),
    .version = PIPIT_VERSION,
    .ops = &cuda_backend,
    .probe = probe,
};
