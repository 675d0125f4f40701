/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows that select (ops.h struct ops_select; kernels/ref/select.c says exactly
 * what).
 *
 * Three steps with barriers between them. Of each row and group: the dims that rank, and the
 * query's values in them, packed. Of each chunk of slots: logits from those dims (all of them for
 * top-k V), masked, kept in scratch with their maximum. Of each row and group again: weights, what
 * a policy observes of them, the choice, and attention over what was chosen (attention_chosen.c).
 * Each number is computed by one unit in a fixed order, so neither threads nor batch show in the
 * bits.
 *
 * Rows go in waves as large as scratch allows. Sequences that read everything go through
 * att_decode() as a batch of their own. */

#include "kernels/cpu/attention_select.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK = 512, CHUNK_PAGES = CHUNK / OPS_PAGE_SLOTS };

struct step {
    const struct att_job *job;
    const struct kv_scratch *s;
    int32_t seq;
    int32_t w;   /* row of the wave */
    int32_t row; /* row of the sequence */
    int32_t group;
};

static bool selects(const struct ops_attention *p, int32_t seq)
{
    return p->seqs[seq].row0 < p->rows.n_decode && p->select[seq].kind != OPS_SELECT_ALL;
}

static bool observes(const struct ops_attention *p, int32_t seq)
{
    return p->observe && p->observe[seq].row_first < p->seqs[seq].n_rows && p->seqs[seq].kv.score;
}

/* None where there is nothing to rank. */
static int32_t n_chunks(const struct ops_attention *p, int32_t seq)
{
    return p->select[seq].kind == OPS_SELECT_GIVEN ? 0
                                                   : (p->seqs[seq].kv.n_slots + CHUNK - 1) / CHUNK;
}

static struct att_select make_unit(const struct step *st)
{
    const struct cpu *cpu = st->job->cpu;
    const struct kv_select *k = &st->s->select;
    size_t heads = (size_t)cpu->limits.max_heads;
    size_t head0 = (size_t)st->w * heads;
    struct att_select a = {
        .u = att_unit_make(cpu, st->job->p, st->seq, st->group, &st->s->t),
        .select = &st->job->p->select[st->seq],
        .row = st->row,
        .ld = k->ld,
        .ld_q = k->pad,
        .ld_max = k->ld / CHUNK + 1,
    };

    head0 += (size_t)(st->group * a.u.n_heads);
    a.n_slots = a.u.seq->kv.n_slots;
    a.row_pos = a.u.seq->pos0 + st->row;
    a.x = k->x + head0 * k->ld;
    a.seen = k->seen + (a.u.observe ? head0 * k->ld : 0);
    a.max = k->max + head0 * a.ld_max;
    a.q = k->q + head0 * k->pad;
    a.dims = k->dims + head0 * k->pad;
    a.n_dims = a.select->kind == OPS_SELECT_SPARQ ? a.select->r : a.u.l->k_dim;
    return a;
}

const float *att_select_query(const struct att_select *a, int32_t head)
{
    return a->u.p->q + (size_t)(a->u.seq->row0 + a->row) * (size_t)a->u.p->ldq +
           (size_t)(a->u.group * a->u.n_heads + head) * (size_t)a->u.l->k_dim;
}

/* ---- step 1: dims -------------------------------------------------------------------------- */

/* The r largest of n sums, ascending by dim; ties go to the lower dim. */
static void choose_dims(const struct att_select *a, const float *sum, int32_t n, int32_t *dims)
{
    const struct cpu_table *t = &a->u.cpu->table;
    int32_t r = a->select->r;
    int32_t lo = 0;
    int32_t hi = 0x7f800000;
    int32_t n_dims = 0;
    int32_t n_above;

    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;

        if (t->kv_count(sum, kv_page_pad(n), mid) >= r) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    n_above = t->kv_count(sum, kv_page_pad(n), hi);
    for (int32_t d = 0; d < n; d++) {
        int32_t bits;

        memcpy(&bits, &sum[d], sizeof(bits));
        if (bits >= hi || (bits == lo && n_above < r)) {
            n_above += bits < hi;
            dims[n_dims++] = d;
        }
    }
}

/* Packs the query heads of one K head: their values in its dims, times 1 / sqrt(share). */
static void pack_query(const struct att_select *a, int32_t k_head)
{
    const struct att_unit *u = &a->u;
    int32_t n = u->l->k_dim;
    int32_t *dims = a->dims + (size_t)(k_head * u->share_k) * a->ld_q;
    float *sum = u->t->row;

    memset(sum, 0, (size_t)n * sizeof(float));
    for (int32_t d = n; d < kv_page_pad(n); d++) {
        sum[d] = -1;
    }
    for (int32_t h = k_head * u->share_k; h < (k_head + 1) * u->share_k; h++) {
        for (int32_t d = 0; d < n; d++) {
            sum[d] += fabsf(att_select_query(a, h)[d]);
        }
    }
    choose_dims(a, sum, n, dims);
    for (int32_t h = k_head * u->share_k; h < (k_head + 1) * u->share_k; h++) {
        const float *q = att_select_query(a, h);
        float *to = a->q + (size_t)h * a->ld_q;
        float all = 0;
        float some = 0;
        float shrink;

        for (int32_t d = 0; d < n; d++) {
            all += fabsf(q[d]);
        }
        for (int32_t i = 0; i < a->n_dims; i++) {
            some += fabsf(q[dims[i]]);
        }
        shrink = some > 0 && a->n_dims < n ? 1.0f / sqrtf(some / all) : 1.0f;
        for (int32_t i = 0; i < a->n_dims; i++) {
            to[i] = q[dims[i]] * shrink;
        }
    }
}

static void pack(const struct att_select *a)
{
    if (a->select->kind == OPS_SELECT_GIVEN) {
        return;
    }
    if (a->select->kind != OPS_SELECT_SPARQ) {
        for (int32_t h = 0; h < a->u.n_heads; h++) {
            memcpy(a->q + (size_t)h * a->ld_q, att_select_query(a, h),
                   (size_t)a->u.l->k_dim * sizeof(float));
        }
        return;
    }
    for (int32_t k = 0; k < a->u.l->k_heads; k++) {
        pack_query(a, k);
    }
}

/* ---- step 2: logits of all slots ------------------------------------------------------------- */

/* What ranking reads of a page's K head, its type and scales. */
static const void *ranked_k(const struct att_select *a, uint8_t *page, int32_t head)
{
    return a->select->kind == OPS_SELECT_SPARQ && a->u.l->rank == OPS_RANK_8
               ? kv_page_rank(a->u.l, page, head)
               : kv_page_k(a->u.l, page, head);
}

static const uint16_t *ranked_scale(const struct att_select *a, uint8_t *page, int32_t head)
{
    return a->select->kind == OPS_SELECT_SPARQ && a->u.l->rank == OPS_RANK_8
               ? kv_page_rank_scale(a->u.l, page, head)
               : kv_page_k_scale(a->u.l, page, head);
}

static void chunk(const struct att_select *a, int32_t index)
{
    const struct att_unit *u = &a->u;
    const struct ops_kv *kv = &u->seq->kv;
    bool rank8 = a->select->kind == OPS_SELECT_SPARQ && u->l->rank == OPS_RANK_8;
    cpu_kv_dims_fn *fn = cpu_kv_dims(&u->cpu->table, rank8 ? OPS_KV_FP8 : u->l->k_type);
    bool positions = u->p->alibi_max > 0;
    int32_t end = (index + 1) * CHUNK < a->n_slots ? (index + 1) * CHUNK : a->n_slots;

    for (int32_t h = 0; h < u->n_heads; h++) {
        a->max[(size_t)h * a->ld_max + (size_t)index] = CPU_KV_MASKED;
    }
    for (int32_t slot = index * CHUNK; slot < end; slot += OPS_PAGE_SLOTS) {
        uint8_t *page = kv_page_of(kv, u->group, slot);
        uint8_t *next = slot + OPS_PAGE_SLOTS < a->n_slots
                            ? kv_page_of(kv, u->group, slot + OPS_PAGE_SLOTS)
                            : NULL;
        bool masked = att_is_masked(u, a->row, slot);
        int32_t *pos = u->t->pos;

        for (int32_t k = 0; k < u->l->k_heads; k++) {
            size_t h = (size_t)(k * u->share_k);

            fn(ranked_k(a, page, k),
               a->select->kind == OPS_SELECT_SPARQ ? a->dims + h * a->ld_q : NULL, a->n_dims,
               a->q + h * a->ld_q, a->ld_q, u->share_k, 0, OPS_PAGE_SLOTS,
               a->x + h * a->ld + (size_t)slot, a->ld, next ? ranked_k(a, next, k) : NULL);
        }
        if (masked || positions) {
            att_positions(u, slot, pos);
        }
        for (int32_t h = 0; h < u->n_heads; h++) {
            float *max = &a->max[(size_t)h * a->ld_max + (size_t)index];
            float m = att_logits(u, a->row, h, ranked_scale(a, page, h / u->share_k), pos, pos,
                                 masked, a->x + (size_t)h * a->ld + (size_t)slot);

            *max = m > *max ? m : *max;
        }
    }
}

/* ---- units ---------------------------------------------------------------------------------- */

/* Row `w` of the wave: its sequence and its row in that. Rows of sequences that select are counted.
 */
static bool find_row(const struct att_job *job, int32_t w, struct step *st)
{
    int32_t left = job->row0 + w;

    for (int32_t i = 0; i < job->p->n_seqs && w < job->n_rows; i++) {
        int32_t n = selects(job->p, i) ? job->p->seqs[i].n_rows : 0;

        if (left < n) {
            st->seq = i;
            st->row = left;
            st->w = w;
            return true;
        }
        left -= n;
    }
    return false;
}

/* Unit of (row, group) or (row, group, chunk). False: there is none. */
static bool find_unit(const struct att_job *job, int32_t unit, bool chunks, struct step *st,
                      int32_t *ret_chunk)
{
    for (int32_t w = 0; find_row(job, w, st); w++) {
        const struct ops_seq *seq = &job->p->seqs[st->seq];
        int32_t n = chunks ? n_chunks(job->p, st->seq) : 1;

        if (unit < n * seq->kv.layout->n_groups) {
            st->group = unit / n;
            *ret_chunk = unit % n;
            return true;
        }
        unit -= n * seq->kv.layout->n_groups;
    }
    return false;
}

static void wave(void *arg, int tid, int n_threads)
{
    struct att_job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    struct step st = {.job = job, .s = &s};
    int32_t index;

    (void)n_threads;
    while (find_unit(job, pool_counter_take(&job->next), false, &st, &index)) {
        struct att_select a = make_unit(&st);

        pack(&a);
    }
    pool_barrier(job->cpu->pool, tid); /* packed queries and dims are written */
    while (find_unit(job, pool_counter_take(&job->next_merge), true, &st, &index)) {
        struct att_select a = make_unit(&st);

        chunk(&a, index);
    }
    pool_barrier(job->cpu->pool, tid); /* logits and maxima are written */
    while (find_unit(job, pool_counter_take(&job->next_score), false, &st, &index)) {
        struct att_select a = make_unit(&st);

        a.n_chunks = n_chunks(job->p, st.seq);
        att_select_attend(&a);
    }
}

/* ---- the operation -------------------------------------------------------------------------- */

static bool valid(const struct cpu *cpu, const struct ops_attention *p, int32_t seq)
{
    const struct ops_select *s = &p->select[seq];
    const struct ops_kv *kv = &p->seqs[seq].kv;

    if (s->kind == OPS_SELECT_GIVEN) {
        return cpu->limits.select && !kv->layout->k_unrotated && s->chosen && !s->packed &&
               p->seqs[seq].n_rows == 1 && !observes(p, seq);
    }
    return cpu->limits.select && !kv->layout->k_unrotated && s->k >= 1 && s->local >= 0 &&
           s->local <= s->k && (s->kind != OPS_SELECT_SPARQ || s->r >= 1) &&
           (s->kind != OPS_SELECT_SPARQ || s->r <= kv->layout->k_dim) && (!s->mean || kv->v_sum) &&
           (!observes(p, seq) || p->seqs[seq].n_rows == 1); /* else rows would score out of order */
}

/* Decode rows of sequences [from, end), which read everything. */
static int dense(struct cpu *cpu, const struct ops_attention *p, int32_t from, int32_t end)
{
    struct kv_scratch s = cpu_kv_scratch(cpu, 0);
    struct ops_attention some = *p;
    int32_t row0 = p->seqs[from].row0;

    some.rows.n = 0;
    for (int32_t i = from; i < end; i++) {
        s.select.seqs[i - from] = p->seqs[i];
        s.select.seqs[i - from].row0 -= row0;
        some.rows.n += p->seqs[i].n_rows;
    }
    some.rows.n_decode = some.rows.n;
    some.q += (size_t)row0 * (size_t)p->ldq;
    some.out += (size_t)row0 * (size_t)p->ldo;
    some.seqs = s.select.seqs;
    some.n_seqs = end - from;
    some.observe = p->observe ? p->observe + from : NULL;
    some.select = NULL;
    return att_decode(cpu, &some);
}

int att_select(struct cpu *cpu, const struct ops_attention *p)
{
    int32_t size = cpu_kv_scratch(cpu, 0).select.wave;
    int32_t n_rows = 0;
    int r = 0;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        if (selects(p, i)) {
            if (!valid(cpu, p, i)) {
                return -EINVAL;
            }
            n_rows += p->seqs[i].n_rows;
        }
    }
    if (n_rows == 0) {
        return att_decode(cpu, p);
    }
    for (int32_t row = 0; row < n_rows; row += size) {
        int32_t left = n_rows - row;
        struct att_job job = {.cpu = cpu, .p = p, .row0 = row, .n_rows = left < size ? left : size};

        pool_run(cpu->pool, wave, &job);
    }
    for (int32_t i = 0; !r && i < p->n_seqs && p->seqs[i].row0 < p->rows.n_decode; i++) {
        int32_t from = i;

        while (i < p->n_seqs && p->seqs[i].row0 < p->rows.n_decode && !selects(p, i)) {
            i++;
        }
        r = i > from ? dense(cpu, p, from, i) : 0;
    }
    return r;
}
