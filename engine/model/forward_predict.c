/* SPDX-License-Identifier: Apache-2.0 */
/* InfiniGen's step ahead: which slots a layer will read, told from the input of the layer before.
 *
 * The residual stream changes little from layer to layer, so layer i's own query projection, on
 * what layer i - 1 reads (its input by its own norm), gives queries near those to come. They are
 * rotated as layer i rotates its own, and rank the slots of its store by partial keys (ops.h struct
 * ops_predict). Only rows of class decode are ranked for; K and V of the row itself are not known
 * yet, so it is always read.
 *
 * A store is chosen for once, by the first layer that reads it; the layers of an AcrossKV group
 * read what that one was given. While layer i - 1 runs, its own list is in use: there are two
 * lists, and consecutive stores take turns. */

#include "engine/model/forward_layer.h"

static int32_t widest_store(const struct model *m)
{
    int32_t most = 1;

    for (int32_t i = 0; i < m->n_stores; i++) {
        most = max_i32(most, m->stores[i].n_k); /* at least the number of groups */
    }
    return most;
}

void forward_predict_place(const struct model *m, const struct forward_limits *l,
                           struct memory_arena *a, struct forward *f)
{
    int32_t n = l->predicted_slots > 0 ? l->max_seqs : 0;

    place(a, &f->predicted_q, n, forward_q_width(m));
    for (int i = 0; i < 2; i++) {
        struct ops_chosen *c = &f->lists[i];

        c->max_groups = widest_store(m);
        c->ld = round_ld(l->predicted_slots);
        c->n = memory_arena_take(a, (size_t)n * sizeof(*c->n));
        c->own = memory_arena_take(a, (size_t)n * (size_t)c->max_groups * sizeof(*c->own));
        c->slots = memory_arena_take(a, (size_t)n * (size_t)c->max_groups * (size_t)c->ld *
                                            sizeof(*c->slots));
    }
}

bool forward_predicts(const struct model *m, int32_t layer)
{
    return layer < m->h.n_layers && m->layers[layer].owner &&
           m->layers[layer].w[LT_SKEW].n_cols != 0;
}

/* The input of the running layer, layer - 1, by the next one's query projection. */
static int project(struct forward *f, int32_t layer)
{
    const struct ops_weight *before = f->m->layers[layer - 1].w;
    const struct ops_weight *w = f->m->layers[layer].w;
    bool deep = f->m->layers[layer].deep;
    bool augmented = w[LT_Q_GATE].n_cols != 0;
    int32_t n = f->rows.n_decode;
    struct ops_matmul p = {
        .rows = {n, n},
        .norm = norm_of(f, &before[LT_ATTN_NORM], &before[LT_ATTN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };
    int r;

    add_layer_part(&p, &f->m->layers[layer], deep ? LT_SWIFT_Q : LT_Q, deep ? LT_SWIFT_Q_B : LT_Q_B,
                   f->predicted_q.p, f->predicted_q.ld, OPS_ACT_NONE, 0);
    r = f->ops->matmul(f->be, &p);
    if (r || !augmented) {
        return r;
    }
    p = (struct ops_matmul){
        .rows = {n, n}, .x = f->predicted_q.p, .ldx = f->predicted_q.ld, .gated = true};
    add_part(&p, &w[LT_Q_GATE], &(struct ops_weight){0}, f->h.p, f->h.ld, f->m->arch->act);
    add_part(&p, &w[LT_Q_UP], &(struct ops_weight){0}, NULL, f->h.ld, OPS_ACT_NONE);
    r = f->ops->matmul(f->be, &p);
    if (r) {
        return r;
    }
    p = (struct ops_matmul){.rows = {n, n}, .x = f->h.p, .ldx = f->h.ld};
    add_part(&p, &w[LT_Q_DOWN], &(struct ops_weight){0}, f->predicted_q.p, f->predicted_q.ld,
             OPS_ACT_NONE);
    return f->ops->matmul(f->be, &p);
}

int forward_predict_step(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    const struct hparams *h = &f->m->h;
    const struct layer_sizes *z = &h->layer[layer];
    struct ops_rows rows = {f->rows.n_decode, f->rows.n_decode};
    struct ops_rope_store rotate = {
        .rows = rows,
        .q = f->predicted_q.p,
        .ldq = f->predicted_q.ld,
        .n_q = z->n_q,
        .k_dim = z->k_dim,
        .q_norm = head_norm(f, &l->w[LT_Q_NORM]),
        .rope = *rope_of(f, layer),
    };
    struct ops_predict predict = {
        .rows = rows,
        .q = f->predicted_q.p,
        .ldq = f->predicted_q.ld,
        .n_q = z->n_q,
        .scale = z->attn_scale,
        .softcap = h->attn_softcap,
        .alibi_max = h->alibi_max,
    };
    struct kv_args args = kv_args_of(f, layer);
    int r = 0;

    if (kv_predicts(f->b.kv, &args)) {
        args.store_rows = &rotate;
        args.predict = &predict;
        r = project(f, layer);
    }
    return r ? r : kv_layer(f->b.kv, KV_PREDICT, &args);
}

int forward_step_fetch(struct forward *f, int32_t layer)
{
    struct kv_args args = kv_args_of(f, layer);

    return kv_layer(f->b.kv, KV_FETCH, &args);
}

int forward_step_land(struct forward *f, int32_t layer)
{
    struct kv_args args = kv_args_of(f, layer);

    return kv_layer(f->b.kv, KV_LAND, &args);
}
