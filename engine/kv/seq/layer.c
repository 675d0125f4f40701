/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a layer: the sequences as it sees them, what their policies want of it, and the
 * homes' part in it, around one backend call each. */

#include <string.h>

#include "engine/kv/home/home.h"
#include "engine/kv/seq/cache_impl.h"
#include "engine/kv/seq/step.h"
#include "kernels/score.h"

/* ---- the sequences of a layer -----------------------------------------------------------------
 */

static int32_t score_store(const struct cache *c, int32_t i)
{
    return cache_score_store_of(c, &c->seqs[c->step->rows[i].seq]);
}

/* Scores that all stores share are zeroed with the slot by their own store alone. */
static void keep_scores(struct cache *c, int32_t store)
{
    struct kv_step *s = c->step;

    for (int32_t i = 0; i < s->n; i++) {
        if (s->seqs[i].kv.score && score_store(c, i) >= 0 && score_store(c, i) != store) {
            s->seqs[i].kv.score = NULL;
        }
    }
}

/* Sequences that sent no row on are left out of deep layers. Returns how many stay. */
static int32_t drop_empty(struct kv_step *s)
{
    int32_t n = 0;

    for (int32_t i = 0; i < s->n; i++) {
        if (s->seqs[i].n_rows > 0) {
            s->seqs[n] = s->seqs[i];
            s->layer_observe[n] = s->layer_observe[i];
            s->layer_select[n] = s->layer_select[i];
            n++;
        }
    }
    return n;
}

static void take_observe(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;

    memcpy(s->layer_observe, s->observe, (size_t)s->n * sizeof(*s->observe));
    for (int32_t i = 0; i < s->n; i++) {
        struct ops_observe *o = &s->layer_observe[i];
        int32_t store = score_store(c, i) >= 0 ? score_store(c, i) : args->store;

        o->layer = args->layer;
        if (args->layer != c->geometry.config.stores[store].layer) {
            o->damp = 1.0f; /* its first reader has damped the scores */
        }
        if (!s->seqs[i].kv.score) {
            o->row_first = INT32_MAX; /* a sliding layer's ring */
        }
        if (args->part) {
            int32_t first = o->row_first - args->part->first[i];

            o->row_first = first > 0 ? first : 0;
        }
    }
}

static void take_select(struct cache *c, int32_t store)
{
    struct kv_step *s = c->step;

    memcpy(s->layer_select, s->select, (size_t)s->n * sizeof(*s->select));
    for (int32_t i = 0; i < s->n; i++) {
        struct ops_select *select = &s->layer_select[i];

        select->mean = select->mean && s->seqs[i].kv.v_sum;
        if (select->kind == OPS_SELECT_GIVEN && s->seqs[i].kv.layout->part_dims == 0) {
            select->kind = OPS_SELECT_ALL;
        }
        select->chosen = step_list(c, store);
        select->entry = i;
    }
}

/* ---- phases -----------------------------------------------------------------------------------
 */

bool kv_predicts(struct cache *c, const struct kv_args *args)
{
    const struct kv_step *s = c->step;
    bool any = false;

    if (!s->selects) {
        return false;
    }
    step_take(c, args->store, args->part);
    for (int32_t i = 0; i < s->n && s->seqs[i].row0 < args->rows.n_decode; i++) {
        any = any || s->select[i].kind == OPS_SELECT_GIVEN;
    }
    return any;
}

static int predict(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    struct ops_rope_store *rotate = args->store_rows;
    struct ops_predict *p = args->predict;
    int32_t n = 0;

    step_take(c, args->store, args->part);
    int r = home_at(c, HOME_BEFORE_RANK, args);

    memcpy(s->layer_select, s->select, (size_t)s->n * sizeof(*s->select));
    while (n < s->n && s->seqs[n].row0 < args->rows.n_decode) {
        n++;
    }
    rotate->seqs = s->seqs;
    rotate->n_seqs = n;
    p->seqs = s->seqs;
    p->n_seqs = n;
    p->select = s->layer_select;
    p->chosen = step_list(c, args->store);
    r = r ? r : c->geometry.config.ops->rope_store(c->be, rotate);
    return r ? r : c->geometry.config.ops->predict(c->be, p);
}

/* One that is read layer-wise takes a store's pages as it comes to it. */
static int prepare_layer(struct cache *c, const struct kv_args *args)
{
    int r = 0;

    for (int32_t i = 0; !r && i < c->step->n; i++) {
        const struct kv_rows *rows = &c->step->rows[i];
        struct cache_seq *q = &c->seqs[rows->seq];

        if (q->layered) {
            r = cache_take_pages(
                c, q, args->store,
                geometry_slots(&c->geometry, args->store, 0, rows->pos0 + rows->n_rows));
        }
    }
    return r;
}

static int store(struct cache *c, const struct kv_args *args)
{
    const struct backend_ops *ops = c->geometry.config.ops;
    struct ops_rope_store *p = args->store_rows;
    bool writes = p->n_k > 0;
    int r = writes ? prepare_layer(c, args) : 0;

    step_take(c, args->store, args->part);
    keep_scores(c, args->store);
    p->seqs = c->step->seqs;
    p->n_seqs = drop_empty(c->step);
    r = r || !writes ? r : home_at(c, HOME_BEFORE_STORE, args);
    r = r ? r : args->qkv ? ops->qkv_store(c->be, args->qkv, p) : ops->rope_store(c->be, p);
    return r || !writes ? r : home_at(c, HOME_AFTER_STORE, args);
}

static bool scores_of_map(const struct cache *c, int32_t i, int32_t store)
{
    const struct cache_seq *q = &c->seqs[c->step->rows[i].seq];

    return policy_has_surrogate(&q->policy) && cache_evicts_from(q, store) &&
           c->step->rows[i].n_rows > 0;
}

bool kv_scores(struct cache *c, const struct kv_args *args)
{
    bool any = false;

    for (int32_t i = 0; i < c->step->n; i++) {
        any = any || scores_of_map(c, i, args->store);
    }
    return any;
}

/* Behind KV_STORE, which sets the slots' positions and makes their scores 0. */
static int score(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    struct ops_score *p = args->score;
    int32_t n = 0;

    step_take(c, args->store, args->part);
    for (int32_t i = 0; i < s->n; i++) {
        if (scores_of_map(c, i, args->store)) {
            s->seqs[n++] = s->seqs[i];
        }
    }
    p->seqs = s->seqs;
    p->n_seqs = n;
    return score_host(c->be, p);
}

static int attend(struct cache *c, const struct kv_args *args)
{
    struct kv_step *s = c->step;
    struct ops_attention *p = args->attend;

    step_take(c, args->store, args->part);
    if (s->observes) {
        take_observe(c, args);
        p->observe = s->layer_observe;
    }
    if (s->selects && c->geometry.arrays[args->store].kind->evicts) {
        take_select(c, args->store);
        p->select = s->layer_select;
    }
    int r = home_at(c, HOME_BEFORE_ATTEND, args);

    r = r || !c->expect ? r : cache_expect(c, args);
    p->seqs = s->seqs;
    p->n_seqs = drop_empty(s);
    return r ? r : c->geometry.config.ops->attention(c->be, p);
}

/* A step reads the committed page and writes the other; the second part of a chunk, which goes
 * through the layer in parts, goes on from there. */
static struct ops_state state_of(const struct cache *c, const struct kv_rows *rows, int32_t store)
{
    const struct cache_seq *q = &c->seqs[rows->seq];
    int32_t at = q->stores[store].at;
    int32_t from = rows->pos0 == q->n_tokens ? at : 1 - at;

    return (struct ops_state){
        .row0 = rows->row0,
        .n_rows = rows->n_rows,
        .in = rows->pos0 > 0 ? cache_state_page(c, q, store, from) : NULL,
        .out = cache_state_page(c, q, store, 1 - at),
    };
}

int kv_states(struct cache *c, const struct kv_args *args, const struct ops_state **ret,
              int32_t *ret_n)
{
    struct kv_step *s = c->step;
    int r = prepare_layer(c, args);

    for (int32_t i = 0; !r && i < s->n; i++) {
        s->states[i] = state_of(c, &s->rows[i], args->store);
    }
    *ret = s->states;
    *ret_n = s->n;
    return r;
}

int kv_layer(struct cache *c, enum kv_phase phase, const struct kv_args *args)
{
    int r = 0;

    switch (phase) {
    case KV_PREDICT:
        r = args->predict ? predict(c, args) : 0;
        return r ? r : home_at(c, HOME_PREDICTED, args);
    case KV_FETCH:
        return home_at(c, HOME_FETCH, args);
    case KV_LAND:
        return home_at(c, HOME_LAND, args);
    case KV_STORE:
        return store(c, args);
    case KV_SCORE:
        return score(c, args);
    case KV_ATTEND:
        return attend(c, args);
    }
    return r;
}
