/* SPDX-License-Identifier: Apache-2.0 */
/* Which slots a layer to come will read, from partial keys (ops.h struct ops_predict). Everything
 * stays on the device: how many and which are read there by the attention that they are for
 * (select.cu), so a step is still one graph.
 *
 * skew     Block of 128 threads a query head: q' = A q, the first part_dims values; a warp eight
 *          of them at once.
 * rank     Block of 128 threads: 128 slots, one K head, up to 4 of the query heads that read it; a
 *          thread a slot. Partial keys lie by dim, so a warp reads whole sectors: 2 part_dims
 *          bytes a slot and K head, part_dims + 2 in fp8. Logits go to scratch, 4 bytes a slot and
 *          query head, and come back from L2.
 * sums     Block of 1024 threads a query head: largest logit, 1 / sum, and how many are within
 *          alpha of the largest.
 * predict  Block of 1024 threads a head group: how many slots (the mean of all heads' counts), the
 *          sum of probabilities a slot, the n-th best by radix (topk.cuh), the list in ascending
 *          order, and what kv.score keeps of it.
 *
 * What a sequence gets depends on it alone. Times: not measured; with 4 launches for each layer
 * that chooses, small models wait for launches rather than for bytes. */

#include <cerrno>

#include "kernels/cuda/kv_part.cuh"
#include "kernels/cuda/select.cuh"

enum { THREADS = 128, HB = 4, HEAD_MAX = 256 };

static_assert(TOPK_THREADS == 1024, "sums and predict have as many");

/* How many slots: struct ops_select, GIVEN. */
struct predict_rule {
    int32_t count, share, cap, use;
    float alpha;
};

struct predict_args {
    struct attend a;
    struct predict_rule rule[CUDA_SEQS];
    int32_t entry[CUDA_SEQS];
    struct ops_chosen chosen;
    bool on_chip;
    float *x;    /* (n, n_q, max_slots) logits */
    float *mass; /* (n, n_q, max_slots) where it does not fit on chip */
    float *skewed;
    float *stats; /* (n, n_q, 4) */
    int32_t *near;
};

CUDA_INLINE size_t head_at(const struct predict_args *p, int32_t seq, int32_t head)
{
    return (size_t)(seq * p->a.n_q + head);
}

CUDA_INLINE float *skewed_of(const struct predict_args *p, int32_t seq, int32_t head)
{
    return p->skewed + head_at(p, seq, head) * p->a.seqs.layout.k_dim;
}

/* ---- ranking -------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) skew_queries(struct predict_args p)
{
    const struct cuda_layout *l = &p.a.seqs.layout;
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    int32_t k_head = head / (p.a.n_q / (l->n_groups * l->k_heads));
    const float *q = p.a.q + (size_t)s->row0 * p.a.ldq + (size_t)head * l->k_dim;
    float *to = skewed_of(&p, seq, head);
    int lane = (int)threadIdx.x % WARP;
    float x[SKEW_LANE_DIMS];

#pragma unroll
    for (int i = 0; i < SKEW_LANE_DIMS; i++) {
        int32_t d = i * WARP + lane;

        x[i] = d < l->k_dim ? q[d] : 0.0f;
    }
    for (int32_t j0 = (int32_t)threadIdx.x / WARP * SKEW_ROWS; j0 < l->part_dims;
         j0 += THREADS / WARP * SKEW_ROWS) {
        float dot = kv_skew_rows(s->skew + (size_t)(k_head * l->k_dim + j0) * l->k_dim,
                                 l->part_dims - j0, l->k_dim, x);

        if (lane % 4 == 0 && j0 + lane / 4 < l->part_dims) {
            to[j0 + lane / 4] = dot;
        }
    }
}

CUDA_KERNEL void __launch_bounds__(THREADS) rank_predicted(struct predict_args p)
{
    __shared__ float q[HEAD_MAX * HB]; /* (part_dims, HB) */
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
    int32_t in_page = slot % OPS_PAGE_SLOTS;
    float dot[HB] = {};
    int32_t pos;

    if ((int32_t)blockIdx.x * THREADS >= s->n_slots) {
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x; i < l->part_dims * HB; i += THREADS) {
        q[i] = i % HB < n_heads ? skewed_of(&p, seq, head0 + i % HB)[i / HB] : 0.0f;
    }
    __syncthreads(); /* q: written above, read below */
    if (slot >= s->n_slots) {
        return;
    }
    pos = kv_pos(s, group, slot);
    if (slot == kv_own_slot(s, group) || !kv_visible(pos, s->pos0 - 1, 0)) {
        pos = -1;
    } else {
        uint8_t *page = kv_part_page(l, s, group, slot);
        const uint8_t *part = kv_part_dim(l, page, k % l->k_heads, 0);

#pragma unroll 8
        for (int32_t j = 0; j < l->part_dims; j++) {
            int32_t i = j * OPS_PAGE_SLOTS + in_page;
            float x = kv_part_value(l, part, i);

#pragma unroll
            for (int h = 0; h < HB; h++) {
                dot[h] += q[j * HB + h] * x;
            }
        }
        if (kv_has_scale(l->part_type)) {
            float scale = f32_of_f16(*kv_part_scale(l, page, k % l->k_heads, slot));

#pragma unroll
            for (int h = 0; h < HB; h++) {
                dot[h] *= scale;
            }
        }
    }
    for (int32_t h = 0; h < n_heads; h++) {
        p.x[head_at(&p, seq, head0 + h) * p.a.max_slots + slot] =
            pos < 0 ? -INFINITY
                    : attend_logit(&p.a, dot[h], attend_slope(&p.a, head0 + h), pos, s->pos0);
    }
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS) sum_predicted(struct predict_args p)
{
    __shared__ float part[32];
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    int32_t n_slots = p.a.seqs.s[seq].n_slots;
    const float *x = p.x + head_at(&p, seq, head) * p.a.max_slots;
    float near = 0; /* exact: fewer than 2^24 slots */
    float top;
    float inv;

    softmax_sums(x, n_slots, part, &top, &inv);
    for (int32_t i = (int32_t)threadIdx.x; i < n_slots && top > -INFINITY; i += TOPK_THREADS) {
        near += x[i] >= top - p.rule[seq].alpha ? 1.0f : 0.0f;
    }
    near = block_sum(near, part, TOPK_WARPS);
    if (threadIdx.x == 0) {
        p.stats[head_at(&p, seq, head) * 4] = top;
        p.stats[head_at(&p, seq, head) * 4 + 1] = inv;
        p.near[head_at(&p, seq, head)] = (int32_t)near;
    }
}

/* ---- choosing ------------------------------------------------------------------------------- */

CUDA_INLINE int32_t percent_of(int32_t n, int32_t percent)
{
    return (int32_t)((int64_t)n * percent / 100);
}

/* How many slots each group of the sequence lists; all threads get it. */
CUDA_INLINE int32_t how_many(const struct predict_args *p, int32_t seq)
{
    const struct predict_rule *rule = &p->rule[seq];
    const struct cuda_seq *s = &p->a.seqs.s[seq];
    int32_t near = 0;
    int32_t n;

    for (int32_t h = 0; h < p->a.n_q; h++) {
        near += p->near[head_at(p, seq, h)];
    }
    n = rule->count   ? rule->count
        : rule->share ? percent_of(s->pos0, rule->share)
                      : min(near / p->a.n_q, percent_of(s->pos0, rule->cap));
    return min(max(n, 1), s->n_slots - 1);
}

/* kv.score of the group's slots that rank, when those with a key of at most `last` are listed. */
CUDA_INLINE void keep_use(const struct predict_args *p, int32_t seq, int32_t group, const struct mass *m,
                          uint64_t last, float *part)
{
    const struct cuda_seq *s = &p->a.seqs.s[seq];
    float *score = s->score + (size_t)group * s->cap;
    float halve = 0;

    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
        uint64_t key = topk_key(m, 0, i);

        if (key != TOPK_NONE && key <= last && score[i] >= (float)OPS_USE_MAX) {
            halve = 1;
        }
    }
    halve = block_max(halve, part, TOPK_WARPS);
    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
        uint64_t key = topk_key(m, 0, i);
        bool listed = key <= last;

        if (key == TOPK_NONE) {
            continue;
        }
        if (p->rule[seq].use == OPS_USE_LAST) {
            score[i] = listed ? (float)s->pos0 : fmaxf(score[i], (float)kv_pos(s, group, i));
        } else {
            score[i] = floorf(halve > 0 ? score[i] / 2.0f : score[i]) + (listed ? 1.0f : 0.0f);
        }
    }
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) predict(struct predict_args p)
{
    CUDA_SHARED(float, memory);
    __shared__ float part[32];
    __shared__ int32_t ipart[TOPK_WARPS];
    __shared__ int32_t count[256];
    int32_t group = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    int32_t n_heads = p.a.n_q / p.a.seqs.layout.n_groups;
    int32_t own = kv_own_slot(s, group);
    float *sum = p.on_chip ? memory : p.mass + head_at(&p, seq, group) * p.a.max_slots;
    struct mass m = {s, sum, group, INT32_MAX};
    int32_t entry = p.entry[seq];
    int32_t *list = p.chosen.slots + (size_t)(entry * p.chosen.max_groups + group) * p.chosen.ld;
    int32_t n = how_many(&p, seq);
    int32_t listed;
    float seen = 0; /* exact, as above */
    uint64_t last = TOPK_NONE - 1;

    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
        bool ranks = i != own && kv_visible(kv_pos(s, group, i), s->pos0 - 1, 0);
        float all = ranks ? 0.0f : -1.0f;

        for (int32_t h = group * n_heads; h < (group + 1) * n_heads && ranks; h++) {
            const float *stats = p.stats + head_at(&p, seq, h) * 4;

            all += expf(p.x[head_at(&p, seq, h) * p.a.max_slots + i] - stats[0]) * stats[1];
        }
        sum[i] = all;
        seen += ranks ? 1.0f : 0.0f;
    }
    seen = block_sum(seen, part, TOPK_WARPS); /* its barriers: sum is complete */
    if (seen > (float)n) {
        last = n > 0 ? topk_nth(&m, 0, s->n_slots, n, count) : 0;
    }
    listed = write_list(&m, s->n_slots, last, list, ipart);
    for (int32_t i = listed + (int32_t)threadIdx.x; i < n; i += TOPK_THREADS) {
        list[i] = -1; /* fewer rank here */
    }
    if (group == 0 && threadIdx.x == 0) {
        p.chosen.n[entry] = n;
    }
    if (p.chosen.own && threadIdx.x == 0) {
        p.chosen.own[entry * p.chosen.max_groups + group] = n;
    }
    if (p.rule[seq].use != OPS_USE_NONE) {
        keep_use(&p, seq, group, &m, last, part);
    }
}

/* ---- the call ------------------------------------------------------------------------------- */

static bool valid(const struct cuda *cu, const struct ops_predict *p, int32_t seq)
{
    const struct ops_kv *kv = &p->seqs[seq].kv;
    const struct ops_kv_layout *l = kv->layout;

    return cu->limits.select && kv->skew && (!l->part_apart || kv->part) &&
           (!p->select[seq].use || kv->score) && l->part_dims >= 1 && l->part_dims <= l->k_dim &&
           p->seqs[seq].n_rows == 1 && p->n_q <= cu->limits.max_heads &&
           l->k_dim <= cu->limits.max_head_dim && l->k_dim <= HEAD_MAX &&
           kv->n_slots <= cu->limits.max_slots && p->n_q % (l->n_groups * l->k_heads) == 0 &&
           l->n_groups <= p->chosen->max_groups && kv->n_slots >= 1 &&
           kv->n_slots - 1 <= p->chosen->ld && (kv->slot_pos || p->seqs[seq].pos0 < kv->n_slots);
}

static int launch(struct cuda *cu, struct predict_args *p, int32_t most)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    unsigned n_q = (unsigned)p->a.n_q;
    unsigned k_heads = (unsigned)(l->n_groups * l->k_heads);
    unsigned n = (unsigned)p->a.seqs.n;
    size_t shared = p->on_chip ? (size_t)most * sizeof(float) : 0;
    int r;

    CUDA_LAUNCH(cu, dim3(n_q, n), dim3(THREADS), 0, skew_queries, *p);
    r = cuda_launched(cu, "skew_queries");
    if (r == 0) {
        CUDA_LAUNCH(cu,
                    dim3(cuda_div_up((uint64_t)most, THREADS),
                         k_heads * cuda_div_up((uint64_t)n_q / k_heads, HB), n),
                    dim3(THREADS), 0, rank_predicted, *p);
        r = cuda_launched(cu, "rank_predicted");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(n_q, n), dim3(TOPK_THREADS), 0, sum_predicted, *p);
        r = cuda_launched(cu, "sum_predicted");
    }
    if (r == 0) {
        CUDA_LAUNCH_LARGE(cu, dim3((unsigned)l->n_groups, n), dim3(TOPK_THREADS), shared, predict,
                          *p);
        r = cuda_launched(cu, "predict");
    }
    return r;
}

/* Sequences from *at on that are to be predicted and share a layout, a launch's worth; the most
 * slots of one. */
static int32_t gather(const struct cuda *cu, const struct ops_predict *p, int32_t *at,
                      struct predict_args *to)
{
    int32_t room = cu->scratch.n_selected < CUDA_SEQS ? cu->scratch.n_selected : CUDA_SEQS;
    int32_t most = 0;
    int32_t n = 0;

    for (; *at < p->n_seqs && n < room; (*at)++) {
        const struct ops_select *how = &p->select[*at];
        struct cuda_seqs one;

        if (how->kind != OPS_SELECT_GIVEN) {
            continue;
        }
        (void)cuda_seqs_take(p->seqs, *at, *at + 1, &one);
        if (n > 0 && memcmp(&one.layout, &to->a.seqs.layout, sizeof(one.layout)) != 0) {
            break;
        }
        to->a.seqs.layout = one.layout;
        to->a.seqs.s[n] = one.s[0];
        to->rule[n] = {how->count, how->share, how->cap, (int32_t)how->use, how->alpha};
        to->entry[n] = *at;
        most = one.s[0].n_slots > most ? one.s[0].n_slots : most;
        n++;
    }
    to->a.seqs.n = n;
    return most;
}

int cuda_predict(struct backend *be, const struct ops_predict *p)
{
    struct cuda *cu = cuda_of(be);
    struct predict_args a = {};
    int r = 0;

    for (int32_t i = 0; i < p->n_seqs; i++) {
        if (p->select[i].kind == OPS_SELECT_GIVEN && !valid(cu, p, i)) {
            return -EINVAL;
        }
    }
    a.a.q = p->q;
    a.a.ldq = p->ldq;
    a.a.n_q = p->n_q;
    a.a.scale = p->scale;
    a.a.softcap = p->softcap;
    a.a.alibi_max = p->alibi_max;
    a.a.max_slots = (cu->limits.max_slots + 63) / 64 * 64;
    a.chosen = *p->chosen;
    a.x = cu->scratch.approx;
    a.mass = cu->scratch.mass;
    a.skewed = cu->scratch.skewed;
    a.stats = cu->scratch.stats;
    a.near = cu->scratch.near;
    for (int32_t i = 0; i < p->n_seqs && r == 0;) {
        int32_t most = gather(cu, p, &i, &a);

        a.on_chip = most <= SELECT_ON_CHIP;
        if (a.a.seqs.n > 0) {
            r = launch(cu, &a, most);
        }
    }
    return r;
}
