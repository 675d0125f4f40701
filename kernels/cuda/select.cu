/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows that read some of their slots: SparQ, top-k V, and slots that were given
 * (ops.h ops_select). The last begin at `logits`: their list lies where predict.cu left it, and
 * the row's own slot comes behind it. How long it is the host does not know; grids and chunks are
 * those of the longest that it can be.
 *
 * rank    Block of 128 threads: 128 slots, one K head, up to 4 of the query heads that read it; a
 *         thread a slot. SparQ: the dims with the largest sums of |q| are found by each block anew
 *         (k_dim^2 compares), q becomes 0 elsewhere. With a copy of K by dim only those dims'
 *         lines are read: 64 slots of a dim lie together. Without, and for top-k V, whole rows.
 *         Writes the logits that rank slots, and with noise those that are observed.
 * choose  Block of 1024 threads a list: a head group (SparQ) or V head (top-k V). Softmax of each
 *         of its query heads, their sum a slot (on chip up to SELECT_ON_CHIP slots, else in
 *         scratch), the k-th best by radix (topk.cuh), the chosen slots in ascending order.
 * logits  SparQ: a warp a chosen slot and K head; true logits, at their place of the list, into
 *         scratch that the approximate ones no longer need.
 * values  Block of 128 threads: a chunk of the list, one query head. Softmax over what is chosen
 *         and the sum of values, as attention_decode.cu leaves them.
 * merge   Chunks in order; SparQ gives the rest of the probability to the mean of V.
 *
 * Everything a row computes depends on its own sequence and policy alone. Bytes at 2K: r lines of
 * every 64 slots, then k rows of K and V; 4 bytes a slot and head go to L2 and back. Times: not
 * measured. */

#include <cerrno>

#include "kernels/cuda/select.cuh"

/* Blocks a multiprocessor that ptxas is told: left alone it saves registers for more, and
 * spills. */
enum { THREADS = 128, RANK_BLOCKS = 4, HB = 4, HEAD_MAX = 256, MASS_MAX = SELECT_ON_CHIP };

static_assert(TOPK_THREADS == 1024, "choose has as many");

struct select {
    struct attend a;
    int32_t kind, k, local; /* of all rows of the launch */
    int32_t r;
    int32_t most[CUDA_SEQS]; /* slots of its lists at most: its chunks follow from that */
    int32_t entry[CUDA_SEQS];
    struct ops_chosen chosen;
    bool renorm;
    bool on_chip;
    bool packed; /* entry i of a list is in slot i of the pages; its number says its position */
    bool mean[CUDA_SEQS];
    float *approx;
    float *mass;
    int32_t *list;
    int32_t *list_n;
    float *stats;
};

/* A list's group, and the query heads whose probabilities it ranks by. */
struct ranked {
    int32_t group, head0, head1;
};

CUDA_INLINE int32_t lists_of(const struct select *p)
{
    const struct cuda_layout *l = &p->a.seqs.layout;

    return p->kind == OPS_SELECT_TOPV ? l->n_groups * l->v_heads : l->n_groups;
}

CUDA_INLINE int32_t list_of(const struct select *p, int32_t head)
{
    return head / (p->a.n_q / lists_of(p));
}

CUDA_INLINE struct ranked ranked_of(const struct select *p, int32_t list)
{
    int32_t n = p->a.n_q / lists_of(p);
    struct ranked r = {list * n / (p->a.n_q / p->a.seqs.layout.n_groups), list * n, (list + 1) * n};

    return r;
}

CUDA_INLINE int32_t list_length(const struct select *p, int32_t seq, int32_t list)
{
    return p->kind == OPS_SELECT_GIVEN ? p->chosen.n[p->entry[seq]] + 1
                                       : p->list_n[(size_t)(seq * p->a.n_q + list) * 2];
}

/* Slot i of a list of `n`. */
CUDA_INLINE int32_t list_slot(const struct select *p, int32_t seq, int32_t list, int32_t i,
                              int32_t n)
{
    if (p->kind != OPS_SELECT_GIVEN) {
        return p->list[(size_t)(seq * p->a.n_q + list) * p->a.max_slots + i];
    }
    return i == n - 1
               ? kv_own_slot(&p->a.seqs.s[seq], list)
               : p->chosen
                     .slots[(size_t)(p->entry[seq] * p->chosen.max_groups + list) * p->chosen.ld +
                            i];
}

/* Rows of scratch: (rows of the launch, n_q, max_slots). */
CUDA_INLINE size_t head_at(const struct select *p, int32_t seq, int32_t head)
{
    return (size_t)(seq * p->a.n_q + head) * p->a.max_slots;
}

CUDA_INLINE const float *query(const struct select *p, int32_t seq, int32_t head)
{
    return p->a.q + (size_t)p->a.seqs.s[seq].row0 * p->a.ldq +
           (size_t)head * p->a.seqs.layout.k_dim;
}

/* ---- rank ----------------------------------------------------------------------------------- */

/* q (HB, len) of the block's heads: times 1 / sqrt(share) at the chosen dims, whose numbers
 * dims[0...r) gets in ascending order, 0 elsewhere. Not SparQ: as it is. */
CUDA_INLINE void load_query(const struct select *p, int32_t seq, int32_t k_head, int32_t head0,
                            int32_t n_heads, int32_t len, float *q, float *sum, int32_t *dims)
{
    int32_t n = p->a.seqs.layout.k_dim;
    int32_t share = p->a.n_q / (p->a.seqs.layout.n_groups * p->a.seqs.layout.k_heads);
    bool sparq = p->kind == OPS_SELECT_SPARQ;

    for (int32_t d = (int32_t)threadIdx.x; d < n && sparq; d += THREADS) {
        float s = 0;

        for (int32_t h = 0; h < share; h++) {
            s += fabsf(query(p, seq, k_head * share + h)[d]);
        }
        sum[d] = s;
    }
    __syncthreads(); /* sum: written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < n && sparq; d += THREADS) {
        int32_t better = 0;

        for (int32_t o = 0; o < n; o++) {
            better += sum[o] > sum[d] || (sum[o] == sum[d] && o < d);
        }
        dims[n + d] = better < p->r;
    }
    __syncthreads(); /* dims: flags written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < n && sparq; d += THREADS) {
        int32_t before = 0;

        for (int32_t o = 0; o < d; o++) {
            before += dims[n + o];
        }
        if (dims[n + d]) {
            dims[before] = d;
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < HB * len; i += THREADS) {
        int32_t h = i / len;
        int32_t d = i % len;

        q[i] = h < n_heads && d < n && (!sparq || dims[n + d]) ? query(p, seq, head0 + h)[d] : 0.0f;
    }
    __syncthreads(); /* q: written above, read below */
    if (sparq && (int32_t)threadIdx.x < n_heads) {
        const float *from = query(p, seq, head0 + (int32_t)threadIdx.x);
        float all = 0;
        float some = 0;

        for (int32_t d = 0; d < n; d++) {
            all += fabsf(from[d]);
            some += fabsf(q[(int32_t)threadIdx.x * len + d]);
        }
        sum[HEAD_MAX + threadIdx.x] = some > 0 ? 1.0f / sqrtf(some / all) : 1.0f;
    } else if ((int32_t)threadIdx.x < HB) {
        sum[HEAD_MAX + threadIdx.x] = 1.0f;
    }
    __syncthreads(); /* sum: factors of q's heads */
}

/* q k of one slot for the block's heads. */
CUDA_INLINE void products(const struct select *p, int32_t seq, int32_t group, int32_t k_head,
                          int32_t slot, const float *q, int32_t len, const int32_t *dims,
                          float dot[HB])
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    uint8_t *page = kv_page(l, &p->a.seqs.s[seq], group, slot);

    for (int h = 0; h < HB; h++) {
        dot[h] = 0;
    }
    if (p->kind == OPS_SELECT_SPARQ && l->rank != OPS_RANK_ONCE) {
        int32_t type = kv_rank_type(l);
        float scale = kv_rank_scale(l, page, k_head, slot);

        for (int32_t i = 0; i < p->r; i++) {
            float k = kv_element(type, kv_rank_dim(l, page, k_head, dims[i]), slot % OPS_PAGE_SLOTS,
                                 scale);

#pragma unroll
            for (int h = 0; h < HB; h++) {
                dot[h] += q[h * len + dims[i]] * k;
            }
        }
        return;
    }
    for (int32_t i = 0; i < len / KV_VEC; i++) {
        float k[KV_VEC];

        kv_load8(l->k_type, kv_k_row(l, page, k_head, slot), i, k);
#pragma unroll
        for (int h = 0; h < HB; h++) {
#pragma unroll
            for (int j = 0; j < KV_VEC; j++) {
                dot[h] += q[h * len + i * KV_VEC + j] * k[j];
            }
        }
    }
    float scale = kv_scale_of(l->k_type, page, l->k_scale_at, k_head, slot);

    for (int h = 0; h < HB; h++) {
        dot[h] *= scale;
    }
}

CUDA_KERNEL void __launch_bounds__(THREADS, RANK_BLOCKS) rank(struct select p)
{
    __shared__ __align__(16) float q[HB * HEAD_MAX];
    __shared__ float sum[HEAD_MAX + HB];
    __shared__ int32_t dims[2 * HEAD_MAX];
    const struct cuda_layout *l = &p.a.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    int32_t share = p.a.n_q / (l->n_groups * l->k_heads);
    int32_t blocks = (share + HB - 1) / HB;
    int32_t k = (int32_t)blockIdx.y / blocks;
    int32_t head0 = k * share + (int32_t)blockIdx.y % blocks * HB;
    int32_t n_heads = min((int32_t)HB, (k + 1) * share - head0);
    int32_t group = k / l->k_heads;
    int32_t slot = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    int32_t len = (l->k_dim + KV_VEC - 1) / KV_VEC * KV_VEC;
    int32_t pos;
    float dot[HB];

    if ((int32_t)blockIdx.x * THREADS >= s->n_slots) {
        return;
    }
    load_query(&p, seq, k, head0, n_heads, len, q, sum, dims);
    if (slot >= s->n_slots) {
        return;
    }
    pos = kv_pos(s, group, slot);
    if (kv_visible(pos, s->pos0, p.a.window)) {
        products(&p, seq, group, k % l->k_heads, slot, q, len, dims, dot);
    } else {
        pos = -1;
    }
    for (int32_t h = 0; h < n_heads; h++) {
        float x = pos < 0 ? -INFINITY
                          : attend_logit(&p.a, dot[h] * sum[HEAD_MAX + h],
                                         attend_slope(&p.a, head0 + h), pos, s->pos0);

        p.approx[head_at(&p, seq, head0 + h) + slot] = x;
        if (attend_observed(&p.a, seq)) {
            p.a.logits[head_at(&p, seq, head0 + h) + slot] =
                attend_noisy(&p.a.observe[seq], x, head0 + h, 0, s->pos0, pos);
        }
    }
}

/* ---- choose --------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) choose(struct select p)
{
    CUDA_SHARED(float, memory);
    __shared__ float part[32];
    __shared__ int32_t ipart[TOPK_WARPS];
    __shared__ int32_t count[256];
    int32_t seq = (int32_t)blockIdx.y;
    int32_t list = (int32_t)blockIdx.x;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    struct ranked r = ranked_of(&p, list);
    size_t at = (size_t)(seq * p.a.n_q + list);
    float *sum = p.on_chip ? memory : p.mass + at * p.a.max_slots;
    struct mass m = {s, sum, r.group, s->pos0 - p.local + 1};
    int32_t seen = 0;
    int32_t live = 0;
    int32_t before;
    int32_t n;
    uint64_t last = TOPK_NONE - 1;

    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
        int32_t pos = kv_pos(s, r.group, i);
        bool visible = kv_visible(pos, s->pos0, p.a.window);

        sum[i] = visible ? 0.0f : -1.0f;
        seen += visible;
        live += pos >= 0;
    }
    seen = topk_scan(seen, ipart, &before);
    live = topk_scan(live, ipart, &before);
    for (int32_t h = r.head0; h < r.head1; h++) {
        const float *x = p.approx + head_at(&p, seq, h);
        float top;
        float inv;

        softmax_sums(x, s->n_slots, part, &top, &inv);
        for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
            sum[i] += x[i] > -INFINITY ? expf(x[i] - top) * inv : 0.0f;
        }
        if (threadIdx.x == 0) {
            float *to = p.stats + (size_t)(seq * p.a.n_q + h) * 4;

            to[0] = top;
            to[1] = inv;
        }
    }
    __syncthreads(); /* sum: each thread's own slots; read by others below */
    if (seen > p.k) {
        last = topk_nth(&m, list, s->n_slots, p.k, count);
    }
    n = write_list(&m, s->n_slots, last, p.list + at * p.a.max_slots, ipart);
    __syncthreads(); /* list: written above, read below */
    for (int32_t h = r.head0; h < r.head1; h++) {
        const float *x = p.approx + head_at(&p, seq, h);
        float *stats = p.stats + (size_t)(seq * p.a.n_q + h) * 4;
        float share = 0;

        for (int32_t i = (int32_t)threadIdx.x; i < n && seen > p.k; i += TOPK_THREADS) {
            share += expf(x[p.list[at * p.a.max_slots + i]] - stats[0]) * stats[1];
        }
        share = block_sum(share, part, TOPK_WARPS);
        if (threadIdx.x == 0) {
            stats[2] = seen > p.k ? share : 1.0f;
        }
    }
    if (threadIdx.x == 0) {
        p.list_n[at * 2] = n;
        p.list_n[at * 2 + 1] = live;
    }
}

/* What decode_observe reads: largest noisy logit and 1 / sum. */
CUDA_KERNEL void __launch_bounds__(TOPK_THREADS) noisy_sums(struct select p)
{
    __shared__ float part[32];
    int32_t seq = (int32_t)blockIdx.y;
    int32_t head = (int32_t)blockIdx.x;
    float *to = p.a.sums + (size_t)(seq * p.a.n_q + head) * 2;
    float top;
    float inv;

    if (!attend_observed(&p.a, seq)) {
        return;
    }
    softmax_sums(p.a.logits + head_at(&p, seq, head), p.a.seqs.s[seq].n_slots, part, &top, &inv);
    if (threadIdx.x == 0) {
        to[0] = top;
        to[1] = inv;
    }
}

/* ---- attention over the list ---------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) chosen_logits(struct select p)
{
    const struct cuda_layout *l = &p.a.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    int32_t k = (int32_t)blockIdx.y;
    int32_t group = k / l->k_heads;
    int32_t share = p.a.n_q / (l->n_groups * l->k_heads);
    int32_t n = list_length(&p, seq, group);
    int32_t i = (int32_t)(blockIdx.x * (THREADS / WARP) + threadIdx.x / WARP);
    int lane = (int)threadIdx.x % WARP;
    int32_t slot;
    int32_t pos;
    uint8_t *page;
    float v[KV_VEC] = {};

    if (i >= n) {
        return;
    }
    slot = list_slot(&p, seq, group, i, n);
    if (slot < 0) { /* the group lists fewer */
        for (int32_t h = k * share + lane; h < (k + 1) * share; h += WARP) {
            p.approx[head_at(&p, seq, h) + i] = -INFINITY;
        }
        return;
    }
    pos = kv_pos(s, group, slot);
    slot = p.packed ? i : slot;
    page = kv_page(l, s, group, slot);
    if (lane * KV_VEC < l->k_dim) {
        kv_load8(l->k_type, kv_k_row(l, page, k % l->k_heads, slot), lane, v);
    }
    for (int32_t h = k * share; h < (k + 1) * share; h++) {
        const float *q = query(&p, seq, h);
        float dot = 0;

        for (int j = 0; j < KV_VEC; j++) {
            dot += lane * KV_VEC + j < l->k_dim ? q[lane * KV_VEC + j] * v[j] : 0.0f;
        }
        dot = warp_sum(dot) * kv_scale_of(l->k_type, page, l->k_scale_at, k % l->k_heads, slot);
        if (lane == 0) {
            p.approx[head_at(&p, seq, h) + i] =
                attend_logit(&p.a, dot, attend_slope(&p.a, h), pos, s->pos0);
        }
    }
}

CUDA_KERNEL void __launch_bounds__(THREADS) chosen_values(struct select p)
{
    __shared__ float w[SELECT_CHUNK_MAX];
    __shared__ float red[THREADS * KV_VEC];
    __shared__ float part[32];
    const struct cuda_layout *l = &p.a.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    int32_t head = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    struct attend_head at = attend_head_of(&p.a, head);
    int32_t list = list_of(&p, head);
    const float *x = p.approx + head_at(&p, seq, head);
    int32_t n = list_length(&p, seq, list);
    int32_t chunk = cuda_chunk(p.most[seq]);
    int32_t i0 = (int32_t)blockIdx.x * chunk;
    int32_t i1 = min(i0 + chunk, n);
    int32_t n_vec = (l->v_dim + KV_VEC - 1) / KV_VEC;
    int32_t n_sub = THREADS / n_vec;
    int32_t vec = (int32_t)threadIdx.x % n_vec;
    int32_t sub = (int32_t)threadIdx.x / n_vec;
    float *to =
        p.a.part + ((size_t)(seq * p.a.n_q + head) * p.a.n_chunks + blockIdx.x) * p.a.part_len;
    float acc[KV_VEC] = {};
    float top = -INFINITY;
    float sum = 0;

    if (i0 >= i1) {
        return;
    }
    for (int32_t i = i0 + (int32_t)threadIdx.x; i < i1; i += THREADS) {
        w[i - i0] = x[p.kind == OPS_SELECT_TOPV ? list_slot(&p, seq, list, i, n) : i];
        top = fmaxf(top, w[i - i0]);
    }
    top = block_max(top, part, THREADS / WARP);
    for (int32_t i = i0 + (int32_t)threadIdx.x; i < i1; i += THREADS) {
        w[i - i0] = top > -INFINITY ? expf(w[i - i0] - top) : 0.0f;
        sum += w[i - i0];
    }
    sum = block_sum(sum, part, THREADS / WARP); /* its barriers: w is complete */
    for (int32_t i = i0 + sub; i < i1 && sub < n_sub; i += n_sub) {
        int32_t slot = list_slot(&p, seq, list, i, n);

        if (slot < 0) {
            continue;
        }
        slot = p.packed ? i : slot;

        uint8_t *page = kv_page(l, s, at.group, slot);
        float e = w[i - i0] * kv_scale_of(l->v_type, page, l->v_scale_at, at.v_head, slot);
        float v[KV_VEC];

        kv_load8(l->v_type, kv_v_row(l, page, at.v_head, slot), vec, v);
        for (int j = 0; j < KV_VEC; j++) {
            acc[j] += e * v[j];
        }
    }
    for (int j = 0; j < KV_VEC && sub < n_sub; j++) {
        red[(sub * n_vec + vec) * KV_VEC + j] = acc[j];
    }
    __syncthreads(); /* red: written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < l->v_dim; d += THREADS) {
        float v = 0;

        for (int32_t i = 0; i < n_sub; i++) {
            v += red[i * n_vec * KV_VEC + d];
        }
        to[4 + d] = v;
    }
    if (threadIdx.x == 0) {
        to[0] = top;
        to[1] = sum;
    }
}

CUDA_KERNEL void __launch_bounds__(THREADS) chosen_merge(struct select p)
{
    const struct cuda_layout *l = &p.a.seqs.layout;
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    struct attend_head at = attend_head_of(&p.a, head);
    int32_t list = list_of(&p, head);
    int32_t chunk = cuda_chunk(p.most[seq]);
    int32_t n = (list_length(&p, seq, list) + chunk - 1) / chunk;
    const float *part = p.a.part + (size_t)(seq * p.a.n_q + head) * p.a.n_chunks * p.a.part_len;
    const float *stats = p.stats + (size_t)(seq * p.a.n_q + head) * 4;
    const float *v_sum = s->v_sum + (size_t)(at.group * l->v_heads + at.v_head) * l->v_dim;
    float *out = p.a.out + (size_t)s->row0 * p.a.ldo + (size_t)head * l->v_dim;
    bool mean = p.mean[seq] && stats[2] != 1.0f;
    float top;
    float inv = attend_merge_sums(part, p.a.part_len, n, 0, &top);

    if (p.kind == OPS_SELECT_TOPV && !p.renorm && top > -INFINITY) {
        inv = stats[1] * expf(top - stats[0]); /* of all slots, not of the chosen */
    }
    for (int32_t d = (int32_t)threadIdx.x; d < l->v_dim; d += THREADS) {
        float v = attend_merge_value(part, p.a.part_len, n, top, d) * inv;

        out[d] = mean ? stats[2] * v +
                            (1.0f - stats[2]) *
                                (v_sum[d] / (float)p.list_n[(size_t)(seq * p.a.n_q + list) * 2 + 1])
                      : v;
    }
}

/* ---- the call ------------------------------------------------------------------------------- */

bool cuda_select_valid(const struct cuda *cu, const struct ops_attention *p, int32_t seq)
{
    const struct ops_select *s = &p->select[seq];
    const struct ops_kv *kv = &p->seqs[seq].kv;

    if (s->kind == OPS_SELECT_ALL) {
        return true;
    }
    if (s->kind == OPS_SELECT_GIVEN) { /* rows of prefill read all */
        return p->seqs[seq].row0 >= p->rows.n_decode ||
               (cu->limits.select && s->chosen && p->seqs[seq].n_rows == 1 &&
                kv->layout->n_groups <= s->chosen->max_groups);
    }
    return cu->limits.select && s->k >= 1 && s->local >= 0 && s->local <= s->k &&
           (s->kind != OPS_SELECT_SPARQ || (s->r >= 1 && s->r <= kv->layout->k_dim)) &&
           (!s->mean || kv->v_sum);
}

static int launch_choose(struct cuda *cu, struct select *p, int32_t n_lists, int32_t most)
{
    size_t shared = p->on_chip ? (size_t)most * sizeof(float) : 0;

    CUDA_LAUNCH_LARGE(cu, dim3((unsigned)n_lists, (unsigned)p->a.seqs.n), dim3(TOPK_THREADS),
                      shared, choose, *p);
    return cuda_launched(cu, "choose");
}

static int launch_rank(struct cuda *cu, struct select *p, int32_t most, bool observed)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    unsigned k_heads = (unsigned)(l->n_groups * l->k_heads);
    unsigned n_seqs = (unsigned)p->a.seqs.n;
    int r;

    CUDA_LAUNCH(cu,
                dim3(cuda_div_up((uint64_t)most, THREADS),
                     k_heads * cuda_div_up((uint64_t)p->a.n_q / k_heads, HB), n_seqs),
                dim3(THREADS), 0, rank, *p);
    r = cuda_launched(cu, "rank");
    if (r == 0 && observed) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->a.n_q, n_seqs), dim3(TOPK_THREADS), 0, noisy_sums, *p);
        r = cuda_launched(cu, "noisy_sums");
        r = r < 0 ? r : cuda_attend_observe(cu, &p->a, most);
    }
    return r;
}

static int launch_chosen(struct cuda *cu, struct select *p, int32_t longest)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    unsigned n_seqs = (unsigned)p->a.seqs.n;
    int r = 0;

    if (p->kind != OPS_SELECT_TOPV) {
        CUDA_LAUNCH(cu,
                    dim3(cuda_div_up((uint64_t)longest, THREADS / WARP),
                         (unsigned)(l->n_groups * l->k_heads), n_seqs),
                    dim3(THREADS), 0, chosen_logits, *p);
        r = cuda_launched(cu, "chosen_logits");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->a.n_chunks, (unsigned)p->a.n_q, n_seqs), dim3(THREADS), 0,
                    chosen_values, *p);
        r = cuda_launched(cu, "chosen_values");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->a.n_q, n_seqs), dim3(THREADS), 0, chosen_merge, *p);
        r = cuda_launched(cu, "chosen_merge");
    }
    return r;
}

static int32_t percent_of(int32_t n, int32_t percent)
{
    return (int32_t)((int64_t)n * percent / 100);
}

/* As many slots as a list can have. */
static int32_t longest_list(const struct ops_select *s, const struct cuda_seq *of)
{
    int32_t k = s->k;

    if (s->kind == OPS_SELECT_GIVEN) { /* ops.h ops_predict, and the row's own */
        k = s->count ? s->count : percent_of(of->pos0, s->share ? s->share : s->cap);
        k = (k < 1 ? 1 : k < of->n_slots ? k : of->n_slots) + 1;
    }
    return k < of->n_slots ? k : of->n_slots;
}

int cuda_attend_select(struct cuda *cu, const struct attend *a, const struct ops_select *select)
{
    struct select p = {};
    int32_t most = 1;
    int32_t longest = 1;
    bool observed = false;
    int r;

    p.a = *a;
    p.kind = select[0].kind;
    p.k = select[0].k;
    p.local = select[0].local;
    p.r = select[0].r;
    p.renorm = select[0].renorm;
    p.approx = cu->scratch.approx;
    p.mass = cu->scratch.mass;
    p.list = cu->scratch.list;
    p.list_n = cu->scratch.list_n;
    p.stats = cu->scratch.stats;
    p.a.n_chunks = 1;
    if (p.kind == OPS_SELECT_GIVEN) {
        p.chosen = *select[0].chosen;
        p.packed = select[0].packed;
    }
    for (int32_t i = 0; i < a->seqs.n; i++) {
        int32_t n = a->seqs.s[i].n_slots;
        int32_t list = longest_list(&select[i], &a->seqs.s[i]);
        int32_t chunks = (list + cuda_chunk(list) - 1) / cuda_chunk(list);

        p.mean[i] = select[i].mean;
        p.most[i] = list;
        p.entry[i] = select[i].entry;
        most = n > most ? n : most;
        longest = list > longest ? list : longest;
        p.a.n_chunks = chunks > p.a.n_chunks ? chunks : p.a.n_chunks;
        observed = observed || (n > 0 && a->seqs.s[i].score && a->observe[i].row_first < 1);
    }
    p.on_chip = most <= MASS_MAX;
    r = p.kind == OPS_SELECT_GIVEN ? 0 : launch_rank(cu, &p, most, observed);
    if (r == 0 && p.kind != OPS_SELECT_GIVEN) {
        r = launch_choose(cu, &p,
                          p.kind == OPS_SELECT_SPARQ
                              ? a->seqs.layout.n_groups
                              : a->seqs.layout.n_groups * a->seqs.layout.v_heads,
                          most);
    }
    return r < 0 ? r : launch_chosen(cu, &p, longest);
}
