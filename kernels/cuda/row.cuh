/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ROW_CUH
#define PIPIT_KERNELS_CUDA_ROW_CUH

/* One row normalised by one block: shared by the operation norm and by matmul's preparation. */

#include "kernels/cuda/cuda.cuh"

struct row_norm {
    float mean;
    float inv;
};

/* `part` is shared (32). */
template <int THREADS>
CUDA_INLINE struct row_norm row_norm_of(const struct cuda_norm *norm, const float *x, int32_t n,
                                        float *part)
{
    struct row_norm r = {0.0f, 1.0f};
    float sum = 0;

    if (!norm->w) {
        return r;
    }
    if (norm->layer) {
        for (int32_t c = (int32_t)threadIdx.x; c < n; c += THREADS) {
            sum += x[c];
        }
        r.mean = block_sum(sum, part, THREADS / WARP) / (float)n;
        sum = 0;
    }
    for (int32_t c = (int32_t)threadIdx.x; c < n; c += THREADS) {
        sum += (x[c] - r.mean) * (x[c] - r.mean);
    }
    r.inv = 1.0f / sqrtf(block_sum(sum, part, THREADS / WARP) / (float)n + norm->eps);
    return r;
}

CUDA_INLINE float row_normed(const struct cuda_norm *norm, struct row_norm r, float x, int32_t c)
{
    if (!norm->w) {
        return x;
    }
    return (x - r.mean) * r.inv * norm->w[c] + (norm->b ? norm->b[c] : 0.0f);
}

#endif
