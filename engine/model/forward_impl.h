/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_FORWARD_IMPL_H
#define PIPIT_ENGINE_MODEL_FORWARD_IMPL_H

/* The machine that runs the program of operations (forward.c), as its files see it. Private to
 * forward*.c. */

#include "base/memory.h"
#include "engine/model/forward.h"

enum { DEEP_STORES = OPS_MATMUL_MAX_PARTS / 2 };

/* What an instruction returns, beside 0 and negative errnos: the rows that it has set up go through
 * the program from its beginning. */
enum { FORWARD_ROUND = 1 };

typedef int step_fn(struct forward *f, int32_t layer);

struct instr {
    step_fn *fn;
    int32_t layer;
};

struct buffer {
    float *p; /* device (rows, ld) */
    int32_t ld;
};

struct forward {
    struct model *m;
    const struct backend_ops *ops;
    struct backend *be;
    const atomic_int *interrupt;
    struct forward_limits limits;

    struct instr *program;
    int32_t *starts;  /* (n_layers) where a layer begins */
    int32_t *ends;    /* (n_layers) and ends */
    int32_t *deep_kv; /* (n_stores) a deep store's own instruction, behind the program's end */
    int32_t n_instr;  /* of the program */
    int32_t pc;
    int32_t pc_end;

    void *memory; /* device, all buffers */
    uint64_t bytes;
    void *host; /* the arrays below and above */
    size_t host_bytes;
    struct buffer x, y, q, k, v, att, h, t, deep, head, logits;
    struct buffer beside; /* what an FFN beside experts gives, and then these */
    struct buffer narrow; /* of wide stores: queries before their maps, attention's output behind */
    struct buffer mix; /* gated Q; a recurrent layer's q, k and v before their convolution */
    struct buffer score; /* what a layer's map makes of its input (LT_SCORE) */
    struct buffer x0, ple, ple_gate; /* embeddings; a layer's part of the per-layer ones, its gate */
    float *ple_host;                 /* (max_rows, ple.ld) */

    struct forward_batch b;
    struct ops_rows rows;        /* of the part that is running: all, or those beyond the split */
    struct buffer cur;           /* x, y or the caller's hidden */
    bool beyond;                 /* the split has been passed */
    bool viewed;                 /* sequences have some of their rows only: row0, first, count */
    struct kv_part part;         /* viewed: row0, first and count below, for the cache */
    struct buffer predicted_q;         /* queries of the layer to come (forward_predict.c) */
    int32_t *drawn;              /* device (max_logits): tokens */
    struct ops_chosen lists[2];  /* what they predict, by the store's parity */
    int32_t *index;              /* (max_rows) */
    int32_t *row0;               /* (max_seqs) viewed: first row of a sequence, */
    int32_t *first;              /* (max_seqs) which of its rows that is, */
    int32_t *count;              /* (max_seqs) and how many there are */
    int32_t *ran;                /* (max_seqs) rows of a sequence that have begun */
    bool *open;                  /* (max_seqs) it waits for a proposal */
    int32_t *place;              /* (max_rows) where in x a row of the batch lies, with rounds */
    int32_t *ids;                /* (max_rows) tokens of a round's rows */
    int32_t base;                /* row of x at which the round begins */
    bool again;                  /* a round after the first */
    struct buffer exit;          /* logits of the early-exit head */
    float *exit_host;            /* (max_seqs, exit.ld) the same */
    int32_t *exit_row;           /* (max_seqs) a sequence's row there if it exited, else -1 */
    int32_t n_exit;              /* rows there that must stay */

    _Atomic int64_t last_ns;
    _Atomic int64_t longest_ns;
};

static inline int32_t round_ld(int32_t n)
{
    return (n + 15) & ~15;
}

static inline int32_t max_i32(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static inline void place(struct memory_arena *a, struct buffer *buf, int32_t rows, int32_t cols)
{
    buf->ld = round_ld(cols);
    buf->p = memory_arena_take(a, (size_t)rows * (size_t)buf->ld * sizeof(float));
}

static inline struct ops_norm norm_of(const struct forward *f, const struct ops_weight *w,
                                      const struct ops_weight *b)
{
    return (struct ops_norm){
        .w = model_opt(w),
        .b = model_opt(b),
        .eps = f->m->h.norm_eps,
        .kind = f->m->arch->norm,
    };
}

/* A norm of heads: RMS whatever the model's own kind is. */
static inline struct ops_norm head_norm(const struct forward *f, const struct ops_weight *w)
{
    return (struct ops_norm){.w = model_opt(w), .eps = f->m->h.norm_eps, .kind = OPS_NORM_RMS};
}

static inline void add_part(struct ops_matmul *p, const struct ops_weight *w,
                            const struct ops_weight *bias, float *y, int32_t ldy, enum ops_act act)
{
    p->part[p->n_parts].w = w;
    p->part[p->n_parts].bias = model_opt(bias);
    p->part[p->n_parts].y = y;
    p->part[p->n_parts].ldy = ldy;
    p->part[p->n_parts].act = act;
    p->n_parts++;
}

/* What a layer's matrix gives is multiplied by the matrix's own factor (in the FFN, so is its bias)
 * and by `factor`, which the model has for what joins the residual stream; 0 means 1. */
static inline void add_layer_part(struct ops_matmul *p, const struct model_layer *l, int t, int bias,
                                  float *y, int32_t ldy, enum ops_act act, float factor)
{
    bool ffn = t >= LT_FFN_NORM && t <= LT_POST_FFN_NORM;

    factor = ops_factor(factor);
    p->part[p->n_parts].scale = ops_factor(l->scale[t]) * factor;
    p->part[p->n_parts].bias_scale = (ffn ? ops_factor(l->scale[t]) : 1.0f) * factor;
    add_part(p, &l->w[t], &l->w[bias], y, ldy, act);
}

static inline const struct ops_rope *rope_of(const struct forward *f, int32_t layer)
{
    return model_rope(f->m, layer);
}

/* forward.c: floats of a row of queries, of the layer that has most. */
int32_t forward_q_width(const struct model *m);
/* An operation that began at t0 is done. */
void forward_beat(struct forward *f, int64_t t0);

/* What the cache is told of a layer, or of the store that it reads. */
static inline struct kv_args kv_args_of(const struct forward *f, int32_t layer)
{
    return (struct kv_args){
        .layer = layer,
        .store = f->m->layers[layer].store,
        .rows = f->rows,
        .part = f->viewed ? &f->part : NULL,
    };
}

/* forward_predict.c: buffers, the instruction that predicts what `layer` will read, and whether there
 * is anything to predict for it. Then those at which K and V begin to come, and must have come. */
void forward_predict_place(const struct model *m, const struct forward_limits *l,
                         struct memory_arena *a, struct forward *f);
bool forward_predicts(const struct model *m, int32_t layer);
int forward_predict_step(struct forward *f, int32_t layer);
int forward_step_fetch(struct forward *f, int32_t layer);
int forward_step_land(struct forward *f, int32_t layer);

/* forward_ple.c: buffers. */
void forward_ple_place(const struct model *m, const struct forward_limits *l,
                       struct memory_arena *a, struct forward *f);
void forward_ple_place_host(const struct model *m, const struct forward_limits *l,
                            struct memory_arena *a, struct forward *f);

/* forward_recur.c: floats of a row that recurrent layers or gated queries need of a buffer. */
struct forward_recur_widths {
    int32_t q;
    int32_t k;
    int32_t att;
    int32_t h;
    int32_t mix;
};
struct forward_recur_widths forward_recur_widths(const struct model *m);

/* forward_exit.c: buffers, and at the split: which sequences' rows go no further. */
void forward_exit_place(const struct model *m, const struct forward_limits *l,
                        struct memory_arena *a, struct forward *f);
void forward_exit_place_host(const struct model *m, const struct forward_limits *l,
                             struct memory_arena *a, struct forward *f);
void forward_exit_clear(struct forward *f);
int forward_exit_choose(struct forward *f);
/* The head on n rows of the running part (f->index), logits to row `at` of exit_host and on. */
int forward_exit_ask(struct forward *f, int32_t n, int32_t at);
/* Of the likeliest word, ret_word; the last logit is of all others. */
double forward_exit_sure(const float *logits, int32_t n, int32_t *ret_word);

/* forward_rounds.c: arrays; the first round's rows; at the split: proposals, and whether another round
 * begins (ret_again), whose rows are then the running ones. */
void forward_rounds_place_host(const struct model *m, const struct forward_limits *l,
                               struct memory_arena *a, struct forward *f);
void forward_rounds_begin(struct forward *f);
int forward_rounds_next(struct forward *f, bool *ret_again);

#endif
