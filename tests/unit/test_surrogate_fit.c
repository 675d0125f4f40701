/* SPDX-License-Identifier: Apache-2.0 */
/* Ridge regression of tools/surrogate_fit.c: against maps that are known, and against the equations
 * that its solution must satisfy. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "tools/surrogate_fit.h"

enum { IN = 37, OUT = 3, N = 203 };

static float noise(uint32_t *seed)
{
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / (float)(1U << 24) - 0.5f;
}

struct samples {
    float x[N][IN];
    float y[N][OUT];
    float w[OUT][IN];
};

/* y = w x + o + 5, and as much noise. */
static void make(struct samples *s, float wrong)
{
    uint32_t seed = 5;

    for (int o = 0; o < OUT; o++) {
        for (int i = 0; i < IN; i++) {
            s->w[o][i] = noise(&seed);
        }
    }
    for (int r = 0; r < N; r++) {
        for (int i = 0; i < IN; i++) {
            s->x[r][i] = noise(&seed) + 2;
        }
        for (int o = 0; o < OUT; o++) {
            double y = o + 5 + (double)(wrong * noise(&seed));

            for (int i = 0; i < IN; i++) {
                y += (double)s->w[o][i] * (double)s->x[r][i];
            }
            s->y[r][o] = (float)y;
        }
    }
}

Test(surrogate_fit, finds_a_map)
{
    static struct samples s;
    struct surrogate_fit f;

    make(&s, 0);
    cr_assert_eq(surrogate_fit_init(&f, IN, OUT), 0);
    surrogate_fit_add(&f, &s.x[0][0], &s.y[0][0], 50); /* 8 at once, and what is left over */
    surrogate_fit_add(&f, &s.x[50][0], &s.y[50][0], N - 50);
    cr_assert_eq(surrogate_fit_solve(&f, 1e-9), 0);
    for (int o = 0; o < OUT; o++) {
        for (int i = 0; i < IN; i++) {
            cr_assert_float_eq(f.w[o * IN + i], s.w[o][i], 1e-3, "%d, %d: %g, not %g", o, i,
                               (double)f.w[o * IN + i], (double)s.w[o][i]);
        }
        cr_assert_float_eq(f.b[o], o + 5, 0.05);
    }
    surrogate_fit_test(&f, &s.x[0][0], &s.y[0][0], N);
    for (int o = 0; o < OUT; o++) {
        cr_assert_gt(surrogate_fit_r2(&f, o), 0.9999);
    }
    surrogate_fit_finish(&f);
}

/* At the minimum of the squares and ridge |w|^2 the gradient is 0, and the mean guess is y's. */
Test(surrogate_fit, is_the_minimum)
{
    static struct samples s;
    struct surrogate_fit f;
    const double ridge = 0.1;
    double mean[IN] = {0};
    double trace = 0;

    make(&s, 4);
    for (int r = 0; r < N; r++) {
        for (int i = 0; i < IN; i++) {
            mean[i] += (double)s.x[r][i] / N;
        }
    }
    for (int r = 0; r < N; r++) {
        for (int i = 0; i < IN; i++) {
            trace += pow((double)s.x[r][i] - mean[i], 2);
        }
    }
    cr_assert_eq(surrogate_fit_init(&f, IN, OUT), 0);
    surrogate_fit_add(&f, &s.x[0][0], &s.y[0][0], N);
    cr_assert_eq(surrogate_fit_solve(&f, ridge), 0);
    for (int o = 0; o < OUT; o++) {
        double slope[IN] = {0};
        double all = 0;

        for (int r = 0; r < N; r++) {
            double miss = (double)s.y[r][o] - (double)f.b[o];

            for (int i = 0; i < IN; i++) {
                miss -= (double)f.w[o * IN + i] * (double)s.x[r][i];
            }
            all += miss;
            for (int i = 0; i < IN; i++) {
                slope[i] += miss * ((double)s.x[r][i] - mean[i]);
            }
        }
        cr_assert_float_eq(all / N, 0, 1e-4);
        for (int i = 0; i < IN; i++) {
            cr_assert_float_eq(slope[i], ridge * trace / IN * (double)f.w[o * IN + i], 1e-2);
        }
    }
    surrogate_fit_test(&f, &s.x[0][0], &s.y[0][0], N);
    cr_assert_lt(surrogate_fit_r2(&f, 0), 0.9);
    cr_assert_gt(surrogate_fit_r2(&f, 0), 0.1);
    surrogate_fit_finish(&f);
}

/* Fewer samples than inputs: the ridge decides. Without one, or with a number that is none, no map.
 */
Test(surrogate_fit, refuses_what_has_no_solution)
{
    static struct samples s;
    struct surrogate_fit f;

    make(&s, 0);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(surrogate_fit_init(&f, IN, OUT), 0);
        s.x[7][3] = i == 2 ? NAN : s.x[7][3];
        surrogate_fit_add(&f, &s.x[0][0], &s.y[0][0], 12);
        cr_assert_eq(surrogate_fit_solve(&f, i == 1 ? 0 : 0.1), i == 0 ? 0 : -EDOM, "%d", i);
        surrogate_fit_finish(&f);
    }
    cr_assert_eq(surrogate_fit_init(&f, IN, OUT), 0);
    cr_assert_eq(surrogate_fit_solve(&f, 0.1), -EDOM, "no samples");
    surrogate_fit_finish(&f);
}
