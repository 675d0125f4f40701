/* SPDX-License-Identifier: Apache-2.0 */
/* The device's memory: one reserved piece of the address space, accessible only while a kernel or a
 * copy runs. And the host's that is pinned or mapped, and the copies between them. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

static const size_t GAP = 4096;
static const size_t LARGE = 1 << 20;
static const size_t HUGE_PAGE = 2 << 20;
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

struct piece {
    size_t at, bytes;
    struct piece *next;
};

static uint8_t *device;
static struct piece *pieces; /* by address */
uint64_t emu_bytes_held;
uint64_t emu_n_late;
static size_t device_end; /* what was ever used; what lies behind it stays closed */

void emu_open_device(bool open)
{
    static size_t changed_end;
    static bool is_open;

    open = open || EMU_BLOCKS > 1; /* there to stay: each access is seen */
    if (open == is_open && device_end == changed_end) {
        return;
    }
    is_open = open;
    changed_end = device_end;
    if (device_end > 0 && mprotect(device, device_end, open ? PROT_READ | PROT_WRITE : PROT_NONE)) {
        perror("emu: mprotect");
        abort();
    }
}

const uint8_t *emu_device(void)
{
    return device;
}

static bool is_device(const void *p)
{
    return (const uint8_t *)p >= device && (const uint8_t *)p < device + EMU_DEVICE_BYTES;
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    size_t need = (bytes + GAP + 255) & ~(size_t)255;
    struct piece **at = &pieces;
    size_t from = 0;
    cudaError_t e = emu_fails();

    if (e != cudaSuccess) {
        return e;
    }
    if (!device) {
        void *p = mmap(NULL, EMU_DEVICE_BYTES + HUGE_PAGE, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            return cudaErrorMemoryAllocation;
        }
        device = (uint8_t *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
        /* A huge page is opened and closed by one word; without them it takes longer. */
        (void)madvise(device, EMU_DEVICE_BYTES, MADV_HUGEPAGE);
    }
    while (*at && (*at)->at - from < need) {
        from = (*at)->at + (((*at)->bytes + GAP + 255) & ~(size_t)255);
        at = &(*at)->next;
    }
    if (need > EMU_DEVICE_BYTES || from > EMU_DEVICE_BYTES - need) {
        return cudaErrorMemoryAllocation;
    }
    struct piece *p = (struct piece *)malloc(sizeof(*p));

    if (!p) {
        return cudaErrorMemoryAllocation;
    }
    *p = piece{from, bytes, *at};
    *at = p;
    emu_bytes_held += bytes;
    size_t whole = device_end & ~(HUGE_PAGE - 1);

    device_end = from + need > device_end ? (from + need + 4095) & ~(size_t)4095 : device_end;
    emu_open_device(true);
    /* Small pages of what is a whole huge page by now. */
    (void)madvise(device + whole, (device_end & ~(HUGE_PAGE - 1)) - whole, MADV_COLLAPSE);
    memset(device + from, 0xff, bytes < LARGE ? bytes : LARGE); /* the rest: 0, and untouched */
    emu_open_device(false);
    *ret = device + from;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    for (struct piece **at = &pieces; p && *at; at = &(*at)->next) {
        if (device + (*at)->at == p) {
            struct piece *gone = *at;

            *at = gone->next;
            emu_bytes_held -= gone->bytes;
            free(gone);
            return cudaSuccess;
        }
    }
    return p ? cudaErrorInvalidValue : cudaSuccess;
}

bool emu_is_held(const struct emu_range *r)
{
    for (const struct piece *p = pieces; p; p = p->next) {
        const uint8_t *at = device + p->at;

        if ((const uint8_t *)r->at >= at && (const uint8_t *)r->at + r->bytes <= at + p->bytes) {
            return true;
        }
    }
    return false;
}

/* ---- pinned memory and copies --------------------------------------------------------------- */

/* Copies into pinned memory end when they are waited for, as late as they may: until then the bytes
 * there are none that anybody should read. */
struct late {
    uint8_t *to;
    uint8_t data[4096];
    size_t n;
    uint64_t number;
};

static struct late late[8];
static uint8_t *pinned[16];

void emu_end_copies(uint64_t up_to)
{
    for (struct late &l : late) {
        if (l.to && l.number <= up_to) {
            memcpy(l.to, l.data, l.n);
            l.to = NULL;
        }
    }
}

static bool copy_late(void *to, const void *from, size_t n)
{
    bool is_pinned = false;

    for (uint8_t *p : pinned) {
        is_pinned = is_pinned ||
                    (p && (uint8_t *)to >= p && (uint8_t *)to < p + *(size_t *)(void *)(p - 64));
    }
    for (struct late &l : late) {
        if (is_pinned && n <= sizeof(l.data) && !l.to) {
            l.to = (uint8_t *)to;
            l.n = n;
            l.number = ++emu_n_late;
            memcpy(l.data, from, n);
            memset(to, 0xee, n);
            return true;
        }
    }
    return false;
}

cudaError_t cudaMallocHost(void **ret, size_t bytes)
{
    cudaError_t e = emu_fails();
    size_t *p = e == cudaSuccess ? (size_t *)malloc(bytes + 64) : NULL;

    if (!p) {
        return e != cudaSuccess ? e : cudaErrorMemoryAllocation;
    }
    *p = bytes;
    emu_bytes_held += bytes;
    *ret = (uint8_t *)p + 64;
    for (uint8_t *&at : pinned) {
        if (!at) {
            at = (uint8_t *)*ret;
            break;
        }
    }
    return cudaSuccess;
}

static uint8_t *mapped[16]; /* memory of the host that kernels reach, pinned like other */

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    cudaError_t e =
        flags == cudaHostAllocMapped ? cudaMallocHost(ret, bytes) : cudaErrorInvalidValue;

    for (int i = 0; i < 16 && e == cudaSuccess; i++) {
        if (!mapped[i]) {
            mapped[i] = (uint8_t *)*ret;
            memset(*ret, 0xff, bytes);
            return e;
        }
    }
    return e;
}

cudaError_t cudaHostGetDevicePointer(void **ret, void *host, unsigned)
{
    *ret = host;
    return emu_fails();
}

static bool is_mapped(const void *p)
{
    bool is = false;

    for (uint8_t *m : mapped) {
        is = is ||
             (m && (const uint8_t *)p >= m && (const uint8_t *)p < m + *(size_t *)(void *)(m - 64));
    }
    return is;
}

cudaError_t cudaFreeHost(void *p)
{
    emu_end_copies(emu_n_late);
    for (uint8_t *&at : mapped) {
        at = at == p ? NULL : at;
    }
    for (uint8_t *&at : pinned) {
        at = at == p ? NULL : at;
    }
    if (p) {
        size_t *own = (size_t *)(void *)((uint8_t *)p - 64);

        emu_bytes_held -= *own;
        free(own);
    }
    return cudaSuccess;
}

/* A host pointer where a device's belongs, or the other way round, is what crashes on a GPU. */
static bool kinds(const void *to, const void *from, cudaMemcpyKind k)
{
    if (k == cudaMemcpyDefault) {
        return (is_device(to) || is_mapped(to)) && (is_device(from) || is_mapped(from));
    }
    return is_device(to) == (k != cudaMemcpyDeviceToHost) &&
           is_device(from) == (k != cudaMemcpyHostToDevice);
}

cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind k, cudaStream_t)
{
    cudaError_t e = emu_fails();

    if (e != cudaSuccess) {
        return e;
    }
    if (!kinds(to, from, k)) {
        return cudaErrorInvalidValue;
    }
    emu_open_device(true);
    for (size_t i = 0; i < height; i++) {
        if (k == cudaMemcpyDeviceToHost && height == 1 && copy_late(to, from, width)) {
            break;
        }
        memmove((uint8_t *)to + i * to_pitch, (const uint8_t *)from + i * from_pitch, width);
    }
    emu_open_device(false);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, k, s);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t)
{
    cudaError_t e = emu_fails();

    /* Of mapped memory of the host the manual says nothing. */
    if (e != cudaSuccess || !is_device(p)) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    emu_open_device(true);
    if (value == 0 && n > 2 * HUGE_PAGE) { /* pages that nobody touched cost nothing to protect */
        uintptr_t from = ((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1);
        uintptr_t to = ((uintptr_t)p + n) & ~(uintptr_t)(HUGE_PAGE - 1);

        memset(p, 0, from - (uintptr_t)p);
        memset((void *)to, 0, (uintptr_t)p + n - to);
        if (madvise((void *)from, to - from, MADV_DONTNEED)) {
            memset(p, 0, n);
        }
    } else {
        memset(p, value, n);
    }
    emu_open_device(false);
    return cudaSuccess;
}
