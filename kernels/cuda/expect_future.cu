/* SPDX-License-Identifier: Apache-2.0 */
/* What queries to come are expected to be (kernels/ops_expect.h, expect_future() of
 * kernels/expect.c), from their head's statistics, for keys as they are stored.
 *
 * A block a query head. The square of k_dim^2 numbers lies in scratch, which L2 has: it is made
 * element by element, turned by pairs of rows and by pairs of columns, and for rotated keys
 * transformed row by row and column by column, a warp each. */

#include "kernels/cuda/expect.cuh"

enum { FUTURE_THREADS = 256 };

CUDA_INLINE void turn_pair(float *a, float *b, float c, float s)
{
    float x0 = *a;
    float x1 = *b;

    *a = x0 * c - x1 * s;
    *b = x0 * s + x1 * c;
}

/* The square times its number, turned to the positions to come. */
CUDA_INLINE void future_square(const struct cuda_expect *p, const struct expect_pairs *turn,
                               const float *sum, float n, int32_t padded, float *square)
{
    const int32_t dim = p->layout.k_dim;
    const float *products = sum + padded;
    const float half = p->scale * p->scale * 0.5f;

    for (int32_t u = (int32_t)threadIdx.x; u < padded * padded; u += FUTURE_THREADS) {
        int32_t i = u / padded;
        int32_t j = u % padded;
        int32_t hi = i > j ? i : j;
        int32_t lo = i > j ? j : i;

        square[u] = hi < dim ? (products[expect_row(hi) + lo] / n - sum[hi] / n * (sum[lo] / n)) *
                                   half
                             : 0.0f;
    }
    __syncthreads(); /* the square: written by elements, read by pairs of rows */
    for (int pass = 0; pass < 2; pass++) {
        for (int32_t u = (int32_t)threadIdx.x; u < p->n_pairs * dim; u += FUTURE_THREADS) {
            int32_t k = u / dim;
            int32_t other = u % dim;
            int32_t a;
            int32_t b;

            pair_dims(p, k, &a, &b);
            a = pass == 0 ? a * padded + other : other * padded + a;
            b = pass == 0 ? b * padded + other : other * padded + b;
            turn_pair(square + a, square + b, turn->a[k], turn->b[k]);
        }
        __syncthreads(); /* by pairs of rows, then of columns, then by rows */
    }
}

/* map_keys() of kernels/expect.c. */
CUDA_INLINE void future_map(const struct cuda_expect *p, int32_t head, int32_t padded, float *mean,
                            float *square, float (*line)[HEAD_MAX])
{
    const int32_t dim = p->layout.k_dim;
    const size_t at = (size_t)k_head_of(p, head) * dim;
    const float *center = p->s.center ? p->s.center + at : NULL;
    const float *balance = p->s.balance ? p->s.balance + at : NULL;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int32_t i = warp; i < dim && center && square; i += FUTURE_THREADS / WARP) {
        float x = 0;

        for (int32_t j = lane; j < dim; j += WARP) {
            x += square[i * padded + j] * center[j];
        }
        x = warp_sum(x);
        if (lane == 0) {
            mean[i] += 2.0f * x;
        }
    }
    __syncthreads(); /* the square: read, before it is divided; the mean: by one lane, then by all */
    for (int32_t u = (int32_t)threadIdx.x; u < dim * dim && balance; u += FUTURE_THREADS) {
        int32_t i = u / dim;
        int32_t j = u % dim;

        if (j == 0) {
            mean[i] /= balance[i];
        }
        if (square) {
            square[i * padded + j] /= balance[i] * balance[j];
        }
    }
    __syncthreads(); /* by elements above, by rows below */
    if (!p->s.k_hadamard) {
        return;
    }
    if (warp == 0) {
        hadamard_by_warp(mean, dim);
    }
    for (int pass = 0; pass < 2 && square; pass++) {
        const int32_t step = pass == 0 ? 1 : padded;
        const int32_t to_next = pass == 0 ? padded : 1;

        for (int32_t i = warp; i < dim; i += FUTURE_THREADS / WARP) {
            for (int32_t d = lane; d < dim; d += WARP) {
                line[warp][d] = square[i * to_next + d * step];
            }
            __syncwarp(); /* the warp's line: each lane wrote its own, others read them next */
            hadamard_by_warp(line[warp], dim);
            for (int32_t d = lane; d < dim; d += WARP) {
                square[i * to_next + d * step] = line[warp][d];
            }
            __syncwarp(); /* read, before the next one is written */
        }
        __syncthreads(); /* by rows, then by columns, then by elements */
    }
}

CUDA_KERNEL void __launch_bounds__(FUTURE_THREADS)
    expect_future(struct cuda_expect p, struct expect_pairs turn)
{
    __shared__ float mean[HEAD_MAX];
    __shared__ float line[FUTURE_THREADS / WARP][HEAD_MAX];
    const int32_t head = (int32_t)blockIdx.x;
    const int32_t dim = p.layout.k_dim;
    const int32_t padded = expect_padded(dim);
    const float *first = head_stats(&p, head);
    const float *sum = first + padded;
    const float n = group_stats(&p, head / p.n_heads)[0];
    float *square = p.cov ? p.square + (size_t)head * padded * padded : NULL;

    if (n == 0) {
        return;
    }
    for (int32_t d = (int32_t)threadIdx.x; d < padded; d += FUTURE_THREADS) {
        mean[d] = d < dim ? (first[d] + sum[d] / n) * p.scale : 0.0f;
    }
    __syncthreads(); /* mean: by elements, then by pairs */
    for (int32_t k = (int32_t)threadIdx.x; k < p.n_pairs; k += FUTURE_THREADS) {
        int32_t a;
        int32_t b;

        pair_dims(&p, k, &a, &b);
        turn_pair(&mean[a], &mean[b], turn.a[k], turn.b[k]);
    }
    if (square) {
        future_square(&p, &turn, sum, n, padded, square);
    }
    __syncthreads(); /* mean: by pairs, then by rows */
    future_map(&p, head, padded, mean, square, line);
    __syncthreads(); /* mean: by the first warp */
    for (int32_t d = (int32_t)threadIdx.x; d < padded; d += FUTURE_THREADS) {
        p.mean[(size_t)head * padded + d] = mean[d];
    }
    for (int32_t u = (int32_t)threadIdx.x; u < padded * padded && square; u += FUTURE_THREADS) {
        int32_t i = u / padded;
        int32_t j = u % padded;

        square[u] = j > i ? 0.0f : j < i ? 2.0f * square[u] : square[u];
    }
}

void cuda_expect_turns(const struct ops_expect *p, struct expect_pairs *ret)
{
    for (int32_t i = 0; i < p->rope->n_dims / 2 && p->rope->form != OPS_ROPE_NONE; i++) {
        expect_mean_turn((double)p->rope->inv_freq[i], p->pos, p->ahead, &ret->a[i], &ret->b[i]);
    }
}

int cuda_expect_future(struct cuda *cu, const struct cuda_expect *p,
                       const struct expect_pairs *turn)
{
    CUDA_LAUNCH(cu, dim3((unsigned)(p->n_heads * p->layout.n_groups)), dim3(FUTURE_THREADS), 0,
                expect_future, *p, *turn);
    return cuda_launched(cu, "expect_future");
}
