/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_SURROGATE_FIT_H
#define PIPIT_TOOLS_SURROGATE_FIT_H

/* Ridge regression in closed form, sample by sample: y = W x + b with
 *
 *     (X'X + ridge I) W' = X'Y      of X and Y less their means,
 *
 * ridge = `ridge` times the mean of the diagonal of X'X. Sums in double. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct surrogate_fit {
    int32_t n_in;
    int32_t n_out;
    int64_t n;  /* samples */
    double *xx; /* (n_in, n_in), the lower triangle: sums less those of the means, once solved */
    double *xy; /* (n_out, n_in) */
    double *x;  /* (n_in): sums */
    double *y;  /* (n_out) */
    float *w;   /* (n_out, n_in), once solved, */
    float *b;   /* (n_out) */
    /* Of samples that were tested: */
    double n_test;
    double *t;       /* (n_out): sums of y, */
    double *tt;      /* of y^2 */
    double *missed;  /* and of (y - W x - b)^2 */
};

int surrogate_fit_init(struct surrogate_fit *f, int32_t n_in, int32_t n_out) WARN_UNUSED;
void surrogate_fit_finish(struct surrogate_fit *f);
/* n samples, x (n, n_in) and y (n, n_out). */
void surrogate_fit_add(struct surrogate_fit *f, const float *x, const float *y, int32_t n);
/* Fills in w and b, and overwrites xx. -EDOM: the samples are too few, or one is not finite. */
int surrogate_fit_solve(struct surrogate_fit *f, double ridge) WARN_UNUSED;
void surrogate_fit_test(struct surrogate_fit *f, const float *x, const float *y, int32_t n);
/* The share of an output's variance over the tested samples that the map explains, at most 1. */
double surrogate_fit_r2(const struct surrogate_fit *f, int32_t out);

#endif
