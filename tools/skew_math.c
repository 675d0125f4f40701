/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/skew_math.h"

#include <math.h>
#include <string.h>

enum { MAX_SWEEPS = 60, ONE_F16 = 0x3c00 };

/* Rotates rows and columns p and q so that a[p][q] becomes 0, and v's rows with them. */
static void rotate(double *a, double *v, int32_t n, int32_t p, int32_t q)
{
    double theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
    double t = copysign(1.0, theta) / (fabs(theta) + sqrt(theta * theta + 1));
    double c = 1 / sqrt(t * t + 1);
    double s = t * c;

    for (int32_t k = 0; k < n; k++) {
        double kp = a[k * n + p];
        double kq = a[k * n + q];

        a[k * n + p] = c * kp - s * kq;
        a[k * n + q] = s * kp + c * kq;
    }
    for (int32_t k = 0; k < n; k++) {
        double pk = a[p * n + k];
        double qk = a[q * n + k];
        double vp = v[p * n + k];
        double vq = v[q * n + k];

        a[p * n + k] = c * pk - s * qk;
        a[q * n + k] = s * pk + c * qk;
        v[p * n + k] = c * vp - s * vq;
        v[q * n + k] = s * vp + c * vq;
    }
}

static double off_diagonal(const double *a, int32_t n)
{
    double sum = 0;

    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j < i; j++) {
            sum += a[i * n + j] * a[i * n + j];
        }
    }
    return sum;
}

static void write_row(const double *v, int32_t n, float *ret)
{
    int32_t largest = 0;

    for (int32_t i = 1; i < n; i++) {
        largest = fabs(v[i]) > fabs(v[largest]) ? i : largest;
    }
    for (int32_t i = 0; i < n; i++) {
        ret[i] = (float)(v[largest] < 0 ? -v[i] : v[i]);
    }
}

void skew_eigenvectors(double *a, int32_t n, double *scratch, float *ret)
{
    double *v = scratch;
    double *left = scratch + (size_t)n * (size_t)n; /* eigenvalues not yet written */
    double trace = 0;

    memset(v, 0, (size_t)n * (size_t)n * sizeof(*v));
    for (int32_t i = 0; i < n; i++) {
        v[i * n + i] = 1;
        trace += fabs(a[i * n + i]);
    }
    for (int sweep = 0; sweep < MAX_SWEEPS && off_diagonal(a, n) > 1e-24 * trace * trace; sweep++) {
        for (int32_t p = 0; p < n; p++) {
            for (int32_t q = p + 1; q < n; q++) {
                if (a[p * n + q] != 0) {
                    rotate(a, v, n, p, q);
                }
            }
        }
    }
    for (int32_t i = 0; i < n; i++) {
        left[i] = a[i * n + i];
    }
    for (int32_t i = 0; i < n; i++) {
        int32_t best = 0;

        for (int32_t j = 1; j < n; j++) {
            best = left[j] > left[best] ? j : best;
        }
        write_row(v + (size_t)best * (size_t)n, n, ret + (size_t)i * (size_t)n);
        left[best] = -INFINITY;
    }
}

void skew_order(const double *sums, int32_t n, uint16_t *ret_f16)
{
    memset(ret_f16, 0, (size_t)n * (size_t)n * sizeof(*ret_f16));
    for (int32_t i = 0; i < n; i++) {
        int32_t rank = 0;

        for (int32_t j = 0; j < n; j++) {
            rank += sums[j] > sums[i] || (sums[j] == sums[i] && j < i);
        }
        ret_f16[rank * n + i] = ONE_F16;
    }
}
