/* SPDX-License-Identifier: Apache-2.0 */
/* qkv_store against the two operations that it stands for, on the same backend, to the bit: q, k,
 * v, pages, positions, scores and sums of V. All types of weights (also different ones in one call)
 * and of caches, heads that share a block of the product and heads of several, both RoPE forms,
 * per-head norms, biases, rings, victims, only q; few rows, many rows, and rows of class prefill
 * among them, which no product stores. Three steps a case, so that what
 * one leaves behind is found by the next; each begins with an embedding, so that a backend that
 * makes graphs of steps makes one of these. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/check_kv.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = 0;
const struct backend_limits check_limits = {
    .max_rows = 64,
    .max_decode = 32,
    .max_seqs = 20,
    .max_cols = 256,
    .max_outputs = 1024,
    .max_heads = 16,
    .max_head_dim = 256,
    .max_slots = 128,
};

enum { MAX_SEQS = 20, CAP = 64, STEPS = 3, RING_SLOTS = 6 };
enum { NORM = 1, BIAS = 2, RING = 4, VICTIM = 8, NO_KV = 16, POSITIONS = 32, PREFILL = 64 };

struct shape {
    struct ops_kv_layout l;
    int32_t n_q;
    enum ops_rope_form form;
    int32_t n_dims;
    int32_t n; /* rows, each of a sequence of its own */
    int options;
    enum dtype type[3];
};

/* What a call leaves; [0] of qkv_store, [1] of the two. */
struct outputs {
    struct check_kv kv[MAX_SEQS];
    struct check_buf *y[3];
    struct check_buf *v_sum;
};

struct inputs {
    struct outputs set[2];
    struct check_buf *x;
    struct check_buf *victim; /* (MAX_SEQS, n_groups) */
    struct check_buf *embedded;
    struct check_weight w[3], bias[3], norm, q_norm, k_norm, embed;
    int32_t n_cols;
    int32_t heads[3];
    int32_t dim[3];
    int32_t ld[3];
    float inv_freq[128];
};

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    static const char *const names[2][3] = {{"q", "k", "v"}, {"q of two", "k of two", "v of two"}};
    const struct ops_kv_layout *l = &s->l;
    int32_t n_v = l->n_groups * l->v_heads;

    memset(in, 0, sizeof(*in));
    in->n_cols = 256;
    for (int i = 0; i < 3; i++) {
        in->heads[i] = i == 0 ? s->n_q : i == 1 ? l->n_groups * l->k_heads : n_v;
        in->dim[i] = i == 2 ? l->v_dim : l->k_dim;
        in->ld[i] = in->heads[i] * in->dim[i] + 1 + i;
    }
    if (s->type[0] == s->type[2]) {
        int32_t block = dtype_info(s->type[0])->block_len;

        in->n_cols = block == 1 ? 67 : block == 32 ? 96 : 256;
    }
    in->x = check_buf(c, "x", (size_t)s->n * (size_t)in->n_cols * 4);
    check_fill(c, in->x, 1);
    in->embedded = check_buf(c, "embedded", (size_t)s->n * 32 * 4);
    check_weight_make(c, &in->embed, DTYPE_F32, OPS_ROLE_EMBED, 4, 32, 1);
    in->victim = check_buf(c, "victim", (size_t)MAX_SEQS * (size_t)l->n_groups * 4);
    for (int32_t i = 0; i < MAX_SEQS * l->n_groups; i++) {
        ((int32_t *)(void *)in->victim->init)[i] = 3 + i % 17;
    }
    for (int i = 0; i < 3; i++) {
        int32_t n = in->heads[i] * in->dim[i];

        check_weight_make(c, &in->w[i], s->type[i], OPS_ROLE_MATMUL, n, in->n_cols,
                          1 / sqrtf((float)in->n_cols));
        check_weight_make(c, &in->bias[i], DTYPE_F32, OPS_ROLE_VECTOR, 1, n, 1);
    }
    check_weight_make(c, &in->norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, in->n_cols, 1);
    check_weight_make(c, &in->q_norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, l->k_dim, 1);
    check_weight_make(c, &in->k_norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, l->k_dim, 1);
    for (int set = 0; set < 2; set++) {
        struct outputs *o = &in->set[set];

        for (int i = 0; i < 3; i++) {
            o->y[i] = check_buf(c, names[set][i], (size_t)s->n * (size_t)in->ld[i] * 4);
        }
        o->v_sum = check_buf(c, "v_sum", (size_t)s->n * (size_t)(n_v * l->v_dim) * 4);
    }
    for (int i = 0; i < s->n && !(s->options & NO_KV); i++) {
        for (int set = 0; set < 2; set++) {
            check_kv_make(c, &in->set[set].kv[i], l, CAP, CAP, s->options & POSITIONS,
                          s->options & POSITIONS);
        }
        struct check_kv *a = &in->set[0].kv[i];
        struct check_kv *b = &in->set[1].kv[i];

        memcpy(b->content, a->content, (size_t)(l->n_groups * CAP) * a->slot_bytes);
        memcpy(b->pages->init, a->pages->init, a->pages->bytes);
        if (a->skew) {
            memcpy(b->skew->init, a->skew->init, a->skew->bytes);
        }
        if (i % 2) { /* some of a batch are centred */
            size_t bytes = (size_t)(l->n_groups * l->k_heads * l->k_dim) * sizeof(float);

            a->center = check_buf(c, "center", bytes);
            b->center = check_buf(c, "center", bytes);
            check_fill(c, a->center, 3);
            memcpy(b->center->init, a->center->init, bytes);
        }
        a->k_hadamard = i % 3 == 1;
        b->k_hadamard = a->k_hadamard;
        if (i == 4) {
            check_kv_balance(c, a);
            check_kv_balance(c, b);
            memcpy(b->balance->init, a->balance->init, a->balance->bytes);
        }
        if (a->score) {
            check_fill(c, a->score, 1);
            memcpy(b->score->init, a->score->init, a->score->bytes);
        }
    }
    for (int32_t i = 0; i < s->n_dims / 2; i++) {
        in->inv_freq[i] = (float)pow(10000, -2.0 * i / s->n_dims);
    }
}

static int call(struct check *c, const struct shape *s, struct inputs *in, int set, int step)
{
    struct outputs *o = &in->set[set];
    struct ops_seq seqs[MAX_SEQS] = {0};
    struct ops_kv_layout none;
    bool kv = !(s->options & NO_KV);
    int32_t n_decode = s->options & PREFILL ? s->n - 1 : s->n;
    struct ops_matmul m = {
        .rows = {s->n, n_decode},
        .norm = {.w = &in->norm.w[c->side], .eps = 1e-6f},
        .x = check_dev(c, in->x),
        .ldx = in->n_cols,
        .n_parts = kv ? 3 : 1,
    };
    struct ops_rope_store p = {
        .rows = m.rows,
        .q = check_dev(c, o->y[0]),
        .k = kv ? check_dev(c, o->y[1]) : NULL,
        .v = kv ? check_dev(c, o->y[2]) : NULL,
        .ldq = in->ld[0],
        .ldk = in->ld[1],
        .ldv = in->ld[2],
        .n_q = in->heads[0],
        .n_k = kv ? in->heads[1] : 0,
        .n_v = kv ? in->heads[2] : 0,
        .k_dim = s->l.k_dim,
        .rope = {.form = s->form, .n_dims = s->n_dims, .inv_freq = in->inv_freq, .mscale = 1.1f},
        .seqs = seqs,
        .n_seqs = s->n,
    };

    for (int i = 0; i < m.n_parts; i++) {
        m.part[i].w = &in->w[i].w[c->side];
        m.part[i].bias = s->options & BIAS ? &in->bias[i].w[c->side] : NULL;
        m.part[i].y = check_dev(c, o->y[i]);
        m.part[i].ldy = in->ld[i];
    }
    if (s->options & NORM) {
        p.q_norm = (struct ops_norm){.w = &in->q_norm.w[c->side], .eps = 1e-6f};
        p.k_norm = (struct ops_norm){.w = &in->k_norm.w[c->side], .eps = 1e-6f};
    }
    none = s->l;
    check_require(c->ops->kv_layout(&none, NULL), "kv_layout");
    for (int32_t i = 0; i < s->n; i++) {
        seqs[i] = (struct ops_seq){
            .row0 = i,
            .n_rows = 1,
            .pos0 = 100 * i + step,
            .slot0 = 5 + i + step,
            .ring = s->options & RING ? RING_SLOTS : 0,
        };
        seqs[i].kv.layout = &none;
        if (kv) {
            seqs[i].kv = check_kv_of(c, &o->kv[i]);
        }
        if (s->options & VICTIM) {
            seqs[i].victim =
                (const int32_t *)check_dev(c, in->victim) + ((i + step) % MAX_SEQS) * s->l.n_groups;
            seqs[i].kv.v_sum =
                (float *)check_dev(c, o->v_sum) + (size_t)i * (size_t)(in->heads[2] * in->dim[2]);
        }
    }
    if (set == 0 && c->ops->qkv_store) {
        static const int32_t ids[MAX_SEQS];
        struct ops_embed e = {.rows = m.rows,
                              .ids = ids,
                              .w = &in->embed.w[c->side],
                              .scale = 1,
                              .y = check_dev(c, in->embedded),
                              .ld = 32};
        int r = c->ops->embed(c->be, &e);

        r = r ? r : c->ops->qkv_store(c->be, &m, &p);
        return r ? r : c->ops->sync(c->be);
    }
    int r = c->ops->matmul(c->be, &m);

    return r ? r : c->ops->rope_store(c->be, &p);
}

static void compare(struct check *c, const struct shape *s, const struct inputs *in)
{
    const struct outputs *a = &in->set[0];
    const struct outputs *b = &in->set[1];

    for (int i = 0; i < 3; i++) {
        check_bits(c, a->y[i]->what, a->y[i]->out[1], b->y[i]->out[1], a->y[i]->bytes);
    }
    check_bits(c, "v_sum", a->v_sum->out[1], b->v_sum->out[1], a->v_sum->bytes);
    for (int i = 0; i < s->n && !(s->options & NO_KV); i++) {
        const struct check_kv *x = &a->kv[i];
        const struct check_kv *y = &b->kv[i];

        check_bits(c, "pages", x->pool->out[1], y->pool->out[1], x->pool->bytes);
        if (x->slot_pos) {
            check_bits(c, "slot_pos", x->slot_pos->out[1], y->slot_pos->out[1], x->slot_pos->bytes);
            check_bits(c, "score", x->score->out[1], y->score->out[1], x->score->bytes);
        }
    }
}

static void one(struct check *c, const struct shape *s)
{
    static struct inputs in;
    struct ops_kv_layout l = s->l;

    if (!c->sides[1]->ops->qkv_store || !check_kv_offered(c, &l) ||
        !check_case(c,
                    "%s %s %s, %s/%s groups %d k %d x %d v %d x %d q %d form %d rows %d options %d",
                    dtype_info(s->type[0])->name, dtype_info(s->type[1])->name,
                    dtype_info(s->type[2])->name, ops_kv_type_name(l.k_type),
                    ops_kv_type_name(l.v_type), l.n_groups, l.k_heads, l.k_dim, l.v_heads, l.v_dim,
                    s->n_q, (int)s->form, s->n, s->options)) {
        return;
    }
    prepare(c, s, &in);
    while (check_call(c)) {
        for (int set = 0; set < 2; set++) {
            for (int step = 0; step < STEPS && !c->err; step++) {
                c->err = call(c, s, &in, set, step);
            }
        }
    }
    compare(c, s, &in);
    for (int set = 0; set < 2; set++) {
        for (int i = 0; i < s->n && !(s->options & NO_KV); i++) {
            check_kv_free(&in.set[set].kv[i]);
        }
    }
    for (int i = 0; i < 3; i++) {
        check_weight_free(c, &in.w[i]);
        check_weight_free(c, &in.bias[i]);
    }
    check_weight_free(c, &in.embed);
    check_weight_free(c, &in.norm);
    check_weight_free(c, &in.q_norm);
    check_weight_free(c, &in.k_norm);
}

void check_op(struct check *c)
{
    static const enum dtype types[] = {DTYPE_Q4_0,   DTYPE_Q4_1,   DTYPE_Q5_0,  DTYPE_Q5_1,
                                       DTYPE_Q8_0,   DTYPE_Q4_K,   DTYPE_Q5_K,  DTYPE_Q6_K,
                                       DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4, DTYPE_Q2_K,
                                       DTYPE_Q3_K,   DTYPE_F16,    DTYPE_BF16,  DTYPE_F32};
    static const struct shape shapes[] = {
        {.l = {2, 1, 1, 64, 64},
         .n_q = 4,
         .form = OPS_ROPE_NEOX,
         .n_dims = 64,
         .n = 1,
         .options = NORM},
        {.l = {1, 2, 1, 20, 36},
         .n_q = 4,
         .form = OPS_ROPE_NORM,
         .n_dims = 20,
         .n = 3,
         .options = VICTIM | POSITIONS},
        {.l = {2, 1, 4, 80, 32},
         .n_q = 2,
         .form = OPS_ROPE_NEOX,
         .n_dims = 40,
         .n = 9,
         .options = RING | POSITIONS | BIAS},
        {.l = {1, 1, 1, 256, 256},
         .n_q = 1,
         .form = OPS_ROPE_NORM,
         .n_dims = 256,
         .n = 5,
         .options = NORM | BIAS},
        {.l = {3, 1, 1, 8, 8},
         .n_q = 3,
         .form = OPS_ROPE_NEOX,
         .n_dims = 8,
         .n = 16,
         .options = NORM | POSITIONS},
        {.l = {2, 1, 1, 64, 64},
         .n_q = 3,
         .form = OPS_ROPE_NEOX,
         .n_dims = 64,
         .n = 1,
         .options = NO_KV | NORM},
        {.l = {1, 1, 1, 32, 32}, .n_q = 2, .form = OPS_ROPE_NONE, .n = 4, .options = PREFILL},
        {.l = {1, 1, 1, 32, 32}, .n_q = 2, .form = OPS_ROPE_NORM, .n_dims = 32, .n = 20},
    };
    static const enum dtype mixed[][3] = {{DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
                                          {DTYPE_BF16, DTYPE_F16, DTYPE_Q8_0},
                                          {DTYPE_F16, DTYPE_F16, DTYPE_F32}};
    static const enum ops_kv_type part_types[] = {OPS_KV_F32, OPS_KV_F16, OPS_KV_FP8};
    enum {
        N_SHAPES = sizeof(shapes) / sizeof(shapes[0]),
        N_TYPES = sizeof(types) / sizeof(types[0])
    };

    /* every type with every shape, the caches' types in turn; then parts of different types */
    for (int i = 0; i < (N_TYPES + 3) * N_SHAPES; i++) {
        struct shape s = shapes[i % N_SHAPES];
        int t = i / N_SHAPES;
        const struct check_kv_types *kv = &check_kv_types[(i + t) % check_kv_n_types];

        if ((c->few && (i + t) % 4 != 1) ||
            (t < N_TYPES && c->sides[1]->ops->lacks_types >> types[t] & 1)) {
            continue;
        }
        s.l.k_type = kv->k;
        s.l.v_type = kv->v;
        for (int j = 0; j < 3; j++) {
            s.type[j] = t < N_TYPES ? types[t] : mixed[t - N_TYPES][j];
        }
        one(c, &s);
        if (i % N_SHAPES == 0) { /* with the copy by which queries rank */
            s.l.rank = OPS_RANK_8;
            one(c, &s);
            s.l.rank = OPS_RANK_ONCE;
            s.l.part_dims = 19;
            s.l.part_type = part_types[t % 3];
            one(c, &s);
        }
    }
}
