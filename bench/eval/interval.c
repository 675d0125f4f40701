/* SPDX-License-Identifier: Apache-2.0 */
/* The probability of Student's t for whole degrees of freedom is a finite sum (Abramowitz and
 * Stegun, 1964, 26.7.3 and 26.7.4). It is solved for t by halving. */

#include "bench/eval/interval.h"

#include <math.h>

/* P(|T| <= t). */
static double within(double t, int df)
{
    const double pi = 3.14159265358979323846;
    double theta = atan(t / sqrt(df));
    double square = cos(theta) * cos(theta);
    double term = df % 2 ? cos(theta) : 1;
    double sum = df == 1 ? 0 : term;

    for (int i = df % 2 ? 3 : 2; i <= df - 2; i += 2) {
        term *= square * (i - 1) / i;
        sum += term;
    }
    return df % 2 ? 2 / pi * (theta + sin(theta) * sum) : sin(theta) * sum;
}

double interval_t95(int df)
{
    double low = 0;
    double high = 16; /* one degree of freedom: 12.7 */

    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;

        if (within(mid, df) < 0.95) {
            low = mid;
        } else {
            high = mid;
        }
    }
    return high;
}

struct interval interval_of(const double *values, int n)
{
    double sum = 0;
    double square = 0;

    for (int i = 0; i < n; i++) {
        sum += values[i];
    }
    double mean = sum / n;

    for (int i = 0; i < n; i++) {
        square += (values[i] - mean) * (values[i] - mean);
    }
    return (struct interval){mean, n < 2 ? (double)NAN
                                         : interval_t95(n - 1) * sqrt(square / (n - 1) / n)};
}

const char *interval_word(struct interval v)
{
    if (isnan(v.half)) {
        return "-";
    }
    return fabs(v.mean) <= v.half ? "none" : v.mean > 0 ? "more" : "less";
}
