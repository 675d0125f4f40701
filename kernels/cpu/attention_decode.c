/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows: memory is what counts, each K and V is read once.
 *
 * A unit is one row, one head group and one chunk of KV_CHUNK slots: all query heads of the group
 * go over the chunk's K pages, then softmax within the chunk, then over its V pages (which the
 * first pass has asked the memory for). It leaves a partial result: maximum, sum and weighted V of
 * each head. A second step merges a head's chunks in order. Chunks depend on n_slots alone, so
 * neither the number of threads nor the batch shows in the bits. With a policy that observes, a
 * third step adds each chunk's weights to the scores, rows in order.
 *
 * Rows go in waves as large as scratch allows; barriers separate the steps. */

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"

/* What a unit leaves of one head; sums (v_pad) follow at KV_PARTIAL_HEAD. */
struct partial {
    float max; /* CPU_KV_MASKED: saw nothing */
    float sum;
    float seen_max; /* of the observed weights, where they have their own */
    float seen_sum;
    float factor; /* from merge: what the chunk's observed weights are to be multiplied with */
};

/* None for unrotated keys: att_prefill() takes those rows. */
static int32_t n_chunks(const struct ops_seq *s)
{
    return s->kv.layout->k_unrotated ? 0 : (s->kv.n_slots + KV_CHUNK - 1) / KV_CHUNK;
}

static int32_t seq_of(const struct ops_attention *p, int32_t row)
{
    int32_t i = 0;

    while (row >= p->seqs[i].row0 + p->seqs[i].n_rows) {
        i++;
    }
    return i;
}

/* Partial of row `w` of the wave. */
static struct partial *partial_of(const struct att_job *job, const struct kv_scratch *s, int32_t w,
                                  int32_t head, int32_t chunk)
{
    size_t chunks = ((size_t)job->cpu->limits.max_slots + KV_CHUNK - 1) / KV_CHUNK;
    size_t size = KV_PARTIAL_HEAD + (size_t)kv_page_pad(job->cpu->limits.max_head_dim);
    size_t row = (size_t)w * (size_t)job->cpu->limits.max_heads + (size_t)head;

    return (struct partial *)(void *)(s->partial + (row * chunks + (size_t)chunk) * size);
}

/* Observed weights of row `w` of the wave: (n_q, slots in whole chunks). */
static float *seen_of(const struct att_job *job, const struct kv_scratch *s, int32_t w,
                      int32_t head, int32_t slot, size_t *ret_ld)
{
    size_t chunks = ((size_t)job->cpu->limits.max_slots + KV_CHUNK - 1) / KV_CHUNK;

    *ret_ld = chunks * KV_CHUNK;
    return s->seen +
           ((size_t)w * (size_t)job->cpu->limits.max_heads + (size_t)head) * chunks * KV_CHUNK +
           (size_t)slot;
}

/* ---- step 1: partial results ------------------------------------------------------------------
 */

struct chunk {
    struct att_unit u;
    const struct att_job *job;
    const struct kv_scratch *scratch;
    enum att_mode mode;
    int32_t w;   /* row of the wave */
    int32_t row; /* row of the sequence */
    int32_t index;
    int32_t slot0;
    int32_t n_pages;
    uint8_t *pages[KV_CHUNK_PAGES];
    bool masked[KV_CHUNK_PAGES];
};

static float *x_of(const struct chunk *c, int32_t head, int32_t page)
{
    return c->u.t.x + (size_t)head * KV_CHUNK + (size_t)page * OPS_PAGE_SLOTS;
}

static void find_pages(struct chunk *c)
{
    const struct ops_kv *kv = &c->u.seq->kv;
    bool positions = c->u.p->alibi_max > 0 || c->mode != ATT_UNSEEN;
    int32_t left = kv->n_slots - c->slot0;

    left = left < KV_CHUNK ? left : KV_CHUNK;
    c->n_pages = (left + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    for (int32_t i = 0; i < c->n_pages; i++) {
        int32_t slot = c->slot0 + i * OPS_PAGE_SLOTS;

        c->pages[i] = kv_page_of(kv, c->u.group, slot);
        c->masked[i] = att_is_masked(&c->u, c->row, slot);
        if (c->masked[i] || positions) {
            att_positions(&c->u, slot, c->u.t.pos + i * OPS_PAGE_SLOTS);
        }
    }
}

/* What is read after a head's K of a page: the next head or page, and then V. */
static const uint8_t *after_k(const struct chunk *c, int32_t page, int32_t head)
{
    const struct ops_kv_layout *l = c->u.l;

    if (head + 1 < l->k_heads) {
        return kv_page_k(l, c->pages[page], head + 1);
    }
    return page + 1 < c->n_pages ? kv_page_k(l, c->pages[page + 1], 0)
                                 : kv_page_v(l, c->pages[0], 0);
}

/* The same for V; the last page is followed by the next chunk, which this thread may get. */
static const uint8_t *after_v(const struct chunk *c, int32_t page, int32_t head)
{
    const struct ops_kv_layout *l = c->u.l;
    int32_t next = c->slot0 + KV_CHUNK;

    if (head + 1 < l->v_heads) {
        return kv_page_v(l, c->pages[page], head + 1);
    }
    if (page + 1 < c->n_pages) {
        return kv_page_v(l, c->pages[page + 1], 0);
    }
    return next < c->u.seq->kv.n_slots
               ? kv_page_k(l, kv_page_of(&c->u.seq->kv, c->u.group, next), 0)
               : NULL;
}

/* Logits of all heads; their maxima to max. */
static void keys(const struct chunk *c, float *max)
{
    const struct att_unit *u = &c->u;
    const float *q = u->p->q + (size_t)(u->seq->row0 + c->row) * (size_t)u->p->ldq +
                     (size_t)(u->group * u->n_heads) * (size_t)u->l->k_dim;
    cpu_kv_qk_fn *qk = cpu_kv_qk(&u->cpu->table, u->l->k_type);

    for (int32_t h = 0; h < u->n_heads; h++) {
        max[h] = CPU_KV_MASKED;
    }
    for (int32_t i = 0; i < c->n_pages; i++) {
        const int32_t *pos = u->t.pos + i * OPS_PAGE_SLOTS;

        for (int32_t k = 0; k < u->l->k_heads; k++) {
            qk(kv_page_k(u->l, c->pages[i], k), u->l->k_dim,
               q + (size_t)(k * u->share_k) * (size_t)u->l->k_dim, (size_t)u->l->k_dim, u->share_k,
               x_of(c, k * u->share_k, i), KV_CHUNK, after_k(c, i, k));
        }
        for (int32_t h = 0; h < u->n_heads; h++) {
            float m = att_logits(u, c->row, h, kv_page_k_scale(u->l, c->pages[i], h / u->share_k),
                                 pos, pos, c->masked[i], x_of(c, h, i));

            max[h] = m > max[h] ? m : max[h];
        }
    }
}

/* A policy's own logits of one head, kept where its weights will be. */
static void temper(const struct chunk *c, int32_t head, struct partial *out)
{
    const struct att_unit *u = &c->u;
    float tau = att_tau(u, c->row);
    size_t ld;
    float *seen = seen_of(c->job, c->scratch, c->w, u->group * u->n_heads + head, c->slot0, &ld);
    float max = CPU_KV_MASKED;
    float sum = 0;

    for (int32_t i = 0; i < c->n_pages; i++) {
        const float *noise = att_noise(u, c->mode, c->row, head, u->t.pos + i * OPS_PAGE_SLOTS);
        float m = u->cpu->table.kv_temper(x_of(c, head, i), noise, tau, seen + i * OPS_PAGE_SLOTS);

        max = m > max ? m : max;
    }
    for (int32_t i = 0; i < c->n_pages; i++) {
        sum += u->cpu->table.kv_exp(seen + i * OPS_PAGE_SLOTS, max > CPU_KV_MASKED ? max : 0, NULL,
                                    NULL);
    }
    out->seen_max = max;
    out->seen_sum = sum;
}

/* Exponentials of one head, and what of them is observed. */
static void weights(const struct chunk *c, int32_t head, struct partial *out)
{
    const struct att_unit *u = &c->u;
    float max = out->max > CPU_KV_MASKED ? out->max : 0; /* nothing seen: all become 0 */
    bool keep = c->mode == ATT_SOFTMAX || c->mode == ATT_GUMBEL;
    float *seen = NULL;
    size_t ld;

    out->sum = 0;
    out->seen_max = CPU_KV_MASKED;
    out->seen_sum = 0;
    if (c->mode == ATT_TEMPERED) {
        temper(c, head, out);
    }
    if (keep) {
        seen = seen_of(c->job, c->scratch, c->w, u->group * u->n_heads + head, c->slot0, &ld);
        out->seen_max = out->max;
    }
    for (int32_t i = 0; i < c->n_pages; i++) {
        float *kept = keep ? seen + i * OPS_PAGE_SLOTS : NULL;
        float sum = u->cpu->table.kv_exp(
            x_of(c, head, i), max, kv_page_v_scale(u->l, c->pages[i], head / u->share_v), kept);

        out->sum += sum;
        if (c->mode == ATT_GUMBEL) {
            sum = u->cpu->table.kv_weigh(
                kept, att_noise(u, c->mode, c->row, head, u->t.pos + i * OPS_PAGE_SLOTS));
        }
        if (keep) {
            out->seen_sum += sum;
        }
    }
}

static void values(const struct chunk *c)
{
    const struct att_unit *u = &c->u;
    int32_t pad = kv_page_pad(u->l->v_dim);
    cpu_kv_pv_fn *pv = cpu_kv_pv(&u->cpu->table, u->l->v_type);

    memset(u->t.acc, 0, (size_t)u->n_heads * (size_t)pad * sizeof(float));
    for (int32_t i = 0; i < c->n_pages; i++) {
        int32_t left = u->seq->kv.n_slots - c->slot0 - i * OPS_PAGE_SLOTS;
        int32_t n = left < OPS_PAGE_SLOTS ? left : OPS_PAGE_SLOTS;

        for (int32_t v = 0; v < u->l->v_heads; v++) {
            pv(kv_page_v(u->l, c->pages[i], v), pad, x_of(c, v * u->share_v, i), KV_CHUNK,
               u->share_v, n, u->t.acc + (size_t)(v * u->share_v) * (size_t)pad, after_v(c, i, v));
        }
    }
}

static void chunk_unit(struct chunk *c)
{
    const struct att_unit *u = &c->u;
    int32_t pad = kv_page_pad(u->l->v_dim);
    float *max = u->t.state;

    c->mode = att_mode(u, c->row);
    c->slot0 = c->index * KV_CHUNK;
    find_pages(c);
    keys(c, max);
    for (int32_t h = 0; h < u->n_heads; h++) {
        struct partial *out =
            partial_of(c->job, c->scratch, c->w, u->group * u->n_heads + h, c->index);

        out->max = max[h];
        weights(c, h, out);
    }
    values(c);
    for (int32_t h = 0; h < u->n_heads; h++) {
        struct partial *out =
            partial_of(c->job, c->scratch, c->w, u->group * u->n_heads + h, c->index);

        memcpy((float *)(void *)out + KV_PARTIAL_HEAD, u->t.acc + (size_t)h * (size_t)pad,
               (size_t)u->l->v_dim * sizeof(float));
    }
}

/* ---- step 2: merge ----------------------------------------------------------------------------
 */

static void merge_head(const struct att_job *job, const struct kv_scratch *s, int32_t w,
                       const struct ops_seq *seq, int32_t head)
{
    const struct ops_attention *p = job->p;
    int32_t v_dim = seq->kv.layout->v_dim;
    int32_t n = n_chunks(seq);
    float *out = p->out + (size_t)(job->row0 + w) * (size_t)p->ldo + (size_t)head * (size_t)v_dim;
    float max = CPU_KV_MASKED;
    float seen_max = CPU_KV_MASKED;
    float sum = 0;
    float seen_sum = 0;

    if (seq->kv.layout->k_unrotated) {
        return;
    }
    memset(out, 0, (size_t)v_dim * sizeof(float));
    for (int32_t i = 0; i < n; i++) {
        const struct partial *part = partial_of(job, s, w, head, i);

        max = part->max > max ? part->max : max;
        seen_max = part->seen_max > seen_max ? part->seen_max : seen_max;
    }
    for (int32_t i = 0; i < n && max > CPU_KV_MASKED; i++) {
        struct partial *part = partial_of(job, s, w, head, i);
        const float *acc = (const float *)(const void *)part + KV_PARTIAL_HEAD;
        float scale = exp2f(part->max - max);

        part->factor = exp2f(part->seen_max - seen_max);
        sum += scale * part->sum;
        seen_sum += part->factor * part->seen_sum;
        for (int32_t d = 0; d < v_dim; d++) {
            out[d] += scale * acc[d];
        }
    }
    for (int32_t d = 0; d < v_dim && sum > 0; d++) {
        out[d] /= sum;
    }
    for (int32_t i = 0; i < n; i++) {
        struct partial *part = partial_of(job, s, w, head, i);

        part->factor = seen_sum > 0 ? part->factor / seen_sum : 0;
    }
}

/* ---- step 3: scores ---------------------------------------------------------------------------
 */

/* One chunk of one group: all rows of the wave that belong to the sequence of row `w0`, in order.
 */
static void score_chunk(const struct att_job *job, const struct kv_scratch *s, int32_t w0,
                        int32_t group, int32_t index)
{
    int32_t seq = seq_of(job->p, job->row0 + w0);
    struct att_unit u = att_unit_make(job->cpu, job->p, seq, group, s->t);
    int32_t slot0 = index * KV_CHUNK;
    int32_t n = u.seq->kv.n_slots - slot0 < KV_CHUNK ? u.seq->kv.n_slots - slot0 : KV_CHUNK;
    int32_t end = u.seq->row0 + u.seq->n_rows;
    float weight;

    if (!u.observe) {
        return;
    }
    weight = u.observe->row_weight0;
    for (int32_t row = u.observe->row_first; row < u.seq->n_rows; row++) {
        int32_t w = u.seq->row0 + row - job->row0;

        if (w >= 0 && w < job->n_rows && u.seq->row0 + row < end) {
            float *f = u.t.state;
            size_t ld;
            const float *seen = seen_of(job, s, w, group * u.n_heads, slot0, &ld);

            if (row == u.observe->row_first) {
                att_damp(&u, slot0, n);
            }
            for (int32_t h = 0; h < u.n_heads; h++) {
                f[h] = partial_of(job, s, w, group * u.n_heads + h, index)->factor;
            }
            for (int32_t i = 0; i < n; i += OPS_PAGE_SLOTS) {
                att_score(&u, slot0 + i, seen + i, ld, f, weight);
            }
        }
        weight *= u.observe->row_growth;
    }
}

/* ---- units ------------------------------------------------------------------------------------
 */

/* Unit of (row of the wave, group, chunk); with `by_seq` only the first row of each sequence in the
 * wave has units. False: no such unit. */
static bool find_chunk(const struct att_job *job, int32_t unit, bool by_seq, int32_t *ret_w,
                       int32_t *ret_group, int32_t *ret_chunk)
{
    int32_t before = -1;

    for (int32_t w = 0; w < job->n_rows; w++) {
        int32_t seq = seq_of(job->p, job->row0 + w);
        int32_t n = n_chunks(&job->p->seqs[seq]);
        int32_t n_units = n * job->p->seqs[seq].kv.layout->n_groups;

        if (by_seq && seq == before) {
            continue;
        }
        before = seq;
        if (unit < n_units) {
            *ret_w = w;
            *ret_group = unit / n;
            *ret_chunk = unit % n;
            return true;
        }
        unit -= n_units;
    }
    return false;
}

static void wave(void *arg, int tid, int n_threads)
{
    struct att_job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    int32_t w;
    int32_t group;
    int32_t index;

    (void)n_threads;
    while (find_chunk(job, pool_counter_take(&job->next), false, &w, &group, &index)) {
        int32_t seq = seq_of(job->p, job->row0 + w);
        struct chunk c = {
            .u = att_unit_make(job->cpu, job->p, seq, group, s.t),
            .job = job,
            .scratch = &s,
            .w = w,
            .row = job->row0 + w - job->p->seqs[seq].row0,
            .index = index,
        };

        chunk_unit(&c);
    }
    pool_barrier(job->cpu->pool, tid); /* all partial results are written */
    for (int32_t i; (i = pool_counter_take(&job->next_merge)) < job->n_rows * job->p->n_q;) {
        w = i / job->p->n_q;
        merge_head(job, &s, w, &job->p->seqs[seq_of(job->p, job->row0 + w)], i % job->p->n_q);
    }
    if (!job->p->observe) {
        return;
    }
    pool_barrier(job->cpu->pool, tid); /* all factors are written */
    while (find_chunk(job, pool_counter_take(&job->next_score), true, &w, &group, &index)) {
        score_chunk(job, &s, w, group, index);
    }
}

int att_decode(struct cpu *cpu, const struct ops_attention *p)
{
    int32_t size = cpu_kv_scratch(cpu, 0).wave;

    for (int32_t row = 0; row < p->rows.n_decode; row += size) {
        int32_t left = p->rows.n_decode - row;
        struct att_job job = {.cpu = cpu, .p = p, .row0 = row, .n_rows = left < size ? left : size};

        pool_run(cpu->pool, wave, &job);
    }
    return 0;
}
