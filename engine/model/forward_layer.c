/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of a layer: one backend call (or a few of the same kind) for each part of it,
 * those that touch the cache through its door (engine/kv/kv.h). */

#include "engine/model/forward_layer.h"

#include <math.h>

#include "kernels/score.h"

int forward_embed(struct forward *f, struct buffer to)
{
    struct ops_embed p = {
        .rows = f->rows,
        .ids = f->viewed ? f->ids : f->b.ids,
        .drawn = f->b.drawn ? f->drawn : NULL,
        .w = &f->m->w[MT_EMBED],
        .scale = f->m->h.embed_scale,
        .y = to.p,
        .ld = to.ld,
    };

    return f->ops->embed(f->be, &p);
}

int forward_step_embed(struct forward *f, int32_t layer)
{
    return forward_embed(f, f->cur);
}

/* Floats from one row of V to the next: where heads are normed, heads are rows of their own. */
static int32_t v_ld(const struct forward *f, int32_t layer)
{
    const struct layer_sizes *z = &f->m->h.layer[layer];

    return f->m->arch->v_norm ? z->n_v * z->v_dim : f->v.ld;
}

static struct ops_matmul qkv_of(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &l->w[LT_ATTN_NORM], &l->w[LT_ATTN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };

    const struct buffer *q = f->m->h.q_gated              ? &f->mix
                             : model_is_wide(f->m, layer) ? &f->narrow
                                                          : &f->q;

    add_layer_part(&p, l, l->deep ? LT_SWIFT_Q : LT_Q, l->deep ? LT_SWIFT_Q_B : LT_Q_B, q->p, q->ld,
                   OPS_ACT_NONE, 0);
    if (!l->deep && l->owner) {
        add_layer_part(&p, l, LT_K, LT_K_B, f->k.p, f->k.ld, OPS_ACT_NONE, 0);
        if (!l->v_is_k) {
            add_layer_part(&p, l, LT_V, LT_V_B, f->v.p, v_ld(f, layer), OPS_ACT_NONE, 0);
        }
    }
    return p;
}

int forward_step_qkv(struct forward *f, int32_t layer)
{
    struct ops_matmul p = qkv_of(f, layer);

    return f->ops->matmul(f->be, &p);
}

/* V heads by themselves, a head a row; out of K where that is V too. */
int forward_step_v_norm(struct forward *f, int32_t layer)
{
    const struct layer_sizes *z = &f->m->h.layer[layer];
    bool is_k = f->m->layers[layer].v_is_k;
    struct ops_norm_op p = {
        .norm = head_norm(f, &f->m->w[MT_ONES]),
        .ldx = z->v_dim,
        .ldy = z->v_dim,
        .n_cols = z->v_dim,
    };
    int r = 0;

    if (!is_k || f->k.ld == z->n_v * z->v_dim) {
        p.rows = (struct ops_rows){f->rows.n * z->n_v, f->rows.n_decode * z->n_v};
        p.x = is_k ? f->k.p : f->v.p;
        p.y = f->v.p;
        return f->ops->norm(f->be, &p);
    }
    for (int32_t h = 0; h < z->n_v && !r; h++) { /* rows of K are wider than this layer's heads */
        p.rows = f->rows;
        p.x = f->k.p + h * z->v_dim;
        p.y = f->v.p + h * z->v_dim;
        p.ldx = f->k.ld;
        p.ldy = v_ld(f, layer);
        r = f->ops->norm(f->be, &p);
    }
    return r;
}

/* q = down(act(gate q) * up q), DiffQKV's augmented Q. */
int forward_step_aug_q_in(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_matmul p = {.rows = f->rows, .x = f->q.p, .ldx = f->q.ld, .gated = true};

    add_part(&p, &w[LT_Q_GATE], &(struct ops_weight){0}, f->h.p, f->h.ld, f->m->arch->act);
    add_part(&p, &w[LT_Q_UP], &(struct ops_weight){0}, NULL, f->h.ld, OPS_ACT_NONE);
    return f->ops->matmul(f->be, &p);
}

int forward_step_aug_q_out(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_matmul p = {.rows = f->rows, .x = f->h.p, .ldx = f->h.ld};

    add_part(&p, &w[LT_Q_DOWN], &(struct ops_weight){0}, f->q.p, f->q.ld, OPS_ACT_NONE);
    return f->ops->matmul(f->be, &p);
}

static int norm_in_place(struct forward *f, const struct buffer *b, const struct ops_weight *w)
{
    struct ops_norm_op p = {
        .rows = f->rows,
        .norm = head_norm(f, w),
        .x = b->p,
        .y = b->p,
        .ldx = b->ld,
        .ldy = b->ld,
        .n_cols = w->n_cols,
    };

    return f->ops->norm(f->be, &p);
}

/* Heads of x by a matrix each to heads of y. */
static int map_heads(struct forward *f, const struct ops_weight *maps, int32_t n_heads,
                     const struct buffer *x, const struct buffer *y)
{
    int r = 0;

    for (int32_t h = 0; h < n_heads && !r; h++) {
        struct ops_matmul p = {
            .rows = f->rows, .x = x->p + (ptrdiff_t)h * maps[h].n_cols, .ldx = x->ld};

        add_part(&p, &maps[h], &(struct ops_weight){0}, y->p + (ptrdiff_t)h * maps[h].n_rows, y->ld,
                 OPS_ACT_NONE);
        r = f->ops->matmul(f->be, &p);
    }
    return r;
}

int forward_step_map_q(struct forward *f, int32_t layer)
{
    return map_heads(f, model_q_maps(f->m, layer), f->m->h.layer[layer].n_q, &f->narrow, &f->q);
}

int forward_step_map_v(struct forward *f, int32_t layer)
{
    return map_heads(f, model_v_maps(f->m, layer), f->m->h.layer[layer].n_q, &f->att, &f->narrow);
}

/* All heads of a row as one. */
int forward_step_qk_norm(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    int r = norm_in_place(f, &f->q, &w[LT_Q_NORM_WIDE]);

    return r ? r : norm_in_place(f, &f->k, &w[LT_K_NORM_WIDE]);
}

/* New K and V to the cache, unless the split or an earlier layer has stored them; queries are
 * rotated. */
static int store_rows(struct forward *f, int32_t layer, struct ops_matmul *qkv)
{
    const struct model_layer *l = &f->m->layers[layer];
    const struct layer_sizes *z = &f->m->h.layer[layer];
    bool writes = l->owner && !l->deep;
    struct ops_rope_store p = {
        .rows = f->rows,
        .q = f->q.p,
        .k = f->k.p,
        .v = f->v.p,
        .ldq = f->q.ld,
        .ldk = f->k.ld,
        .ldv = v_ld(f, layer),
        .n_q = z->n_q,
        .n_k = writes ? z->n_k : 0,
        .n_v = writes ? z->n_v : 0,
        .k_dim = z->k_dim,
        .q_norm = head_norm(f, &l->w[LT_Q_NORM]),
        .k_norm = head_norm(f, &l->w[LT_K_NORM]),
        .rope = *rope_of(f, layer),
    };
    struct kv_args args = kv_args_of(f, layer);

    args.store_rows = &p;
    args.qkv = qkv;
    return kv_layer(f->b.kv, KV_STORE, &args);
}

int forward_step_store(struct forward *f, int32_t layer)
{
    return store_rows(f, layer, NULL);
}

/* Both in one, where the backend has it and nothing comes between them. */
int forward_step_qkv_store(struct forward *f, int32_t layer)
{
    struct ops_matmul qkv = qkv_of(f, layer);

    return store_rows(f, layer, &qkv);
}

/* What the rows' slots will be worth, by the layer's map of its input, where a policy asks. */
int forward_step_score(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    struct kv_args args = kv_args_of(f, layer);
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &l->w[LT_ATTN_NORM], &l->w[LT_ATTN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };
    struct ops_score scores = {.rows = f->rows, .x = f->score.p, .ldx = f->score.ld};

    if (!kv_scores(f->b.kv, &args)) {
        return 0;
    }
    add_layer_part(&p, l, LT_SCORE, LT_SCORE_B, f->score.p, f->score.ld, OPS_ACT_NONE, 0);
    args.score = &scores;
    int r = f->ops->matmul(f->be, &p);

    return r ? r : kv_layer(f->b.kv, KV_SCORE, &args);
}

int forward_step_attend(struct forward *f, int32_t layer)
{
    const struct hparams *h = &f->m->h;
    const struct layer_sizes *z = &h->layer[layer];
    struct ops_attention p = {
        .rows = f->rows,
        .q = f->q.p,
        .out = f->att.p,
        .ldq = f->q.ld,
        .ldo = f->att.ld,
        .n_q = z->n_q,
        .scale = z->attn_scale,
        .softcap = h->attn_softcap,
        .alibi_max = h->alibi_max,
        .window = z->window,
        .unrotated_rope = rope_of(f, layer),
        .sinks = model_opt(&f->m->layers[layer].w[LT_SINKS]),
    };
    struct kv_args args = kv_args_of(f, layer);

    args.attend = &p;
    return kv_layer(f->b.kv, KV_ATTEND, &args);
}

/* A projection back into the residual stream, through a norm of its own where the model has one. */
static int project_out(struct forward *f, const struct buffer *from, const struct model_layer *l,
                       int t, int bias, int post)
{
    const struct ops_weight *post_norm = &l->w[post];
    bool normed = post_norm->n_cols != 0;
    struct buffer to = normed ? f->t : f->cur;
    struct ops_matmul p = {.rows = f->rows, .x = from->p, .ldx = from->ld, .add = !normed};

    add_layer_part(&p, l, t, bias, to.p, to.ld, OPS_ACT_NONE, f->m->h.residual_scale);
    int r = f->ops->matmul(f->be, &p);

    if (r || !normed) {
        return r;
    }
    struct ops_norm_op n = {
        .rows = f->rows,
        .norm = norm_of(f, post_norm, &(struct ops_weight){0}),
        .x = f->t.p,
        .y = f->cur.p,
        .ldx = f->t.ld,
        .ldy = f->cur.ld,
        .n_cols = f->m->h.n_embd,
        .add = true,
    };
    return f->ops->norm(f->be, &n);
}

int forward_step_attn_out(struct forward *f, int32_t layer)
{
    return project_out(f, model_is_wide(f->m, layer) ? &f->narrow : &f->att, &f->m->layers[layer],
                       LT_O, LT_O_B, LT_POST_ATTN_NORM);
}

/* A recurrent layer's. */
int forward_step_mix_out(struct forward *f, int32_t layer)
{
    return project_out(f, &f->att, &f->m->layers[layer], LT_MIX_O, LT_O_B, LT_POST_ATTN_NORM);
}

int forward_step_ffn_in(struct forward *f, int32_t layer)
{
    const struct arch *arch = f->m->arch;
    const struct model_layer *l = &f->m->layers[layer];
    const struct ops_weight *w = l->w;
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = arch->parallel || arch->single ? norm_of(f, &w[LT_ATTN_NORM], &w[LT_ATTN_NORM_B])
                                               : norm_of(f, &w[LT_FFN_NORM], &w[LT_FFN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
        .gated = arch->gated,
        .reader = arch->parallel || f->m->h.layer[layer].experts ? NULL : &w[LT_DOWN],
    };

    if (arch->gated) {
        add_layer_part(&p, l, LT_GATE, LT_GATE_B, f->h.p, f->h.ld, arch->act, 0);
        add_layer_part(&p, l, LT_UP, LT_UP_B, NULL, f->h.ld, OPS_ACT_NONE, 0);
    } else {
        add_layer_part(&p, l, LT_UP, LT_UP_B, f->h.p, f->h.ld, arch->act, 0);
    }
    return f->ops->matmul(f->be, &p);
}

int forward_step_ffn_out(struct forward *f, int32_t layer)
{
    return project_out(f, &f->h, &f->m->layers[layer], LT_DOWN, LT_DOWN_B, LT_POST_FFN_NORM);
}

/* Experts without a gate have max(x, 0)^2 in all families, which is max(x, 0) * x: up is the gate,
 * too. On cpu both products run over it together, so its matrix comes from memory once. */
static struct ops_experts experts_of(const struct forward *f, int32_t layer)
{
    const struct hparams *h = &f->m->h;
    const struct arch *arch = f->m->arch;
    const struct ops_weight *w = f->m->layers[layer].w;
    const bool chooses = arch->router_chooses;
    const struct ops_weight *norm = &w[arch->single ? LT_ATTN_NORM : LT_FFN_NORM];

    return (struct ops_experts){
        .rows = f->rows,
        .norm = norm_of(f, norm, &w[LT_FFN_NORM_B]),
        .x = f->cur.p,
        .y = f->cur.p,
        .ldx = f->cur.ld,
        .ldy = f->cur.ld,
        .add = true,
        .scale = h->residual_scale,
        .n_expert = h->n_expert,
        .n_used = h->n_used,
        .kind = h->router,
        .normed = h->experts_normed,
        .weight_scale = h->experts_scale,
        .factors = model_opt(&w[LT_EXPERTS_FACTOR]),
        .router = &w[LT_ROUTER],
        .router_bias = chooses ? NULL : model_opt(&w[LT_ROUTER_B]),
        .choice_bias = chooses ? model_opt(&w[LT_ROUTER_B]) : NULL,
        .act = arch->gated ? arch->act : OPS_ACT_RELU,
        .gate = {&w[arch->gated ? LT_EXPERTS_GATE : LT_EXPERTS_UP],
                 model_opt(&w[LT_EXPERTS_GATE_B])},
        .up = {&w[LT_EXPERTS_UP], model_opt(&w[LT_EXPERTS_UP_B])},
        .down = {&w[LT_EXPERTS_DOWN], model_opt(&w[LT_EXPERTS_DOWN_B])},
        .shared_gate_proj.w = model_opt(&w[arch->gated ? LT_SHARED_GATE : LT_SHARED_UP]),
        .shared_up.w = model_opt(&w[LT_SHARED_UP]),
        .shared_down.w = model_opt(&w[LT_SHARED_DOWN]),
        .shared_gate = model_opt(&w[LT_SHARED_ROUTER]),
    };
}

int forward_step_experts(struct forward *f, int32_t layer)
{
    struct ops_experts p = experts_of(f, layer);
    int r = f->ops->experts(f->be, &p);

    model_drop_experts(f->m, layer);
    return r;
}

/* From t to `to`, or joining what it holds. */
static int norm_t(struct forward *f, const struct ops_weight *w, const struct buffer *to, bool add)
{
    struct ops_norm_op p = {
        .rows = f->rows,
        .norm = norm_of(f, w, &(struct ops_weight){0}),
        .x = f->t.p,
        .y = to->p,
        .ldx = f->t.ld,
        .ldy = to->ld,
        .n_cols = f->m->h.n_embd,
        .add = add,
    };

    return f->ops->norm(f->be, &p);
}

/* An FFN beside experts: both read the same x, and their outputs, normed each, are one output. */
int forward_step_ffn_beside(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    struct ops_matmul p = {.rows = f->rows, .x = f->h.p, .ldx = f->h.ld};

    add_layer_part(&p, l, LT_DOWN, LT_DOWN_B, f->t.p, f->t.ld, OPS_ACT_NONE, 0);
    int r = f->ops->matmul(f->be, &p);

    return r ? r : norm_t(f, &l->w[LT_POST_BESIDE_NORM], &f->beside, false);
}

/* The router has a norm of its own, and rows of a length of 1 in place of sqrt(n_embd). */
int forward_step_experts_beside(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_experts p = experts_of(f, layer);

    p.norm = norm_of(f, &w[LT_EXPERTS_NORM], &(struct ops_weight){0});
    p.router_norm = norm_of(f, &w[LT_ROUTER_NORM], &(struct ops_weight){0});
    p.router_scale = 1.0f / sqrtf((float)f->m->h.n_embd);
    p.y = f->t.p;
    p.ldy = f->t.ld;
    p.add = false;
    p.scale = 0;
    int r = f->ops->experts(f->be, &p);

    model_drop_experts(f->m, layer);
    return r ? r : norm_t(f, &w[LT_POST_EXPERTS_NORM], &f->beside, true);
}

int forward_step_beside_out(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_norm_op p = {
        .rows = f->rows,
        .norm = norm_of(f, &w[LT_POST_FFN_NORM], &(struct ops_weight){0}),
        .x = f->beside.p,
        .y = f->cur.p,
        .ldx = f->beside.ld,
        .ldy = f->cur.ld,
        .n_cols = f->m->h.n_embd,
        .add = true,
    };

    return f->ops->norm(f->be, &p);
}

int forward_step_out_scale(struct forward *f, int32_t layer)
{
    struct ops_mul p = {
        .rows = f->rows,
        .y = f->cur.p,
        .ldy = f->cur.ld,
        .n_cols = f->m->h.n_embd,
        .scale = f->m->layers[layer].out_scale,
    };

    return f->ops->mul(f->be, &p);
}
