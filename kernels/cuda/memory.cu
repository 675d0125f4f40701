/* SPDX-License-Identifier: Apache-2.0 */
/* The device's memory, and bytes on their way between it and the host.
 *
 * Memory is cudaMalloc's, zeroed on the stream; after weights are loaded nothing is allocated.
 * Small writes (page tables, every few tokens) go through pinned memory and do not wait; when it is
 * used up, the stream is waited for once. Large ones (weights, snapshots) are copied straight and
 * waited for. `fetch` leaves a copy and an event in the stream, and `fetched` waits for that event
 * alone, so the step launched in between is not waited for.
 *
 * Each call hands over the launches written down before it touches the device (cuda_queue_flush),
 * so the order of calls is kept. Mapped memory is the host's, pinned, at the same address on both
 * sides; it is listed, because cudaMemsetAsync may not touch it. */

#include <cerrno>

#include "kernels/cuda/backend.cuh"

/* ---- taken and given back ------------------------------------------------------------------- */

int cuda_alloc(struct backend *be, uint64_t bytes, const char *what, void **ret,
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

/* Nothing uses what is to be freed. */
static void settle(struct cuda *cu)
{
    (void)cuda_queue_flush(cu);
    (void)cudaStreamSynchronize(cu->stream);
}

void cuda_free(struct backend *be, void *device, uint64_t bytes)
{
    (void)bytes;
    if (device) {
        settle(cuda_of(be));
        (void)cudaFree(device);
    }
}

/* The device's address of memory of the host. On every device that is served (64 bits, unified
 * addresses) it is the host's own. */
int cuda_alloc_mapped(struct backend *be, uint64_t bytes, const char *what, void **ret,
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

void cuda_free_mapped(struct backend *be, void *device, uint64_t bytes)
{
    (void)bytes;
    if (device) {
        settle(cuda_of(be));
        for (auto &m : cuda_of(be)->mapped) {
            m.at = m.at == device ? NULL : m.at;
        }
        (void)cudaFreeHost(device);
    }
}

int cuda_free_bytes(struct backend *be, uint64_t *ret)
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

/* ---- moved ---------------------------------------------------------------------------------- */

int cuda_sync(struct backend *be)
{
    struct cuda *cu = cuda_of(be);
    int launched = cuda_queue_flush(cu);
    int r = cuda_err(cu, cudaStreamSynchronize(cu->stream), "cudaStreamSynchronize");

    cu->stage_used = 0;
    return launched < 0 ? launched : r;
}

int cuda_write(struct backend *be, void *device, const void *host, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    size_t n = (size_t)cuda_round_up(bytes, 256);
    int r = cuda_queue_flush(cu);

    if (bytes == 0 || r < 0) {
        return r < 0 ? r : cuda_err(cu, cudaSuccess, "write");
    }
    if (n > CUDA_STAGE / 4) {
        r = cuda_err(
            cu, cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice, cu->stream),
            "write");
        return r < 0 ? r : cuda_sync(be);
    }
    if (cu->stage_used + n > CUDA_STAGE) {
        r = cuda_sync(be); /* what was copied into it before must have left it */
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

int cuda_read(struct backend *be, void *host, const void *device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_flush(cu);

    if (bytes > 0 && r == 0) {
        r = cuda_err(
            cu, cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost, cu->stream),
            "read");
    }
    return r < 0 ? r : cuda_sync(be);
}

/* A copy behind what was launched, and an event behind the copy: what is launched afterwards is not
 * waited for. */
int cuda_fetch(struct backend *be, int place, const void *device, uint64_t bytes)
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

int cuda_fetched(struct backend *be, int place, void *host, uint64_t bytes)
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

int cuda_copy(struct backend *be, void *device, const void *from_device, uint64_t bytes)
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

int cuda_zero(struct backend *be, void *device, uint64_t bytes)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_queue_flush(cu);

    if (bytes == 0 || r < 0) {
        return r;
    }
    if (is_mapped(cu, device)) { /* cudaMemsetAsync is for the device's memory */
        r = cuda_sync(be);
        if (r == 0) {
            memset(device, 0, (size_t)bytes);
        }
        return r;
    }
    return cuda_err(cu, cudaMemsetAsync(device, 0, (size_t)bytes, cu->stream), "zero");
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
        r = cuda_sync(&cu->be); /* small writes may still be under way from there */
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
    int waited = cuda_sync(&cu->be);

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
        return cuda_write(&cu->be, p->device, from, bytes);
    }
    r = cuda_sync(&cu->be); /* what was there before has been used */
    if (r == 0) {
        memcpy(p->host, from, (size_t)bytes);
    }
    return r;
}

int cuda_piece_read(struct cuda *cu, struct cuda_piece *p, void *to, uint64_t bytes)
{
    int r;

    if (!p->host) {
        return cuda_read(&cu->be, to, p->device, bytes);
    }
    r = cuda_sync(&cu->be);
    if (r == 0) {
        memcpy(to, p->host, (size_t)bytes);
    }
    return r;
}
