/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, decode rows and output heads: memory bound.
 *
 * Block: 8 warps, 16 rows, 8 NT tokens; warp w takes units w, w + 8, ... of the tile. Weights go
 * from memory to registers in 16-byte loads, 512 contiguous bytes a warp; activations come from L1
 * and L2. Shared memory: 4.5 KB (NT 1), 18 KB (NT 4). Bytes: the weight once for 8 NT tokens.
 * Share of the bandwidth: not measured. */

#include <cerrno>

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/gemm_q.cuh"

/* Blocks a multiprocessor that ptxas is told, 0 for none: left alone it fits these into 80
 * registers for three, and spills. */
template <typename F, int PIECES, int NT> static constexpr int stream_blocks(void)
{
    constexpr bool many = F::TYPE == DTYPE_Q4_1 || F::TYPE == DTYPE_Q5_1 || F::TYPE == DTYPE_Q6_K;

    if (NT > 1) {
        return PIECES == 2 && F::TYPE == DTYPE_MXFP4 ? 1 : 0;
    }
    return (PIECES == 1 ? many : F::TYPE == DTYPE_MXFP4) ? 2 : 0;
}

template <typename F, int PIECES, int NT>
CUDA_INLINE void stream_unit(const struct gemm *p, const uint8_t *unit, int32_t col, int32_t token0,
                             float acc[NT][4])
{
    int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int group = 0; group < F::GROUPS; group++, col += 128) {
        struct frag_codes w;
        struct gemm_scales s;

        frag_load<F>(unit, group, lane, &w);
        gemm_scales_load<F>(unit, group, lane, &s);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            int32_t last = p->token_end - 1;
            int32_t token = min(token0 + i * 8 + lane / 4, last);
            uint32_t x[PIECES][8];
            float xd[2][4];
            float xs[2][4];

            for (int piece = 0; piece < PIECES; piece++) {
                gemm_words(p->xq + piece * p->piece + (uint64_t)token * p->pad + col +
                               lane % 4 * 32,
                           x[piece]);
            }
            for (int k = 0; k < 2; k++) {
                uint64_t at = (uint64_t)min(token0 + i * 8 + lane % 4 * 2 + k, last) *
                                  (uint64_t)(p->pad / 32) +
                              (uint64_t)(col / 32);

                gemm_floats(p->xd + at, xd[k]);
                if (frag_has_offset<F>()) {
                    gemm_floats(p->xs + at, xs[k]);
                }
            }
            gemm_group<F, PIECES>(&w, &s, x, xd, xs, acc[i]);
        }
    }
}

/* The block's 16 rows for the tokens of its y. `store`: what becomes of the heads, or NULL. */
template <typename F, int PIECES, int NT>
CUDA_INLINE void stream_rows(const struct gemm &p, const struct cuda_store *store)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];
    int32_t block = (int32_t)blockIdx.x;
    int part = gemm_part_of(&p, &block);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * 8 * NT;
    int32_t n_units = (int32_t)frag_units(p.n_cols, F::COLS);
    int32_t first = (int32_t)threadIdx.x / WARP * F::UNIT + (int32_t)threadIdx.x % WARP * 128;

    grid_begin(); /* each warp's first unit to L2 while the kernel ahead still runs */
    if (first < ((int32_t)threadIdx.x / WARP + 1) * F::UNIT && first < n_units * F::UNIT) {
        grid_prefetch(p.part[part].w + (uint64_t)block * n_units * F::UNIT + first);
    }
    grid_wait();
    for (int half = 0; half < (p.gated ? 2 : 1); half++) {
        const uint8_t *tile = p.part[part + half].w + (uint64_t)block * n_units * F::UNIT;
        float acc[NT][4] = {};

        for (int32_t u = (int32_t)threadIdx.x / WARP; u < n_units; u += GEMM_WARPS) {
            stream_unit<F, PIECES, NT>(&p, tile + (uint64_t)u * F::UNIT, u * F::COLS, token0, acc);
        }
        gemm_reduce<NT>(acc, red, out[half]);
    }
    gemm_store<NT>(&p, part, block * 16, token0, out);
    if (store) {
        gemm_store_heads<NT>(&p, store, part, block * 16, &red[0][0][0]);
    }
}

template <typename F, int PIECES, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (stream_blocks<F, PIECES, NT>()))
    stream_q(struct gemm p)
{
    stream_rows<F, PIECES, NT>(p, NULL);
}

template <typename F, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_q_store(struct gemm p, struct cuda_store store)
{
    stream_rows<F, 1, NT>(p, &store);
}

template <typename F, int PIECES> static int launch(struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);

    if (n <= 8) {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, 1), dim3(GEMM_THREADS), 0, (stream_q<F, PIECES, 1>), *p);
    } else {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, cuda_div_up(n, 32)), dim3(GEMM_THREADS), 0,
                          (stream_q<F, PIECES, 4>), *p);
    }
    return cuda_launched(cu, "stream_q");
}

int cuda_gemm_q_stream(struct cuda *cu, struct gemm *p, enum dtype type, bool exact)
{
    switch (type) {
#define STREAM(TYPE, F)                                                                            \
    case TYPE:                                                                                     \
        return exact ? launch<F, 2>(cu, p) : launch<F, 1>(cu, p);
        FRAG_TYPES(STREAM)
#undef STREAM
    default:
        return -EINVAL;
    }
}

template <typename F>
static int launch_store(struct cuda *cu, struct gemm *p, const struct cuda_store *s)
{
    dim3 grid(gemm_blocks(p, 1), 1);

    if (p->token_end - p->token0 <= 8) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_q_store<F, 1>), *p, *s);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_q_store<F, 4>), *p, *s);
    }
    return cuda_launched(cu, "stream_q_store");
}

int cuda_gemm_q_store(struct cuda *cu, struct gemm *p, enum dtype type, const struct cuda_store *s)
{
    switch (type) {
#define STORE(TYPE, F)                                                                             \
    case TYPE:                                                                                     \
        return launch_store<F>(cu, p, s);
        FRAG_TYPES(STORE)
#undef STORE
    default:
        return -EINVAL;
    }
}
