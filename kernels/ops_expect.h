/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_OPS_EXPECT_H
#define PIPIT_KERNELS_OPS_EXPECT_H

/* Expected attention (Devoto et al., 2025): what keys are worth to queries that are not there yet.
 *
 * Queries of a head before RoPE are taken to be Gaussian, with the mean m and covariance C of the
 * prompt's. A later one at position p is the same rotated by R_p. Over the next F positions R is
 * the mean of R_p, and with m' = R m, C' = R C R^T the expectation of exp(scale q.k) is
 *
 *     exp(scale m'.k + scale^2 k.C'k / 2).
 *
 * Divided by its sum over all keys that is a key's expected weight. Its score is that, plus a
 * floor, times the length of its V, summed over the query heads of its group.
 *
 * Statistics are sums over queries, one after the other, so they do not depend on how a prompt is
 * dealt out to calls. They are taken less the first query, because some models have heads whose
 * queries are nearly all the same: sums of squares would lose what differs. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/device.h"
#include "kernels/ops.h"

/* f32 of a group's statistics: EXPECT_HEAD, of which the first is the number of queries, then of
 * each query head the first query, the sum and the sum of products (EXPECT_LANES columns at a
 * time, the lower triangle). */
enum { EXPECT_HEAD = 16, EXPECT_LANES = 16 };

static inline HOST_DEVICE int32_t expect_padded(int32_t k_dim)
{
    return (k_dim + EXPECT_LANES - 1) / EXPECT_LANES * EXPECT_LANES;
}

/* Where row i of a lower triangle begins; its length is a multiple of EXPECT_LANES. */
static inline HOST_DEVICE int32_t expect_row(int32_t i)
{
    int32_t block = i / EXPECT_LANES;

    return EXPECT_LANES *
           (EXPECT_LANES * (block * (block + 1) / 2) + i % EXPECT_LANES * (block + 1));
}

static inline HOST_DEVICE int32_t expect_triangle(int32_t k_dim)
{
    return expect_row(expect_padded(k_dim));
}

static inline HOST_DEVICE uint64_t expect_head_words(int32_t k_dim)
{
    return 2 * (uint64_t)expect_padded(k_dim) + (uint64_t)expect_triangle(k_dim);
}

static inline HOST_DEVICE uint64_t expect_words(int32_t k_dim, int32_t n_heads)
{
    return EXPECT_HEAD + (uint64_t)n_heads * expect_head_words(k_dim);
}

/* Mean of e^(i angle p) over p in [pos, pos + n): a sum of a geometric series. */
static inline void expect_mean_turn(double angle, int32_t pos, int32_t n, float *ret_c,
                                    float *ret_s)
{
    const double half = sin(angle / 2);
    const double size = half == 0 ? 1 : sin(n * angle / 2) / (n * half);
    const double middle = angle * (pos + (n - 1) / 2.0);

    *ret_c = (float)(size * cos(middle));
    *ret_s = (float)(size * sin(middle));
}

struct expect_work; /* kernels/expect.h */

/* Rows [first, n_rows) of a sequence's queries, rotated and as attention reads them, enter its
 * statistics; then, with `score`, kv.score of all slots is made anew, 0 where slot_pos is -1, if
 * any query was counted. kv's center, balance and transform are undone: scores are of the keys that
 * the model made. `latest` is not looked at. */
struct ops_expect {
    const float *q; /* device (n, ldq): n_q heads of k_dim */
    int32_t ldq;
    int32_t n_q;
    float scale;
    const struct ops_rope *rope; /* by which q was rotated */
    const struct ops_seq *seq;
    float *stats; /* device (n_groups, expect_words()) */
    int32_t first;
    bool cov; /* else queries are expected to be their mean */
    bool score;
    int32_t pos; /* the first position to come, */
    int32_t ahead; /* and how many of them */
    float floor;
    struct expect_work *work; /* of backends in the host */
};

#endif
