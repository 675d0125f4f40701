/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_EXPECT_H
#define PIPIT_ENGINE_KV_POLICY_EXPECT_H

/* Expected attention (Devoto et al., 2025): what keys are worth to queries that are not there yet.
 *
 * Queries of a head before RoPE are taken to be Gaussian, with the mean m and covariance C of the
 * prompt's. A later one at position p is the same rotated by R_p. Over the next F positions R is
 * the mean of R_p, and with m' = R m, C' = R C R^T the expectation of exp(scale q.k) is
 *
 *     exp(scale m'.k + scale^2 k.C'k / 2).
 *
 * Divided by its sum over all keys that is a key's expected weight. Its score is that, plus a
 * floor, times the length of its V.
 *
 * Statistics are sums over queries, one after the other, so they do not depend on how a prompt is
 * dealt out to calls. They are taken less the first query, because some models have heads whose
 * queries are nearly all the same: sums of squares would lose what differs. */

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

/* f32 of a group's statistics: EXPECT_HEAD, of which the first is the number of queries, then of
 * each query head the first query, the sum and the sum of products (EXPECT_LANES columns at a
 * time, the lower triangle). */
enum { EXPECT_HEAD = 16, EXPECT_LANES = 16 };

static inline int32_t expect_padded(int32_t k_dim)
{
    return (k_dim + EXPECT_LANES - 1) / EXPECT_LANES * EXPECT_LANES;
}

/* Where row i of a lower triangle begins; its length is a multiple of EXPECT_LANES. */
static inline int32_t expect_row(int32_t i)
{
    int32_t block = i / EXPECT_LANES;

    return EXPECT_LANES *
           (EXPECT_LANES * (block * (block + 1) / 2) + i % EXPECT_LANES * (block + 1));
}

static inline int32_t expect_triangle(int32_t k_dim)
{
    return expect_row(expect_padded(k_dim));
}

static inline uint64_t expect_head_words(int32_t k_dim)
{
    return 2 * (uint64_t)expect_padded(k_dim) + (uint64_t)expect_triangle(k_dim);
}

static inline uint64_t expect_words(int32_t k_dim, int32_t n_heads)
{
    return EXPECT_HEAD + (uint64_t)n_heads * expect_head_words(k_dim);
}

/* Queries of one head before RoPE, (n_rows, padded) with zeros behind k_dim, in order; they are
 * overwritten. `n`: how many there were before. Each sum takes one query after the other, so the
 * bits are the same however many come at once; EXPECT_ROWS at once are quickest. Without `with_cov`
 * products are left alone. */
enum { EXPECT_ROWS = 8 };

void expect_add(float *stats, float *q, int32_t n_rows, int32_t k_dim, float n, bool with_cov);

/* Cosines and sines of a position, made from those of the one before it where that was asked for
 * last; at positions that are multiples of EXPECT_ANEW from the angles, so that what a position has
 * does not depend on what was asked for before it. */
enum { EXPECT_ANEW = 64 };

struct expect_turns {
    int32_t pos; /* -1: none yet */
    double *c;   /* (n_dims / 2), of pos, */
    double *s;
    double *step_c; /* and of one position */
    double *step_s;
};

void expect_turn_to(const struct ops_rope *rope, int32_t pos, struct expect_turns *t);

/* x, a query as it was rotated to t's position, becomes what it was before, times the table's
 * mscale. */
void expect_unrotate(const struct ops_rope *rope, const struct expect_turns *t, float *x);

/* What queries of a head at positions [pos, pos + ahead) are expected to be. */
struct expect_query {
    float *mean; /* (padded), times scale */
    float *cov;  /* (triangle), times scale^2 / 2; what is off the diagonal twice */
};

/* From n queries' statistics. `square`: k_dim * k_dim of scratch. Without `with_cov` the
 * covariance is left alone. */
void expect_future(const float *stats, float n, const struct ops_rope *rope, int32_t k_dim,
                   int32_t pos, int32_t ahead, float scale, bool with_cov, float *square,
                   const struct expect_query *ret);

/* The exponents of EXPECT_LANES keys, (padded, EXPECT_LANES) with zeros behind k_dim. cov NULL: of
 * the mean alone. */
void expect_exponents(const struct expect_query *q, const float *keys, int32_t k_dim,
                      float ret[EXPECT_LANES]);

#endif
