/* SPDX-License-Identifier: Apache-2.0 */
/* y = scale * norm(x) W^T + bias, activated, gated or added.
 *
 * Each output is one sum over k from 0 up. To be quick enough for a whole text the loop takes 16
 * tokens side by side (x transposed into tiles [k][16], which a compiler turns into vectors without
 * touching the order of any sum) and two weight rows, decoded once for all tokens. One token uses
 * the same loop, so a row has the same bits alone, in a batch, decoded and prefilled. */

#include <errno.h>

#include "kernels/ref/ref.h"

struct job {
    struct ref *ref;
    const struct ops_matmul *p;
    int32_t n_cols;
    struct pool_counter next;
};

/* Normalise each token and scatter it into its tile; the last tile's missing tokens are zeros. */
static void transpose_rows(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_matmul *p = job->p;
    float *row = job->ref->threads[tid].w;
    int32_t n_padded = (p->rows.n + REF_TILE - 1) / REF_TILE * REF_TILE;

    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < n_padded;) {
        float *xt =
            job->ref->xt + (size_t)(i / REF_TILE) * (size_t)job->n_cols * REF_TILE + i % REF_TILE;

        if (i < p->rows.n) {
            ref_norm_row(&p->norm, p->x + (size_t)i * (size_t)p->ldx, row, job->n_cols);
        }
        for (int32_t k = 0; k < job->n_cols; k++) {
            xt[(size_t)k * REF_TILE] = i < p->rows.n ? row[k] : 0.0f;
        }
    }
}

/* Two rows of W against 16 tokens. (Written to the results themselves: with local sums gcc 12 makes
 * vectors along k, with shuffles, and is five times slower. And not for sanitizers: their checks
 * of each number leave no vectors, and took half the time of all tests that run an engine.) */
__attribute__((no_sanitize("address", "undefined"))) static void
dot_tile(const float *restrict w0, const float *restrict w1, const float *restrict xt, int32_t n,
         float *restrict ret0, float *restrict ret1)
{
    for (int t = 0; t < REF_TILE; t++) {
        ret0[t] = 0;
        ret1[t] = 0;
    }
    for (int32_t k = 0; k < n; k++) {
        for (int t = 0; t < REF_TILE; t++) {
            ret0[t] += w0[k] * xt[k * REF_TILE + t];
            ret1[t] += w1[k] * xt[k * REF_TILE + t];
        }
    }
}

static void decode_row(const struct ops_weight *w, int32_t row, float *dst)
{
    uint64_t row_bytes = 0;

    (void)dtype_row_bytes(w->type, (uint64_t)w->n_cols, &row_bytes);
    dtype_decode(w->type, (const uint8_t *)w->device + (size_t)row * row_bytes, dst,
                 (uint64_t)w->n_cols);
}

static float biased(const struct ops_matmul *p, int part, int32_t row, float sum)
{
    const struct ops_weight *bias = p->part[part].bias;

    sum *= ops_factor(p->part[part].scale);
    return bias ? sum + ops_factor(p->part[part].bias_scale) * ((const float *)bias->device)[row]
                : sum;
}

static void finish(const struct ops_matmul *p, int part, int32_t row, int32_t token, float sum)
{
    float *y = p->part[part].y + (size_t)token * (size_t)p->part[part].ldy + row;
    float v = ref_act(p->part[part].act, biased(p, part, row, sum));

    *y = p->add ? *y + v : v;
}

static void finish_gated(const struct ops_matmul *p, int32_t row, int32_t token, float gate,
                         float up)
{
    p->part[0].y[(size_t)token * (size_t)p->part[0].ldy + row] =
        ref_gated(p->part[0].act, biased(p, 0, row, gate), biased(p, 1, row, up));
}

/* Rows (row, row + 1) of one part, or row `row` of both parts of a gated pair. */
static void row_pair(struct job *job, float *w, int part, int32_t row)
{
    const struct ops_matmul *p = job->p;
    int32_t n = job->n_cols;
    bool second = p->gated || row + 1 < p->part[part].w->n_rows;
    float s0[REF_TILE];
    float s1[REF_TILE];

    decode_row(p->part[part].w, row, w);
    if (second) {
        decode_row(p->gated ? p->part[1].w : p->part[part].w, p->gated ? row : row + 1, w + n);
    }
    for (int32_t t0 = 0; t0 < p->rows.n; t0 += REF_TILE) {
        dot_tile(w, second ? w + n : w, job->ref->xt + (size_t)t0 * (size_t)n, n, s0, s1);
        for (int32_t t = t0; t < p->rows.n && t < t0 + REF_TILE; t++) {
            if (p->gated) {
                finish_gated(p, row, t, s0[t - t0], s1[t - t0]);
                continue;
            }
            finish(p, part, row, t, s0[t - t0]);
            if (second) {
                finish(p, part, row + 1, t, s1[t - t0]);
            }
        }
    }
}

/* A unit of work is a pair of rows; units of all parts are numbered through. */
static void all_rows(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_matmul *p = job->p;
    int32_t n_parts = p->gated ? 1 : p->n_parts;
    int32_t step = p->gated ? 1 : 2;

    (void)n_threads;
    for (;;) {
        int32_t unit = pool_counter_take(&job->next);
        int part = 0;

        while (part < n_parts && unit >= (p->part[part].w->n_rows + step - 1) / step) {
            unit -= (p->part[part].w->n_rows + step - 1) / step;
            part++;
        }
        if (part == n_parts) {
            return;
        }
        row_pair(job, job->ref->threads[tid].w, part, unit * step);
    }
}

static bool valid(const struct ref *ref, const struct ops_matmul *p)
{
    if (p->n_parts < 1 || p->n_parts > OPS_MATMUL_MAX_PARTS || p->rows.n > ref->limits.max_rows ||
        p->part[0].w->n_cols > ref->limits.max_cols) {
        return false;
    }
    for (int i = 1; i < p->n_parts; i++) {
        if (p->part[i].w->n_cols != p->part[0].w->n_cols) {
            return false;
        }
    }
    for (int i = 0; i < p->n_parts && !p->gated; i++) {
        if (p->part[i].act == OPS_ACT_SWIGLU_OAI) {
            return false;
        }
    }
    return !p->gated ||
           (p->n_parts == 2 && !p->add && p->part[0].w->n_rows == p->part[1].w->n_rows);
}

int ref_matmul(struct backend *be, const struct ops_matmul *p)
{
    struct ref *ref = (struct ref *)be;
    struct job job = {.ref = ref, .p = p};

    if (!valid(ref, p)) {
        return -EINVAL;
    }
    job.n_cols = p->part[0].w->n_cols;
    pool_run(ref->pool, transpose_rows, &job);
    atomic_store(&job.next.next, 0);
    pool_run(ref->pool, all_rows, &job);
    return 0;
}
