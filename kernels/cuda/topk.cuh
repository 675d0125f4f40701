/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_TOPK_CUH
#define PIPIT_KERNELS_CUDA_TOPK_CUH

/* Choosing slots by one block of TOPK_THREADS threads: eviction and queries that select.
 *
 * Slots are ranked by one 64-bit key, the smallest first, with the position in its low half: all
 * keys differ, so what is chosen does not depend on the order in which threads look, and the ties
 * of ops.h need no care. A user is a struct C with a function uint64_t topk_key(const C *c, int32_t
 * list, int32_t slot) which gives TOPK_NONE for slots that may not be chosen. */

#include "kernels/cuda/kv.cuh"

enum { TOPK_THREADS = 1024, TOPK_WARPS = TOPK_THREADS / 32 };

static const uint64_t TOPK_NONE = ~(uint64_t)0;

/* A float as an integer of the same order; -0 is 0. */
CUDA_INLINE uint32_t topk_sortable(float x)
{
    uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Sum over the block, and *ret_before: over the threads before this one. `part` is shared
 * (TOPK_WARPS). */
CUDA_INLINE int32_t topk_scan(int32_t x, int32_t *part, int32_t *ret_before)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t before = 0;
    int32_t total = 0;
    int32_t own = 0;

    for (int i = 0; i < WARP; i++) { /* in order of lanes */
        int32_t y = __shfl_sync(ALL_LANES, x, i);

        before += i < lane ? y : 0;
        own += y;
    }
    __syncthreads(); /* part: what the call before read from it */
    if (lane == 0) {
        part[threadIdx.x / WARP] = own;
    }
    __syncthreads(); /* part: written above, read below */
    for (int i = 0; i < TOPK_WARPS; i++) {
        before += i < (int)threadIdx.x / WARP ? part[i] : 0;
        total += part[i];
    }
    *ret_before = before;
    return total;
}

/* The n-th smallest key (1 <= n <= keys there are) by radix, 8 bits a pass over the slots. `count`
 * is shared (256). */
template <typename C>
CUDA_INLINE uint64_t topk_nth(const C *c, int32_t list, int32_t n_slots, int32_t n, int32_t *count)
{
    __shared__ uint64_t prefix;
    __shared__ int32_t left;

    if (threadIdx.x == 0) {
        prefix = 0;
        left = n;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t above;

        for (int i = (int)threadIdx.x; i < 256; i += TOPK_THREADS) {
            count[i] = 0;
        }
        __syncthreads(); /* count cleared; prefix and left of the pass before */
        above = prefix;
        for (int32_t s = (int32_t)threadIdx.x; s < n_slots; s += TOPK_THREADS) {
            uint64_t key = topk_key(c, list, s);

            if (key != TOPK_NONE && (shift == 56 || key >> (shift + 8) == above)) {
                atomicAdd(&count[key >> shift & 255], 1);
            }
        }
        __syncthreads(); /* count: complete */
        if (threadIdx.x == 0) {
            int i = 0;

            while (i < 255 && left > count[i]) {
                left -= count[i++];
            }
            prefix = above << 8 | (uint64_t)i;
        }
        __syncthreads(); /* prefix: written by the first thread, read by all */
    }
    return prefix;
}

#endif
