/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TOOLS_MKMODEL_RANDOM_H
#define PIPIT_TOOLS_MKMODEL_RANDOM_H

/* Random weights in any element type. A tensor's numbers depend on the seed, its name and nothing
 * else: not on the number of threads, nor on the other tensors. */

#include <stdint.h>

#include "quant/dtype.h"

struct mkmodel_random {
    uint64_t seed;
    const char *name; /* of the tensor */
    float mean;
    float deviation;
};

/* Row `row` of a tensor with rows of n elements, encoded; `scratch` holds n floats. Returns 0 or
 * dtype_encode()'s error. */
int mkmodel_random_row(const struct mkmodel_random *r, enum dtype type, uint64_t row, uint64_t n,
                       float *scratch, void *dst) __attribute__((warn_unused_result));

#endif
