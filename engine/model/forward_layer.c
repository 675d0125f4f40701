/* SPDX-License-Identifier: Apache-2.0 */
/* The instructions of a layer: its rows and sequences, and one backend call (or a few of the same
 * kind) for each part of it. */

#include <string.h>

#include "engine/model/forward_layer.h"

/* ---- the rows of a layer ---------------------------------------------------------------- */

static int32_t score_store_of(const struct forward *f, int32_t seq)
{
    return f->b.score_store ? f->b.score_store[seq] : -1;
}

/* Scores that all stores share are zeroed with the slot by their own store alone. */
void forward_keep_scores(struct forward *f, int32_t store)
{
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        if (score_store_of(f, i) >= 0 && score_store_of(f, i) != store) {
            f->seqs[i].kv.score = NULL;
        }
    }
}

void forward_take_seqs(struct forward *f, int32_t store)
{
    const struct ops_seq *from = f->b.seqs + (size_t)store * (size_t)f->b.stride;

    memcpy(f->seqs, from, (size_t)f->b.n_seqs * sizeof(*from));
    if (!f->viewed) {
        return;
    }
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        struct ops_seq *s = &f->seqs[i];

        /* Slots of rows that are still to come hold nothing that may be read. */
        s->kv.n_slots -= s->n_rows - f->first[i] - f->count[i];
        s->row0 = f->row0[i];
        s->n_rows = f->count[i];
        s->pos0 += f->first[i];
        s->slot0 += f->first[i];
    }
}

/* Sequences that sent no row on are left out of deep layers. */
int32_t forward_drop_empty(struct forward *f)
{
    int32_t n = 0;

    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        if (f->seqs[i].n_rows > 0) {
            f->seqs[n] = f->seqs[i];
            if (f->b.observe) {
                f->observe[n] = f->observe[i];
            }
            if (f->b.select) {
                f->select[n] = f->select[i];
            }
            n++;
        }
    }
    return n;
}

static void take_observe(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];

    memcpy(f->observe, f->b.observe, (size_t)f->b.n_seqs * sizeof(*f->observe));
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        struct ops_observe *o = &f->observe[i];
        int32_t store = score_store_of(f, i) >= 0 ? score_store_of(f, i) : l->store;

        o->layer = layer;
        if (layer != f->m->stores[store].layer) {
            o->damp = 1.0f; /* its first reader has damped the scores */
        }
        if (!f->seqs[i].kv.score) {
            o->row_first = INT32_MAX; /* a sliding layer's ring */
        }
        if (f->viewed) {
            o->row_first = max_i32(0, o->row_first - f->first[i]);
        }
    }
}

static void take_select(struct forward *f, int32_t store)
{
    memcpy(f->select, f->b.select, (size_t)f->b.n_seqs * sizeof(*f->select));
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        struct ops_select *s = &f->select[i];

        s->mean = s->mean && f->seqs[i].kv.v_sum;
        if (s->kind == OPS_SELECT_GIVEN && f->seqs[i].kv.layout->part_dims == 0) {
            s->kind = OPS_SELECT_ALL;
        }
        s->chosen = &f->chosen[store & 1];
        s->entry = i;
    }
}

/* ---- instructions ------------------------------------------------------------------------ */

int forward_step_embed(struct forward *f, int32_t layer)
{
    struct ops_embed p = {
        .rows = f->rows,
        .ids = f->viewed ? f->ids : f->b.ids,
        .drawn = f->b.drawn ? f->drawn : NULL,
        .w = &f->m->w[MT_EMBED],
        .scale = f->m->h.embed_scale,
        .y = f->cur.p,
        .ld = f->cur.ld,
    };

    return f->ops->embed(f->be, &p);
}

static struct ops_matmul qkv_of(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    bool deep = f->m->layers[layer].deep;
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &w[LT_ATTN_NORM], &w[LT_ATTN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };

    add_part(&p, &w[deep ? LT_SWIFT_Q : LT_Q], &w[deep ? LT_SWIFT_Q_B : LT_Q_B], f->q.p, f->q.ld,
             OPS_ACT_NONE);
    if (!deep) {
        add_part(&p, &w[LT_K], &w[LT_K_B], f->k.p, f->k.ld, OPS_ACT_NONE);
        add_part(&p, &w[LT_V], &w[LT_V_B], f->v.p, f->v.ld, OPS_ACT_NONE);
    }
    return p;
}

int forward_step_qkv(struct forward *f, int32_t layer)
{
    struct ops_matmul p = qkv_of(f, layer);

    return f->ops->matmul(f->be, &p);
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

/* The sequences become the layer's. */
static struct ops_rope_store store_of(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    const struct hparams *h = &f->m->h;
    struct ops_rope_store p = {
        .rows = f->rows,
        .q = f->q.p,
        .k = f->k.p,
        .v = f->v.p,
        .ldq = f->q.ld,
        .ldk = f->k.ld,
        .ldv = f->v.ld,
        .n_q = h->n_q,
        .n_k = l->deep ? 0 : h->n_k,
        .n_v = l->deep ? 0 : h->n_v,
        .k_dim = h->k_dim,
        .q_norm = head_norm(f, &l->w[LT_Q_NORM]),
        .k_norm = head_norm(f, &l->w[LT_K_NORM]),
        .rope = *rope_of(f, layer),
        .seqs = f->seqs,
    };

    forward_take_seqs(f, l->store);
    forward_keep_scores(f, l->store);
    p.n_seqs = forward_drop_empty(f);
    return p;
}

/* Does the layer itself write its new rows? */
static bool writes(const struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];

    return l->owner && !l->deep && !f->again;
}

/* Before and after new rows: where they lie on disk. */
static int open_rows(struct forward *f, int32_t layer)
{
    return writes(f, layer) ? forward_tier_open(f, f->m->layers[layer].store) : 0;
}

static int keep_rows(struct forward *f, int32_t layer)
{
    return writes(f, layer) ? forward_tier_keep(f, f->m->layers[layer].store) : 0;
}

int forward_step_store(struct forward *f, int32_t layer)
{
    struct ops_rope_store p = store_of(f, layer);
    int r = open_rows(f, layer);

    r = r ? r : f->ops->rope_store(f->be, &p);
    r = r ? r : keep_rows(f, layer);
    return r ? r : forward_host_store(f, layer, &p);
}

/* Both in one, where the backend has it and nothing comes between them. */
int forward_step_qkv_store(struct forward *f, int32_t layer)
{
    struct ops_matmul qkv = qkv_of(f, layer);
    struct ops_rope_store p = store_of(f, layer);
    int r = open_rows(f, layer);

    r = r ? r : f->ops->qkv_store(f->be, &qkv, &p);
    r = r ? r : keep_rows(f, layer);
    return r ? r : forward_host_store(f, layer, &p);
}

int forward_step_attend(struct forward *f, int32_t layer)
{
    const struct model_layer *l = &f->m->layers[layer];
    const struct hparams *h = &f->m->h;
    struct ops_attention p = {
        .rows = f->rows,
        .q = f->q.p,
        .out = f->att.p,
        .ldq = f->q.ld,
        .ldo = f->att.ld,
        .n_q = h->n_q,
        .scale = h->attn_scale,
        .softcap = h->attn_softcap,
        .alibi_max = h->alibi_max,
        .window = l->local ? h->window : 0,
        .seqs = f->seqs,
        .unrotated_rope = rope_of(f, layer),
    };

    forward_take_seqs(f, l->store);
    if (f->b.observe) {
        take_observe(f, layer);
        p.observe = f->observe;
    }
    if (f->b.select && !l->local) {
        take_select(f, l->store);
        p.select = f->select;
    }
    forward_host_attend(f, layer, &p);
    p.n_seqs = forward_drop_empty(f);
    return f->ops->attention(f->be, &p);
}

/* A projection back into the residual stream, through a norm of its own where the model has one. */
static int project_out(struct forward *f, const struct buffer *from, const struct ops_weight *w,
                       const struct ops_weight *bias, const struct ops_weight *post_norm)
{
    bool normed = post_norm->n_cols != 0;
    struct buffer to = normed ? f->t : f->cur;
    struct ops_matmul p = {.rows = f->rows, .x = from->p, .ldx = from->ld, .add = !normed};

    add_part(&p, w, bias, to.p, to.ld, OPS_ACT_NONE);
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
    const struct ops_weight *w = f->m->layers[layer].w;

    return project_out(f, &f->att, &w[LT_O], &w[LT_O_B], &w[LT_POST_ATTN_NORM]);
}

int forward_step_ffn_in(struct forward *f, int32_t layer)
{
    const struct arch *arch = f->m->arch;
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = arch->parallel ? norm_of(f, &w[LT_ATTN_NORM], &w[LT_ATTN_NORM_B])
                               : norm_of(f, &w[LT_FFN_NORM], &w[LT_FFN_NORM_B]),
        .x = f->cur.p,
        .ldx = f->cur.ld,
        .gated = arch->gated,
    };

    if (arch->gated) {
        add_part(&p, &w[LT_GATE], &w[LT_GATE_B], f->h.p, f->h.ld, arch->act);
        add_part(&p, &w[LT_UP], &w[LT_UP_B], NULL, f->h.ld, OPS_ACT_NONE);
    } else {
        add_part(&p, &w[LT_UP], &w[LT_UP_B], f->h.p, f->h.ld, arch->act);
    }
    return f->ops->matmul(f->be, &p);
}

int forward_step_ffn_out(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;

    return project_out(f, &f->h, &w[LT_DOWN], &w[LT_DOWN_B], &w[LT_POST_FFN_NORM]);
}
