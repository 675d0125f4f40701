/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of a launch: one after another, forwards or backwards; with EMU_ORDER up to EMU_BLOCKS
 * of them in turns that a seed decides (EMU_SEED), at barriers, fences and atomic operations. */

#include "emu_impl.cuh"

#include <cstdlib>

static uint8_t shared_memory[EMU_BLOCKS][EMU_SHARED_MAX] __attribute__((aligned(128)));

void *emu_shared(void)
{
    return shared_memory[emu_index / EMU_MAX_THREADS];
}

#if defined(EMU_ORDER)
/* __shared__ is C++'s thread_local there, and the module's code asks this function where such a
 * variable is, not libc's, for this one is the module's own. at: the module, the variable. */
extern "C" __attribute__((visibility("hidden"))) void *__tls_get_addr(const size_t at[2])
{
    static uint8_t variables[EMU_BLOCKS][16 << 20] __attribute__((aligned(128)));

    return variables[emu_index / EMU_MAX_THREADS] + at[1];
}
#endif

int emu_any_of(int n)
{
    static const char *const text = getenv("EMU_SEED");
    static uint64_t state = text ? strtoull(text, NULL, 10) * 2 + 1 : 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)n);
}

/* ---- between blocks -------------------------------------------------------------------------- */

template <typename T> static T add(T *p, T v)
{
    if constexpr (EMU_BLOCKS > 1) {
        emu_order_atomic(p);
    }
    T old = *p;

    *p = old + v;
    return old;
}

int atomicAdd(int *p, int v)
{
    return add(p, v);
}

unsigned long long atomicAdd(unsigned long long *p, unsigned long long v)
{
    return add(p, v);
}

unsigned atomicInc(unsigned *p, unsigned last)
{
    if constexpr (EMU_BLOCKS > 1) {
        emu_order_atomic(p);
    }
    unsigned old = *p;

    *p = old >= last ? 0 : old + 1;
    return old;
}

void emu_fence([[maybe_unused]] const char *file, [[maybe_unused]] int line)
{
    if constexpr (EMU_BLOCKS > 1) {
        emu_order_fence(file, line);
    }
}

/* ---- the blocks of a launch ----------------------------------------------------------------- */

void emu_run_grid(int schedule, size_t shared)
{
    const dim3 &grid = emu_where.grid_dim;
    uint32_t n = grid.x * grid.y * grid.z;
    uint32_t next = 0;
    dim3 block[EMU_BLOCKS];
    bool live[EMU_BLOCKS] = {};
    int n_live = 0;
    int slot;

    if constexpr (EMU_BLOCKS > 1) {
        emu_order_launch();
    }
    while (next < n || n_live > 0) {
        for (int i = 0; i < EMU_BLOCKS && next < n; i++) {
            if (!live[i]) {
                /* in other orders, too: nobody may count on who comes last */
                uint32_t k = schedule == 0 ? next : n - 1 - next;

                block[i] = dim3(k % grid.x, k / grid.x % grid.y, k / grid.x / grid.y);
                memset(shared_memory[i], 0xff, shared);
                if constexpr (EMU_BLOCKS > 1) {
                    emu_order_block(i, k);
                } else if (emu_kernel.early) {
                    emu_open_device(false); /* until all of the block's threads have waited */
                }
                emu_begin_block(i);
                live[i] = true;
                n_live++;
                next++;
            }
        }
        do {
            slot = emu_any_of(EMU_BLOCKS);
        } while (!live[slot]);
        emu_where.block = block[slot];
        live[slot] = emu_run_threads(slot, schedule);
        n_live -= !live[slot];
    }
}
