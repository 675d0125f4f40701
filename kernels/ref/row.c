/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on whole rows: embed, norm, gather, mul, softcap, and the activation functions.
 *
 * RMS: y = x * (1 / sqrt(sum(x^2) / n + eps)) * w. Layer: the same with x - mean in place of x.
 * Sums run from the first column to the last. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

void ref_norm_row(const struct ops_norm *norm, const float *x, float *y, int32_t n)
{
    const float *w = norm->w ? norm->w->device : NULL;
    const float *b = norm->b ? norm->b->device : NULL;
    float mean = 0;
    float square = 0;
    float inv;

    if (!w) {
        memmove(y, x, (size_t)n * sizeof(float));
        return;
    }
    if (norm->kind == OPS_NORM_LAYER) {
        for (int32_t i = 0; i < n; i++) {
            mean += x[i];
        }
        mean /= (float)n;
    }
    for (int32_t i = 0; i < n; i++) {
        square += (x[i] - mean) * (x[i] - mean);
    }
    inv = 1.0f / sqrtf(square / (float)n + norm->eps);
    for (int32_t i = 0; i < n; i++) {
        y[i] = (x[i] - mean) * inv * w[i] + (b ? b[i] : 0.0f);
    }
}

float ref_act(enum ops_act act, float x)
{
    switch (act) {
    case OPS_ACT_NONE:
        return x;
    case OPS_ACT_SILU:
        return x / (1.0f + expf(-x));
    case OPS_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case OPS_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case OPS_ACT_RELU:
        return x > 0 ? x : 0.0f;
    case OPS_ACT_RELU_SQ:
        return x > 0 ? x * x : 0.0f;
    case OPS_ACT_SWIGLU_OAI:
        x = x > 7.0f ? 7.0f : x;
        return x / (1.0f + expf(-1.702f * x));
    }
    return x;
}

float ref_gated(enum ops_act act, float gate, float up)
{
    if (act == OPS_ACT_SWIGLU_OAI) {
        up = up > 7.0f ? 7.0f : up;
        up = (up < -7.0f ? -7.0f : up) + 1.0f;
    }
    return ref_act(act, gate) * up;
}

struct embed_job {
    const struct ops_embed *p;
    struct pool_counter next;
};

static void embed_rows(void *arg, int tid, int n_threads)
{
    struct embed_job *job = arg;
    const struct ops_embed *p = job->p;
    const struct ops_weight *w = p->w;
    uint64_t row_bytes = 0;

    (void)tid;
    (void)n_threads;
    (void)dtype_row_bytes(w->type, (uint64_t)w->n_cols, &row_bytes);
    for (int i; (i = pool_counter_take(&job->next)) < p->rows.n;) {
        float *y = p->y + (size_t)i * (size_t)p->ld;
        int32_t id = p->drawn ? p->drawn[i] : p->ids[i];

        dtype_decode(w->type, (const uint8_t *)w->device + (size_t)(id > 0 ? id : 0) * row_bytes, y,
                     (uint64_t)w->n_cols);
        for (int32_t c = 0; c < w->n_cols; c++) {
            y[c] *= p->scale;
        }
    }
}

int ref_embed(struct backend *be, const struct ops_embed *p)
{
    struct embed_job job = {.p = p};

    pool_run(((struct ref *)be)->pool, embed_rows, &job);
    return 0;
}

struct norm_job {
    struct ref *ref;
    const struct ops_norm_op *p;
    struct pool_counter next;
};

static void norm_rows(void *arg, int tid, int n_threads)
{
    struct norm_job *job = arg;
    const struct ops_norm_op *p = job->p;
    float *row = job->ref->threads[tid].w;

    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->rows.n;) {
        float *y = p->y + (size_t)i * (size_t)p->ldy;

        ref_norm_row(&p->norm, p->x + (size_t)i * (size_t)p->ldx, row, p->n_cols);
        for (int32_t c = 0; c < p->n_cols; c++) {
            y[c] = p->add ? y[c] + row[c] : row[c];
        }
    }
}

int ref_norm(struct backend *be, const struct ops_norm_op *p)
{
    struct ref *ref = (struct ref *)be;
    struct norm_job job = {.ref = ref, .p = p};

    if (p->n_cols > ref->limits.max_cols) {
        return -EINVAL;
    }
    pool_run(ref->pool, norm_rows, &job);
    return 0;
}

int ref_gather(struct backend *be, const struct ops_gather *p)
{
    (void)be;
    for (int32_t i = 0; i < p->n_rows; i++) {
        memcpy(p->y + (size_t)i * (size_t)p->ldy, p->x + (size_t)p->index[i] * (size_t)p->ldx,
               (size_t)p->n_cols * sizeof(float));
    }
    return 0;
}

int ref_mul(struct backend *be, const struct ops_mul *p)
{
    (void)be;
    for (int32_t i = 0; i < p->rows.n; i++) {
        const float *x = p->x ? p->x + (size_t)i * (size_t)p->ldx : NULL;
        float *y = p->y + (size_t)i * (size_t)p->ldy;

        for (int32_t c = 0; c < p->n_cols; c++) {
            y[c] = (x ? y[c] * x[c] : y[c]) * p->scale;
        }
    }
    return 0;
}

int ref_softcap(struct backend *be, const struct ops_softcap *p)
{
    (void)be;
    for (int32_t i = 0; i < p->n_rows; i++) {
        float *x = p->x + (size_t)i * (size_t)p->ld;

        for (int32_t c = 0; c < p->n_cols; c++) {
            x[c] = p->cap * tanhf(x[c] / p->cap);
        }
    }
    return 0;
}
