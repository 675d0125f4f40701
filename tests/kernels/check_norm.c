/* SPDX-License-Identifier: Apache-2.0 */
/* norm: RMS and layer norm, with and without bias, in place, added to a residual; against the
 * reference, and the reference against double arithmetic. Zero rows and rows of 1e15 stay finite.
 */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 64,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 4096,
    .max_outputs = 64,
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 64,
};

static void in_double(const struct ops_norm_op *p, const float *w, const float *b, const float *x,
                      float *y)
{
    double mean = 0;
    double square = 0;

    for (int32_t j = 0; j < p->n_cols && p->norm.kind == OPS_NORM_LAYER; j++) {
        mean += (double)x[j] / p->n_cols;
    }
    for (int32_t j = 0; j < p->n_cols; j++) {
        square += (x[j] - mean) * (x[j] - mean) / p->n_cols;
    }
    for (int32_t j = 0; j < p->n_cols; j++) {
        double v = (x[j] - mean) / sqrt(square + (double)p->norm.eps) * w[j] + (b ? b[j] : 0);

        y[j] = (float)(p->add ? y[j] + v : v);
    }
}

/* bits of `kind`: 1 layer, 2 bias, 4 add, 8 in place, 16 no norm, 32 extreme rows */
static void one(struct check *c, int32_t n, int32_t n_cols, int32_t ldx, int32_t ldy, int kind)
{
    struct check_weight w;
    struct check_weight b;
    struct check_buf *x;
    struct check_buf *y;
    float *want;
    struct ops_norm_op p = {
        .rows = {n, n / 2},
        .ldx = ldx,
        .ldy = ldy,
        .n_cols = n_cols,
        .add = kind & 4,
        .norm = {.eps = 1e-5f, .kind = kind & 1 ? OPS_NORM_LAYER : OPS_NORM_RMS},
    };

    if (!check_case(c, "norm n %d cols %d kind %d", n, n_cols, kind)) {
        return;
    }
    check_weight_make(c, &w, DTYPE_F32, OPS_ROLE_VECTOR, 1, n_cols, 1);
    check_weight_make(c, &b, DTYPE_F16, OPS_ROLE_VECTOR, 1, n_cols, 1);
    x = check_buf(c, "x", (size_t)n * (size_t)ldx * 4);
    y = kind & 8 ? x : check_buf(c, "y", (size_t)n * (size_t)ldy * 4);
    check_fill(c, x, 3);
    check_fill(c, y, 3);
    for (int32_t j = 0; j < n_cols && kind & 32; j++) {
        ((float *)(void *)x->init)[j] = 0;
        ((float *)(void *)x->init)[ldx + j] = j % 3 ? 1e15f : -1e15f;
    }
    want = malloc(y->bytes);
    memcpy(want, y->init, y->bytes);
    for (int32_t i = 0; i < n; i++) {
        in_double(&p, w.f32, kind & 2 ? b.f32 : NULL,
                  (const float *)(const void *)x->init + (size_t)i * (size_t)ldx,
                  want + (size_t)i * (size_t)ldy);
    }
    c->bench_bytes = (uint64_t)n * (uint64_t)n_cols * 8;
    while (check_call(c)) {
        p.x = check_dev(c, x);
        p.y = check_dev(c, y);
        p.norm.w = kind & 16 ? NULL : &w.w[c->side];
        p.norm.b = kind & 2 && !(kind & 16) ? &b.w[c->side] : NULL;
        c->err = c->ops->norm(c->be, &p);
    }
    check_floats(c, y, n, ldy, n_cols, &tol_reduce);
    if (!(kind & 16)) {
        check_rows(c, "reference against double", (const void *)y->out[0], want, n, ldy, n_cols,
                   &tol_reduce);
    }
    free(want);
    check_weight_free(c, &w);
    check_weight_free(c, &b);
}

void check_op(struct check *c)
{
    static const int32_t cols[] = {1, 7, 16, 33, 64, 576, 1023};

    if (c->bench) {
        one(c, 1, 576, 576, 576, 0);
        one(c, 64, 576, 576, 576, 0);
        one(c, 64, 4096, 4096, 4096, 0);
        return;
    }
    for (size_t i = 0; i < sizeof(cols) / sizeof(cols[0]); i++) {
        for (int kind = 0; kind < 16; kind++) {
            one(c, 5, cols[i], cols[i] + 3, kind & 8 ? cols[i] + 3 : cols[i] + 1, kind);
        }
        one(c, 3, cols[i], cols[i], cols[i], 16);
        one(c, 3, cols[i], cols[i], cols[i], 16 | 4);
    }
    one(c, 3, 64, 64, 64, 32);
    one(c, 3, 65, 65, 65, 32);
    one(c, 1, 4096, 4096, 4096, 0);
}
