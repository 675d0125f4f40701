/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels by their address, and launches: blocks run one after another, at once; those of a second
 * stream when they are waited for. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>

/* ---- kernels by address --------------------------------------------------------------------- */

static struct emu_known_kernel known[512];
static int n_known;
int emu_calls[4];

EMU_API void emu_counts(int ret[4])
{
    memcpy(ret, emu_calls, sizeof(emu_calls));
    memset(emu_calls, 0, sizeof(emu_calls));
}

const struct emu_known_kernel *emu_find_known(const void *kernel)
{
    for (int i = 0; i < n_known; i++) {
        if (known[i].kernel == kernel) {
            return &known[i];
        }
    }
    return NULL;
}

void emu_register(const char *name, const void *kernel, emu_call_fn *call, const size_t *sizes,
                  int n)
{
    if (emu_find_known(kernel)) {
        return;
    }
    if (n_known == (int)(sizeof(known) / sizeof(known[0]))) {
        fprintf(stderr, "emu: more kernels than the emulator keeps\n");
        abort();
    }
    known[n_known++] = {name, kernel, call, sizes, n};
}

/* ---- launches ------------------------------------------------------------------------------- */

cudaError_t emu_run_work(const char *name, void (*work)(void *arg), void *arg,
                         const struct emu_range *touched, int n)
{
    cudaError_t e = emu_fails();

    for (int i = 0; i < n && e == cudaSuccess; i++) {
        if (!emu_is_held(&touched[i])) {
            fprintf(stderr, "emu: %s: operand %d is not the device's\n", name, i);
            abort();
        }
    }
    if (e != cudaSuccess) {
        return emu_set_error(e);
    }
    emu_open_device(true);
    work(arg);
    emu_open_device(false);
    return cudaSuccess;
}

static void run_kernel(const char *name, size_t shared_allowed, dim3 grid, dim3 block,
                       size_t shared, cudaStream_t stream, bool early, void (*run)(void *),
                       void *arg)
{
    emu_kernel.n_threads = (int)(block.x * block.y * block.z);
    if (emu_kernel.n_threads == 0 || emu_kernel.n_threads > EMU_MAX_THREADS ||
        shared > shared_allowed || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
        grid.z > 65535) {
        emu_set_error(cudaErrorInvalidConfiguration);
        return;
    }
    emu_kernel.name = name;
    emu_kernel.early = early;
    emu_kernel.run = run;
    emu_kernel.arg = arg;
    emu_where.block_dim = block;
    emu_where.grid_dim = grid;
    emu_open_device(true);
    emu_run_grid(stream ? stream->schedule : 0, shared);
    emu_open_device(false);
}

struct packed {
    const struct emu_known_kernel *k;
    void **args;
};

static void run_packed(void *arg)
{
    struct packed *p = (struct packed *)arg;

    p->k->call(p->k->kernel, p->args);
}

cudaError_t emu_launch_packed(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                              cudaStream_t stream, bool early)
{
    static struct packed p; /* kernels do not launch kernels */

    size_t allowed = emu_shared_allowed(kernel);

    p = {emu_find_known(kernel), args};
    if (!p.k) {
        return cudaErrorInvalidValue;
    }
    if (allowed == 0) { /* its code would take memory that is in no plan */
        fprintf(stderr, "emu: %s was not loaded at the start\n", p.k->name);
        abort();
    }
    run_kernel(p.k->name, allowed, grid, block, shared, stream, early, run_packed, &p);
    return cudaGetLastError();
}

static unsigned side_after;

void emu_set_after(unsigned number)
{
    side_after = number;
}

/* A kernel that waits to be waited for. */
struct emu_later {
    unsigned after;
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    uint8_t *bytes[EMU_MAX_ARGS]; /* arguments */
    struct emu_later *next;
};

static cudaError_t launch_later(const void *kernel, dim3 grid, dim3 block, void **args,
                                size_t shared, cudaStream_t s)
{
    const struct emu_known_kernel *k = emu_find_known(kernel);
    struct emu_later **end = &s->later;
    struct emu_later *l = (struct emu_later *)calloc(1, sizeof(*l));

    l->after = side_after;
    l->kernel = kernel;
    l->grid = grid;
    l->block = block;
    l->shared = shared;
    for (int i = 0; k && i < k->n; i++) {
        l->bytes[i] = (uint8_t *)malloc(k->sizes[i]);
        memcpy(l->bytes[i], args[i], k->sizes[i]);
    }
    while (*end) {
        end = &(*end)->next;
    }
    *end = l;
    return cudaSuccess;
}

static void drop_first(cudaStream_t s)
{
    struct emu_later *l = s->later;

    s->later = l->next;
    for (uint8_t *b : l->bytes) {
        free(b);
    }
    free(l);
}

void emu_drop_later(cudaStream_t s)
{
    while (s->later) {
        drop_first(s);
    }
}

cudaError_t emu_run_later(cudaStream_t s)
{
    cudaError_t e = cudaSuccess;

    while (s->later) {
        struct emu_later *l = s->later;

        if (e == cudaSuccess) {
            emu_kernel.side = true;
            emu_kernel.after = l->after;
            e = emu_launch_packed(l->kernel, l->grid, l->block, (void **)l->bytes, l->shared, s,
                                  false);
            emu_kernel.side = false;
        }
        drop_first(s);
    }
    return e;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    cudaError_t e = emu_fails();

    emu_calls[0]++;
    if (e == cudaSuccess && stream->second) {
        return launch_later(kernel, grid, block, args, shared, stream);
    }
    return e == cudaSuccess
               ? emu_launch_packed(kernel, grid, block, args, shared, stream, false)
               : e;
}
