/* SPDX-License-Identifier: Apache-2.0 */

#include "tools/surrogate_fit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { TOGETHER = 8 }; /* samples whose products are summed in f32 */

int surrogate_fit_init(struct surrogate_fit *f, int32_t n_in, int32_t n_out)
{
    size_t in = (size_t)n_in;
    size_t out = (size_t)n_out;

    *f = (struct surrogate_fit){
        .n_in = n_in,
        .n_out = n_out,
        .xx = calloc(in * in, sizeof(*f->xx)),
        .xy = calloc(out * in, sizeof(*f->xy)),
        .x = calloc(in, sizeof(*f->x)),
        .y = calloc(out, sizeof(*f->y)),
        .w = calloc(out * in, sizeof(*f->w)),
        .b = calloc(out, sizeof(*f->b)),
        .t = calloc(out, sizeof(*f->t)),
        .tt = calloc(out, sizeof(*f->tt)),
        .missed = calloc(out, sizeof(*f->missed)),
    };
    return f->xx && f->xy && f->x && f->y && f->w && f->b && f->t && f->tt && f->missed ? 0
                                                                                        : -ENOMEM;
}

void surrogate_fit_finish(struct surrogate_fit *f)
{
    free(f->xx);
    free(f->xy);
    free(f->x);
    free(f->y);
    free(f->w);
    free(f->b);
    free(f->t);
    free(f->tt);
    free(f->missed);
    *f = (struct surrogate_fit){0};
}

/* to[0, n) += the sum over samples of c times their first n inputs. */
static void add_products(const float c[TOGETHER], const float *x, size_t ld, int32_t rows,
                         int32_t n, double *to)
{
    if (rows == TOGETHER) {
        for (int32_t j = 0; j < n; j++) {
            const float *at = x + j;
            float s = 0;

            for (int32_t r = 0; r < TOGETHER; r++) {
                s += c[r] * at[(size_t)r * ld];
            }
            to[j] += (double)s;
        }
        return;
    }
    for (int32_t r = 0; r < rows; r++) {
        for (int32_t j = 0; j < n; j++) {
            to[j] += (double)(c[r] * x[(size_t)r * ld + (size_t)j]);
        }
    }
}

void surrogate_fit_add(struct surrogate_fit *f, const float *x, const float *y, int32_t n)
{
    size_t in = (size_t)f->n_in;
    float ones[TOGETHER];
    float c[TOGETHER];

    for (int32_t r = 0; r < TOGETHER; r++) {
        ones[r] = 1;
    }
    for (int32_t at = 0; at < n; at += TOGETHER) {
        int32_t rows = n - at < TOGETHER ? n - at : TOGETHER;
        const float *some = x + (size_t)at * in;

        for (int32_t i = 0; i < f->n_in; i++) {
            for (int32_t r = 0; r < rows; r++) {
                c[r] = some[(size_t)r * in + (size_t)i];
            }
            add_products(c, some, in, rows, i + 1, f->xx + (size_t)i * in);
        }
        for (int32_t o = 0; o < f->n_out; o++) {
            for (int32_t r = 0; r < rows; r++) {
                c[r] = y[(size_t)(at + r) * (size_t)f->n_out + (size_t)o];
                f->y[o] += (double)c[r];
            }
            add_products(c, some, in, rows, f->n_in, f->xy + (size_t)o * in);
        }
        add_products(ones, some, in, rows, f->n_in, f->x);
    }
    f->n += n;
}

/* L L' = a, in place; false: a is not positive definite. */
static bool factor(double *a, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        double *row = a + (size_t)i * (size_t)n;

        for (int32_t j = 0; j <= i; j++) {
            const double *other = a + (size_t)j * (size_t)n;
            double sum = row[j];

            for (int32_t k = 0; k < j; k++) {
                sum -= row[k] * other[k];
            }
            if (i == j && !(sum > 0 && isfinite(sum))) {
                return false;
            }
            row[j] = i == j ? sqrt(sum) : sum / other[j];
        }
    }
    return true;
}

/* L L' x = x, in place. */
static void substitute(const double *l, int32_t n, double *x)
{
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < i; k++) {
            x[i] -= l[(size_t)i * (size_t)n + (size_t)k] * x[k];
        }
        x[i] /= l[(size_t)i * (size_t)n + (size_t)i];
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        for (int32_t k = i + 1; k < n; k++) {
            x[i] -= l[(size_t)k * (size_t)n + (size_t)i] * x[k];
        }
        x[i] /= l[(size_t)i * (size_t)n + (size_t)i];
    }
}

int surrogate_fit_solve(struct surrogate_fit *f, double ridge)
{
    size_t in = (size_t)f->n_in;
    double n = (double)f->n;
    double trace = 0;

    if (f->n < 2) {
        return -EDOM;
    }
    for (size_t i = 0; i < in; i++) {
        for (size_t j = 0; j <= i; j++) {
            f->xx[i * in + j] -= f->x[i] * f->x[j] / n;
        }
        trace += f->xx[i * in + i];
    }
    for (size_t i = 0; i < in; i++) {
        f->xx[i * in + i] += ridge * trace / (double)in;
    }
    if (!factor(f->xx, f->n_in)) {
        return -EDOM;
    }
    for (size_t o = 0; o < (size_t)f->n_out; o++) {
        double *w = f->xy + o * in;
        double b = f->y[o] / n;

        for (size_t i = 0; i < in; i++) {
            w[i] -= f->x[i] * f->y[o] / n;
        }
        substitute(f->xx, f->n_in, w);
        for (size_t i = 0; i < in; i++) {
            f->w[o * in + i] = (float)w[i];
            b -= w[i] * f->x[i] / n;
        }
        f->b[o] = (float)b;
        if (!isfinite(b)) {
            return -EDOM;
        }
    }
    return 0;
}

void surrogate_fit_test(struct surrogate_fit *f, const float *x, const float *y, int32_t n)
{
    for (int32_t r = 0; r < n; r++) {
        for (int32_t o = 0; o < f->n_out; o++) {
            const float *w = f->w + (size_t)o * (size_t)f->n_in;
            double is = (double)y[(size_t)r * (size_t)f->n_out + (size_t)o];
            double guess = (double)f->b[o];

            for (int32_t i = 0; i < f->n_in; i++) {
                guess += (double)w[i] * (double)x[(size_t)r * (size_t)f->n_in + (size_t)i];
            }
            f->t[o] += is;
            f->tt[o] += is * is;
            f->missed[o] += (is - guess) * (is - guess);
        }
    }
    f->n_test += n;
}

double surrogate_fit_r2(const struct surrogate_fit *f, int32_t out)
{
    return 1 - f->missed[out] / (f->tt[out] - f->t[out] * f->t[out] / f->n_test);
}
