/* SPDX-License-Identifier: Apache-2.0 */
/* Weights count with the bytes that they have in the file; of the embedding one row is read, which
 * is left out, unless it is the head too. A store is read once for each layer that attends over it
 * (kv_traffic). */

#include "engine/model/work.h"

#include <math.h>
#include <string.h>

#include "engine/model/tensors.h"

enum { LINE_BYTES = 64 };

static bool is_matrix(const struct model_weight *w)
{
    return w->desc.role != OPS_ROLE_VECTOR;
}

/* The head: of its own, or the embedding. */
static const struct ops_weight *head_of(const struct model *m)
{
    return &m->w[m->w[MT_OUTPUT].n_cols ? MT_OUTPUT : MT_EMBED];
}

/* Is it a query projection that choosing a layer ahead multiplies with, too? */
static bool predicts_with(const struct model *m, const struct ops_weight *w)
{
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        const struct model_layer *l = &m->layers[il];
        bool chooses = l->owner && l->w[LT_SKEW].n_cols != 0;

        if (chooses && (w == &l->w[l->deep ? LT_SWIFT_Q : LT_Q] || w == &l->w[LT_Q_GATE] ||
                        w == &l->w[LT_Q_UP] || w == &l->w[LT_Q_DOWN])) {
            return true;
        }
    }
    return false;
}

static uint64_t weight_bytes(const struct model *m, const struct policy *p)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        const struct model_weight *w = &m->list[i];
        bool lookup = w->dst == &m->w[MT_EMBED] && w->dst != head_of(m);
        bool exit = w->dst == &m->w[MT_EXIT_HEAD] || w->dst == &m->w[MT_EXIT_NORM];
        bool skew = w->desc.role == OPS_ROLE_VECTOR && strstr(w->name, ".attn_skew.");
        bool columns = w->desc.role == OPS_ROLE_VECTOR && strstr(w->name, ".attn_columns.");
        bool twice = policy_predicts(p) && predicts_with(m, w->dst);

        /* a few rows of them, for the rows that rank; the exit head's is a choice of the policy's
         */
        bool center = w->desc.role == OPS_ROLE_VECTOR &&
                      (strstr(w->name, ".attn_center.") || strstr(w->name, ".attn_balance.") ||
                       strstr(w->name, ".attn_query"));

        uint64_t bytes = w->file_bytes;

        if (w->desc.n_stack > 1) { /* a token reads some of the experts */
            bytes = bytes / w->desc.n_stack * (uint64_t)m->h.n_used;
        }
        bool score = strstr(w->name, ".attn_score.") && !policy_has_surrogate(p);

        lookup = lookup || skew || columns || center || exit || score;
        sum += lookup ? 0 : bytes * (twice ? 2 : 1);
    }
    return sum;
}

/* Of one layer's weights, those that see every prompt token. */
static bool sees_prompt(const struct model *m, const struct ops_weight *w)
{
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        const struct ops_weight *first = m->layers[il].w;

        if (w < first || w >= first + LT_COUNT) {
            continue;
        }
        return !m->layers[il].deep || w == &first[LT_SWIFT_K] || w == &first[LT_SWIFT_V];
    }
    return false; /* the embedding, the head */
}

static double prompt_flops(const struct model *m, int32_t n)
{
    double flops = 2.0 * head_of(m)->n_cols * head_of(m)->n_rows;
    double pairs = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        const struct model_weight *w = &m->list[i];

        if (is_matrix(w) && sees_prompt(m, w->dst)) {
            int32_t used = w->desc.n_stack > 1 ? m->h.n_used : 1;

            flops += 2.0 * w->desc.n_rows * w->desc.n_cols * used * n;
        }
    }
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        int32_t window = m->stores[m->layers[il].store].window;
        double reach = window && window < n ? window : n;

        if (m->h.layer[il].recurrent) { /* of each row: what is known, learnt and asked for */
            const struct recur_sizes *z = &m->h.recur;

            flops += 2.0 * n * (3.0 * z->n_v * z->k_dim * z->v_dim + z->width * z->n_channels);
        } else if (!m->layers[il].deep && !m->h.layer[il].bare) {
            const struct layer_sizes *l = &m->h.layer[il];
            double one = reach * n - reach * (reach - 1) / 2;

            pairs += one * l->n_q * (l->k_dim + l->v_dim);
        }
    }
    return flops + 2.0 * pairs;
}

int work_of(const struct model *m, const struct cache *c, const struct policy *p, int32_t n_prompt,
            int32_t n_tokens, struct work *ret)
{
    struct kv_traffic kv = {0};
    int r = 0;

    for (int32_t il = 0; !r && il < m->h.n_layers; il++) {
        if (m->h.layer[il].bare) {
            continue;
        }
        r = kv_traffic(c, p, n_prompt, n_tokens, m->layers[il].store, m->layers[il].owner, &kv);
    }
    *ret = (struct work){
        .weight_bytes = weight_bytes(m, p),
        .kv_bytes = (uint64_t)llround(kv.lines * LINE_BYTES),
        .state_bytes = kv.state_bytes,
        .prompt_flops = prompt_flops(m, n_prompt),
    };
    return r;
}
