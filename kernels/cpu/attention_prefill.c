/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows: arithmetic is what counts.
 *
 * A unit is one sequence, one head group and a block of rows: up to KV_PAIRS (row, query head)
 * pairs. Where the CPU multiplies tiles it goes to attention_tiles.c; else it goes over the pages
 * in order; each page's K, then V, is converted to f32 once for all pairs and meets them from L1;
 * softmax is online, each pair with its own maximum and sum, so a row's bits do not depend on the
 * rows beside it. Pages that no row of the block can see are left out: also where slots hold any
 * position, as those of an evicting policy do, where they are the later rows of a chunk.
 *
 * Observation needs p = e / sum with the final sum: the block keeps its exponentials (or a policy's
 * own, with noise and tau) and the maximum they were made against, page by page, and adds them to
 * the scores when the block is done. So a block is as tall as its weights fit SEEN_BYTES of
 * scratch; nothing is n x n, and no logit or noise is made twice. Scores are f32 sums over rows in
 * order, so the blocks of one group commit in order: a unit waits for the one before it, which was
 * taken earlier and needs about as long. */

#include <math.h>
#include <sched.h>
#include <string.h>

#include "kernels/cpu/attention_block.h"
#include "kernels/kv_code.h"

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

static int32_t page_count(const struct ops_seq *s)
{
    return (s->kv.n_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
}

/* Rows of a block: a function of the sequence's own numbers. */
static int32_t block_rows(const struct att_unit *u, size_t seen_floats)
{
    int32_t rows = att_tiles_serve(u) ? att_tiles_rows(u) : min_i32(KV_PAIRS / u->n_heads, 64);
    size_t row_floats = (size_t)u->n_heads * (size_t)page_count(u->seq) * OPS_PAGE_SLOTS;

    if (u->observe && (size_t)rows * row_floats > seen_floats) {
        rows = (int32_t)(seen_floats / row_floats);
    }
    return rows > 1 ? rows : 1;
}

/* ---- one page ---------------------------------------------------------------------------------
 */

static int32_t oldest_seen(const struct att_unit *u, int32_t row)
{
    int32_t oldest = u->p->window > 0 ? u->seq->pos0 + row - u->p->window + 1 : 0;

    return oldest > 0 ? oldest : 0;
}

bool att_page_hidden(const struct att_block *b, int32_t page)
{
    int32_t oldest = oldest_seen(&b->u, b->row0);
    int32_t last = b->u.seq->pos0 + b->row0 + b->n_rows - 1;
    int32_t pos[OPS_PAGE_SLOTS];
    bool seen = false;

    att_positions(&b->u, page * OPS_PAGE_SLOTS, pos);
    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        seen |= pos[i] >= oldest && pos[i] <= last;
    }
    return !seen;
}

/* Are slots of the page at hand empty, later than this row, or before its window? */
static bool is_masked(const struct att_block *b, int32_t row)
{
    return b->pos_min < oldest_seen(&b->u, row) || b->pos_max > b->u.seq->pos0 + row;
}

/* A head's 64 slots as f32, as they lie or converted. */
static const float *as_f32(const struct att_block *b, enum ops_kv_type type, const void *src,
                           size_t n, float *dst)
{
    cpu_kv_unpack_fn *unpack = cpu_kv_unpack(&b->u.cpu->table, type);

    if (!unpack) {
        return src;
    }
    unpack(src, n, dst);
    return dst;
}

static void decode_blocks(const struct att_unit *u, enum ops_kv_type type, const uint8_t *src,
                          int32_t n, float *dst)
{
    if (type == OPS_KV_G4) {
        u->cpu->table.unpack_g4(src, (size_t)n, dst);
    } else {
        kv_code_decode(type, src, 0, dst, n);
    }
}

/* Types of blocks lie by slot. */
static const float *page_values(const struct att_block *b, const uint8_t *src)
{
    const struct att_unit *u = &b->u;
    size_t n = (size_t)kv_page_pad(u->l->v_dim) * OPS_PAGE_SLOTS;

    if (!kv_page_by_slot(u->l->v_type)) {
        return as_f32(b, u->l->v_type, src, n, u->t->v);
    }
    decode_blocks(u, u->l->v_type, src, (int32_t)n, u->t->v);
    return u->t->v;
}

static const float *turned_keys(const struct att_unit *u, const uint8_t *src)
{
    size_t row_bytes = (size_t)ops_kv_type_bytes(u->l->k_type, u->l->k_dim);
    const float *row = u->t->row;
    float *k = u->t->k;

    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        decode_blocks(u, u->l->k_type, src + (size_t)i * row_bytes, u->l->k_dim, u->t->row);
        for (int32_t d = 0; d < u->l->k_dim; d++) {
            k[d * OPS_PAGE_SLOTS + i] = row[d];
        }
    }
    return k;
}

static const float *page_keys(const struct att_block *b, const void *src, int32_t slot0)
{
    const struct att_unit *u = &b->u;
    size_t n = (size_t)u->l->k_dim * OPS_PAGE_SLOTS;
    const float *k = kv_page_by_slot(u->l->k_type) ? turned_keys(u, src)
                                                   : as_f32(b, u->l->k_type, src, n, u->t->k);

    if (!b->turned) {
        return k;
    }
    if (k != u->t->k) {
        memcpy(u->t->k, k, n * sizeof(float));
    }
    att_rotate_keys(u, b->ranks, slot0, u->t->k);
    return u->t->k;
}

/* One query head's rows against the K in `k`, then their weights against the V in `v`. */
static void keys(const struct att_block *b, const float *k, int32_t head)
{
    const struct att_unit *u = &b->u;
    const float *q = u->p->q + (size_t)(u->seq->row0 + b->row0) * (size_t)u->p->ldq +
                     (size_t)(u->group * u->n_heads + head) * (size_t)u->l->k_dim;
    size_t ldq = (size_t)u->p->ldq;

    if (b->turned) {
        ldq = (size_t)u->l->k_dim;
        q = u->t->q + (size_t)(head * b->n_rows) * ldq;
    }
    u->cpu->table.qk_f32(k, u->l->k_dim, q, ldq, b->n_rows, u->t->x, OPS_PAGE_SLOTS, NULL);
}

static void values(const struct att_block *b, const float *v, int32_t head, int32_t n_slots)
{
    int32_t pad = kv_page_pad(b->u.l->v_dim);

    b->u.cpu->table.pv_f32(v, pad, b->u.t->x, OPS_PAGE_SLOTS, b->n_rows, n_slots,
                           b->u.t->acc + (size_t)(head * b->n_rows) * (size_t)pad, NULL);
}

/* Brings what a pair has so far to a new maximum. */
static void raise_max(const struct att_block *b, int32_t pair, float max, enum att_mode mode)
{
    int32_t pad = kv_page_pad(b->u.l->v_dim);
    float factor = b->max[pair] > CPU_KV_MASKED ? exp2f(b->max[pair] - max) : 0;
    float *acc = b->u.t->acc + (size_t)pair * (size_t)pad;

    b->max[pair] = max;
    b->sum[pair] *= factor;
    b->seen_sum[pair] *= mode == ATT_TEMPERED ? 1.0f : factor; /* which has its own maximum */
    for (int32_t d = 0; d < pad; d++) {
        acc[d] *= factor;
    }
}

void att_temper(const struct att_block *b, int32_t head, int32_t i, int32_t page, const float *x,
                const float *noise)
{
    const struct att_unit *u = &b->u;
    int32_t pair = head * b->n_rows + i;
    float *seen = att_seen_of(b, pair, page);
    float max = u->cpu->table.kv_temper(x, noise, att_tau(u, b->row0 + i), seen);

    if (max > b->seen_max[pair]) {
        b->seen_sum[pair] *= b->seen_max[pair] > CPU_KV_MASKED ? exp2f(b->seen_max[pair] - max) : 0;
        b->seen_max[pair] = max;
    }
    max = b->seen_max[pair];
    b->seen_sum[pair] += u->cpu->table.kv_exp(seen, max > CPU_KV_MASKED ? max : 0, NULL, NULL);
    *att_seen_max_of(b, pair, page) = max;
}

/* A page's noise for one query head in u->t->noise, where it is the same for all rows of the block
 * (noise=once); else NULL. */
static const float *noise_of_page(const struct att_block *b, int32_t head)
{
    const struct att_unit *u = &b->u;
    int32_t row = b->row0 + b->n_rows - 1;
    enum att_mode mode = att_mode(u, row);

    if (mode == ATT_UNSEEN || mode == ATT_SOFTMAX || !u->observe->noise_once ||
        u->observe->tau_step != 0) {
        return NULL;
    }
    return att_noise(u, mode, row, head, u->t->pos);
}

/* Row i of the block and one head: logits in u->t->x become weights. `noise`: noise_of_page(). */
static void pair_page(const struct att_block *b, int32_t head, int32_t i, int32_t page,
                      const uint16_t *k_scale, const uint16_t *v_scale, const float *noise)
{
    const struct att_unit *u = &b->u;
    const int32_t *pos = u->t->pos;
    int32_t pair = head * b->n_rows + i;
    int32_t row = b->row0 + i;
    enum att_mode mode = att_mode(u, row);
    float *x = u->t->x + (size_t)i * OPS_PAGE_SLOTS;
    float *kept = mode == ATT_SOFTMAX || mode == ATT_GUMBEL ? att_seen_of(b, pair, page) : NULL;
    float max = att_logits(u, row, head, k_scale, pos, b->distance, is_masked(b, row), x);
    float sum;

    if (max > b->max[pair]) {
        raise_max(b, pair, max, mode);
    }
    if (!noise && (mode == ATT_TEMPERED || mode == ATT_GUMBEL)) {
        noise = att_noise(u, mode, row, head, pos);
    }
    if (mode == ATT_TEMPERED) {
        att_temper(b, head, i, page, x, noise);
    }
    max = b->max[pair] > CPU_KV_MASKED ? b->max[pair] : 0;
    if (mode == ATT_GUMBEL) {
        b->sum[pair] += u->cpu->table.kv_exp_weighed(x, max, v_scale, noise, kept, &sum);
    } else {
        sum = u->cpu->table.kv_exp(x, max, v_scale, kept);
        b->sum[pair] += sum;
    }
    if (kept) {
        *att_seen_max_of(b, pair, page) = b->max[pair];
        b->seen_sum[pair] += sum;
    }
}

/* Line `i` and every n-th after it of the next page: K and V are near when their turn comes. */
static void prefetch(const uint8_t *page, uint64_t bytes, int32_t i, int32_t n)
{
    for (uint64_t at = (uint64_t)i * 64; at < bytes; at += (uint64_t)n * 64) {
        __builtin_prefetch(page + at, 0, 2);
    }
}

/* Query heads one by one, so that a head's 64 x 64 weights stay in L1. Heads that read the same K
 * or V head are neighbours: each is converted once. */
static void one_page(struct att_block *b, int32_t page)
{
    const struct att_unit *u = &b->u;
    const struct ops_kv_layout *l = u->l;
    int32_t slot0 = page * OPS_PAGE_SLOTS;
    int32_t left = u->seq->kv.n_slots - slot0;
    uint8_t *bytes = kv_page_of(&u->seq->kv, u->group, slot0);
    int32_t next = page + 1 < b->n_pages ? slot0 + OPS_PAGE_SLOTS : slot0;
    const uint8_t *next_bytes = kv_page_of(&u->seq->kv, u->group, next);
    const float *k = NULL;
    const float *v = NULL;
    const uint16_t *k_scale;
    const uint16_t *v_scale;
    const float *noise;

    att_positions(u, slot0, u->t->pos);
    b->pos_min = INT32_MAX;
    b->pos_max = -1;
    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        b->pos_min = min_i32(b->pos_min, u->t->pos[i]);
        b->pos_max = b->pos_max > u->t->pos[i] ? b->pos_max : u->t->pos[i];
        b->distance[i] = l->k_unrotated ? u->t->rank[slot0 + i] + b->rank_offset : u->t->pos[i];
    }
    for (int32_t h = 0; h < u->n_heads; h++) {
        if (h % u->share_k == 0) {
            k = page_keys(b, kv_page_k(l, bytes, h / u->share_k), slot0);
        }
        if (h % u->share_v == 0) {
            v = page_values(b, kv_page_v(l, bytes, h / u->share_v));
        }
        k_scale = kv_page_k_scale(l, bytes, h / u->share_k);
        v_scale = kv_page_v_scale(l, bytes, h / u->share_v);
        keys(b, k, h);
        noise = noise_of_page(b, h);
        for (int32_t i = 0; i < b->n_rows; i++) {
            prefetch(next_bytes, l->page_bytes, h * b->n_rows + i, b->n_pairs);
            pair_page(b, h, i, page, k_scale, v_scale, noise);
        }
        values(b, v, h, left < OPS_PAGE_SLOTS ? left : OPS_PAGE_SLOTS);
    }
}

/* ---- one block --------------------------------------------------------------------------------
 */

static void write_out(const struct att_block *b)
{
    const struct att_unit *u = &b->u;
    int32_t pad = kv_page_pad(u->l->v_dim);

    for (int32_t pair = 0; pair < b->n_pairs; pair++) {
        const float *acc =
            u->t->acc + (size_t)(pair / b->n_rows * b->ld_rows + pair % b->n_rows) * (size_t)pad;
        float *out = u->p->out +
                     (size_t)(u->seq->row0 + b->row0 + pair % b->n_rows) * (size_t)u->p->ldo +
                     (size_t)(u->group * u->n_heads + pair / b->n_rows) * (size_t)u->l->v_dim;
        float sum = att_with_sink(u->p, u->group * u->n_heads + pair / b->n_rows, b->max[pair],
                                  b->sum[pair]);
        float inv = sum > 0 ? 1.0f / sum : 0;

        for (int32_t d = 0; d < u->l->v_dim; d++) {
            out[d] = acc[d] * inv;
        }
    }
}

/* What brings each observed pair's weights of a page to probabilities, in the order of rows, then
 * heads. */
struct factors {
    int32_t n;
    int32_t whole;    /* n to whole 64 */
    int32_t from;     /* the first observed row of the block */
    float *f;         /* (whole) of the page at hand */
    const float *top; /* (n) what the pair's weights go by in the end */
    const float *inv; /* (n) 1 / their sum */
};

static struct factors factors_of(const struct att_block *b, int32_t from)
{
    const struct att_unit *u = &b->u;
    const int32_t n = (b->n_rows - from) * u->n_heads;
    const int32_t whole = (n + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;
    float *f = u->t->state + 4 * b->n_pairs;
    float *top = f + whole;
    float *inv = top + n;

    for (int32_t i = 0; i < n; i++) {
        int32_t row = from + i / u->n_heads;
        int32_t pair = i % u->n_heads * b->n_rows + row;

        top[i] = att_mode(u, b->row0 + row) == ATT_TEMPERED ? b->seen_max[pair] : b->max[pair];
        inv[i] = b->seen_sum[pair] > 0 ? 1.0f / b->seen_sum[pair] : 0;
    }
    return (struct factors){.n = n, .whole = whole, .from = from, .f = f, .top = top, .inv = inv};
}

static void factors_of_page(const struct att_block *b, const struct factors *f, int32_t page)
{
    for (int32_t i = 0, row = f->from; i < f->n; row++) {
        for (int32_t h = 0; h < b->u.n_heads; h++, i++) {
            float lower = *att_seen_max_of(b, h * b->n_rows + row, page) - f->top[i];

            f->f[i] = lower < 0 ? lower : 0;
        }
    }
    memset(f->f + f->n, 0, (size_t)(f->whole - f->n) * sizeof(*f->f));
    for (int32_t i = 0; i < f->whole; i += OPS_PAGE_SLOTS) {
        (void)b->u.cpu->table.kv_exp(f->f + i, 0, NULL, NULL);
    }
    for (int32_t i = 0; i < f->n; i++) {
        f->f[i] *= f->inv[i];
    }
}

/* Adds the block's weights to the scores, rows in order. */
static void commit(const struct att_block *b)
{
    const struct att_unit *u = &b->u;
    const struct ops_observe *o = u->observe;
    const size_t ld = (size_t)b->n_pages * OPS_PAGE_SLOTS; /* from row to row */
    const int32_t from = o->row_first > b->row0 ? min_i32(o->row_first - b->row0, b->n_rows) : 0;
    const struct factors f = factors_of(b, from);
    struct cpu_kv_score rows = {
        .ld_row = ld,
        .ld_head = (size_t)b->n_rows * ld,
        .f = f.f,
        .n_rows = b->n_rows - from,
        .n_heads = u->n_heads,
        .weight = o->row_weight0,
        .growth = o->row_growth,
    };

    for (int32_t row = o->row_first; row < b->row0; row++) {
        rows.weight *= o->row_growth;
    }
    if (b->index == 0) {
        att_damp(u, 0, u->seq->kv.n_slots);
    }
    for (int32_t page = 0; page < b->n_pages && rows.n_rows > 0; page++) {
        if (att_page_hidden(b, page)) {
            continue;
        }
        factors_of_page(b, &f, page);
        rows.p = att_seen_of(b, from, page);
        att_score(u, page * OPS_PAGE_SLOTS, &rows);
    }
}

static void await(atomic_int *done, int32_t index)
{
    for (int spins = 0; atomic_load_explicit(done, memory_order_acquire) < index; spins++) {
        if (spins > 1000) {
            (void)sched_yield();
        }
    }
}

/* pos=new: ranks of all slots, queries of all rows turned back. */
static void turn_queries(struct att_block *b)
{
    const struct att_unit *u = &b->u;
    const struct ops_rope *rope = u->p->unrotated_rope;

    b->rank_offset = att_rank(u);
    b->turned = rope && rope->form != OPS_ROPE_NONE;
    for (int32_t pair = 0; pair < b->n_pairs && b->turned; pair++) {
        int32_t row = u->seq->row0 + b->row0 + pair % b->n_rows;
        int32_t head = u->group * u->n_heads + pair / b->n_rows;

        att_turn_query(u, b->rank_offset,
                       u->p->q + (size_t)row * (size_t)u->p->ldq +
                           (size_t)head * (size_t)u->l->k_dim,
                       u->t->q + (size_t)pair * (size_t)u->l->k_dim);
    }
}

static void run_block(struct att_block *b, atomic_int *done)
{
    struct att_unit *u = &b->u;
    int32_t last_pos = u->seq->pos0 + b->row0 + b->n_rows - 1;
    int32_t oldest = u->p->window > 0 ? u->seq->pos0 + b->row0 - u->p->window + 1 : 0;
    int32_t first_page = 0;
    int32_t n_pages = page_count(u->seq);

    b->n_pairs = b->n_rows * u->n_heads;
    b->max = u->t->state;
    b->sum = b->max + b->n_pairs;
    b->seen_max = b->sum + b->n_pairs;
    b->seen_sum = b->seen_max + b->n_pairs;
    if (!u->seq->kv.slot_pos) { /* a slot's number is its position */
        int32_t visible = last_pos < 0 ? 0 : last_pos / OPS_PAGE_SLOTS + 1;

        n_pages = visible < n_pages ? visible : n_pages;
        first_page = oldest > 0 && !u->observe ? oldest / OPS_PAGE_SLOTS : 0;
    }
    b->n_pages = n_pages;
    b->turned = false;
    if (u->l->k_unrotated) {
        turn_queries(b);
    }
    for (int32_t i = 0; i < b->n_pairs; i++) {
        b->max[i] = CPU_KV_MASKED;
        b->sum[i] = 0;
        b->seen_max[i] = CPU_KV_MASKED;
        b->seen_sum[i] = 0;
    }
    b->tiles = att_tiles_serve(u);
    b->ld_rows = b->tiles ? (b->n_rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS : b->n_rows;
    memset(u->t->acc, 0,
           (size_t)(b->ld_rows * u->n_heads) * (size_t)kv_page_pad(u->l->v_dim) * sizeof(float));
    if (b->tiles) {
        att_tiles_block(b, first_page);
    }
    for (int32_t page = first_page; page < n_pages && !b->tiles; page++) {
        if (!att_page_hidden(b, page)) {
            one_page(b, page);
        }
    }
    write_out(b);
    if (u->observe) {
        await(done, b->index);
        commit(b);
        atomic_store_explicit(done, b->index + 1, memory_order_release);
    }
}

/* ---- units ------------------------------------------------------------------------------------
 */

/* Unit `index` of the call: sequences in order, blocks in order, groups inside. */
static bool find_block(const struct att_job *job, const struct kv_scratch *s, int32_t index,
                       struct att_block *b)
{
    for (int32_t i = 0; i < job->p->n_seqs; i++) {
        const struct ops_seq *seq = &job->p->seqs[i];
        int32_t n_groups = seq->kv.layout->n_groups;
        int32_t rows;
        int32_t n;

        if ((seq->row0 < job->p->rows.n_decode && !att_by_page(seq->kv.layout)) ||
            seq->n_rows < 1) {
            continue;
        }
        b->u = att_unit_make(job->cpu, job->p, i, 0, &s->t);
        rows = block_rows(&b->u, s->seen_floats);
        n = (seq->n_rows + rows - 1) / rows;
        if (index < n * n_groups) {
            b->seq = i;
            b->ranks = &job->ranks;
            b->index = index / n_groups;
            b->u.group = index % n_groups;
            b->row0 = b->index * rows;
            b->n_rows = seq->n_rows - b->row0 < rows ? seq->n_rows - b->row0 : rows;
            return true;
        }
        index -= n * n_groups;
    }
    return false;
}

static void blocks(void *arg, int tid, int n_threads)
{
    struct att_job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);
    struct att_block b;

    (void)n_threads;
    while (find_block(job, &s, pool_counter_take(&job->next), &b)) {
        run_block(&b, &s.commit[b.seq * job->cpu->limits.max_heads + b.u.group]);
    }
}

int att_prefill(struct cpu *cpu, const struct ops_attention *p)
{
    struct att_job job = {.cpu = cpu, .p = p};
    struct kv_scratch s = cpu_kv_scratch(cpu, 0);
    bool by_page = false;
    bool unrotated = false;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        by_page = by_page || att_by_page(p->seqs[i].kv.layout);
        unrotated = unrotated || p->seqs[i].kv.layout->k_unrotated;
    }
    if (p->rows.n == p->rows.n_decode && !by_page) {
        return 0;
    }
    if (unrotated && p->unrotated_rope) {
        job.ranks = att_rank_table(cpu, &s, p->unrotated_rope);
    }
    for (int32_t i = 0; p->observe && i < p->n_seqs * cpu->limits.max_heads; i++) {
        atomic_store(&s.commit[i], 0);
    }
    pool_run(cpu->pool, blocks, &job);
    return 0;
}
