/* SPDX-License-Identifier: Apache-2.0 */
/* out = softmax(logits) V, and what a scoring policy observes on the way.
 *
 * The work is cut into units of one sequence, one head group and a block of rows, small enough
 * that the logits of all its (row, query head) pairs fit the thread's scratch. A unit goes over
 * the pages twice: K gives the logits of every pair, V the weighted sums; each page is decoded once
 * for all pairs. Between the two lies an ordinary softmax: largest logit, expf, sum in slot order.
 *
 * Logits of 16 slots are formed side by side from a transposed page, each sum in order of dims. A
 * slot that a row does not see contributes nothing whatever bytes it holds.
 *
 * An observed sequence's rows add to the same scores in order, so its unit is the whole sequence
 * (of one group). */

#include "kernels/ref/attention.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/hadamard.h"
#include "kernels/kv_latest.h"
#include "kernels/noise.h"

struct job {
    struct ref *ref;
    const struct ops_attention *p;
    struct pool_counter next;
};

static int32_t heads_of_group(const struct ops_attention *p, const struct ops_seq *seq)
{
    return p->n_q / seq->kv.layout->n_groups;
}

static int32_t block_rows(int32_t n_heads)
{
    return n_heads < REF_PAIRS ? REF_PAIRS / n_heads : 1;
}

/* ---- logits -------------------------------------------------------------------------------- */

/* Live slots of the group by position: rank[s] of slot s. Quadratic; pos=new budgets are small. */
static void rank_slots(struct ref_unit *u)
{
    const struct ops_kv *kv = &u->seq->kv;
    int32_t last = u->seq->pos0 + u->seq->n_rows - 1;
    int32_t below_last = 0;

    for (int32_t s = 0; s < kv->n_slots; s++) {
        int32_t pos = ref_kv_pos(kv, u->group, s);
        int32_t rank = 0;

        for (int32_t o = 0; o < kv->n_slots; o++) {
            int32_t other = ref_kv_pos(kv, u->group, o);

            rank += other >= 0 && other < pos;
        }
        u->t->rank[s] = rank;
        below_last += pos >= 0 && pos < last;
    }
    u->rank_offset = last - below_last;
}

/* Position of a slot for RoPE and ALiBi. */
static int32_t slot_angle(const struct ref_unit *u, int32_t slot)
{
    return u->l->k_unrotated ? u->t->rank[slot] + u->rank_offset
                             : ref_kv_pos(&u->seq->kv, u->group, slot);
}

bool ref_visible(const struct ref_unit *u, int32_t slot, int32_t row_pos)
{
    int32_t pos = ref_kv_pos(&u->seq->kv, u->group, slot);

    return pos >= 0 && pos <= row_pos && (u->p->window == 0 || pos > row_pos - u->p->window) &&
           slot + 1 != u->hidden;
}

/* Are some slots read from the entries of the latest tokens? Each row has its own. */
static bool has_latest(const struct ref_unit *u)
{
    return u->seq->kv.latest && u->seq->row0 < u->p->rows.n_decode;
}

static bool is_latest(const struct ref_unit *u, enum ops_kv_type type, int32_t row, int32_t slot)
{
    return has_latest(u) && ops_kv_in_four_bits(type) &&
           kv_latest_has(&u->seq->kv, u->seq->pos0 + row, ref_kv_pos(&u->seq->kv, u->group, slot));
}

/* One K head of slots [s0, s0 + n) as `row` sees them, transposed: (k_dim, OPS_PAGE_SLOTS). */
static void decode_k(const struct ref_unit *u, int32_t row, int32_t k_head, int32_t s0, int32_t n)
{
    size_t head_bytes = ops_kv_type_bytes(u->l->k_type, u->l->k_dim);
    float *head = u->t->head;

    for (int32_t i = 0; i < n; i++) {
        struct ref_slot s = ref_kv_slot(&u->seq->kv, u->group, s0 + i);

        kv_code_decode(u->l->k_type, s.k + (size_t)k_head * head_bytes,
                       ops_kv_scale_bytes(u->l->k_type) ? s.k_scale[k_head] : 0, head, u->l->k_dim);
        if (is_latest(u, u->l->k_type, row, s0 + i)) {
            int32_t pos = ref_kv_pos(&u->seq->kv, u->group, s0 + i);

            kv_latest_load(kv_latest_k(&u->seq->kv, u->group, pos, k_head), head, u->l->k_dim);
        }
        if (u->l->k_unrotated && u->p->unrotated_rope) {
            ref_rope_head(u->p->unrotated_rope, head, slot_angle(u, s0 + i));
        }
        if (u->round_k) {
            uint16_t scale;

            kv_code_encode(OPS_KV_FP8, head, u->t->codes, &scale, u->l->k_dim);
            kv_code_decode(OPS_KV_FP8, u->t->codes, scale, head, u->l->k_dim);
        }
        for (int32_t d = 0; d < u->l->k_dim; d++) {
            u->t->page[d * OPS_PAGE_SLOTS + i] = head[d];
        }
    }
}

static void dot_slots(const float *restrict q, const float *restrict kt, int32_t n_dims,
                      float *restrict ret)
{
    for (int i = 0; i < REF_TILE; i++) {
        ret[i] = 0;
    }
    for (int32_t d = 0; d < n_dims; d++) {
        for (int i = 0; i < REF_TILE; i++) {
            ret[i] += q[d] * kt[d * OPS_PAGE_SLOTS + i];
        }
    }
}

float ref_slope(const struct ref_unit *u, int32_t head)
{
    return u->p->alibi_max > 0 ? ops_alibi_slope(head, u->p->n_q, u->p->alibi_max) : 0;
}

float ref_finish_logit(const struct ref_unit *u, float dot, float slope, int32_t slot,
                       int32_t row_pos)
{
    const struct ops_attention *p = u->p;
    float x = p->scale * dot;

    if (!ref_visible(u, slot, row_pos)) {
        return -INFINITY;
    }
    if (slope != 0) {
        x -= slope * (float)(row_pos - slot_angle(u, slot));
    }
    if (p->softcap > 0) {
        x = p->softcap * tanhf(x / p->softcap);
    }
    return fminf(fmaxf(x, -1e30f), 1e30f);
}

const float *ref_query(const struct ref_unit *u, int32_t row, int32_t head)
{
    return u->p->q + (size_t)(u->seq->row0 + row) * (size_t)u->p->ldq +
           (size_t)head * (size_t)u->l->k_dim;
}

/* Logits of one page, row and query head. */
void ref_page_logits(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                     float *logits)
{
    const float *q = ref_query(u, row, head);
    float slope = ref_slope(u, head);
    float dots[REF_TILE];

    for (int32_t i = 0; i < n; i += REF_TILE) {
        dot_slots(q, u->t->page + i, u->l->k_dim, dots);
        for (int32_t j = i; j < n && j < i + REF_TILE; j++) {
            logits[s0 + j] = ref_finish_logit(u, dots[j - i], slope, s0 + j, u->seq->pos0 + row);
        }
    }
}

/* ---- softmax ------------------------------------------------------------------------------- */

/* x becomes e^(x - max); returns 1 / their sum, 0 when all are -Inf. */
float ref_softmax(float *x, int32_t n)
{
    float max = -INFINITY;
    float sum = 0;

    for (int32_t i = 0; i < n; i++) {
        max = fmaxf(max, x[i]);
    }
    for (int32_t i = 0; i < n; i++) {
        x[i] = max > -INFINITY ? expf(x[i] - max) : 0.0f;
        sum += x[i];
    }
    return sum > 0 ? 1.0f / sum : 0.0f;
}

/* Adds one row's probabilities to the scores; logits (n_heads, max_slots) are still untouched. */
void ref_observe_row(const struct ref_unit *u, int32_t row, const float *logits)
{
    const struct ops_observe *o = u->observe;
    const struct ops_kv *kv = &u->seq->kv;
    float *score = kv->score + (size_t)u->group * (size_t)kv->cap;
    float tau = o->tau0 + (float)row * o->tau_step;
    float weight = o->row_weight0;
    float *p = u->t->p;

    for (int32_t r = o->row_first; r < row; r++) {
        weight *= o->row_growth;
    }
    memset(u->t->p_sum, 0, (size_t)kv->n_slots * sizeof(float));
    for (int32_t h = 0; h < u->n_heads; h++) {
        uint32_t head = (uint32_t)(u->group * u->n_heads + h);
        float inv;

        for (int32_t s = 0; s < kv->n_slots; s++) {
            float x = logits[(size_t)h * u->max_slots + (size_t)s];

            p[s] = x == -INFINITY ? x
                                  : (x + noise_draw(o, head, (uint32_t)(u->seq->pos0 + row),
                                                    (uint32_t)ref_kv_pos(kv, u->group, s))) /
                                        tau;
        }
        inv = ref_softmax(p, kv->n_slots);
        for (int32_t s = 0; s < kv->n_slots; s++) {
            u->t->p_sum[s] += p[s] * inv;
        }
    }
    for (int32_t s = 0; s < kv->n_slots; s++) {
        score[s] += weight * u->t->p_sum[s];
    }
}

static void damp_scores(const struct ref_unit *u)
{
    const struct ops_kv *kv = &u->seq->kv;
    float *score = kv->score + (size_t)u->group * (size_t)kv->cap;
    float factor = 1;

    for (int32_t r = u->observe->row_first; r < u->seq->n_rows; r++) {
        factor *= u->observe->damp;
    }
    for (int32_t s = 0; s < kv->n_slots; s++) {
        score[s] *= factor;
    }
}

/* ---- values -------------------------------------------------------------------------------- */

/* One V head of slots [s0, s0 + n) as `row` sees them: (n, v_dim). */
static void decode_v(const struct ref_unit *u, int32_t row, int32_t v_head, int32_t s0, int32_t n)
{
    size_t head_bytes = ops_kv_type_bytes(u->l->v_type, u->l->v_dim);

    for (int32_t i = 0; i < n; i++) {
        struct ref_slot s = ref_kv_slot(&u->seq->kv, u->group, s0 + i);

        kv_code_decode(u->l->v_type, s.v + (size_t)v_head * head_bytes,
                       ops_kv_scale_bytes(u->l->v_type) ? s.v_scale[v_head] : 0,
                       u->t->page + (size_t)i * (size_t)u->l->v_dim, u->l->v_dim);
        if (is_latest(u, u->l->v_type, row, s0 + i)) {
            int32_t pos = ref_kv_pos(&u->seq->kv, u->group, s0 + i);

            kv_latest_load(kv_latest_v(&u->seq->kv, u->group, pos, v_head),
                           u->t->page + (size_t)i * (size_t)u->l->v_dim, u->l->v_dim);
        }
    }
}

float *ref_out(const struct ref_unit *u, int32_t row, int32_t head)
{
    return u->p->out + (size_t)(u->seq->row0 + row) * (size_t)u->p->ldo +
           (size_t)head * (size_t)u->l->v_dim;
}

static void add_values(const struct ref_unit *u, const float *restrict e, int32_t n,
                       float *restrict out)
{
    for (int32_t i = 0; i < n; i++) {
        if (e[i] == 0) {
            continue;
        }
        for (int32_t d = 0; d < u->l->v_dim; d++) {
            out[d] += e[i] * u->t->page[i * u->l->v_dim + d];
        }
    }
}

/* What brings e^(x - max) to weights, of the softmax over n slots and, where there is one, the
 * head's sink. */
static float softmax_with_sink(const struct ref_unit *u, int32_t head, float *x, int32_t n)
{
    const float *sinks = u->p->sinks ? u->p->sinks->device : NULL;
    float max = -INFINITY;
    float scale;

    for (int32_t i = 0; i < n && sinks; i++) {
        max = fmaxf(max, x[i]);
    }
    scale = ref_softmax(x, n);
    return sinks && scale > 0 ? 1.0f / (1.0f / scale + expf(sinks[head] - max)) : scale;
}

/* ---- units --------------------------------------------------------------------------------- */

void ref_value_pair(const struct ref_unit *u, int32_t row, int32_t head, int32_t s0, int32_t n,
                    float *logits)
{
    add_values(u, logits + s0, n, ref_out(u, row, head));
}

/* Decodes each page of each K (or V) head once and calls fn for the rows [r0, r1) and the query
 * heads that read it. */
void ref_over_pages(const struct ref_unit *u, int32_t r0, int32_t r1, bool keys, ref_pair_fn *fn)
{
    int32_t n_kv_heads = keys ? u->l->k_heads : u->l->v_heads;
    int32_t share = u->n_heads / n_kv_heads; /* query heads that read one K or V head */

    for (int32_t kv_head = 0; kv_head < n_kv_heads; kv_head++) {
        for (int32_t s0 = 0; s0 < u->seq->kv.n_slots; s0 += OPS_PAGE_SLOTS) {
            int32_t left = u->seq->kv.n_slots - s0;
            int32_t n = left < OPS_PAGE_SLOTS ? left : OPS_PAGE_SLOTS;

            if (keys) {
                decode_k(u, r0, kv_head, s0, n);
            } else {
                decode_v(u, r0, kv_head, s0, n);
            }
            for (int32_t pair = 0; pair < (r1 - r0) * share; pair++) {
                int32_t row = r0 + pair / share;
                int32_t h = kv_head * share + pair % share;

                fn(u, row, u->group * u->n_heads + h, s0, n,
                   u->t->logits + (size_t)((row - r0) * u->n_heads + h) * u->max_slots);
            }
        }
    }
}

static void block(const struct ref_unit *u, int32_t r0, int32_t r1)
{
    ref_over_pages(u, r0, r1, true, ref_page_logits);
    for (int32_t row = r0; row < r1; row++) {
        float *logits = u->t->logits + (size_t)(row - r0) * (size_t)u->n_heads * u->max_slots;

        if (u->observe && row >= u->observe->row_first) {
            ref_observe_row(u, row, logits);
        }
        for (int32_t h = 0; h < u->n_heads; h++) {
            float *x = logits + (size_t)h * u->max_slots;
            float scale = softmax_with_sink(u, u->group * u->n_heads + h, x, u->seq->kv.n_slots);

            for (int32_t s = 0; s < u->seq->kv.n_slots; s++) {
                x[s] *= scale;
            }
            memset(ref_out(u, row, u->group * u->n_heads + h), 0,
                   (size_t)u->l->v_dim * sizeof(float));
        }
    }
    ref_over_pages(u, r0, r1, false, ref_value_pair);
}

static void run_unit(struct ref_unit *u)
{
    int32_t step = block_rows(u->n_heads);

    if (u->l->k_unrotated) {
        rank_slots(u);
    }
    if (u->observe) {
        damp_scores(u);
    }
    for (int32_t r = u->row; r < u->row_end;) {
        int32_t end = r + step < u->row_end ? r + step : u->row_end;

        if (has_latest(u)) {
            end = r + 1;
        }
        if (ref_selects(u, r)) {
            ref_select_row(u, r);
            end = r + 1;
        } else {
            block(u, r, end);
        }
        r = end;
    }
}

static const struct ops_observe *observe_of(const struct ops_attention *p, int32_t seq)
{
    const struct ops_observe *o = p->observe ? &p->observe[seq] : NULL;

    return o && o->row_first < p->seqs[seq].n_rows && p->seqs[seq].kv.score ? o : NULL;
}

/* Finds unit `index` of the call; false when there are fewer. */
static bool find_unit(const struct ops_attention *p, int32_t index, struct ref_unit *u)
{
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_seq *seq = &p->seqs[i];
        int32_t n_heads = heads_of_group(p, seq);
        int32_t rows = observe_of(p, i) ? seq->n_rows : block_rows(n_heads);
        int32_t n_blocks = rows > 0 ? (seq->n_rows + rows - 1) / rows : 0;

        if (index < n_blocks * seq->kv.layout->n_groups) {
            u->seq = seq;
            u->observe = observe_of(p, i);
            u->select = p->select ? &p->select[i] : NULL;
            u->l = seq->kv.layout;
            u->n_heads = n_heads;
            u->group = index / n_blocks;
            u->row = index % n_blocks * rows;
            u->row_end = u->row + rows < seq->n_rows ? u->row + rows : seq->n_rows;
            return true;
        }
        index -= n_blocks * seq->kv.layout->n_groups;
    }
    return false;
}

static void units(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    struct ref_unit u = {
        .p = job->p,
        .t = &job->ref->threads[tid],
        .max_slots = (size_t)job->ref->limits.max_slots,
    };

    (void)n_threads;
    while (find_unit(job->p, pool_counter_take(&job->next), &u)) {
        run_unit(&u);
    }
}

/* Sums of transformed V become sums of V. */
static void turn_back(const struct ops_attention *p)
{
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_seq *seq = &p->seqs[i];
        int32_t dim = seq->kv.layout->v_dim;

        for (int32_t j = 0; j < seq->n_rows * p->n_q && seq->kv.v_hadamard; j++) {
            hadamard_head(p->out + (size_t)(seq->row0 + j / p->n_q) * (size_t)p->ldo +
                              (size_t)(j % p->n_q) * (size_t)dim,
                          dim);
        }
    }
}

int ref_attention(struct backend *be, const struct ops_attention *p)
{
    struct ref *ref = (struct ref *)be;
    struct job job = {.ref = ref, .p = p};

    if (p->sinks && (p->select || p->sinks->n_cols != p->n_q)) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (p->seqs[i].kv.n_slots > ref->limits.max_slots ||
            heads_of_group(p, &p->seqs[i]) > ref->limits.max_heads ||
            l->k_dim > ref->limits.max_head_dim || l->v_dim > ref->limits.max_head_dim ||
            p->n_q % (l->n_groups * l->k_heads) != 0 || p->n_q % (l->n_groups * l->v_heads) != 0) {
            return -EINVAL;
        }
        if (p->select && !ref_select_valid(ref, p, i)) {
            return -EINVAL;
        }
    }
    pool_run(ref->pool, units, &job);
    turn_back(p);
    return 0;
}
