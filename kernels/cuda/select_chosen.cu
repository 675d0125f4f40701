/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over lists of slots: those that select.cu chose and those that predict.cu left.
 *
 * attend_chosen  Block of 256 threads: a chunk of the list and up to 4 query heads that read one K
 *                head and one V head. Where the chunk's slots lie goes to shared memory, and their
 *                rows of V begin to move to L2. Logits: so many lanes a row of K that each has 16
 *                bytes of f16, 4 rows of a lane in flight; for top-k V they are the ranking's.
 *                Softmax: a warp a head. Values: as K, all heads from one load; lanes of a warp,
 *                then warps in order. A list of one chunk ends here: nothing goes to scratch.
 * merge_chosen   Block of 128 threads a head, of sequences with several chunks: chunks in order.
 *                SparQ gives the rest of the probability to the mean of V.
 *
 * A list's chunks follow from its sequence's longest list, so what a row gets depends on it alone.
 * Bytes: a row of K and one of V for each slot, K head and 4 query heads. A list of 128 is one
 * chunk: 8 blocks for a sequence of 8 K heads, each with 64 KB to read; with 256 threads and 4 rows
 * in flight that is 16 KB at once, some 4 waits for memory. */

#include "kernels/cuda/select_rows.cuh"

enum {
    CHOSEN_THREADS = 256,
    CHOSEN_WARPS = CHOSEN_THREADS / WARP,
    MERGE_THREADS = 128,
    HB = SELECT_HB,
    AHEAD = 4
};

static_assert((int)CHOSEN_THREADS == (int)SELECT_DIM_MAX, "a thread a dim");
static_assert((int)CHOSEN_WARPS >= (int)HB, "a warp a head");

/* What a block holds of its chunk. */
struct chunk {
    float w[HB][SELECT_CHUNK_MAX];   /* logits, then weights */
    int32_t pos[SELECT_CHUNK_MAX];   /* then of values: */
    int32_t place[SELECT_CHUNK_MAX]; /* slot of the pages, -1: none */
    uint32_t page[SELECT_CHUNK_MAX];
    float red[CHOSEN_WARPS][SELECT_DIM_MAX];
    float slope[HB], top[HB], sum[HB];
};

/* A block's part of the work. */
struct chosen_unit {
    int32_t seq, head0, n_heads, list;
    struct attend_head at;
    int32_t n, chunk, i0, m; /* list entries; of a chunk; the block's first, how many */
};

CUDA_INLINE struct chosen_unit unit_of(const struct select *p)
{
    struct chosen_unit u;
    int32_t blocks = (p->run + HB - 1) / HB;
    int32_t run = (int32_t)blockIdx.y / blocks;

    u.seq = (int32_t)blockIdx.z;
    u.head0 = run * p->run + (int32_t)blockIdx.y % blocks * HB;
    u.n_heads = min((int32_t)HB, (run + 1) * p->run - u.head0);
    u.at = attend_head_of(&p->a, u.head0);
    u.list = list_of(p, u.head0);
    u.n = list_length(p, u.seq, u.list);
    u.chunk = cuda_chunk(p->most[u.seq]);
    u.i0 = (int32_t)blockIdx.x * u.chunk;
    u.m = max(min(u.chunk, u.n - u.i0), 0);
    return u;
}

CUDA_INLINE uint8_t *page_of(const struct select *p, const struct chosen_unit *u,
                             const struct chunk *c, int32_t i)
{
    return p->a.seqs.s[u->seq].pool + (size_t)c->page[i] * p->a.seqs.layout.page_bytes;
}

/* Lanes, a power of two, that have KV_VEC elements each of `dim`. */
CUDA_INLINE int32_t lanes_of(int32_t dim)
{
    int32_t n = 1;

    while (n * KV_VEC < dim) {
        n *= 2;
    }
    return n;
}

CUDA_INLINE void find_slots(const struct select *p, const struct chosen_unit *u, struct chunk *c)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    const struct cuda_seq *s = &p->a.seqs.s[u->seq];

    if ((int32_t)threadIdx.x < HB) {
        c->slope[threadIdx.x] = attend_slope(&p->a, u->head0 + (int32_t)threadIdx.x);
    }
    for (int32_t i = (int32_t)threadIdx.x; i < u->m; i += CHOSEN_THREADS) {
        int32_t slot = list_slot(p, u->seq, u->list, u->i0 + i, u->n);
        int32_t place = slot >= 0 && p->packed ? u->i0 + i : slot;

        c->place[i] = place;
        if (slot >= 0) {
            c->pos[i] = kv_pos(s, u->at.group, slot);
            c->page[i] = s->pages[(size_t)u->at.group * s->max_pages + place / OPS_PAGE_SLOTS];

            const uint8_t *row = kv_v_row(l, page_of(p, u, c, i), u->at.v_head, place);

            for (uint32_t b = 0; b < l->v_row; b += 128) {
                grid_prefetch(row + b);
            }
        }
        for (int32_t h = 0; h < HB && p->kind == OPS_SELECT_TOPV; h++) {
            c->w[h][i] =
                h < u->n_heads ? p->approx[head_at(p, u->seq, u->head0 + h) + slot] : -INFINITY;
        }
    }
}

template <int TYPE>
CUDA_INLINE void logits_of(const struct select *p, const struct chosen_unit *u, struct chunk *c)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    int32_t pos0 = p->a.seqs.s[u->seq].pos0;
    int32_t lanes = lanes_of(l->k_dim);
    int32_t rows = CHOSEN_THREADS / lanes;
    int32_t vec = (int32_t)threadIdx.x % lanes;
    int32_t row = (int32_t)threadIdx.x / lanes;
    float q[HB][KV_VEC];

#pragma unroll
    for (int h = 0; h < HB; h++) {
#pragma unroll
        for (int j = 0; j < KV_VEC; j++) {
            bool in = h < u->n_heads && vec * KV_VEC + j < l->k_dim;

            q[h][j] = in ? query(p, u->seq, u->head0 + h)[vec * KV_VEC + j] : 0.0f;
        }
    }
    for (int32_t i0 = row; i0 - row < u->m; i0 += AHEAD * rows) {
        struct kv_raw<TYPE> raw[AHEAD];

#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int32_t i = i0 + a * rows;

            raw[a] = {};
            if (i < u->m && c->place[i] >= 0 && vec * KV_VEC < l->k_dim) {
                raw[a] = kv_raw_load<TYPE>(
                    kv_k_row(l, page_of(p, u, c, i), u->at.k_head, c->place[i]), vec);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int32_t i = i0 + a * rows;
            bool live = i < u->m && c->place[i] >= 0;
            float k[KV_VEC];
            float dot[HB] = {};

            kv_raw_floats<TYPE>(raw[a], k);
#pragma unroll
            for (int h = 0; h < HB; h++) {
#pragma unroll
                for (int j = 0; j < KV_VEC; j++) {
                    dot[h] += q[h][j] * k[j];
                }
            }
            for (int32_t m = lanes / 2; m > 0; m /= 2) {
#pragma unroll
                for (int h = 0; h < HB; h++) {
                    dot[h] += __shfl_xor_sync(ALL_LANES, dot[h], m);
                }
            }
            if (vec == 0 && i < u->m) {
                float scale = live ? kv_scale_of(TYPE, page_of(p, u, c, i), l->k_scale_at,
                                                 u->at.k_head, c->place[i])
                                   : 0.0f;

#pragma unroll
                for (int h = 0; h < HB; h++) {
                    c->w[h][i] = live && h < u->n_heads ? attend_logit(&p->a, dot[h] * scale,
                                                                       c->slope[h], c->pos[i], pos0)
                                                        : -INFINITY;
                }
            }
        }
    }
}

/* Logits to e^(logit - largest), a warp a head. */
CUDA_INLINE void weigh(const struct chosen_unit *u, struct chunk *c)
{
    int32_t h = (int32_t)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    float top = -INFINITY;
    float sum = 0;

    if (h >= HB) {
        return;
    }
    for (int32_t i = lane; i < u->m; i += WARP) {
        top = fmaxf(top, c->w[h][i]);
    }
    top = warp_max(top);
    for (int32_t i = lane; i < u->m; i += WARP) {
        float e = top > -INFINITY ? expf(c->w[h][i] - top) : 0.0f;

        c->w[h][i] = e;
        sum += e;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        c->top[h] = top;
        c->sum[h] = sum;
    }
}

/* Sums of values: the lane's KV_VEC dims of each head, over the rows of its warp. */
template <int TYPE>
CUDA_INLINE void values_of(const struct select *p, const struct chosen_unit *u,
                           const struct chunk *c, float acc[HB][KV_VEC])
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    int32_t lanes = lanes_of(l->v_dim);
    int32_t rows = CHOSEN_THREADS / lanes;
    int32_t vec = (int32_t)threadIdx.x % lanes;

    for (int32_t i0 = (int32_t)threadIdx.x / lanes; i0 < u->m; i0 += AHEAD * rows) {
        struct kv_raw<TYPE> raw[AHEAD];
        float scale[AHEAD];

#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int32_t i = i0 + a * rows;

            raw[a] = {};
            scale[a] = 0;
            if (i < u->m && c->place[i] >= 0 && vec * KV_VEC < l->v_dim) {
                uint8_t *page = page_of(p, u, c, i);

                raw[a] = kv_raw_load<TYPE>(kv_v_row(l, page, u->at.v_head, c->place[i]), vec);
                scale[a] = kv_scale_of(TYPE, page, l->v_scale_at, u->at.v_head, c->place[i]);
            }
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int32_t i = i0 + a * rows;
            float v[KV_VEC];

            if (i >= u->m) {
                break;
            }
            kv_raw_floats<TYPE>(raw[a], v);
#pragma unroll
            for (int h = 0; h < HB; h++) {
                float e = c->w[h][i] * scale[a];

#pragma unroll
                for (int j = 0; j < KV_VEC; j++) {
                    acc[h][j] += e * v[j];
                }
            }
        }
    }
    for (int32_t m = lanes; m < WARP; m *= 2) {
#pragma unroll
        for (int h = 0; h < HB; h++) {
#pragma unroll
            for (int j = 0; j < KV_VEC; j++) {
                acc[h][j] += __shfl_xor_sync(ALL_LANES, acc[h][j], m);
            }
        }
    }
}

/* out[d] of `sum`, the sum of values by e^(logit - top), and inv, 1 / the sum of these. */
CUDA_INLINE void finish(const struct select *p, int32_t seq, int32_t head, int32_t d, float sum,
                        float top, float inv)
{
    const struct cuda_layout *l = &p->a.seqs.layout;
    const struct cuda_seq *s = &p->a.seqs.s[seq];
    const float *stats = p->stats + (size_t)(seq * p->a.n_q + head) * 4;
    float *out = p->a.out + (size_t)s->row0 * p->a.ldo + (size_t)head * l->v_dim + d;
    float v;

    if (p->kind == OPS_SELECT_TOPV && !p->renorm && top > -INFINITY) {
        inv = stats[1] * expf(top - stats[0]); /* of all slots, not of the chosen */
    }
    v = sum * inv;
    if (p->mean[seq] && stats[2] != 1.0f) {
        struct attend_head at = attend_head_of(&p->a, head);
        size_t v_at = (size_t)(at.group * l->v_heads + at.v_head) * l->v_dim + d;
        int32_t live = p->list_n[(size_t)(seq * p->a.n_q + list_of(p, head)) * 2 + 1];

        v = stats[2] * v + (1.0f - stats[2]) * (s->v_sum[v_at] / (float)live);
    }
    *out = v;
}

CUDA_KERNEL void __launch_bounds__(CHOSEN_THREADS, 2) attend_chosen(struct select p)
{
    __shared__ __align__(16) struct chunk c;
    const struct cuda_layout *l = &p.a.seqs.layout;
    struct chosen_unit u;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t warp = (int32_t)threadIdx.x / WARP;
    int32_t d = (int32_t)threadIdx.x;
    float acc[HB][KV_VEC] = {};

    grid_begin();
    grid_wait();
    u = unit_of(&p);
    if (u.m == 0 && blockIdx.x > 0) { /* of no slots at all the first block gives 0 */
        return;
    }
    find_slots(&p, &u, &c);
    __syncthreads(); /* the chunk's slots: written above, read below */
    if (p.kind != OPS_SELECT_TOPV) {
        switch (l->k_type) {
        case OPS_KV_F32:
            logits_of<OPS_KV_F32>(&p, &u, &c);
            break;
        case OPS_KV_F16:
            logits_of<OPS_KV_F16>(&p, &u, &c);
            break;
        case OPS_KV_BF16:
            logits_of<OPS_KV_BF16>(&p, &u, &c);
            break;
        case OPS_KV_FP8:
            logits_of<OPS_KV_FP8>(&p, &u, &c);
            break;
        default:
            logits_of<OPS_KV_I8>(&p, &u, &c);
        }
    }
    __syncthreads(); /* w: logits written above, read below */
    weigh(&u, &c);
    __syncthreads(); /* w, top, sum: written above, read below */
    switch (l->v_type) {
    case OPS_KV_F32:
        values_of<OPS_KV_F32>(&p, &u, &c, acc);
        break;
    case OPS_KV_F16:
        values_of<OPS_KV_F16>(&p, &u, &c, acc);
        break;
    case OPS_KV_BF16:
        values_of<OPS_KV_BF16>(&p, &u, &c, acc);
        break;
    case OPS_KV_FP8:
        values_of<OPS_KV_FP8>(&p, &u, &c, acc);
        break;
    default:
        values_of<OPS_KV_I8>(&p, &u, &c, acc);
    }
#pragma unroll
    for (int h = 0; h < HB; h++) {
        if (h >= u.n_heads) { /* the same for all threads */
            break;
        }
        for (int j = 0; j < KV_VEC && lane < lanes_of(l->v_dim); j++) {
            c.red[warp][lane * KV_VEC + j] = acc[h][j];
        }
        __syncthreads(); /* red: written above, read below */
        if (d < l->v_dim) {
            float v = 0;

#pragma unroll
            for (int i = 0; i < CHOSEN_WARPS; i++) {
                v += c.red[i][d];
            }
            if (u.n <= u.chunk) {
                finish(&p, u.seq, u.head0 + h, d, v, c.top[h],
                       c.sum[h] > 0 ? 1.0f / c.sum[h] : 0.0f);
            } else {
                float *to = p.a.part +
                            ((size_t)(u.seq * p.a.n_q + u.head0 + h) * p.a.n_chunks + blockIdx.x) *
                                p.a.part_len;

                to[4 + d] = v;
                if (d == 0) {
                    to[0] = c.top[h];
                    to[1] = c.sum[h];
                }
            }
        }
        __syncthreads(); /* red: read above, written for the next head */
    }
}

CUDA_KERNEL void __launch_bounds__(MERGE_THREADS) merge_chosen(struct select p)
{
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    const float *part = p.a.part + (size_t)(seq * p.a.n_q + head) * p.a.n_chunks * p.a.part_len;
    int32_t chunk = cuda_chunk(p.most[seq]);
    int32_t n;
    float top;
    float inv;

    grid_begin();
    grid_wait();
    n = (list_length(&p, seq, list_of(&p, head)) + chunk - 1) / chunk;
    if (n <= 1) { /* attend_chosen has written it */
        return;
    }
    inv = attend_merge_sums(part, p.a.part_len, n, 0, &top);
    for (int32_t d = (int32_t)threadIdx.x; d < p.a.seqs.layout.v_dim; d += MERGE_THREADS) {
        finish(&p, seq, head, d, attend_merge_value(part, p.a.part_len, n, top, d), top, inv);
    }
}

int cuda_attend_chosen(struct cuda *cu, const struct select *p)
{
    unsigned n_q = (unsigned)p->a.n_q;
    unsigned n = (unsigned)p->a.seqs.n;
    int r;

    CUDA_LAUNCH_EARLY(cu,
                      dim3((unsigned)p->a.n_chunks,
                           n_q / (unsigned)p->run * cuda_div_up((uint64_t)p->run, HB), n),
                      dim3(CHOSEN_THREADS), 0, attend_chosen, *p);
    r = cuda_launched(cu, "attend_chosen");
    if (r == 0 && p->a.n_chunks > 1) {
        CUDA_LAUNCH_EARLY(cu, dim3(n_q, n), dim3(MERGE_THREADS), 0, merge_chosen, *p);
        r = cuda_launched(cu, "merge_chosen");
    }
    return r;
}
