/* SPDX-License-Identifier: Apache-2.0 */
/* Expected attention (kernels/ops_expect.h).
 *
 * Statistics go by query head: a head's rows are turned back, some at a time, and enter its sums in
 * order. Scores go through four steps, each in units that any thread takes: a head's expected
 * queries; a page's exponents and lengths of V; a head's softmax; a page's sum over heads. Keys are
 * read as they are stored: what center, balance and transform do to a key is done to the head's
 * expected queries instead (expect_future()), k_dim^2 numbers a head for k_dim a key. */

#include "kernels/expect.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/kv.h"
#include "kernels/kv_code.h"
#include "quant/half.h"

enum { COUNT_ROWS = 32 }; /* with their head's sums they stay in L1 */

struct job {
    const struct cpu *cpu;
    const struct ops_expect *p;
    const struct ops_kv *kv;
    const struct ops_kv_layout *l;
    int32_t n_heads; /* of a group */
    int32_t n_pages; /* of a group */
    bool turns;
    struct kv_rope_table table;
    struct pool_counter next;
};

static float *stats_of(const struct job *j, int32_t group)
{
    return j->p->stats + (size_t)group * expect_words(j->l->k_dim, j->n_heads);
}

static float *head_stats(const struct job *j, int32_t head)
{
    return stats_of(j, head / j->n_heads) + EXPECT_HEAD +
           (size_t)(head % j->n_heads) * expect_head_words(j->l->k_dim);
}

/* Its K head's numbers of a (n_groups, k_heads, k_dim) array, or NULL. */
static const float *of_k_head(const struct job *j, const float *array, int32_t head)
{
    int32_t k_head =
        head / j->n_heads * j->l->k_heads + head % j->n_heads * j->l->k_heads / j->n_heads;

    return array ? array + (size_t)(k_head * j->l->k_dim) : NULL;
}

/* ---- queries ----------------------------------------------------------------------------------
 */

/* Row i of the sequence before RoPE, (padded). */
static void bare_query(const struct job *j, int32_t i, int32_t head, float *scratch, float *to)
{
    const struct ops_expect *p = j->p;
    const int32_t dim = j->l->k_dim;
    const size_t row = (size_t)(p->seq->row0 + i);
    const float *balance = of_k_head(j, j->kv->balance, head);
    const struct kv_rope_table *t = &j->table;

    memcpy(to, p->q + row * (size_t)p->ldq + (size_t)(head * dim), (size_t)dim * sizeof(*to));
    memset(to + dim, 0, (size_t)(expect_padded(dim) - dim) * sizeof(*to));
    if (j->kv->k_hadamard) {
        j->cpu->table.kv_hadamard(to, dim);
    }
    if (balance) {
        j->cpu->table.kv_times(to, balance, dim);
    }
    if (!j->turns) {
        return;
    }
    for (int32_t d = 0; d < t->key->n_dims; d++) {
        scratch[d] = -t->sin[row * t->pad + (size_t)d];
    }
    (t->key->form == OPS_ROPE_NORM ? j->cpu->table.rope_norm : j->cpu->table.rope_neox)(
        to, t->cos + row * t->pad, scratch, t->key->n_dims);
    for (int32_t d = 0; t->key->mscale != 1 && d < t->key->n_dims; d++) {
        to[d] /= t->key->mscale; /* the table has it once more */
    }
}

static void count_head(const struct job *j, const struct kv_thread *t, int32_t head)
{
    const int32_t padded = expect_padded(j->l->k_dim);
    const int32_t n_rows = j->p->seq->n_rows;
    float *stats = head_stats(j, head);
    bool none = stats_of(j, head / j->n_heads)[0] == 0;

    for (int32_t i = j->p->first, n; i < n_rows; i += n, none = false) {
        n = n_rows - i < COUNT_ROWS ? n_rows - i : COUNT_ROWS;
        for (int32_t r = 0; r < n; r++) {
            bare_query(j, i + r, head, t->row, t->v + r * padded);
        }
        if (none) { /* it is zero less itself */
            memcpy(stats, t->v, (size_t)padded * sizeof(float));
            memset(stats + padded, 0,
                   (size_t)(padded + expect_triangle(j->l->k_dim)) * sizeof(float));
        }
        j->cpu->table.expect_add(stats, t->v, n, j->l->k_dim, j->p->cov);
    }
}

static void count_piece(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    struct kv_scratch s = cpu_kv_scratch(j->cpu, tid);

    if (j->turns) {
        cpu_kv_fill_angles(&j->table, j->p->seq, 1, tid, n_threads);
        pool_barrier(j->cpu->pool, tid); /* all rows' angles are written */
    }
    for (int h; (h = pool_counter_take(&j->next)) < j->p->n_q;) {
        count_head(j, &s.t, h);
    }
}

static void count(struct job *j)
{
    const struct ops_expect *p = j->p;

    if (p->rope->form != OPS_ROPE_NONE && p->rope->n_dims > 0) {
        struct kv_scratch s = cpu_kv_scratch(j->cpu, 0);

        j->turns = true;
        j->table = cpu_kv_rope_table(&s, p->rope, j->cpu->limits.max_rows);
    }
    pool_run(j->cpu->pool, count_piece, j);
    for (int32_t g = 0; g < j->l->n_groups; g++) {
        stats_of(j, g)[0] += (float)(p->seq->n_rows - p->first);
    }
}

/* ---- scores -----------------------------------------------------------------------------------
 */

static struct expect_query query_of(const struct job *j, int32_t head)
{
    const struct expect_work *w = j->p->work;

    return (struct expect_query){
        .mean = w->mean + (size_t)head * (size_t)expect_padded(j->l->k_dim),
        .cov = w->cov + (size_t)head * (size_t)expect_triangle(j->l->k_dim),
    };
}

static void future_piece(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    const struct ops_expect *p = j->p;
    const int32_t dim = j->l->k_dim;

    (void)tid;
    (void)n_threads;
    for (int u; (u = pool_counter_take(&j->next)) < EXPECT_SQUARES;) {
        for (int32_t h = u; h < p->n_q; h += EXPECT_SQUARES) {
            const struct expect_query q = query_of(j, h);
            const struct expect_map map = {
                .center = of_k_head(j, j->kv->center, h),
                .balance = of_k_head(j, j->kv->balance, h),
                .hadamard = j->kv->k_hadamard,
            };

            expect_future(head_stats(j, h), stats_of(j, h / j->n_heads)[0], p->rope, dim, p->pos,
                          p->ahead, p->scale, p->cov, &map,
                          p->work->square + (size_t)(u * dim) * (size_t)dim, &q);
        }
    }
}

/* n elements as f32, where they lie or in dst. */
static const float *as_f32(const struct job *j, enum ops_kv_type type, const uint8_t *src,
                           int32_t n, float *dst)
{
    cpu_kv_unpack_fn *unpack = cpu_kv_unpack(&j->cpu->table, type);

    if (type == OPS_KV_F32) {
        return (const float *)(const void *)src;
    }
    if (type == OPS_KV_G4) {
        j->cpu->table.unpack_g4(src, (size_t)n, dst);
    } else if (unpack) {
        unpack(src, (size_t)n, dst);
    } else {
        kv_code_decode(type, src, 0, dst, n);
    }
    return dst;
}

/* A page's keys (k_dim, 64), as stored. */
static const float *page_keys(const struct job *j, const struct kv_thread *t, uint8_t *page,
                              int32_t head)
{
    const struct ops_kv_layout *l = j->l;
    const uint8_t *src = kv_page_k(l, page, head);
    const uint16_t *scale = kv_page_k_scale(l, page, head);
    const size_t row_bytes = (size_t)ops_kv_type_bytes(l->k_type, l->k_dim);
    float factor[OPS_PAGE_SLOTS];

    for (int32_t s = 0; s < OPS_PAGE_SLOTS && kv_page_by_slot(l->k_type); s++) {
        const float *row = as_f32(j, l->k_type, src + (size_t)s * row_bytes, l->k_dim, t->row);

        for (int32_t d = 0; d < l->k_dim; d++) {
            t->k[d * OPS_PAGE_SLOTS + s] = row[d];
        }
    }
    if (kv_page_by_slot(l->k_type)) {
        return t->k;
    }
    const float *k = as_f32(j, l->k_type, src, l->k_dim * OPS_PAGE_SLOTS, t->k);

    for (int32_t s = 0; s < OPS_PAGE_SLOTS && scale; s++) {
        factor[s] = half_f16_to_f32(scale[s]);
    }
    for (int32_t d = 0; d < l->k_dim && scale; d++) {
        for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
            t->k[d * OPS_PAGE_SLOTS + s] *= factor[s];
        }
    }
    return k;
}

static void page_lengths(const struct job *j, const struct kv_thread *t, uint8_t *page,
                         int32_t head, float *to)
{
    const struct ops_kv_layout *l = j->l;
    const int32_t pad = kv_page_pad(l->v_dim);
    const uint16_t *scale = kv_page_v_scale(l, page, head);
    const float *v = as_f32(j, l->v_type, kv_page_v(l, page, head), pad * OPS_PAGE_SLOTS, t->v);

    j->cpu->table.expect_lengths(v, pad, OPS_PAGE_SLOTS, to);
    for (int32_t s = 0; s < OPS_PAGE_SLOTS && scale; s++) {
        to[s] *= fabsf(half_f16_to_f32(scale[s]));
    }
}

/* Unit u: page by page, groups inside. */
static void page_unit(const struct job *j, const struct kv_thread *t, int32_t u)
{
    const struct expect_work *w = j->p->work;
    const int32_t group = u % j->l->n_groups;
    const int32_t slot0 = u / j->l->n_groups * OPS_PAGE_SLOTS;
    uint8_t *page = kv_page_of(j->kv, group, slot0);
    const float *k = NULL;

    for (int32_t h = 0, held = -1; h < j->n_heads; h++) {
        const struct expect_query q = query_of(j, group * j->n_heads + h);
        const int32_t k_head = h * j->l->k_heads / j->n_heads;
        float *x = w->exponents + (size_t)(group * j->n_heads + h) * w->ld + (size_t)slot0;

        k = k_head == held ? k : page_keys(j, t, page, k_head);
        held = k_head;
        j->cpu->table.expect_exponents(q.mean, j->p->cov ? q.cov : NULL, k, j->l->k_dim, x);
        for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
            bool live = slot0 + s < j->kv->n_slots && kv_slot_pos(j->kv, group, slot0 + s) >= 0;

            x[s] = live ? x[s] : -INFINITY;
        }
    }
    for (int32_t h = 0; h < j->l->v_heads; h++) {
        page_lengths(j, t, page, h,
                     w->lengths + (size_t)(group * j->l->v_heads + h) * w->ld + (size_t)slot0);
    }
}

static void page_piece(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    struct kv_scratch s = cpu_kv_scratch(j->cpu, tid);

    (void)n_threads;
    for (int u; (u = pool_counter_take(&j->next)) < j->n_pages * j->l->n_groups;) {
        page_unit(j, &s.t, u);
    }
}

static void softmax_piece(void *arg, int tid, int n_threads)
{
    struct job *j = arg;
    const struct expect_work *w = j->p->work;

    (void)tid;
    (void)n_threads;
    for (int h; (h = pool_counter_take(&j->next)) < j->p->n_q;) {
        w->sum[h] = j->cpu->table.expect_weights(w->exponents + (size_t)h * w->ld,
                                                 j->n_pages * OPS_PAGE_SLOTS);
    }
}

static void sum_unit(const struct job *j, int32_t u)
{
    const struct expect_work *w = j->p->work;
    const int32_t group = u % j->l->n_groups;
    const int32_t slot0 = u / j->l->n_groups * OPS_PAGE_SLOTS;
    const int32_t left = j->kv->n_slots - slot0;
    const int32_t n = left < OPS_PAGE_SLOTS ? left : OPS_PAGE_SLOTS;
    float *score = j->kv->score + (size_t)group * (size_t)j->kv->cap + (size_t)slot0;
    float sum[OPS_PAGE_SLOTS] = {0};

    for (int32_t h = 0; h < j->n_heads; h++) {
        const int32_t head = group * j->n_heads + h;
        const int32_t v_head = group * j->l->v_heads + h * j->l->v_heads / j->n_heads;
        const float *e = w->exponents + (size_t)head * w->ld + (size_t)slot0;
        const float *v = w->lengths + (size_t)v_head * w->ld + (size_t)slot0;
        const float factor = 1.0f / w->sum[head];

        for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
            sum[s] += (e[s] * factor + j->p->floor) * v[s];
        }
    }
    for (int32_t s = 0; s < n; s++) { /* statistics out of a file may be anything finite */
        bool live = kv_slot_pos(j->kv, group, slot0 + s) >= 0 && isfinite(sum[s]);

        score[s] = live ? sum[s] : 0;
    }
}

static void sum_piece(void *arg, int tid, int n_threads)
{
    struct job *j = arg;

    (void)tid;
    (void)n_threads;
    for (int u; (u = pool_counter_take(&j->next)) < j->n_pages * j->l->n_groups;) {
        sum_unit(j, u);
    }
}

static void score(struct job *j)
{
    pool_fn *const steps[] = {future_piece, page_piece, softmax_piece, sum_piece};

    for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
        atomic_store(&j->next.next, 0);
        pool_share(j->cpu->pool, steps[i], j);
    }
}

int cpu_expect(struct backend *be, const struct ops_expect *p)
{
    struct cpu *cpu = cpu_of(be);
    const struct ops_kv *kv = &p->seq->kv;
    struct job j = {
        .cpu = cpu,
        .p = p,
        .kv = kv,
        .l = kv->layout,
        .n_heads = p->n_q / kv->layout->n_groups,
        .n_pages = (kv->n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS,
    };

    if (kv->n_slots > cpu->limits.max_slots || j.l->k_dim > cpu->limits.max_head_dim ||
        j.l->v_dim > cpu->limits.max_head_dim || p->seq->n_rows > cpu->limits.max_rows ||
        p->rope->n_dims > j.l->k_dim || !kv->slot_pos || !kv->score) {
        return -EINVAL;
    }
    if (p->first < p->seq->n_rows) {
        count(&j);
    }
    if (p->score && kv->n_slots > 0 && p->stats[0] > 0) {
        score(&j);
    }
    return 0;
}
