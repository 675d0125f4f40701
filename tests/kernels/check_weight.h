/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_KERNELS_CHECK_WEIGHT_H
#define PIPIT_TESTS_KERNELS_CHECK_WEIGHT_H

/* Weights for the checks: random blocks of any type, every code with equal probability, values of
 * size about `size`; prepared by all sides. */

#include "tests/kernels/check.h"

struct check_weight {
    struct ops_weight w[CHECK_SIDES];
    void *data; /* as in a file */
    float *f32; /* (n_stack, n_rows, n_cols): what it means */
};

void check_weight_make(struct check *c, struct check_weight *w, enum dtype type,
                       enum ops_role role, int32_t n_rows, int32_t n_cols, float size);
/* As many matrices one behind the other: experts. */
void check_weight_stack(struct check *c, struct check_weight *w, enum dtype type, int32_t n_stack,
                        int32_t n_rows, int32_t n_cols, float size);
void check_weight_free(struct check *c, struct check_weight *w);

#endif
