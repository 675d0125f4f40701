/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_EXPECT_H
#define PIPIT_KERNELS_CPU_TABLE_EXPECT_H

/* Inner kernels of expected attention (expect.c; kernels/ops_expect.h has the layout of a head's
 * statistics). All variants give the same bits. */

#include <stdbool.h>
#include <stdint.h>

/* kernels/expect.h's expect_add() behind the first query. */
typedef void cpu_expect_add_fn(float *stats, float *q, int32_t n_rows, int32_t k_dim,
                               bool with_cov);

/* x (64): sum over i of (mean[i] + sum over j <= i of cov[expect_row(i) + j] * k[j]) * k[i], for the
 * 64 keys of k (k_dim, 64). mean (padded); cov (triangle), zeros above the diagonal, or NULL. */
typedef void cpu_expect_exponents_fn(const float *mean, const float *cov, const float *k,
                                     int32_t k_dim, float *x);

/* x (n, a multiple of 16) becomes e^(x - max x); returns its sum, 0 where all are -Inf. */
typedef float cpu_expect_weights_fn(float *x, int32_t n);

/* ret[s] = the length of row s of v (n, pad), pad a multiple of 16. */
typedef void cpu_expect_lengths_fn(const float *v, int32_t pad, int32_t n, float *ret);

/* clang-format off */
#define CPU_SLOTS_EXPECT(X) \
    X(cpu_expect_add_fn, expect_add) \
    X(cpu_expect_exponents_fn, expect_exponents) \
    X(cpu_expect_weights_fn, expect_weights) \
    X(cpu_expect_lengths_fn, expect_lengths)
/* clang-format on */

#endif
