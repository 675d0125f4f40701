/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: short convolutions, the gated delta rule, the state space of Mamba-2, gates by
 * head. Threads share out channels, heads and groups of heads, whose rows run in order. */

#include <math.h>
#include <string.h>

#include "kernels/ref/ref.h"

static float *state_at(uint8_t *state, uint64_t at)
{
    return (float *)(void *)(state + at);
}

static void begin_state(const struct ops_state *s, uint64_t at, size_t first, size_t n)
{
    float *out = state_at(s->out, at) + first;

    if (!s->in) {
        memset(out, 0, n * sizeof(*out));
    } else if (s->in != s->out) {
        memcpy(out, (const float *)(const void *)(s->in + at) + first, n * sizeof(*out));
    }
}

/* ---- short convolution ------------------------------------------------------------------------
 */

static void conv_channel(const struct ops_conv *p, const struct ops_state *s, int32_t c)
{
    const float *w = (const float *)p->w->device + (size_t)c * (size_t)p->width;
    size_t n = (size_t)p->n_channels;
    int32_t last = p->width - 1;
    float u[OPS_CONV_MAX_WIDTH];

    for (int32_t j = 0; j < last; j++) {
        begin_state(s, p->at, (size_t)j * n + (size_t)c, 1);
        u[j] = state_at(s->out, p->at)[(size_t)j * n + (size_t)c];
    }
    for (int32_t i = s->row0; i < s->row0 + s->n_rows; i++) {
        size_t at = (size_t)i * (size_t)p->ldx + (size_t)c;
        float z = 0;

        u[last] = p->before ? p->x[at] * p->before[at] : p->x[at];
        for (int32_t j = 0; j <= last; j++) {
            z += w[j] * u[j];
        }
        z += p->bias ? ((const float *)p->bias->device)[c] : 0.0f;
        memmove(u, u + 1, (size_t)last * sizeof(*u));
        z = ref_act(p->act, z);
        p->y[(size_t)i * (size_t)p->ldy + (size_t)c] = p->after ? z * p->after[at] : z;
    }
    for (int32_t j = 0; j < last; j++) {
        state_at(s->out, p->at)[(size_t)j * n + (size_t)c] = u[j];
    }
}

struct job {
    const void *p;
    struct pool_counter next;
};

static void conv_channels(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_conv *p = job->p;

    (void)tid;
    (void)n_threads;
    for (int c; (c = pool_counter_take(&job->next)) < p->n_channels;) {
        for (int32_t i = 0; i < p->n_seqs; i++) {
            conv_channel(p, &p->seqs[i], c);
        }
    }
}

int ref_conv(struct backend *be, const struct ops_conv *p)
{
    struct job job = {.p = p};

    pool_run(((struct ref *)be)->pool, conv_channels, &job);
    return 0;
}

/* ---- gated delta rule -------------------------------------------------------------------------
 */

static float length_of(const float *x, int32_t n, float eps)
{
    float sum = 0;

    for (int32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return sqrtf(sum + eps);
}

static float softplus(float x)
{
    return x > 20 ? x : log1pf(expf(x));
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

/* One row of one head, S being its matrix. */
static void delta_row(const struct ops_delta *p, int32_t row, int32_t h, float *s)
{
    const float *q =
        p->qkv + (size_t)row * (size_t)p->ldx + (size_t)(h % p->n_k) * (size_t)p->k_dim;
    const float *k = q + (size_t)p->n_k * (size_t)p->k_dim;
    const float *v = p->qkv + (size_t)row * (size_t)p->ldx + 2 * (size_t)p->n_k * (size_t)p->k_dim +
                     (size_t)h * (size_t)p->v_dim;
    size_t gate = (size_t)row * (size_t)p->ldg + (size_t)h;
    const float *z = p->z + (size_t)row * (size_t)p->ldz + (size_t)h * (size_t)p->v_dim;
    float *y = p->y + (size_t)row * (size_t)p->ldy + (size_t)h * (size_t)p->v_dim;
    float step = softplus(p->alpha[gate] + ((const float *)p->dt->device)[h]);
    float decay = expf(((const float *)p->a->device)[h] * step);
    float beta = sigmoid(p->beta[gate]);
    float q_scale = 1.0f / (length_of(q, p->k_dim, p->eps) * sqrtf((float)p->k_dim));
    float k_scale = 1.0f / length_of(k, p->k_dim, p->eps);
    struct ops_norm norm = {.w = p->w, .eps = p->eps, .kind = OPS_NORM_RMS};

    for (int32_t j = 0; j < p->v_dim; j++) {
        float known = 0;
        float out = 0;

        for (int32_t i = 0; i < p->k_dim; i++) {
            known += decay * s[(size_t)i * (size_t)p->v_dim + (size_t)j] * (k[i] * k_scale);
        }
        float learn = beta * (v[j] - known);

        for (int32_t i = 0; i < p->k_dim; i++) {
            float *at = &s[(size_t)i * (size_t)p->v_dim + (size_t)j];

            *at = decay * *at + k[i] * k_scale * learn;
            out += *at * (q[i] * q_scale);
        }
        y[j] = out;
    }
    ref_norm_row(&norm, y, y, p->v_dim);
    for (int32_t j = 0; j < p->v_dim; j++) {
        y[j] *= ref_act(OPS_ACT_SILU, z[j]);
    }
}

static void delta_heads(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_delta *p = job->p;
    size_t size = (size_t)p->k_dim * (size_t)p->v_dim;

    (void)tid;
    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->n_seqs * p->n_v;) {
        const struct ops_state *s = &p->seqs[i / p->n_v];
        int32_t h = i % p->n_v;

        begin_state(s, p->at, (size_t)h * size, size);
        for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
            delta_row(p, row, h, state_at(s->out, p->at) + (size_t)h * size);
        }
    }
}

int ref_delta(struct backend *be, const struct ops_delta *p)
{
    struct job job = {.p = p};

    pool_run(((struct ref *)be)->pool, delta_heads, &job);
    return 0;
}

/* ---- state space ------------------------------------------------------------------------------
 */

static float at_head(const struct ops_weight *w, int32_t h)
{
    return ((const float *)w->device)[h];
}

/* One row of one head, S being its matrix. */
static void scan_row(const struct ops_scan *p, int32_t row, int32_t h, float *s)
{
    size_t head = (size_t)h * (size_t)p->v_dim;
    const float *x = p->xbc + (size_t)row * (size_t)p->ldx;
    const float *b =
        x + (size_t)p->n_v * (size_t)p->v_dim + (size_t)(h / (p->n_v / p->n_k)) * (size_t)p->k_dim;
    const float *c = b + (size_t)p->n_k * (size_t)p->k_dim;
    const float *z = p->z + (size_t)row * (size_t)p->ldz + head;
    float *y = p->y + (size_t)row * (size_t)p->ldy + head;
    float step = softplus(p->step[(size_t)row * (size_t)p->ldz + (size_t)h] + at_head(p->dt, h));
    float decay = expf(at_head(p->a, h) * step);

    for (int32_t j = 0; j < p->v_dim; j++) {
        float in = step * x[head + (size_t)j];
        float out = 0;

        for (int32_t i = 0; i < p->k_dim; i++) {
            float *at = &s[(size_t)i * (size_t)p->v_dim + (size_t)j];

            *at = decay * *at + b[i] * in;
            out += *at * c[i];
        }
        y[j] = (out + at_head(p->d, h) * x[head + (size_t)j]) * ref_act(OPS_ACT_SILU, z[j]);
    }
}

static void scan_groups(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_scan *p = job->p;
    size_t size = (size_t)p->k_dim * (size_t)p->v_dim;
    int32_t n_heads = p->n_v / p->n_k;
    int32_t n_cols = n_heads * p->v_dim;

    (void)tid;
    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->n_seqs * p->n_k;) {
        const struct ops_state *s = &p->seqs[i / p->n_k];
        int32_t g = i % p->n_k;
        struct ops_weight w = *p->w;
        struct ops_norm norm = {.w = &w, .eps = p->eps, .kind = OPS_NORM_RMS};

        w.device = (const float *)p->w->device + (size_t)g * (size_t)n_cols;
        for (int32_t h = g * n_heads; h < (g + 1) * n_heads; h++) {
            begin_state(s, p->at, (size_t)h * size, size);
            for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
                scan_row(p, row, h, state_at(s->out, p->at) + (size_t)h * size);
            }
        }
        for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
            float *y = p->y + (size_t)row * (size_t)p->ldy + (size_t)g * (size_t)n_cols;

            ref_norm_row(&norm, y, y, n_cols);
        }
    }
}

int ref_scan(struct backend *be, const struct ops_scan *p)
{
    struct job job = {.p = p};

    pool_run(((struct ref *)be)->pool, scan_groups, &job);
    return 0;
}

/* ---- gates ------------------------------------------------------------------------------------
 */

int ref_gate(struct backend *be, const struct ops_gate *p)
{
    (void)be;
    for (int32_t i = 0; i < p->rows.n * p->n_heads; i++) {
        size_t row = (size_t)(i / p->n_heads);
        size_t h = (size_t)(i % p->n_heads);
        const float *x = p->x + row * (size_t)p->ldx + h * (size_t)p->x_step;
        float *y = p->y + row * (size_t)p->ldy + h * (size_t)p->dim;

        for (int32_t j = 0; j < p->dim; j++) {
            y[j] =
                p->gate
                    ? x[j] *
                          sigmoid(
                              p->gate[row * (size_t)p->ldg + h * (size_t)p->gate_step + (size_t)j])
                    : x[j];
        }
    }
    return 0;
}
