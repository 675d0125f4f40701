/* SPDX-License-Identifier: Apache-2.0 */
/* Products by weights: types that models mostly have at the shapes of an 8B and a 1B model, by 1, 8
 * and 32 rows as decode has them; some shapes by 16 and 64, too, quantised by both kernels that
 * there are for more than one row, of 16 bits also as a prompt's rows go; and by 512 and 2048 rows
 * as prompts have them, with what unpacking a quantised weight to bf16 takes, with which a prompt's
 * product by cublasLt begins. The other types at one shape of each model, by 1, 8 and 32 rows. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/kernels/kbench.h"

enum { MOST_COPIES = 32, LAUNCHES = 32 };

struct shape {
    const char *name;
    int32_t n_rows; /* outputs */
    int32_t n_cols;
    bool more;  /* timed by more numbers of rows */
    bool every; /* timed with every type */
};

static const struct shape shapes[] = {
    {"8B o", 4096, 4096, false, false},    {"8B gate", 14336, 4096, true, true},
    {"8B down", 4096, 14336, true, false}, {"8B head", 128256, 4096, false, false},
    {"1B o", 2048, 2048, false, false},    {"1B gate", 8192, 2048, true, true},
    {"1B down", 2048, 8192, false, false}, {"1B head", 128256, 2048, false, false},
};
static const struct shape small_shapes[] = {{"small gate", 128, 256, true, true},
                                            {"small down", 64, 512, false, false}};

/* The first ones at all shapes. */
enum { N_USUAL = 6 };
static const enum dtype types[] = {DTYPE_BF16, DTYPE_F16,  DTYPE_Q8_0,   DTYPE_Q4_0,   DTYPE_Q4_K,
                                   DTYPE_Q6_K, DTYPE_Q4_1, DTYPE_Q5_0,   DTYPE_Q5_1,   DTYPE_Q2_K,
                                   DTYPE_Q3_K, DTYPE_Q5_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4};

struct product {
    struct ops_weight w[MOST_COPIES];
    int n;
    uint64_t bytes; /* of one weight as the file has it */
    struct ops_matmul op;
};

static int product_round(struct kbench *k, void *arg, int n)
{
    struct product *p = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        p->op.part[0].w = &p->w[i % p->n];
        r = k->ops->matmul(k->be, &p->op);
    }
    return r;
}

static void drop(struct kbench *k, struct product *p)
{
    for (int i = 0; i < p->n; i++) {
        k->ops->weight_destroy(k->be, &p->w[i]);
    }
    p->n = 0;
}

static int make(struct kbench *k, const struct shape *s, enum dtype type, struct product *p,
                struct error *e)
{
    struct ops_weight_desc desc = {.name = s->name,
                                   .type = type,
                                   .role = OPS_ROLE_MATMUL,
                                   .n_rows = s->n_rows,
                                   .n_cols = s->n_cols};
    uint64_t row;

    if (!dtype_row_bytes(type, (uint64_t)s->n_cols, &row)) {
        return error_set(e, -EINVAL, "rows of %d", s->n_cols);
    }
    p->bytes = row * (uint64_t)s->n_rows;
    return kbench_weights(k, &desc, kbench_copies(k, p->bytes), p->w, &p->n, e);
}

/* `what`: the row's first word. */
static int time_as(struct kbench *k, const struct shape *s, const char *what, const char *type,
                   struct product *p, int32_t rows, bool prompt, struct error *e)
{
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "%s %s %s (%d x %d), %d rows", what, type, s->name,
                   s->n_rows, s->n_cols, rows);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    p->op.rows = (struct ops_rows){.n = rows, .n_decode = prompt ? 0 : rows};
    r = kbench_time(k, product_round, p, k->small ? p->n : rows > 64 ? 8 : LAUNCHES, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, rows > 64 ? 0 : (double)p->bytes,
                     2.0 * s->n_rows * s->n_cols * rows);
    }
    return r;
}

static int time_rows(struct kbench *k, const struct shape *s, const char *type, struct product *p,
                     int32_t rows, bool prompt, struct error *e)
{
    return time_as(k, s, prompt ? "prefill" : "gemv", type, p, rows, prompt, e);
}

/* The same by the kernel that these rows do not go by (bench.h); by 16 bits as a prompt's rows go,
 * with activations rounded to 16 bits. */
static int time_other(struct kbench *k, const struct shape *s, enum dtype of, struct product *p,
                      int32_t rows, struct error *e)
{
    const char *type = dtype_info(of)->name;
    char name[32];
    int32_t from;
    bool few;
    int r;

    if (dtype_info(of)->block_len == 1) {
        (void)snprintf(name, sizeof(name), "%s as a prompt", type);
        return rows > 8 ? time_as(k, s, "gemv", name, p, rows, true, e) : 0;
    }
    from = k->clock->few_from(k->be, 0);
    few = rows < from;
    (void)snprintf(name, sizeof(name), "%s by %s", type, few ? "few" : "stream");
    (void)k->clock->few_from(k->be, few ? 2 : INT32_MAX);
    r = time_rows(k, s, name, p, rows, false, e);
    (void)k->clock->few_from(k->be, from);
    return r;
}

static int unpack_round(struct kbench *k, void *arg, int n)
{
    struct product *p = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        r = k->clock->unpack(k->be, &p->w[i % p->n], p->op.part[0].y);
    }
    return r;
}

static int time_unpacking(struct kbench *k, const struct shape *s, const char *type,
                          struct product *p, struct error *e)
{
    char name[96];
    double ns;
    int r;

    (void)snprintf(name, sizeof(name), "prefill unpack %s %s (%d x %d)", type, s->name, s->n_rows,
                   s->n_cols);
    if (!kbench_wants(k, name)) {
        return 0;
    }
    r = kbench_time(k, unpack_round, p, k->small ? p->n : LAUNCHES, &ns, e);
    if (!r) {
        kbench_print(k, name, ns, (double)p->bytes + 2.0 * s->n_rows * s->n_cols, 0);
    }
    return r;
}

static int time_shape(struct kbench *k, const struct shape *s, enum dtype type, bool more, float *x,
                      float *y, struct error *e)
{
    static const int32_t decode[] = {1, 8, 32, 16, 64}; /* the last two of some shapes */
    static const int32_t prompt[] = {512, 2048};
    static struct product p;
    char name[96];
    int r = 0;

    (void)snprintf(name, sizeof(name), "%s %s", dtype_info(type)->name, s->name);
    if (k->only && !strstr(name, k->only) && !strstr(k->only, "gemv") &&
        !strstr(k->only, "prefill")) {
        return 0; /* the weights are not worth making */
    }
    r = make(k, s, type, &p, e);
    p.op = (struct ops_matmul){.x = x, .ldx = s->n_cols, .n_parts = 1};
    p.op.part[0].y = y;
    p.op.part[0].ldy = s->n_rows;
    for (int i = 0; i < (more ? 5 : 3) && !r; i++) {
        r = time_rows(k, s, dtype_info(type)->name, &p, decode[i], false, e);
        if (!r && more && decode[i] > 1) {
            r = time_other(k, s, type, &p, decode[i], e);
        }
    }
    for (int i = 0; i < 2 && !r && more; i++) {
        r = time_rows(k, s, dtype_info(type)->name, &p, k->small ? 16 << i : prompt[i], true, e);
    }
    if (!r && more && dtype_info(type)->block_len > 1) {
        r = time_unpacking(k, s, dtype_info(type)->name, &p, e);
    }
    drop(k, &p);
    return r;
}

int kbench_products(struct kbench *k, struct error *e)
{
    const struct shape *s = k->small ? small_shapes : shapes;
    int n = k->small ? 2 : (int)(sizeof(shapes) / sizeof(shapes[0]));
    uint64_t x_bytes = (k->small ? (uint64_t)64 * 512 : (uint64_t)2048 * 14336) * sizeof(float);
    uint64_t y_bytes = k->small ? x_bytes : (uint64_t)2048 * 14336 * sizeof(float);
    void *x = NULL;
    void *y = NULL;
    int r = kbench_fill(k, x_bytes, &x, e);

    r = r ? r : k->ops->alloc(k->be, y_bytes, "results", &y, e);
    for (int i = 0; i < n && !r; i++) {
        int n_types = s[i].every ? (int)(sizeof(types) / sizeof(types[0])) : N_USUAL;

        for (int t = 0; t < n_types && !r; t++) {
            r = time_shape(k, &s[i], types[t], s[i].more && t < N_USUAL, x, y, e);
        }
    }
    k->ops->free(k->be, x, x_bytes);
    k->ops->free(k->be, y, y_bytes);
    return r;
}
