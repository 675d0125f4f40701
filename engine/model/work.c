/* SPDX-License-Identifier: Apache-2.0 */
/* Weights count with the bytes that they have in the file; of the embedding one row is read, which
 * is left out, unless it is the head too. A store is read once for each layer that attends over it,
 * partial keys once for the layers that share one. Keys and values count in lines of 64 bytes, as
 * the cpu's page has them (kernels/kv_lines.h), those of slots that were chosen by their mean. A
 * choice made by alpha counts as its cap; what pool=disk reads of its file is in no figure here. */

#include "engine/model/work.h"

#include <math.h>
#include <string.h>

#include "engine/kv/policy/select.h"
#include "engine/model/tensors.h"
#include "kernels/kv_lines.h"

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
static bool asks_ahead(const struct model *m, const struct ops_weight *w)
{
    for (int32_t il = 2; il < m->h.n_layers; il++) {
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
        bool twice = policy_predicts(p) && asks_ahead(m, w->dst);

        /* a few rows of them, for the rows that rank; the exit head's is a choice of the policy's
         */
        lookup = lookup || skew || columns || exit;
        sum += lookup ? 0 : m->list[i].file_bytes * (twice ? 2 : 1);
    }
    return sum;
}

/* Slots that a choice made ahead of n slots reads at most, the row's own among them; as `speculate`
 * counts them. */
static int32_t ahead_slots(const struct policy *p, int32_t n)
{
    int64_t percent = (int64_t)(n - 1) * (p->share ? p->share : p->cap) / 100;
    int64_t k = p->count ? p->count : percent;

    k = k > 1 ? k : 1;
    return (int32_t)(k < n - 1 ? k : n - 1) + 1;
}

/* What a layer's query reads of a store with n slots. */
static struct ops_select select_of(const struct policy *p, const struct ops_kv_layout *l, int32_t n)
{
    struct ops_select ret;

    select_make(p, &ret);
    if (ret.kind == OPS_SELECT_GIVEN && l->part_dims == 0) {
        ret.kind = OPS_SELECT_ALL; /* nothing can be told for the first layers */
    } else if (ret.kind == OPS_SELECT_GIVEN) {
        ret.k = ahead_slots(p, n);
        ret.local = 1;
    }
    return ret;
}

static uint64_t line_bytes(double lines)
{
    return (uint64_t)llround(lines * LINE_BYTES);
}

static void cache_of(const struct model *m, const struct geometry *s, const struct policy *p,
                     int32_t variant, int32_t n_prompt, int32_t n_tokens, struct work *ret)
{
    int32_t budget = policy_budget(p, n_prompt, s->config.ctx);
    double lines = 0;

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        int32_t store = m->layers[il].store;
        const struct ops_kv_layout *l = geometry_layout(s, variant, store);
        int32_t n = geometry_slots(s, p, store, budget, n_tokens);
        bool chosen = geometry_evicts(s, p, store);

        if (m->stores[store].window && n > m->stores[store].window) {
            n = m->stores[store].window; /* a ring has room for a chunk besides */
        }
        struct ops_select select = select_of(p, l, n);
        bool told = select.kind == OPS_SELECT_GIVEN && m->layers[il].owner;

        lines += l->n_groups * (kv_lines_read(l, &select, n) + (told ? kv_lines_part(l, n) : 0));
        ret->state_bytes += chosen ? (uint64_t)l->n_groups * (uint64_t)n * sizeof(int32_t) : 0;
        ret->state_bytes += chosen && policy_scores(p)
                                ? (uint64_t)l->n_groups * (uint64_t)n * 2 * sizeof(float)
                                : 0;
        if (geometry_keeps_sum(s, p, store)) { /* the new token's V is added to it */
            ret->state_bytes +=
                2 * sizeof(float) * (uint64_t)(l->n_groups * l->v_heads) * (uint64_t)l->v_dim;
        }
    }
    ret->kv_bytes = line_bytes(lines);
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
            flops += 2.0 * w->desc.n_rows * w->desc.n_cols * n;
        }
    }
    for (int32_t il = 0; il < m->h.n_layers; il++) {
        int32_t window = m->stores[m->layers[il].store].window;
        double reach = window && window < n ? window : n;

        if (!m->layers[il].deep) {
            pairs += reach * n - reach * (reach - 1) / 2;
        }
    }
    return flops + 2.0 * pairs * m->h.n_q * (m->h.k_dim + m->h.v_dim);
}

void work_of(const struct model *m, const struct geometry *s, const struct policy *p,
             int32_t variant, int32_t n_prompt, int32_t n_tokens, struct work *ret)
{
    *ret = (struct work){.weight_bytes = weight_bytes(m, p)};
    cache_of(m, s, p, variant, n_prompt, n_tokens, ret);
    ret->prompt_flops = prompt_flops(m, n_prompt);
}
