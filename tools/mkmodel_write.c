/* SPDX-License-Identifier: Apache-2.0 */
/* A model file with random weights: the list of tensors of a shape is made once, then declared,
 * then filled block of rows by block of rows, rows shared out to threads. Deviations keep
 * activations finite through any depth: 1 / sqrt(inputs) for a matrix, less by sqrt(2 layers) for
 * the two that write to the residual stream, 2 / sqrt(hidden) for embedding and head (logits then
 * deviate by about 2), norms near 1. */

#include "tools/mkmodel_write.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/mkmodel_random.h"
#include "tools/mkmodel_vocab.h"

enum { BLOCK_BYTES = 8 << 20 };

struct tensor {
    char name[64];
    enum dtype type;
    int n_dims;
    uint64_t dims[2]; /* row length, rows */
    float mean;
    float deviation;
};

struct list {
    struct tensor *v;
    size_t n;
    size_t room;
    const struct mkmodel_plan *plan;
    int64_t layer;
    bool failed; /* no memory */
};

/* ---- the list ---- */

/* K-quants need rows of 256, the others of 32: where they do not fit, the next finer type does. */
static enum dtype fitting(enum dtype type, uint64_t row)
{
    if (row % (uint64_t)dtype_info(type)->block_len == 0) {
        return type;
    }
    return row % 32 == 0 ? DTYPE_Q8_0 : DTYPE_F16;
}

static struct tensor *add(struct list *l, const char *part)
{
    struct tensor *t;

    if (l->n == l->room) {
        size_t room = l->room ? l->room * 2 : 256;
        struct tensor *v = realloc(l->v, room * sizeof(*v));

        if (!v) {
            l->failed = true;
            return NULL;
        }
        l->v = v;
        l->room = room;
    }
    t = &l->v[l->n++];
    *t = (struct tensor){0};
    if (l->layer >= 0) {
        (void)snprintf(t->name, sizeof(t->name), "blk.%" PRId64 ".%s", l->layer, part);
    } else {
        (void)snprintf(t->name, sizeof(t->name), "%s", part);
    }
    return t;
}

static void add_matrix(struct list *l, const char *part, int64_t inputs, int64_t outputs,
                       double deviation)
{
    struct tensor *t = add(l, part);

    if (t) {
        t->type = fitting(l->layer >= 0 ? l->plan->type : l->plan->embd_type, (uint64_t)inputs);
        t->n_dims = 2;
        t->dims[0] = (uint64_t)inputs;
        t->dims[1] = (uint64_t)outputs;
        t->deviation = (float)deviation;
    }
}

static void add_vector(struct list *l, const char *part, int64_t n, float mean, float deviation)
{
    struct tensor *t = add(l, part);

    if (t) {
        t->type = DTYPE_F32;
        t->n_dims = 1;
        t->dims[0] = (uint64_t)n;
        t->dims[1] = 1;
        t->mean = mean;
        t->deviation = deviation;
    }
}

static void add_norm(struct list *l, const char *part, int64_t n)
{
    add_vector(l, part, n, 1, 0.05f);
}

static void add_projection(struct list *l, const char *part, int64_t outputs)
{
    const struct mkmodel_shape *s = &l->plan->shape;
    char name[32];

    (void)snprintf(name, sizeof(name), "%s.weight", part);
    add_matrix(l, name, s->hidden, outputs, 1 / sqrt((double)s->hidden));
    if (s->arch->qkv_bias) {
        (void)snprintf(name, sizeof(name), "%s.bias", part);
        add_vector(l, name, outputs, 0, 0.1f);
    }
}

static void add_attention(struct list *l)
{
    const struct mkmodel_shape *s = &l->plan->shape;
    int64_t q = s->n_heads * s->head_dim;
    double residual = 1 / sqrt(2.0 * (double)s->n_layers);

    add_norm(l, "attn_norm.weight", s->hidden);
    add_projection(l, "attn_q", q);
    if (s->aug_q > 0) {
        add_matrix(l, "attn_q_gate.weight", q, s->aug_q, 1 / sqrt((double)q));
        add_matrix(l, "attn_q_up.weight", q, s->aug_q, 1 / sqrt((double)q));
        add_matrix(l, "attn_q_down.weight", s->aug_q, q, 2 / sqrt((double)s->aug_q));
    }
    add_projection(l, "attn_k", s->n_k_heads * s->head_dim);
    add_projection(l, "attn_v", s->n_v_heads * s->head_dim);
    if (s->arch->qk_norm) {
        add_norm(l, "attn_q_norm.weight", s->head_dim);
        add_norm(l, "attn_k_norm.weight", s->head_dim);
    }
    add_matrix(l, "attn_output.weight", q, s->hidden, residual / sqrt((double)q));
    if (s->arch->post_norms) {
        add_norm(l, "post_attention_norm.weight", s->hidden);
    }
}

static void add_ffn(struct list *l)
{
    const struct mkmodel_shape *s = &l->plan->shape;
    double residual = 1 / sqrt(2.0 * (double)s->n_layers);

    add_norm(l, "ffn_norm.weight", s->hidden);
    add_matrix(l, "ffn_gate.weight", s->hidden, s->ffn, 1 / sqrt((double)s->hidden));
    add_matrix(l, "ffn_up.weight", s->hidden, s->ffn, 1 / sqrt((double)s->hidden));
    add_matrix(l, "ffn_down.weight", s->ffn, s->hidden, 2 * residual / sqrt((double)s->ffn));
    if (s->arch->post_norms) {
        add_norm(l, "post_ffw_norm.weight", s->hidden);
    }
}

static void make_list(struct list *l)
{
    const struct mkmodel_shape *s = &l->plan->shape;
    double of_head = 2 / sqrt((double)s->hidden);

    l->layer = -1;
    add_matrix(l, "token_embd.weight", s->hidden, s->vocab, of_head);
    for (l->layer = 0; l->layer < s->n_layers; l->layer++) {
        add_attention(l);
        add_ffn(l);
    }
    l->layer = -1;
    add_norm(l, "output_norm.weight", s->hidden);
    if (!s->tied) {
        add_matrix(l, "output.weight", s->hidden, s->vocab, of_head);
    }
}

/* ---- keys ---- */

static uint32_t file_type(enum dtype type)
{
    static const struct {
        enum dtype type;
        uint32_t file_type;
    } rows[] = {{DTYPE_F32, 0},   {DTYPE_F16, 1},    {DTYPE_Q4_0, 2},    {DTYPE_Q4_1, 3},
                {DTYPE_Q8_0, 7},  {DTYPE_Q5_0, 8},   {DTYPE_Q5_1, 9},    {DTYPE_Q4_K, 14},
                {DTYPE_Q5_K, 16}, {DTYPE_Q6_K, 18},  {DTYPE_IQ4_NL, 25}, {DTYPE_IQ4_XS, 30},
                {DTYPE_BF16, 32}, {DTYPE_MXFP4, 38}, {DTYPE_Q2_K, 10},   {DTYPE_Q3_K, 12}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].type == type) {
            return rows[i].file_type;
        }
    }
    return 0;
}

/* Failures stick to the writer: they are read from its end. */
static void key_u32(struct gguf_writer *w, const char *arch, const char *key, int64_t v)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.%s", arch, key);
    (void)!gguf_writer_u32(w, name, (uint32_t)v);
}

static void key_f32(struct gguf_writer *w, const char *arch, const char *key, double v)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "%s.%s", arch, key);
    (void)!gguf_writer_f32(w, name, (float)v);
}

static void write_keys(struct gguf_writer *w, const struct mkmodel_plan *plan)
{
    const struct mkmodel_shape *s = &plan->shape;
    const char *arch = s->arch->name;

    (void)!gguf_writer_str(w, "general.architecture", arch, strlen(arch));
    (void)!gguf_writer_str(w, "general.name", plan->name, strlen(plan->name));
    (void)!gguf_writer_u32(w, "general.file_type", file_type(plan->type));
    (void)!gguf_writer_u32(w, "general.quantization_version", 2);
    key_u32(w, arch, "block_count", s->n_layers);
    key_u32(w, arch, "context_length", s->ctx);
    key_u32(w, arch, "embedding_length", s->hidden);
    key_u32(w, arch, "feed_forward_length", s->ffn);
    key_u32(w, arch, "vocab_size", s->vocab);
    key_u32(w, arch, "attention.head_count", s->n_heads);
    if (s->arch->uneven_heads) {
        key_u32(w, arch, "attention.head_count_k", s->n_k_heads);
        key_u32(w, arch, "attention.head_count_v", s->n_v_heads);
        key_u32(w, arch, "attention.aug_q_length", s->aug_q);
    } else {
        key_u32(w, arch, "attention.head_count_kv", s->n_k_heads);
    }
    key_u32(w, arch, "attention.key_length", s->head_dim);
    key_u32(w, arch, "attention.value_length", s->head_dim);
    key_f32(w, arch, "attention.layer_norm_rms_epsilon", (double)s->arch->eps);
    key_u32(w, arch, "rope.dimension_count", s->head_dim);
    key_f32(w, arch, "rope.freq_base", s->rope_base);
    if (s->arch->sliding_window) {
        key_u32(w, arch, "attention.sliding_window", s->window);
    }
}

/* ---- data ---- */

struct job {
    const struct tensor *t;
    struct mkmodel_random random;
    uint64_t first; /* row */
    uint64_t n_rows;
    uint64_t row_bytes;
    uint8_t *out;
    float *scratch; /* (n_threads, longest row) */
    uint64_t longest;
    atomic_int failed;
};

static void fill_rows(void *arg, int tid, int n_threads)
{
    struct job *j = arg;

    for (uint64_t i = (uint64_t)tid; i < j->n_rows; i += (uint64_t)n_threads) {
        int r =
            mkmodel_random_row(&j->random, j->t->type, j->first + i, j->t->dims[0],
                               j->scratch + (uint64_t)tid * j->longest, j->out + i * j->row_bytes);
        if (r < 0) {
            atomic_store(&j->failed, r);
        }
    }
}

static int write_tensor(struct gguf_writer *w, const struct mkmodel_plan *plan,
                        const struct tensor *t, struct pool *pool, float *scratch, uint64_t longest,
                        uint8_t *out)
{
    struct job j = {.t = t, .out = out, .scratch = scratch, .longest = longest};
    uint64_t rows_at_once;

    j.random = (struct mkmodel_random){plan->seed, t->name, t->mean, t->deviation};
    (void)dtype_row_bytes(t->type, t->dims[0], &j.row_bytes);
    rows_at_once = BLOCK_BYTES / j.row_bytes;
    for (; j.first < t->dims[1]; j.first += j.n_rows) {
        j.n_rows = t->dims[1] - j.first < rows_at_once ? t->dims[1] - j.first : rows_at_once;
        pool_run(pool, fill_rows, &j);
        int r = atomic_load(&j.failed);

        r = r < 0 ? r : gguf_writer_data(w, out, (size_t)(j.n_rows * j.row_bytes));
        if (r < 0) {
            return r;
        }
    }
    return 0;
}

static int write_tensors(struct gguf_writer *w, const struct list *l, struct pool *pool)
{
    uint64_t longest = 0;
    int r = 0;

    for (size_t i = 0; i < l->n; i++) {
        longest = l->v[i].dims[0] > longest ? l->v[i].dims[0] : longest;
        r = r < 0 ? r
                  : gguf_writer_tensor(w, l->v[i].name, l->v[i].type, l->v[i].n_dims, l->v[i].dims);
    }
    if (longest * sizeof(float) > BLOCK_BYTES) {
        return -E2BIG;
    }
    float *scratch = malloc((size_t)longest * sizeof(float) * (size_t)pool_n_threads(pool));
    uint8_t *out = malloc(BLOCK_BYTES);
    if (!scratch || !out) {
        r = -ENOMEM;
    }
    for (size_t i = 0; i < l->n && r == 0; i++) {
        r = write_tensor(w, l->plan, &l->v[i], pool, scratch, longest, out);
    }
    free(scratch);
    free(out);
    return r;
}

int mkmodel_write(const struct mkmodel_plan *plan, const char *path, struct pool *pool,
                  uint64_t *ret_params, uint64_t *ret_bytes, struct error *reterr)
{
    struct list l = {.plan = plan};
    struct gguf_writer *w = NULL;
    uint64_t params = 0;
    uint64_t bytes = 0;
    uint64_t row = 0;
    int r;

    make_list(&l);
    if (l.failed) {
        free(l.v);
        return error_set(reterr, -ENOMEM, "no memory for the list of tensors");
    }
    r = gguf_writer_create(path, &w, reterr);
    if (r == 0) {
        write_keys(w, plan);
        r = mkmodel_vocab_write(w, plan->shape.vocab);
        r = r < 0 ? r : write_tensors(w, &l, pool);
        if (r == 0) {
            r = gguf_writer_finish(w, reterr);
        } else {
            gguf_writer_abort(w);
            (void)error_set_errno(reterr, r, "cannot write %.150s", path);
        }
    }
    for (size_t i = 0; i < l.n; i++) {
        (void)dtype_row_bytes(l.v[i].type, l.v[i].dims[0], &row);
        params += l.v[i].dims[0] * l.v[i].dims[1];
        bytes += row * l.v[i].dims[1];
    }
    free(l.v);
    *ret_params = params;
    *ret_bytes = bytes;
    return r;
}
