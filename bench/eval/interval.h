/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_EVAL_INTERVAL_H
#define PIPIT_EVAL_INTERVAL_H

/* 95 % intervals of means over chunks, by Student's t distribution. Chunks of one text are taken as
 * independent draws; an interval says nothing of other texts. */

struct interval {
    double mean;
    double half; /* the interval is mean - half to mean + half; NAN with fewer than two values */
};

/* The mean of n >= 1 values. */
struct interval interval_of(const double *values, int n);

/* The value that |t| exceeds with probability 0.05, for df >= 1 degrees of freedom. */
double interval_t95(int df);

/* "none" where the interval holds 0, else "more" or "less"; "-" without an interval. */
const char *interval_word(struct interval v);

#endif
