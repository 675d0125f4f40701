/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ROUTE_H
#define PIPIT_KERNELS_ROUTE_H

/* Which experts a row goes to, and with which weights, from its logits: the one place where
 * kernels/ops_experts.h's rules for choosing are written, for backends that compute on the host. */

#include "kernels/ops_experts.h"

struct route {
    int32_t expert;
    float weight; /* times weight_scale and scale: what down's output is multiplied by */
};

/* ret (n_used), ascending by expert. logits (n_expert), router_bias not yet added; overwritten.
 * Vectors of p are host memory. */
void route_row(const struct ops_experts *p, float *logits, struct route *ret);

/* By what the shared expert's output is multiplied, of shared_gate's product (without one: 0). */
float route_shared(const struct ops_experts *p, float gate);

#endif
