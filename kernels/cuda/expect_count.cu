/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a prompt's queries (kernels/ops_expect.h).
 *
 * expect_first    a block a query head: the first query of all, and zeros, where none was counted.
 * expect_count    a thread keeps 16 sums of products in registers, (row i of the triangle, 16
 *                 columns), and takes rows in their order, 8 at a time from shared memory. So how
 *                 rows are dealt out to calls changes no bit.
 * expect_counted  their number.
 *
 * Bytes: the queries once for each 2,048 sums of a head, which L2 has. By counts 2,048 rows of 32
 * heads of 128 are 0.6 G products. */

#include "kernels/cuda/expect.cuh"

/* COUNT_BLOCKS: a multiprocessor; left alone ptxas spills, to keep to 56 registers. */
enum { COUNT_THREADS = 128, COUNT_BLOCKS = 6, COUNT_ROWS = 8 };

/* Row i of the sequence before RoPE, times mscale, in shared memory; by one warp. */
CUDA_INLINE void bare_query(const struct cuda_expect *p, const struct expect_pairs *freq, int32_t i,
                            int32_t head, float *to)
{
    const int32_t dim = p->layout.k_dim;
    const float *from = p->q + (size_t)(p->s.row0 + i) * p->ldq + (size_t)head * dim;
    const float *balance = p->s.balance ? p->s.balance + (size_t)k_head_of(p, head) * dim : NULL;
    const int lane = (int)threadIdx.x % WARP;

    for (int32_t d = lane; d < expect_padded(dim); d += WARP) {
        to[d] = d < dim ? from[d] : 0.0f;
    }
    __syncwarp(); /* to: each lane wrote its own, others read them next */
    if (p->s.k_hadamard) {
        hadamard_by_warp(to, dim);
    }
    for (int32_t d = lane; d < dim && balance; d += WARP) {
        to[d] *= balance[d];
    }
    __syncwarp(); /* as above */
    for (int32_t k = lane; k < p->n_pairs; k += WARP) {
        double turns = (double)(p->s.pos0 + i) * (double)freq->a[k] * 0.31830988618379067154;
        float c;
        float s;
        int32_t a;
        int32_t b;

        pair_dims(p, k, &a, &b);
        sincospif((float)(turns - 2.0 * rint(turns * 0.5)), &s, &c);
        float x0 = to[a];
        float x1 = to[b];

        to[a] = x0 * c + x1 * s;
        to[b] = x1 * c - x0 * s;
    }
    __syncwarp(); /* pairs written above, read in another order next */
}

CUDA_KERNEL void __launch_bounds__(COUNT_THREADS, COUNT_BLOCKS)
    expect_first(struct cuda_expect p, struct expect_pairs freq)
{
    __shared__ float query[HEAD_MAX];
    int32_t head = (int32_t)blockIdx.x;
    int32_t padded = expect_padded(p.layout.k_dim);
    float *stats = head_stats(&p, head);

    if (group_stats(&p, head / p.n_heads)[0] != 0) {
        return;
    }
    if (threadIdx.x < WARP) {
        bare_query(&p, &freq, p.first, head, query);
    }
    __syncthreads(); /* query: by the first warp, read by all */
    for (int32_t i = (int32_t)threadIdx.x; i < (int32_t)expect_head_words(p.layout.k_dim);
         i += COUNT_THREADS) {
        stats[i] = i < padded ? query[i] : 0.0f;
    }
}

CUDA_KERNEL void __launch_bounds__(COUNT_THREADS, COUNT_BLOCKS)
    expect_count(struct cuda_expect p, struct expect_pairs freq)
{
    __shared__ float rows[COUNT_ROWS][HEAD_MAX];
    int32_t head = (int32_t)blockIdx.x;
    int32_t padded = expect_padded(p.layout.k_dim);
    float *first = head_stats(&p, head);
    float *sum = first + padded;
    int32_t unit = (int32_t)(blockIdx.y * COUNT_THREADS + threadIdx.x);
    bool works = p.cov && unit < expect_triangle(p.layout.k_dim) / EXPECT_LANES;
    float *products = sum + padded + (size_t)unit * EXPECT_LANES;
    float acc[EXPECT_LANES] = {};
    float own[HEAD_MAX / COUNT_THREADS] = {};
    int32_t block = 0;

    while (unit >= EXPECT_LANES * (block + 1)) { /* rows of 16 are as long as each other */
        unit -= EXPECT_LANES * (block + 1);
        block++;
    }
    int32_t row = block * EXPECT_LANES + unit / (block + 1);
    int32_t at = unit % (block + 1) * EXPECT_LANES;

    for (int j = 0; j < EXPECT_LANES && works; j++) {
        acc[j] = products[j];
    }
    for (int j = 0; j < HEAD_MAX / COUNT_THREADS; j++) {
        int32_t d = (int32_t)threadIdx.x + j * COUNT_THREADS;

        own[j] = blockIdx.y == 0 && d < padded ? sum[d] : 0.0f;
    }
    for (int32_t i = p.first; i < p.s.n_rows; i += COUNT_ROWS) {
        int32_t n = p.s.n_rows - i < COUNT_ROWS ? p.s.n_rows - i : COUNT_ROWS;

        for (int32_t r = (int32_t)threadIdx.x / WARP; r < n; r += COUNT_THREADS / WARP) {
            bare_query(&p, &freq, i + r, head, rows[r]);
            for (int32_t d = (int32_t)threadIdx.x % WARP; d < padded; d += WARP) {
                rows[r][d] -= first[d];
            }
        }
        __syncthreads(); /* rows: a warp wrote each, all read them */
        for (int32_t r = 0; r < n; r++) {
            for (int j = 0; j < HEAD_MAX / COUNT_THREADS; j++) {
                int32_t d = (int32_t)threadIdx.x + j * COUNT_THREADS;

                own[j] += d < padded ? rows[r][d] : 0.0f;
            }
            if (works) {
                float x = rows[r][row];

#pragma unroll
                for (int j = 0; j < EXPECT_LANES; j++) {
                    acc[j] += x * rows[r][at + j];
                }
            }
        }
        __syncthreads(); /* rows: read, before the next ones are written */
    }
    for (int j = 0; j < EXPECT_LANES && works; j++) {
        products[j] = acc[j];
    }
    for (int j = 0; j < HEAD_MAX / COUNT_THREADS && blockIdx.y == 0; j++) {
        int32_t d = (int32_t)threadIdx.x + j * COUNT_THREADS;

        if (d < padded) {
            sum[d] = own[j];
        }
    }
}

CUDA_KERNEL void expect_counted(struct cuda_expect p)
{
    group_stats(&p, (int32_t)blockIdx.x)[0] += (float)(p.s.n_rows - p.first);
}

int cuda_expect_count(struct cuda *cu, const struct cuda_expect *p, const struct ops_rope *rope)
{
    unsigned units = (unsigned)expect_triangle(p->layout.k_dim) / EXPECT_LANES;
    unsigned heads = (unsigned)(p->n_heads * p->layout.n_groups);
    struct expect_pairs freq = {};
    int r;

    for (int32_t i = 0; i < p->n_pairs; i++) {
        freq.a[i] = rope->inv_freq[i];
    }
    CUDA_LAUNCH(cu, dim3(heads), dim3(COUNT_THREADS), 0, expect_first, *p, freq);
    r = cuda_launched(cu, "expect_first");
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(heads, p->cov ? cuda_div_up(units, COUNT_THREADS) : 1),
                    dim3(COUNT_THREADS), 0, expect_count, *p, freq);
        r = cuda_launched(cu, "expect_count");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->layout.n_groups), dim3(1), 0, expect_counted, *p);
        r = cuda_launched(cu, "expect_counted");
    }
    return r;
}
