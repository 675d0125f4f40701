/* SPDX-License-Identifier: Apache-2.0 */
/* What queries to come are expected to be (kernels/ops_expect.h, expect_future() of
 * kernels/expect.c), from their head's statistics, for keys as they are stored.
 *
 * A block a query head, and a warp a line of its square. SHARED, k_dim <= 128: the square lies in
 * shared memory, in rows of an odd length, so that neither a row's nor a column's elements meet in
 * a bank: 64.5 KiB. A larger one lies where it is to be, in scratch. It is made of the triangle of
 * sums, a row of which a warp loads at once, turned by pairs of rows and by pairs of columns, for
 * rotated keys transformed row by row and column by column in registers, and given out in the tiles
 * that expect_keys loads: the lower triangle, what lies off the diagonal twice.
 *
 * Bytes of a head of 128: 37 KB of sums are read, 37 KB of tiles written. */

#include "kernels/cuda/expect.cuh"

enum {
    FUTURE_THREADS = 1024,
    FUTURE_WARPS = FUTURE_THREADS / WARP,
    SHARED_DIM = 128,
};

/* Elements of a line that a lane holds. */
template <bool SHARED> static constexpr int line_of_lane(void)
{
    return (SHARED ? (int)SHARED_DIM : (int)HEAD_MAX) / WARP;
}

/* Element (i, j) of a head's square. */
template <bool SHARED> CUDA_INLINE int32_t square_at(int32_t padded, int32_t i, int32_t j)
{
    return SHARED ? i * (padded + 1) + j
                  : expect_tile(padded / EXPECT_LANES, i / EXPECT_LANES, j / EXPECT_LANES) +
                        j % EXPECT_LANES * EXPECT_LANES + i % EXPECT_LANES;
}

CUDA_INLINE void turn_pair(float *a, float *b, float c, float s)
{
    float x0 = *a;
    float x1 = *b;

    *a = x0 * c - x1 * s;
    *b = x0 * s + x1 * c;
}

/* The pairs' lines of the square: rows, or columns. */
template <bool SHARED, bool COLUMNS>
CUDA_INLINE void turn_lines(const struct cuda_expect *p, const struct expect_pairs *turn,
                            int32_t padded, float *square)
{
    for (int32_t k = (int32_t)threadIdx.x / WARP; k < p->n_pairs; k += FUTURE_WARPS) {
        int32_t a;
        int32_t b;

        pair_dims(p, k, &a, &b);
        for (int32_t i = (int32_t)threadIdx.x % WARP; i < p->layout.k_dim; i += WARP) {
            turn_pair(square + square_at<SHARED>(padded, COLUMNS ? i : a, COLUMNS ? a : i),
                      square + square_at<SHARED>(padded, COLUMNS ? i : b, COLUMNS ? b : i),
                      turn->a[k], turn->b[k]);
        }
    }
}

/* The square, turned to the positions to come. `mean`: the sums' mean. */
template <bool SHARED>
CUDA_INLINE void future_square(const struct cuda_expect *p, const struct expect_pairs *turn,
                               const float *products, const float *mean, float n, float *square)
{
    const int32_t dim = p->layout.k_dim;
    const int32_t padded = expect_padded(dim);
    constexpr int N = line_of_lane<SHARED>();
    const float half = p->scale * p->scale * 0.5f;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int32_t i = warp; i < padded; i += FUTURE_WARPS) {
        const float *row = products + expect_row(i);
        float x[N];

#pragma unroll
        for (int t = 0; t < N; t++) {
            int32_t j = lane + t * WARP;

            x[t] = j <= i && i < dim ? row[j] : 0.0f;
        }
#pragma unroll
        for (int t = 0; t < N; t++) {
            int32_t j = lane + t * WARP;

            if (j <= i) {
                float y = i < dim ? (x[t] / n - mean[i] * mean[j]) * half : 0.0f;

                square[square_at<SHARED>(padded, i, j)] = y;
                square[square_at<SHARED>(padded, j, i)] = y;
            }
        }
    }
    __syncthreads(); /* the square: written by elements, read by pairs of rows */
    turn_lines<SHARED, false>(p, turn, padded, square);
    __syncthreads(); /* by pairs of rows, then of columns */
    turn_lines<SHARED, true>(p, turn, padded, square);
    __syncthreads(); /* by pairs of columns, then by rows */
}

/* Lines of the square: rows, then columns. */
template <bool SHARED> CUDA_INLINE void future_hadamard(int32_t dim, int32_t padded, float *square)
{
    constexpr int N = line_of_lane<SHARED>();
    const int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int pass = 0; pass < 2; pass++) {
        for (int32_t i = (int32_t)threadIdx.x / WARP; i < dim; i += FUTURE_WARPS) {
            float x[N];

#pragma unroll
            for (int t = 0; t < N; t++) {
                int32_t j = lane + t * WARP;

                x[t] = j < dim ? square[pass == 0 ? square_at<SHARED>(padded, i, j)
                                                  : square_at<SHARED>(padded, j, i)]
                               : 0.0f;
            }
            hadamard_in_lanes<N>(x, dim);
#pragma unroll
            for (int t = 0; t < N; t++) {
                int32_t j = lane + t * WARP;

                if (j < dim) {
                    square[pass == 0 ? square_at<SHARED>(padded, i, j)
                                     : square_at<SHARED>(padded, j, i)] = x[t];
                }
            }
        }
        __syncthreads(); /* by rows, then by columns, then by elements */
    }
}

/* map_keys() of kernels/expect.c. */
template <bool SHARED>
CUDA_INLINE void future_map(const struct cuda_expect *p, int32_t head, float *mean, float *square)
{
    const int32_t dim = p->layout.k_dim;
    const int32_t padded = expect_padded(dim);
    const size_t at = (size_t)k_head_of(p, head) * dim;
    const float *center = p->s.center ? p->s.center + at : NULL;
    const float *balance = p->s.balance ? p->s.balance + at : NULL;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int32_t i = warp; i < dim && center && p->cov; i += FUTURE_WARPS) {
        float x = 0;

        for (int32_t j = lane; j < dim; j += WARP) {
            x += square[square_at<SHARED>(padded, i, j)] * center[j];
        }
        x = warp_sum(x);
        if (lane == 0) {
            mean[i] += 2.0f * x;
        }
    }
    __syncthreads(); /* the square: read, before it is divided; the mean: by lane 0 */
    for (int32_t i = warp; i < dim && balance; i += FUTURE_WARPS) {
        if (lane == 0) {
            mean[i] /= balance[i];
        }
        for (int32_t j = lane; j < dim && p->cov; j += WARP) {
            square[square_at<SHARED>(padded, i, j)] /= balance[i] * balance[j];
        }
    }
    __syncthreads(); /* by elements above, by rows below */
    if (!p->s.k_hadamard) {
        return;
    }
    if (warp == 0) {
        hadamard_by_warp(mean, dim);
    }
    if (p->cov) {
        future_hadamard<SHARED>(dim, padded, square);
    }
}

template <bool SHARED>
CUDA_KERNEL void __launch_bounds__(FUTURE_THREADS, 1)
    expect_future(struct cuda_expect p, struct expect_pairs turn)
{
    CUDA_SHARED(float, memory);
    __shared__ float mean[HEAD_MAX];
    __shared__ float less[HEAD_MAX]; /* the mean less the first query */
    const int32_t head = (int32_t)blockIdx.x;
    const int32_t dim = p.layout.k_dim;
    const int32_t padded = expect_padded(dim);
    const int32_t blocks = padded / EXPECT_LANES;
    const float *first = head_stats(&p, head);
    const float *sum = first + padded;
    const float n = group_stats(&p, head / p.n_heads)[0];
    float *const to = p.square + (size_t)head * padded * padded;
    float *const square = SHARED ? memory : to;

    if (n == 0) {
        return;
    }
    for (int32_t d = (int32_t)threadIdx.x; d < padded; d += FUTURE_THREADS) {
        less[d] = d < dim ? sum[d] / n : 0.0f;
        mean[d] = d < dim ? (first[d] + less[d]) * p.scale : 0.0f;
    }
    __syncthreads(); /* means: by elements, then by pairs */
    for (int32_t k = (int32_t)threadIdx.x; k < p.n_pairs; k += FUTURE_THREADS) {
        int32_t a;
        int32_t b;

        pair_dims(&p, k, &a, &b);
        turn_pair(&mean[a], &mean[b], turn.a[k], turn.b[k]);
    }
    if (p.cov) {
        future_square<SHARED>(&p, &turn, sum + padded, less, n, square);
    }
    __syncthreads(); /* mean: by pairs, then by rows */
    future_map<SHARED>(&p, head, mean, square);
    __syncthreads(); /* mean: by the first warp */
    for (int32_t d = (int32_t)threadIdx.x; d < padded; d += FUTURE_THREADS) {
        p.mean[(size_t)head * padded + d] = mean[d];
    }
    for (int32_t t = (int32_t)threadIdx.x / EXPECT_TILE; t < blocks * blocks && p.cov;
         t += FUTURE_THREADS / EXPECT_TILE) {
        int32_t i = t / blocks * EXPECT_LANES + (int32_t)threadIdx.x % EXPECT_LANES;
        int32_t j = t % blocks * EXPECT_LANES + (int32_t)threadIdx.x / EXPECT_LANES % EXPECT_LANES;

        if (t % blocks <= t / blocks) { /* what lies above is not looked at */
            float x = square[square_at<SHARED>(padded, i, j)];

            to[t * EXPECT_TILE + (int32_t)threadIdx.x % EXPECT_TILE] = j > i   ? 0.0f
                                                                       : j < i ? 2.0f * x
                                                                               : x;
        }
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
    unsigned heads = (unsigned)(p->n_heads * p->layout.n_groups);
    size_t padded = (size_t)expect_padded(p->layout.k_dim);

    if (p->layout.k_dim <= SHARED_DIM) {
        CUDA_LAUNCH_LARGE(cu, dim3(heads), dim3(FUTURE_THREADS),
                          padded * (padded + 1) * sizeof(float), expect_future<true>, *p, *turn);
    } else {
        CUDA_LAUNCH(cu, dim3(heads), dim3(FUTURE_THREADS), 0, expect_future<false>, *p, *turn);
    }
    return cuda_launched(cu, "expect_future");
}
