/* SPDX-License-Identifier: Apache-2.0 */
/* The program of operations and the machine that runs it.
 *
 * At creation the architecture and the layers become a list of instructions, each one backend call
 * (or a few of the same kind): embed, then for each layer input projections, K and V store,
 * attention, output, FFN. With SwiftKV an instruction at the split writes the deep K and V of all
 * rows, eight projections a product, and lets only the rows that matter go on. Running is a loop
 * over the list with a program counter, so that stopping between operations, taking up again and
 * running one layer alone need no code in the layers.
 *
 * Buffers (device, f32, rows `ld` floats apart, 16 floats aligned):
 *     x     residual stream of all rows         y    the same of rows beyond the split
 *     q k v projections                         att  attention's output
 *     h     FFN or augmented Q                  t    output that is normed before it is added
 *     deep  K and V of up to four deep stores   head rows whose logits are wanted
 *     ahead queries of the layer to come (forward_ahead.c)
 *     drawn tokens that the device drew
 *     exit  logits of the early-exit head (forward_exit.c)
 *
 * Rows whose tokens the early-exit head proposes go through the shallow layers in rounds, each
 * round behind the one before it in x; at the last one's split all go on together
 * (forward_rounds.c).
 *
 * Nothing is allocated after creation. */

#include "engine/model/forward.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/model/forward_impl.h"

/* ---- memory ----------------------------------------------------------------------------- */

static bool has_post_norms(const struct model *m)
{
    return (m->arch->required & LT_BIT(LT_POST_ATTN_NORM)) != 0;
}

/* Width of the widest run of four deep stores. */
static int32_t deep_width(const struct model *m)
{
    int32_t widest = 0;

    for (int32_t s = 0; s < m->n_stores; s++) {
        int32_t sum = 0;

        if (!m->stores[s].deep) {
            continue;
        }
        for (int32_t i = s; i < m->n_stores && i < s + DEEP_STORES; i++) {
            sum +=
                round_ld(m->stores[i].n_k * m->h.k_dim) + round_ld(m->stores[i].n_v * m->h.v_dim);
        }
        widest = max_i32(widest, sum);
    }
    return widest;
}

static void place_buffers(const struct model *m, const struct forward_limits *l,
                          struct memory_arena *a, struct forward *f)
{
    const struct hparams *h = &m->h;
    int32_t n = l->max_rows;
    bool swift = h->swift_layers < h->n_layers;

    place(a, &f->x, n, h->n_embd);
    place(a, &f->y, swift ? n : 0, h->n_embd);
    place(a, &f->q, n, h->n_q * h->k_dim);
    place(a, &f->k, n, h->n_k * h->k_dim);
    place(a, &f->v, n, h->n_v * h->v_dim);
    place(a, &f->att, n, h->n_q * h->v_dim);
    place(a, &f->h, n, max_i32(h->n_ff, h->aug_q));
    place(a, &f->t, has_post_norms(m) ? n : 0, h->n_embd);
    place(a, &f->deep, swift ? n : 0, deep_width(m));
    place(a, &f->head, l->max_logits, h->n_embd);
    forward_ahead_place(m, l, a, f);
    forward_exit_place(m, l, a, f);
    f->logits.ld = h->n_vocab;
    f->logits.p = memory_arena_take(a, (size_t)l->max_logits * (size_t)h->n_vocab * sizeof(float));
    f->drawn = memory_arena_take(a, (size_t)l->max_logits * sizeof(*f->drawn));
}

uint64_t forward_row_bytes(const struct model *m)
{
    return (uint64_t)round_ld(m->h.n_embd) * sizeof(float);
}

static void place_host(const struct model *m, const struct forward_limits *l,
                       struct memory_arena *a, struct forward *f)
{
    size_t n_layers = (size_t)m->h.n_layers;
    size_t n_stores = (size_t)m->n_stores;
    size_t n_seqs = (size_t)l->max_seqs;
    size_t n_rows = (size_t)max_i32(l->max_rows, l->max_logits);

    f->program = memory_arena_take(a, (n_layers * 12 + 2 * n_stores + 2) * sizeof(*f->program));
    f->starts = memory_arena_take(a, n_layers * sizeof(*f->starts));
    f->ends = memory_arena_take(a, n_layers * sizeof(*f->ends));
    f->deep_kv = memory_arena_take(a, n_stores * sizeof(*f->deep_kv));
    f->seqs = memory_arena_take(a, n_seqs * sizeof(*f->seqs));
    f->observe = memory_arena_take(a, n_seqs * sizeof(*f->observe));
    f->select = memory_arena_take(a, n_seqs * sizeof(*f->select));
    f->staged = memory_arena_take(a, n_seqs * sizeof(*f->staged));
    f->brings = memory_arena_take(a, n_seqs * sizeof(*f->brings));
    f->index = memory_arena_take(a, n_rows * sizeof(*f->index));
    f->row0 = memory_arena_take(a, n_seqs * sizeof(*f->row0));
    f->first = memory_arena_take(a, n_seqs * sizeof(*f->first));
    f->count = memory_arena_take(a, n_seqs * sizeof(*f->count));
    f->ran = memory_arena_take(a, n_seqs * sizeof(*f->ran));
    forward_exit_place_host(m, l, a, f);
    forward_rounds_place_host(m, l, a, f);
}

/* Of the device's buffers, and of the host's arrays. */
static void measure(const struct model *m, const struct forward_limits *limits,
                    uint64_t *ret_device, size_t *ret_host)
{
    struct memory_arena device = {0};
    struct memory_arena host = {0};
    struct forward f = {0};

    place_buffers(m, limits, &device, &f);
    place_host(m, limits, &host, &f);
    *ret_device = device.used;
    *ret_host = host.used;
}

uint64_t forward_host_bytes(const struct model *m, const struct forward_limits *limits)
{
    uint64_t device;
    size_t host;

    measure(m, limits, &device, &host);
    return memory_rounded(host);
}

uint64_t forward_bytes(const struct model *m, const struct forward_limits *limits)
{
    uint64_t device;
    size_t host;

    measure(m, limits, &device, &host);
    return memory_rounded(device) + memory_rounded(host);
}

/* ---- the rows of a layer ---------------------------------------------------------------- */

static int32_t score_store_of(const struct forward *f, int32_t seq)
{
    return f->b.score_store ? f->b.score_store[seq] : -1;
}

/* Scores that all stores share are zeroed with the slot by their own store alone. */
static void keep_shared_scores(struct forward *f, int32_t store)
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
static int32_t drop_empty(struct forward *f)
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

static int step_embed(struct forward *f, int32_t layer)
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

static int step_qkv(struct forward *f, int32_t layer)
{
    struct ops_matmul p = qkv_of(f, layer);

    return f->ops->matmul(f->be, &p);
}

/* q = down(act(gate q) * up q), DiffQKV's augmented Q. */
static int step_aug_q_in(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;
    struct ops_matmul p = {.rows = f->rows, .x = f->q.p, .ldx = f->q.ld, .gated = true};

    add_part(&p, &w[LT_Q_GATE], &(struct ops_weight){0}, f->h.p, f->h.ld, f->m->arch->act);
    add_part(&p, &w[LT_Q_UP], &(struct ops_weight){0}, NULL, f->h.ld, OPS_ACT_NONE);
    return f->ops->matmul(f->be, &p);
}

static int step_aug_q_out(struct forward *f, int32_t layer)
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
    keep_shared_scores(f, l->store);
    p.n_seqs = drop_empty(f);
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

static int step_store(struct forward *f, int32_t layer)
{
    struct ops_rope_store p = store_of(f, layer);
    int r = open_rows(f, layer);

    r = r ? r : f->ops->rope_store(f->be, &p);
    r = r ? r : keep_rows(f, layer);
    return r ? r : forward_host_store(f, layer, &p);
}

/* Both in one, where the backend has it and nothing comes between them. */
static int step_qkv_store(struct forward *f, int32_t layer)
{
    struct ops_matmul qkv = qkv_of(f, layer);
    struct ops_rope_store p = store_of(f, layer);
    int r = open_rows(f, layer);

    r = r ? r : f->ops->qkv_store(f->be, &qkv, &p);
    r = r ? r : keep_rows(f, layer);
    return r ? r : forward_host_store(f, layer, &p);
}

static int step_attend(struct forward *f, int32_t layer)
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
    p.n_seqs = drop_empty(f);
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

static int step_attn_out(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;

    return project_out(f, &f->att, &w[LT_O], &w[LT_O_B], &w[LT_POST_ATTN_NORM]);
}

static int step_ffn_in(struct forward *f, int32_t layer)
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

static int step_ffn_out(struct forward *f, int32_t layer)
{
    const struct ops_weight *w = f->m->layers[layer].w;

    return project_out(f, &f->h, &w[LT_DOWN], &w[LT_DOWN_B], &w[LT_POST_FFN_NORM]);
}

/* ---- SwiftKV's split ---------------------------------------------------------------------- */

/* K and V of deep stores [s0, s1) for all rows, one product. */
static int deep_project(struct forward *f, int32_t s0, int32_t s1)
{
    const struct model *m = f->m;
    struct ops_matmul p = {
        .rows = f->rows,
        .norm = norm_of(f, &m->w[MT_SWIFT_NORM], &(struct ops_weight){0}),
        .x = f->cur.p,
        .ldx = f->cur.ld,
    };
    float *y = f->deep.p;

    for (int32_t s = s0; s < s1; s++) {
        const struct model_store *st = &m->stores[s];
        const struct ops_weight *w = m->layers[st->layer].w;

        add_part(&p, &w[LT_SWIFT_K], &w[LT_SWIFT_K_B], y, f->deep.ld, OPS_ACT_NONE);
        y += round_ld(st->n_k * m->h.k_dim);
        add_part(&p, &w[LT_SWIFT_V], &w[LT_SWIFT_V_B], y, f->deep.ld, OPS_ACT_NONE);
        y += round_ld(st->n_v * m->h.v_dim);
    }
    return f->ops->matmul(f->be, &p);
}

static int deep_store(struct forward *f, int32_t s, const float *k)
{
    const struct model *m = f->m;
    const struct model_store *st = &m->stores[s];
    struct ops_rope_store p = {
        .rows = f->rows,
        .k = k,
        .v = k + round_ld(st->n_k * m->h.k_dim),
        .ldk = f->deep.ld,
        .ldv = f->deep.ld,
        .n_k = st->n_k,
        .n_v = st->n_v,
        .k_dim = m->h.k_dim,
        .k_norm = head_norm(f, &m->layers[st->layer].w[LT_K_NORM]),
        .rope = *rope_of(f, st->layer),
        .seqs = f->seqs,
    };

    forward_take_seqs(f, s);
    keep_shared_scores(f, s);
    p.n_seqs = drop_empty(f);
    int r = forward_tier_open(f, s);

    r = r ? r : f->ops->rope_store(f->be, &p);
    return r ? r : forward_tier_keep(f, s);
}

static int step_deep_kv(struct forward *f, int32_t first_store)
{
    const struct model *m = f->m;
    int32_t end = first_store + DEEP_STORES < m->n_stores ? first_store + DEEP_STORES : m->n_stores;
    const float *k = f->deep.p;
    int r = deep_project(f, first_store, end);

    for (int32_t s = first_store; !r && s < end; s++) {
        const struct model_store *st = &m->stores[s];

        r = deep_store(f, s, k);
        k += round_ld(st->n_k * m->h.k_dim) + round_ld(st->n_v * m->h.v_dim);
    }
    return r;
}

static int step_one_deep_kv(struct forward *f, int32_t store)
{
    int r = deep_project(f, store, store + 1);

    return r ? r : deep_store(f, store, f->deep.p);
}

/* Only rows that need logits, or that a policy wants observed, go on; and of those that may exit,
 * the ones of which the head is not sure. Not before all that the head is to propose has come as
 * far. */
static int step_survivors(struct forward *f, int32_t layer)
{
    struct ops_gather p = {
        .x = f->x.p,
        .y = f->y.p,
        .index = f->index,
        .n_cols = f->m->h.n_embd,
        .ldx = f->cur.ld,
        .ldy = f->y.ld,
    };
    int32_t n = 0;
    int32_t n_decode = 0;
    bool again = false;
    int r = f->again ? 0 : forward_exit_choose(f);

    r = r || !f->b.propose ? r : forward_rounds_next(f, &again);
    if (r || again) {
        f->pc = again ? -1 : f->pc; /* the program's first instruction is the next */
        return r;
    }
    for (int32_t i = 0; i < f->b.n_seqs; i++) {
        const struct ops_seq *s = &f->b.seqs[i];
        int32_t lost = s->n_rows - f->ran[i]; /* not proposed */
        int32_t keep = f->exit_row[i] >= 0 ? 0 : (f->b.keep ? f->b.keep[i] : s->n_rows) - lost;

        f->first[i] = f->ran[i] - keep;
        f->count[i] = keep;
        f->row0[i] = n;
        for (int32_t j = s->row0 + f->first[i]; j < s->row0 + f->ran[i]; j++) {
            n_decode += j < f->b.rows.n_decode;
            f->index[n++] = f->b.propose ? f->place[j] : j;
        }
    }
    p.n_rows = n;
    r = n ? f->ops->gather(f->be, &p) : 0;
    if (!r) {
        f->rows = (struct ops_rows){.n = n, .n_decode = n_decode};
        f->cur = f->y;
        f->beyond = true;
        f->viewed = true;
    }
    return r;
}

/* ---- the program -------------------------------------------------------------------------- */

static void emit_instr(struct forward *f, step_fn *fn, int32_t layer)
{
    f->program[f->n_instr++] = (struct instr){.fn = fn, .layer = layer};
}

static void emit_layer(struct forward *f, int32_t layer)
{
    bool aug_q = f->m->layers[layer].w[LT_Q_GATE].n_cols != 0;
    bool fused = f->ops->qkv_store && !aug_q;

    if (!fused) {
        emit_instr(f, step_qkv, layer);
    }
    if (forward_ahead_chooses(f->m, layer + 1)) { /* from the same input */
        emit_instr(f, forward_ahead_step, layer + 1);
    }
    if (forward_ahead_chooses(f->m, layer) && layer == f->m->h.swift_layers) {
        emit_instr(f, forward_host_bring, layer); /* the split has just written its rows */
    }
    if (forward_ahead_chooses(f->m, layer)) {
        emit_instr(f, forward_tier_land, layer);
    }
    if (aug_q) {
        emit_instr(f, step_aug_q_in, layer);
        emit_instr(f, step_aug_q_out, layer);
    }
    emit_instr(f, fused ? step_qkv_store : step_store, layer);
    emit_instr(f, step_attend, layer);
    if (forward_ahead_chooses(f->m, layer + 1) && layer + 1 != f->m->h.swift_layers) {
        emit_instr(f, forward_host_bring, layer + 1);
    }
    if (f->m->arch->parallel) { /* both branches read the same x */
        emit_instr(f, step_ffn_in, layer);
        emit_instr(f, step_attn_out, layer);
    } else {
        emit_instr(f, step_attn_out, layer);
        emit_instr(f, step_ffn_in, layer);
    }
    emit_instr(f, step_ffn_out, layer);
}

static void compile(struct forward *f)
{
    const struct model *m = f->m;
    int32_t n;

    emit_instr(f, step_embed, 0);
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        if (il == m->h.swift_layers) {
            int32_t first = m->layers[il].store;

            for (int32_t s = first; s < m->n_stores; s += DEEP_STORES) {
                emit_instr(f, step_deep_kv, s);
            }
            emit_instr(f, step_survivors, il);
        }
        f->starts[il] = il == 0 ? 0 : f->n_instr; /* the first layer's begins with embedding */
        emit_layer(f, il);
        f->ends[il] = f->n_instr;
    }
    n = f->n_instr;
    for (int32_t s = 0; s < m->n_stores; s++) {
        f->deep_kv[s] = f->n_instr;
        if (m->stores[s].deep) {
            emit_instr(f, step_one_deep_kv, s);
        }
    }
    f->n_instr = n;
}

int forward_create(struct model *m, const struct forward_limits *limits,
                   const atomic_int *interrupt, struct forward **ret, struct error *reterr)
{
    struct forward *f = calloc(1, sizeof(*f));
    struct memory_arena a;
    int r;

    if (!f) {
        return error_set(reterr, -ENOMEM, "forward pass: no memory");
    }
    f->m = m;
    f->ops = m->ops;
    f->be = m->be;
    f->interrupt = interrupt;
    f->limits = *limits;
    measure(m, limits, &f->bytes, &f->host_bytes);
    r = memory_map(f->host_bytes, "forward pass", &f->host, reterr);
    if (r) {
        goto fail;
    }
    a = (struct memory_arena){.base = f->host, .size = f->host_bytes};
    place_host(m, limits, &a, f);
    r = f->ops->alloc(f->be, f->bytes, "activations", &f->memory, reterr);
    if (r) {
        goto fail;
    }
    a = (struct memory_arena){.base = f->memory, .size = f->bytes};
    place_buffers(m, limits, &a, f);
    compile(f);
    atomic_store(&f->last_ns, clock_ns());
    *ret = f;
    return 0;
fail:
    forward_destroy(f);
    return r;
}

void forward_destroy(struct forward *f)
{
    if (!f) {
        return;
    }
    if (f->memory) {
        f->ops->free(f->be, f->memory, f->bytes);
    }
    memory_unmap(f->host, f->host_bytes);
    free(f);
}

/* ---- running ------------------------------------------------------------------------------ */

int32_t forward_ld(const struct forward *f)
{
    return f->x.ld;
}

float *forward_spare(const struct forward *f, int32_t n)
{
    return f->x.p + (size_t)(f->limits.max_rows - n) * (size_t)f->x.ld;
}

void forward_computed(struct forward *f, float *hidden, int32_t n)
{
    f->b = (struct forward_batch){.rows = {.n = n}, .n_seqs = 1};
    f->rows = f->b.rows;
    f->beyond = false;
    f->viewed = false;
    f->again = false;
    forward_exit_clear(f);
    f->cur = f->x;
    f->cur.p = hidden;
    f->pc = f->pc_end;
}

void forward_begin(struct forward *f, const struct forward_batch *b)
{
    if (b->tier) { /* what a step that was given up had asked for */
        tier_drop(b->tier);
    }
    f->b = *b;
    f->rows = b->rows;
    f->beyond = false;
    f->viewed = false;
    f->again = false;
    forward_exit_clear(f);
    f->cur = f->x;
    for (int32_t i = 0; i < b->n_seqs; i++) {
        f->ran[i] = b->seqs[i].n_rows;
    }
    if (b->propose) {
        forward_rounds_begin(f);
    }
    f->pc = 0;
    f->pc_end = f->n_instr;
    if (b->part == FORWARD_LAYER) {
        f->pc = f->starts[b->at];
        f->pc_end = f->ends[b->at];
    } else if (b->part == FORWARD_DEEP_KV) {
        f->pc = f->deep_kv[b->at];
        f->pc_end = f->pc + 1;
    }
    if (b->part != FORWARD_ALL) {
        f->cur.p = b->hidden;
    }
}

static void beat(struct forward *f, int64_t t0)
{
    int64_t now = clock_ns();

    atomic_store_explicit(&f->last_ns, now, memory_order_relaxed);
    if (now - t0 > atomic_load_explicit(&f->longest_ns, memory_order_relaxed)) {
        atomic_store_explicit(&f->longest_ns, now - t0, memory_order_relaxed);
    }
}

int forward_run(struct forward *f)
{
    for (; f->pc < f->pc_end; f->pc++) {
        const struct instr *in = &f->program[f->pc];
        int64_t t0 = clock_ns();

        if (atomic_load_explicit(f->interrupt, memory_order_relaxed)) {
            return -EINTR;
        }
        if (f->rows.n == 0) { /* the split let nobody pass */
            f->pc = f->pc_end;
            break;
        }
        int r = in->fn(f, in->layer);

        if (r) {
            return r;
        }
        beat(f, t0);
    }
    return 0;
}

int forward_take(struct forward *f, const int32_t *rows, int32_t n, float *hidden)
{
    struct ops_gather p = {
        .x = f->cur.p,
        .y = hidden,
        .index = f->index,
        .n_rows = n,
        .n_cols = f->m->h.n_embd,
        .ldx = f->cur.ld,
        .ldy = f->x.ld,
    };
    int32_t seq = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t row = rows[i];

        if (f->beyond) {
            while (row >= f->b.seqs[seq].row0 + f->b.seqs[seq].n_rows) {
                seq++;
            }
            row = f->row0[seq] + (row - f->b.seqs[seq].row0 - f->first[seq]);
        }
        f->index[i] = row;
    }
    return f->ops->gather(f->be, &p);
}

int forward_head(struct forward *f, const float *hidden, int32_t n, int32_t n_decode,
                 const float **ret)
{
    const struct model *m = f->m;
    const struct ops_weight *w = &m->w[m->w[MT_OUTPUT].n_cols ? MT_OUTPUT : MT_EMBED];
    struct ops_matmul p = {
        .rows = {.n = n, .n_decode = n_decode},
        .norm = norm_of(f, &m->w[MT_OUTPUT_NORM], &m->w[MT_OUTPUT_NORM_B]),
        .x = hidden,
        .ldx = f->x.ld,
    };
    struct ops_softcap cap = {
        .x = f->logits.p,
        .n_rows = n,
        .n_cols = m->h.n_vocab,
        .ld = f->logits.ld,
        .cap = m->h.final_softcap,
    };
    int64_t t0 = clock_ns();

    add_part(&p, w, &(struct ops_weight){0}, f->logits.p, f->logits.ld, OPS_ACT_NONE);
    int r = f->ops->matmul(f->be, &p);

    if (!r && cap.cap > 0.0f) {
        r = f->ops->softcap(f->be, &cap);
    }
    if (!r) {
        beat(f, t0);
        *ret = f->logits.p;
    }
    return r;
}

int forward_logits(struct forward *f, const int32_t *rows, int32_t n, const float **ret)
{
    int32_t n_decode = 0;
    int r = forward_take(f, rows, n, f->head.p);

    while (n_decode < n && rows[n_decode] < f->b.rows.n_decode) {
        n_decode++;
    }
    return r ? r : forward_head(f, f->head.p, n, n_decode, ret);
}

int forward_draw(struct forward *f, const struct ops_sample_row *rows, int32_t n, int place)
{
    struct ops_sample p = {
        .logits = f->logits.p,
        .n_rows = n,
        .n_vocab = f->m->h.n_vocab,
        .ld = f->logits.ld,
        .rows = rows,
        .ids = f->drawn,
    };
    int r = f->ops->sample ? f->ops->sample(f->be, &p) : -ENOTSUP;

    return r ? r : f->ops->fetch(f->be, place, f->drawn, (uint64_t)n * sizeof(*f->drawn));
}

int forward_normed(struct forward *f, const int32_t *rows, int32_t n, const float **ret)
{
    const struct model *m = f->m;
    struct ops_norm_op p = {
        .rows = {.n = n},
        .norm = norm_of(f, &m->w[MT_OUTPUT_NORM], &m->w[MT_OUTPUT_NORM_B]),
        .x = f->head.p,
        .y = f->head.p,
        .ldx = f->x.ld,
        .ldy = f->x.ld,
        .n_cols = m->h.n_embd,
    };
    int64_t t0 = clock_ns();
    int r = forward_take(f, rows, n, f->head.p);

    r = r ? r : f->ops->norm(f->be, &p);
    if (!r) {
        beat(f, t0);
        *ret = f->head.p;
    }
    return r;
}

void forward_heartbeat(const struct forward *f, int64_t *ret_last_ns, int64_t *ret_longest_ns)
{
    *ret_last_ns = atomic_load_explicit(&f->last_ns, memory_order_relaxed);
    *ret_longest_ns = atomic_load_explicit(&f->longest_ns, memory_order_relaxed);
}
