/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_GEMM_HEADS_CUH
#define PIPIT_KERNELS_CUDA_GEMM_HEADS_CUH

/* The end of a product of q, k and v: norm, rotation, quantisation and store of the heads that it
 * gave, in the same launch.
 *
 * A head's columns are made by several blocks (16 rows of the weight each), but a rotation pairs
 * columns half a head apart and a scale is the head's largest value. So each block writes its part
 * of y as ever and counts itself at the heads it touches; the one that is the last of a head reads
 * it back, from L2, and does what rope_store would do. Nobody waits for anybody, and which block is
 * the last decides nothing but who computes: the bits are those of the two launches. The count
 * wraps to 0 with the last block (atomicInc), so the next launch, or the next launch of the same
 * graph, finds it as this one did.
 *
 * Order: a block's y, then the block's barrier, then a fence and the count by the threads that
 * count; the count, then a fence and a barrier, then the reading of y, which goes past L1: a line
 * there may be older. Barrier before fence: a fence is cumulative, so one thread's covers what the
 * barrier showed it of all others. */

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/store.cuh"

/* Rows that the products store heads of, at most: a block's tokens; of quantised weights those that
 * gemm_q_stream.cu has. By more rows rope_store does it. */
enum { GEMM_STORES = 32, GEMM_Q_STORES = 8 };

/* Blocks a multiprocessor that ptxas is told of kernels that store: left alone it fits them into 64
 * registers for four, and spills. */
#define GEMM_STORE_BLOCKS(NT) ((NT) == 1 ? 2 : 1)

/* Of the block's 16 rows from row0 of `part`, written to y by all its threads. `heads`: shared
 * (1024 NT), free. All tokens of the launch are the block's. */
template <int NT>
CUDA_INLINE void gemm_store_heads(const struct gemm *p, const struct cuda_store *s, int part,
                                  int32_t row0, float *heads)
{
    __shared__ bool last[16];
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    int32_t kind = s->first + part;
    int32_t dim = store_dim(s, kind);
    int32_t head0 = row0 / dim;
    int32_t n_heads = (min(row0 + 16, p->part[part].n_rows) - 1) / dim - head0 + 1;
    int32_t n_warps = min(1024 * NT / dim, (int32_t)GEMM_WARPS);

    static_assert(HEAD_MAX <= 1024, "a head for one warp at least");
    __syncthreads(); /* y: written by all; heads: what was there has been read */
    if ((int32_t)threadIdx.x < n_heads) {
        int32_t h = head0 + (int32_t)threadIdx.x;
        uint32_t others = (uint32_t)((h * dim + dim - 1) / 16 - h * dim / 16);
        uint32_t *arrived = s->arrived + h;

        arrived += (kind > STORE_Q ? s->n_q : 0) + (kind > STORE_K ? s->n_k : 0);
        __threadfence(); /* the block's part of y, seen at the barrier, before the count */
        last[threadIdx.x] = atomicInc(arrived, others) == others;
        __threadfence(); /* what others counted before, before what is read below */
    }
    __syncthreads(); /* last: written by a few, read by all */
    for (int32_t i = 0; i < n_heads; i++) {
        if (!last[i] || warp >= n_warps) {
            continue;
        }
        for (int32_t row = p->token0 + warp; row < p->token_end; row += n_warps) {
            const float *from = store_from(s, kind, row, head0 + i);
            float *head = heads + warp * dim;

            for (int32_t d = lane; d < dim; d += WARP) {
                head[d] = __ldcg(from + d);
            }
            __syncwarp(); /* head: loaded above, read by other lanes next */
            store_finish<false>(s, kind, row, head0 + i, head);
            __syncwarp(); /* head: read by all lanes before the next one is loaded there */
        }
    }
}

/* What `served` says yes to; p->part[i] writes the heads of store_kind s->first + i. */
int cuda_gemm_q_store(struct cuda *cu, struct gemm *p, enum dtype type, const struct cuda_store *s);
/* One token, to the bits of the kernels for several; `store`: as cuda_gemm_q_store, or NULL. */
int cuda_gemm_q_row(struct cuda *cu, struct gemm *p, enum dtype type, bool exact,
                    const struct cuda_store *store);
int cuda_gemm_half_store(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_store *s);
/* One decode token, normalised in the kernel, as cuda_gemm_half_fused. */
int cuda_gemm_half_fused_store(struct cuda *cu, struct gemm *p, bool bf16,
                               const struct cuda_norm *norm, const float *x,
                               const struct cuda_store *s);

#endif
