/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that read some of the slots they see (ops.h struct ops_select).
 *
 * A selecting row is a block of its own. What ranks slots is computed for every slot into t->logits
 * and t->approx, slots are marked in t->chosen, and the rest is the attention of all slots with the
 * logits (or weights) of the others taken out. So a selection of everything gives the same bits as
 * none. */

#include <math.h>
#include <string.h>

#include "kernels/ref/attention.h"

bool ref_selects(const struct ref_unit *u, int32_t row)
{
    return u->select && u->select->kind != OPS_SELECT_ALL &&
           u->seq->row0 + row < u->p->rows.n_decode;
}

bool ref_select_valid(const struct ref *ref, const struct ops_attention *p, int32_t seq)
{
    const struct ops_select *s = &p->select[seq];
    const struct ops_kv *kv = &p->seqs[seq].kv;

    if (s->kind == OPS_SELECT_ALL) {
        return true;
    }
    if (s->kind == OPS_SELECT_GIVEN) {
        return ref->limits.select && s->chosen && !s->packed &&
               (p->seqs[seq].row0 >= p->rows.n_decode || p->seqs[seq].n_rows == 1);
    }
    return ref->limits.select && !kv->layout->k_unrotated && s->k >= 1 && s->local >= 0 &&
           s->local <= s->k &&
           (s->kind != OPS_SELECT_SPARQ || (s->r >= 1 && s->r <= kv->layout->k_dim)) &&
           (!s->mean || kv->v_sum);
}

static float *of_head(const struct ref_unit *u, float *rows, int32_t h)
{
    return rows + (size_t)h * u->max_slots;
}

/* ---- ranking ------------------------------------------------------------------------------- */

/* The r dims of each K head with the largest sum of |q|. Selection by repeated maximum: r x k_dim.
 */
static void choose_dims(const struct ref_unit *u, int32_t row)
{
    int32_t share = u->n_heads / u->l->k_heads;
    int32_t n = u->l->k_dim;
    float *sum = u->t->head;

    for (int32_t k = 0; k < u->l->k_heads; k++) {
        bool *dims = u->t->dims + (size_t)k * (size_t)n;

        memset(sum, 0, (size_t)n * sizeof(float));
        memset(dims, 0, (size_t)n * sizeof(bool));
        for (int32_t h = k * share; h < (k + 1) * share; h++) {
            const float *q = ref_query(u, row, u->group * u->n_heads + h);

            for (int32_t d = 0; d < n; d++) {
                sum[d] += fabsf(q[d]);
            }
        }
        for (int32_t i = 0; i < u->select->r; i++) {
            int32_t best = -1;

            for (int32_t d = 0; d < n; d++) {
                if (!dims[d] && (best < 0 || sum[d] > sum[best])) {
                    best = d;
                }
            }
            dims[best] = true;
        }
    }
}

static void choose_shrink(const struct ref_unit *u, int32_t row)
{
    int32_t share = u->n_heads / u->l->k_heads;

    for (int32_t h = 0; h < u->n_heads; h++) {
        const float *q = ref_query(u, row, u->group * u->n_heads + h);
        const bool *dims = u->t->dims + (size_t)(h / share) * (size_t)u->l->k_dim;
        float all = 0;
        float some = 0;

        for (int32_t d = 0; d < u->l->k_dim; d++) {
            all += fabsf(q[d]);
            some += dims[d] ? fabsf(q[d]) : 0.0f;
        }
        u->t->shrink[h] = some > 0 ? 1.0f / sqrtf(some / all) : 1.0f;
    }
}

/* Approximate logits of one page and query head. */
static void page_approx(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                        float *logits)
{
    const float *q = ref_query(u, row, head);
    int32_t h = head - u->group * u->n_heads;
    const bool *dims =
        u->t->dims + (size_t)(h / (u->n_heads / u->l->k_heads)) * (size_t)u->l->k_dim;
    float slope = ref_slope(u, head);

    for (int32_t i = 0; i < n; i++) {
        float dot = 0;

        for (int32_t d = 0; d < u->l->k_dim; d++) {
            if (dims[d]) {
                dot += q[d] * u->t->page[d * OPS_PAGE_SLOTS + i];
            }
        }
        logits[s0 + i] =
            ref_finish_logit(u, dot * u->t->shrink[h], slope, s0 + i, u->seq->pos0 + row);
    }
}

/* t->approx (n_heads, max_slots) = softmax of t->logits. */
static void probabilities(const struct ref_unit *u)
{
    int32_t n = u->seq->kv.n_slots;

    for (int32_t h = 0; h < u->n_heads; h++) {
        float *p = of_head(u, u->t->approx, h);

        memcpy(p, of_head(u, u->t->logits, h), (size_t)n * sizeof(float));
        float scale = ref_softmax(p, n);

        for (int32_t s = 0; s < n; s++) {
            p[s] *= scale;
        }
    }
}

/* ---- choosing ------------------------------------------------------------------------------ */

struct rank {
    const struct ref_unit *u;
    const float *p;    /* (n_slots) */
    int32_t pos_local; /* positions from here on are in */
};

static bool better(const struct rank *r, int32_t a, int32_t b)
{
    int32_t pos_a = ref_kv_pos(&r->u->seq->kv, r->u->group, a);
    int32_t pos_b = ref_kv_pos(&r->u->seq->kv, r->u->group, b);
    bool local_a = pos_a >= r->pos_local;
    bool local_b = pos_b >= r->pos_local;

    if (local_a != local_b) {
        return local_a;
    }
    return r->p[a] != r->p[b] ? r->p[a] > r->p[b] : pos_a < pos_b;
}

/* Heap sort, the best first. */
static void sift(const struct rank *r, int32_t *order, int32_t root, int32_t n)
{
    for (int32_t child; (child = 2 * root + 1) < n; root = child) {
        int32_t held = order[root];

        if (child + 1 < n && better(r, order[child], order[child + 1])) {
            child++;
        }
        if (!better(r, held, order[child])) {
            return;
        }
        order[root] = order[child];
        order[child] = held;
    }
}

static void sort_slots(const struct rank *r, int32_t *order, int32_t n)
{
    for (int32_t i = n / 2; i-- > 0;) {
        sift(r, order, i, n);
    }
    for (int32_t end = n; end-- > 1;) {
        int32_t last = order[0];

        order[0] = order[end];
        order[end] = last;
        sift(r, order, 0, end);
    }
}

bool ref_choose(const struct ref_unit *u, int32_t row_pos, int32_t k, int32_t local, int32_t h0,
                int32_t h1)
{
    const struct ref_thread *t = u->t;
    int32_t n_slots = u->seq->kv.n_slots;
    struct rank r = {.u = u, .p = t->p_sum, .pos_local = row_pos - local + 1};
    int32_t n = 0;

    memset(t->p_sum, 0, (size_t)n_slots * sizeof(float));
    memset(t->chosen, 0, (size_t)n_slots * sizeof(bool));
    for (int32_t h = h0; h < h1; h++) {
        for (int32_t s = 0; s < n_slots; s++) {
            t->p_sum[s] += of_head(u, t->approx, h)[s];
        }
    }
    for (int32_t s = 0; s < n_slots; s++) {
        if (ref_visible(u, s, row_pos)) {
            t->order[n++] = s;
        }
    }
    sort_slots(&r, t->order, n);
    for (int32_t i = 0; i < n && i < k; i++) {
        t->chosen[t->order[i]] = true;
    }
    return n <= k;
}

static bool choose(const struct ref_unit *u, int32_t row, int32_t h0, int32_t h1)
{
    return ref_choose(u, u->seq->pos0 + row, u->select->k, u->select->local, h0, h1);
}

/* ---- attention over them ------------------------------------------------------------------- */

/* Logits to weights of one head; those that are not chosen weigh nothing. */
static void weigh(const struct ref_unit *u, float *x, bool renorm)
{
    int32_t n = u->seq->kv.n_slots;
    float scale;

    for (int32_t s = 0; s < n && renorm; s++) {
        x[s] = u->t->chosen[s] ? x[s] : -INFINITY;
    }
    scale = ref_softmax(x, n);
    for (int32_t s = 0; s < n; s++) {
        x[s] = u->t->chosen[s] ? x[s] * scale : 0.0f;
    }
}

static int32_t live_slots(const struct ops_kv *kv, int32_t group)
{
    int32_t n = 0;

    for (int32_t s = 0; s < kv->n_slots; s++) {
        n += ref_kv_pos(kv, group, s) >= 0;
    }
    return n;
}

/* out = a * out + (1 - a) * mean of V, a = the share of approximate probability that was chosen. */
static void reallocate(const struct ref_unit *u, int32_t row, int32_t h, int32_t n_live)
{
    int32_t v_head = u->group * u->l->v_heads + h / (u->n_heads / u->l->v_heads);
    const float *sum = u->seq->kv.v_sum + (size_t)v_head * (size_t)u->l->v_dim;
    float *out = ref_out(u, row, u->group * u->n_heads + h);
    float a = 0;

    for (int32_t s = 0; s < u->seq->kv.n_slots; s++) {
        a += u->t->chosen[s] ? of_head(u, u->t->approx, h)[s] : 0.0f;
    }
    for (int32_t d = 0; d < u->l->v_dim; d++) {
        out[d] = a * out[d] + (1 - a) * (sum[d] / (float)n_live);
    }
}

static void clear_out(const struct ref_unit *u, int32_t row)
{
    memset(ref_out(u, row, u->group * u->n_heads), 0,
           (size_t)u->n_heads * (size_t)u->l->v_dim * sizeof(float));
}

static void sparq(const struct ref_unit *u, int32_t row)
{
    struct ref_unit rounded = *u;
    int32_t n_live = live_slots(&u->seq->kv, u->group);
    bool all;

    choose_dims(u, row);
    choose_shrink(u, row);
    rounded.round_k = u->l->rank == OPS_RANK_8;
    ref_over_pages(&rounded, row, row + 1, true, page_approx);
    if (u->observe && row >= u->observe->row_first) {
        ref_observe_row(u, row, u->t->logits);
    }
    probabilities(u);
    all = choose(u, row, 0, u->n_heads);
    ref_over_pages(u, row, row + 1, true, ref_page_logits);
    for (int32_t h = 0; h < u->n_heads; h++) {
        weigh(u, of_head(u, u->t->logits, h), true);
    }
    clear_out(u, row);
    ref_over_pages(u, row, row + 1, false, ref_value_pair);
    for (int32_t h = 0; h < u->n_heads && u->select->mean && !all; h++) {
        reallocate(u, row, h, n_live);
    }
}

static void topv(const struct ref_unit *u, int32_t row)
{
    int32_t share = u->n_heads / u->l->v_heads;

    ref_over_pages(u, row, row + 1, true, ref_page_logits);
    if (u->observe && row >= u->observe->row_first) {
        ref_observe_row(u, row, u->t->logits);
    }
    probabilities(u);
    for (int32_t v = 0; v < u->l->v_heads; v++) {
        (void)choose(u, row, v * share, (v + 1) * share);
        for (int32_t h = v * share; h < (v + 1) * share; h++) {
            weigh(u, of_head(u, u->t->logits, h), u->select->renorm);
        }
    }
    clear_out(u, row);
    ref_over_pages(u, row, row + 1, false, ref_value_pair);
}

/* Slots that `predict` listed, and the row's own. */
static void given(const struct ref_unit *u, int32_t row)
{
    const struct ops_chosen *c = u->select->chosen;
    size_t entry = (size_t)u->select->entry;
    const int32_t *slots =
        c->slots + (entry * (size_t)c->max_groups + (size_t)u->group) * (size_t)c->ld;

    memset(u->t->chosen, 0, (size_t)u->seq->kv.n_slots * sizeof(bool));
    for (int32_t i = 0; i < c->n[entry]; i++) {
        if (slots[i] >= 0) {
            u->t->chosen[slots[i]] = true;
        }
    }
    u->t->chosen[ref_own_slot(u->seq, u->group)] = true;
    ref_over_pages(u, row, row + 1, true, ref_page_logits);
    for (int32_t h = 0; h < u->n_heads; h++) {
        weigh(u, of_head(u, u->t->logits, h), true);
    }
    clear_out(u, row);
    ref_over_pages(u, row, row + 1, false, ref_value_pair);
}

void ref_select_row(const struct ref_unit *u, int32_t row)
{
    switch (u->select->kind) {
    case OPS_SELECT_SPARQ:
        sparq(u, row);
        break;
    case OPS_SELECT_GIVEN:
        given(u, row);
        break;
    default:
        topv(u, row);
        break;
    }
}
