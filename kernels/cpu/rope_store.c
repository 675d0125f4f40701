/* SPDX-License-Identifier: Apache-2.0 */
/* Per-head norm, RoPE, and the store of K and V.
 *
 * The angles of a batch's rows are the same in every layer, and their sines and cosines in double
 * (kernels/ref/rope.c) cost more than the rotation: they are kept in scratch, by frequencies and by
 * position, and made again only for runs of rows whose positions changed. A prompt that is read
 * layer by layer changes them in every layer, so even then most come from those of every 32nd
 * position.
 *
 * Two kinds of units, taken by threads in this order after the table is ready: 64 rows of one
 * sequence and group to store; 8 rows of queries to rotate. K goes through a tile [row][dim] of its
 * final type, which is then written transposed: a row at a time would touch a cache line per dim.
 */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/kv.h"
#include "kernels/cpu/kv_encode16.h"
#include "kernels/kv_latest.h"
#include "kernels/kv_round.h"

enum { STORE_ROWS = 64, QUERY_ROWS = 8 };

struct job {
    const struct cpu *cpu;
    const struct ops_rope_store *p;
    bool rotates;
    struct kv_rope_table table;
    int32_t n_store; /* units */
    int32_t n_query;
    struct pool_counter next;
};

/* ---- angles -------------------------------------------------------------------------------- */

static void fill_steps(const struct kv_rope_table *t)
{
    double *step = t->step;

    for (int32_t i = 0; i < t->key->n_dims / 2; i++) {
        for (int32_t n = 0; n < KV_ANGLE_STEPS; n++, step += 2) {
            step[0] = cos((double)n * (double)t->inv_freq[i]);
            step[1] = sin((double)n * (double)t->inv_freq[i]);
        }
    }
}

struct kv_rope_table cpu_kv_rope_table(const struct kv_scratch *s, const struct ops_rope *r,
                                       int32_t max_rows)
{
    struct kv_rope_key *const keys[] = {s->rope[0].key, s->rope[1].key};
    float *const inv_freqs[] = {s->rope[0].inv_freq, s->rope[1].inv_freq};
    bool stale;
    int i = cpu_kv_find_table(keys, inv_freqs, r, &stale);

    if (stale) {
        memset(s->rope[i].pos, 0, (size_t)max_rows * sizeof(int32_t));
        fill_steps(&s->rope[i]);
    }
    return s->rope[i];
}

/* Rows [row, row + n), whose positions follow each other from `pos` and lie between two multiples
 * of KV_ANGLE_STEPS: sine and cosine of the multiple, turned on by a step of the table, in double.
 * What a position gets depends on nothing but itself. */
static void fill_angles(const struct kv_rope_table *t, int32_t row, int32_t n, int32_t pos)
{
    const int32_t half = t->key->n_dims / 2;
    const int32_t first = pos % KV_ANGLE_STEPS;
    int32_t right = 0;

    while (right < n && t->pos[row + right] == pos + right + 1) {
        right++;
    }
    if (right == n) {
        return;
    }
    for (int32_t i = 0; i < half; i++) {
        const double angle = (double)(pos - first) * (double)t->inv_freq[i];
        const double c = cos(angle);
        const double s = sin(angle);
        const double *step = t->step + 2 * (i * KV_ANGLE_STEPS + first);
        const int32_t a = t->key->form == OPS_ROPE_NORM ? 2 * i : i;
        const int32_t b = t->key->form == OPS_ROPE_NORM ? 2 * i + 1 : i + half;

        for (int32_t r = 0; r < n; r++, step += 2) {
            float *to_cos = t->cos + (size_t)(row + r) * t->pad;
            float *to_sin = t->sin + (size_t)(row + r) * t->pad;

            to_cos[a] = (float)(c * step[0] - s * step[1]) * t->key->mscale;
            to_cos[b] = to_cos[a];
            to_sin[b] = (float)(s * step[0] + c * step[1]) * t->key->mscale;
            to_sin[a] = -to_sin[b];
        }
    }
    for (int32_t r = 0; r < n; r++) {
        t->pos[row + r] = pos + r + 1;
    }
}

/* Threads divide runs of positions, cut where angles are asked for. */
void cpu_kv_fill_angles(const struct kv_rope_table *t, const struct ops_seq *seqs, int32_t n_seqs,
                        int tid, int n_threads)
{
    int turn = 0;

    for (int32_t q = 0; q < n_seqs; q++) {
        const struct ops_seq *s = &seqs[q];

        for (int32_t i = 0, n; i < s->n_rows; i += n) {
            const int32_t pos = s->pos0 + i;

            n = KV_ANGLE_STEPS - pos % KV_ANGLE_STEPS;
            n = n < s->n_rows - i ? n : s->n_rows - i;
            if (turn++ % n_threads == tid) {
                fill_angles(t, s->row0 + i, n, pos);
            }
        }
    }
}

static void rotate(const struct job *job, int32_t row, float *x)
{
    const struct kv_rope_table *t = &job->table;
    cpu_kv_rope_fn *fn =
        job->p->rope.form == OPS_ROPE_NORM ? job->cpu->table.rope_norm : job->cpu->table.rope_neox;

    if (job->rotates) {
        fn(x, t->cos + (size_t)row * t->pad, t->sin + (size_t)row * t->pad, t->key->n_dims);
    }
}

/* ---- heads --------------------------------------------------------------------------------- */

static void normalize(const struct job *job, const struct ops_norm *norm, const float *x, int32_t n,
                      float *y)
{
    const struct cpu_table *t = &job->cpu->table;

    if (!norm->w) {
        memmove(y, x, (size_t)n * sizeof(float));
        return;
    }
    (norm->kind == OPS_NORM_LAYER ? t->norm_layer : t->norm_rms)(
        x, norm->w->device, norm->b ? norm->b->device : NULL, norm->eps, n, y);
}

static void query_row(const struct job *job, const struct ops_seq *s, int32_t row)
{
    const struct ops_rope_store *p = job->p;
    const float *balance = s->kv.balance;
    int32_t share = balance ? p->n_q / (s->kv.layout->n_groups * s->kv.layout->k_heads) : 1;

    for (int32_t h = 0; h < p->n_q; h++) {
        float *q = p->q + (size_t)row * (size_t)p->ldq + (size_t)h * (size_t)p->k_dim;

        normalize(job, &p->q_norm, q, p->k_dim, q);
        rotate(job, row, q);
        if (balance) {
            job->cpu->table.kv_over(q, balance + (size_t)(h / share) * (size_t)p->k_dim, p->k_dim);
        }
        if (s->kv.k_hadamard) {
            job->cpu->table.kv_hadamard(q, p->k_dim);
        }
    }
}

/* ---- stores -------------------------------------------------------------------------------- */

/* Rows [row, row + n) of one sequence, whose slots [slot, slot + n) lie in one page. */
struct run {
    const struct ops_seq *seq;
    int32_t group;
    int32_t row;
    int32_t slot;
    int32_t n;
};

static uint16_t encode(const struct job *job, enum ops_kv_type type, const float *x, int32_t n,
                       void *dst)
{
    cpu_kv_encode_fn *fn = cpu_kv_encode(&job->cpu->table, type);

    if (kv_page_by_slot(type)) {
        kv_code_encode(type, x, dst, NULL, n);
        return 0;
    }
    if (!fn) {
        memcpy(dst, x, (size_t)n * sizeof(float));
        return 0;
    }
    return fn(x, n, dst);
}

/* dst[d][i] = src[i][d] for n rows; src rows `pad` elements, dst rows 64. */
#define TRANSPOSE(type)                                                                            \
    do {                                                                                           \
        const type *from = src;                                                                    \
        type *to = dst;                                                                            \
        for (int32_t d = 0; d < n_dims; d++) {                                                     \
            for (int32_t i = 0; i < n; i++) {                                                      \
                to[d * OPS_PAGE_SLOTS + i] = from[i * pad + d];                                    \
            }                                                                                      \
        }                                                                                          \
    } while (0)

static void transpose(size_t element, const void *src, void *dst, int32_t pad, int32_t n_dims,
                      int32_t n)
{
    switch (element) {
    case 1:
        TRANSPOSE(uint8_t);
        break;
    case 2:
        TRANSPOSE(uint16_t);
        break;
    default:
        TRANSPOSE(uint32_t);
        break;
    }
}

static int32_t pos_of(const struct run *r, int32_t i)
{
    return r->seq->pos0 + r->row - r->seq->row0 + i;
}

static bool takes_latest(const struct run *r, int32_t i, enum ops_kv_type type)
{
    return ops_kv_in_four_bits(type) && kv_latest_takes(r->seq, r->row - r->seq->row0 + i);
}

/* The head of slot i of n: encoded with those of the slots around it. */
static void take(const struct job *job, struct cpu_kv_encode16 *lot, const float *head, int32_t i,
                 int32_t n, uint8_t *rows, size_t row_bytes, uint16_t *scales)
{
    cpu_kv_encode16_add(lot, head);
    if (lot->n_heads == CPU_KV_ENCODE16 || i + 1 == n) {
        int32_t from = i + 1 - lot->n_heads;

        cpu_kv_encode16_end(&job->cpu->table, lot, rows + (size_t)from * row_bytes, row_bytes,
                            scales ? scales + from : NULL);
    }
}

static void store_k(const struct job *job, const struct kv_thread *t, const struct run *r,
                    uint8_t *page, int32_t head)
{
    const struct ops_rope_store *p = job->p;
    const struct cpu_table *table = &job->cpu->table;
    const struct ops_kv_layout *l = r->seq->kv.layout;
    int32_t pad = kv_page_pad(l->k_dim);
    bool by_slot = kv_page_by_slot(l->k_type);
    size_t element = kv_page_element(l->k_type);
    size_t row_bytes = (size_t)ops_kv_type_bytes(l->k_type, pad);
    int32_t first = r->slot % OPS_PAGE_SLOTS;
    uint8_t *rows =
        by_slot ? kv_page_k(l, page, head) + (size_t)first * row_bytes : (uint8_t *)t->k;
    uint16_t *scales = kv_page_k_scale(l, page, head);
    size_t dims = (size_t)l->k_dim;
    size_t at = (size_t)(r->group * l->k_heads + head);
    const float *center = r->seq->kv.center ? r->seq->kv.center + at * dims : NULL;
    const float *balance = r->seq->kv.balance ? r->seq->kv.balance + at * dims : NULL;
    const float *carry =
        kv_rounds(l->k_type) && r->seq->kv.carry ? r->seq->kv.carry + at * dims * dims : NULL;
    struct cpu_kv_encode16 lot = cpu_kv_encode16_begin(l->k_type, carry, l->k_dim, t->v);

    for (int32_t i = 0; i < r->n; i++) {
        const float *k = p->k + (size_t)(r->row + i) * (size_t)p->ldk + at * dims;

        normalize(job, &p->k_norm, k, l->k_dim, t->row);
        if (!l->k_unrotated) {
            rotate(job, r->row + i, t->row);
        }
        if (center) {
            table->kv_minus(t->row, center, l->k_dim);
        }
        if (balance) {
            table->kv_times(t->row, balance, l->k_dim);
        }
        if (r->seq->kv.k_hadamard) {
            table->kv_hadamard(t->row, l->k_dim);
        }
        memset(t->row + l->k_dim, 0, (size_t)(pad - l->k_dim) * sizeof(float));
        if (cpu_kv_encode16_is(l->k_type, carry)) {
            take(job, &lot, t->row, i, r->n, rows, row_bytes, scales ? scales + first : NULL);
        } else {
            uint16_t scale = encode(job, l->k_type, t->row, pad, rows + (size_t)i * row_bytes);

            if (scales) {
                scales[first + i] = scale;
            }
        }
        if (takes_latest(r, i, l->k_type)) {
            kv_latest_store(kv_latest_k(&r->seq->kv, r->group, pos_of(r, i), head), t->row,
                            l->k_dim);
        }
    }
    if (!by_slot) {
        transpose(element, t->k, kv_page_k(l, page, head) + (size_t)first * element, pad, l->k_dim,
                  r->n);
    }
}

static void store_v(const struct job *job, const struct kv_thread *t, const struct run *r,
                    uint8_t *page, int32_t head)
{
    const struct ops_rope_store *p = job->p;
    const struct ops_kv_layout *l = r->seq->kv.layout;
    int32_t pad = kv_page_pad(l->v_dim);
    int32_t first = r->slot % OPS_PAGE_SLOTS;
    uint16_t *scales = kv_page_v_scale(l, page, head);
    struct cpu_kv_encode16 lot = cpu_kv_encode16_begin(l->v_type, NULL, pad, t->v);
    uint8_t *rows = kv_page_v(l, page, head) + (size_t)first * kv_page_v_row_bytes(l);

    for (int32_t i = 0; i < r->n; i++) {
        const float *v = p->v + (size_t)(r->row + i) * (size_t)p->ldv +
                         (size_t)(r->group * l->v_heads + head) * (size_t)l->v_dim;

        if (pad != l->v_dim || r->seq->kv.v_hadamard) {
            memcpy(t->row, v, (size_t)l->v_dim * sizeof(float));
            memset(t->row + l->v_dim, 0, (size_t)(pad - l->v_dim) * sizeof(float));
            v = t->row;
        }
        if (r->seq->kv.v_hadamard) {
            job->cpu->table.kv_hadamard(t->row, l->v_dim);
        }
        if (cpu_kv_encode16_is(l->v_type, NULL)) {
            take(job, &lot, v, i, r->n, rows, kv_page_v_row_bytes(l), NULL);
        } else {
            uint16_t scale =
                encode(job, l->v_type, v, pad, rows + (size_t)i * kv_page_v_row_bytes(l));

            if (scales) {
                scales[first + i] = scale;
            }
        }
        if (takes_latest(r, i, l->v_type)) {
            kv_latest_store(kv_latest_v(&r->seq->kv, r->group, pos_of(r, i), head), v, l->v_dim);
        }
    }
}

static void store_run(const struct job *job, const struct kv_thread *t, const struct run *r)
{
    const struct ops_kv *kv = &r->seq->kv;
    uint8_t *page = kv_page_of(kv, r->group, r->slot);
    size_t at = (size_t)r->group * (size_t)kv->cap + (size_t)r->slot;
    bool sums = kv->v_sum && r->row < job->p->rows.n_decode;

    if (sums && r->seq->victim && kv_slot_pos(kv, r->group, r->slot) >= 0) {
        cpu_kv_add_value(job->cpu, kv, r->group, r->slot, -1, t->row);
    }
    for (int32_t h = 0; h < kv->layout->k_heads; h++) {
        store_k(job, t, r, page, h);
        cpu_kv_copy_k(job->cpu, kv->layout, page, h, r->slot % OPS_PAGE_SLOTS, r->n, t->k);
    }
    if (kv->layout->part_dims > 0) {
        cpu_kv_make_part(job->cpu, kv, r->group, r->slot, r->n, t);
    }
    for (int32_t h = 0; h < kv->layout->v_heads; h++) {
        store_v(job, t, r, page, h);
    }
    for (int32_t i = 0; i < r->n && kv->slot_pos; i++) {
        kv->slot_pos[at + (size_t)i] = r->seq->pos0 + r->row - r->seq->row0 + i;
    }
    for (int32_t i = 0; i < r->n && kv->score; i++) {
        kv->score[at + (size_t)i] = 0;
    }
    for (int32_t i = 0; i < r->n && sums; i++) {
        cpu_kv_add_value(job->cpu, kv, r->group, r->slot + i, 1, t->row);
    }
}

/* Rows that a later row of the same call overwrites in a short ring are left out. */
static int32_t first_row(const struct ops_seq *s)
{
    return s->ring > 0 && s->n_rows > s->ring ? s->n_rows - s->ring : 0;
}

static int32_t units_of(const struct ops_seq *s)
{
    return (s->n_rows - first_row(s) + STORE_ROWS - 1) / STORE_ROWS * s->kv.layout->n_groups;
}

/* Unit u of a sequence: rows in steps of STORE_ROWS, groups inside. Cut at pages and at the ring.
 */
static void store_unit(const struct job *job, const struct kv_thread *t, const struct ops_seq *s,
                       int32_t u)
{
    int32_t n_groups = s->kv.layout->n_groups;
    int32_t i = first_row(s) + u / n_groups * STORE_ROWS;
    int32_t end = i + STORE_ROWS < s->n_rows ? i + STORE_ROWS : s->n_rows;
    struct run r = {.seq = s, .group = u % n_groups};

    while (i < end) {
        int32_t left;

        r.row = s->row0 + i;
        r.slot = s->victim ? s->victim[r.group] : s->ring ? (s->slot0 + i) % s->ring : s->slot0 + i;
        left = OPS_PAGE_SLOTS - r.slot % OPS_PAGE_SLOTS;
        left = s->ring && s->ring - r.slot < left ? s->ring - r.slot : left;
        r.n = end - i < left ? end - i : left;
        store_run(job, t, &r);
        i += r.n;
    }
}

static void piece(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_rope_store *p = job->p;
    struct kv_scratch scratch = cpu_kv_scratch(job->cpu, tid);

    if (job->rotates) {
        cpu_kv_fill_angles(&job->table, p->seqs, p->n_seqs, tid, n_threads);
        pool_barrier(job->cpu->pool, tid); /* all rows' angles are written */
    }
    for (int32_t u; (u = pool_counter_take(&job->next)) < job->n_store + job->n_query;) {
        const struct ops_seq *s = p->seqs;
        int32_t row = (u - job->n_store) * QUERY_ROWS;

        if (u < job->n_store) {
            for (; u >= units_of(s); s++) {
                u -= units_of(s);
            }
            store_unit(job, &scratch.t, s, u);
            continue;
        }
        for (int32_t i = row; i < p->rows.n && i < row + QUERY_ROWS; i++) {
            while (s + 1 < p->seqs + p->n_seqs && i >= s->row0 + s->n_rows) {
                s++;
            }
            query_row(job, s, i);
        }
    }
}

static bool valid(const struct cpu *cpu, const struct ops_rope_store *p)
{
    if (p->k_dim > cpu->limits.max_head_dim || p->rows.n > cpu->limits.max_rows ||
        p->rope.n_dims > p->k_dim) {
        return false;
    }
    for (int32_t i = 0; i < p->n_seqs && p->n_k > 0; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (l->k_dim != p->k_dim || l->n_groups * l->k_heads != p->n_k ||
            l->n_groups * l->v_heads != p->n_v || l->v_dim > cpu->limits.max_head_dim ||
            (l->part_dims > 0 && !p->seqs[i].kv.skew) ||
            (l->k_unrotated && (p->seqs[i].kv.center || p->seqs[i].kv.k_hadamard))) {
            return false;
        }
    }
    return true;
}

int cpu_rope_store(struct backend *be, const struct ops_rope_store *p)
{
    struct cpu *cpu = cpu_of(be);
    struct job job = {.cpu = cpu, .p = p};

    if (!valid(cpu, p)) {
        return -EINVAL;
    }
    if (p->rope.form != OPS_ROPE_NONE && p->rope.n_dims > 0) {
        struct kv_scratch scratch = cpu_kv_scratch(cpu, 0);

        job.rotates = true;
        job.table = cpu_kv_rope_table(&scratch, &p->rope, cpu->limits.max_rows);
    }
    for (int32_t i = 0; i < p->n_seqs && p->n_k > 0; i++) {
        job.n_store += units_of(&p->seqs[i]);
    }
    job.n_query = p->n_q > 0 ? (p->rows.n + QUERY_ROWS - 1) / QUERY_ROWS : 0;
    pool_run(cpu->pool, piece, &job);
    return 0;
}
