/* SPDX-License-Identifier: Apache-2.0 */
/* Victims: the slots that a step's new tokens overwrite (ops.h ops_victim).
 *
 * A step asks for one of each full store of each sequence, all before its first kernel. One launch
 * each takes some 6 us on an H200: 200 us a step of 32 layers, 1.6 ms of eight sequences. So the
 * calls are only noted, up to VICTIMS of them, and one launch answers all: a block of 1,024 threads
 * a call and head group, a minimum over keys (slot_rank.cuh), which no two slots share. The launch
 * comes before any other that is asked for later (queue.cu), as a rule first in the step's graph.
 *
 * No slot may go: -1, for which rope_store stores nothing. Bytes: 8 a slot. */

#include <cerrno>

#include "kernels/cuda/victim.cuh"

CUDA_INLINE uint64_t warp_min64(uint64_t x)
{
    for (int m = 16; m > 0; m >>= 1) {
        uint64_t y = __shfl_xor_sync(ALL_LANES, x, m);

        x = y < x ? y : x;
    }
    return x;
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS) find_victims(struct cuda_victims all)
{
    __shared__ uint64_t part[TOPK_WARPS];
    const struct victim *p = &all.of[blockIdx.y];
    int32_t group = (int32_t)blockIdx.x;
    int32_t n = p->rank.shared ? p->rank.n_groups : 1; /* groups that this choice is for */
    uint64_t key = TOPK_NONE;
    uint64_t best;
    int32_t slot = -1;

    if (group * n >= p->rank.n_groups) { /* all threads of the block */
        return;
    }
#pragma unroll 2
    for (int32_t s = (int32_t)threadIdx.x; s < p->n_slots; s += TOPK_THREADS) {
        uint64_t k = topk_key(&p->rank, group, s);

        slot = k < key ? s : slot;
        key = k < key ? k : key;
    }
    best = warp_min64(key);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = best;
    }
    __syncthreads(); /* part: written by all warps, read by all */
    best = warp_min64(part[threadIdx.x % WARP]);
    if (best == TOPK_NONE ? threadIdx.x == 0 : key == best) { /* one thread */
        for (int32_t g = 0; g < n; g++) {
            p->to[group + g] = best == TOPK_NONE ? -1 : slot;
        }
    }
}

int cuda_victims_find(struct cuda *cu, const struct cuda_victims *v)
{
    dim3 grid((unsigned)v->most_groups, (unsigned)v->n);

    CUDA_LAUNCH(cu, grid, dim3(TOPK_THREADS), 0, find_victims, *v);
    return cuda_launched(cu, "find_victims");
}

int cuda_victim(struct backend *be, const struct ops_victim *p)
{
    struct cuda *cu = cuda_of(be);

    if (p->kv->n_slots > cu->limits.max_slots || p->kv->layout->n_groups > cu->limits.max_heads) {
        return -EINVAL;
    }
    return cuda_queue_victim(
        cu, {slot_rank_of(p->kv, p->sinks, p->pos_protect, p->by_position, p->shared), p->victim,
             p->kv->n_slots});
}
