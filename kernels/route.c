/* SPDX-License-Identifier: Apache-2.0 */
/* Routing of rows to experts. One pass keeps the best n_used in falling order: an expert goes
 * before those with smaller scores only, so among equals the lower index stays. Sums and the
 * largest logit are taken in ascending order of experts, whatever the choice was. */

#include "kernels/route.h"

#include <math.h>

#include "kernels/backend.h"

/* llama.cpp divides by no less than this, the smallest normal f16. */
static const float least_sum = 6.103515625e-5f;

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* The largest of what is chosen; NaN as -inf. */
static int32_t choose(const float *scores, int32_t n, int32_t n_used, struct route *ret)
{
    int32_t n_chosen = 0;

    for (int32_t e = 0; e < n; e++) {
        float score = isnan(scores[e]) ? -INFINITY : scores[e];
        int32_t at;

        if (n_chosen == n_used && !(score > ret[n_used - 1].weight)) {
            continue;
        }
        at = n_chosen < n_used ? n_chosen++ : n_used - 1;
        for (; at > 0 && score > ret[at - 1].weight; at--) {
            ret[at] = ret[at - 1];
        }
        ret[at] = (struct route){e, score};
    }
    return n_chosen;
}

static void sort_by_expert(struct route *r, int32_t n)
{
    for (int32_t i = 1; i < n; i++) {
        struct route one = r[i];
        int32_t at = i;

        for (; at > 0 && r[at - 1].expert > one.expert; at--) {
            r[at] = r[at - 1];
        }
        r[at] = one;
    }
}

/* Logits become probabilities, or (softmax over the chosen) stay numerators: e^(logit - max). */
static void to_probabilities(const struct ops_experts *p, float *logits)
{
    float most = -INFINITY;
    float sum = 0;

    if (p->kind == OPS_ROUTER_SIGMOID) {
        for (int32_t e = 0; e < p->n_expert; e++) {
            logits[e] = sigmoid(logits[e]);
        }
        return;
    }
    for (int32_t e = 0; e < p->n_expert; e++) {
        most = logits[e] > most ? logits[e] : most;
    }
    for (int32_t e = 0; e < p->n_expert; e++) {
        logits[e] = expf(logits[e] - most);
        sum += logits[e];
    }
    for (int32_t e = 0; e < p->n_expert; e++) {
        logits[e] /= sum;
    }
}

static const float *vector(const struct ops_weight *w)
{
    return w ? w->device : NULL;
}

void route_row(const struct ops_experts *p, float *logits, struct route *ret)
{
    const float *router_bias = vector(p->router_bias);
    const float *choice_bias = vector(p->choice_bias);
    const float *factors = vector(p->factors);
    float factor = ops_factor(p->weight_scale) * ops_factor(p->scale);
    float scores[OPS_EXPERTS_MAX];
    float sum = 0;

    for (int32_t e = 0; e < p->n_expert && router_bias; e++) {
        logits[e] += router_bias[e];
    }
    if (!choice_bias) { /* before probabilities make equals of what differs */
        (void)choose(logits, p->n_expert, p->n_used, ret);
    }
    to_probabilities(p, logits);
    if (choice_bias) {
        for (int32_t e = 0; e < p->n_expert; e++) {
            scores[e] = logits[e] + choice_bias[e];
        }
        (void)choose(scores, p->n_expert, p->n_used, ret);
    }
    sort_by_expert(ret, p->n_used);
    for (int32_t i = 0; i < p->n_used; i++) {
        ret[i].weight = logits[ret[i].expert];
        sum += ret[i].weight;
    }
    for (int32_t e = 0; e < p->n_expert; e++) { /* a sigmoid's NaN is its expert's alone */
        sum = isnan(logits[e]) ? NAN : sum;
    }
    if (p->normed || isnan(sum)) {
        factor /= sum < least_sum ? least_sum : sum;
    }
    for (int32_t i = 0; i < p->n_used; i++) {
        ret[i].weight *= factor;
        ret[i].weight *= factors ? factors[ret[i].expert] : 1.0f;
    }
}

float route_shared(const struct ops_experts *p, float gate)
{
    return ops_factor(p->scale) * (p->shared_gate ? sigmoid(gate) : 1.0f);
}

static bool is_matrix(const struct ops_expert_part *p, int32_t n_stack, int32_t n_rows,
                      int32_t n_cols)
{
    const struct ops_weight *w = p->w;

    return w && w->role != OPS_ROLE_VECTOR && ops_stack(w->n_stack) == n_stack &&
           w->n_rows == n_rows && w->n_cols == n_cols &&
           (!p->bias || p->bias->n_cols == n_stack * n_rows);
}

static bool is_layer(const struct ops_expert_part *gate, const struct ops_expert_part *up,
                     const struct ops_expert_part *down, int32_t n_stack, int32_t n_cols,
                     const struct backend_limits *l)
{
    int32_t n_ff = up->w ? up->w->n_rows : 0;

    return n_ff > 0 && n_ff <= l->max_cols && is_matrix(gate, n_stack, n_ff, n_cols) &&
           is_matrix(up, n_stack, n_ff, n_cols) && is_matrix(down, n_stack, n_cols, n_ff);
}

static bool is_vector(const struct ops_weight *w, int32_t n)
{
    return !w || (w->role == OPS_ROLE_VECTOR && w->n_cols == n);
}

bool ops_experts_valid(const struct ops_experts *p, const struct backend_limits *l)
{
    int32_t n = p->n_expert;
    int32_t n_cols;

    if (n < 1 || n > l->max_experts || p->n_used < 1 || p->n_used > n ||
        p->n_used > l->max_experts_used || p->rows.n < 0 || p->rows.n > l->max_rows || !p->router ||
        !is_vector(p->router_bias, n) || !is_vector(p->choice_bias, n) ||
        !is_vector(p->factors, n) || (p->factors && p->down.bias) ||
        (p->router_norm.w && p->shared_gate)) {
        return false;
    }
    n_cols = p->router->n_cols;
    return n_cols <= l->max_cols && p->router->n_rows == n &&
           is_layer(&p->gate, &p->up, &p->down, n, n_cols, l) &&
           (!p->shared_up.w ||
            is_layer(&p->shared_gate_proj, &p->shared_up, &p->shared_down, 1, n_cols, l)) &&
           (!p->shared_gate ||
            (p->shared_up.w && p->shared_gate->n_rows == 1 && p->shared_gate->n_cols == n_cols));
}
