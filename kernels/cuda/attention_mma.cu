/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows on tensor cores, and what a policy observes of them; caches of 16 and 8
 * bits. (Those of 32 bits: attention_prefill.cu.)
 *
 * prefill  Block of 4 warps: 64 consecutive rows of one query head, a warp 16 of them, over all
 *          slots in tiles of 64, softmax as it goes. Q, K and V lie in shared memory as 16-bit
 *          elements, rows 16 bytes longer than the head so that a matrix load meets all banks. The
 *          values of a tile are copied while its logits are formed, the next tile's keys while
 *          values are summed. Blocks with the most tiles start first.
 * columns  Block of 4 warps: a tile of 64 slots of one group. All its rows and heads pass by; each
 *          thread sums its columns in registers, weighted by row. The logits are formed again, and
 *          divided by the sums that `prefill` left.
 *
 * Precision: queries and probabilities have the 16-bit type that keys and values have; 8-bit caches
 * go as f16: the codes of K exactly, their scales applied to the logits; those of V times their
 * scale, rounded once. Sums are f32. Queries beyond f16's range are divided by a power of two, per
 * row.
 *
 * A row's bits do not depend on the other 63. Shared memory: 51 KB at 128, 99 KB at 256 (there two
 * blocks an SM on sm_90 and sm_100, else one). Rates: not measured. */

#include "kernels/cuda/attention.cuh"

enum { THREADS = 128, WARPS = 4, ROWS = 64, SLOTS = 64 };

struct tile {
    uint16_t *q, *k, *v; /* (ROWS, q_len), (SLOTS, k_len = q_len), (SLOTS, v_len) */
    int32_t q_len, v_len;
};

/* What a tile knows of row or slot i lies in the 16 bytes that make row i of q longer than the
 * head: with arrays of their own, 1 KB, heads of 256 would not fit the 99 KB of sm_86, 89 and 120.
 */
struct tile_side {
    int32_t pos;    /* of slot i; -1: none */
    float k_scale;  /* of slot i */
    float q_factor; /* what row i of q was divided by */
    float weight;   /* columns: row i's */
};

static_assert((int)ROWS == (int)SLOTS && sizeof(struct tile_side) == 8 * sizeof(uint16_t), "fits");

CUDA_INLINE struct tile_side *side(const struct tile *t, int32_t i)
{
    return reinterpret_cast<struct tile_side *>(t->q + (i + 1) * t->q_len - 8);
}

static inline __host__ __device__ int32_t padded(int32_t dim)
{
    return (dim + 15) / 16 * 16;
}

/* Bytes, and with `memory` where things lie. */
static inline __host__ __device__ uint32_t tile_lay(int32_t k_dim, int32_t v_dim, bool values,
                                                    uint8_t *memory, struct tile *t)
{
    uint32_t q_len = (uint32_t)padded(k_dim) + 8;
    uint32_t v_len = values ? (uint32_t)padded(v_dim) + 8 : 0;
    uint32_t at = 2 * ROWS * q_len * 2;

    t->q_len = (int32_t)q_len;
    t->v_len = (int32_t)v_len;
    t->q = reinterpret_cast<uint16_t *>(memory);
    t->k = t->q + ROWS * q_len;
    t->v = t->k + SLOTS * q_len;
    return at + SLOTS * v_len * 2;
}

/* ---- loading -------------------------------------------------------------------------------- */

template <bool BF16> CUDA_INLINE uint16_t half_of(float x)
{
    return BF16 ? bf16_of_f32(x) : f16_of_f32(x);
}

/* Rows [row0, row0 + 64) of a sequence as 16 bits; what lies beyond is 0. A warp a row. */
template <bool BF16>
CUDA_INLINE void load_q(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                        int32_t head, const struct tile *t)
{
    int32_t k_dim = p->seqs.layout.k_dim;
    int lane = (int)threadIdx.x % WARP;

    for (int32_t r = (int32_t)threadIdx.x / WARP; r < ROWS; r += WARPS) {
        const float *q = p->q + (size_t)(s->row0 + row0 + r) * p->ldq + (size_t)head * k_dim;
        float factor = 1.0f;
        float top = 0.0f;

        for (int32_t d = lane; d < k_dim && !BF16 && row0 + r < s->n_rows; d += WARP) {
            top = fmaxf(top, fabsf(q[d]));
        }
        top = BF16 ? 0.0f : warp_max(top);
        if (top > 32768.0f && top < INFINITY) { /* to below 2^15 */
            factor = __uint_as_float(((__float_as_uint(top) >> 23) - 14) << 23);
        }
        for (int32_t d = lane; d < t->q_len - 8; d += WARP) {
            t->q[r * t->q_len + d] =
                half_of<BF16>(row0 + r < s->n_rows && d < k_dim ? q[d] / factor : 0.0f);
        }
        if (lane == 0) {
            side(t, r)->q_factor = factor;
        }
    }
}

/* Positions of slots [s0, s0 + 64), -1 beyond the last; scales of one K head. */
CUDA_INLINE void load_pos(const struct attend *p, const struct cuda_seq *s, int32_t group,
                          int32_t k_head, int32_t s0, const struct tile *t)
{
    const struct cuda_layout *l = &p->seqs.layout;

    if (threadIdx.x < SLOTS) {
        int32_t slot = s0 + (int32_t)threadIdx.x;
        int32_t pos = slot < s->n_slots ? kv_pos(s, group, slot) : -1;

        side(t, (int32_t)threadIdx.x)->pos = pos;
        side(t, (int32_t)threadIdx.x)->k_scale =
            pos >= 0
                ? kv_scale_of(l->k_type, kv_page(l, s, group, slot), l->k_scale_at, k_head, slot)
                : 1.0f;
    }
}

/* Eight elements of 8 bits as f16, times the scale. */
CUDA_INLINE uint4 widen8(int32_t type, const uint8_t *row, int32_t i, float scale)
{
    float v[KV_VEC];
    uint32_t w[4];

    kv_load8(type, row, i, v);
    for (int j = 0; j < 4; j++) {
        float lo = fminf(fmaxf(v[2 * j] * scale, -65504.0f), 65504.0f);
        float hi = fminf(fmaxf(v[2 * j + 1] * scale, -65504.0f), 65504.0f);

        w[j] = f16_of_f32(lo) | (uint32_t)f16_of_f32(hi) << 16;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* One head of K or V of slots [s0, s0 + 64), which are one page, to rows `len` elements apart;
 * those that hold no token become 0. Asynchronous where bytes need no change; commits. */
CUDA_INLINE void load_rows(const struct attend *p, const struct cuda_seq *s, int32_t group,
                           int32_t head, bool is_k, int32_t s0, const struct tile *t)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t type = is_k ? l->k_type : l->v_type;
    int32_t n_vec = ((is_k ? l->k_dim : l->v_dim) + KV_VEC - 1) / KV_VEC;
    uint16_t *to = is_k ? t->k : t->v;
    int32_t len = is_k ? t->q_len : t->v_len;
    int32_t n_all = (len - 8) / KV_VEC;
    uint8_t *page = kv_page(l, s, group, s0);

    for (int32_t i = (int32_t)threadIdx.x; i < SLOTS * n_all; i += THREADS) {
        int32_t slot = i / n_all;
        int32_t vec = i % n_all;
        uint4 *at = reinterpret_cast<uint4 *>(to + slot * len + vec * KV_VEC);
        const uint8_t *row = is_k ? kv_k_row(l, page, head, slot) : kv_v_row(l, page, head, slot);

        if (side(t, slot)->pos < 0 || vec >= n_vec) {
            *at = make_uint4(0, 0, 0, 0);
        } else if (kv_has_scale(type)) {
            *at = widen8(type, row, vec,
                         is_k ? 1.0f : kv_scale_of(type, page, l->v_scale_at, head, slot));
        } else {
            async_copy16(at, row + vec * 16);
        }
    }
    async_commit();
}

/* ---- logits --------------------------------------------------------------------------------- */

/* x[j][i]: row 16 warp + g (i < 2) or + 8, slot 8 j + 2t + i % 2: products, then times scales. */
template <bool BF16, int UNROLL> CUDA_INLINE void products(const struct tile *t, float x[8][4])
{
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    const uint16_t *q = t->q + (warp * 16 + lane % 16) * t->q_len + lane / 16 * 8;
    const uint16_t *k = t->k + (lane % 8 + lane / 16 * 8) * t->q_len + lane / 8 % 2 * 8;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i / 4][i % 4] = 0.0f;
    }
#pragma unroll UNROLL
    for (int32_t d = 0; d < t->q_len - 8; d += 16) {
        uint32_t a[4];

        matrix_load4<false>(q + d, a);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];

            matrix_load4<false>(k + j * 16 * t->q_len + d, b);
            mma_half<BF16>(x[2 * j], a, b);
            mma_half<BF16>(x[2 * j + 1], a, b + 2);
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[j][i] *= side(t, j * 8 + lane % 4 * 2 + i % 2)->k_scale *
                       side(t, warp * 16 + lane / 4 + i / 2 * 8)->q_factor;
        }
    }
}

/* A running softmax of one row, which 4 lanes share: largest value and sum of e^(x - largest). */
struct running {
    float top, sum;
};

CUDA_INLINE float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

CUDA_INLINE float quad_sum(float x)
{
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

/* Takes the 16 values that this lane holds of a row, which become e^...; returns what earlier sums
 * are multiplied by. */
template <int UNROLL> CUDA_INLINE float running_add(struct running *r, float v[16])
{
    float top = -INFINITY;
    float sum = 0;
    float factor;

#pragma unroll UNROLL
    for (int i = 0; i < 16; i++) {
        top = fmaxf(top, v[i]);
    }
    top = fmaxf(r->top, quad_max(top));
    factor = top == r->top ? 1.0f : expf(r->top - top); /* top is finite if they differ */
#pragma unroll UNROLL
    for (int i = 0; i < 16; i++) {
        v[i] = v[i] > -INFINITY ? expf(v[i] - top) : 0.0f;
        sum += v[i];
    }
    r->sum = r->sum * factor + quad_sum(sum);
    r->top = top;
    return factor;
}

/* A lane's 16 logits of a row with noise. This loop stays one, as its sums do (running_add<1>):
 * unrolled, its draws are most of the kernel. `n` lies in local memory for it, which rows that
 * nobody observes do not touch. */
CUDA_INLINE void add_noise(const struct ops_observe *o, const struct tile *t, int32_t head,
                           int32_t row, int32_t row_pos, float n[16])
{
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        n[i] = attend_noisy(o, n[i], head, row, row_pos,
                            side(t, i / 2 * 8 + (int)threadIdx.x % 4 * 2 + i % 2)->pos);
    }
}

/* The next tile from s0 on that some row sees; n_slots and beyond: none. */
CUDA_INLINE int32_t next_tile(const struct attend *p, const struct cuda_seq *s, int32_t s0,
                              int32_t first_pos, int32_t last_pos)
{
    while (s0 < s->n_slots && attend_unseen(p, s, s0, SLOTS, first_pos, last_pos)) {
        s0 += SLOTS;
    }
    return s0;
}

/* ---- prefill -------------------------------------------------------------------------------- */

template <bool BF16> CUDA_INLINE uint32_t pack2(float lo, float hi)
{
    return half_of<BF16>(lo) | (uint32_t)half_of<BF16>(hi) << 16;
}

/* acc += probabilities (16 x 64, one warp) times the tile's values. */
template <bool BF16, int N16>
CUDA_INLINE void add_values(const struct tile *t, const float x[8][4], float acc[2 * N16][4])
{
    int lane = (int)threadIdx.x % WARP;
    const uint16_t *v = t->v + lane % 16 * t->v_len + lane / 16 * 8;

#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t a[4] = {pack2<BF16>(x[2 * j][0], x[2 * j][1]),
                         pack2<BF16>(x[2 * j][2], x[2 * j][3]),
                         pack2<BF16>(x[2 * j + 1][0], x[2 * j + 1][1]),
                         pack2<BF16>(x[2 * j + 1][2], x[2 * j + 1][3])};

#pragma unroll
        for (int n = 0; n < N16; n++) {
            if (n * 16 < t->v_len - 8) {
                uint32_t b[4];

                matrix_load4<true>(v + j * 16 * t->v_len + n * 16, b);
                mma_half<BF16>(acc[2 * n], a, b);
                mma_half<BF16>(acc[2 * n + 1], a, b + 2);
            }
        }
    }
}

template <int N16>
CUDA_INLINE void write_out(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                           int32_t head, const struct running *sum, float acc[2 * N16][4])
{
    int lane = (int)threadIdx.x % WARP;
    int32_t v_dim = p->seqs.layout.v_dim;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int32_t row = row0 + (int32_t)threadIdx.x / WARP * 16 + lane / 4 + h * 8;
        float inv =
            attend_with_sink(p, head, sum[h].top, sum[h].sum > 0 ? 1.0f / sum[h].sum : 0.0f);
        float *out = p->out + (size_t)(s->row0 + row) * p->ldo + (size_t)head * v_dim;

#pragma unroll
        for (int i = 0; i < 2 * N16 * 2; i++) {
            int32_t d = i / 2 * 8 + lane % 4 * 2 + i % 2;

            if (row < s->n_rows && d < v_dim) {
                out[d] = acc[i / 2][h * 2 + i % 2] * inv +
                         0.0f; /* -0 becomes 0: tiles left out add none */
            }
        }
    }
}

template <bool KB, bool VB, int N16>
CUDA_KERNEL void __launch_bounds__(THREADS, N16 > 4 ? 2 : 3) prefill_mma(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    const struct cuda_layout *l = &p.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    const struct ops_observe *o = &p.observe[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
    struct attend_head h = attend_head_of(&p, head);
    int lane = (int)threadIdx.x % WARP;
    int32_t own = (int32_t)threadIdx.x / WARP * 16 + lane / 4; /* this lane's first row */
    int32_t first_pos = s->pos0 + row0;
    int32_t last_pos = s->pos0 + min(row0 + ROWS, s->n_rows) - 1;
    float slope = attend_slope(&p, head);
    bool observed = attend_observed(&p, seq);
    struct running sum[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    struct running noisy[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    float acc[2 * N16][4] = {};
    struct tile t;
    int32_t s0;

    if (row0 >= s->n_rows) {
        return;
    }
    (void)tile_lay(l->k_dim, l->v_dim, true, memory, &t);
    load_q<KB>(&p, s, row0, head, &t);
    s0 = next_tile(&p, s, 0, first_pos, last_pos);
    if (s0 < s->n_slots) {
        load_pos(&p, s, h.group, h.k_head, s0, &t);
        __syncthreads(); /* pos: written by two warps, read by all */
        load_rows(&p, s, h.group, h.k_head, true, s0, &t);
    }
    while (s0 < s->n_slots) {
        int32_t next = next_tile(&p, s, s0 + SLOTS, first_pos, last_pos);
        float x[8][4];

        load_rows(&p, s, h.group, h.v_head, false, s0, &t);
        async_wait<1>();
        __syncthreads(); /* k (and q): copied by all, read by all */
        /* Wider heads have no registers left for a loop unrolled. */
        products<KB, (N16 > 8 ? 1 : 4)>(&t, x);
        /* Both halves written out: else x and acc would lie in local memory. */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int32_t row_pos = first_pos + own + r * 8;
            float v[16];
            float factor;

#pragma unroll
            for (int i = 0; i < 16; i++) {
                v[i] = attend_logit(&p, x[i / 2][r * 2 + i % 2], slope,
                                    side(&t, i / 2 * 8 + lane % 4 * 2 + i % 2)->pos, row_pos);
            }
            if (observed) {
                float n[16];

#pragma unroll
                for (int i = 0; i < 16; i++) {
                    n[i] = v[i];
                }
                add_noise(o, &t, head, row0 + own + r * 8, row_pos, n);
                (void)running_add<1>(&noisy[r], n);
            }
            factor = running_add<16>(&sum[r], v);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                x[i / 2][r * 2 + i % 2] = v[i];
            }
#pragma unroll
            for (int i = 0; i < 2 * N16 * 2; i++) {
                acc[i / 2][r * 2 + i % 2] *= factor;
            }
        }
        __syncthreads(); /* k, pos: read by all, the next tile's come in their place */
        if (next < s->n_slots) {
            load_pos(&p, s, h.group, h.k_head, next, &t);
            __syncthreads(); /* pos: written by two warps, read by all */
            load_rows(&p, s, h.group, h.k_head, true, next, &t);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads(); /* v: copied by all, read by all */
        add_values<VB, N16>(&t, x, acc);
        __syncthreads(); /* v: read by all, the next tile's come in its place */
        s0 = next;
    }
    write_out<N16>(&p, s, row0, head, sum, acc);
    for (int r = 0; r < 2 && observed && lane % 4 == 0; r++) {
        if (row0 + own + r * 8 < s->n_rows) {
            float *to = p.sums + ((size_t)(s->row0 + row0 + own + r * 8) * p.n_q + head) * 2;

            to[0] = noisy[r].top;
            to[1] = noisy[r].sum > 0 ? 1.0f / noisy[r].sum : 0.0f;
        }
    }
}

/* ---- columns -------------------------------------------------------------------------------- */

/* One head's probabilities, weighted by row, added to this lane's columns. */
template <bool KB>
CUDA_INLINE void add_columns(const struct attend *p, int32_t seq, int32_t row0, int32_t head,
                             const struct tile *t, float sum[8][2])
{
    const struct cuda_seq *s = &p->seqs.s[seq];
    int lane = (int)threadIdx.x % WARP;
    int32_t own = (int32_t)threadIdx.x / WARP * 16 + lane / 4;
    float slope = attend_slope(p, head);
    float x[8][4];

    products<KB, 4>(t, x);
    /* Both halves written out: else x and sum would lie in local memory. */
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int32_t row = row0 + own + r * 8;
        float weight = side(t, own + r * 8)->weight;
        const float *sums = p->sums + ((size_t)(s->row0 + row) * p->n_q + head) * 2;
        float v[16];

        if (row < s->n_rows && row >= p->observe[seq].row_first) {
#pragma unroll
            for (int i = 0; i < 16; i++) {
                v[i] = attend_logit(p, x[i / 2][r * 2 + i % 2], slope,
                                    side(t, i / 2 * 8 + lane % 4 * 2 + i % 2)->pos, s->pos0 + row);
            }
            add_noise(&p->observe[seq], t, head, row, s->pos0 + row, v);
#pragma unroll
            for (int i = 0; i < 16; i++) {
                if (v[i] > -INFINITY) {
                    sum[i / 2][i % 2] += weight * (expf(v[i] - sums[0]) * sums[1]);
                }
            }
        }
    }
}

template <bool KB> CUDA_KERNEL void __launch_bounds__(THREADS) columns_mma(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    __shared__ float part[WARPS][SLOTS];
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    const struct ops_observe *o = &p.observe[seq];
    int32_t group = (int32_t)blockIdx.y;
    int32_t s0 = (int32_t)blockIdx.x * SLOTS;
    int32_t slot = s0 + (int32_t)threadIdx.x;
    int32_t n_heads = p.n_q / p.seqs.layout.n_groups;
    int32_t k_head = -1;
    int lane = (int)threadIdx.x % WARP;
    float weight = o->row_weight0; /* of the next observed row; kept by the first thread */
    float sum[8][2] = {};
    struct tile t;

    if (!attend_observed(&p, seq) || s0 >= s->n_slots) {
        return;
    }
    (void)tile_lay(p.seqs.layout.k_dim, 0, false, memory, &t);
    for (int32_t row0 = o->row_first / ROWS * ROWS; row0 < s->n_rows; row0 += ROWS) {
        __syncthreads(); /* weight: read by all for the rows before */
        for (int32_t r = 0; r < ROWS && threadIdx.x == 0; r++) {
            side(&t, r)->weight = weight;
            weight *= row0 + r >= o->row_first ? o->row_growth : 1.0f;
        }
        if (attend_unseen(&p, s, s0, SLOTS, s->pos0 + row0,
                          s->pos0 + min(row0 + ROWS, s->n_rows) - 1)) {
            continue;
        }
        for (int32_t h = group * n_heads; h < (group + 1) * n_heads; h++) {
            __syncthreads(); /* q, k, pos: read by all for the head before */
            if (attend_head_of(&p, h).k_head != k_head) {
                k_head = attend_head_of(&p, h).k_head;
                load_pos(&p, s, group, k_head, s0, &t);
                __syncthreads(); /* pos: written by two warps, read by all */
                load_rows(&p, s, group, k_head, true, s0, &t);
            }
            load_q<KB>(&p, s, row0, h, &t);
            async_wait<0>();
            __syncthreads(); /* q, k, weight: written by all, read by all */
            add_columns<KB>(&p, seq, row0, h, &t, sum);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++) { /* over the warp's 16 rows */
        float v = sum[i / 2][i % 2];

        for (int m = 4; m < WARP; m <<= 1) {
            v += __shfl_xor_sync(ALL_LANES, v, m);
        }
        if (lane < 4) {
            part[threadIdx.x / WARP][i / 2 * 8 + lane * 2 + i % 2] = v;
        }
    }
    __syncthreads(); /* part: written by all warps, read below */
    if (threadIdx.x < SLOTS && slot < s->n_slots) {
        float *score = s->score + (size_t)group * s->cap + slot;
        float total = *score * attend_damp(o, s->n_rows);

        for (int w = 0; w < WARPS; w++) {
            total += part[w][threadIdx.x];
        }
        *score = total;
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

template <bool KB, bool VB, int NJ>
static int launch(struct cuda *cu, const struct attend *p, dim3 grid, size_t shared)
{
    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, (prefill_mma<KB, VB, NJ>), *p);
    return cuda_launched(cu, "prefill_mma");
}

template <bool KB>
static int launch_columns(struct cuda *cu, const struct attend *p, dim3 grid, size_t shared)
{
    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, columns_mma<KB>, *p);
    return cuda_launched(cu, "columns_mma");
}

template <bool KB, bool VB>
static int launch_prefill(struct cuda *cu, const struct attend *p, dim3 grid, size_t shared)
{
    int32_t v_dim = p->seqs.layout.v_dim;

    return v_dim <= 64    ? launch<KB, VB, 4>(cu, p, grid, shared)
           : v_dim <= 128 ? launch<KB, VB, 8>(cu, p, grid, shared)
                          : launch<KB, VB, 16>(cu, p, grid, shared);
}

int cuda_attend_mma(struct cuda *cu, const struct attend *p, int32_t rows, int32_t observed_slots)
{
    const struct cuda_layout *l = &p->seqs.layout;
    bool kb = l->k_type == OPS_KV_BF16;
    bool vb = l->v_type == OPS_KV_BF16;
    struct tile t;
    size_t shared = tile_lay(l->k_dim, l->v_dim, true, NULL, &t);
    dim3 grid(cuda_div_up((uint64_t)rows, ROWS), (unsigned)p->n_q, (unsigned)p->seqs.n);
    int r = kb && vb ? launch_prefill<true, true>(cu, p, grid, shared)
            : kb     ? launch_prefill<true, false>(cu, p, grid, shared)
            : vb     ? launch_prefill<false, true>(cu, p, grid, shared)
                     : launch_prefill<false, false>(cu, p, grid, shared);

    if (r < 0 || observed_slots == 0) {
        return r;
    }
    grid = dim3(cuda_div_up((uint64_t)observed_slots, SLOTS), (unsigned)l->n_groups,
                (unsigned)p->seqs.n);
    shared = tile_lay(l->k_dim, 0, false, NULL, &t);
    return kb ? launch_columns<true>(cu, p, grid, shared)
              : launch_columns<false>(cu, p, grid, shared);
}
