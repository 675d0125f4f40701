/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ROW_CUH
#define PIPIT_KERNELS_CUDA_ROW_CUH

/* One row normalised by one block: shared by the operation norm, matmul's preparation, and the
 * kernels that prepare for themselves. Products and sums are rounded one by one, or fused where
 * that is written: all of them must come to the same bits, however each is compiled. */

#include "kernels/cuda/cuda.cuh"

struct row_norm {
    float mean;
    float inv;
};

/* Before grid_wait: a norm's weights, which no kernel writes, to L2. */
template <int THREADS> CUDA_INLINE void row_norm_fetch(const struct cuda_norm *norm, int32_t n)
{
    for (int32_t c = (int32_t)threadIdx.x * 32; norm->w && c < n; c += THREADS * 32) {
        grid_prefetch(norm->w + c);
        if (norm->b) {
            grid_prefetch(norm->b + c);
        }
    }
}

/* x[c0], x[c0 + THREADS], ..., of them those before n: all under way at once. */
template <int THREADS, int N>
CUDA_INLINE void row_load(const float *x, int32_t c0, int32_t n, float ret[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        ret[i] = c0 + i * THREADS < n ? x[c0 + i * THREADS] : 0.0f;
    }
}

/* `part` is shared (32). */
template <int THREADS>
CUDA_INLINE struct row_norm row_norm_of(const struct cuda_norm *norm, const float *x, int32_t n,
                                        float *part)
{
    enum { N = 16 };
    struct row_norm r = {0.0f, 1.0f};
    float sum = 0;
    float v[N];

    if (!norm->w) {
        return r;
    }
    if (norm->layer) {
        for (int32_t c = (int32_t)threadIdx.x; c < n; c += N * THREADS) {
            row_load<THREADS, N>(x, c, n, v);
#pragma unroll
            for (int i = 0; i < N; i++) {
                sum += v[i]; /* 0 beyond the end */
            }
        }
        r.mean = block_sum(sum, part, THREADS / WARP) / (float)n;
        sum = 0;
    }
    for (int32_t c = (int32_t)threadIdx.x; c < n; c += N * THREADS) {
        row_load<THREADS, N>(x, c, n, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float d = c + i * THREADS < n ? __fsub_rn(v[i], r.mean) : 0.0f;

            sum = __fadd_rn(sum, __fmul_rn(d, d));
        }
    }
    sum = block_sum(sum, part, THREADS / WARP);
    r.inv = 1.0f / sqrtf(__fadd_rn(sum / (float)n, norm->eps));
    return r;
}

CUDA_INLINE float row_normed_by(struct row_norm r, float x, float w, float b)
{
    return __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(x, r.mean), r.inv), w), b);
}

CUDA_INLINE float row_normed(const struct cuda_norm *norm, struct row_norm r, float x, int32_t c)
{
    return norm->w ? row_normed_by(r, x, norm->w[c], norm->b ? norm->b[c] : 0.0f) : x;
}

/* What f16 pieces are multiplied by: a power of two that brings the row's largest value below 2^15;
 * 1 for what is tiny, and for infinities. */
CUDA_INLINE float half_scale(float top)
{
    uint32_t e = __float_as_uint(top) >> 23 & 255;

    return e > 14 && e < 255 ? __uint_as_float((127 + 14 - (e - 127)) << 23) : 1.0f;
}

/* A decode row's value as a sum of so many of 16 bits: 22 bits in f16, 16 in bf16. */
enum { HALF_PIECES = 2 };

/* v's first piece. */
template <bool BF16> CUDA_INLINE uint16_t half_piece(float v)
{
    return BF16 ? bf16_of_f32(v) : f16_of_f32(v);
}

/* v's pieces, `apart` elements apart. */
template <bool BF16> CUDA_INLINE void half_pieces(float v, uint16_t *to, uint64_t apart)
{
    for (int i = 0; i < HALF_PIECES; i++) {
        uint16_t h = BF16 ? bf16_of_f32(v) : f16_of_f32(v);

        to[(uint64_t)i * apart] = h;
        v -= BF16 ? f32_of_bf16(h) : f32_of_f16(h);
    }
}

#endif
