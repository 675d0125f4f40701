/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache is told of a store's keys and queries: by overlays, or derived from the weights
 * beside them. */

#include <errno.h>
#include <stdio.h>

#include "engine/kv/kv.h"
#include "engine/model/balance.h"
#include "engine/model/carry.h"
#include "engine/model/center.h"
#include "engine/model/tensors_impl.h"

/* What a store's partial keys are made with: both tensors or none. */
static int find_skews(struct finder *f)
{
    struct model *m = f->m;
    int r = 0;

    for (int32_t s = 0; !r && s < m->n_stores; s++) {
        const struct model_store *st = &m->stores[s];
        struct ops_weight *w = m->layers[st->layer].w;
        int32_t n = st->n_k * st->k_dim * st->k_dim;

        if (st->state_bytes || !geometry_is_predictable(st->layer, st->window)) {
            continue;
        }
        if (st->deep && m->h.wide) {
            r = tensors_wide_skew(f, st->layer);
            continue;
        }
        r = tensors_find_one(f, &arch_layer_tensors[LT_SKEW], st->layer, false, &w[LT_SKEW]);
        if (r > 0) {
            r = tensors_find_one(f, &arch_layer_tensors[LT_COLUMNS], st->layer, true,
                                 &w[LT_COLUMNS]);
            r = r > 0 ? 0 : r;
        }
        if (!r && w[LT_SKEW].n_cols && (w[LT_Q_NORM_WIDE].n_cols || m->h.q_gated)) {
            return error_set(f->reterr, -ENOTSUP,
                             "blk.%d.attn_skew.weight: not offered where queries %s", st->layer,
                             m->h.q_gated ? "come with gates" : "are normed as one row");
        }
        if (!r && w[LT_SKEW].n_cols && (w[LT_SKEW].n_cols != n || w[LT_COLUMNS].n_cols != n)) {
            r = error_set(f->reterr, -EBADMSG,
                          "blk.%d.attn_skew.weight and attn_columns.weight must hold %d K heads of "
                          "%d rows",
                          st->layer, st->n_k, st->k_dim);
        }
    }
    return r;
}

/* What a store's keys may be stored less: an overlay's, or what the K projection's bias becomes. */
static int find_centers(struct finder *f)
{
    struct model *m = f->m;
    int r = 0;

    for (int32_t s = 0; r >= 0 && s < m->n_stores; s++) {
        const struct model_store *st = &m->stores[s];
        struct ops_weight *w = m->layers[st->layer].w;
        int32_t n = st->n_k * st->k_dim;

        if (st->state_bytes) {
            continue;
        }
        r = tensors_find_one(f, &arch_layer_tensors[LT_CENTER], st->layer, false, &w[LT_CENTER]);
        if (r < 0 && st->deep) { /* that layer of the base had other keys */
            (void)error_prefix(f->reterr, "a calibration must be of the model with its SwiftKV "
                                          "overlay (pipit-calibrate --overlay)");
        }
        bool felt = m->h.attn_softcap > 0 || model_has_sinks(m);

        if (r > 0 && (w[LT_CENTER].n_cols != n || felt)) {
            return error_set(f->reterr, -EBADMSG,
                             felt ? "blk.%d.attn_center.weight: the model caps its logits or has "
                                    "sinks, which feel what keys are stored less (%d K heads of %d)"
                                  : "blk.%d.attn_center.weight must hold %d K heads of %d",
                             st->layer, st->n_k, st->k_dim);
        }
        if (r == 0) {
            struct model_weight *at = &m->list[m->n_list];

            r = center_derive(m, s, at);
            if (r < 0) {
                return error_set(f->reterr, r, "model: no memory for the centres of keys");
            }
            if (r > 0) {
                (void)snprintf(at->name, sizeof(at->name), "blk.%d.%s", st->layer,
                               arch_layer_tensors[LT_CENTER].name);
                m->n_list++;
            }
        }
    }
    return r < 0 ? r : 0;
}

/* An overlay's tensor that was found last, and that nothing here has a use for. */
static void drop_last(struct finder *f, struct ops_weight *dst)
{
    f->m->n_params -= (uint64_t)dst->n_cols * (uint64_t)dst->n_rows;
    f->m->n_list--;
    *dst = (struct ops_weight){0};
}

/* Maps of inputs to scores, of layers that have an input of their own and own a store. Those of
 * other layers stay unread: a word that needs them is refused. */
static int find_scores(struct finder *f)
{
    struct model *m = f->m;
    int r = 0;

    for (int32_t s = 0; r >= 0 && s < m->n_stores; s++) {
        const struct model_store *st = &m->stores[s];
        struct ops_weight *w = m->layers[st->layer].w;

        r = st->state_bytes ? 0 : 1;
        for (int t = LT_SCORE; t <= LT_SCORE_B && r > 0; t++) { /* both or none */
            r = tensors_find_one(f, &arch_layer_tensors[t], st->layer, t == LT_SCORE_B, &w[t]);
            if (r > 0 && st->deep) {
                drop_last(f, &w[t]);
            }
        }
    }
    return r < 0 ? r : 0;
}

/* Of a store that layers beyond SwiftKV's split share: what their queries ask. LT_CARRY of such a
 * layer was made on the base, where other queries ask, and is not used. */
static const struct tensor_row deep_queries = {"attn_query_swiftkv.weight", OPS_ROLE_VECTOR,
                                               DIM_DEEP_K, DIM_HEAD};

/* How rounding errors of keys are carried on: an overlay brings what that is made of. */
static int find_carries(struct finder *f)
{
    struct model *m = f->m;
    int r = 0;

    for (int32_t s = 0; r >= 0 && s < m->n_stores; s++) {
        const struct model_store *st = &m->stores[s];
        struct ops_weight *w = m->layers[st->layer].w;
        struct model_weight *at = &m->list[m->n_list];

        if (st->state_bytes) {
            continue;
        }
        if (st->deep && !m->h.wide) {
            r = tensors_find_one(f, &arch_layer_tensors[LT_CARRY], st->layer, false, &w[LT_CARRY]);
            if (r > 0) {
                drop_last(f, &w[LT_CARRY]);
            }
        }
        r = r < 0 ? r
                  : tensors_find_one(f, st->deep ? &deep_queries : &arch_layer_tensors[LT_CARRY],
                                     st->layer, false, &w[LT_CARRY]);
        if (r > 0 && f->source->rounds && carry_check(m, s, at, f->reterr)) {
            r = -EBADMSG;
        }
        if (r > 0 && !f->source->holds) {
            drop_last(f, &w[LT_CARRY]);
        } else if (r > 0) {
            r = carry_derive(m, s, at, f->reterr);
            if (r == 0 && f->source->holds_turned) {
                carry_turned(m, s, at, at + 1);
                (void)snprintf(at[1].name, sizeof(at[1].name), "blk.%d.%s", st->layer,
                               arch_layer_tensors[LT_CARRY_TURNED].name);
                m->n_list++;
            }
        }
    }
    return r < 0 ? r : 0;
}

static int find_balances(struct finder *f)
{
    struct model *m = f->m;
    int r = 0;

    for (int32_t s = 0; r >= 0 && s < m->n_stores; s++) {
        struct model_weight *at = &m->list[m->n_list];

        r = m->stores[s].state_bytes ? 0 : balance_derive(m, s, at);
        if (r < 0) {
            return error_set(f->reterr, r, "model: no memory for the balance of keys");
        }
        if (r > 0) {
            (void)snprintf(at->name, sizeof(at->name), "blk.%d.%s", m->stores[s].layer,
                           arch_layer_tensors[LT_BALANCE].name);
            m->n_list++;
        }
    }
    return r < 0 ? r : 0;
}

int tensors_cache(struct finder *f)
{
    int r = find_skews(f);

    r = r ? r : find_centers(f);
    r = r ? r : find_scores(f);
    r = r ? r : find_balances(f);
    return r ? r : find_carries(f);
}
