/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ROW_CUH
#define PIPIT_KERNELS_CUDA_ROW_CUH

/* One row normalised by one block: shared by the operation norm, matmul's preparation, and the kernels
 * that prepare for themselves. Products and sums are rounded one by one, or fused where that is
 * written: all of them must come to the same bits, however each is compiled. */

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
        float d = __fsub_rn(x[c], r.mean);

        sum = __fadd_rn(sum, __fmul_rn(d, d));
    }
    sum = block_sum(sum, part, THREADS / WARP);
    r.inv = 1.0f / sqrtf(__fadd_rn(sum / (float)n, norm->eps));
    return r;
}

CUDA_INLINE float row_normed(const struct cuda_norm *norm, struct row_norm r, float x, int32_t c)
{
    if (!norm->w) {
        return x;
    }
    return __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x, r.mean), r.inv), norm->w[c]),
                     norm->b ? norm->b[c] : 0.0f);
}

/* What f16 pieces are multiplied by: a power of two that brings the row's largest value below 2^15;
 * 1 for what is tiny, and for infinities. */
CUDA_INLINE float half_scale(float top)
{
    uint32_t e = __float_as_uint(top) >> 23 & 255;

    return e > 14 && e < 255 ? __uint_as_float((127 + 14 - (e - 127)) << 23) : 1.0f;
}

/* v as a sum of N values of 16 bits, `apart` elements apart. */
template <bool BF16, int N> CUDA_INLINE void half_pieces(float v, uint16_t *to, uint64_t apart)
{
    for (int i = 0; i < N; i++) {
        uint16_t h = BF16 ? bf16_of_f32(v) : f16_of_f32(v);

        to[(uint64_t)i * apart] = h;
        v -= BF16 ? f32_of_bf16(h) : f32_of_f16(h);
    }
}

#endif
