/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of 32 bits: rare, small models. A warp takes one row of W (or of both weights of a gated
 * pair) and 4 tokens; lanes share out the columns and their sums meet in a butterfly. One order of
 * sums for both row classes. Tensor cores have no f32. */

#include "kernels/cuda/gemm.cuh"

enum { TOKENS = 4 };

CUDA_INLINE void dots(const struct gemm *p, int part, int32_t row, int32_t token0,
                      float sum[TOKENS])
{
    const float *w = reinterpret_cast<const float *>(p->part[part].w + (uint64_t)row * p->pitch);

    for (int i = 0; i < TOKENS; i++) {
        sum[i] = 0;
    }
    for (int32_t c = (int32_t)threadIdx.x % WARP; c < p->n_cols; c += WARP) {
        for (int i = 0; i < TOKENS; i++) {
            sum[i] += w[c] * p->xf[(uint64_t)min(token0 + i, p->token_end - 1) * p->ldx + c];
        }
    }
    for (int i = 0; i < TOKENS; i++) {
        sum[i] = warp_sum(sum[i]);
    }
}

CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, 2) rows_f32(struct gemm p)
{
    int32_t block = (int32_t)blockIdx.x;
    int part = gemm_part_of(&p, &block);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * TOKENS;

    for (int k = 0; k < 2; k++) {
        int32_t row = block * 16 + (int32_t)threadIdx.x / WARP * 2 + k;
        float sum[TOKENS];
        float up[TOKENS];

        if (row >= p.part[part].n_rows) {
            return;
        }
        dots(&p, part, row, token0, sum);
        if (p.gated) {
            dots(&p, 1, row, token0, up);
        }
        for (int i = 0; i < TOKENS; i++) {
            if ((int32_t)threadIdx.x % WARP != i || token0 + i >= p.token_end) {
                continue;
            }
            if (p.gated) {
                gemm_finish_gated(&p, row, token0 + i, sum[i], up[i]);
            } else {
                gemm_finish(&p, part, row, token0 + i, sum[i]);
            }
        }
    }
}

int cuda_gemm_f32(struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, 1);

    CUDA_LAUNCH(cu, dim3(blocks, cuda_div_up((uint64_t)(p->token_end - p->token0), TOKENS)),
                dim3(GEMM_THREADS), 0, rows_f32, *p);
    return cuda_launched(cu, "rows_f32");
}
