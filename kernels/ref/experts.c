/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts, row by row as kernels/ops_experts.h says it: the router's logits, the
 * choice (kernels/route.c), each chosen expert's layer, the shared one. Every sum runs over k from
 * 0 up. Threads share out whole rows of the batch. */

#include <errno.h>

#include "kernels/ref/ref.h"
#include "kernels/route.h"

/* A thread's, behind the two rows of ref_thread.w. */
struct scratch {
    float *w;      /* (max_cols) a decoded row */
    float *x;      /* (max_cols) the normalised row */
    float *h;      /* (max_cols) an expert's hidden values */
    float *router; /* (max_experts) logits */
};

struct job {
    struct ref *ref;
    const struct ops_experts *p;
    struct pool_counter next;
};

/* Row `row` of matrix e of a stack times x; `w` is scratch. */
static float dot(const struct ops_weight *m, int32_t e, int32_t row, const float *x, float *w)
{
    uint64_t row_bytes = 0;
    size_t at = (size_t)e * ops_stack_rows(m->stack_rows, m->n_rows) + (size_t)row;
    float sum = 0;

    (void)dtype_row_bytes(m->type, (uint64_t)m->n_cols, &row_bytes);
    dtype_decode(m->type, (const uint8_t *)m->device + at * row_bytes, w, (uint64_t)m->n_cols);
    for (int32_t k = 0; k < m->n_cols; k++) {
        sum += w[k] * x[k];
    }
    return sum;
}

static float biased(const struct ops_expert_part *p, int32_t e, int32_t row, const float *x,
                    float *w)
{
    const float *bias = p->bias ? p->bias->device : NULL;

    return dot(p->w, e, row, x, w) +
           (bias ? bias[(size_t)e * (size_t)p->w->n_rows + (size_t)row] : 0.0f);
}

/* y += factor * expert e's layer of x. */
static void add_expert(const struct scratch *t, enum ops_act act,
                       const struct ops_expert_part *gate, const struct ops_expert_part *up,
                       const struct ops_expert_part *down, int32_t e, float factor, float *y)
{
    for (int32_t i = 0; i < up->w->n_rows; i++) {
        t->h[i] = ref_gated(act, biased(gate, e, i, t->x, t->w), biased(up, e, i, t->x, t->w));
    }
    for (int32_t i = 0; i < down->w->n_rows; i++) {
        y[i] += factor * biased(down, e, i, t->h, t->w);
    }
}

static void one_row(const struct scratch *t, const struct ops_experts *p, int32_t row)
{
    float *y = p->y + (size_t)row * (size_t)p->ldy;
    int32_t n_cols = p->router->n_cols;
    struct route chosen[OPS_EXPERTS_MAX_USED];

    const float *x = p->x + (size_t)row * (size_t)p->ldx;

    ref_norm_row(p->router_norm.w ? &p->router_norm : &p->norm, x, t->x, n_cols);
    for (int32_t e = 0; e < p->n_expert; e++) {
        t->router[e] = ops_factor(p->router_scale) * dot(p->router, 0, e, t->x, t->w);
    }
    route_row(p, t->router, chosen);
    ref_norm_row(&p->norm, x, t->x, n_cols);
    for (int32_t i = 0; i < n_cols && !p->add; i++) {
        y[i] = 0;
    }
    for (int32_t i = 0; i < p->n_used; i++) {
        add_expert(t, p->act, &p->gate, &p->up, &p->down, chosen[i].expert, chosen[i].weight, y);
    }
    if (p->shared_up.w) {
        float gate = p->shared_gate ? dot(p->shared_gate, 0, 0, t->x, t->w) : 0.0f;

        add_expert(t, p->act, &p->shared_gate_proj, &p->shared_up, &p->shared_down, 0,
                   route_shared(p, gate), y);
    }
}

static void rows(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    size_t cols = (size_t)job->ref->limits.max_cols;
    float *w = job->ref->threads[tid].w;
    struct scratch t = {.w = w, .x = w + 2 * cols, .h = w + 3 * cols, .router = w + 4 * cols};

    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < job->p->rows.n;) {
        one_row(&t, job->p, i);
    }
}

int ref_experts(struct backend *be, const struct ops_experts *p)
{
    struct ref *ref = (struct ref *)be;
    struct job job = {.ref = ref, .p = p};

    if (!ops_experts_valid(p, &ref->limits)) {
        return -EINVAL;
    }
    pool_run(ref->pool, rows, &job);
    return 0;
}
