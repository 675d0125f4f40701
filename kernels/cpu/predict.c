/* SPDX-License-Identifier: Apache-2.0 */
/* Which slots a layer to come will read (ops.h struct ops_predict; kernels/ref/predict.c says
 * exactly what).
 *
 * Two steps with a barrier between them, units of one sequence and group: logits of all slots from
 * the partial keys, with each query head's count of those near its best; then, once the counts of
 * all groups are known, the choice, by the means of rows that select for themselves
 * (attention_chosen.c). Partial keys are a fraction of K, so a unit is short. */

#include <errno.h>
#include <string.h>

#include "kernels/cpu/attention_select.h"

#define LOG2_E 1.44269504f

struct job {
    const struct cpu *cpu;
    const struct ops_predict *p;
    struct ops_attention as; /* what the means of attention want to know of p */
    int32_t seq0;            /* the wave's sequences */
    int32_t n_seqs;
    struct pool_counter next;
    struct pool_counter next_choice;
};

/* One sequence and group. */
struct unit {
    struct att_select a;
    struct ops_select select; /* a.select: how the choice is made */
    int32_t *counts;          /* of all query heads, ld_q apart */
    int32_t seq;
};

static bool find_unit(const struct job *job, const struct kv_scratch *s, int32_t index,
                      struct unit *u)
{
    const struct kv_select *k = &s->select;
    size_t heads = (size_t)job->cpu->limits.max_heads;

    for (int32_t w = 0; w < job->n_seqs; w++) {
        int32_t seq = job->seq0 + w;
        const struct ops_seq *of = &job->p->seqs[seq];

        if (job->p->select[seq].kind != OPS_SELECT_GIVEN) {
            continue;
        }
        if (index >= of->kv.layout->n_groups) {
            index -= of->kv.layout->n_groups;
            continue;
        }
        *u = (struct unit){.seq = seq, .counts = k->dims + (size_t)w * heads * k->pad};
        u->a = (struct att_select){
            .u = att_unit_make(job->cpu, &job->as, seq, index, &s->t),
            .row_pos = of->pos0 - 1,
            .hidden = 1 + kv_own_slot(of, index),
            .n_slots = of->kv.n_slots,
            .n_chunks = 1,
            .ld = k->ld,
            .ld_q = k->pad,
            .ld_max = k->ld / 512 + 1,
        };
        size_t head0 = (size_t)w * heads + (size_t)(index * u->a.u.n_heads);

        u->a.x = k->x + head0 * k->ld;
        u->a.max = k->max + head0 * u->a.ld_max;
        u->a.q = k->q + head0 * k->pad;
        return true;
    }
    return false;
}

/* ---- ranking ----------------------------------------------------------------------------------
 */

static void skew_query(const struct att_select *a, int32_t head)
{
    const struct ops_kv_layout *l = a->u.l;
    int32_t k_head = a->u.group * l->k_heads + head / a->u.share_k;
    const float *rows = a->u.seq->kv.skew + (size_t)k_head * (size_t)l->k_dim * (size_t)l->k_dim;
    const float *q = att_select_query(a, head);
    float *to = a->q + (size_t)head * a->ld_q;

    for (int32_t j = 0; j < l->part_dims; j++) {
        to[j] = 0;
        for (int32_t d = 0; d < l->k_dim; d++) {
            to[j] += rows[j * l->k_dim + d] * q[d];
        }
    }
}

/* Logits of one page; the slot that the row to come will take is masked. */
static void rank_page(const struct att_select *a, int32_t slot)
{
    const struct att_unit *u = &a->u;
    cpu_kv_dims_fn *fn = cpu_kv_dims(&u->cpu->table, u->l->part_type);
    uint8_t *page = kv_page_of(&u->seq->kv, u->group, slot);
    uint8_t *next = slot + OPS_PAGE_SLOTS < a->n_slots
                        ? kv_page_of(&u->seq->kv, u->group, slot + OPS_PAGE_SLOTS)
                        : NULL;
    bool masked = att_is_masked(u, 0, slot);
    int32_t own = a->hidden - 1 - slot; /* in the page */

    for (int32_t k = 0; k < u->l->k_heads; k++) {
        size_t h = (size_t)(k * u->share_k);

        fn(kv_page_part(u->l, page, k), NULL, u->l->part_dims, a->q + h * a->ld_q, a->ld_q,
           u->share_k, 0, OPS_PAGE_SLOTS, a->x + h * a->ld + (size_t)slot, a->ld,
           next ? kv_page_part(u->l, next, k) : NULL);
    }
    if (masked || u->p->alibi_max > 0) {
        att_positions(u, slot, u->t->pos);
    }
    for (int32_t h = 0; h < u->n_heads; h++) {
        float *x = a->x + (size_t)h * a->ld + (size_t)slot;

        (void)att_logits(u, 0, h, kv_page_part_scale(u->l, page, h / u->share_k), u->t->pos,
                         u->t->pos, masked, x);
        if (own >= 0 && own < OPS_PAGE_SLOTS) {
            x[own] = CPU_KV_MASKED;
        }
    }
}

static void rank(const struct unit *unit, float alpha)
{
    const struct att_select *a = &unit->a;

    for (int32_t h = 0; h < a->u.n_heads; h++) {
        skew_query(a, h);
    }
    for (int32_t s = 0; s < a->n_slots; s += OPS_PAGE_SLOTS) {
        rank_page(a, s);
    }
    for (int32_t h = 0; h < a->u.n_heads; h++) {
        const float *x = a->x + (size_t)h * a->ld;
        float max = CPU_KV_MASKED;
        int32_t n = 0;

        for (int32_t s = 0; s < a->n_slots; s++) {
            max = x[s] > max ? x[s] : max;
        }
        for (int32_t s = 0; s < a->n_slots && max > CPU_KV_MASKED; s++) {
            n += x[s] >= max - alpha * LOG2_E;
        }
        a->max[(size_t)h * a->ld_max] = max;
        unit->counts[(size_t)(a->u.group * a->u.n_heads + h) * a->ld_q] = n;
    }
}

/* ---- how many, and which ----------------------------------------------------------------------
 */

static int32_t percent_of(int32_t n, int32_t percent)
{
    return (int32_t)((int64_t)n * percent / 100);
}

static int32_t how_many(const struct unit *u, const struct ops_select *how, int32_t n_q)
{
    int32_t n = u->a.row_pos + 1;
    int32_t k = how->count ? how->count : percent_of(n, how->share);

    if (!how->count && !how->share) {
        int32_t cap = percent_of(n, how->cap);
        int64_t sum = 0;

        for (int32_t h = 0; h < n_q; h++) {
            sum += u->counts[(size_t)h * u->a.ld_q];
        }
        k = (int32_t)(sum / n_q);
        k = k < cap ? k : cap;
    }
    k = k > 1 ? k : 1;
    return k < u->a.n_slots - 1 ? k : u->a.n_slots - 1;
}

/* What is kept of the choice of n slots, ascending. */
static void use(const struct unit *u, enum ops_use how, const int32_t *list, int32_t n)
{
    const struct ops_kv *kv = &u->a.u.seq->kv;
    float *score = kv->score + (size_t)u->a.u.group * (size_t)kv->cap;
    int32_t pos0 = u->a.u.seq->pos0;
    bool halve = false;

    for (int32_t i = 0; i < n && how == OPS_USE_COUNT; i++) {
        halve = halve || score[list[i]] >= OPS_USE_MAX;
    }
    for (int32_t s = 0; s < kv->n_slots && (halve || how == OPS_USE_LAST); s++) {
        float pos = (float)kv_slot_pos(kv, u->a.u.group, s);

        if (s + 1 != u->a.hidden) {
            score[s] = halve ? (float)((int32_t)score[s] / 2) : score[s] > pos ? score[s] : pos;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        score[list[i]] = how == OPS_USE_LAST ? (float)pos0 : score[list[i]] + 1;
    }
}

static void choose(const struct job *job, struct unit *u)
{
    const struct ops_chosen *c = job->p->chosen;
    size_t row = (size_t)u->seq * (size_t)c->max_groups + (size_t)u->a.u.group;

    int32_t *list = c->slots + row * (size_t)c->ld;
    int32_t n = 0;

    u->select.k = how_many(u, &job->p->select[u->seq], job->p->n_q);
    u->a.select = &u->select;
    if (u->a.u.group == 0) {
        c->n[u->seq] = u->select.k;
    }
    if (u->select.k > 0) {
        n = att_select_list(&u->a, list);
    }
    for (int32_t i = n; i < u->select.k; i++) {
        list[i] = -1; /* fewer rank here */
    }
    if (job->p->select[u->seq].use != OPS_USE_NONE) {
        use(u, job->p->select[u->seq].use, list, n);
    }
}

static void wave(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    struct unit u;

    (void)n_threads;
    while (find_unit(job, &s, pool_counter_take(&job->next), &u)) {
        rank(&u, job->p->select[u.seq].alpha);
    }
    pool_barrier(job->cpu->pool, tid); /* logits and counts are written */
    while (find_unit(job, &s, pool_counter_take(&job->next_choice), &u)) {
        choose(job, &u);
    }
}

/* ---- the operation -----------------------------------------------------------------------------
 */

static bool valid(const struct cpu *cpu, const struct ops_predict *p, int32_t i)
{
    const struct ops_seq *s = &p->seqs[i];
    const struct ops_kv_layout *l = s->kv.layout;

    return p->select[i].kind != OPS_SELECT_GIVEN ||
           (cpu->limits.select && s->kv.skew && (!p->select[i].use || s->kv.score) &&
            l->part_dims >= 1 && l->part_dims <= l->k_dim && s->n_rows == 1 &&
            p->n_q <= cpu->limits.max_heads && l->k_dim <= cpu->limits.max_head_dim &&
            s->kv.n_slots <= cpu->limits.max_slots && p->n_q % (l->n_groups * l->k_heads) == 0 &&
            l->n_groups <= p->chosen->max_groups && s->kv.n_slots >= 1 &&
            s->kv.n_slots - 1 <= p->chosen->ld && (s->kv.slot_pos || s->pos0 < s->kv.n_slots));
}

int cpu_predict(struct backend *be, const struct ops_predict *p)
{
    struct cpu *cpu = cpu_of(be);
    int32_t size = cpu_kv_scratch(cpu, 0).select.wave;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        if (!valid(cpu, p, i)) {
            return -EINVAL;
        }
    }
    for (int32_t i = 0; i < p->n_seqs; i += size) {
        struct job job = {
            .cpu = cpu,
            .p = p,
            .as =
                {
                    .q = p->q,
                    .ldq = p->ldq,
                    .n_q = p->n_q,
                    .scale = p->scale,
                    .softcap = p->softcap,
                    .alibi_max = p->alibi_max,
                    .seqs = p->seqs,
                    .n_seqs = p->n_seqs,
                },
            .seq0 = i,
            .n_seqs = p->n_seqs - i < size ? p->n_seqs - i : size,
        };

        pool_run(cpu->pool, wave, &job);
    }
    return 0;
}
