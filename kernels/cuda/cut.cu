/* SPDX-License-Identifier: Apache-2.0 */
/* The cut at the end of a prompt (victims of single tokens: victim.cu).
 *
 * Slots are ranked by score above position (slot_rank.cuh). One block of 1024 threads a group: the
 * k-th smallest key by radix, 8 bits a pass over the slots; what is not above it goes. Then the
 * survivors above the budget move into dead slots below, paired by their ranks, which prefix sums
 * give. The host waits only where positions allow more slots that must stay than the budget holds.
 * Bytes: 8 a slot and pass. Times: not measured. */

#include <cerrno>

#include "kernels/cuda/kv_four.cuh"
#include "kernels/cuda/kv_part.cuh"
#include "kernels/cuda/slot_rank.cuh"

enum { CUT_THREADS = TOPK_THREADS, CUT_WARPS = TOPK_WARPS };

struct choice {
    struct cuda_layout layout;
    struct cuda_seq s;
    struct slot_rank rank;
    int32_t budget;
    int32_t *order; /* (n_groups, max_slots) */
    int32_t max_slots;
    int32_t *flag;
};

CUDA_INLINE uint64_t topk_key(const struct choice *p, int32_t group, int32_t slot)
{
    return topk_key(&p->rank, group, slot);
}

/* ---- cut ------------------------------------------------------------------------------------ */

CUDA_INLINE void count_slots(const struct choice *p, int32_t group, int32_t *part,
                             int32_t *ret_live, int32_t *ret_free)
{
    int32_t live = 0;
    int32_t may_go = 0;
    int32_t before;

    for (int32_t s = (int32_t)threadIdx.x; s < p->s.n_slots; s += CUT_THREADS) {
        live += kv_pos(&p->s, group, s) >= 0;
        may_go += topk_key(p, group, s) != TOPK_NONE;
    }
    *ret_live = topk_scan(live, part, &before);
    *ret_free = topk_scan(may_go, part, &before);
}

/* How many must go, into flag[1]; flag[0] > 0 when protected slots alone exceed the budget. */
CUDA_KERNEL void __launch_bounds__(CUT_THREADS) choose_drops(struct choice p)
{
    __shared__ int32_t part[CUT_WARPS];
    __shared__ int32_t count[256];
    int32_t group = (int32_t)blockIdx.x;
    int32_t *dead = p.order + (size_t)group * p.max_slots; /* 1: goes */
    int32_t live;
    int32_t may_go;
    int32_t n;
    uint64_t last = 0;

    count_slots(&p, group, part, &live, &may_go);
    n = live > p.budget ? live - p.budget : 0;
    if (n > may_go) {
        if (threadIdx.x == 0) {
            atomicAdd(&p.flag[0], 1); /* blocks in no order */
        }
        n = 0;
    }
    if (n > 0) {
        last = topk_nth(&p, group, p.s.n_slots, n, count);
    }
    for (int32_t s = (int32_t)threadIdx.x; s < p.s.n_slots; s += CUT_THREADS) {
        uint64_t key = topk_key(&p, group, s);

        dead[s] = n > 0 && key != TOPK_NONE && key <= last;
    }
}

/* Drops the chosen, then pairs dead slots below the budget with survivors above it. A block reads
 * the choice of its own group (of group 0 when shared) and then uses its own part of `order`; when
 * shared, group 0's block must not overwrite what others still read, so its list lies behind. */
CUDA_KERNEL void __launch_bounds__(CUT_THREADS) close_gaps(struct choice p)
{
    __shared__ int32_t part[CUT_WARPS];
    int32_t group = (int32_t)blockIdx.x;
    int32_t *slot_pos = p.s.slot_pos + (size_t)group * p.s.cap;
    float *score = p.s.score ? p.s.score + (size_t)group * p.s.cap : NULL;
    const int32_t *drop = p.order + (p.rank.shared ? 0 : (size_t)group * p.max_slots);
    int32_t *to = p.order + (size_t)(group + (p.rank.shared ? 1 : 0)) * p.max_slots;
    int32_t n_to = 0;
    int32_t n_from = 0;
    int32_t below = p.budget < p.s.n_slots ? p.budget : p.s.n_slots;

    for (int32_t s = (int32_t)threadIdx.x; s < p.s.n_slots; s += CUT_THREADS) {
        if (drop[s]) {
            slot_pos[s] = -1;
            if (score) {
                score[s] = 0.0f;
            }
        }
    }
    __syncthreads(); /* drop: read above, its place may be the list's; slot_pos: final */
    for (int32_t s0 = 0; s0 < below; s0 += CUT_THREADS) {
        int32_t s = s0 + (int32_t)threadIdx.x;
        bool is_dead = s < below && slot_pos[s] < 0;
        int32_t before;
        int32_t n = topk_scan(is_dead, part, &before);

        if (is_dead) {
            to[n_to + before] = s;
        }
        n_to += n;
    }
    __syncthreads(); /* to: complete */
    for (int32_t s0 = below; s0 < p.s.n_slots; s0 += CUT_THREADS) {
        int32_t s = s0 + (int32_t)threadIdx.x;
        int32_t pos = s < p.s.n_slots ? slot_pos[s] : -1;
        int32_t before;
        int32_t n = topk_scan(pos >= 0, part, &before);

        if (pos >= 0) {
            int32_t target = to[n_from + before];

            slot_pos[target] = pos;
            slot_pos[s] = -1;
            if (score) {
                score[target] = score[s];
                score[s] = 0.0f;
            }
            to[p.max_slots - 1 - (n_from + before)] = s; /* for the copy: targets, then sources */
        }
        n_from += n;
    }
    if (threadIdx.x == 0) {
        p.flag[1 + group] = n_from;
    }
}

CUDA_INLINE void copy_row(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = threadIdx.x * 8; i < bytes; i += blockDim.x * 8) {
        *reinterpret_cast<uint2 *>(to + i) = *reinterpret_cast<const uint2 *>(from + i);
    }
}

/* One block a group and moved slot. */
CUDA_KERNEL void move_survivors(struct choice p)
{
    int32_t group = (int32_t)blockIdx.y;
    const int32_t *list = p.order + (size_t)(group + (p.rank.shared ? 1 : 0)) * p.max_slots;
    int32_t i = (int32_t)blockIdx.x;
    const struct cuda_layout *l = &p.layout;

    for (; i < p.flag[1 + group]; i += (int32_t)gridDim.x) {
        int32_t to = list[i];
        int32_t from = list[p.max_slots - 1 - i];
        uint8_t *a = kv_page(l, &p.s, group, to);
        uint8_t *b = kv_page(l, &p.s, group, from);
        uint8_t *part_a = kv_part_page(l, &p.s, group, to);
        uint8_t *part_b = kv_part_page(l, &p.s, group, from);

        for (int32_t h = 0; h < l->k_heads; h++) {
            copy_row(kv_k_row(l, a, h, to), kv_k_row(l, b, h, from), l->k_row);
            if ((int32_t)threadIdx.x < l->k_scales) {
                kv_scales(a, l->k_scale_at, l->k_scales, h, to)[threadIdx.x] =
                    kv_scales(b, l->k_scale_at, l->k_scales, h, from)[threadIdx.x];
            }
            __syncwarp(); /* the row and its scale: written by all lanes, read again below */
            kv_rank_row(l, a, h, to);
            kv_part_move(l, part_a, to, part_b, from, h);
        }
        for (int32_t h = 0; h < l->v_heads; h++) {
            copy_row(kv_v_row(l, a, h, to), kv_v_row(l, b, h, from), l->v_row);
            if ((int32_t)threadIdx.x < l->v_scales) {
                kv_scales(a, l->v_scale_at, l->v_scales, h, to)[threadIdx.x] =
                    kv_scales(b, l->v_scale_at, l->v_scales, h, from)[threadIdx.x];
            }
        }
    }
}

/* ---- calls ---------------------------------------------------------------------------------- */

static int choice_of(const struct cuda *cu, const struct ops_kv *kv, struct choice *ret)
{
    struct ops_seq seq = {};
    struct cuda_seqs seqs;

    if (kv->n_slots > cu->limits.max_slots || kv->layout->n_groups > cu->limits.max_heads) {
        return -EINVAL;
    }
    seq.kv = *kv;
    (void)cuda_seqs_take(&seq, 0, 1, &seqs);
    *ret = {};
    ret->layout = seqs.layout;
    ret->s = seqs.s[0];
    ret->order = cu->scratch.order;
    ret->max_slots = (cu->limits.max_slots + 63) / 64 * 64;
    ret->flag = cu->scratch.flag;
    return 0;
}

/* Can more slots have to stay than the budget holds? By positions, of which a group has each once. */
static bool may_fail(const struct ops_cut *p)
{
    int64_t first = p->sinks > 0 ? p->sinks : 0;
    int64_t latest = p->pos_protect < p->pos_end ? (int64_t)p->pos_end - p->pos_protect : 0;

    return first + latest > p->budget;
}

int cuda_cut(struct backend *be, const struct ops_cut *p)
{
    struct cuda *cu = cuda_of(be);
    int32_t groups = p->kv->layout->n_groups;
    bool asks = may_fail(p);
    int32_t failed = 0;
    struct choice c;
    int r = choice_of(cu, p->kv, &c);

    if (r < 0 || !p->kv->slot_pos) {
        return -EINVAL;
    }
    c.rank = slot_rank_of(p->kv, p->sinks, p->pos_protect, p->by_position, p->shared);
    c.budget = p->budget;
    r = asks ? be->ops->zero(be, c.flag, sizeof(*c.flag)) : 0;
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(p->shared ? 1 : (unsigned)groups), dim3(CUT_THREADS), 0, choose_drops,
                    c);
        r = cuda_launched(cu, "choose_drops");
    }
    if (r == 0 && asks) {
        r = be->ops->read(be, &failed, c.flag, sizeof(failed));
    }
    if (r < 0 || failed) {
        return r < 0 ? r : -EINVAL;
    }
    CUDA_LAUNCH(cu, dim3((unsigned)groups), dim3(CUT_THREADS), 0, close_gaps, c);
    r = cuda_launched(cu, "close_gaps");
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(256, (unsigned)groups), dim3(32), 0, move_survivors, c);
        r = cuda_launched(cu, "move_survivors");
    }
    return r;
}
