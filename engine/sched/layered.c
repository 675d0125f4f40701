/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a prompt layer by layer (prefill=layered, the default of evicting policies): all chunks
 * of the prompt go through one layer, its store is cut to the budget, then comes the next layer, so
 * that only one store ever holds the whole prompt. What it costs is the prompt's hidden states.
 *
 * Beyond SwiftKV's split a store is filled from the split's hidden states, which stay; the last
 * rows (those that a policy observes, or that are wanted) go through the group's layers in a
 * buffer of their own.
 *
 * The order of operations on a row, and on a store's scores, is that of a dense prefill followed
 * by the cut, and so are the bits. One prompt at a time is read so, in units that beside.c chooses:
 * rows of one chunk through one layer. */

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/state.h"

bool layered_is(const struct sched *s, const struct request *r)
{
    return r->seat >= 0 && kv_is_layerwise(s->config.cache, r->seat);
}

void layered_start(struct sched *s, struct request *r)
{
    s->layered = (struct layered){.r = r};
}

static float *row_at(const struct sched *s, float *rows, int32_t i)
{
    return rows + (size_t)i * (size_t)forward_ld(s->forward);
}

/* ---- the running unit: of a chunk, through one layer, or into one deep store ------------------
 */

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The policy's chunk in which the next unit begins: its first position and its rows. */
static int32_t chunk_of(const struct layered *l, int32_t *ret_rows)
{
    int32_t pos0 = l->pos / l->r->policy.chunk * l->r->policy.chunk;

    *ret_rows = min_i32(l->r->policy.chunk, l->r->n_prompt - pos0);
    return pos0;
}

/* Rows of the chunk from l->pos on that can be cut into units. */
static int32_t divisible(const struct sched *s)
{
    const struct layered *l = &s->layered;
    int32_t n;
    int32_t pos0 = chunk_of(l, &n);
    int32_t cut = kv_divisible(s->config.cache, l->r->seat, pos0, n, false);

    return l->stage == LAYERED_DEEP_KV ? pos0 + n - l->pos
           : cut > l->pos - pos0       ? cut - (l->pos - pos0)
                                       : 0;
}

struct slice_unit layered_unit(const struct sched *s)
{
    const struct layered *l = &s->layered;
    int32_t chunk = l->r->policy.chunk;
    int32_t at = l->pos % chunk;
    int32_t left = min_i32(chunk - at, l->r->n_prompt - l->pos);
    int32_t cut = divisible(s);

    left = cut > 0 ? cut : left;
    return (struct slice_unit){
        .kind = l->stage == LAYERED_DEEP_KV ? SLICE_DEEP_KV : SLICE_LAYER,
        .quarter = SLICE_QUARTERS * at / chunk,
        .least = cut > 0 ? min_i32(left, SLICE_PIECE) : left,
        .most = left,
    };
}

int layered_begin(struct sched *s, int32_t n_rows)
{
    struct layered *l = &s->layered;
    struct request *r = l->r;
    struct cache *cache = s->config.cache;
    struct forward_batch f = {
        .kv = cache,
        .rows = {.n = n_rows},
        .ids = r->tokens + l->pos,
        .n_seqs = 1,
        .seqs = &l->rows,
        .part = l->stage == LAYERED_DEEP_KV ? FORWARD_DEEP_KV : FORWARD_LAYER,
        .at = l->stage == LAYERED_DEEP_KV ? l->store : l->layer,
        .hidden = l->stage == LAYERED_DEEP
                      ? row_at(s, kv_survivors(cache), l->pos - l->first_survivor)
                      : row_at(s, kv_hidden(cache), l->pos),
    };

    l->n_rows = n_rows;
    l->rows =
        (struct kv_rows){.seq = r->seat, .n_rows = n_rows, .pos0 = l->pos, .n_beyond = n_rows};
    l->rows.chunk_pos0 = chunk_of(l, &l->rows.chunk_rows);
    kv_step_begin(cache);
    kv_step_add(cache, &l->rows);
    if (!r->first_row_ns) {
        r->first_row_ns = clock_ns();
    }
    forward_begin(s->forward, &f);
    return 0;
}

/* ---- from unit to unit ------------------------------------------------------------------------
 */

/* All shallow layers are done: the rows that go on get a buffer of their own. */
static int pass_split(struct sched *s)
{
    struct layered *l = &s->layered;
    const struct cache *cache = s->config.cache;
    int32_t n = batch_rows_beyond(s, l->r, 0, l->r->n_prompt);

    l->stage = LAYERED_DEEP_KV;
    l->store = s->config.model->layers[l->layer].store;
    l->first_survivor = l->r->n_prompt - n;
    return s->ops->copy(s->be, kv_survivors(cache), row_at(s, kv_hidden(cache), l->first_survivor),
                        (uint64_t)n * forward_row_bytes(s->config.model));
}

/* The last chunk of a layer, or of a deep store, is through. 1: the prompt is read. */
static int next_layer(struct sched *s)
{
    struct layered *l = &s->layered;
    const struct model *m = s->config.model;
    int32_t store = m->layers[l->layer].store;
    int e;

    l->pos = 0;
    if (l->stage == LAYERED_DEEP_KV) {
        l->stage = LAYERED_DEEP;
        l->pos = l->first_survivor;
        return 0;
    }
    l->layer++;
    if (l->layer < m->h.n_layers && m->layers[l->layer].store == store) {
        l->pos = l->first_survivor; /* the next layer of an AcrossKV group */
        return 0;
    }
    e = kv_layer_cut(s->config.cache, l->r->seat, store);
    if (e || l->layer == m->h.n_layers) {
        return e ? e : 1;
    }
    if (l->stage == LAYERED_DEEP) {
        l->stage = LAYERED_DEEP_KV;
        l->store = m->layers[l->layer].store;
        return 0;
    }
    return l->layer == m->h.swift_layers ? pass_split(s) : 0;
}

void layered_progress(struct sched *s)
{
    struct layered *l = &s->layered;
    int64_t done = l->n_read / s->config.model->h.n_layers;
    int32_t n = done < l->r->n_prompt ? (int32_t)done : l->r->n_prompt - 1;

    if (n > l->progress) {
        l->progress = n;
        memset(&s->event, 0, sizeof(s->event));
        s->event.type = ENGINE_EV_PROGRESS;
        s->event.n_done = n;
        sched_emit(s, l->r);
    }
}

static int finish_prompt(struct sched *s)
{
    struct layered *l = &s->layered;
    struct request *r = l->r;
    struct cache *cache = s->config.cache;
    float *last = l->stage == LAYERED_DEEP
                      ? row_at(s, kv_survivors(cache), r->n_prompt - 1 - l->first_survivor)
                      : row_at(s, kv_hidden(cache), r->n_prompt - 1);

    r->n_fed = r->n_prompt;
    s->counters.n_prompt_tokens += (uint64_t)r->n_prompt;
    memset(&s->event, 0, sizeof(s->event));
    s->event.type = ENGINE_EV_PROGRESS;
    s->event.n_done = r->n_prompt;
    sched_emit(s, r);
    s->layered.r = NULL;
    if (r->kind == ENGINE_SCORE) { /* its hidden states stay until they are scored */
        return output_stash(s, r, row_at(s, kv_hidden(cache), r->score_first));
    }
    kv_layer_done(cache, r->seat);
    return output_first_token(s, r, last);
}

int layered_end(struct sched *s)
{
    struct layered *l = &s->layered;
    int e = 0;

    l->n_read += l->stage == LAYERED_DEEP_KV ? 0 : l->n_rows;
    l->pos += l->n_rows;
    if (l->pos == l->r->n_prompt) {
        e = next_layer(s);
    }
    return e == 1 ? finish_prompt(s) : e;
}
