/* SPDX-License-Identifier: Apache-2.0 */
/* A chunk of a prompt that is read layer by layer, between the steps of those who decode: all rows
 * of it through one layer, in units that beside.c chooses, then the next layer; at last what is
 * wanted of it, a block of logits a unit. A call of attention goes through all keys however few its
 * rows are, so many rows through one layer cost less than few through all.
 *
 * The chunk's hidden states lie in the forward pass's own buffer of them, behind the rows that
 * a batch can have that holds no other chunk: no bytes beyond. Beyond SwiftKV's split the last
 * rows go on in place. K and V are in prepared slots, which a cancel gives back as ever.
 *
 * A layer does for the chunk what it would in one batch, rows in order, so bits are the same; what
 * is observed of it and may not be cut (kv_divisible()) goes through a layer at once. Other
 * prompts' chunks wait until it is read: the chunk is the unit of turns.
 *
 * No unit has staging for pages on the host (pool=host, kv/home/staging.h): backends that have such
 * pages work while the host does, and read a chunk in the step's own batch. */

#include "base/clock.h"
#include "engine/sched/state.h"

bool pieces_can(const struct sched *s, const struct request *r)
{
    return kv_may_interleave(s->config.cache, r->seat);
}

int pieces_start(struct sched *s, struct request *r)
{
    struct pieces *p = &s->pieces;
    int32_t n = batch_chunk(r);
    int e = kv_step_prepare(s->config.cache, r->seat, n);

    if (e) {
        return e;
    }
    *p = (struct pieces){
        .r = r,
        .hurries = p->hurries,
        .pos0 = r->n_fed,
        .n = n,
        .hidden = forward_spare(s->forward, s->config.max_chunk),
    };
    return 0;
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

struct slice_unit pieces_unit(const struct sched *s)
{
    const struct pieces *p = &s->pieces;
    struct slice_unit u = {.kind = SLICE_LAYER, .quarter = SLICE_QUARTERS * p->at / p->n};
    int32_t cut = kv_divisible(s->config.cache, p->r->seat, p->pos0, p->n, false) - p->at;

    u.most = p->n - p->at;
    u.least = min_i32(u.most, SLICE_PIECE);
    if (p->stage == LAYERED_DEEP_KV) {
        u.kind = SLICE_DEEP_KV;
    } else if (p->stage == LAYERED_OUTPUT) {
        u.kind = p->r->stashes ? SLICE_ASIDE : SLICE_OUTPUT;
        u.quarter = 0;
        u.most = p->end - p->at;
        u.most = p->r->stashes ? u.most : min_i32(u.most, sched_logit_rows(s->config.n_seqs));
        u.least = u.most;
    } else if (cut > 0) {
        u.most = cut;
        u.least = min_i32(cut, SLICE_PIECE);
    } else {
        u.least = u.most;
    }
    return u;
}

static float *row_at(const struct sched *s, int32_t i)
{
    return s->pieces.hidden + (size_t)i * (size_t)forward_ld(s->forward);
}

int pieces_begin(struct sched *s, int32_t n_rows)
{
    struct pieces *p = &s->pieces;
    struct request *r = p->r;
    bool deep_kv = p->stage == LAYERED_DEEP_KV;
    struct forward_batch f = {
        .kv = s->config.cache,
        .rows = {.n = n_rows},
        .ids = r->tokens + p->pos0 + p->at,
        .n_seqs = 1,
        .seqs = &p->rows,
        .part = deep_kv ? FORWARD_DEEP_KV : FORWARD_LAYER,
        .at = deep_kv ? p->store : p->layer,
        .hidden = row_at(s, p->at),
    };

    p->n_rows = n_rows;
    if (!r->first_row_ns) {
        r->first_row_ns = clock_ns();
    }
    if (p->stage == LAYERED_OUTPUT) {
        return 0;
    }
    p->rows = (struct kv_rows){
        .seq = r->seat,
        .n_rows = n_rows,
        .pos0 = p->pos0 + p->at,
        .n_beyond = n_rows,
        .chunk_pos0 = p->pos0,
        .chunk_rows = p->n,
    };
    kv_step_begin(s->config.cache);
    kv_step_add(s->config.cache, &p->rows);
    forward_begin(s->forward, &f);
    return 0;
}

/* All layers are done. */
static int commit(struct sched *s)
{
    struct pieces *p = &s->pieces;
    struct request *r = p->r;
    int32_t end = r->kind == ENGINE_SCORE ? r->n_prompt - 1 : r->n_prompt;
    int32_t first = batch_first_wanted(r) - p->pos0;

    p->stage = LAYERED_OUTPUT;
    p->at = first > 0 ? min_i32(first, p->n) : 0;
    p->end = min_i32(end - p->pos0, p->n);
    p->end = p->end < p->at ? p->at : p->end;
    return batch_commit_prompt(s, r, p->n);
}

/* The next rows of what is wanted, or of the end where nothing is. */
static int say(struct sched *s)
{
    struct pieces *p = &s->pieces;
    struct request *r = p->r;
    int e = output_rows(s, r, p->hidden, p->pos0, p->n, p->pos0 + p->at, p->n_rows);

    if (!e && s->pieces.r == r) { /* it has not ended with this */
        p->at += p->n_rows;
        p->r = p->at < p->end ? r : NULL;
    }
    return e;
}

static void next_layer(struct sched *s)
{
    struct pieces *p = &s->pieces;
    const struct model *m = s->config.model;

    p->at = p->first;
    if (p->stage == LAYERED_DEEP_KV) {
        p->store++;
        if (p->store == m->n_stores) {
            p->stage = LAYERED_DEEP;
            p->first = p->n - batch_rows_beyond(s, p->r, p->pos0, p->n);
            p->at = p->first;
        }
        return;
    }
    p->layer++;
    if (p->layer == m->h.swift_layers && p->layer < m->h.n_layers) {
        p->stage = LAYERED_DEEP_KV;
        p->store = m->layers[p->layer].store;
    }
}

int pieces_end(struct sched *s)
{
    struct pieces *p = &s->pieces;

    if (p->stage == LAYERED_OUTPUT) {
        return say(s);
    }
    p->at += p->n_rows;
    if (p->at < p->n) {
        return 0;
    }
    next_layer(s);
    bool over = p->layer == s->config.model->h.n_layers ||
                (p->stage == LAYERED_DEEP && p->first == p->n); /* nobody goes on */

    if (!over) {
        return 0;
    }
    int e = commit(s);

    if (!e && p->at == p->end) { /* nothing is wanted */
        p->n_rows = 0;
        e = say(s);
    }
    return e;
}
