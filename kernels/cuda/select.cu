/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows that read some of their slots: SparQ, top-k V, and slots that were given
 * (ops.h ops_select). The last begin at select_chosen.cu: their list lies where predict.cu left it,
 * and the row's own slot comes behind it. How long it is the host does not know; grids and chunks
 * are those of the longest that it can be.
 *
 * select_rank.cu gives each slot a logit, and tiles of slots their sums. Then, in order:
 *
 * sum_heads  Block of 128 threads: 512 slots (2048 of many) of a list, which is a head group's
 *            (SparQ) or a V head's (top-k V). Joins the tiles' sums; adds the probabilities of a
 *            slot over the query heads, 4 slots a thread; counts slots by that mass in 2048 bins,
 *            64 an octave down from what no mass exceeds, in shared memory, then adds them to the
 *            list's counts.
 * choose     Block of 1024 threads a list. The counts tell the bin with the k-th best; its slots,
 *            some 20 of 8192, are listed on chip and ranked by radix (topk.cuh), or from memory
 *            where more than 1024 are so much alike; then the chosen slots in ascending order, 8
 *            a thread and scan.
 *
 * select_chosen.cu goes on: four launches, five of lists with several chunks.
 *
 * Everything a row computes depends on its own sequence and policy alone: tiles on its number of
 * slots; counts are integers, whose sum has no order. Bytes at 2K: r lines of every 64 slots, then
 * k rows of K and V; 8 bytes a slot and head go to L2 and back, 8 more a slot and list.
 *
 * Times, an H200, 32 query heads on 8 K heads of 128, 8192 slots, by whole steps, so with the store
 * of the copy and sums of V: a layer takes some 60 us for one sequence and 90 for eight; counts of
 * these kernels alone say 20 and 35. With softmax and choice by one block a list it was 130 and
 * 245. */

#include <cerrno>

#include "kernels/cuda/select_rows.cuh"

enum {
    SUM_THREADS = 128,
    SUM_BLOCKS = 8, /* that ptxas is told: left alone it saves registers for more, and spills */
    SUM_SLOTS = SUM_THREADS * 4,
    SUM_HEADS = 1024, /* query heads of a list at most */
    BIN_SHIFT = 17,   /* 64 bins an octave: 32 octaves, and all that is below */
    CANDIDATES = 1024,
    ROUND_SLOTS = 8,
    ROUND = TOPK_THREADS * ROUND_SLOTS
};

static_assert((int)SELECT_BINS == 2 * (int)TOPK_THREADS, "two are a thread's");

/* A list's group, and the query heads whose probabilities it ranks by. */
struct ranked {
    int32_t group, head0, head1;
};

CUDA_INLINE struct ranked ranked_of(const struct select *p, int32_t list)
{
    int32_t n = p->a.n_q / lists_of(p);
    struct ranked r = {list * n / (p->a.n_q / p->a.seqs.layout.n_groups), list * n, (list + 1) * n};

    return r;
}

/* The bin of a mass, 0 the best: by how far its bits are below those of `bound`, which is above all
 * sums of probabilities; infinity is before it. */
CUDA_INLINE int32_t bin_of(uint32_t bound, uint32_t bits)
{
    uint32_t below = bits > bound ? 0 : ((bound - bits) >> BIN_SHIFT) + 1;

    return (int32_t)min(below, (uint32_t)SELECT_BINS - 1);
}

/* ---- sum_heads ------------------------------------------------------------------------------ */

/* Of head `h`, by one warp: the largest logit and 1 / the sum of e^(logit - largest). */
CUDA_INLINE float2 join_tiles(const struct select *p, int32_t seq, int32_t h)
{
    int32_t of_tile = p->tile_slots[seq];
    int32_t n_tiles = (p->a.seqs.s[seq].n_slots + of_tile - 1) / of_tile;
    const float2 *tile = reinterpret_cast<const float2 *>(tile_at(p, seq, h));
    int32_t lane = (int32_t)threadIdx.x % WARP;
    float top = -INFINITY;
    float sum = 0;

#pragma unroll 4
    for (int32_t i = lane; i < n_tiles; i += WARP) {
        top = fmaxf(top, tile[i].x);
    }
    top = warp_max(top);
#pragma unroll 4
    for (int32_t i = lane; i < n_tiles && top > -INFINITY; i += WARP) {
        sum += tile[i].y * expf(tile[i].x - top);
    }
    sum = warp_sum(sum);
    return make_float2(top, sum > 0 ? 1.0f / sum : 0.0f);
}

CUDA_KERNEL void __launch_bounds__(SUM_THREADS, SUM_BLOCKS) sum_heads(struct select p)
{
    __shared__ __align__(16) int32_t count[SELECT_BINS];
    __shared__ float2 of_head[SUM_HEADS];
    int32_t seq = (int32_t)blockIdx.z;
    int32_t list = (int32_t)blockIdx.y;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    struct ranked r = ranked_of(&p, list);
    size_t at = (size_t)(seq * p.a.n_q + list);
    int32_t n_heads = r.head1 - r.head0;
    int32_t from = (int32_t)blockIdx.x * p.mass_slots;
    int32_t end = min(from + p.mass_slots, padded_of(s->n_slots));
    int32_t pos_local = s->pos0 - p.local + 1;
    float bound = 0;
    uint4 *counts = reinterpret_cast<uint4 *>(count);

    grid_begin();
    grid_wait();
    if (from >= end && blockIdx.x > 0) {
        return;
    }
    for (int32_t h = (int32_t)threadIdx.x / WARP; h < n_heads; h += SUM_THREADS / WARP) {
        float2 x = join_tiles(&p, seq, r.head0 + h);

        if (threadIdx.x % WARP == 0) {
            of_head[h] = x;
            if (blockIdx.x == 0) {
                float *to = p.stats + (size_t)(seq * p.a.n_q + r.head0 + h) * 4;

                to[0] = x.x;
                to[1] = x.y;
            }
        }
    }
    for (int32_t i = (int32_t)threadIdx.x; i < SELECT_BINS / 4; i += SUM_THREADS) {
        counts[i] = make_uint4(0, 0, 0, 0);
    }
    __syncthreads(); /* of_head written; count cleared */
    for (int32_t h = 0; h < n_heads; h++) {
        bound += of_head[h].y;
    }
    bound *= 1.001f; /* more than sums of as many terms are rounded up by */
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        p.stats[(size_t)(seq * p.a.n_q + r.head0) * 4 + 3] = bound;
    }
    for (int32_t slot = from + (int32_t)threadIdx.x * 4; slot < end; slot += SUM_SLOTS) {
        float mass[4] = {};
        bool seen[4] = {};

#pragma unroll 4
        for (int32_t h = 0; h < n_heads; h++) {
            float4 v =
                *reinterpret_cast<const float4 *>(p.approx + head_at(&p, seq, r.head0 + h) + slot);
            float x[4] = {v.x, v.y, v.z, v.w};
            float2 of = of_head[h];

#pragma unroll
            for (int j = 0; j < 4; j++) {
                seen[j] = x[j] > -INFINITY; /* the same of all heads */
                mass[j] += seen[j] ? expf(x[j] - of.x) * of.y : 0.0f;
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (seen[j]) {
                bool local = p.local > 0 && kv_pos(s, r.group, slot + j) >= pos_local;

                mass[j] = local ? INFINITY : mass[j]; /* before all others */
                atomicAdd(&count[bin_of(__float_as_uint(bound), __float_as_uint(mass[j]))], 1);
            } else {
                mass[j] = -1;
            }
        }
        *reinterpret_cast<float4 *>(p.mass + at * p.a.max_slots + slot) =
            make_float4(mass[0], mass[1], mass[2], mass[3]);
    }
    __syncthreads(); /* count: complete */
    for (int32_t i = (int32_t)threadIdx.x; i < SELECT_BINS / 4; i += SUM_THREADS) {
        uint4 four = counts[i];
        uint32_t n[4] = {four.x, four.y, four.z, four.w};

#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (n[j] > 0) {
                atomicAdd(p.count + at * SELECT_BINS + i * 4 + j, (int32_t)n[j]);
            }
        }
    }
}

/* ---- choose --------------------------------------------------------------------------------- */

/* What ranks the slots of a list: those of one bin, the best first, by the larger mass, then by the
 * lower position. */
struct binned {
    const struct cuda_seq *s;
    const float *mass;
    uint32_t bound;
    int32_t group, bin;
};

/* Of a slot in the bin: all but of the last, the bits that bins leave are the key's first digits.
 */
CUDA_INLINE uint64_t bin_key(const struct binned *c, uint32_t bits, int32_t slot)
{
    uint32_t first = c->bound - ((uint32_t)max(c->bin - 1, 0) << BIN_SHIFT); /* its largest bits */
    uint64_t rest = c->bin == 0 ? 0 : first - bits;

    return rest << (c->bin < SELECT_BINS - 1 ? 64 - BIN_SHIFT : 32) |
           (uint32_t)kv_pos(c->s, c->group, slot);
}

CUDA_INLINE uint64_t topk_key(const struct binned *c, int32_t list, int32_t slot)
{
    float mass = c->mass[slot];
    uint32_t bits = __float_as_uint(mass);

    return mass >= 0 && bin_of(c->bound, bits) == c->bin ? bin_key(c, bits, slot) : TOPK_NONE;
}

struct listed {
    const uint64_t *key; /* shared */
};

CUDA_INLINE uint64_t topk_key(const struct listed *c, int32_t list, int32_t i)
{
    return c->key[i];
}

/* The thread's masses of a round; -1 behind the last. */
CUDA_INLINE void load_round(const float *mass, int32_t first, int32_t end, float ret[ROUND_SLOTS])
{
    float4 v[2] = {make_float4(-1, -1, -1, -1), make_float4(-1, -1, -1, -1)};

    if (first < end) { /* both: rows are padded */
        v[0] = reinterpret_cast<const float4 *>(mass + first)[0];
        v[1] = reinterpret_cast<const float4 *>(mass + first)[1];
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        ret[4 * j] = v[j].x, ret[4 * j + 1] = v[j].y;
        ret[4 * j + 2] = v[j].z, ret[4 * j + 3] = v[j].w;
    }
}

/* Of each query head, the share of its probability that the list's n slots have: a warp a head. */
CUDA_INLINE void sum_shares(const struct select *p, int32_t seq, struct ranked r,
                            const int32_t *list, int32_t n, bool all)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int32_t h = r.head0 + (int32_t)threadIdx.x / WARP; h < r.head1; h += TOPK_WARPS) {
        const float *x = p->approx + head_at(p, seq, h);
        float *stats = p->stats + (size_t)(seq * p->a.n_q + h) * 4;
        float top = stats[0];
        float share = 0;

#pragma unroll 4
        for (int32_t i = lane; i < n && !all; i += WARP) {
            share += expf(x[list[i]] - top);
        }
        share = warp_sum(share) * stats[1];
        if (lane == 0) {
            stats[2] = all ? 1.0f : share;
        }
    }
}

CUDA_INLINE int32_t live_slots(const struct cuda_seq *s, int32_t group, int32_t *part)
{
    int32_t live = 0;
    int32_t before;

    if (!s->slot_pos) {
        return s->n_slots;
    }
#pragma unroll 4
    for (int32_t i = (int32_t)threadIdx.x; i < s->n_slots; i += TOPK_THREADS) {
        live += kv_pos(s, group, i) >= 0;
    }
    return topk_scan(live, part, &before);
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) choose(struct select p)
{
    __shared__ uint64_t key[CANDIDATES];
    __shared__ int32_t part[TOPK_WARPS];
    __shared__ int32_t count[TOPK_DIGITS];
    __shared__ int32_t bin, of_bin, need, n_keys;
    int32_t seq = (int32_t)blockIdx.y;
    int32_t list = (int32_t)blockIdx.x;
    const struct cuda_seq *s = &p.a.seqs.s[seq];
    struct ranked r = ranked_of(&p, list);
    size_t at = (size_t)(seq * p.a.n_q + list);
    const float *mass = p.mass + at * p.a.max_slots;
    int32_t *to = p.list + at * p.a.max_slots;
    int32_t end = padded_of(s->n_slots);
    int32_t own = (int32_t)threadIdx.x;
    float x[ROUND_SLOTS];
    int32_t before, seen;
    int32_t n = 0;
    uint64_t last = TOPK_NONE; /* of the bin: all */
    struct binned of;
    int32_t bins[2]; /* the thread's */

    grid_begin();
    grid_wait();
    load_round(mass, own * ROUND_SLOTS, end, x);
    for (int j = 0; j < 2; j++) {
        bins[j] = p.count[at * SELECT_BINS + 2 * own + j];
    }
    if (own == 0) {
        bin = SELECT_BINS - 1;
        n_keys = 0;
        of_bin = 0;
        need = 0;
    }
    seen = topk_scan(bins[0] + bins[1], part, &before); /* its barriers: bin, n_keys */
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (before < p.k && p.k <= before + bins[j]) { /* one bin of all, if so many are seen */
            bin = 2 * own + j;
            of_bin = bins[j];
            need = p.k - before;
        }
        before += bins[j];
    }
    __syncthreads(); /* bin, of_bin, need: written by one thread, read by all */
    of = {s, mass, __float_as_uint(p.stats[(size_t)(seq * p.a.n_q + r.head0) * 4 + 3]), r.group,
          bin};
    if (need < of_bin && of_bin <= CANDIDATES) { /* the same for all threads, as below */
        struct listed c = {key};

        for (int32_t s0 = 0; s0 < end; s0 += ROUND) {
            int32_t first = s0 + own * ROUND_SLOTS;

            if (s0 > 0) {
                load_round(mass, first, end, x);
            }
#pragma unroll
            for (int j = 0; j < ROUND_SLOTS; j++) {
                uint32_t bits = __float_as_uint(x[j]);

                if (x[j] >= 0 && bin_of(of.bound, bits) == bin) {
                    key[atomicAdd(&n_keys, 1)] = bin_key(&of, bits, first + j);
                }
            }
        }
        __syncthreads(); /* key: complete */
        last = topk_nth(&c, 0, of_bin, need, count);
    } else if (need < of_bin) {
        last = topk_nth(&of, 0, s->n_slots, need, count);
    }
    for (int32_t s0 = 0; s0 < end; s0 += ROUND) {
        int32_t first = s0 + own * ROUND_SLOTS;
        uint32_t in = 0;

        if (end > ROUND) {
            load_round(mass, first, end, x);
        }
#pragma unroll
        for (int j = 0; j < ROUND_SLOTS; j++) {
            uint32_t bits = __float_as_uint(x[j]);
            int32_t b = bin_of(of.bound, bits);
            bool takes = x[j] >= 0 && b <= bin;

            if (takes && b == bin && last != TOPK_NONE) {
                takes = bin_key(&of, bits, first + j) <= last;
            }
            in |= (uint32_t)takes << j;
        }
        n = topk_append<ROUND_SLOTS>(in, first, to, n, part);
    }
    if (p.mean[seq]) { /* the same for all threads */
        int32_t live = live_slots(s, r.group, part);

        __syncthreads(); /* list: written above, read below */
        sum_shares(&p, seq, r, to, n, seen <= p.k);
        if (own == 0) {
            p.list_n[at * 2 + 1] = live;
        }
    }
    if (own == 0) {
        p.list_n[at * 2] = n;
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

static int launch_observe(struct cuda *cu, struct select *p, int32_t most)
{
    int r;

    CUDA_LAUNCH(cu, dim3((unsigned)p->a.n_q, (unsigned)p->a.seqs.n), dim3(TOPK_THREADS), 0,
                noisy_sums, *p);
    r = cuda_launched(cu, "noisy_sums");
    return r < 0 ? r : cuda_attend_observe(cu, &p->a, most);
}

static int launch_choose(struct cuda *cu, struct select *p, int32_t n_lists, int32_t most)
{
    unsigned n = (unsigned)p->a.seqs.n;
    int r;

    p->mass_slots = most <= SELECT_NEAR ? SUM_SLOTS : 4 * SUM_SLOTS;
    CUDA_LAUNCH_EARLY(cu, dim3(cuda_div_up((uint64_t)most, p->mass_slots), (unsigned)n_lists, n),
                      dim3(SUM_THREADS), 0, sum_heads, *p);
    r = cuda_launched(cu, "sum_heads");
    if (r == 0) {
        CUDA_LAUNCH_EARLY(cu, dim3((unsigned)n_lists, n), dim3(TOPK_THREADS), 0, choose, *p);
        r = cuda_launched(cu, "choose");
    }
    return r;
}

/* Query heads in a row that read one K head and one V head: what divides both runs. */
static int32_t run_of(const struct attend *a)
{
    const struct cuda_layout *l = &a->seqs.layout;
    int32_t x = a->n_q / (l->n_groups * l->k_heads);
    int32_t y = a->n_q / (l->n_groups * l->v_heads);

    while (y > 0) {
        int32_t rest = x % y;

        x = y;
        y = rest;
    }
    return x;
}

static int32_t percent_of(int32_t n, int32_t percent)
{
    return (int32_t)((int64_t)n * percent / 100);
}

/* As many slots as a list can have, of a row that sees `seen`. */
static int32_t longest_list(const struct ops_select *s, const struct cuda_seq *of, int32_t seen)
{
    int32_t k = s->k;

    if (s->kind == OPS_SELECT_GIVEN) { /* ops.h ops_predict, and the row's own */
        k = s->count ? s->count : percent_of(of->pos0, s->share ? s->share : s->cap);
        k = (k < 1 ? 1 : k < of->n_slots ? k : of->n_slots) + 1;
        seen = of->n_slots;
    }
    return k < seen ? k : seen;
}

int cuda_attend_select(struct cuda *cu, const struct attend *a, const struct ops_select *select,
                       const int32_t *seen)
{
    struct select p = {};
    int32_t most = 1;
    int32_t tiles = 1;
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
    p.tile = cu->scratch.tile;
    p.count = cu->scratch.count;
    p.max_tiles = select_max_tiles(cu->limits.max_slots);
    p.run = run_of(a);
    p.a.n_chunks = 1;
    if (p.kind == OPS_SELECT_GIVEN) {
        p.chosen = *select[0].chosen;
        p.packed = select[0].packed;
    }
    for (int32_t i = 0; i < a->seqs.n; i++) {
        int32_t n = a->seqs.s[i].n_slots;
        int32_t list = longest_list(&select[i], &a->seqs.s[i], seen[i]);
        int32_t chunks = (list + cuda_chunk(list) - 1) / cuda_chunk(list);
        int32_t of_tile = select_tile(seen[i]);

        p.tile_slots[i] = of_tile;
        p.mean[i] = select[i].mean;
        p.most[i] = list;
        p.entry[i] = select[i].entry;
        most = n > most ? n : most;
        tiles = n > tiles * of_tile ? (n + of_tile - 1) / of_tile : tiles;
        p.a.n_chunks = chunks > p.a.n_chunks ? chunks : p.a.n_chunks;
        observed = observed || (n > 0 && a->seqs.s[i].score && a->observe[i].row_first < 1);
    }
    if (p.kind == OPS_SELECT_GIVEN) {
        return cuda_attend_chosen(cu, &p);
    }
    r = cuda_select_rank(cu, &p, tiles);
    r = r == 0 && observed ? launch_observe(cu, &p, most) : r;
    if (r == 0) {
        r = launch_choose(cu, &p,
                          p.kind == OPS_SELECT_SPARQ
                              ? a->seqs.layout.n_groups
                              : a->seqs.layout.n_groups * a->seqs.layout.v_heads,
                          most);
    }
    return r < 0 ? r : cuda_attend_chosen(cu, &p);
}
