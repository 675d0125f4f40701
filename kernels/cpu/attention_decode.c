/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows: memory is what counts, each K and V is read once.
 *
 * A unit is one row, one head group and one chunk of KV_CHUNK slots: all query heads of the group
 * go over the chunk's K pages, then softmax within the chunk, then over its V pages. It leaves a
 * partial result: maximum, sum and weighted V of each head. Who finishes the last chunk of a row
 * and group merges its heads' chunks, in order. Chunks depend on n_slots alone, so neither the
 * number of threads nor the batch shows in the bits. With a policy that observes, a second step
 * adds each chunk's weights to the scores, rows in order.
 *
 * Units are shared out in order, so a thread goes through memory as one stream: while it reads a
 * block of K or V it asks for the next ones, of the next chunk too, and at the end of its share for
 * the weights of the next matmul. Rows go in waves as large as scratch allows. */

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_prefetch.h"
#include "kernels/kv_latest.h"

/* What a unit leaves of one head; sums (v_pad) follow at KV_PARTIAL_HEAD. */
struct partial {
    float max; /* CPU_KV_MASKED: saw nothing */
    float sum;
    float seen_max; /* of the observed weights, where they have their own */
    float seen_sum;
    float factor; /* from merge: what the chunk's observed weights are to be multiplied with */
};

/* None where att_prefill() takes the rows. */
static int32_t n_chunks(const struct ops_seq *s)
{
    return att_by_page(s->kv.layout) ? 0 : (s->kv.n_slots + KV_CHUNK - 1) / KV_CHUNK;
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

/* Where a page's parts begin, in bytes: found once a chunk, each costs some calls. */
struct parts {
    size_t k_bytes; /* of one head */
    size_t v;
    size_t v_bytes;
    size_t k_scale; /* 0: the type has none */
    size_t v_scale;
};

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
    struct parts parts;
    uint8_t *pages[KV_CHUNK_PAGES];
    bool masked[KV_CHUNK_PAGES];
    bool latest[KV_CHUNK_PAGES]; /* some slots are read from ops_kv.latest */
};

static float *x_of(const struct chunk *c, int32_t head, int32_t page)
{
    return c->u.t->x + (size_t)head * KV_CHUNK + (size_t)page * OPS_PAGE_SLOTS;
}

static struct parts find_parts(const struct ops_kv_layout *l, uint8_t *page)
{
    const uint16_t *k_scale = kv_page_k_scale(l, page, 0);
    const uint16_t *v_scale = kv_page_v_scale(l, page, 0);

    return (struct parts){
        .k_bytes = kv_page_k_bytes(l),
        .v = (size_t)(kv_page_v(l, page, 0) - page),
        .v_bytes = kv_page_v_bytes(l),
        .k_scale = k_scale ? (size_t)((const uint8_t *)k_scale - page) : 0,
        .v_scale = v_scale ? (size_t)((const uint8_t *)v_scale - page) : 0,
    };
}

/* The scales of a head, which begin `at` bytes into the page. */
static const uint16_t *scales(const struct chunk *c, int32_t page, size_t at, int32_t head)
{
    return at ? (const uint16_t *)(const void *)(c->pages[page] + at) +
                    (size_t)head * OPS_PAGE_SLOTS
              : NULL;
}

/* Is slot s of page i one of the latest tokens, which are kept in 8 bits where pages have 4
 * (kernels/kv_latest.h)? */
static bool is_latest(const struct chunk *c, int32_t i, int32_t s)
{
    return kv_latest_has(&c->u.seq->kv, c->u.seq->pos0 + c->row,
                         c->u.t->pos[i * OPS_PAGE_SLOTS + s]);
}

/* May some slot of page i be? Without a list of positions slot and position are the same. */
static bool has_latest(const struct chunk *c, int32_t i)
{
    const struct ops_kv *kv = &c->u.seq->kv;
    int32_t row_pos = c->u.seq->pos0 + c->row;
    int32_t slot = c->slot0 + i * OPS_PAGE_SLOTS;
    const int32_t *pos = c->u.t->pos + i * OPS_PAGE_SLOTS;
    bool any = false;

    if (!kv->latest || !kv->slot_pos) {
        return kv->latest && slot + OPS_PAGE_SLOTS > row_pos - OPS_LATEST && slot <= row_pos;
    }
    for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
        any |= (pos[s] > row_pos - OPS_LATEST) & (pos[s] <= row_pos);
    }
    return any;
}

static void find_pages(struct chunk *c)
{
    const struct ops_kv *kv = &c->u.seq->kv;
    bool positions = c->u.p->alibi_max > 0 || c->mode != ATT_UNSEEN || kv->latest;
    int32_t left = kv->n_slots - c->slot0;

    left = left < KV_CHUNK ? left : KV_CHUNK;
    c->n_pages = (left + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    for (int32_t i = 0; i < c->n_pages; i++) {
        int32_t slot = c->slot0 + i * OPS_PAGE_SLOTS;

        c->pages[i] = kv_page_of(kv, c->u.group, slot);
        c->masked[i] = att_is_masked(&c->u, c->row, slot);
        if (c->masked[i] || positions) {
            att_positions(&c->u, slot, c->u.t->pos + i * OPS_PAGE_SLOTS);
        }
        c->latest[i] = has_latest(c, i);
    }
    c->parts = find_parts(c->u.l, c->pages[0]);
}

/* ---- the latest tokens ---- */

/* Their dot products with one K head replace those with the page's. */
static void latest_keys(const struct chunk *c, int32_t i, int32_t k_head, const float *q)
{
    const struct att_unit *u = &c->u;
    float *x = u->t->acc; /* not in use yet */

    for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
        if (is_latest(c, i, s)) {
            kv_latest_load(
                kv_latest_k(&u->seq->kv, u->group, u->t->pos[i * OPS_PAGE_SLOTS + s], k_head),
                u->t->row, u->l->k_dim);
            for (int32_t d = 0; d < u->l->k_dim; d++) {
                u->t->k[d * OPS_PAGE_SLOTS + s] = u->t->row[d];
            }
        }
    }
    u->cpu->table.qk_f32(u->t->k, u->l->k_dim, q, (size_t)u->l->k_dim, u->share_k, x,
                         OPS_PAGE_SLOTS, NULL);
    for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
        for (int32_t r = 0; r < u->share_k && is_latest(c, i, s); r++) {
            x_of(c, k_head * u->share_k + r, i)[s] = x[r * OPS_PAGE_SLOTS + s];
        }
    }
}

/* Adds their part of one V head; the page's own gets no weight. */
static void latest_values(const struct chunk *c, int32_t i, int32_t v_head, int32_t pad)
{
    const struct att_unit *u = &c->u;

    for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
        if (!is_latest(c, i, s)) {
            continue;
        }
        kv_latest_load(
            kv_latest_v(&u->seq->kv, u->group, u->t->pos[i * OPS_PAGE_SLOTS + s], v_head),
            u->t->row, u->l->v_dim);
        for (int32_t r = 0; r < u->share_v; r++) {
            float *weight = x_of(c, v_head * u->share_v + r, i) + s;
            float *acc = u->t->acc + (size_t)(v_head * u->share_v + r) * (size_t)pad;

            for (int32_t d = 0; d < u->l->v_dim; d++) {
                acc[d] += *weight * u->t->row[d];
            }
            *weight = 0;
        }
    }
}

/* ---- the unit ---- */

static const float *query_of(const struct chunk *c)
{
    const struct att_unit *u = &c->u;

    return u->p->q + (size_t)(u->seq->row0 + c->row) * (size_t)u->p->ldq +
           (size_t)(u->group * u->n_heads) * (size_t)u->l->k_dim;
}

/* The row and group's queries in the form that qk reads, for all chunks that the thread goes over
 * one after the other. */
static void ready_queries(const struct chunk *c)
{
    const struct att_unit *u = &c->u;
    cpu_kv_query_fn *query = cpu_kv_query(&u->cpu->table, u->l->k_type);
    size_t pad = (size_t)kv_page_pad(u->l->k_dim);

    for (int32_t h = 0; h < u->n_heads && query; h++) {
        query(query_of(c) + (size_t)h * (size_t)u->l->k_dim, u->l->k_dim,
              u->t->q + (size_t)h * pad);
    }
}

/* Logits of all heads; their maxima to max. */
static void keys(const struct chunk *c, struct att_prefetch *ahead, float *max)
{
    const struct att_unit *u = &c->u;
    const bool readied = cpu_kv_query(&u->cpu->table, u->l->k_type) != NULL;
    const float *q = readied ? u->t->q : query_of(c);
    const size_t ldq = readied ? (size_t)kv_page_pad(u->l->k_dim) : (size_t)u->l->k_dim;
    cpu_kv_qk_fn *qk = cpu_kv_qk(&u->cpu->table, u->l->k_type);

    for (int32_t h = 0; h < u->n_heads; h++) {
        max[h] = CPU_KV_MASKED;
    }
    for (int32_t i = 0; i < c->n_pages; i++) {
        const int32_t *pos = u->t->pos + i * OPS_PAGE_SLOTS;

        for (int32_t k = 0; k < u->l->k_heads; k++) {
            qk(c->pages[i] + (size_t)k * c->parts.k_bytes, u->l->k_dim,
               q + (size_t)(k * u->share_k) * ldq, ldq, u->share_k, x_of(c, k * u->share_k, i),
               KV_CHUNK, ahead->on ? &ahead->a : NULL);
            if (c->latest[i] && ops_kv_in_four_bits(u->l->k_type)) {
                latest_keys(c, i, k, query_of(c) + (size_t)(k * u->share_k) * (size_t)u->l->k_dim);
            }
        }
        for (int32_t h = 0; h < u->n_heads; h++) {
            float m = att_logits(u, c->row, h, scales(c, i, c->parts.k_scale, h / u->share_k), pos,
                                 pos, c->masked[i], x_of(c, h, i));

            max[h] = m > max[h] ? m : max[h];
        }
    }
}

/* A policy's own logits of one head, kept where its weights will be. */
static void temper(const struct chunk *c, int32_t head, struct att_prefetch *ahead,
                   struct partial *out)
{
    const struct att_unit *u = &c->u;
    float tau = att_tau(u, c->row);
    size_t ld;
    float *seen = seen_of(c->job, c->scratch, c->w, u->group * u->n_heads + head, c->slot0, &ld);
    float max = CPU_KV_MASKED;
    float sum = 0;

    for (int32_t i = 0; i < c->n_pages; i++) {
        att_ask(ahead, ahead->soft / 2);
        const float *noise = att_noise(u, c->mode, c->row, head, u->t->pos + i * OPS_PAGE_SLOTS);
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
static void weights(const struct chunk *c, int32_t head, struct att_prefetch *ahead,
                    struct partial *out)
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
        temper(c, head, ahead, out);
    }
    if (keep) {
        seen = seen_of(c->job, c->scratch, c->w, u->group * u->n_heads + head, c->slot0, &ld);
        out->seen_max = out->max;
    }
    for (int32_t i = 0; i < c->n_pages; i++) {
        float *kept = keep ? seen + i * OPS_PAGE_SLOTS : NULL;
        float sum;

        att_ask(ahead, c->mode == ATT_TEMPERED ? ahead->soft - ahead->soft / 2 : ahead->soft);
        if (c->mode == ATT_GUMBEL) {
            out->sum += u->cpu->table.kv_exp_weighed(
                x_of(c, head, i), max, scales(c, i, c->parts.v_scale, head / u->share_v),
                att_noise(u, c->mode, c->row, head, u->t->pos + i * OPS_PAGE_SLOTS), kept, &sum);
        } else {
            sum = u->cpu->table.kv_exp(x_of(c, head, i), max,
                                       scales(c, i, c->parts.v_scale, head / u->share_v), kept);
            out->sum += sum;
        }
        if (keep) {
            out->seen_sum += sum;
        }
    }
}

static void values(const struct chunk *c, struct att_prefetch *ahead)
{
    const struct att_unit *u = &c->u;
    int32_t pad = kv_page_pad(u->l->v_dim);
    cpu_kv_pv_fn *pv = cpu_kv_pv(&u->cpu->table, u->l->v_type);

    memset(u->t->acc, 0, (size_t)u->n_heads * (size_t)pad * sizeof(float));
    for (int32_t i = 0; i < c->n_pages; i++) {
        int32_t left = u->seq->kv.n_slots - c->slot0 - i * OPS_PAGE_SLOTS;
        int32_t n = left < OPS_PAGE_SLOTS ? left : OPS_PAGE_SLOTS;

        for (int32_t v = 0; v < u->l->v_heads; v++) {
            if (c->latest[i] && ops_kv_in_four_bits(u->l->v_type)) {
                latest_values(c, i, v, pad);
            }
            pv(c->pages[i] + c->parts.v + (size_t)v * c->parts.v_bytes, pad,
               x_of(c, v * u->share_v, i), KV_CHUNK, u->share_v, n,
               u->t->acc + (size_t)(v * u->share_v) * (size_t)pad, ahead->on ? &ahead->a : NULL);
        }
    }
}

static struct att_span span_of(const struct chunk *c)
{
    const struct ops_observe *o = c->mode != ATT_UNSEEN ? c->u.observe : NULL;

    return (struct att_span){
        .kv = &c->u.seq->kv,
        .group = c->u.group,
        .slot0 = c->slot0,
        .n_heads = c->u.n_heads,
        .noisy = o && (o->noise == OPS_NOISE_GUMBEL || o->noise == OPS_NOISE_GAUSS),
    };
}

/* What is read after the chunk is asked for while it is worked on. */
static void look_ahead(const struct chunk *c, const struct chunk *next, const uint8_t *next_weights,
                       struct att_prefetch *ret)
{
    struct att_span now = span_of(c);
    struct att_span then = next ? span_of(next) : now;

    att_look_ahead(&now, next ? &then : NULL, next_weights, ret);
}

static void chunk_unit(struct chunk *c, const struct chunk *next, const uint8_t *next_weights)
{
    const struct att_unit *u = &c->u;
    int32_t pad = kv_page_pad(u->l->v_dim);
    float *max = u->t->state;
    struct att_prefetch ahead;

    find_pages(c);
    look_ahead(c, next, next_weights, &ahead);
    keys(c, &ahead, max);
    for (int32_t h = 0; h < u->n_heads; h++) {
        struct partial *out =
            partial_of(c->job, c->scratch, c->w, u->group * u->n_heads + h, c->index);

        out->max = max[h];
        weights(c, h, &ahead, out);
    }
    values(c, &ahead);
    for (int32_t h = 0; h < u->n_heads; h++) {
        struct partial *out =
            partial_of(c->job, c->scratch, c->w, u->group * u->n_heads + h, c->index);

        memcpy((float *)(void *)out + KV_PARTIAL_HEAD, u->t->acc + (size_t)h * (size_t)pad,
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

    if (att_by_page(seq->kv.layout)) {
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

        sum += scale * part->sum;
        if (p->observe) {
            part->factor = exp2f(part->seen_max - seen_max);
            seen_sum += part->factor * part->seen_sum;
        }
        for (int32_t d = 0; d < v_dim; d++) {
            out[d] += scale * acc[d];
        }
    }
    sum = att_with_sink(p, head, max, sum);
    for (int32_t d = 0; d < v_dim && sum > 0; d++) {
        out[d] /= sum;
    }
    for (int32_t i = 0; i < n && p->observe; i++) {
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
    struct att_unit u = att_unit_make(job->cpu, job->p, seq, group, &s->t);
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
            float *f = u.t->state;
            size_t ld;
            const float *seen = seen_of(job, s, w, group * u.n_heads, slot0, &ld);

            if (row == u.observe->row_first) {
                att_damp(&u, slot0, n);
            }
            for (int32_t h = 0; h < u.n_heads; h++) {
                f[h] = partial_of(job, s, w, group * u.n_heads + h, index)->factor;
            }
            for (int32_t i = 0; i < n; i += OPS_PAGE_SLOTS) {
                att_score(&u, slot0 + i,
                          &(struct cpu_kv_score){seen + i, 0, ld, f, 1, u.n_heads, weight, 1});
            }
        }
        weight *= u.observe->row_growth;
    }
}

/* ---- units ------------------------------------------------------------------------------------
 */

/* Where the units of row `w` of the wave begin. */
struct cursor {
    int32_t w;
    int32_t seq;
    int32_t first;
};

/* Unit of (row of the wave, group, chunk); with `by_seq` only the first row of each sequence in the
 * wave has units. Units are asked for in ascending order most of the time. False: no such unit. */
static bool find_chunk(const struct att_job *job, const struct kv_thread *t, int32_t unit,
                       bool by_seq, struct cursor *at, struct chunk *ret)
{
    if (unit < at->first) {
        *at = (struct cursor){0};
    }
    for (; at->w < job->n_rows; at->w++) {
        const struct ops_seq *s;
        int32_t n;
        int32_t n_units;
        bool counted;

        while (job->row0 + at->w >= job->p->seqs[at->seq].row0 + job->p->seqs[at->seq].n_rows) {
            at->seq++;
        }
        s = &job->p->seqs[at->seq];
        n = n_chunks(s);
        n_units = n * s->kv.layout->n_groups;
        counted = !by_seq || at->w == 0 || job->row0 + at->w == s->row0;
        if (counted && unit < at->first + n_units) {
            int32_t i = unit - at->first;

            *ret = (struct chunk){
                .u = att_unit_make(job->cpu, job->p, at->seq, i / n, t),
                .job = job,
                .w = at->w,
                .row = job->row0 + at->w - s->row0,
                .index = i % n,
                .slot0 = i % n * KV_CHUNK,
            };
            ret->mode = att_mode(&ret->u, ret->row);
            return true;
        }
        at->first += counted ? n_units : 0;
    }
    at->first = INT32_MAX; /* begin anew */
    return false;
}

static int32_t n_units(const struct att_job *job, bool by_seq)
{
    int32_t seq = 0;
    int32_t n = 0;

    for (int32_t w = 0; w < job->n_rows; w++) {
        const struct ops_seq *s;

        while (job->row0 + w >= job->p->seqs[seq].row0 + job->p->seqs[seq].n_rows) {
            seq++;
        }
        s = &job->p->seqs[seq];
        if (!by_seq || w == 0 || job->row0 + w == s->row0) {
            n += n_chunks(s) * s->kv.layout->n_groups;
        }
    }
    return n;
}

static int32_t share_begin(int32_t n, int share, int n_threads)
{
    return (int32_t)((int64_t)n * share / n_threads);
}

/* One thread's way through the units. */
struct walk {
    const struct att_job *job;
    const struct kv_scratch *s;
    const uint8_t *next_weights;
    struct cursor at;
    struct chunk chunks[2]; /* in turn, this one and the next */
    int now;
    int32_t expected; /* the unit that chunks[now] is, which has been asked for; -1 none */
    /* Chunks of one row and group that are done and not counted yet: threads that count each of
     * theirs pass the counters' line to and fro. */
    int32_t n_done;
    int32_t w;
    int32_t group;
    int32_t n_heads;
    const struct ops_seq *seq;
};

/* Counts the chunks that are done; who counts a row and group's last merges its heads. All others'
 * partial results are visible then. */
static void count_done(struct walk *walk)
{
    const struct att_job *job = walk->job;
    int32_t n = walk->n_done;
    atomic_int *done;

    if (n == 0) {
        return;
    }
    walk->n_done = 0;
    done =
        &walk->s->done[(size_t)walk->w * (size_t)job->cpu->limits.max_heads + (size_t)walk->group];
    if (atomic_fetch_add_explicit(done, n, memory_order_acq_rel) + n < n_chunks(walk->seq)) {
        return;
    }
    atomic_store_explicit(done, 0, memory_order_relaxed); /* for the next wave */
    for (int32_t h = 0; h < walk->n_heads; h++) {
        merge_head(job, walk->s, walk->w, walk->seq, walk->group * walk->n_heads + h);
    }
}

/* Unit `i`; the thread's next one is i + 1, if that is before `end`. */
static bool run_unit(struct walk *walk, int32_t i, int32_t end)
{
    struct chunk *c = &walk->chunks[walk->now];
    struct chunk *next = &walk->chunks[!walk->now];
    bool more;

    if (i != walk->expected) {
        if (!find_chunk(walk->job, &walk->s->t, i, false, &walk->at, c)) {
            return false;
        }
        struct att_span first = span_of(c);

        att_ask_at_once(&first);
    }
    more = i + 1 < end && find_chunk(walk->job, &walk->s->t, i + 1, false, &walk->at, next);
    walk->expected = more ? i + 1 : -1;
    walk->now = more ? !walk->now : walk->now;
    if (walk->w != c->w || walk->group != c->u.group) {
        count_done(walk);
        walk->w = c->w;
        walk->group = c->u.group;
        walk->n_heads = c->u.n_heads;
        walk->seq = c->u.seq;
        ready_queries(c);
    }
    c->scratch = walk->s;
    chunk_unit(c, more ? next : NULL, walk->next_weights);
    walk->n_done++;
    return true;
}

static void attend(void *arg, int tid, int n_threads)
{
    const struct att_job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    struct walk walk;
    bool ok = true;

    walk.job = job;
    walk.s = &s;
    walk.next_weights = cpu_matmul_next(job->cpu, tid);
    walk.at = (struct cursor){0};
    walk.now = 0;
    walk.expected = -1;
    walk.n_done = 0;
    walk.w = -1;
    for (int i = 0; ok && i < n_threads; i++) {
        int share = (tid + i) % n_threads;
        int32_t begin = share_begin(job->n_units, share, n_threads);
        int32_t end = share_begin(job->n_units, share + 1, n_threads);
        int32_t n;

        for (int32_t k;
             ok && (k = pool_take(job->cpu->pool, tid, share, end - begin, 1, &n)) >= 0;) {
            for (int32_t stop = k + n; ok && k < stop; k++) {
                ok = run_unit(&walk, begin + k, end);
            }
        }
    }
    count_done(&walk);
}

/* Shared out as in attend(), so that a thread mostly finds the weights that it left. */
static void score(void *arg, int tid, int n_threads)
{
    const struct att_job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    struct cursor at = {0};
    struct chunk c;

    for (int i = 0; i < n_threads; i++) {
        int share = (tid + i) % n_threads;
        int32_t begin = share_begin(job->n_units, share, n_threads);
        int32_t end = share_begin(job->n_units, share + 1, n_threads);
        int32_t n;

        for (int32_t k; (k = pool_take(job->cpu->pool, tid, share, end - begin, 4, &n)) >= 0;) {
            for (int32_t stop = k + n; k < stop; k++) {
                if (!find_chunk(job, &s.t, begin + k, true, &at, &c)) {
                    return;
                }
                score_chunk(job, &s, c.w, c.u.group, c.index);
            }
        }
    }
}

static void wave(struct att_job *job)
{
    struct kv_scratch s = cpu_kv_scratch(job->cpu, 0);

    for (int32_t w = 0; w < job->n_rows; w++) {
        const struct ops_seq *seq = &job->p->seqs[seq_of(job->p, job->row0 + w)];

        for (int32_t h = 0; n_chunks(seq) == 0 && h < job->p->n_q; h++) {
            merge_head(job, &s, w, seq, h); /* nothing to attend to: zeros */
        }
    }
    job->n_units = n_units(job, false);
    if (job->n_units == 0) {
        return;
    }
    pool_share(job->cpu->pool, attend, job);
    if (job->p->observe) {
        job->n_units = n_units(job, true);
        pool_share(job->cpu->pool, score, job); /* all factors are written */
    }
}

int att_decode(struct cpu *cpu, const struct ops_attention *p)
{
    int32_t size = cpu_kv_scratch(cpu, 0).wave;

    for (int32_t row = 0; row < p->rows.n_decode; row += size) {
        int32_t left = p->rows.n_decode - row;
        struct att_job job = {.cpu = cpu, .p = p, .row0 = row, .n_rows = left < size ? left : size};

        wave(&job);
    }
    return 0;
}
