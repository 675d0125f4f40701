/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_OPS_EXPERTS_H
#define PIPIT_KERNELS_OPS_EXPERTS_H
/* A mixture of experts as one operation: a router scores the experts for each row, the best few
 * are feed-forward layers of that row, and their weighted sum is the result. Read kernels/ops.h
 * first.
 *
 * With x' = norm(x), for each row by itself:
 *     logit[e] = router_scale * router[e] . x' (+ router_bias[e]); with router_norm x' is that of x
 *     the n_used experts with the largest score are chosen, ties to the lower index; the score is
 *     the logit, or with choice_bias the probability (below) + choice_bias[e]
 *     y (+)= scale * weight[e] * (down[e] h (+ bias)) for each chosen expert, in ascending order of
 *     e, with h = act(gate[e] x' (+ bias)) * (up[e] x' (+ bias));
 *     y += scale * sigmoid(shared_gate . x') * shared(x'), of the shared expert, which every row
 *     has; without shared_gate y += scale * shared(x')
 *
 * Probabilities are a softmax over all experts, or a sigmoid of each. The weight of a chosen expert
 * is its probability; with `normed` divided by the sum over the chosen (of a softmax: a softmax
 * over the chosen); times weight_scale; times factors[e], which is of what down[e] gives and so
 * comes last.
 *
 * A logit that is NaN is chosen last, as -inf is, and makes all weights of its row NaN: the result
 * says so, the choice stays within the experts. Batch invariant as a matmul is. */

#include "kernels/ops.h"

enum { OPS_EXPERTS_MAX = 1024, OPS_EXPERTS_MAX_USED = 128 };

enum ops_router { OPS_ROUTER_SOFTMAX, OPS_ROUTER_SIGMOID };

/* A matrix, or one of each expert (ops_weight.n_stack), and a bias: (n_expert, n_rows). */
struct ops_expert_part {
    const struct ops_weight *w;
    const struct ops_weight *bias; /* or NULL */
};

struct ops_experts {
    struct ops_rows rows;
    struct ops_norm norm;
    const float *x; /* device (n, ldx) */
    float *y;       /* device (n, ldy); may be x */
    int32_t ldx;
    int32_t ldy;
    bool add;    /* to what y holds (residual) */
    float scale; /* 0: 1 */

    int32_t n_expert; /* 1 to OPS_EXPERTS_MAX */
    int32_t n_used;   /* 1 to n_expert, at most OPS_EXPERTS_MAX_USED */
    enum ops_router kind;
    bool normed;
    float weight_scale;                   /* 0: 1 */
    const struct ops_weight *factors;     /* vector (n_expert) or NULL; there are no down biases */
    struct ops_norm router_norm;          /* w NULL: norm; there is no shared_gate */
    float router_scale;                   /* 0: 1 */
    const struct ops_weight *router;      /* (n_expert, n_cols) */
    const struct ops_weight *router_bias; /* vector (n_expert) or NULL */
    const struct ops_weight *choice_bias; /* vector (n_expert) or NULL */

    enum ops_act act;
    struct ops_expert_part gate; /* stacks (n_expert, n_ff, n_cols) */
    struct ops_expert_part up;
    struct ops_expert_part down; /* stack (n_expert, n_cols, n_ff) */

    struct ops_expert_part shared_gate_proj;
    struct ops_expert_part shared_up; /* w NULL: there is no shared expert */
    struct ops_expert_part shared_down;
    const struct ops_weight *shared_gate; /* (1, n_cols) or NULL */
};

struct backend_limits;

/* Do the sizes of all its weights fit each other and the limits of a backend? */
bool ops_experts_valid(const struct ops_experts *p, const struct backend_limits *l);

#endif
