/* SPDX-License-Identifier: Apache-2.0 */
/* attention: sequences of the decode class and of the prefill class go to their kernels, in batches
 * that share a page layout. A sequence's several decode rows (drafts) are so many sequences of one
 * row. Rows that select go apart from those that read everything. */

#include <cerrno>

#include "kernels/cuda/kv_four.cuh"
#include "kernels/cuda/select.cuh"

static int check(const struct cuda *cu, const struct ops_attention *p)
{
    if (p->rows.n_decode > cu->limits.max_decode || p->rows.n > cu->limits.max_rows ||
        (p->sinks && (p->select || p->sinks->n_cols != p->n_q))) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (p->seqs[i].kv.n_slots > cu->limits.max_slots || p->n_q > cu->limits.max_heads ||
            l->k_dim > cu->limits.max_head_dim || l->v_dim > cu->limits.max_head_dim ||
            l->k_unrotated ||
            (p->select && p->select[i].kind != OPS_SELECT_ALL && kv_four(l->v_type)) ||
            p->n_q % (l->n_groups * l->k_heads) != 0 || p->n_q % (l->n_groups * l->v_heads) != 0 ||
            (p->observe && !cu->limits.observe && p->seqs[i].kv.score &&
             p->observe[i].row_first < p->seqs[i].n_rows) ||
            (p->select && !cuda_select_valid(cu, p, i))) {
            return -EINVAL;
        }
    }
    return 0;
}

/* Prefill sequences [first, n_seqs); returns how many were done, or an error. */
static int32_t some_prefill(struct cuda *cu, const struct ops_attention *p, struct attend *a,
                            int32_t first)
{
    int32_t done = cuda_seqs_take(p->seqs, first, p->n_seqs, &a->seqs);
    int r;

    for (int32_t i = 0; i < done; i++) {
        if (p->observe) {
            a->observe[i] = p->observe[first + i];
        } else {
            a->observe[i].row_first = INT32_MAX;
        }
    }
    r = cuda_attend_prefill(cu, a);
    return r < 0 ? r : done;
}

/* What `row` alone adds to the scores: its own weight and temperature; what was there before is
 * damped with the first. */
static struct ops_observe observe_of_row(const struct ops_attention *p, int32_t seq, int32_t row)
{
    struct ops_observe o = {};

    o.row_first = INT32_MAX;
    if (p->observe && row >= p->observe[seq].row_first && p->seqs[seq].kv.score) {
        o = p->observe[seq];
        o.damp = row == o.row_first ? attend_damp(&o, p->seqs[seq].n_rows) : 1.0f;
        for (int32_t r = o.row_first; r < row; r++) {
            o.row_weight0 *= o.row_growth;
        }
        o.tau0 += (float)row * o.tau_step;
        o.row_first = 0;
    }
    return o;
}

/* May rows of sequences a and b be in one launch? */
static bool select_alike(const struct ops_attention *p, int32_t a, int32_t b)
{
    const struct ops_select *x = p->select ? &p->select[a] : NULL;
    const struct ops_select *y = p->select ? &p->select[b] : NULL;

    return a == b || !p->select ||
           (x->kind == y->kind &&
            (x->kind == OPS_SELECT_ALL ||
             (x->k == y->k && x->r == y->r && x->local == y->local && x->renorm == y->renorm &&
              x->chosen == y->chosen && x->packed == y->packed)));
}

/* Slots up to a decode row's own. Behind it may lie the drafts of its step, which it does not see;
 * chunks follow from the number of slots, and with the drafts' it would have other bits than alone.
 * Slots are positions where none is recorded, and in a ring until it is full. */
static int32_t slots_of_row(const struct cuda_seq *s)
{
    bool in_order = !s->slot_pos || s->ring > 0;

    return in_order && s->pos0 + 1 < s->n_slots ? s->pos0 + 1 : s->n_slots;
}

/* Decode rows from (*seq, *row) on, one launch's worth. A sequence's observed rows add to its
 * scores in order: only one of them goes at a time. */
static int some_decode(struct cuda *cu, const struct ops_attention *p, struct attend *a, int32_t n,
                       int32_t *seq, int32_t *row)
{
    struct ops_select select[CUDA_SEQS];
    int32_t seen[CUDA_SEQS];
    int32_t room = CUDA_SEQS;
    int32_t first = *seq;
    int32_t done = 0;

    if (p->observe && cu->limits.observe && cu->scratch.n_observed < room) {
        room = cu->scratch.n_observed;
    }
    if (p->select && cu->scratch.n_selected < room) {
        room = cu->scratch.n_selected;
    }

    while (*seq < n && done < room) {
        struct cuda_seqs one;
        struct ops_observe o = observe_of_row(p, *seq, *row);

        if (*row == p->seqs[*seq].n_rows) {
            (*seq)++;
            *row = 0;
            continue;
        }
        first = done == 0 ? *seq : first;
        (void)cuda_seqs_take(p->seqs, *seq, *seq + 1, &one);
        if (done > 0 && (!select_alike(p, first, *seq) ||
                         memcmp(&one.layout, &a->seqs.layout, sizeof(one.layout)) != 0 ||
                         (*row > 0 && o.row_first == 0))) {
            break;
        }
        a->seqs.layout = one.layout;
        a->seqs.s[done] = one.s[0];
        a->seqs.s[done].row0 += *row;
        a->seqs.s[done].pos0 += *row;
        a->seqs.s[done].n_rows = 1;
        if (p->select) {
            select[done] = p->select[*seq];
        }
        a->observe[done++] = o;
        (*row)++;
    }
    a->seqs.n = done;
    a->part_len = cu->limits.max_head_dim + 4;
    for (int32_t i = 0; i < done; i++) {
        seen[i] = slots_of_row(&a->seqs.s[i]);
    }
    if (done > 0 && p->select && select[0].kind != OPS_SELECT_ALL) {
        return cuda_attend_select(cu, a, select, seen);
    }
    for (int32_t i = 0; i < done; i++) {
        a->seqs.s[i].n_slots = seen[i];
    }
    return done == 0                              ? 0
           : cuda_attend_streams(&a->seqs.layout) ? cuda_attend_stream(cu, a)
                                                  : cuda_attend_decode(cu, a);
}

/* ---- sums of transformed V ------------------------------------------------------------------ */

enum { TURN_HEADS = 4, TURN_DIM = 256 };

struct turn {
    float *out;
    int32_t ldo, n_q, dim;
};

/* A warp a head of a row. */
CUDA_KERNEL void __launch_bounds__(TURN_HEADS *WARP) turn_heads(struct turn p)
{
    __shared__ float heads[TURN_HEADS][TURN_DIM];
    float *head = heads[threadIdx.x / WARP];
    int32_t h = (int32_t)(blockIdx.y * TURN_HEADS + threadIdx.x / WARP);
    float *out = p.out + (size_t)blockIdx.x * p.ldo + (size_t)h * p.dim;

    if (h >= p.n_q) {
        return;
    }
    for (int32_t d = (int32_t)threadIdx.x % WARP; d < p.dim; d += WARP) {
        head[d] = out[d];
    }
    __syncwarp(); /* head: loaded above, read by other lanes next */
    hadamard_by_warp(head, p.dim);
    for (int32_t d = (int32_t)threadIdx.x % WARP; d < p.dim; d += WARP) {
        out[d] = head[d];
    }
}

/* Are the sequence's rows to be turned here? Those of decode_join are already. */
static bool turns(const struct ops_attention *p, int32_t seq)
{
    const struct ops_seq *s = &p->seqs[seq];
    struct cuda_layout l = cuda_layout_of(s->kv.layout);

    return s->kv.v_hadamard && s->n_rows > 0 &&
           (s->row0 >= p->rows.n_decode || !cuda_attend_streams(&l) ||
            (p->select && p->select[seq].kind != OPS_SELECT_ALL));
}

static int turn_back(struct cuda *cu, const struct ops_attention *p)
{
    int r = 0;

    for (int32_t i = 0; i < p->n_seqs && r == 0;) {
        const struct ops_seq *first = &p->seqs[i];
        int32_t rows = 0;

        while (i < p->n_seqs && turns(p, i) && p->seqs[i].row0 == first->row0 + rows &&
               p->seqs[i].kv.layout->v_dim == first->kv.layout->v_dim) {
            rows += p->seqs[i++].n_rows;
        }
        i += rows == 0;
        if (rows > 0) {
            struct turn t = {p->out + (size_t)first->row0 * (size_t)p->ldo, p->ldo, p->n_q,
                             first->kv.layout->v_dim};

            CUDA_LAUNCH(cu, dim3((unsigned)rows, cuda_div_up((uint64_t)p->n_q, TURN_HEADS)),
                        dim3(TURN_HEADS * WARP), 0, turn_heads, t);
            r = cuda_launched(cu, "turn_heads");
        }
    }
    return r;
}

int cuda_attention(struct backend *be, const struct ops_attention *p)
{
    struct cuda *cu = cuda_of(be);
    struct attend a = {};
    int32_t n_decode = 0;
    int32_t seq = 0;
    int32_t row = 0;
    int32_t r = check(cu, p);

    while (n_decode < p->n_seqs && p->seqs[n_decode].row0 < p->rows.n_decode) {
        n_decode++;
    }
    a.q = p->q;
    a.out = p->out;
    a.ldq = p->ldq;
    a.ldo = p->ldo;
    a.n_q = p->n_q;
    a.scale = p->scale;
    a.softcap = p->softcap;
    a.alibi_max = p->alibi_max;
    a.window = p->window;
    a.sinks = cuda_vector(p->sinks);
    a.part = cu->scratch.part;
    a.sums = cu->scratch.sums;
    a.logits = cu->scratch.logits;
    a.queries = cu->scratch.queries;
    a.query_factor = cu->scratch.query_factor;
    a.max_slots = (cu->limits.max_slots + 63) / 64 * 64;
    cuda_call_join(cu);
    while (seq < n_decode && r == 0) {
        r = some_decode(cu, p, &a, n_decode, &seq, &row);
    }
    for (int32_t i = n_decode; i < p->n_seqs && r >= 0; i += r) {
        r = some_prefill(cu, p, &a, i);
    }
    return r < 0 ? r : turn_back(cu, p);
}
