/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_EXPECT_CUH
#define PIPIT_KERNELS_CUDA_EXPECT_CUH

/* Expected attention (kernels/ops_expect.h) of one sequence and store: what its kernels are given,
 * and where statistics lie. */

#include "kernels/cuda/store.cuh"

extern "C" {
#include "kernels/ops_expect.h"
}

struct cuda_expect {
    struct cuda_layout layout;
    struct cuda_seq s;
    const float *q; /* rotated and as attention reads them */
    float *stats;
    int32_t ldq, n_heads; /* of a group */
    int32_t first;        /* of the rows that count */
    bool cov;
    float scale, floor;
    int32_t form, n_pairs;
    /* scratch */
    float *mean;      /* (heads, padded) */
    float *square;    /* (heads, padded, padded) in tiles: expect_tile() */
    float *tops;      /* (heads, 2): largest exponent, 1 / sum */
    float *exponents; /* (heads, max_slots) */
    int32_t max_slots;
};

/* Of each pair of dims: its frequency; or the cosine and sine that it is turned by. */
struct expect_pairs {
    float a[CUDA_ROPE_PAIRS];
    float b[CUDA_ROPE_PAIRS];
};

/* Scores slots now; put off: behind the step that is being written down, once its list is handed
 * over. False if no step is, or it has put off as many as the queue keeps. */
int cuda_expect_score(struct cuda *cu, const struct cuda_expect *p,
                      const struct expect_pairs *turn);
bool cuda_queue_put_off(struct cuda *cu, const struct cuda_expect *p,
                        const struct expect_pairs *turn);

/* Pairs for cuda_expect_future(). */
void cuda_expect_turns(const struct ops_expect *p, struct expect_pairs *ret);
int cuda_expect_future(struct cuda *cu, const struct cuda_expect *p,
                       const struct expect_pairs *turn);
int cuda_expect_count(struct cuda *cu, const struct cuda_expect *p, const struct ops_rope *rope);

CUDA_INLINE float *group_stats(const struct cuda_expect *p, int32_t group)
{
    return p->stats + (size_t)group * expect_words(p->layout.k_dim, p->n_heads);
}

/* The first query, the sum, the sum of products. */
CUDA_INLINE float *head_stats(const struct cuda_expect *p, int32_t head)
{
    return group_stats(p, head / p->n_heads) + EXPECT_HEAD +
           (size_t)(head % p->n_heads) * expect_head_words(p->layout.k_dim);
}

/* Its K head among those of all groups. */
CUDA_INLINE int32_t k_head_of(const struct cuda_expect *p, int32_t head)
{
    return head / p->n_heads * p->layout.k_heads +
           head % p->n_heads * p->layout.k_heads / p->n_heads;
}

/* Where a tile of 16 x 16 elements begins in a head's square of `blocks` x `blocks` tiles; element
 * (i, j) lies at 16 (j % 16) + i % 16 of it: a thread reads several i at once. */
enum { EXPECT_TILE = EXPECT_LANES * EXPECT_LANES };
CUDA_INLINE int32_t expect_tile(int32_t blocks, int32_t i_block, int32_t j_block)
{
    return (i_block * blocks + j_block) * EXPECT_TILE;
}

/* hadamard_head() of a head whose dim i * 32 + lane is v[i] of that lane; by one warp. What is
 * beyond the head stays as it is, times the scale. */
template <int N> CUDA_INLINE void hadamard_in_lanes(float v[N], int32_t dim)
{
    const int32_t block = dim & -dim;
    const float scale = 1.0f / sqrtf((float)block);
    const int32_t lane = (int32_t)threadIdx.x % WARP;

#pragma unroll
    for (int far = N / 2; far > 0; far /= 2) {
        if (far * WARP < block) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                if ((i & far) == 0) {
                    float x = v[i];
                    float y = v[i + far];

                    v[i] = x + y;
                    v[i + far] = x - y;
                }
            }
        }
    }
#pragma unroll
    for (int half = WARP / 2; half > 0; half /= 2) {
        if (half < block) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                float other = __shfl_xor_sync(ALL_LANES, v[i], half);

                v[i] = (lane & half) != 0 ? other - v[i] : v[i] + other;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        v[i] *= scale;
    }
}

CUDA_INLINE void pair_dims(const struct cuda_expect *p, int32_t i, int32_t *ret_a, int32_t *ret_b)
{
    *ret_a = p->form == OPS_ROPE_NORM ? 2 * i : i;
    *ret_b = p->form == OPS_ROPE_NORM ? 2 * i + 1 : i + p->n_pairs;
}

#endif
