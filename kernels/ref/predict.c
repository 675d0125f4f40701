/* SPDX-License-Identifier: Apache-2.0 */
/* Which slots a layer to come will read (ops.h struct ops_predict).
 *
 * A unit is one sequence, since its count is a mean over the query heads of all groups: logits of
 * all heads and slots in t->logits, then the count, then for each group the softmax in t->approx
 * and the choice that rows which select for themselves make too (select.c). */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/kv_code.h"
#include "kernels/ref/attention.h"

struct job {
    struct ref *ref;
    const struct ops_predict *p;
    struct pool_counter next;
};

/* What ref_finish_logit and ref_choose want to know. */
static struct ops_attention as_attention(const struct ops_predict *p)
{
    return (struct ops_attention){.q = p->q,
                                  .ldq = p->ldq,
                                  .n_q = p->n_q,
                                  .scale = p->scale,
                                  .softcap = p->softcap,
                                  .alibi_max = p->alibi_max};
}

static float *logits_of(const struct ref_unit *u, int32_t head)
{
    return u->t->logits + (size_t)head * u->max_slots;
}

/* Logits of one query head of all layers' heads; the skewed query goes to t->page. */
static void rank_head(const struct ref_unit *u, int32_t head)
{
    const struct ops_kv_layout *l = u->l;
    int32_t k_head = head / (u->p->n_q / (l->n_groups * l->k_heads)); /* of all */
    const float *a = u->seq->kv.skew + (size_t)k_head * (size_t)l->k_dim * (size_t)l->k_dim;
    const float *q = ref_query(u, 0, head);
    float *skewed = u->t->page;
    float slope = ref_slope(u, head);

    for (int32_t j = 0; j < l->part_dims; j++) {
        skewed[j] = 0;
        for (int32_t d = 0; d < l->k_dim; d++) {
            skewed[j] += a[j * l->k_dim + d] * q[d];
        }
    }
    for (int32_t s = 0; s < u->seq->kv.n_slots; s++) {
        float dot = 0;

        ref_kv_part_values(&u->seq->kv, k_head / l->k_heads, s, k_head % l->k_heads, u->t->head);
        for (int32_t j = 0; j < l->part_dims; j++) {
            dot += skewed[j] * u->t->head[j];
        }
        logits_of(u, head)[s] = ref_finish_logit(u, dot, slope, s, u->seq->pos0);
    }
}

static int32_t percent_of(int32_t n, int32_t percent)
{
    return (int32_t)((int64_t)n * percent / 100);
}

/* How many slots. */
static int32_t count(const struct ref_unit *u)
{
    const struct ops_select *how = u->select;
    int32_t n = u->seq->pos0;
    int32_t n_slots = u->seq->kv.n_slots;
    int64_t sum = 0;
    int32_t k = how->count ? how->count : percent_of(n, how->share);

    for (int32_t h = 0; h < u->p->n_q && !how->count && !how->share; h++) {
        const float *x = logits_of(u, h);
        float max = -INFINITY;

        for (int32_t s = 0; s < n_slots; s++) {
            max = fmaxf(max, x[s]);
        }
        for (int32_t s = 0; s < n_slots && max > -INFINITY; s++) {
            sum += x[s] >= max - how->alpha;
        }
    }
    if (!how->count && !how->share) {
        int32_t cap = percent_of(n, how->cap);

        k = (int32_t)(sum / u->p->n_q);
        k = k < cap ? k : cap;
    }
    k = k > 1 ? k : 1;
    return k < n_slots - 1 ? k : n_slots - 1;
}

/* What is kept of the choice in t->chosen. */
static void use(const struct ref_unit *u)
{
    const struct ops_kv *kv = &u->seq->kv;
    float *score = kv->score + (size_t)u->group * (size_t)kv->cap;
    bool halve = false;

    for (int32_t s = 0; s < kv->n_slots; s++) {
        halve = halve || (u->t->chosen[s] && score[s] >= OPS_USE_MAX);
    }
    for (int32_t s = 0; s < kv->n_slots; s++) {
        if (s + 1 == u->hidden) {
            continue;
        }
        if (u->select->use == OPS_USE_LAST) {
            score[s] = u->t->chosen[s] ? (float)u->seq->pos0
                                       : fmaxf(score[s], (float)ref_kv_pos(kv, u->group, s));
        } else {
            score[s] = floorf(halve ? score[s] / 2 : score[s]) + (float)u->t->chosen[s];
        }
    }
}

static void list_group(struct ref_unit *u, int32_t k, int32_t *list)
{
    int32_t n = u->seq->kv.n_slots;
    int32_t at = 0;

    for (int32_t h = 0; h < u->n_heads; h++) {
        float *x = u->t->approx + (size_t)h * u->max_slots;
        float scale;

        memcpy(x, logits_of(u, u->group * u->n_heads + h), (size_t)n * sizeof(float));
        scale = ref_softmax(x, n);
        for (int32_t s = 0; s < n; s++) {
            x[s] *= scale;
        }
    }
    (void)ref_choose(u, u->seq->pos0 - 1, k, 0, 0, u->n_heads);
    for (int32_t s = 0; s < n; s++) {
        if (u->t->chosen[s]) {
            list[at++] = s;
        }
    }
    for (; at < k; at++) {
        list[at] = -1; /* fewer rank here */
    }
    if (u->select->use != OPS_USE_NONE) {
        use(u);
    }
}

static void one(const struct job *job, const struct ref_thread *t, int32_t i)
{
    const struct ops_predict *p = job->p;
    const struct ops_chosen *c = p->chosen;
    struct ops_attention as = as_attention(p);
    struct ref_unit u = {
        .p = &as,
        .seq = &p->seqs[i],
        .select = &p->select[i],
        .l = p->seqs[i].kv.layout,
        .t = t,
        .max_slots = (size_t)job->ref->limits.max_slots,
    };
    int32_t k;

    u.n_heads = p->n_q / u.l->n_groups;
    for (int32_t h = 0; h < p->n_q; h++) {
        u.group = h / u.n_heads;
        u.hidden = 1 + ref_own_slot(u.seq, u.group);
        rank_head(&u, h);
    }
    k = count(&u);
    c->n[i] = k;
    for (u.group = 0; u.group < u.l->n_groups; u.group++) {
        size_t row = (size_t)i * (size_t)c->max_groups + (size_t)u.group;

        u.hidden = 1 + ref_own_slot(u.seq, u.group);
        list_group(&u, k, c->slots + row * (size_t)c->ld);
    }
}

static void units(void *arg, int tid, int n_threads)
{
    struct job *job = arg;

    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < job->p->n_seqs;) {
        if (job->p->select[i].kind == OPS_SELECT_GIVEN) {
            one(job, &job->ref->threads[tid], i);
        }
    }
}

int ref_predict(struct backend *be, const struct ops_predict *p)
{
    struct ref *ref = (struct ref *)be;
    struct job job = {.ref = ref, .p = p};

    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_kv *kv = &p->seqs[i].kv;
        const struct ops_kv_layout *l = kv->layout;

        if (p->select[i].kind != OPS_SELECT_GIVEN) {
            continue;
        }
        if (!ref->limits.select || !kv->skew || (p->select[i].use && !kv->score) ||
            l->part_dims < 1 || l->part_dims > l->k_dim || p->seqs[i].n_rows != 1 ||
            p->n_q > ref->limits.max_heads || l->k_dim > ref->limits.max_head_dim ||
            kv->n_slots > ref->limits.max_slots || p->n_q % (l->n_groups * l->k_heads) != 0 ||
            l->n_groups > p->chosen->max_groups || kv->n_slots < 1 ||
            kv->n_slots - 1 > p->chosen->ld || (!kv->slot_pos && p->seqs[i].pos0 >= kv->n_slots)) {
            return -EINVAL;
        }
    }
    pool_run(ref->pool, units, &job);
    return 0;
}
