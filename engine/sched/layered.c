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
 * by the cut, and so are the bits. One prompt at a time is read so; a step does about the work of
 * one chunk through all layers, or while others decode as few of these units as slice.h says. */

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sched/state.h"

bool layered_is(const struct sched *s, const struct request *r)
{
    return r->seat >= 0 && s->config.cache->seqs[r->seat].layered;
}

void layered_start(struct sched *s, struct request *r)
{
    s->layered = (struct layered){.r = r};
}

static float *row_at(const struct sched *s, float *rows, int32_t i)
{
    return rows + (size_t)i * (size_t)forward_ld(s->forward);
}

/* ---- the running unit: one chunk through one layer, or into one deep store --------------------
 */

static int begin_unit(struct sched *s)
{
    struct layered *l = &s->layered;
    struct request *r = l->r;
    const struct model *m = s->config.model;
    struct cache *cache = s->config.cache;
    const struct place_ops *place = cache->seqs[r->seat].place;
    int32_t store = l->stage == LAYERED_DEEP_KV ? l->store : m->layers[l->layer].store;
    int32_t chunk = r->policy.chunk;
    int32_t end = (l->pos / chunk + 1) * chunk;
    struct place_rows rows = {.prefill = true, .pos0 = l->pos, .n_prompt = r->n_prompt};
    struct forward_batch f = {
        .ids = r->tokens + l->pos,
        .n_seqs = 1,
        .seqs = &l->seq,
        .part = l->stage == LAYERED_DEEP_KV ? FORWARD_DEEP_KV : FORWARD_LAYER,
        .at = l->stage == LAYERED_DEEP_KV ? l->store : l->layer,
        .hidden = l->stage == LAYERED_DEEP
                      ? row_at(s, cache_survivors(cache), l->pos - l->first_survivor)
                      : row_at(s, cache_hidden(cache), l->pos),
    };

    end = end < r->n_prompt ? end : r->n_prompt;
    l->n_rows = end - l->pos;
    f.rows.n = l->n_rows;
    if (l->stage != LAYERED_DEEP) {
        int e = cache_layer_prepare(cache, r->seat, store, end);

        if (e) {
            return e;
        }
    }
    cache_layer_view(cache, r->seat, store, l->pos, end, &l->seq);
    l->seq.row0 = 0;
    l->seq.n_rows = l->n_rows;
    if (place->observe && l->stage != LAYERED_DEEP_KV) {
        rows.n_rows = l->n_rows;
        rows.n_steps = r->n_steps;
        place->observe(&r->policy, &rows, &l->observe);
        f.observe = &l->observe;
    }
    forward_begin(s->forward, &f);
    l->pending = true;
    return 0;
}

/* ---- from unit to unit ------------------------------------------------------------------------
 */

/* All shallow layers are done: the rows that go on get a buffer of their own. */
static int pass_split(struct sched *s)
{
    struct layered *l = &s->layered;
    const struct cache *cache = s->config.cache;
    bool observes = cache->seqs[l->r->seat].place->observe;
    int32_t n = batch_rows_beyond(l->r, 0, l->r->n_prompt, observes);

    l->stage = LAYERED_DEEP_KV;
    l->store = s->config.model->layers[l->layer].store;
    l->first_survivor = l->r->n_prompt - n;
    return s->ops->copy(s->be, cache_survivors(cache),
                        row_at(s, cache_hidden(cache), l->first_survivor),
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
    e = cache_layer_cut(s->config.cache, l->r->seat, store);
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

static int32_t units_of(const struct sched *s, const struct request *r)
{
    int32_t chunks = (r->n_prompt + r->policy.chunk - 1) / r->policy.chunk;

    return s->config.model->h.n_layers * chunks;
}

static void emit_progress(struct sched *s)
{
    struct layered *l = &s->layered;
    int32_t units = units_of(s, l->r);
    int32_t done = l->n_units < units ? l->n_units : units - 1;
    int32_t n = (int32_t)((int64_t)l->r->n_prompt * done / units);

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
                      ? row_at(s, cache_survivors(cache), r->n_prompt - 1 - l->first_survivor)
                      : row_at(s, cache_hidden(cache), r->n_prompt - 1);

    l->n_units = units_of(s, r);
    r->n_fed = r->n_prompt;
    s->counters.n_prompt_tokens += (uint64_t)r->n_prompt;
    memset(&s->event, 0, sizeof(s->event));
    s->event.type = ENGINE_EV_PROGRESS;
    s->event.n_done = r->n_prompt;
    sched_emit(s, r);
    s->layered.r = NULL;
    if (r->kind == ENGINE_SCORE) { /* its hidden states stay until they are scored */
        return output_stash(s, r, row_at(s, cache_hidden(cache), r->score_first));
    }
    cache_layer_done(cache, r->seat);
    return output_first_token(s, r, last);
}

int layered_run(struct sched *s)
{
    struct layered *l = &s->layered;
    int32_t left = slice_units(&s->slice, s->batch.rows.n_decode, s->config.model->h.n_layers);
    bool waited_for = s->batch.rows.n_decode > 0;
    int e = 0;

    if (waited_for && s->batch.rows.n > s->batch.rows.n_decode) {
        left = 1; /* another's prompt has had the time */
    }
    if (l->r && !l->r->first_row_ns) {
        l->r->first_row_ns = clock_ns();
    }
    while (!e && l->r && left-- > 0) {
        int64_t began = l->pending ? 0 : clock_ns();

        e = l->pending ? 0 : begin_unit(s);
        e = e ? e : forward_run(s->forward);
        if (e) {
            return e;
        }
        l->pending = false;
        if (began && waited_for) { /* a device has only been told of it */
            e = s->ops->sync(s->be);
            if (e) {
                return e;
            }
            slice_add_unit(&s->slice, (double)(clock_ns() - began));
        }
        l->n_units += l->stage != LAYERED_DEEP_KV;
        l->pos += l->n_rows;
        if (l->pos == l->r->n_prompt) {
            e = next_layer(s);
        }
        if (e == 1) {
            return finish_prompt(s);
        }
    }
    if (!e && l->r) {
        emit_progress(s);
    }
    return e;
}
