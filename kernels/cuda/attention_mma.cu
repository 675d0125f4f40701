/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy observes of prefill rows, on tensor cores; caches of 16 and 8 bits. (What rows give
 * themselves: attention_rows.cu. Caches of 32 bits: attention_prefill.cu.)
 *
 * sums     Block of 4 warps: 64 consecutive rows of one query head, a warp 16 of them, over all
 *          slots in tiles of 64: of each row the largest logit and 1 / the sum of e^(x - largest),
 *          of logits with noise. Q and K lie in shared memory as 16-bit elements, rows 16 bytes
 *          longer than the head so that a matrix load meets all banks. Blocks with the most tiles
 *          start first.
 * columns  Block of 4 warps: a tile of 64 slots of one group. All its rows and heads pass by; each
 *          thread sums its columns in registers, weighted by row. The logits are formed again, and
 *          divided by the sums that `sums` left.
 *
 * Precision: queries have the 16-bit type that keys have; 8-bit caches go as f16, exactly, their
 * scales applied to the logits. Sums are f32. Queries beyond f16's range are divided by a power of
 * two, per row. Shared memory: 34 KB at 128, 66 KB at 256. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_four.cuh"

enum { THREADS = 128, WARPS = 4, ROWS = 64, SLOTS = 64 };

struct tile {
    uint16_t *q, *k; /* (ROWS, q_len), (SLOTS, q_len) */
    int32_t q_len;
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
static inline __host__ __device__ uint32_t tile_lay(int32_t k_dim, uint8_t *memory, struct tile *t)
{
    uint32_t q_len = (uint32_t)padded(k_dim) + 8;

    t->q_len = (int32_t)q_len;
    t->q = reinterpret_cast<uint16_t *>(memory);
    t->k = t->q + ROWS * q_len;
    return 2 * ROWS * q_len * 2;
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

/* Eight elements of 8 bits as f16; of 4 bits times their scale. */
CUDA_INLINE uint4 widen8(const struct cuda_layout *l, uint8_t *page, int32_t head, int32_t slot,
                         int32_t i)
{
    float scale = kv_four(l->k_type) ? kv_scale8_k(l, page, head, slot, i) : 1.0f;
    float v[KV_VEC];
    uint32_t w[4];

    kv_load8(l->k_type, kv_k_row(l, page, head, slot), i, v);
    for (int j = 0; j < KV_VEC; j++) {
        v[j] = fminf(fmaxf(v[j] * scale, -65504.0f), 65504.0f);
    }
    for (int j = 0; j < 4; j++) {
        w[j] = half2_of_f32<false>(v[2 * j], v[2 * j + 1]);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* One head of K of slots [s0, s0 + 64), which are one page; those that hold no token become 0.
 * Asynchronous where bytes need no change; commits. */
CUDA_INLINE void load_k(const struct attend *p, const struct cuda_seq *s, int32_t group,
                        int32_t head, int32_t s0, const struct tile *t)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t n_vec = (l->k_dim + KV_VEC - 1) / KV_VEC;
    int32_t n_all = (t->q_len - 8) / KV_VEC;
    uint8_t *page = kv_page(l, s, group, s0);

    for (int32_t i = (int32_t)threadIdx.x; i < SLOTS * n_all; i += THREADS) {
        int32_t slot = i / n_all;
        int32_t vec = i % n_all;
        uint4 *at = reinterpret_cast<uint4 *>(t->k + slot * t->q_len + vec * KV_VEC);
        const uint8_t *row = kv_k_row(l, page, head, slot);

        if (side(t, slot)->pos < 0 || vec >= n_vec) {
            *at = make_uint4(0, 0, 0, 0);
        } else if (kv_has_scale(l->k_type) || kv_four(l->k_type)) {
            *at = widen8(l, page, head, slot, vec);
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

/* Takes the 16 values that this lane holds of a row. This loop and the one that draws noise stay
 * loops: unrolled, the draws are most of the kernel. */
CUDA_INLINE void running_add(struct running *r, const float v[16])
{
    float top = -INFINITY;
    float sum = 0;

#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        top = fmaxf(top, v[i]);
    }
    top = fmaxf(r->top, quad_max(top));
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        sum += v[i] > -INFINITY ? expf(v[i] - top) : 0.0f;
    }
    /* top is finite if they differ */
    r->sum = r->sum * (top == r->top ? 1.0f : expf(r->top - top)) + quad_sum(sum);
    r->top = top;
}

/* A lane's 16 logits of a row with noise. `n` lies in local memory for it. */
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

/* ---- sums ----------------------------------------------------------------------------------- */

/* The lane's first row of 64. */
CUDA_INLINE int32_t own_row(void)
{
    int tid = thread_anew();

    return tid / WARP * 16 + tid % WARP / 4;
}

template <bool KB> CUDA_KERNEL void __launch_bounds__(THREADS, 2) sums_mma(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    const struct cuda_layout *l = &p.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
    struct attend_head h = attend_head_of(&p, head);
    int32_t first_pos = s->pos0 + row0;
    int32_t last_pos = s->pos0 + min(row0 + ROWS, s->n_rows) - 1;
    float slope = attend_slope(&p, head);
    struct running sum[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    struct tile t;

    if (!attend_observed(&p, seq) || row0 >= s->n_rows ||
        row0 + ROWS <= p.observe[seq].row_first) {
        return;
    }
    (void)tile_lay(l->k_dim, memory, &t);
    load_q<KB>(&p, s, row0, head, &t);
    for (int32_t s0 = next_tile(&p, s, 0, first_pos, last_pos); s0 < s->n_slots;
         s0 = next_tile(&p, s, s0 + SLOTS, first_pos, last_pos)) {
        float x[8][4];
        float v[2][16];
        int32_t lane, own;

        __syncthreads(); /* k, pos: read by all, the next tile's come in their place */
        load_pos(&p, s, h.group, h.k_head, s0, &t);
        __syncthreads(); /* pos: written by two warps, read by all */
        load_k(&p, s, h.group, h.k_head, s0, &t);
        async_wait<0>();
        __syncthreads(); /* k (and q): copied by all, read by all */
        products<KB, 4>(&t, x);
        lane = thread_anew() % WARP;
        own = own_row();
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i / 16][i % 16] =
                attend_logit(&p, x[i % 16 / 2][i / 16 * 2 + i % 2], slope,
                             side(&t, i % 16 / 2 * 8 + lane % 4 * 2 + i % 2)->pos,
                             first_pos + own + i / 16 * 8);
        }
#pragma unroll 1
        for (int r = 0; r < 2; r++) {
            int32_t own = own_row();

            add_noise(&p.observe[seq], &t, head, row0 + own + r * 8, first_pos + own + r * 8, v[r]);
            running_add(&sum[r], v[r]);
        }
    }
    for (int r = 0; r < 2 && threadIdx.x % 4 == 0; r++) {
        int32_t own = own_row();

        if (row0 + own + r * 8 < s->n_rows) {
            float *to = p.sums + ((size_t)(s->row0 + row0 + own + r * 8) * p.n_q + head) * 2;

            to[0] = sum[r].top;
            to[1] = sum[r].sum > 0 ? 1.0f / sum[r].sum : 0.0f;
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
    (void)tile_lay(p.seqs.layout.k_dim, memory, &t);
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
                load_k(&p, s, group, k_head, s0, &t);
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

template <bool KB>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    const struct cuda_layout *l = &p->seqs.layout;
    struct tile t;
    size_t shared = tile_lay(l->k_dim, NULL, &t);
    dim3 grid(cuda_div_up((uint64_t)rows, ROWS), (unsigned)p->n_q, (unsigned)p->seqs.n);
    int r;

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, sums_mma<KB>, *p);
    r = cuda_launched(cu, "sums_mma");
    if (r < 0) {
        return r;
    }
    grid = dim3(cuda_div_up((uint64_t)slots, SLOTS), (unsigned)l->n_groups, (unsigned)p->seqs.n);
    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, columns_mma<KB>, *p);
    return cuda_launched(cu, "columns_mma");
}

int cuda_attend_mma(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    return p->seqs.layout.k_type == OPS_KV_BF16 ? launch<true>(cu, p, rows, slots)
                                                : launch<false>(cu, p, rows, slots);
}
