/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_EXPECT_H
#define PIPIT_KERNELS_EXPECT_H

/* Expected attention (ops_expect.h) on the host: the arithmetic of one head, in plain C, which is
 * the definition; and the operation for any backend, by what each can read (expect_host.c). */

#include "base/memory.h"
#include "kernels/backend.h"
#include "kernels/ops_expect.h"

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

/* How keys are stored: k = H(stored) / balance + center, each or none. */
struct expect_map {
    const float *center;  /* (k_dim) or NULL */
    const float *balance; /* (k_dim) or NULL */
    bool hadamard;
};

/* What queries of a head at positions [pos, pos + ahead) are expected to be, for stored keys. What
 * all keys share of an exponent is left out. */
struct expect_query {
    float *mean; /* (padded), times scale */
    float *cov;  /* (triangle), times scale^2 / 2; what is off the diagonal twice */
};

/* From n queries' statistics. `square`: k_dim * k_dim of scratch. Without `with_cov` the
 * covariance is left alone. */
void expect_future(const float *stats, float n, const struct ops_rope *rope, int32_t k_dim,
                   int32_t pos, int32_t ahead, float scale, bool with_cov,
                   const struct expect_map *map, float *square, const struct expect_query *ret);

/* The exponents of EXPECT_LANES keys, (padded, EXPECT_LANES) with zeros behind k_dim. cov NULL: of
 * the mean alone. */
void expect_exponents(const struct expect_query *q, const float *keys, int32_t k_dim,
                      float ret[EXPECT_LANES]);

/* Memory that the operation works in on the host, sized for the largest store: the reference takes
 * group by group, the backend cpu all at once. */
enum { EXPECT_SQUARES = 4 };

struct expect_work {
    size_t ld;     /* of exponents and lengths: the context in whole pages */
    float *square; /* (EXPECT_SQUARES, k_dim, k_dim) */
    float *mean;   /* (n_q, padded) */
    float *cov;    /* (n_q, triangle) */
    float *exponents; /* (n_q, ld) */
    float *sum;       /* (n_q) */
    float *lengths;   /* (n_v, ld) */
    /* expect_host.c: */
    float *rows; /* (heads of a group, EXPECT_ROWS, padded) of them before RoPE */
    struct expect_turns turns;
    float *stats;   /* of one group */
    float *center;  /* (k_heads, k_dim), and the same of the balance: */
    float *balance;
    float *key;     /* (k_dim), or one V */
    float *tile;    /* (k_heads, padded, EXPECT_LANES) */
    float *score;   /* (ctx) */
    int32_t *pos;   /* (ctx) */
    uint8_t *slots; /* EXPECT_LANES in canonical form */
};

/* The largest of each over all stores; heads are of one group but n_q and n_v. */
struct expect_sizes {
    size_t n_q;
    size_t n_v;
    size_t heads;
    size_t k_heads;
    size_t k_dim;
    size_t v_dim;
    size_t k_row; /* floats of a group's K heads */
    size_t slot;  /* bytes in canonical form */
    size_t ctx;
};

/* From the arena; NULL where that only counts. */
struct expect_work *expect_work_lay(const struct expect_sizes *s, struct memory_arena *a);

int expect_host(struct backend *be, const struct ops_expect *p);

#endif
