/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CODES_CUH
#define PIPIT_KERNELS_CUDA_CODES_CUH

/* Activations in 8 bits by blocks of 32 columns, which quantised weights are multiplied by; made by
 * a kernel of its own (matmul.cu) or at the end of the one that makes the activations.
 *
 * A row that is RMS-normed without a bias is coded as x * w, and the product's sums are multiplied
 * by 1 / rms: whoever makes 32 columns need not know the others. The sum of squares has one order:
 * 32 columns, four of these sums, every 32nd of those, the 32 that this leaves. In all but the last
 * neighbours are added first. */

#include "kernels/cuda/row.cuh"

enum { CODES_NORMED = 65536 /* columns of such a row, at most */ };

/* What a launch of one row writes beside its y; xq NULL: nothing. */
struct cuda_codes {
    uint8_t *xq;    /* (pad): codes in fragment order (frag.cuh) */
    float *xd;      /* (pad / 32): scales */
    float *xs;      /* (pad / 32): scale times sum of codes */
    float *squares; /* (pad / 32): sums of squares, where there is a norm */
    const float *w; /* the norm's; or NULL */
    int32_t blocks; /* of 32 columns that are y's */
    int32_t padded; /* pad / 32 */
};

/* Over a warp, neighbours first. */
CUDA_INLINE float codes_sum(float x)
{
    for (int m = 1; m < WARP; m <<= 1) {
        x = __fadd_rn(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

/* Block b by a warp, a column a lane. A block with NaN or infinity gives NaN. With `left` also what
 * the codes leave, in 1/254 of a step, there. */
CUDA_INLINE void codes_block(float v, int32_t b, uint8_t *xq, float *xd, float *xs, uint8_t *left)
{
    int lane = (int)threadIdx.x % WARP;
    uint32_t bits = warp_max_u32(__float_as_uint(fabsf(v)));
    float top = __uint_as_float(bits);
    bool poison = bits >= 0x7f800000;
    bool zero = poison || !(top > 1e-36f); /* 127 / top would overflow */
    float d = zero ? 0.0f : top / 127.0f;
    float q = zero ? 0.0f : fminf(fmaxf(rintf(v * (127.0f / top)), -127.0f), 127.0f);
    float sum = (float)warp_sum_s32((int)q);
    int32_t at = b / 4 * 128 + lane % 16 / 4 * 32 + b % 4 * 8 + lane / 16 * 4 + lane % 4;

    xq[at] = (uint8_t)(int8_t)q;
    if (left) {
        float rest = zero ? 0.0f : rintf((v - q * d) * (127.0f * 254.0f / top));

        rest = fminf(fmaxf(rest, -127.0f), 127.0f);
        left[at] = (uint8_t)(int8_t)rest;
        sum += (float)warp_sum_s32((int)rest) * (1.0f / 254.0f);
    }
    if (lane == 0) {
        xd[b] = poison ? NAN : d;
        xs[b] = poison ? NAN : d * sum;
    }
}

/* The end of a kernel: block b of y by a warp; behind the last one, what y is padded by. */
CUDA_INLINE void codes_end(const struct cuda_codes *c, float y, int32_t b)
{
    float v = c->w ? __fmul_rn(y, c->w[b * 32 + (int)threadIdx.x % WARP]) : y;

    if (c->squares) {
        float sum = codes_sum(__fmul_rn(y, y));

        if (threadIdx.x % WARP == 0) {
            c->squares[b] = sum;
        }
    }
#pragma unroll 1
    for (bool last = b == c->blocks - 1;; v = 0.0f) {
        codes_block(v, b, c->xq, c->xd, c->xs, NULL);
        if (!last || ++b == c->padded) {
            break;
        }
        if (c->squares && threadIdx.x % WARP == 0) {
            c->squares[b] = 0.0f;
        }
    }
}

/* 1 / rms of n columns, of which `of` gives sums of 128 by number; by a warp. */
template <typename SUM> CUDA_INLINE float codes_inv(int32_t n, float eps, SUM of)
{
    float sum = 0;

#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < (n + 127) / 128; i += WARP) {
        sum = __fadd_rn(sum, of(i));
    }
    sum = warp_sum(sum);
    return 1.0f / sqrtf(__fadd_rn(sum / (float)n, eps));
}

/* The same of what codes_end() left. */
CUDA_INLINE float codes_inv_of(const float *squares, int32_t n, float eps)
{
    return codes_inv(n, eps, [squares](int32_t i) {
        float4 s = *reinterpret_cast<const float4 *>(squares + i * 4);

        return __fadd_rn(__fadd_rn(s.x, s.y), __fadd_rn(s.z, s.w));
    });
}

#endif
