/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of a block as fibers: switching, barriers, exchanges between the lanes of a warp. A
 * thread runs until it waits; barriers that some threads do not reach end the process. */

#include "emu_impl.cuh"

#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

enum { STACK = 256 << 10 };
enum state { READY, WAIT_WARP, WAIT_BLOCK, DONE };

struct emu_where emu_where;
struct emu_kernel emu_kernel;
int emu_index;

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
    bool waited; /* emu_grid_wait */
    bool ahead;  /* emu_grid_ahead */
};

static struct fiber fibers[EMU_FIBERS];
static uint64_t exchanged[EMU_FIBERS / 32][2][32];
static uint8_t *stacks;
static struct fiber *current;
static int warp_first, warp_n; /* the warp that runs */
static int warp_at;            /* the place of `current` in its order */
static int warp_schedule;
static bool gives_way; /* the thread that ran can go on, but another block is to run first */

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

static void to_main(void)
{
#if defined(__x86_64__)
    emu_switch(&current->sp, main_sp);
#else
    swapcontext(&current->context, &main_context);
#endif
}

static void fiber_main(void)
{
    emu_kernel.run(emu_kernel.arg);
    emu_async_end();
    if (emu_kernel.early && !current->waited) {
        fprintf(stderr, "emu: %s begins early and does not wait\n", emu_kernel.name);
        abort();
    }
    current->state = DONE;
    to_main();
    abort();
}

static void become(int i)
{
    current = &fibers[i];
    emu_index = i;
    emu_where.thread = current->thread;
}

static void run_fiber(int i)
{
    become(i);
#if defined(__x86_64__)
    emu_switch(&main_sp, current->sp);
#else
    swapcontext(&main_context, &current->context);
#endif
}

static void start_fiber(int i)
{
    struct fiber *f = &fibers[i];
    uint8_t *stack = stacks + (size_t)i * STACK;
    unsigned at = (unsigned)i % EMU_MAX_THREADS;

    f->state = READY;
    f->parity = 0;
    f->waited = false;
    f->ahead = false;
    f->thread =
        dim3(at % emu_where.block_dim.x, at / emu_where.block_dim.x % emu_where.block_dim.y,
             at / emu_where.block_dim.x / emu_where.block_dim.y);
#if defined(__x86_64__)
    /* Stacks are a power of two apart: at equal offsets their tops would share a few sets of the
     * cache. */
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
    struct fiber *from = current;
    int next = next_lane(warp_at + 1);

    if (next < 0) {
        to_main();
        return;
    }
    become(next);
#if defined(__x86_64__)
    emu_switch(&from->sp, current->sp);
#else
    swapcontext(&from->context, &current->context);
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
    return emu_index % 32;
}

int emu_next_parity(void)
{
    return current->parity ^= 1;
}

const uint64_t *emu_exchange(unsigned mask, uint64_t word, const char *file, int line)
{
    uint64_t *words = exchanged[emu_index / 32][emu_next_parity()];

    words[emu_index % 32] = word;
    emu_sync_warp(mask, file, line);
    return words;
}

/* Of a kernel that begins early: all threads come here before the first goes on, for the device is
 * closed to all or to none. Where each access is seen, none waits. */
void emu_grid_wait(const char *file, int line)
{
    current->waited = true;
    if (emu_kernel.early && EMU_BLOCKS == 1) {
        emu_sync_block(file, line);
        if (emu_index == 0) {
            emu_open_device(true);
        }
        emu_sync_block(file, line);
    }
}

/* The device is open to all while one of the threads reads ahead; where each access is seen, to
 * that one alone. */
void emu_grid_ahead(bool on)
{
    static int n;

    if (emu_kernel.early && !current->waited) {
        current->ahead = on;
        n += on ? 1 : -1;
        if (EMU_BLOCKS == 1) {
            emu_open_device(n > 0);
        }
    }
}

bool emu_is_ahead(void)
{
    return emu_kernel.early && !current->waited && current->ahead;
}

void emu_check_waited(void)
{
    if (emu_kernel.early && !current->waited && !current->ahead) {
        fprintf(stderr, "emu: %s: thread %d touches the device before it waits\n",
                emu_kernel.name, emu_index % EMU_MAX_THREADS);
        abort();
    }
}

void emu_yield(void)
{
    if (emu_any_of(2) == 0) {
        gives_way = true;
        to_main();
    }
}

static void stuck(const struct fiber *own)
{
    fprintf(stderr, "emu: %s: block (%u, %u, %u) is stuck, threads wait at\n", emu_kernel.name,
            emu_where.block.x, emu_where.block.y, emu_where.block.z);
    for (int i = 0; i < emu_kernel.n_threads; i++) {
        const struct fiber *f = &own[i];

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

static void open_stacks(void)
{
    if (!stacks) {
        void *p = mmap(NULL, (size_t)EMU_FIBERS * STACK, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED) {
            perror("emu: stacks");
            abort();
        }
        stacks = (uint8_t *)p;
    }
}

void emu_begin_block(int slot)
{
    open_stacks();
    for (int i = 0; i < emu_kernel.n_threads; i++) {
        start_fiber(slot * EMU_MAX_THREADS + i);
    }
}

bool emu_run_threads(int slot, int schedule)
{
    struct fiber *own = fibers + slot * EMU_MAX_THREADS;
    int n_warps = (emu_kernel.n_threads + 31) / 32;
    int at_barrier = 0;
    int done = 0;
    bool moved = false;

    for (int j = 0; j < n_warps; j++) {
        int first = in_order(j, n_warps, schedule) * 32;
        int n = emu_kernel.n_threads - first < 32 ? emu_kernel.n_threads - first : 32;

        warp_first = slot * EMU_MAX_THREADS + first;
        warp_n = n;
        warp_schedule = n == 32 ? schedule : schedule % 2;
        do {
            for (int i = next_lane(0); i >= 0; i = next_lane(warp_at + 1)) {
                run_fiber(i);
                moved = true;
                if (gives_way) {
                    gives_way = false;
                    return true;
                }
            }
        } while (release_warp(warp_first, n));
    }
    for (int i = 0; i < emu_kernel.n_threads; i++) {
        at_barrier += own[i].state == WAIT_BLOCK;
        done += own[i].state == DONE;
    }
    if (at_barrier > 0 && at_barrier + done == emu_kernel.n_threads) {
        const struct fiber *one = NULL;

        for (int i = 0; i < emu_kernel.n_threads; i++) {
            if (own[i].state == WAIT_BLOCK) {
                own[i].state = READY;
                one = &own[i];
            }
        }
        if constexpr (EMU_BLOCKS > 1) {
            emu_order_barrier(slot, one->file, one->line);
        }
    } else if (done < emu_kernel.n_threads && !moved) {
        stuck(own);
    }
    return done < emu_kernel.n_threads;
}
