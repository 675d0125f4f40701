/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_EMU_EMU_IMPL_CUH
#define PIPIT_TESTS_CUDA_EMU_EMU_IMPL_CUH

/* What the emulator's own files share; kernels and their host code see emu.cuh alone.
 *
 *   fibers.cc      a block's threads: switching, barriers, exchanges of a warp
 *   grid.cc        a launch's blocks: their order, their shared memory
 *   matrix.cc      mma, ldmatrix, cp.async
 *   group.cc       wgmma
 *   memory.cc      the device's memory, pinned memory, copies
 *   device.cc      errors and injected ones, properties, streams, events
 *   attributes.cc  what a driver keeps of a kernel
 *   order.cc       which accesses of a block another block may count on
 *   launch.cc      kernels by address, launches
 *   graph.cc       graphs of kernels
 *
 * One thread of the process calls all of it. */

#include "tests/cuda/emu/emu.cuh"

extern "C" {
#include "quant/half.h"
}

#define EMU_API extern "C" __attribute__((visibility("default")))

/* Blocks of a launch that run at once, in turns. */
#if defined(EMU_ORDER)
enum { EMU_BLOCKS = 4 };
#else
enum { EMU_BLOCKS = 1 };
#endif
enum { EMU_MAX_THREADS = 1024, EMU_FIBERS = EMU_BLOCKS * EMU_MAX_THREADS };
static const size_t EMU_DEVICE_BYTES = (size_t)3 << 30;

/* ---- fibers.cc ------------------------------------------------------------------------------ */

/* The launch that runs. */
struct emu_kernel {
    const char *name;
    void (*run)(void *); /* one thread of it */
    void *arg;
    int n_threads; /* of a block */
    bool early;    /* launched before the one ahead has ended */
    bool side;     /* a branch: it runs at the same time as the launches of the main chain behind */
    unsigned after; /* this one (emu_order_now), though it is made when it is waited for */
};
extern struct emu_kernel emu_kernel;
extern int emu_index; /* of the thread that runs, in its block; EMU_MAX_THREADS a block */

/* Two buffers in turn: a lane that is one exchange ahead does not overwrite what others read. */
int emu_next_parity(void);
/* A block begins in one of EMU_BLOCKS slots; emu_where has its dimensions. */
void emu_begin_block(int slot);
/* Runs its threads until all wait at its barrier, and lets those go, or until one gives way; false:
 * all have ended. `schedule`: in which order they run. */
bool emu_run_threads(int slot, int schedule);
/* Now and then the running thread gives way to another block. */
void emu_yield(void);
/* Ends the process when the running thread has still to wait for the kernel ahead. */
void emu_check_waited(void);
/* Is it between emu_grid_ahead(true) and (false), before it waits? */
bool emu_is_ahead(void);

/* ---- grid.cc -------------------------------------------------------------------------------- */

/* Runs the blocks of emu_kernel, with `shared` bytes of dynamic shared memory. */
void emu_run_grid(int schedule, size_t shared);
/* Of those below n, by EMU_SEED. */
int emu_any_of(int n);

/* ---- matrix.cc ------------------------------------------------------------------------------ */

/* The running thread ends: its copies are made, but those that are of no group. */
void emu_async_end(void);
/* Half i of a word. */
static inline float emu_half_of(uint32_t word, int i, bool bf16)
{
    uint16_t h = (uint16_t)(word >> (16 * i));

    return bf16 ? half_bf16_to_f32(h) : half_f16_to_f32(h);
}

/* ---- memory.cc ------------------------------------------------------------------------------ */

extern uint64_t emu_bytes_held; /* what emu_held() says */
extern uint64_t emu_n_late;     /* copies into pinned memory so far */
void emu_open_device(bool open);
const uint8_t *emu_device(void); /* its first byte */
bool emu_is_held(const struct emu_range *r);
/* Ends the copies into pinned memory up to this one. */
void emu_end_copies(uint64_t up_to);

/* ---- device.cc ------------------------------------------------------------------------------ */

/* Sets what cudaGetLastError() says, and returns it. */
cudaError_t emu_set_error(cudaError_t e);
/* Bytes of shared memory that a block may have. */
size_t emu_shared_most(void);

/* ---- order.cc ------------------------------------------------------------------------------- */

/* Called where EMU_BLOCKS > 1 only. */
void emu_order_launch(void);
unsigned emu_order_now(void); /* the number of the newest launch */
void emu_order_block(int slot, unsigned number); /* it begins there */
void emu_order_barrier(int slot, const char *file, int line);
void emu_order_fence(const char *file, int line);
void emu_order_atomic(const void *p); /* before it is made */
void emu_order_read(const void *p, size_t n);
/* Ends the process when a kernel that may still run has written there. */
void emu_order_ahead(const void *p, size_t n);

/* ---- launch.cc ------------------------------------------------------------------------------ */

struct emu_known_kernel {
    const char *name;
    const void *kernel;
    emu_call_fn *call;
    const size_t *sizes; /* of its arguments */
    int n;
};
enum { EMU_MAX_ARGS = 16 }; /* of a kernel that is launched later or by a graph */

extern int emu_calls[4]; /* what emu_counts() says */
const struct emu_known_kernel *emu_find_known(const void *kernel);
cudaError_t emu_launch_packed(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared,
                              cudaStream_t stream, bool early);
/* work(arg) of another library, as struct emu_stream says. */
cudaError_t emu_run_work(const char *name, void (*work)(void *arg), void *arg,
                         const struct emu_range *touched, int n);
/* Kernels launched on the second stream from now on follow this launch. */
void emu_set_after(unsigned number);
/* Kernels of a second stream that nobody has waited for: runs them, or forgets them. */
cudaError_t emu_run_later(cudaStream_t s);
void emu_drop_later(cudaStream_t s);

#endif
