/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SKEW_MATH_H
#define PIPIT_TOOLS_SKEW_MATH_H

#include <stdint.h>

/* Eigenvectors of a symmetric (n, n) matrix `a`, which is destroyed: rows of `ret`, by descending
 * eigenvalue, each with its largest component positive. For a = Q^T Q they are V of Q = U S V^T.
 * Cyclic Jacobi; orthogonal to rounding whatever the matrix. scratch (n, n + 1). */
void skew_eigenvectors(double *a, int32_t n, double *scratch, float *ret);

/* Row i of `ret` (n, n) has a 1 at the i-th largest of n sums (ties: the lower index). */
void skew_order(const double *sums, int32_t n, uint16_t *ret_f16);

#endif
