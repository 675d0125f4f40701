/* SPDX-License-Identifier: Apache-2.0 */
/* Selecting attention, second half: weights of all slots, the choice, attention over what was
 * chosen.
 *
 * The choice needs no sort. Sums of weights are not negative, so their bits order as integers; a
 * threshold with k of them at or above it is found by halving, at first over all slots and, once a
 * quarter is left, over those alone. What is chosen is a list of slots in ascending order; rows of
 * K and V are asked for as soon as it is known, since they lie anywhere. */

#include <string.h>

#include "kernels/cpu/attention_select.h"
#include "quant/half.h"

#define LOCAL 1e30f /* above every sum of weights */

/* Of one thread; see struct kv_select. */
struct chosen {
    const struct att_select *a;
    float *total;      /* (ld): sums of weights, LOCAL, or -1: not visible */
    float *left;       /* (ld): candidates */
    int32_t *list;     /* (ld): slots, ascending */
    int32_t *pos;      /* (ld): their positions, -1 behind them */
    uint16_t *scale;   /* (ld) */
    const void **rows; /* (ld) */
    int32_t n;
    bool all;       /* of what is visible */
    float *inverse; /* (n_heads): 1 / sum of weights */
    float *share;   /* (n_heads): of the weights, what was chosen */
};

static int32_t bits_of(float f)
{
    int32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits;
}

static int32_t pages_of(int32_t slots)
{
    return (slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* What the policy observes of one head, to a->seen; returns 1 / its sum. Logits in x are intact. */
static float observe(const struct att_select *a, int32_t head, const float *x, float max)
{
    const struct att_unit *u = &a->u;
    const struct cpu_table *t = &u->cpu->table;
    enum att_mode mode = att_mode(u, a->row);
    float *seen = a->seen + (size_t)head * a->ld;
    float sum = 0;

    if (mode == ATT_TEMPERED) {
        float tau = att_tau(u, a->row);

        max = CPU_KV_MASKED;
        for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
            float m;

            att_positions(u, s, u->t->pos);
            m = t->kv_temper(x + s, att_noise(u, mode, a->row, head, u->t->pos), tau, seen + s);
            max = m > max ? m : max;
        }
    } else {
        memcpy(seen, x, (size_t)(pages_of(a->n_slots) * OPS_PAGE_SLOTS) * sizeof(float));
    }
    for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
        float part = t->kv_exp(seen + s, max > CPU_KV_MASKED ? max : 0, NULL, NULL);

        if (mode == ATT_GUMBEL) {
            att_positions(u, s, u->t->pos);
            part = t->kv_weigh(seen + s, att_noise(u, mode, a->row, head, u->t->pos));
        }
        sum += part;
    }
    return sum > 0 ? 1.0f / sum : 0;
}

static void score(const struct att_select *a, const float *inverse)
{
    float weight = a->u.observe->row_weight0; /* one row alone is observed */

    att_damp(&a->u, 0, a->n_slots);
    for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
        att_score(
            &a->u, s,
            &(struct cpu_kv_score){a->seen + s, 0, a->ld, inverse, 1, a->u.n_heads, weight, 1});
    }
}

/* Logits to e^(x - max), head by head; c->inverse. */
static void weigh(struct chosen *c)
{
    const struct att_select *a = c->a;
    const struct cpu_table *t = &a->u.cpu->table;
    bool seen = att_mode(&a->u, a->row) != ATT_UNSEEN;

    for (int32_t h = 0; h < a->u.n_heads; h++) {
        float *x = a->x + (size_t)h * a->ld;
        float max = CPU_KV_MASKED;
        float sum = 0;

        for (int32_t i = 0; i < a->n_chunks; i++) {
            float m = a->max[(size_t)h * a->ld_max + (size_t)i];

            max = m > max ? m : max;
        }
        if (seen) {
            c->inverse[h] = observe(a, h, x, max);
        }
        for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
            sum += t->kv_exp(x + s, max > CPU_KV_MASKED ? max : 0, NULL, NULL);
        }
        c->share[h] = sum > 0 ? 1.0f / sum : 0;
    }
    if (seen) {
        score(a, c->inverse);
    }
    memcpy(c->inverse, c->share, (size_t)a->u.n_heads * sizeof(float));
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* total = weights summed over heads [h0, h1); what is not visible, and the local window, marked. */
static void total(struct chosen *c, int32_t h0, int32_t h1)
{
    const struct att_select *a = c->a;
    const struct ops_kv *kv = &a->u.seq->kv;
    int32_t local = a->row_pos - a->select->local + 1;
    int32_t window = a->u.p->window;
    int32_t oldest = window > 0 && a->row_pos >= window ? a->row_pos - window + 1 : 0;
    size_t n = (size_t)(pages_of(a->n_slots) * OPS_PAGE_SLOTS);

    memset(c->total, 0, n * sizeof(float));
    for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
        a->u.cpu->table.kv_score(c->total + s,
                                 &(struct cpu_kv_score){a->x + (size_t)h0 * a->ld + s, 0, a->ld,
                                                        c->inverse + h0, 1, h1 - h0, 1, 1});
        if (!att_is_masked(&a->u, a->row, s) && s + OPS_PAGE_SLOTS <= local) {
            continue;
        }
        for (int32_t i = s; i < s + OPS_PAGE_SLOTS; i++) {
            int32_t pos = i < a->n_slots ? kv_slot_pos(kv, a->u.group, i) : -1;

            c->total[i] = pos < oldest || pos > a->row_pos ? -1
                          : pos >= local                   ? LOCAL
                                                           : c->total[i];
        }
    }
    if (a->hidden) {
        c->total[a->hidden - 1] = -1;
    }
}

/* Of those whose bits are `tie` the n with the lowest positions have one of at most this. */
static int32_t tie_position(const struct chosen *c, int32_t n_listed, int32_t tie, int32_t n)
{
    const struct att_select *a = c->a;
    int32_t lo = -1;
    int32_t hi = a->row_pos;

    while (hi - lo > 1) { /* fewer than n lie at lo or below, at least n at hi or below */
        int32_t mid = lo + (hi - lo) / 2;
        int32_t count = 0;

        for (int32_t i = 0; i < n_listed; i++) {
            count += bits_of(c->total[c->list[i]]) == tie &&
                     kv_slot_pos(&a->u.seq->kv, a->u.group, c->list[i]) <= mid;
        }
        if (count >= n) {
            hi = mid;
        } else {
            lo = mid;
        }
    }
    return hi;
}

/* The bits of a sum that at least k slots reach; fewer than k reach *ret_above. */
static int32_t threshold(struct chosen *c, int32_t k, int32_t n_visible, int32_t *ret_above)
{
    const struct att_select *a = c->a;
    const struct cpu_table *t = &a->u.cpu->table;
    const float *x = c->total;
    int32_t n = pages_of(a->n_slots) * OPS_PAGE_SLOTS;
    int32_t lo = 0;
    int32_t hi = bits_of(2.0f * LOCAL);
    /* Most sums lie below a quarter of the mean, those of interest above, and none but the local
     * ones exceeds the number of heads. */
    int32_t guess[2] = {bits_of((float)a->u.n_heads + 1), bits_of(0.25f / (float)n_visible)};

    for (int g = 0; hi - lo > 1;) {
        int32_t mid = g < 2 ? guess[g++] : lo + (hi - lo) / 2;
        int32_t count = mid > lo && mid < hi ? t->kv_count(x, n, mid) : -1;

        if (count >= k) {
            lo = mid;
        } else if (count >= 0) {
            hi = mid;
        }
        if (count == k) {
            break;
        }
        if (count > k && count <= n / 4) { /* only they matter from here on */
            int32_t m = t->kv_pick(x, n, lo, c->list);

            for (int32_t i = 0; i < m; i++) { /* ascending, so it can be done in place */
                c->left[i] = x[c->list[i]];
            }
            for (n = m; n % 16 != 0; n++) {
                c->left[n] = -1;
            }
            x = c->left;
        }
    }
    *ret_above = hi;
    return lo;
}

/* The k best of all slots, to c->list. */
static void choose(struct chosen *c)
{
    const struct att_select *a = c->a;
    const struct cpu_table *t = &a->u.cpu->table;
    int32_t n = pages_of(a->n_slots) * OPS_PAGE_SLOTS;
    int32_t k = a->select->k;
    int32_t visible = t->kv_count(c->total, n, 0);
    int32_t above = 0;
    int32_t least = 0;
    int32_t listed;
    int32_t last;

    c->all = visible <= k;
    if (!c->all) {
        least = threshold(c, k, visible, &above);
    }
    listed = t->kv_pick(c->total, n, least, c->list);
    c->n = listed;
    if (c->all || listed == k) {
        return;
    }
    last = tie_position(c, listed, least, k - t->kv_count(c->total, n, above));
    c->n = 0;
    for (int32_t i = 0; i < listed; i++) {
        int32_t s = c->list[i];

        if (bits_of(c->total[s]) != least || kv_slot_pos(&a->u.seq->kv, a->u.group, s) <= last) {
            c->list[c->n++] = s;
        }
    }
}

/* ---- attention over the list -------------------------------------------------------------------
 */

static uint8_t *page_of(const struct chosen *c, int32_t i)
{
    return kv_page_of(&c->a->u.seq->kv, c->a->u.group, c->list[i]);
}

static void prefetch(const void *p, size_t bytes)
{
    for (size_t b = 0; b < bytes; b += 64) {
        __builtin_prefetch((const uint8_t *)p + b);
    }
}

static const void *v_row(const struct chosen *c, int32_t i, int32_t head)
{
    const struct ops_kv_layout *l = c->a->u.l;

    return kv_page_v(l, page_of(c, i), head) + (size_t)(c->list[i] % OPS_PAGE_SLOTS) *
                                                   (size_t)kv_page_pad(l->v_dim) *
                                                   kv_page_element(l->v_type);
}

static const void *k_row(const struct chosen *c, int32_t i, int32_t head)
{
    const struct ops_kv_layout *l = c->a->u.l;

    return kv_page_rows(l, page_of(c, i), head) + (size_t)(c->list[i] % OPS_PAGE_SLOTS) *
                                                      (size_t)kv_page_pad(l->k_dim) *
                                                      kv_page_element(l->k_type);
}

/* Asks memory for what the list names, K's rows first. */
static void ask(const struct chosen *c, bool keys)
{
    const struct ops_kv_layout *l = c->a->u.l;
    size_t k_bytes = (size_t)l->k_dim * kv_page_element(l->k_type);
    size_t v_bytes = (size_t)l->v_dim * kv_page_element(l->v_type);

    for (int32_t i = 0; i < c->n && keys; i++) {
        for (int32_t h = 0; h < l->k_heads; h++) {
            prefetch(k_row(c, i, h), k_bytes);
        }
    }
    for (int32_t i = 0; i < c->n; i++) {
        for (int32_t h = 0; h < l->v_heads; h++) {
            prefetch(v_row(c, i, h), v_bytes);
        }
    }
}

/* The list's positions, -1 up to a whole page. */
static void list_positions(struct chosen *c)
{
    for (int32_t i = 0; i < pages_of(c->n) * OPS_PAGE_SLOTS; i++) {
        c->pos[i] = i < c->n ? kv_slot_pos(&c->a->u.seq->kv, c->a->u.group, c->list[i]) : -1;
    }
}

/* Scales of one K or V head of the list; NULL for types without. */
static const uint16_t *list_scales(struct chosen *c, int32_t head, bool keys)
{
    const struct ops_kv_layout *l = c->a->u.l;

    if (!ops_kv_scale_bytes(keys ? l->k_type : l->v_type)) {
        return NULL;
    }
    for (int32_t i = 0; i < c->n; i++) {
        const uint16_t *scales = keys ? kv_page_k_scale(l, page_of(c, i), head)
                                      : kv_page_v_scale(l, page_of(c, i), head);

        c->scale[i] = scales[c->list[i] % OPS_PAGE_SLOTS];
    }
    memset(c->scale + c->n, 0, (size_t)(pages_of(c->n) * OPS_PAGE_SLOTS - c->n) * sizeof(uint16_t));
    return c->scale;
}

/* Dot products of one K head's queries with the list, from rows. */
static void dot_rows(struct chosen *c, int32_t k_head)
{
    const struct att_select *a = c->a;
    const struct ops_kv_layout *l = a->u.l;
    int32_t pad = kv_page_pad(l->k_dim);
    int32_t h0 = k_head * a->u.share_k;

    for (int32_t h = 0; h < a->u.share_k; h++) {
        float *q = a->u.t->q + (size_t)h * (size_t)pad;

        memcpy(q, att_select_query(a, h0 + h), (size_t)l->k_dim * sizeof(float));
        memset(q + l->k_dim, 0, (size_t)(pad - l->k_dim) * sizeof(float));
    }
    for (int32_t i = 0; i < c->n; i++) {
        c->rows[i] = k_row(c, i, k_head);
    }
    cpu_kv_rows(&a->u.cpu->table, l->k_type)(c->rows, c->n, pad, a->u.t->q, (size_t)pad,
                                             a->u.share_k, a->x + (size_t)h0 * a->ld, a->ld);
}

/* The same from K as it lies, a line of slots at a time where the list has one of them. */
static void dot_lines(struct chosen *c, int32_t k_head)
{
    const struct att_select *a = c->a;
    const struct ops_kv_layout *l = a->u.l;
    cpu_kv_dims_fn *fn = cpu_kv_dims(&a->u.cpu->table, l->k_type);
    int32_t line = 64 / (int32_t)kv_page_element(l->k_type);
    int32_t h0 = k_head * a->u.share_k;
    float *x = a->u.t->x; /* (share_k, 64) */

    for (int32_t i = 0; i < c->n;) {
        int32_t first = c->list[i] / line * line;
        int32_t end = i;

        fn(kv_page_k(l, page_of(c, i), k_head), NULL, l->k_dim, att_select_query(a, h0),
           (size_t)l->k_dim, a->u.share_k, first % OPS_PAGE_SLOTS, line, x, OPS_PAGE_SLOTS, NULL);
        for (; end < c->n && c->list[end] < first + line; end++) {
            for (int32_t h = 0; h < a->u.share_k; h++) {
                a->x[(size_t)(h0 + h) * a->ld + (size_t)end] =
                    x[h * OPS_PAGE_SLOTS + c->list[end] % OPS_PAGE_SLOTS];
            }
        }
        i = end;
    }
}

/* Exact logits of the list, from the start of each head's row of a->x; their maxima to max. */
static void exact(struct chosen *c, float *max)
{
    const struct att_select *a = c->a;

    list_positions(c);
    for (int32_t k = 0; k < a->u.l->k_heads; k++) {
        const uint16_t *scales;

        if (a->u.l->rank == OPS_RANK_ONCE) {
            dot_lines(c, k);
        } else {
            dot_rows(c, k);
        }
        scales = list_scales(c, k, true);
        for (int32_t h = k * a->u.share_k; h < (k + 1) * a->u.share_k; h++) {
            max[h] = CPU_KV_MASKED;
            for (int32_t i = 0; i < c->n; i += OPS_PAGE_SLOTS) {
                float m = att_logits(&a->u, a->row, h, scales ? scales + i : NULL, c->pos + i,
                                     c->pos + i, true, a->x + (size_t)h * a->ld + (size_t)i);

                max[h] = m > max[h] ? m : max[h];
            }
        }
    }
}

/* Weights of the list to sums of V: heads of one V head. Weights lie at the start of a->x's rows,
 * zeros behind them; inverse: what each head's sum is multiplied with. */
static void blend(struct chosen *c, int32_t v_head, const float *inverse)
{
    const struct att_select *a = c->a;
    const struct ops_kv_layout *l = a->u.l;
    int32_t pad = kv_page_pad(l->v_dim);
    int32_t h0 = v_head * a->u.share_v;
    float *acc = a->u.t->acc;

    for (int32_t i = 0; i < c->n; i++) {
        c->rows[i] = v_row(c, i, v_head);
    }
    memset(acc, 0, (size_t)a->u.share_v * (size_t)pad * sizeof(float));
    cpu_kv_blend(&a->u.cpu->table, l->v_type)(c->rows, c->n, pad, a->x + (size_t)h0 * a->ld, a->ld,
                                              a->u.share_v, acc);
    for (int32_t h = 0; h < a->u.share_v; h++) {
        const struct ops_attention *p = a->u.p;
        float *out = p->out + (size_t)(a->u.seq->row0 + a->row) * (size_t)p->ldo +
                     (size_t)(a->u.group * a->u.n_heads + h0 + h) * (size_t)l->v_dim;

        for (int32_t d = 0; d < l->v_dim; d++) {
            out[d] = acc[h * pad + d] * inverse[h0 + h];
        }
    }
}

/* ---- SparQ ----------------------------------------------------------------------------------- */

static int32_t live_slots(const struct att_select *a)
{
    const struct ops_kv *kv = &a->u.seq->kv;
    int32_t n = 0;

    for (int32_t s = 0; s < a->n_slots && kv->slot_pos; s++) {
        n += kv_slot_pos(kv, a->u.group, s) >= 0;
    }
    return kv->slot_pos ? n : a->n_slots;
}

static void reallocate(const struct chosen *c)
{
    const struct att_select *a = c->a;
    const struct ops_attention *p = a->u.p;
    const struct ops_kv_layout *l = a->u.l;
    float n_live = (float)live_slots(a);

    for (int32_t h = 0; h < a->u.n_heads; h++) {
        int32_t v_head = a->u.group * l->v_heads + h / a->u.share_v;
        const float *sum = a->u.seq->kv.v_sum + (size_t)v_head * (size_t)l->v_dim;
        float *out = p->out + (size_t)(a->u.seq->row0 + a->row) * (size_t)p->ldo +
                     (size_t)(a->u.group * a->u.n_heads + h) * (size_t)l->v_dim;

        for (int32_t d = 0; d < l->v_dim; d++) {
            out[d] = c->share[h] * out[d] + (1 - c->share[h]) * (sum[d] / n_live);
        }
    }
}

/* softmax over the list, from exact logits. */
static void attend_list(struct chosen *c)
{
    const struct att_select *a = c->a;
    const struct cpu_table *t = &a->u.cpu->table;
    float *max = a->u.t->state + 2 * (size_t)a->u.n_heads;

    exact(c, max);
    for (int32_t v = 0; v < a->u.l->v_heads; v++) {
        const uint16_t *scales = list_scales(c, v, false);

        for (int32_t h = v * a->u.share_v; h < (v + 1) * a->u.share_v; h++) {
            float sum = 0;

            for (int32_t i = 0; i < c->n; i += OPS_PAGE_SLOTS) {
                sum += t->kv_exp(a->x + (size_t)h * a->ld + (size_t)i,
                                 max[h] > CPU_KV_MASKED ? max[h] : 0, scales ? scales + i : NULL,
                                 NULL);
            }
            c->inverse[h] = sum > 0 ? 1.0f / sum : 0;
        }
        blend(c, v, c->inverse);
    }
}

static void sparq(struct chosen *c)
{
    const struct att_select *a = c->a;

    total(c, 0, a->u.n_heads);
    choose(c);
    ask(c, a->u.l->rank != OPS_RANK_ONCE);
    for (int32_t h = 0; h < a->u.n_heads && a->select->mean; h++) {
        float sum = 0;

        for (int32_t i = 0; i < c->n; i++) {
            sum += a->x[(size_t)h * a->ld + (size_t)c->list[i]];
        }
        c->share[h] = sum * c->inverse[h];
    }
    attend_list(c);
    if (a->select->mean && !c->all) {
        reallocate(c);
    }
}

/* ---- slots chosen a layer ahead -------------------------------------------------------------- */

/* The slots of the list and the row's own, ascending. */
static void given(struct chosen *c)
{
    const struct att_select *a = c->a;
    const struct ops_chosen *from = a->select->chosen;
    size_t entry = (size_t)a->select->entry;
    const int32_t *slots =
        from->slots + (entry * (size_t)from->max_groups + (size_t)a->u.group) * (size_t)from->ld;
    int32_t own = kv_own_slot(a->u.seq, a->u.group);
    int32_t n = from->n[entry];
    int32_t below;

    while (n > 0 && slots[n - 1] < 0) { /* fewer ranked in this group */
        n--;
    }
    below = n;
    while (below > 0 && slots[below - 1] > own) {
        below--;
    }
    memcpy(c->list, slots, (size_t)below * sizeof(*c->list));
    c->list[below] = own;
    memcpy(c->list + below + 1, slots + below, (size_t)(n - below) * sizeof(*c->list));
    c->n = n + 1;
    ask(c, a->u.l->rank != OPS_RANK_ONCE);
    attend_list(c);
}

/* ---- top-k V --------------------------------------------------------------------------------- */

static void topv(struct chosen *c, int32_t v_head)
{
    const struct att_select *a = c->a;
    int32_t h0 = v_head * a->u.share_v;
    const uint16_t *scales;

    total(c, h0, h0 + a->u.share_v);
    choose(c);
    for (int32_t i = 0; i < c->n; i++) {
        prefetch(v_row(c, i, v_head), (size_t)a->u.l->v_dim * kv_page_element(a->u.l->v_type));
    }
    scales = list_scales(c, v_head, false);
    for (int32_t h = h0; h < h0 + a->u.share_v; h++) {
        float *x = a->x + (size_t)h * a->ld;
        float sum = 0;

        for (int32_t i = 0; i < c->n; i++) { /* list[i] >= i: in place */
            float e = x[c->list[i]];

            sum += e;
            x[i] = scales ? e * half_f16_to_f32(scales[i]) : e;
        }
        if (a->select->renorm) {
            c->inverse[h] = sum > 0 ? 1.0f / sum : 0;
        }
    }
    blend(c, v_head, c->inverse);
}

static struct chosen chosen_of(const struct att_select *a)
{
    const struct kv_thread *t = a->u.t;

    return (struct chosen){
        .a = a,
        .total = t->total,
        .left = t->left,
        .list = t->list,
        .pos = t->list_pos,
        .scale = t->list_scale,
        .rows = t->list_rows,
        .inverse = t->state,
        .share = t->state + a->u.n_heads,
    };
}

int32_t att_select_list(const struct att_select *a, int32_t *list)
{
    struct chosen c = chosen_of(a);

    weigh(&c);
    total(&c, 0, a->u.n_heads);
    choose(&c);
    memcpy(list, c.list, (size_t)c.n * sizeof(*list));
    return c.n;
}

void att_select_attend(const struct att_select *a)
{
    struct chosen c = chosen_of(a);

    if (a->select->kind == OPS_SELECT_GIVEN) {
        given(&c);
        return;
    }
    weigh(&c);
    if (a->select->kind == OPS_SELECT_SPARQ) {
        sparq(&c);
        return;
    }
    for (int32_t v = 0; v < a->u.l->v_heads; v++) {
        topv(&c, v);
    }
}
