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
 *     mix   gated Q; a recurrent layer's Q, K and V (forward_recur.c)
 *     x0 ple ple_gate  of per-layer embeddings (forward_ple.c)
 *     h     FFN or augmented Q                  t    output that is normed before it is added
 *     beside  an FFN's output and its experts'
 *     deep  K and V of up to four deep stores   head rows whose logits are wanted
 *     ahead queries of the layer to come (forward_predict.c)
 *     drawn tokens that the device drew
 *     exit  logits of the early-exit head (forward_exit.c)
 *
 * The instructions are in forward_layer.c and forward_split.c, logits in forward_head.c.
 *
 * Rows whose tokens the early-exit head proposes go through the shallow layers in rounds, each
 * round behind the one before it in x; at the last one's split all go on together
 * (forward_rounds.c).
 *
 * Nothing is allocated after creation. */

#include "engine/model/forward.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/model/forward_layer.h"

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
            sum += round_ld(m->stores[i].n_k * m->stores[i].k_dim) +
                   round_ld(m->stores[i].n_v * m->stores[i].v_dim);
        }
        widest = max_i32(widest, sum);
    }
    return widest;
}

int32_t forward_q_width(const struct model *m)
{
    int32_t widest = 0;

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        widest = max_i32(widest, m->h.layer[il].n_q * m->h.layer[il].k_dim);
    }
    return widest;
}

/* q, k and v of a row one behind the other: a product of all three writes them as one row. Where V
 * heads are rows of their own (forward_step_v_norm) they lie apart. */
static void place_qkv(const struct model *m, int32_t n, int32_t q, int32_t k, int32_t v,
                      struct memory_arena *a, struct forward *f)
{
    struct buffer all;

    if (m->arch->v_norm) {
        place(a, &f->q, n, q);
        place(a, &f->k, n, k);
        place(a, &f->v, n, v);
        return;
    }
    place(a, &all, n, round_ld(q) + round_ld(k) + round_ld(v));
    f->q = f->k = f->v = all;
    if (all.p) {
        f->k.p = f->q.p + round_ld(q);
        f->v.p = f->k.p + round_ld(k);
    }
}

static void place_heads(const struct model *m, int32_t n, struct memory_arena *a, struct forward *f)
{
    struct forward_recur_widths r = forward_recur_widths(m);
    int32_t k = r.k;
    int32_t v = 0;
    int32_t att = r.att;
    int32_t narrow = 0;

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        const struct layer_sizes *z = &m->h.layer[il];

        k = max_i32(k, z->n_k * z->k_dim);
        v = max_i32(v, z->n_v * z->v_dim);
        att = max_i32(att, z->n_q * z->v_dim);
        narrow = m->h.wide ? max_i32(narrow, z->n_q * max_i32(z->q_dim, z->o_dim)) : 0;
    }
    place_qkv(m, n, max_i32(forward_q_width(m), r.q), k, v, a, f);
    place(a, &f->mix, r.mix ? n : 0, r.mix);
    place(a, &f->att, n, att);
    place(a, &f->narrow, narrow ? n : 0, narrow);
}

/* Of the widest layer with an FFN; experts' hidden values the backend has a place for. */
static int32_t ffn_width(const struct model *m)
{
    int32_t widest = 0;

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        const struct layer_sizes *z = &m->h.layer[il];

        widest = max_i32(widest, z->experts && !m->arch->experts_beside ? 0 : z->n_ff);
    }
    return widest;
}

/* Of the widest map of inputs to scores; 0: there is none. */
static int32_t score_width(const struct model *m)
{
    int32_t widest = 0;

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        widest = max_i32(widest, m->layers[il].w[LT_SCORE].n_rows);
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
    place_heads(m, n, a, f);
    place(a, &f->h, n, max_i32(max_i32(ffn_width(m), h->aug_q), forward_recur_widths(m).h));
    place(a, &f->t, has_post_norms(m) ? n : 0, h->n_embd);
    place(a, &f->beside, m->arch->experts_beside && h->n_expert > 0 ? n : 0, h->n_embd);
    place(a, &f->deep, swift ? n : 0, deep_width(m));
    place(a, &f->head, l->max_logits, h->n_embd);
    place(a, &f->score, score_width(m) ? n : 0, score_width(m));
    forward_ple_place(m, l, a, f);
    forward_predict_place(m, l, a, f);
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

    f->program = memory_arena_take(a, (n_layers * 17 + 2 * n_stores + 2) * sizeof(*f->program));
    f->starts = memory_arena_take(a, n_layers * sizeof(*f->starts));
    f->ends = memory_arena_take(a, n_layers * sizeof(*f->ends));
    f->deep_kv = memory_arena_take(a, n_stores * sizeof(*f->deep_kv));
    f->index = memory_arena_take(a, n_rows * sizeof(*f->index));
    f->row0 = memory_arena_take(a, n_seqs * sizeof(*f->row0));
    f->first = memory_arena_take(a, n_seqs * sizeof(*f->first));
    f->count = memory_arena_take(a, n_seqs * sizeof(*f->count));
    f->ran = memory_arena_take(a, n_seqs * sizeof(*f->ran));
    forward_ple_place_host(m, l, a, f);
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

uint64_t forward_table_bytes(void)
{
    return sizeof(struct forward);
}

uint64_t forward_bytes(const struct model *m, const struct forward_limits *limits)
{
    uint64_t device;
    size_t host;

    measure(m, limits, &device, &host);
    return memory_rounded(device) + memory_rounded(host);
}

/* ---- the program -------------------------------------------------------------------------- */

static void emit_instr(struct forward *f, step_fn *fn, int32_t layer)
{
    f->program[f->n_instr++] = (struct instr){.fn = fn, .layer = layer};
}

/* What joins the rows of a text: a recurrence in place of attention. */
static void emit_recurrence(struct forward *f, int32_t layer)
{
    bool delta = f->m->arch->recurrence == ARCH_RECUR_DELTA;

    emit_instr(f, forward_step_mix, layer);
    if (f->m->arch->recurrence == ARCH_RECUR_CONV) {
        emit_instr(f, forward_step_gated_conv, layer);
    } else {
        emit_instr(f, forward_step_conv, layer);
        emit_instr(f, delta ? forward_step_delta : forward_step_scan, layer);
    }
    emit_instr(f, forward_step_mix_out, layer);
    if (f->m->h.layer[layer].experts) {
        emit_instr(f, forward_step_experts, layer);
    } else if (!f->m->arch->single) {
        emit_instr(f, forward_step_ffn_in, layer);
        emit_instr(f, forward_step_ffn_out, layer);
    }
}

static void emit_layer(struct forward *f, int32_t layer)
{
    bool aug_q = f->m->layers[layer].w[LT_Q_GATE].n_cols != 0;
    bool wide = f->m->layers[layer].w[LT_Q_NORM_WIDE].n_cols != 0;
    bool v_norm = f->m->arch->v_norm && f->m->layers[layer].owner;
    bool experts = f->m->h.layer[layer].experts;
    bool beside = experts && f->m->arch->experts_beside;
    bool gated = f->m->h.q_gated;
    bool mapped = model_is_wide(f->m, layer);
    bool fused = f->ops->qkv_store && !aug_q && !wide && !v_norm && !gated && !mapped;

    if (f->m->h.layer[layer].recurrent) {
        emit_recurrence(f, layer);
        return;
    }
    if (f->m->h.layer[layer].bare && experts) {
        emit_instr(f, forward_step_experts, layer);
        return;
    }
    if (f->m->h.layer[layer].bare) {
        emit_instr(f, forward_step_ffn_in, layer);
        emit_instr(f, forward_step_ffn_out, layer);
        return;
    }
    if (!fused) {
        emit_instr(f, forward_step_qkv, layer);
    }
    if (forward_predicts(f->m, layer + 1)) { /* from the same input */
        emit_instr(f, forward_predict_step, layer + 1);
    }
    if (forward_predicts(f->m, layer) && layer == f->m->h.swift_layers) {
        emit_instr(f, forward_step_fetch, layer); /* the split has just written its rows */
    }
    if (forward_predicts(f->m, layer)) {
        emit_instr(f, forward_step_land, layer);
    }
    if (aug_q) {
        emit_instr(f, forward_step_aug_q_in, layer);
        emit_instr(f, forward_step_aug_q_out, layer);
    }
    if (gated) {
        emit_instr(f, forward_step_q_split, layer);
    }
    if (wide) {
        emit_instr(f, forward_step_qk_norm, layer);
    }
    if (v_norm) {
        emit_instr(f, forward_step_v_norm, layer);
    }
    if (mapped) {
        emit_instr(f, forward_step_map_q, layer);
    }
    emit_instr(f, fused ? forward_step_qkv_store : forward_step_store, layer);
    if (f->m->layers[layer].w[LT_SCORE].n_cols) {
        emit_instr(f, forward_step_score, layer);
    }
    emit_instr(f, forward_step_attend, layer);
    if (gated) {
        emit_instr(f, forward_step_att_gate, layer);
    }
    if (mapped) {
        emit_instr(f, forward_step_map_v, layer);
    }
    if (forward_predicts(f->m, layer + 1) && layer + 1 != f->m->h.swift_layers) {
        emit_instr(f, forward_step_fetch, layer + 1);
    }
    if (f->m->arch->parallel) { /* both branches read the same x */
        emit_instr(f, forward_step_ffn_in, layer);
        emit_instr(f, forward_step_attn_out, layer);
    } else if (f->m->arch->single) {
        emit_instr(f, forward_step_attn_out, layer);
        return;
    } else {
        emit_instr(f, forward_step_attn_out, layer);
        emit_instr(f, experts && !beside ? forward_step_experts : forward_step_ffn_in, layer);
    }
    if (beside) {
        emit_instr(f, forward_step_ffn_beside, layer);
        emit_instr(f, forward_step_experts_beside, layer);
        emit_instr(f, forward_step_beside_out, layer);
    } else if (!experts) {
        emit_instr(f, forward_step_ffn_out, layer);
    }
    if (f->m->h.ple) {
        emit_instr(f, forward_step_ple_in, layer);
        emit_instr(f, forward_step_ple_out, layer);
    }
    if (f->m->layers[layer].out_scale != 1.0f) {
        emit_instr(f, forward_step_out_scale, layer);
    }
}

static void compile(struct forward *f)
{
    const struct model *m = f->m;
    int32_t n;

    emit_instr(f, forward_step_embed, 0);
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        if (il == m->h.swift_layers) {
            int32_t first = m->layers[il].store;

            for (int32_t s = first; s < m->n_stores; s += DEEP_STORES) {
                emit_instr(f, forward_step_deep_kv, s);
            }
            emit_instr(f, forward_step_survivors, il);
        }
        f->starts[il] = il == 0 ? 0 : f->n_instr; /* the first layer's begins with embedding */
        emit_layer(f, il);
        f->ends[il] = f->n_instr;
    }
    n = f->n_instr;
    for (int32_t s = 0; s < m->n_stores; s++) {
        f->deep_kv[s] = f->n_instr;
        if (m->stores[s].deep) {
            emit_instr(f, forward_step_one_deep_kv, s);
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
    f->part = (struct kv_part){.row0 = f->row0, .first = f->first, .count = f->count};
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
    f->b = *b;
    kv_step_lists(b->kv, f->lists);
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

void forward_beat(struct forward *f, int64_t t0)
{
    int64_t now = clock_ns();

    atomic_store_explicit(&f->last_ns, now, memory_order_relaxed);
    if (now - t0 > atomic_load_explicit(&f->longest_ns, memory_order_relaxed)) {
        atomic_store_explicit(&f->longest_ns, now - t0, memory_order_relaxed);
    }
}

int forward_run(struct forward *f)
{
    while (f->pc < f->pc_end) {
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

        if (r < 0) {
            return r;
        }
        f->pc = r == FORWARD_ROUND ? 0 : f->pc + 1;
        forward_beat(f, t0);
    }
    return 0;
}

void forward_heartbeat(const struct forward *f, int64_t *ret_last_ns, int64_t *ret_longest_ns)
{
    *ret_last_ns = atomic_load_explicit(&f->last_ns, memory_order_relaxed);
    *ret_longest_ns = atomic_load_explicit(&f->longest_ns, memory_order_relaxed);
}
