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

enum {
    TOPK_THREADS = 1024,
    TOPK_WARPS = TOPK_THREADS / 32,
    TOPK_DIGITS = 256,
    TOPK_LANE_DIGITS = TOPK_DIGITS / 32,
    TOPK_AT_ONCE = 4 /* keys of a thread */
};

static_assert((int)TOPK_WARPS == (int)WARP, "a lane each");

static const uint64_t TOPK_NONE = ~(uint64_t)0;

/* A float as an integer of the same order; -0 is 0. */
CUDA_INLINE uint32_t topk_sortable(float x)
{
    uint32_t u = __float_as_uint(x == 0.0f ? 0.0f : x);

    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Sum over the lanes up to this one. */
template <typename T> CUDA_INLINE T topk_upto(T x)
{
    int lane = (int)threadIdx.x % WARP;

    for (int m = 1; m < WARP; m *= 2) {
        T other = __shfl_sync(ALL_LANES, x, lane >= m ? lane - m : lane);

        x += lane >= m ? other : 0;
    }
    return x;
}

/* Sum over the block, and *ret_before: over the threads before this one. `part` is shared
 * (TOPK_WARPS). */
CUDA_INLINE int32_t topk_scan(int32_t x, int32_t *part, int32_t *ret_before)
{
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int32_t upto = topk_upto(x);
    int32_t own, warps;

    __syncthreads(); /* part: what the call before read from it */
    if (lane == WARP - 1) {
        part[warp] = upto;
    }
    __syncthreads(); /* part: written above, read below */
    own = part[lane];
    warps = topk_upto(own);
    *ret_before = __shfl_sync(ALL_LANES, warps - own, warp) + upto - x;
    return __shfl_sync(ALL_LANES, warps, WARP - 1);
}

/* Behind the list's n come the slots first + j of each thread, for each bit j < SLOTS of `in`,
 * thread by thread. By the block; returns how many there are then. `part` is shared
 * (TOPK_WARPS). */
template <int SLOTS>
CUDA_INLINE int32_t topk_append(uint32_t in, int32_t first, int32_t *list, int32_t n, int32_t *part)
{
    int32_t before;
    int32_t all = topk_scan(__popc(in), part, &before);

    before += n;
#pragma unroll
    for (int j = 0; j < SLOTS; j++) {
        if (in >> j & 1) {
            list[before++] = first + j;
        }
    }
    return n + all;
}

/* The digit of 256 in which the sum of `count`, from digit 0 on, reaches *left, by one warp; *left
 * becomes what it lacks before that digit. One lane writes both. */
CUDA_INLINE void topk_digit(const int32_t *count, int32_t *left, int32_t *ret_digit)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t want = *left;
    int32_t own[TOPK_LANE_DIGITS];
    int32_t sum = 0;
    int32_t before;

#pragma unroll
    for (int j = 0; j < TOPK_LANE_DIGITS; j++) {
        own[j] = count[lane * TOPK_LANE_DIGITS + j];
        sum += own[j];
    }
    before = topk_upto(sum) - sum; /* its shuffles: all lanes have read *left */
#pragma unroll
    for (int j = 0; j < TOPK_LANE_DIGITS; j++) {
        if (before < want && want <= before + own[j]) {
            *ret_digit = lane * TOPK_LANE_DIGITS + j;
            *left = want - before;
        }
        before += own[j];
    }
}

/* A key that exactly n keys are at most (1 <= n <= keys there are), not TOPK_NONE, by radix: 8 bits
 * a pass over the slots, until all keys of a digit are among the n. `count` is shared (256).
 * Several keys of a thread are loaded before the first is counted. */
template <typename C>
CUDA_INLINE uint64_t topk_nth(const C *c, int32_t list, int32_t n_slots, int32_t n, int32_t *count)
{
    __shared__ int32_t digit;
    __shared__ int32_t left;
    uint64_t prefix = 0;

    if (threadIdx.x == 0) {
        left = n;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < TOPK_DIGITS; i += TOPK_THREADS) {
            count[i] = 0;
        }
        __syncthreads(); /* count cleared; left of the pass before */
        for (int32_t s0 = (int32_t)threadIdx.x; s0 < n_slots; s0 += TOPK_AT_ONCE * TOPK_THREADS) {
            uint64_t key[TOPK_AT_ONCE];

#pragma unroll
            for (int j = 0; j < TOPK_AT_ONCE; j++) {
                int32_t s = s0 + j * TOPK_THREADS;

                key[j] = s < n_slots ? topk_key(c, list, s) : TOPK_NONE;
            }
#pragma unroll
            for (int j = 0; j < TOPK_AT_ONCE; j++) {
                if (key[j] != TOPK_NONE && (shift == 56 || key[j] >> (shift + 8) == prefix)) {
                    atomicAdd(&count[key[j] >> shift & (TOPK_DIGITS - 1)], 1);
                }
            }
        }
        __syncthreads(); /* count: complete */
        if (threadIdx.x < WARP) {
            topk_digit(count, &left, &digit);
        }
        __syncthreads(); /* digit, left: written by one lane, read by all */
        prefix = prefix << 8 | (uint64_t)digit;
        if (count[digit] == left) { /* the same for all threads */
            uint64_t last = shift == 0 ? prefix : ((prefix + 1) << shift) - 1;

            return last < TOPK_NONE ? last : TOPK_NONE - 1;
        }
        __syncthreads(); /* count, digit: read above, written in the next pass */
    }
    return prefix;
}

#endif
