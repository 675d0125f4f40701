/* SPDX-License-Identifier: Apache-2.0 */
/* The emulator of emu.cuh: fibers, barriers, matrix fragments, and a run-time library over one
 * reserved piece of memory that is accessible only while a kernel or a copy runs. */

#include "emu.cuh"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

extern "C" {
#include "base/clock.h"
#include "quant/half.h"
}

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    MAX_THREADS = 1024,
    MAX_COPIES = 128, /* of a thread, under way */
    STACK = 256 << 10,
    SHARED_MAX = EMU_SHARED_MAX
};
enum state { READY, WAIT_WARP, WAIT_BLOCK, DONE };

struct emu_where emu_where;

struct async_copy {
    void *to;
    const void *from;
    size_t bytes;
    int group;
};

/* What switching touches, in as few lines as can be: most of the emulator's time goes there. */
struct fiber {
#if defined(__x86_64__)
    void *sp;
#else
    ucontext_t context;
#endif
    dim3 thread;
    enum state state;
    unsigned mask;
    int parity;
    const char *file;
    int line;
    int n_copies, group;
    bool waited; /* emu_grid_wait */
};

struct warp {
    uint64_t words[2][32];
    float ha[2][32][8], hb[2][32][4];
    int8_t qa[2][32][16], qb[2][32][8];
};

static struct fiber fibers[MAX_THREADS];
static struct async_copy copies[MAX_THREADS][MAX_COPIES];
static struct warp warps[MAX_THREADS / 32];
static uint8_t *stacks;
static struct fiber *current;
static int current_index;
static int warp_first, warp_n, warp_at; /* the warp that runs, and the place of `current` in its order */
static int warp_schedule;
static int n_threads;
static void (*kernel_run)(void *);
static void *kernel_arg;
static const char *kernel_name;
static bool kernel_early; /* launched before the one ahead has ended */
static uint8_t shared_memory[SHARED_MAX] __attribute__((aligned(128)));

/* ---- switching ------------------------------------------------------------------------------ */

#if defined(__x86_64__)
static void *main_sp;
extern "C" void emu_switch(void **save, void *to);
asm(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n"
    ".size emu_switch,.-emu_switch\n");
#else
static ucontext_t main_context;
#endif

#if defined(__SANITIZE_ADDRESS__)
static const void *main_stack;
static size_t main_stack_size;
static void *main_fake;

static void leave_main(int i)
{
    __sanitizer_start_switch_fiber(&main_fake, stacks + (size_t)i * STACK, STACK);
}
static void enter_main(void)
{
    __sanitizer_finish_switch_fiber(main_fake, NULL, NULL);
}
static void enter_fiber(void)
{
    __sanitizer_finish_switch_fiber(NULL, &main_stack, &main_stack_size);
}
static void leave_fiber(bool done)
{
    static void *fake[MAX_THREADS];

    __sanitizer_start_switch_fiber(done ? NULL : &fake[current_index], main_stack, main_stack_size);
}
#else
static void leave_main(int)
{
}
static void enter_main(void)
{
}
static void enter_fiber(void)
{
}
static void leave_fiber(bool)
{
}
#endif

static void to_main(bool done)
{
    leave_fiber(done);
#if defined(__x86_64__)
    emu_switch(&current->sp, main_sp);
#else
    swapcontext(&current->context, &main_context);
#endif
    enter_fiber();
}

static void fiber_main(void)
{
    enter_fiber();
    kernel_run(kernel_arg);
    if (current->n_copies > 0) {
        emu_async_wait(0); /* a thread may end with copies under way */
    }
    if (kernel_early && !current->waited) {
        fprintf(stderr, "emu: %s begins early and does not wait\n", kernel_name);
        abort();
    }
    current->state = DONE;
    to_main(true);
    abort();
}

static void become(int i)
{
    current = &fibers[i];
    current_index = i;
    emu_where.thread = current->thread;
}

static void run_fiber(int i)
{
    become(i);
    leave_main(i);
#if defined(__x86_64__)
    emu_switch(&main_sp, current->sp);
#else
    swapcontext(&main_context, &current->context);
#endif
    enter_main();
}

static void start_fiber(int i)
{
    struct fiber *f = &fibers[i];
    uint8_t *stack = stacks + (size_t)i * STACK;

    f->state = READY;
    f->parity = 0;
    f->n_copies = 0;
    f->group = 0;
    f->waited = false;
    f->thread = dim3((unsigned)i % emu_where.block_dim.x,
                     (unsigned)i / emu_where.block_dim.x % emu_where.block_dim.y,
                     (unsigned)i / emu_where.block_dim.x / emu_where.block_dim.y);
#if defined(__x86_64__)
    /* Stacks are a power of two apart: at equal offsets their tops would share a few sets of the cache. */
    void **sp = (void **)(stack + STACK - 64 - i % 61 * 1088);

    *--sp = NULL; /* keeps the stack as a call leaves it */
    *--sp = (void *)fiber_main;
    sp -= 6;
    memset(sp, 0, 6 * sizeof(void *));
    f->sp = sp;
#else
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
#endif
}

/* ---- barriers ------------------------------------------------------------------------------- */

/* Order in which threads run: forwards, backwards, or by a stride that visits all of 32. */
static int in_order(int i, int n, int schedule)
{
    return schedule == 0 ? i : schedule == 1 ? n - 1 - i : n == 32 ? i * 13 % 32 : n - 1 - i;
}

/* The next lane of the warp that can run from place `at` of its order on, -1: none. */
static int next_lane(int at)
{
    for (; at < warp_n; at++) {
        int i = warp_first + in_order(at, warp_n, warp_schedule);

        if (fibers[i].state == READY) {
            warp_at = at;
            return i;
        }
    }
    return -1;
}

/* The running thread waits: to the next one of its warp, without a way by the main stack. */
static void to_next(void)
{
#if defined(__SANITIZE_ADDRESS__)
    to_main(false);
#else
    struct fiber *from = current;
    int next = next_lane(warp_at + 1);

    if (next < 0) {
        to_main(false);
        return;
    }
    become(next);
#if defined(__x86_64__)
    emu_switch(&from->sp, current->sp);
#else
    swapcontext(&from->context, &current->context);
#endif
#endif
}

void emu_sync_block(const char *file, int line)
{
    current->state = WAIT_BLOCK;
    current->file = file;
    current->line = line;
    to_next();
}

void emu_sync_warp(unsigned mask, const char *file, int line)
{
    current->state = WAIT_WARP;
    current->mask = mask;
    current->file = file;
    current->line = line;
    to_next();
}

int emu_lane(void)
{
    return current_index % 32;
}

/* Two buffers in turn: a lane that is one exchange ahead does not overwrite what others read. */
const uint64_t *emu_exchange(unsigned mask, uint64_t word, const char *file, int line)
{
    struct warp *w = &warps[current_index / 32];
    int parity = current->parity ^= 1;

    w->words[parity][current_index % 32] = word;
    emu_sync_warp(mask, file, line);
    return w->words[parity];
}

void *emu_shared(void)
{
    return shared_memory;
}

static void stuck(void)
{
    fprintf(stderr, "emu: %s: block (%u, %u, %u) is stuck, threads wait at\n", kernel_name,
            emu_where.block.x, emu_where.block.y, emu_where.block.z);
    for (int i = 0; i < n_threads; i++) {
        const struct fiber *f = &fibers[i];

        if (i == 0 || f->state != f[-1].state || f->line != f[-1].line) {
            fprintf(stderr, "  %d: %s %s:%d\n", i,
                    f->state == DONE        ? "done"
                    : f->state == WAIT_WARP ? "warp barrier"
                                            : "block barrier",
                    f->state == DONE ? "" : f->file, f->state == DONE ? 0 : f->line);
        }
    }
    abort();
}

/* Lets the lanes of a warp go whose whole mask waits; true when there were some. */
static bool release_warp(int first, int n)
{
    unsigned waiting = 0;
    unsigned go = 0;

    for (int i = 0; i < n; i++) {
        waiting |= fibers[first + i].state == WAIT_WARP ? 1u << i : 0;
    }
    for (int i = 0; i < n; i++) {
        unsigned mask = fibers[first + i].mask & (n == 32 ? ~0u : (1u << n) - 1);

        if (waiting >> i & 1 && (mask & ~waiting) == 0) {
            go |= 1u << i;
        }
    }
    for (int i = 0; i < n; i++) {
        if (go >> i & 1) {
            fibers[first + i].state = READY;
        }
    }
    return go != 0;
}

static void run_block(int schedule)
{
    int n_warps = (n_threads + 31) / 32;
    int left = n_threads;

    for (int i = 0; i < n_threads; i++) {
        start_fiber(i);
    }
    while (left > 0) {
        bool moved = false;

        for (int j = 0; j < n_warps; j++) {
            int first = in_order(j, n_warps, schedule) * 32;
            int n = n_threads - first < 32 ? n_threads - first : 32;

            warp_first = first;
            warp_n = n;
            warp_schedule = n == 32 ? schedule : schedule % 2;
            do {
                for (int i = next_lane(0); i >= 0; i = next_lane(warp_at + 1)) {
                    run_fiber(i);
                    left -= current->state == DONE; /* those between waited */
                    moved = true;
                }
            } while (release_warp(first, n));
        }
        int at_barrier = 0;

        for (int i = 0; i < n_threads; i++) {
            at_barrier += fibers[i].state == WAIT_BLOCK;
        }
        if (left > 0 && at_barrier == left) {
            for (int i = 0; i < n_threads; i++) {
                if (fibers[i].state == WAIT_BLOCK) {
                    fibers[i].state = READY;
                }
            }
        } else if (left > 0 && !moved) {
            stuck();
        }
    }
}

/* ---- matrix fragments ----------------------------------------------------------------------- */

static float half_of(uint32_t word, int i, bool bf16)
{
    uint16_t h = (uint16_t)(word >> (16 * i));

    return bf16 ? half_bf16_to_f32(h) : half_f16_to_f32(h);
}

void emu_mma_half(float c[4], const uint32_t a[4], const uint32_t b[2], bool bf16)
{
    struct warp *w = &warps[current_index / 32];
    int lane = current_index % 32;
    int parity = current->parity ^= 1;

    for (int i = 0; i < 8; i++) {
        w->ha[parity][lane][i] = half_of(a[i / 2], i % 2, bf16);
    }
    for (int i = 0; i < 4; i++) {
        w->hb[parity][lane][i] = half_of(b[i / 2], i % 2, bf16);
    }
    emu_sync_warp(~0u, "mma", 0);
    for (int j = 0; j < 4; j++) {
        int row = j / 2; /* + 8 */
        int col = lane % 4 * 2 + j % 2;

        for (int k = 0; k < 16; k++) {
            const float *fa = w->ha[parity][lane / 4 * 4 + k % 8 / 2];
            const float *fb = w->hb[parity][col * 4 + k % 8 / 2];

            c[j] += fa[(k / 8 * 2 + row) * 2 + k % 2] * fb[k / 8 * 2 + k % 2];
        }
    }
}

void emu_mma_s8(int c[4], const uint32_t *a, const uint32_t *b, int n_b)
{
    struct warp *w = &warps[current_index / 32];
    int lane = current_index % 32;
    int parity = current->parity ^= 1;

    memcpy(w->qa[parity][lane], a, (size_t)n_b * 8);
    memcpy(w->qb[parity][lane], b, (size_t)n_b * 4);
    emu_sync_warp(~0u, "mma", 0);
    for (int j = 0; j < 4; j++) {
        int row = j / 2;
        int col = lane % 4 * 2 + j % 2;

        for (int k = 0; k < 16 * n_b; k++) {
            const int8_t *fa = w->qa[parity][lane / 4 * 4 + k % 16 / 4];
            const int8_t *fb = w->qb[parity][col * 4 + k % 16 / 4];

            c[j] += fa[(k / 16 * 2 + row) * 4 + k % 4] * fb[k / 16 * 4 + k % 4];
        }
    }
}

void emu_matrix_load4(const void *row, uint32_t ret[4], bool trans)
{
    const uint64_t *rows = emu_exchange(~0u, (uint64_t)(uintptr_t)row, "ldmatrix", 0);
    int lane = current_index % 32;

    if ((uintptr_t)row % 16 != 0) {
        fprintf(stderr, "emu: %s: ldmatrix from an address that is not aligned\n", kernel_name);
        abort();
    }
    for (int i = 0; i < 4; i++) {
        uint16_t e[2];

        for (int j = 0; j < 2; j++) {
            int r = trans ? lane % 4 * 2 + j : lane / 4;
            int c = trans ? lane / 4 : lane % 4 * 2 + j;

            e[j] = ((const uint16_t *)(uintptr_t)rows[i * 8 + r])[c];
        }
        ret[i] = e[0] | (uint32_t)e[1] << 16;
    }
}
#include "emu_group.cuh" /* wgmma */
/* ---- cp.async ------------------------------------------------------------------------------- */

void emu_async_copy(void *to, const void *from, size_t bytes)
{
    if (current->n_copies == MAX_COPIES) {
        fprintf(stderr, "emu: %s: more copies under way than the emulator keeps\n", kernel_name);
        abort();
    }
    copies[current_index][current->n_copies++] = async_copy{to, from, bytes, current->group};
}

void emu_async_commit(void)
{
    current->group++;
}

void emu_async_wait(int n_pending)
{
    int kept = 0;

    for (int i = 0; i < current->n_copies; i++) {
        struct async_copy *c = &copies[current_index][i];

        if (c->group < current->group - n_pending) {
            memcpy(c->to, c->from, c->bytes);
        } else {
            copies[current_index][kept++] = *c;
        }
    }
    current->n_copies = kept;
}

/* ---- memory --------------------------------------------------------------------------------- */

static const size_t DEVICE_BYTES = (size_t)3 << 30;
static const size_t GAP = 4096;
static const size_t LARGE = 1 << 20;

struct piece {
    size_t at, bytes;
    struct piece *next;
};

static uint8_t *device;
static struct piece *pieces; /* by address */
static uint64_t held;
static size_t device_end; /* what was ever used */
static int n_devices = 1;
static int fail_after;
static cudaError_t fail_code;
static cudaError_t last_error;
static bool fail_sticky;

static void open_device(bool open)
{
    if (device_end > 0 && mprotect(device, device_end, open ? PROT_READ | PROT_WRITE : PROT_NONE)) {
        perror("emu: mprotect");
        abort();
    }
}

/* Of a kernel that begins early: all threads come here before the first goes on. */
void emu_grid_wait(const char *file, int line)
{
    current->waited = true;
    if (kernel_early) {
        emu_sync_block(file, line);
        if (current_index == 0) {
            open_device(true);
        }
        emu_sync_block(file, line);
    }
}

static bool is_device(const void *p)
{
    return (const uint8_t *)p >= device && (const uint8_t *)p < device + DEVICE_BYTES;
}

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

extern "C" __attribute__((visibility("default"))) void emu_fail(int n, int code)
{
    fail_after = n;
    fail_code = (cudaError_t)code;
    fail_sticky = false;
    last_error = cudaSuccess;
}

extern "C" __attribute__((visibility("default"))) int emu_pending(void)
{
    return fail_after > 0;
}

extern "C" __attribute__((visibility("default"))) uint64_t emu_held(void)
{
    return held;
}

extern "C" __attribute__((visibility("default"))) void emu_devices(int n)
{
    n_devices = n;
}

static int integrated;

extern "C" __attribute__((visibility("default"))) void emu_integrated(int yes)
{
    integrated = yes;
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
        void *p = mmap(NULL, DEVICE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            return cudaErrorMemoryAllocation;
        }
        device = (uint8_t *)p;
    }
    while (*at && (*at)->at - from < need) {
        from = (*at)->at + (((*at)->bytes + GAP + 255) & ~(size_t)255);
        at = &(*at)->next;
    }
    if (need > DEVICE_BYTES || from > DEVICE_BYTES - need) {
        return cudaErrorMemoryAllocation;
    }
    struct piece *p = (struct piece *)malloc(sizeof(*p));

    if (!p) {
        return cudaErrorMemoryAllocation;
    }
    *p = piece{from, bytes, *at};
    *at = p;
    held += bytes;
    device_end = from + need > device_end ? (from + need + 4095) & ~(size_t)4095 : device_end;
    open_device(true);
    memset(device + from, 0xff, bytes < LARGE ? bytes : LARGE); /* the rest: 0, and untouched */
#if defined(__SANITIZE_ADDRESS__)
    ASAN_UNPOISON_MEMORY_REGION(device + from, bytes);
    ASAN_POISON_MEMORY_REGION(device + from + ((bytes + 7) & ~(size_t)7), need - ((bytes + 7) & ~(size_t)7));
#endif
    open_device(false);
    *ret = device + from;
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    for (struct piece **at = &pieces; p && *at; at = &(*at)->next) {
        if (device + (*at)->at == p) {
            struct piece *gone = *at;

            *at = gone->next;
            held -= gone->bytes;
#if defined(__SANITIZE_ADDRESS__)
            ASAN_UNPOISON_MEMORY_REGION(p, gone->bytes + GAP);
#endif
            free(gone);
            return cudaSuccess;
        }
    }
    return p ? cudaErrorInvalidValue : cudaSuccess;
}

/* Copies into pinned memory end when they are waited for, as late as they may: until then the bytes there
 * are none that anybody should read. */
struct late {
    uint8_t *to;
    uint8_t data[4096];
    size_t n;
    uint64_t number;
};

struct emu_event {
    uint64_t number; /* of the last copy before it */
    int64_t ns;
    cudaStream_t stream;
};

static struct late late[8];
static uint8_t *pinned[16];
static uint64_t n_late;

static void end_copies(uint64_t up_to)
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
        is_pinned = is_pinned || (p && (uint8_t *)to >= p && (uint8_t *)to < p + *(size_t *)(void *)(p - 64));
    }
    for (struct late &l : late) {
        if (is_pinned && n <= sizeof(l.data) && !l.to) {
            l.to = (uint8_t *)to;
            l.n = n;
            l.number = ++n_late;
            memcpy(l.data, from, n);
            memset(to, 0xee, n);
            return true;
        }
    }
    return false;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned)
{
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaEvent_t)calloc(1, sizeof(**ret));
        held++;
    }
    return e;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    held--;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->number = n_late;
    e->ns = clock_ns();
    e->stream = s;
    return emu_fails();
}

static cudaError_t run_later(cudaStream_t s);

/* The emulator's time is the host's: kernels have run when they were launched. */
cudaError_t cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    *ret_ms = (float)((double)(to->ns - from->ns) / 1e6);
    return emu_fails();
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    end_copies(e->number);
    return emu_fails();
}

/* The first stream's kernels have run anyway. */
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t e, unsigned)
{
    cudaError_t r = emu_fails();

    return r == cudaSuccess && e->stream->second ? run_later(e->stream) : r;
}

cudaError_t cudaMallocHost(void **ret, size_t bytes)
{
    cudaError_t e = emu_fails();
    size_t *p = e == cudaSuccess ? (size_t *)malloc(bytes + 64) : NULL;

    if (!p) {
        return e != cudaSuccess ? e : cudaErrorMemoryAllocation;
    }
    *p = bytes;
    held += bytes;
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
    cudaError_t e = flags == cudaHostAllocMapped ? cudaMallocHost(ret, bytes) : cudaErrorInvalidValue;

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
        is = is || (m && (const uint8_t *)p >= m && (const uint8_t *)p < m + *(size_t *)(void *)(m - 64));
    }
    return is;
}

cudaError_t cudaFreeHost(void *p)
{
    end_copies(n_late);
    for (uint8_t *&at : mapped) {
        at = at == p ? NULL : at;
    }
    for (uint8_t *&at : pinned) {
        at = at == p ? NULL : at;
    }
    if (p) {
        size_t *own = (size_t *)(void *)((uint8_t *)p - 64);

        held -= *own;
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
    open_device(true);
    for (size_t i = 0; i < height; i++) {
        if (k == cudaMemcpyDeviceToHost && height == 1 && copy_late(to, from, width)) {
            break;
        }
        memmove((uint8_t *)to + i * to_pitch, (const uint8_t *)from + i * from_pitch, width);
    }
    open_device(false);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, cudaMemcpyKind k, cudaStream_t s)
{
    return cudaMemcpy2DAsync(to, n, from, n, n, 1, k, s);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t)
{
    cudaError_t e = emu_fails();

    if (e != cudaSuccess || !is_device(p)) { /* of mapped memory of the host the manual says nothing */
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    open_device(true);
    if (value == 0 && n > 2 * LARGE) { /* pages that nobody touched cost nothing to protect */
        uintptr_t from = ((uintptr_t)p + 4095) & ~(uintptr_t)4095;
        uintptr_t to = ((uintptr_t)p + n) & ~(uintptr_t)4095;

        memset(p, 0, from - (uintptr_t)p);
        memset((void *)to, 0, (uintptr_t)p + n - to);
        if (madvise((void *)from, to - from, MADV_DONTNEED)) {
            memset(p, 0, n);
        }
    } else {
        memset(p, value, n);
    }
    open_device(false);
    return cudaSuccess;
}

/* ---- device, streams, launches -------------------------------------------------------------- */

/* Are the bytes of one allocation? */
static bool is_held(const struct emu_range *r)
{
    for (const struct piece *p = pieces; p; p = p->next) {
        const uint8_t *at = device + p->at;

        if ((const uint8_t *)r->at >= at && (const uint8_t *)r->at + r->bytes <= at + p->bytes) {
            return true;
        }
    }
    return false;
}

static cudaError_t run_work(const char *name, void (*work)(void *arg), void *arg,
                            const struct emu_range *touched, int n)
{
    cudaError_t e = emu_fails();

    for (int i = 0; i < n && e == cudaSuccess; i++) {
        if (!is_held(&touched[i])) {
            fprintf(stderr, "emu: %s: operand %d is not the device's\n", name, i);
            abort();
        }
    }
    if (e != cudaSuccess) {
        return last_error = e;
    }
    open_device(true);
    work(arg);
    open_device(false);
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                   ? "no error"
           : e == cudaErrorNoDevice           ? "no CUDA-capable device is detected"
           : e == cudaErrorMemoryAllocation   ? "out of memory"
           : e == cudaErrorIllegalAddress     ? "an illegal memory access was encountered"
           : e == cudaErrorInvalidValue       ? "invalid argument"
           : e == cudaErrorInsufficientDriver ? "CUDA driver version is insufficient for CUDA runtime version"
                                              : "an error of the emulator";
}

const char *cudaGetErrorName(cudaError_t e)
{
    return e == cudaErrorIllegalAddress ? "cudaErrorIllegalAddress" : "cudaError";
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;

    last_error = cudaSuccess;
    return e;
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
    ret->multiProcessorCount = 8;
    ret->integrated = integrated;
    ret->totalGlobalMem = DEVICE_BYTES;
    ret->sharedMemPerBlockOptin = SHARED_MAX;
    return emu_fails();
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    *ret_total = DEVICE_BYTES;
    *ret_free = DEVICE_BYTES - held;
    return emu_fails();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned)
{
    static int n_streams;
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaStream_t)calloc(1, sizeof(**ret));
        (*ret)->schedule = n_streams++ % 3;
        (*ret)->run = run_work;
        held++;
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
        held++;
    }
    return e;
}

static void drop_later(cudaStream_t s);

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    drop_later(s);
    free(s);
    held--;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    end_copies(n_late);
    return emu_fails();
}

static void run_kernel(const char *name, size_t shared_allowed, dim3 grid, dim3 block, size_t shared,
                       cudaStream_t stream, bool early, void (*run)(void *), void *arg)
{
    cudaError_t e = cudaSuccess;

    n_threads = (int)(block.x * block.y * block.z);
    if (e == cudaSuccess && (n_threads == 0 || n_threads > MAX_THREADS || shared > shared_allowed ||
                             grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.y > 65535 ||
                             grid.z > 65535)) {
        e = cudaErrorInvalidConfiguration;
    }
    if (e != cudaSuccess) {
        last_error = e;
        return;
    }
    if (!stacks) {
        void *p = mmap(NULL, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            perror("emu: stacks");
            abort();
        }
        stacks = (uint8_t *)p;
    }
    kernel_name = name;
    kernel_early = early;
    kernel_run = run;
    kernel_arg = arg;
    emu_where.block_dim = block;
    emu_where.grid_dim = grid;
    open_device(true);
    for (unsigned z = 0; z < grid.z; z++) {
        for (unsigned y = 0; y < grid.y; y++) {
            for (unsigned x = 0; x < grid.x; x++) {
                int schedule = stream ? stream->schedule : 0;

                /* blocks in other orders, too: nobody may count on who comes last */
                emu_where.block = schedule == 0 ? dim3(x, y, z)
                                                : dim3(grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z);
                memset(shared_memory, 0xff, shared);
                if (early) {
                    open_device(false); /* until all of the block's threads have waited */
                }
                run_block(schedule);
            }
        }
    }
    open_device(false);
}

/* ---- kernels by address --------------------------------------------------------------------- */

struct known {
    const char *name;
    const void *kernel;
    emu_call_fn *call;
    const size_t *sizes;
    int n;
};

static struct known known[512];
static int n_known;
static int counts[4];

extern "C" __attribute__((visibility("default"))) void emu_counts(int ret[4])
{
    memcpy(ret, counts, sizeof(counts));
    memset(counts, 0, sizeof(counts));
}

static const struct known *find_known(const void *kernel)
{
    for (int i = 0; i < n_known; i++) {
        if (known[i].kernel == kernel) {
            return &known[i];
        }
    }
    return NULL;
}

void emu_register(const char *name, const void *kernel, emu_call_fn *call, const size_t *sizes, int n)
{
    if (find_known(kernel)) {
        return;
    }
    if (n_known == (int)(sizeof(known) / sizeof(known[0]))) {
        fprintf(stderr, "emu: more kernels than the emulator keeps\n");
        abort();
    }
    known[n_known++] = {name, kernel, call, sizes, n};
}

struct packed {
    const struct known *k;
    void **args;
};

static void run_packed(void *arg)
{
    struct packed *p = (struct packed *)arg;

    p->k->call(p->k->kernel, p->args);
}

static cudaError_t launch_packed(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                 cudaStream_t stream, bool early)
{
    static struct packed p; /* kernels do not launch kernels */

    size_t allowed = emu_shared_allowed(kernel);

    p = {find_known(kernel), args};
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

/* A kernel that waits to be waited for. */
struct emu_later {
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    uint8_t *bytes[16]; /* arguments */
    struct emu_later *next;
};

static cudaError_t launch_later(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                                cudaStream_t s)
{
    const struct known *k = find_known(kernel);
    struct emu_later **end = &s->later;
    struct emu_later *l = (struct emu_later *)calloc(1, sizeof(*l));

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

static void drop_later(cudaStream_t s)
{
    while (s->later) {
        drop_first(s);
    }
}

static cudaError_t run_later(cudaStream_t s)
{
    cudaError_t e = cudaSuccess;

    while (s->later) {
        struct emu_later *l = s->later;

        e = e != cudaSuccess ? e : launch_packed(l->kernel, l->grid, l->block, (void **)l->bytes,
                                                 l->shared, s, false);
        drop_first(s);
    }
    return e;
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    cudaError_t e = emu_fails();

    counts[0]++;
    if (e == cudaSuccess && stream->second) {
        return launch_later(kernel, grid, block, args, shared, stream);
    }
    return e != cudaSuccess ? e : launch_packed(kernel, grid, block, args, shared, stream, false);
}

/* ---- graphs: chains of kernels with branches ------------------------------------------------ */

struct emu_node {
    const struct known *k;
    dim3 grid, block;
    unsigned shared;
    uint8_t *bytes[16]; /* arguments */
    struct emu_node *before[2], *next; /* edges from; the first says what the main chain is */
    int n_before;
    bool early;      /* that edge is a programmatic one */
    bool main, done; /* of the launch under way */
};

struct emu_graph {
    struct emu_node *first, *last;
    bool exec; /* shares its graph's nodes */
};

static cudaError_t set_node(struct emu_node *n, const struct cudaKernelNodeParams *p)
{
    const struct known *k = find_known(p->func);

    if (!k || (n->k && n->k != k) || k->n > 16 || p->extra) {
        return cudaErrorInvalidValue;
    }
    n->k = k;
    n->grid = p->gridDim;
    n->block = p->blockDim;
    n->shared = p->sharedMemBytes;
    for (int i = 0; i < k->n; i++) {
        if (!n->bytes[i]) {
            n->bytes[i] = (uint8_t *)malloc(k->sizes[i]);
        }
        memcpy(n->bytes[i], p->kernelParams[i], k->sizes[i]);
    }
    return cudaSuccess;
}

cudaError_t cudaGraphCreate(cudaGraph_t *ret, unsigned)
{
    cudaError_t e = emu_fails();

    if (e == cudaSuccess) {
        *ret = (cudaGraph_t)calloc(1, sizeof(**ret));
        held++;
    }
    return e;
}

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *ret, cudaGraph_t g, const cudaGraphNode_t *after,
                                   size_t n_after, const struct cudaKernelNodeParams *p)
{
    cudaError_t e = emu_fails();
    struct emu_node *n;

    if (e != cudaSuccess || n_after > 2) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    n = (struct emu_node *)calloc(1, sizeof(*n));
    e = set_node(n, p);
    if (e != cudaSuccess) {
        free(n);
        return e;
    }
    for (size_t i = 0; i < n_after; i++) {
        n->before[n->n_before++] = after[i];
    }
    (g->last ? g->last->next : g->first) = n;
    g->last = n;
    *ret = n;
    return cudaSuccess;
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t g, const cudaGraphNode_t *from,
                                     const cudaGraphNode_t *to,
                                     const struct cudaGraphEdgeData *edge, size_t n)
{
    cudaError_t e = emu_fails();
    struct emu_node *node = *to;

    if (e != cudaSuccess || n != 1 || node != g->last || node->n_before > 0 || *from == node ||
        edge->from_port != cudaGraphKernelNodePortProgrammatic || edge->to_port != 0 ||
        edge->type != cudaGraphDependencyTypeProgrammatic) {
        return e != cudaSuccess ? e : cudaErrorInvalidValue;
    }
    node->before[node->n_before++] = *from;
    node->early = true;
    return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t g, unsigned long long)
{
    cudaError_t e = emu_fails();

    for (struct emu_node *n = g->first; n && e == cudaSuccess; n = n->next) {
        e = n->n_before > 0 || n == g->first ? cudaSuccess : cudaErrorInvalidValue;
    }
    if (e == cudaSuccess) {
        counts[1]++;
        *ret = (cudaGraphExec_t)calloc(1, sizeof(**ret));
        **ret = emu_graph{g->first, g->last, true};
        held++;
    }
    return e;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    cudaError_t e = emu_fails();

    counts[2]++;
    return e != cudaSuccess ? e : set_node(node, p);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return emu_fails();
}

/* The node, and before it what it waits for. */
static cudaError_t run_node(struct emu_node *n, cudaStream_t stream)
{
    cudaError_t e = cudaSuccess;
    void *args[16];

    for (int i = 0; i < n->n_before && e == cudaSuccess; i++) {
        e = n->before[i]->done ? e : run_node(n->before[i], stream);
    }
    for (int i = 0; i < n->k->n; i++) {
        args[i] = n->bytes[i];
    }
    n->done = true;
    if (e == cudaSuccess) {
        e = launch_packed(n->k->kernel, n->grid, n->block, args, n->shared, stream, n->early);
    }
    return e;
}

/* The main chain leads back from the last node; what branches off runs as late as it may. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t stream)
{
    cudaError_t e = emu_fails();

    counts[3]++;
    for (struct emu_node *n = g->first; n; n = n->next) {
        n->main = n->done = false;
    }
    for (struct emu_node *n = g->last; n; n = n->n_before > 0 ? n->before[0] : NULL) {
        n->main = true;
    }
    for (int all = 0; all < 2; all++) {
        for (struct emu_node *n = g->first; n && e == cudaSuccess; n = n->next) {
            if ((all || n->main) && !n->done) {
                e = run_node(n, stream);
            }
        }
    }
    return e;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g)
{
    free(g);
    held--;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    for (struct emu_node *n = g->first; n;) {
        struct emu_node *next = n->next;

        for (int i = 0; i < 16; i++) {
            free(n->bytes[i]);
        }
        free(n);
        n = next;
    }
    free(g);
    held--;
    return cudaSuccess;
}
