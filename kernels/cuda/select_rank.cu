/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks the slots of decode rows that select (select.cu): SparQ's logits from some dims, top-k
 * V's from all.
 *
 * Block of 128 threads: a tile of slots (256, or 1024 of more than 16384), one K head, up to 4 of
 * the query heads that read it.
 *
 * SparQ: each block finds the dims with the largest sums of |q| anew, by k_dim^2 compares, four of
 * them a load. With a copy of K by dim, in which 64 slots of a dim lie together, only those dims'
 * lines are read. A thread loads 8 slots of a dim at once (16 bytes of f16), a warp 256 slots, and
 * the four warps share the dims. So of r = 32 all 16 KB of 256 slots are under way before the first
 * is needed. Warps' sums are added in order.
 * Without a copy, and for top-k V: whole rows, two slots a thread.
 *
 * Writes the logits that rank slots; of each tile and head the largest, and the sum of
 * e^(logit - largest); with noise the logits that are observed. */

#include "kernels/cuda/select_rows.cuh"

enum {
    RANK_THREADS = 128,
    RANK_WARPS = RANK_THREADS / WARP,
    RANK_BLOCKS = 4, /* that ptxas is told: left alone it saves registers for more */
    RANK_ROWS = -1,  /* the form that reads rows */
    HB = SELECT_HB,
    HEAD_MAX = SELECT_DIM_MAX,
    PART = WARP * KV_VEC /* slots at once */
};

static_assert((int)RANK_WARPS == (int)HB, "a warp a head");
static_assert((int)PART == 2 * (int)RANK_THREADS, "two slots a thread");
static_assert((int)PART == (int)SELECT_TILE, "a tile is one part, or several");
static_assert((int)OPS_PAGE_SLOTS == 8 * (int)KV_VEC, "eight lanes a page");

/* What a block of `rank` holds. */
struct ranking {
    float q[HB * HEAD_MAX]; /* (r, HB) at the chosen dims; by rows: (HB, len), 0 at others */
    float part[RANK_WARPS][HB][PART];
    uint32_t sum[HEAD_MAX]; /* |q| over heads: floats from 0 on, in order as integers */
    int32_t dims[HEAD_MAX]; /* the chosen, ascending */
    bool in[HEAD_MAX];
    int32_t before[HEAD_MAX / WARP];
    float factor[HB], slope[HB];
    float top[RANK_WARPS][HB], e[RANK_WARPS][HB];
};

/* A block's part of the work. */
struct rank_unit {
    int32_t seq, k_head, head0, n_heads, group, share; /* k_head: of all groups */
};

CUDA_INLINE void choose_dims(const struct select *p, const struct rank_unit *u, struct ranking *m)
{
    int32_t n = p->a.seqs.layout.k_dim;
    int32_t end = (n + 3) / 4 * 4;
    const float *q0 = query(p, u->seq, u->k_head * u->share);

    for (int32_t d = (int32_t)threadIdx.x; d < end; d += RANK_THREADS) {
        float s = 0;

#pragma unroll 4
        for (int32_t h = 0; h < u->share && d < n; h++) {
            s += fabsf(q0[(size_t)h * n + d]);
        }
        m->sum[d] = __float_as_uint(s);
    }
    __syncthreads(); /* sum: written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < HEAD_MAX; d += RANK_THREADS) {
        uint32_t own = d < n ? m->sum[d] : 0;
        int32_t better = 0;
        unsigned ballot;

#pragma unroll 4
        for (int32_t o = 0; o < end && d < n; o += 4) {
            uint4 x = *reinterpret_cast<const uint4 *>(m->sum + o);

            better += x.x > own || (x.x == own && o < d);
            better += x.y > own || (x.y == own && o + 1 < d);
            better += x.z > own || (x.z == own && o + 2 < d);
            better += x.w > own || (x.w == own && o + 3 < d);
        }
        m->in[d] = d < n && better < p->r;
        ballot = __ballot_sync(ALL_LANES, m->in[d]);
        if (d % WARP == 0) {
            m->before[d / WARP] = __popc(ballot);
        }
        m->dims[d] = __popc(ballot & ((1u << d % WARP) - 1));
    }
    __syncthreads(); /* before: of all warps; dims: each thread's own */
    for (int32_t d = (int32_t)threadIdx.x; d < HEAD_MAX; d += RANK_THREADS) {
        int32_t at = m->dims[d];

        for (int32_t w = 0; w < d / WARP; w++) {
            at += m->before[w];
        }
        m->sum[d] = m->in[d] ? (uint32_t)at : UINT32_MAX; /* its place, from here on */
    }
    __syncthreads(); /* dims: read above, written below; sum: written above */
    for (int32_t d = (int32_t)threadIdx.x; d < n; d += RANK_THREADS) {
        if (m->in[d]) {
            m->dims[m->sum[d]] = d;
        }
    }
}

/* q as `ranking` has it, and by which a head's products are multiplied: SparQ's 1 / sqrt(share). */
template <int TYPE>
CUDA_INLINE void load_query(const struct select *p, const struct rank_unit *u, int32_t len,
                            struct ranking *m)
{
    int32_t n = p->a.seqs.layout.k_dim;
    int32_t h = (int32_t)threadIdx.x / WARP;
    const float *q = query(p, u->seq, u->head0 + h);
    bool sparq = p->kind == OPS_SELECT_SPARQ;
    float all = 0;
    float some = 0;

    if (sparq) {
        choose_dims(p, u, m); /* its last barrier: `in` and `sum` */
    }
    for (int32_t d = (int32_t)threadIdx.x % WARP; d < len; d += WARP) {
        float x = h < u->n_heads && d < n ? q[d] : 0.0f;
        bool in = !sparq || (d < n && m->in[d]);

        all += fabsf(x);
        some += in ? fabsf(x) : 0.0f;
        if (TYPE == RANK_ROWS) {
            m->q[h * len + d] = in ? x : 0.0f;
        } else if (in) {
            m->q[m->sum[d] * HB + h] = x;
        }
    }
    all = warp_sum(all);
    some = warp_sum(some);
    if (threadIdx.x % WARP == 0) {
        m->factor[h] = sparq && some > 0 ? 1.0f / sqrtf(some / all) : 1.0f;
        m->slope[h] = attend_slope(&p->a, u->head0 + h);
    }
    __syncthreads(); /* q, dims, factor: written above, read below */
}

/* q k of the thread's two slots of [slot0, slot0 + PART), from lines of the chosen dims. */
template <int TYPE>
CUDA_INLINE void line_products(const struct select *p, const struct rank_unit *u, int32_t slot0,
                               struct ranking *m, float dot[2][HB])
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    const struct cuda_seq *s = &p->a.seqs.s[u->seq];
    constexpr int AHEAD = TYPE == OPS_KV_F32 ? 4 : 8;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t of_page = slot0 + lane / 8 * OPS_PAGE_SLOTS;
    int32_t own = slot0 + 2 * (int32_t)threadIdx.x;
    float acc[HB][KV_VEC] = {};

    if (of_page < s->n_slots &&
        !attend_unseen(&p->a, s, of_page, OPS_PAGE_SLOTS, s->pos0, s->pos0)) {
        const uint8_t *line =
            kv_rank_dim(l, kv_page(l, s, u->group, of_page), u->k_head % l->k_heads, 0);
        int32_t bytes = OPS_PAGE_SLOTS * kv_element_bytes(TYPE);

        for (int32_t i0 = warp; i0 < p->r; i0 += AHEAD * RANK_WARPS) {
            struct kv_raw<TYPE> raw[AHEAD];

#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                int32_t i = i0 + a * RANK_WARPS;

                raw[a] = {};
                if (i < p->r) {
                    raw[a] = kv_raw_load<TYPE>(line + m->dims[i] * bytes, lane % 8);
                }
            }
#pragma unroll
            for (int a = 0; a < AHEAD; a++) {
                int32_t i = i0 + a * RANK_WARPS;
                float4 q = *reinterpret_cast<const float4 *>(m->q + (i < p->r ? i : 0) * HB);
                float k[KV_VEC];

                kv_raw_floats<TYPE>(raw[a], k);
#pragma unroll
                for (int j = 0; j < KV_VEC; j++) {
                    acc[0][j] += q.x * k[j];
                    acc[1][j] += q.y * k[j];
                    acc[2][j] += q.z * k[j];
                    acc[3][j] += q.w * k[j];
                }
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HB; h++) {
        float4 *to = reinterpret_cast<float4 *>(&m->part[warp][h][lane * KV_VEC]);

        to[0] = make_float4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
        to[1] = make_float4(acc[h][4], acc[h][5], acc[h][6], acc[h][7]);
    }
    __syncthreads(); /* part: written above, read below */
#pragma unroll
    for (int h = 0; h < HB; h++) {
        dot[0][h] = 0;
        dot[1][h] = 0;
#pragma unroll
        for (int w = 0; w < RANK_WARPS; w++) {
            float2 x = *reinterpret_cast<const float2 *>(&m->part[w][h][2 * threadIdx.x]);

            dot[0][h] += x.x;
            dot[1][h] += x.y;
        }
    }
    __syncthreads(); /* part: read above, written for the next slots */
    for (int j = 0; j < 2 && kv_has_scale(TYPE) && own + j < s->n_slots; j++) {
        float scale =
            kv_rank_scale(l, kv_page(l, s, u->group, own + j), u->k_head % l->k_heads, own + j);

#pragma unroll
        for (int h = 0; h < HB; h++) {
            dot[j][h] *= scale;
        }
    }
}

/* The same from rows of K. */
CUDA_INLINE void row_products(const struct select *p, const struct rank_unit *u, int32_t slot,
                              const int32_t pos[2], int32_t len, const float *q, float dot[2][HB])
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    const struct cuda_seq *s = &p->a.seqs.s[u->seq];
    int32_t head = u->k_head % l->k_heads;
    uint8_t *page;

    for (int h = 0; h < HB; h++) {
        dot[0][h] = 0;
        dot[1][h] = 0;
    }
    if (pos[0] < 0 && pos[1] < 0) {
        return;
    }
    page = kv_page(l, s, u->group, slot); /* of both: slot is even */
#pragma unroll 2
    for (int32_t i = 0; i < len / KV_VEC; i++) {
        float k[2][KV_VEC];

        kv_load8(l->k_type, kv_k_row(l, page, head, slot), i, k[0]);
        kv_load8(l->k_type, kv_k_row(l, page, head, slot + 1), i, k[1]);
#pragma unroll
        for (int h = 0; h < HB; h++) {
#pragma unroll
            for (int j = 0; j < KV_VEC; j++) {
                float x = q[h * len + i * KV_VEC + j];

                dot[0][h] += x * k[0][j];
                dot[1][h] += x * k[1][j];
            }
        }
    }
    for (int j = 0; j < 2; j++) {
        float scale = kv_scale_of(l->k_type, page, l->k_scale_at, head, slot + j);

        for (int h = 0; h < HB; h++) {
            dot[j][h] *= scale;
        }
    }
}

/* Logits of the thread's two slots, and what they add to the tile's. */
CUDA_INLINE void write_logits(const struct select *p, const struct rank_unit *u,
                              const struct ranking *m, int32_t slot, const int32_t pos[2],
                              const float dot[2][HB], float top[HB], float sum[HB])
{
    const struct cuda_seq *s = &p->a.seqs.s[u->seq];
    bool observed = attend_observed(&p->a, u->seq);

#pragma unroll
    for (int h = 0; h < HB; h++) {
        size_t at = head_at(p, u->seq, u->head0 + h) + slot;
        float x[2];
        float most;

        if (h >= u->n_heads) {
            break;
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            x[j] = pos[j] < 0 ? -INFINITY
                              : attend_logit(&p->a, dot[j][h] * m->factor[h], m->slope[h], pos[j],
                                             s->pos0);
            if (observed && slot + j < s->n_slots) {
                p->a.logits[at + j] =
                    attend_noisy(&p->a.observe[u->seq], x[j], u->head0 + h, 0, s->pos0, pos[j]);
            }
        }
        *reinterpret_cast<float2 *>(p->approx + at) = make_float2(x[0], x[1]);
        most = fmaxf(top[h], fmaxf(x[0], x[1]));
        if (most > -INFINITY) {
            sum[h] = sum[h] * expf(top[h] - most) + expf(x[0] - most) + expf(x[1] - most);
            top[h] = most;
        }
    }
}

/* The tile's largest logits and sums, of the threads'. */
CUDA_INLINE void write_tile(const struct select *p, const struct rank_unit *u, struct ranking *m,
                            const float top[HB], const float sum[HB])
{
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t h = (int32_t)threadIdx.x;

#pragma unroll
    for (int i = 0; i < HB; i++) {
        float most = warp_max(top[i]);
        float e = warp_sum(top[i] > -INFINITY ? sum[i] * expf(top[i] - most) : 0.0f);

        if (threadIdx.x % WARP == 0) {
            m->top[warp][i] = most;
            m->e[warp][i] = e;
        }
    }
    __syncthreads(); /* top, e: written above, read below */
    if (h < u->n_heads) {
        float *to = tile_at(p, u->seq, u->head0 + h) + 2 * blockIdx.x;
        float most = -INFINITY;
        float e = 0;

        for (int w = 0; w < RANK_WARPS; w++) {
            most = fmaxf(most, m->top[w][h]);
        }
        for (int w = 0; w < RANK_WARPS && most > -INFINITY; w++) {
            e += m->e[w][h] * expf(m->top[w][h] - most);
        }
        to[0] = most;
        to[1] = e;
    }
}

/* Of the sequence's lists, by all its blocks, for sum_heads to add to. */
CUDA_INLINE void clear_counts(const struct select *p, int32_t seq)
{
    int32_t blocks = (int32_t)(gridDim.x * gridDim.y);
    int32_t n = lists_of(p) * (SELECT_BINS / 4);
    uint4 *to = reinterpret_cast<uint4 *>(p->count + (size_t)seq * p->a.n_q * SELECT_BINS);

    for (int32_t i = (int32_t)((blockIdx.y * gridDim.x + blockIdx.x) * RANK_THREADS + threadIdx.x);
         i < n; i += blocks * RANK_THREADS) {
        to[i] = make_uint4(0, 0, 0, 0);
    }
}

/* TYPE: of the lines (enum ops_kv_type), or RANK_ROWS. */
template <int TYPE>
CUDA_KERNEL void __launch_bounds__(RANK_THREADS, RANK_BLOCKS) rank(struct select p)
{
    __shared__ __align__(16) struct ranking m;
    const struct cuda_layout *l = &p.a.seqs.layout;
    struct rank_unit u;
    const struct cuda_seq *s;
    int32_t blocks, slot0, end;
    int32_t len = (l->k_dim + KV_VEC - 1) / KV_VEC * KV_VEC;
    float top[HB], sum[HB];

    grid_begin();
    grid_wait();
    u.seq = (int32_t)blockIdx.z;
    s = &p.a.seqs.s[u.seq];
    u.share = p.a.n_q / (l->n_groups * l->k_heads);
    blocks = (u.share + HB - 1) / HB;
    u.k_head = (int32_t)blockIdx.y / blocks;
    u.head0 = u.k_head * u.share + (int32_t)blockIdx.y % blocks * HB;
    u.n_heads = min((int32_t)HB, (u.k_head + 1) * u.share - u.head0);
    u.group = u.k_head / l->k_heads;
    clear_counts(&p, u.seq);
    slot0 = (int32_t)blockIdx.x * p.tile_slots[u.seq];
    end = min(slot0 + p.tile_slots[u.seq], padded_of(s->n_slots));
    if (slot0 >= s->n_slots) {
        return;
    }
    load_query<TYPE>(&p, &u, len, &m);
    for (int h = 0; h < HB; h++) {
        top[h] = -INFINITY;
        sum[h] = 0;
    }
    for (; slot0 < end; slot0 += PART) {
        int32_t slot = slot0 + 2 * (int32_t)threadIdx.x;
        int32_t pos[2];
        float dot[2][HB];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            pos[j] = slot + j < s->n_slots ? kv_pos(s, u.group, slot + j) : -1;
            pos[j] = kv_visible(pos[j], s->pos0, p.a.window) ? pos[j] : -1;
        }
        if constexpr (TYPE == RANK_ROWS) {
            row_products(&p, &u, slot, pos, len, m.q, dot);
        } else {
            line_products<TYPE>(&p, &u, slot0, &m, dot);
        }
        if (slot < end) {
            write_logits(&p, &u, &m, slot, pos, dot, top, sum);
        }
    }
    write_tile(&p, &u, &m, top, sum);
}

int cuda_select_rank(struct cuda *cu, const struct select *p, int32_t most_tiles)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    unsigned k_heads = (unsigned)(l->n_groups * l->k_heads);
    dim3 grid((unsigned)most_tiles, k_heads * cuda_div_up((uint64_t)p->a.n_q / k_heads, HB),
              (unsigned)p->a.seqs.n);
    bool lines = p->kind == OPS_SELECT_SPARQ && l->rank != OPS_RANK_ONCE;

    switch (lines ? l->rank == OPS_RANK_8 ? (int32_t)OPS_KV_FP8 : l->k_type : (int32_t)RANK_ROWS) {
    case OPS_KV_F32:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<OPS_KV_F32>, *p);
        break;
    case OPS_KV_F16:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<OPS_KV_F16>, *p);
        break;
    case OPS_KV_BF16:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<OPS_KV_BF16>, *p);
        break;
    case OPS_KV_FP8:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<OPS_KV_FP8>, *p);
        break;
    case OPS_KV_I8:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<OPS_KV_I8>, *p);
        break;
    default:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(RANK_THREADS), 0, rank<RANK_ROWS>, *p);
    }
    return cuda_launched(cu, "rank");
}
