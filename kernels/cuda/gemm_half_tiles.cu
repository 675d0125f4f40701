/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill rows by weights of 16 bits where cublasLt is not: operands as gemm_half.cuh says.
 *
 * 8 warps, 128 rows (64 of a gated pair), 64 tokens; activations, one piece, through shared memory
 * in pieces of 64 columns, two deep; rows 144 bytes apart against bank conflicts. */

#include "kernels/cuda/gemm.cuh"

enum { STEP = 64 /* columns of a piece */, ROW = STEP + 8 };

struct operands {
    uint16_t x[GEMM_TOKENS][ROW];
};

CUDA_INLINE void fetch(const struct gemm *p, int32_t token0, int32_t step, struct operands *to)
{
    for (int i = (int)threadIdx.x; i < GEMM_TOKENS * 8; i += GEMM_THREADS) {
        int32_t token = min(token0 + i / 8, p->token_end - 1);

        async_copy16(&to->x[i / 8][i % 8 * 8],
                     p->xh + (uint64_t)token * p->pad + step * STEP + i % 8 * 8);
    }
    async_commit();
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, CUDA_ON_100(2, 0)) tiles_half(struct gemm p)
{
    __shared__ __align__(16) struct operands in[2];
    int lane = (int)threadIdx.x % WARP;
    struct gemm_tile t = gemm_tile_of(&p, (int)threadIdx.x / WARP);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * GEMM_TOKENS;
    int32_t last_row = p.part[t.part].n_rows - 1;
    int32_t n_half = (p.n_cols + 31) / 32; /* the weight's rows are padded to 32 columns */
    int32_t n_steps = (n_half + 1) / 2;
    const uint8_t *w = p.part[t.part].w + lane % 4 * 16;
    const uint8_t *row0 = w + (uint64_t)min(t.tile * 16 + lane / 4, last_row) * p.pitch;
    const uint8_t *row8 = w + (uint64_t)min(t.tile * 16 + lane / 4 + 8, last_row) * p.pitch;
    float acc[8][4] = {};

    fetch(&p, token0, 0, &in[0]);
    for (int32_t step = 0; step < n_steps; step++) {
        const struct operands *now = &in[step % 2];

        if (step + 1 < n_steps) {
            fetch(&p, token0, step + 1, &in[(step + 1) % 2]);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads(); /* now: copied by all threads, read by all */
        for (int32_t h = 0; h < 2 && step * 2 + h < n_half; h++) {
            uint4 w0 = *reinterpret_cast<const uint4 *>(row0 + (uint64_t)(step * 2 + h) * 64);
            uint4 w8 = *reinterpret_cast<const uint4 *>(row8 + (uint64_t)(step * 2 + h) * 64);

#pragma unroll
            for (int i = 0; i < 8; i++) {
                gemm_step32<BF16>(w0, w8,
                                  *reinterpret_cast<const uint4 *>(
                                      &now->x[i * 8 + lane / 4][h * 32 + lane % 4 * 8]),
                                  acc[i]);
            }
        }
        __syncthreads(); /* now: read by all before the step after next is copied there */
    }
    if (!BF16) {
        for (int i = 0; i < 8 * 4; i++) {
            acc[i / 4][i % 4] *=
                p.xe[min(token0 + i / 4 * 8 + lane % 4 * 2 + i % 2, p.token_end - 1)];
        }
    }
    gemm_store_tile(&p, t, token0, acc,
                    reinterpret_cast<float(*)[16][GEMM_TOKENS]>(static_cast<void *>(in)));
}

int cuda_gemm_half_tiles(struct cuda *cu, struct gemm *p, bool bf16)
{
    uint32_t blocks = gemm_blocks(p, p->gated ? 4 : GEMM_WARPS);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    dim3 grid(blocks, cuda_div_up(n, GEMM_TOKENS));

    static_assert(sizeof(struct operands) * 2 >= 4 * 16 * GEMM_TOKENS * sizeof(float),
                  "a gated pair's exchange fits");
    if (bf16) {
        CUDA_LAUNCH(cu, grid, dim3(GEMM_THREADS), 0, (tiles_half<true>), *p);
    } else {
        CUDA_LAUNCH(cu, grid, dim3(GEMM_THREADS), 0, (tiles_half<false>), *p);
    }
    return cuda_launched(cu, "tiles_half");
}
