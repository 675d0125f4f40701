/* SPDX-License-Identifier: Apache-2.0 */
/* Weights count with the bytes that they have in the file; of the embedding one row is read, which
 * is left out, unless it is the head too. A store is read once for each layer that attends over it;
 * a page's last, partial part counts in slots of 16, since K lies by dimension. */

#include "engine/model/work.h"

#include <string.h>

#include "engine/kv/place.h"
#include "engine/model/tensors.h"

enum { SLOT_UNIT = 16, LINE_BYTES = 64 };

static bool is_matrix(const struct model_weight *w)
{
    return w->desc.role != OPS_ROLE_VECTOR;
}

/* The head: of its own, or the embedding. */
static const struct ops_weight *head_of(const struct model *m)
{
    return &m->w[m->w[MT_OUTPUT].n_cols ? MT_OUTPUT : MT_EMBED];
}

static uint64_t weight_bytes(const struct model *m)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < m->n_list; i++) {
        const struct model_weight *w = &m->list[i];
        bool lookup = w->dst == &m->w[MT_EMBED] && w->dst != head_of(m);
        bool exit = w->dst == &m->w[MT_EXIT_HEAD] || w->dst == &m->w[MT_EXIT_NORM];
        bool skew = w->desc.role == OPS_ROLE_VECTOR && strstr(w->name, ".attn_skew.");
        bool columns = w->desc.role == OPS_ROLE_VECTOR && strstr(w->name, ".attn_columns.");

        /* a few rows of them, for the rows that rank; the exit head's is a choice of the policy's
         */
        lookup = lookup || skew || columns || exit;
        sum += lookup ? 0 : m->list[i].file_bytes;
    }
    return sum;
}

static uint64_t group_bytes(const struct ops_kv_layout *l, int32_t n_slots)
{
    uint64_t units = ((uint64_t)n_slots + SLOT_UNIT - 1) / SLOT_UNIT;
    uint64_t bytes = units * (l->page_bytes / (OPS_PAGE_SLOTS / SLOT_UNIT));

    return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}

/* Slots that a choice made ahead reads at most, of n. */
static int32_t ahead_slots(const struct policy *p, int32_t n)
{
    int64_t share = (int64_t)n * (p->share ? p->share : p->cap) / 100;

    return p->count && p->count < n ? p->count : p->count ? n : (int32_t)share;
}

static void cache_of(const struct model *m, const struct shape *s, const struct policy *p,
                     int32_t variant, int32_t n_prompt, int32_t n_tokens, struct work *ret)
{
    const struct place_ops *place = place_find(p->place);
    int32_t budget = policy_budget(p, n_prompt, s->config.ctx);

    for (int32_t il = 0; il < m->h.n_layers; il++) {
        int32_t store = m->layers[il].store;
        const struct ops_kv_layout *l = shape_layout(s, variant, store);
        int32_t n = shape_slots(s, p, store, budget, n_tokens);
        bool chosen = shape_evicts(s, p, store);

        if (m->stores[store].window && n > m->stores[store].window) {
            n = m->stores[store].window; /* a ring has room for a chunk besides */
        }
        if (l->part_dims > 0) { /* all partial keys, and K and V of some slots */
            struct ops_kv_layout part = *l;
            struct ops_kv_layout whole = *l;

            part.page_bytes = (uint64_t)(l->k_heads * OPS_PAGE_SLOTS) *
                              ops_kv_type_bytes(l->part_type, l->part_dims);
            whole.page_bytes -= part.page_bytes;
            ret->kv_bytes += (uint64_t)l->n_groups *
                             (group_bytes(&part, n) + group_bytes(&whole, ahead_slots(p, n)));
        } else {
            ret->kv_bytes += (uint64_t)l->n_groups * group_bytes(l, n);
        }
        ret->state_bytes += chosen ? (uint64_t)l->n_groups * (uint64_t)n * sizeof(int32_t) : 0;
        ret->state_bytes +=
            chosen && place->scores ? (uint64_t)l->n_groups * (uint64_t)n * 2 * sizeof(float) : 0;
    }
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

void work_of(const struct model *m, const struct shape *s, const struct policy *p, int32_t variant,
             int32_t n_prompt, int32_t n_tokens, struct work *ret)
{
    *ret = (struct work){.weight_bytes = weight_bytes(m)};
    cache_of(m, s, p, variant, n_prompt, n_tokens, ret);
    ret->prompt_flops = prompt_flops(m, n_prompt);
}
