/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts by 1 and 8 decode rows, whole and kernel by kernel: a layer of
 * Qwen3-30B-A3B's shape in Q4_K, and one of gpt-oss-20b's in MXFP4.
 *
 * No two rows of a launch share an expert, as long as there are enough, and launches take turns at
 * all experts of all layers: so no matrix is found in a cache, and bytes are rows x experts used.
 * For this the router is a table: expert e looks at column e / n_used alone, and a row has one
 * column set. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench/kernels/kbench.h"

enum { MOST_LAYERS = 32, LAUNCHES = 32, MOST_ROWS = 8 };

struct shape {
    enum dtype type;
    int32_t n_expert, n_used, n_ff, n_cols;
};

static const struct shape shapes[] = {{DTYPE_Q4_K, 128, 8, 768, 2048},
                                      {DTYPE_MXFP4, 32, 4, 2880, 2880}};
static const struct shape small_shapes[] = {{DTYPE_Q4_K, 16, 2, 256, 256},
                                            {DTYPE_MXFP4, 8, 2, 64, 96}};

struct mixture {
    struct ops_weight gate[MOST_LAYERS], up[MOST_LAYERS], down[MOST_LAYERS];
    int n_gate, n_up, n_down;
    struct ops_weight router;
    bool have_router;
    int n; /* layers */
    int n_variants;
    void *x; /* device (n_variants, rows, n_cols) */
    void *y;
    struct ops_experts op;
};

static int mixture_round(struct kbench *k, void *arg, int n)
{
    struct mixture *m = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        int layer = i / m->n_variants % m->n;

        m->op.x = (float *)m->x +
                  (uint64_t)(i % m->n_variants) * (uint64_t)m->op.rows.n * (uint64_t)m->op.ldx;
        m->op.gate.w = &m->gate[layer];
        m->op.up.w = &m->up[layer];
        m->op.down.w = &m->down[layer];
        r = k->ops->experts(k->be, &m->op);
    }
    return r;
}

static void drop(struct kbench *k, struct mixture *m)
{
    for (int i = 0; i < m->n_gate; i++) {
        k->ops->weight_destroy(k->be, &m->gate[i]);
    }
    for (int i = 0; i < m->n_up; i++) {
        k->ops->weight_destroy(k->be, &m->up[i]);
    }
    for (int i = 0; i < m->n_down; i++) {
        k->ops->weight_destroy(k->be, &m->down[i]);
    }
    if (m->have_router) {
        k->ops->weight_destroy(k->be, &m->router);
    }
    k->ops->free(k->be, m->x, 0);
    k->ops->free(k->be, m->y, 0);
    *m = (struct mixture){0};
}

static int make_router(struct kbench *k, const struct shape *s, struct mixture *m, struct error *e)
{
    struct ops_weight_desc desc = {.name = "router",
                                   .type = DTYPE_F32,
                                   .role = OPS_ROLE_MATMUL,
                                   .n_rows = s->n_expert,
                                   .n_cols = s->n_cols};
    float *data = calloc((size_t)s->n_expert * (size_t)s->n_cols, sizeof(*data));
    int r;

    if (!data) {
        return error_set(e, -ENOMEM, "no memory for a router");
    }
    for (int32_t i = 0; i < s->n_expert; i++) {
        data[(size_t)i * (size_t)s->n_cols + (size_t)(i / s->n_used)] = 1;
    }
    desc.data = data;
    r = k->ops->weight_create(k->be, &desc, &m->router, e);
    m->have_router = r == 0;
    free(data);
    return r;
}

/* Layers of one shape. `ret_bytes`: of one expert, as the file has it. */
static int make(struct kbench *k, const struct shape *s, struct mixture *m, uint64_t *ret_bytes,
                struct error *e)
{
    struct ops_weight_desc up = {.name = "experts",
                                 .type = s->type,
                                 .role = OPS_ROLE_MATMUL,
                                 .n_stack = (uint16_t)s->n_expert,
                                 .n_rows = s->n_ff,
                                 .n_cols = s->n_cols};
    struct ops_weight_desc down = up;
    uint64_t row;
    uint64_t down_row;
    uint64_t bytes;
    int r;

    down.n_rows = s->n_cols;
    down.n_cols = s->n_ff;
    if (!dtype_row_bytes(s->type, (uint64_t)s->n_cols, &row) ||
        !dtype_row_bytes(s->type, (uint64_t)s->n_ff, &down_row)) {
        return error_set(e, -EINVAL, "rows of %d and %d", s->n_cols, s->n_ff);
    }
    bytes = 2 * row * (uint64_t)s->n_ff + down_row * (uint64_t)s->n_cols;
    m->n = kbench_copies(k, bytes * (uint64_t)s->n_expert);
    r = make_router(k, s, m, e);
    r = r ? r : kbench_weights(k, &up, m->n, m->gate, &m->n_gate, e);
    r = r ? r : kbench_weights(k, &up, m->n, m->up, &m->n_up, e);
    r = r ? r : kbench_weights(k, &down, m->n, m->down, &m->n_down, e);
    *ret_bytes = bytes;
    return r;
}

/* Rows, in turns over all experts. */
static int make_rows(struct kbench *k, const struct shape *s, int32_t rows, struct mixture *m,
                     struct error *e)
{
    int32_t sets = s->n_expert / s->n_used;
    uint64_t n_rows;
    uint64_t bytes;
    float *x;
    int r;

    m->n_variants = sets > rows ? sets / rows : 1;
    n_rows = (uint64_t)m->n_variants * (uint64_t)rows;
    bytes = n_rows * (uint64_t)s->n_cols * sizeof(*x);
    x = calloc(1, bytes);
    if (!x) {
        return error_set(e, -ENOMEM, "no memory for rows");
    }
    for (uint64_t i = 0; i < n_rows; i++) {
        x[i * (uint64_t)s->n_cols + i % (uint64_t)sets] = 1;
    }
    r = k->ops->alloc(k->be, bytes, "rows", &m->x, e);
    r = r ? r : k->ops->alloc(k->be, bytes, "results", &m->y, e);
    if (!r && (r = k->ops->write(k->be, m->x, x, bytes))) {
        r = error_set_errno(e, r, "write");
    }
    free(x);
    m->op = (struct ops_experts){.rows = {rows, rows},
                                 .y = m->y,
                                 .ldx = s->n_cols,
                                 .ldy = s->n_cols,
                                 .n_expert = s->n_expert,
                                 .n_used = s->n_used,
                                 .normed = true,
                                 .act = OPS_ACT_SILU,
                                 .router = &m->router};
    return r;
}

static int time_rows(struct kbench *k, const struct shape *s, int32_t rows, const char *name,
                     uint64_t expert_bytes, struct mixture *m, struct error *e)
{
    double experts = rows * s->n_used < s->n_expert ? rows * s->n_used : s->n_expert;
    double bytes = experts * (double)expert_bytes;
    const struct kbench_kernel known[] = {{"experts_q", bytes}, {0}};
    int n;
    double ns;
    int r = make_rows(k, s, rows, m, e);

    n = k->small ? 2 : LAUNCHES;
    r = r ? r : kbench_time(k, mixture_round, m, n, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, bytes + 4.0 * s->n_expert * s->n_cols,
                     6.0 * rows * s->n_used * s->n_ff * s->n_cols);
        r = kbench_kernels(k, mixture_round, m, n, name, known, e);
    }
    k->ops->free(k->be, m->x, 0);
    k->ops->free(k->be, m->y, 0);
    m->x = NULL;
    m->y = NULL;
    return r;
}

static int time_shape(struct kbench *k, const struct shape *s, struct mixture *m, struct error *e)
{
    static const int32_t rows[] = {1, MOST_ROWS};
    uint64_t bytes = 0;
    bool made = false;
    int r = 0;

    for (int i = 0; i < 2 && !r; i++) {
        char name[96];

        (void)snprintf(name, sizeof(name), "experts %s (%d of %d, %d x %d), %d rows",
                       dtype_info(s->type)->name, s->n_used, s->n_expert, s->n_ff, s->n_cols,
                       rows[i]);
        if (!kbench_wants(k, name)) {
            continue;
        }
        r = made ? 0 : make(k, s, m, &bytes, e);
        made = true;
        r = r ? r : time_rows(k, s, rows[i], name, bytes, m, e);
    }
    drop(k, m);
    return r;
}

int kbench_experts(struct kbench *k, struct error *e)
{
    static struct mixture m;
    const struct shape *s = k->small ? small_shapes : shapes;
    struct backend_limits limits = kbench_limits(k);
    int r;

    limits.max_rows = 64; /* and so many entries */
    limits.max_cols = 2880;
    limits.max_experts = 128;
    limits.max_experts_used = MOST_ROWS;
    r = k->ops->reserve(k->be, &limits, e);
    for (int i = 0; i < 2 && !r; i++) {
        r = time_shape(k, &s[i], &m, e);
    }
    limits = kbench_limits(k);
    return r ? r : k->ops->reserve(k->be, &limits, e);
}
