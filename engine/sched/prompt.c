/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a prompt layer by layer: all its rows go through one layer, in units that interleave.c
 * chooses, then through the next; at last what is wanted of them is computed.
 *
 * Chunked prefill reads a chunk so, between the steps of those who decode. A call of attention goes
 * through all keys however few its rows are, so many rows through one layer cost less than few
 * through all. Hidden states lie in the forward pass's own buffer, behind the rows that a batch can
 * have that holds no other chunk. K and V are in prepared slots, which a cancel gives back as ever.
 *
 * Layer-wise prefill (prefill=layered, the default of evicting policies) reads the whole prompt so.
 * Each store is cut to the budget once its layers are through, so only one ever holds the whole
 * prompt. What that costs is the prompt's hidden states, which lie in the cache's one region for
 * long prompts; so one prompt at a time is read so.
 *
 * Beyond SwiftKV's split a store is filled from the split's hidden states, and only the last rows
 * (those that a policy observes, or that are wanted) go through its layers. A chunk fills all deep
 * stores first, and its last rows go on in place. A whole prompt fills one store at a time, so the
 * split's hidden states stay, and its last rows go on in a buffer of their own.
 *
 * The order of operations on a row, and on a store's scores, is that of a batch, and so are the
 * bits. What is observed and may not be cut (kv_divisible()) goes through a layer at once. */

#include <string.h>

#include "base/clock.h"
#include "engine/sched/state.h"

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

bool prompt_is_whole(const struct sched *s, const struct request *r)
{
    return r->seq >= 0 && kv_is_layerwise(s->config.cache, r->seq);
}

void prompt_start_whole(struct sched *s, struct request *r)
{
    s->whole = (struct prompt){
        .r = r, .whole = true, .n = r->n_prompt, .hidden = kv_hidden(s->config.cache)};
}

int prompt_start_chunk(struct sched *s, struct request *r)
{
    int32_t n = batch_chunk(r);
    int e = kv_step_prepare(s->config.cache, r->seq, n);

    if (!e) {
        s->chunk = (struct prompt){.r = r,
                                   .hurries = s->chunk.hurries,
                                   .pos0 = r->n_fed,
                                   .n = n,
                                   .hidden = forward_spare(s->forward, s->config.max_chunk)};
    }
    return e;
}

void prompt_forget(struct sched *s, const struct request *r)
{
    if (s->whole.r == r) {
        s->whole = (struct prompt){0}; /* a unit that was interrupted is given up */
    }
    if (s->chunk.r == r) {
        s->chunk = (struct prompt){0};
    }
}

/* ---- a unit -----------------------------------------------------------------------------------
 */

/* The policy's chunk in which the next unit begins: its first row and how many it has. */
static int32_t chunk_of(const struct prompt *p, int32_t *ret_n)
{
    int32_t row0 = p->at / p->r->policy.chunk * p->r->policy.chunk;

    *ret_n = min_i32(p->r->policy.chunk, p->n - row0);
    return row0;
}

struct token_budget_unit prompt_unit(const struct sched *s, const struct prompt *p)
{
    int32_t n;
    int32_t row0 = chunk_of(p, &n);
    struct token_budget_unit u = {.kind = BUDGET_LAYER,
                                  .quarter = BUDGET_QUARTERS * (p->at - row0) / n,
                                  .most = row0 + n - p->at};
    int32_t cut;

    if (p->stage == PROMPT_OUTPUT) {
        u.kind = p->r->stashes ? BUDGET_ASIDE : BUDGET_OUTPUT;
        u.quarter = 0;
        u.most = p->end - p->at;
        u.most = p->r->stashes ? u.most : min_i32(u.most, sched_logit_rows(s->config.n_seqs));
        u.least = u.most;
        return u;
    }
    if (p->stage == PROMPT_DEEP_KV) {
        u.kind = BUDGET_DEEP_KV;
        cut = u.most;
    } else {
        cut = row0 - p->at + kv_divisible(s->config.cache, p->r->seq, p->pos0 + row0, n, false);
    }
    u.most = cut > 0 ? cut : u.most;
    u.least = cut > 0 ? min_i32(cut, BUDGET_PIECE) : u.most;
    return u;
}

/* A row's hidden state: the split's, where deep stores are filled. */
static float *row_at(const struct sched *s, const struct prompt *p, int32_t row)
{
    bool beyond = p->beyond && p->stage != PROMPT_DEEP_KV;
    float *rows = beyond ? p->beyond : p->hidden;

    return rows + (size_t)(row - (beyond ? p->first : 0)) * (size_t)forward_ld(s->forward);
}

void prompt_begin(struct sched *s, struct prompt *p, int32_t n_rows)
{
    struct request *r = p->r;
    bool deep_kv = p->stage == PROMPT_DEEP_KV;
    struct forward_batch f = {
        .kv = s->config.cache,
        .rows = {.n = n_rows},
        .ids = r->tokens + p->pos0 + p->at,
        .n_seqs = 1,
        .seqs = &p->rows,
        .part = deep_kv ? FORWARD_DEEP_KV : FORWARD_LAYER,
        .at = deep_kv ? p->store : p->layer,
        .hidden = row_at(s, p, p->at),
    };

    p->n_rows = n_rows;
    if (!r->first_row_ns) {
        r->first_row_ns = clock_ns();
    }
    if (p->stage == PROMPT_OUTPUT) {
        return;
    }
    p->rows = (struct kv_rows){
        .seq = r->seq, .n_rows = n_rows, .pos0 = p->pos0 + p->at, .n_beyond = n_rows};
    p->rows.chunk_pos0 = p->pos0 + chunk_of(p, &p->rows.chunk_rows);
    kv_step_begin(s->config.cache);
    kv_step_add(s->config.cache, &p->rows);
    forward_begin(s->forward, &f);
}

/* ---- from layer to layer ----------------------------------------------------------------------
 */

/* All shallow layers are done. */
static int pass_split(struct sched *s, struct prompt *p)
{
    p->stage = PROMPT_DEEP_KV;
    p->store = s->config.model->layers[p->layer].store;
    p->first = p->n - batch_rows_beyond(s, p->r, p->pos0, p->n);
    p->at = 0;
    if (!p->whole) {
        return 0;
    }
    float *split = row_at(s, p, p->first);

    p->beyond = kv_survivors(s->config.cache);
    return s->ops->copy(s->be, p->beyond, split,
                        (uint64_t)(p->n - p->first) * forward_row_bytes(s->config.model));
}

/* All rows are through a layer, or in a deep store. */
static int next_layer(struct sched *s, struct prompt *p)
{
    const struct model *m = s->config.model;
    int32_t store = m->layers[p->layer].store;
    bool deep = p->stage != PROMPT_SHALLOW;
    int e = 0;

    if (p->stage == PROMPT_DEEP_KV) {
        p->store++;
        if (p->whole || p->store == m->n_stores) {
            p->stage = PROMPT_DEEP;
        }
        p->at = p->stage == PROMPT_DEEP ? p->first : 0;
        return 0;
    }
    p->layer++;
    p->at = deep ? p->first : 0;
    bool last = p->layer == m->h.n_layers;

    if (p->whole && (last || m->layers[p->layer].store != store)) {
        e = kv_layer_cut(s->config.cache, p->r->seq, store);
        if (!e && deep && !last) {
            p->stage = PROMPT_DEEP_KV;
            p->store = m->layers[p->layer].store;
            p->at = 0;
        }
    }
    return !e && p->layer == m->h.swift_layers && !last ? pass_split(s, p) : e;
}

void prompt_progress(struct sched *s)
{
    struct prompt *p = &s->whole;
    int64_t done = p->n_read / s->config.model->h.n_layers;
    int32_t n = done < p->n ? (int32_t)done : p->n - 1;

    if (n > p->progress) {
        p->progress = n;
        memset(&s->event, 0, sizeof(s->event));
        s->event.type = ENGINE_EV_PROGRESS;
        s->event.n_done = n;
        sched_emit(s, p->r);
    }
}

/* ---- the end ----------------------------------------------------------------------------------
 */

/* The next rows of what is wanted, or of the end where nothing is. */
static int put_out(struct sched *s, struct prompt *p)
{
    struct request *r = p->r;
    int e = output_rows(s, r, row_at(s, p, p->at), p->pos0 + p->at, p->n_rows);

    if (!e && p->r == r) { /* it has not ended with this */
        p->at += p->n_rows;
        p->r = p->at < p->end ? r : NULL;
    }
    return e;
}

/* All layers are done. */
static int commit(struct sched *s, struct prompt *p)
{
    struct request *r = p->r;
    int32_t end = r->kind == ENGINE_SCORE ? r->n_prompt - 1 : r->n_prompt;
    int32_t first = batch_first_wanted(r) - p->pos0;

    p->at = first > 0 ? min_i32(first, p->n) : 0;
    p->end = min_i32(end - p->pos0, p->n);
    p->end = p->end < p->at ? p->at : p->end;
    p->stage = PROMPT_OUTPUT;
    int e = batch_commit_prompt(s, r, p->n);

    if (!e && p->whole && r->kind == ENGINE_SCORE) {
        p->r = NULL;
        e = output_stash(s, r, row_at(s, p, r->score_first));
    }
    return e;
}

int prompt_end(struct sched *s, struct prompt *p)
{
    if (p->stage == PROMPT_OUTPUT) {
        return put_out(s, p);
    }
    p->n_read += p->stage == PROMPT_DEEP_KV ? 0 : p->n_rows;
    p->at += p->n_rows;
    if (p->at < p->n) {
        return 0;
    }
    int e = next_layer(s, p);
    bool over = p->layer == s->config.model->h.n_layers ||
                (p->stage == PROMPT_DEEP && p->first == p->n); /* nobody goes on */

    if (e || !over) {
        return e;
    }
    e = commit(s, p);
    if (!e && p->r && (p->whole || p->at == p->end)) { /* one row, or nothing, is wanted */
        p->n_rows = p->end - p->at;
        e = put_out(s, p);
    }
    return e;
}
