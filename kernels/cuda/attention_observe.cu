/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy observes of prefill rows, on tensor cores; caches of 16, 8 and 4 bits. (What rows
 * give themselves: attention_rows.cu. Caches of 32 bits: attention_prefill.cu.)
 *
 * queries  Block a row: its queries as elements of 16 bits, once for all blocks that read them.
 * sums     Block of 4 warps: 64 consecutive rows of one query head, a warp 16 of them, over all
 *          slots in tiles of 64: of each row the largest logit and 1 / the sum of e^(x - largest).
 *          Blocks with the most tiles start first. Only where logits get noise, a temperature, a
 *          soft-cap or ALiBi: the others' sums are left by the kernels that give rows their output.
 * columns  Block of 4 warps: 128 slots of one query head (heads beyond 128: 64). K is the first
 *          operand and stays in registers, a warp 32 slots; rows pass by in tiles of 64, copied a
 *          tile ahead. So a lane sums over rows in a register for each of its slots, and nothing
 *          crosses lanes until the end. Logits are formed again, and divided by the rows' sums.
 * scores   A thread a slot and group: adds what its heads gave, in their order, to the score.
 *
 * Precision: queries have the 16-bit type that keys have; 8-bit caches go as f16, exactly, their
 * scales applied to the logits. Sums are f32. Queries beyond f16's range are divided by a power of
 * two, per row. In shared memory rows are 16 bytes longer than the head, so that a matrix load
 * meets all banks: 37 KB at 128, 69 KB at 256.
 *
 * Counts, heads of 128: a warp has 32 matrix instructions, 8 loads of matrices and some 90 others
 * for 32 slots and 16 rows. A prompt of 2,048 tokens and 32 heads is 140,000 such pieces: 30 to
 * 40 us of an H200, where blocks that loaded f32 queries row by row took 2.6 ms by
 * counts. */

#include "kernels/cuda/attention_rows.cuh"

enum { THREADS = 128, WARPS = 4, ROWS = 64, QUERY_WARPS = 8, QUERY_DIM = 256 };

static inline __host__ __device__ int32_t pieces_of(int32_t dim)
{
    return (dim + KV_VEC - 1) / KV_VEC;
}

/* The row's queries of one head, and what they were divided by. */
CUDA_INLINE uint16_t *query_at(const struct attend *p, int32_t row, int32_t head)
{
    return p->queries + ((size_t)row * p->n_q + head) * (pieces_of(p->seqs.layout.k_dim) * KV_VEC);
}

/* The first row whose queries are made: that of the first observed row's tile. */
static inline __host__ __device__ int32_t first_row(const struct attend *p, int32_t seq)
{
    return p->observe[seq].row_first / ROWS * ROWS;
}

/* ---- queries -------------------------------------------------------------------------------- */

/* A warp every eighth head. */
template <bool BF16>
CUDA_KERNEL void __launch_bounds__(QUERY_WARPS *WARP)
    observe_queries(struct attend p, int32_t first)
{
    const struct cuda_seq *s = &p.seqs.s[blockIdx.y];
    int32_t k_dim = p.seqs.layout.k_dim;
    int32_t row = first + (int32_t)blockIdx.x;
    int lane = (int)threadIdx.x % WARP;

    if (!attend_observed(&p, (int32_t)blockIdx.y) || row >= s->n_rows ||
        row < first_row(&p, (int32_t)blockIdx.y)) {
        return;
    }
#pragma unroll 2
    for (int32_t head = (int32_t)threadIdx.x / WARP; head < p.n_q; head += QUERY_WARPS) {
        const float *q = p.q + (size_t)(s->row0 + row) * p.ldq + (size_t)head * k_dim;
        uint16_t *to = query_at(&p, s->row0 + row, head);
        float v[QUERY_DIM / WARP];
        float factor = 1.0f;
        float top = 0.0f;
        float inv;

#pragma unroll
        for (int j = 0; j < QUERY_DIM / WARP; j++) {
            v[j] = lane + j * WARP < k_dim ? q[lane + j * WARP] : 0.0f;
            top = fmaxf(top, fabsf(v[j]));
        }
        top = BF16 ? 0.0f : warp_max(top);
        if (top > 32768.0f && top < INFINITY) { /* to below 2^15 */
            factor = __uint_as_float(((__float_as_uint(top) >> 23) - 14) << 23);
        }
        inv = 1.0f / factor;
#pragma unroll
        for (int j = 0; j < QUERY_DIM / WARP; j++) {
            if (lane + j * WARP < pieces_of(k_dim) * KV_VEC) {
                to[lane + j * WARP] = BF16 ? bf16_of_f32(v[j]) : f16_of_f32(v[j] * inv);
            }
        }
        if (lane == 0) {
            p.query_factor[(size_t)(s->row0 + row) * p.n_q + head] = factor;
        }
    }
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* Rows [row0, row0 + 64) of one head, asynchronously; beyond the sequence's last zeros. Columns
 * beyond the head are not written. */
template <int DIM>
CUDA_INLINE void copy_queries(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                              int32_t head, uint16_t *to)
{
    int32_t n_vec = pieces_of(p->seqs.layout.k_dim);
    int tid = thread_anew();

#pragma unroll
    for (int i = 0; i < ROWS * DIM / KV_VEC / THREADS; i++) {
        int32_t r = (tid + i * THREADS) / (DIM / KV_VEC);
        int32_t vec = (tid + i * THREADS) % (DIM / KV_VEC);
        uint16_t *at = to + r * (DIM + 8) + vec * KV_VEC;

        if (vec < n_vec && row0 + r < s->n_rows) {
            async_copy16(at, query_at(p, s->row0 + row0 + r, head) + vec * KV_VEC);
        } else if (vec < n_vec) {
            *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* Columns beyond the head of n rows. */
template <int DIM> CUDA_INLINE void clear_queries(const struct attend *p, uint16_t *rows, int32_t n)
{
    int32_t beyond = DIM / KV_VEC - pieces_of(p->seqs.layout.k_dim);

    for (int32_t i = (int32_t)threadIdx.x; i < n * beyond; i += THREADS) {
        uint16_t *at = rows + (i / beyond + 1) * (DIM + 8) - 8 - (i % beyond + 1) * KV_VEC;

        *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
    }
}

/* Positions of n slots from s0 on, -1 beyond the last, and scales of their K. */
CUDA_INLINE void load_slots(const struct attend *p, const struct cuda_seq *s,
                            const struct attend_head *h, int32_t s0, int32_t n, int32_t *pos,
                            float *scale)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t i = (int32_t)threadIdx.x;
    int32_t slot = s0 + i;

    if (i < n) {
        pos[i] = slot < s->n_slots ? kv_pos(s, h->group, slot) : -1;
        scale[i] = pos[i] < 0 ? 1.0f
                              : kv_scale_of(l->k_type, kv_page(l, s, h->group, slot), l->k_scale_at,
                                            h->k_head, slot);
    }
}

/* Eight elements of 8 or 4 bits as they are loaded. */
struct k_piece {
    uint32_t lo, hi;
    uint16_t scale; /* of 4 bits */
};

CUDA_INLINE struct k_piece piece_load(const struct cuda_layout *l, uint8_t *page, int32_t head,
                                      int32_t slot, int32_t i)
{
    const uint8_t *row = kv_k_row(l, page, head, slot);
    struct k_piece r = {};

    if (kv_four(l->k_type)) {
        r.lo = reinterpret_cast<const uint32_t *>(row)[i];
        r.scale = kv_scales(page, l->k_scale_at, l->k_scales, head, slot)[i / 4];
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(row)[i];

        r.lo = v.x;
        r.hi = v.y;
    }
    return r;
}

/* As f16; of 4 bits times the scale. */
CUDA_INLINE uint4 piece_widen(int32_t type, const struct k_piece *x)
{
    float scale = f32_of_f16(x->scale);
    float v[KV_VEC];
    uint32_t w[4];

    if (!kv_four(type)) {
        return widen8<true>(type, x->lo, x->hi, 0);
    }
    kv_load8(OPS_KV_G4, reinterpret_cast<const uint8_t *>(&x->lo), 0, v);
    for (int j = 0; j < 4; j++) {
        w[j] = half2_of_f32<false>(fminf(fmaxf(v[2 * j] * scale, -65504.0f), 65504.0f),
                                   fminf(fmaxf(v[2 * j + 1] * scale, -65504.0f), 65504.0f));
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* One head of K of N slots from s0 on, which begins a page; those that hold no token, and columns
 * beyond the head, become 0. Asynchronous where bytes need no change; commits. */
template <int N, int DIM>
CUDA_INLINE void load_k(const struct attend *p, const struct cuda_seq *s,
                        const struct attend_head *h, int32_t s0, const int32_t *pos, uint16_t *to)
{
    enum { PIECES = DIM / KV_VEC, AHEAD = 4 };
    const struct cuda_layout *l = &p->seqs.layout;
    bool codes = kv_has_scale(l->k_type) || kv_four(l->k_type);
    int32_t n_vec = pieces_of(l->k_dim);
    uint8_t *pages[2];

    pages[0] = kv_page(l, s, h->group, s0);
    pages[1] = N > OPS_PAGE_SLOTS && s0 + OPS_PAGE_SLOTS < s->n_slots
                   ? kv_page(l, s, h->group, s0 + OPS_PAGE_SLOTS)
                   : pages[0];
#pragma unroll 1
    for (int32_t i0 = (int32_t)threadIdx.x; i0 < N * PIECES; i0 += AHEAD * THREADS) {
        struct k_piece x[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int32_t slot = (i0 + j * THREADS) / PIECES;
            int32_t vec = (i0 + j * THREADS) % PIECES;
            uint8_t *page = slot < OPS_PAGE_SLOTS ? pages[0] : pages[1];
            uint4 *at = reinterpret_cast<uint4 *>(to + slot * (DIM + 8) + vec * KV_VEC);

            x[j] = {};
            if (pos[slot] < 0 || vec >= n_vec) {
                *at = make_uint4(0, 0, 0, 0);
            } else if (codes) {
                x[j] = piece_load(l, page, h->k_head, slot, vec);
            } else {
                async_copy16(at, kv_k_row(l, page, h->k_head, slot) + vec * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < AHEAD && codes; j++) {
            int32_t slot = (i0 + j * THREADS) / PIECES;
            int32_t vec = (i0 + j * THREADS) % PIECES;

            *reinterpret_cast<uint4 *>(to + slot * (DIM + 8) + vec * KV_VEC) =
                piece_widen(l->k_type, &x[j]);
        }
    }
    async_commit();
}

/* ---- sums ----------------------------------------------------------------------------------- */

template <int DIM> struct sums_tile {
    static const int LEN = DIM + 8;

    uint16_t q[ROWS * LEN], k[ROWS * LEN]; /* as many slots as rows */
    int32_t pos[ROWS];
    float scale[ROWS];
};

/* Takes the 16 logits that this lane holds of a row; `top` is a logit here. */
CUDA_INLINE void running_add(struct running *r, const float *v)
{
    float top = v[0];
    float sum = 0;

#pragma unroll
    for (int i = 1; i < 16; i++) {
        top = fmaxf(top, v[i]);
    }
    top = fmaxf(r->top, quad_max(top));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        sum += v[i] > -INFINITY ? expf(v[i] - top) : 0.0f;
    }
    /* top is finite if they differ */
    r->sum = r->sum * (top == r->top ? 1.0f : expf(r->top - top)) + quad_sum(sum);
    r->top = top;
}

/* v[0] comes last, and x in its place: so a loop goes through registers. Noise has one copy of its
 * code so; unrolled, it would be most of the kernel. */
template <int N> CUDA_INLINE void turn_in(float v[N], float x)
{
#pragma unroll
    for (int i = 1; i < N; i++) {
        v[i - 1] = v[i];
    }
    v[N - 1] = x;
}

/* The lane's first row of 64. */
CUDA_INLINE int32_t own_row(void)
{
    int tid = thread_anew();

    return tid / WARP * 16 + tid % WARP / 4;
}

/* x[j][i]: row 16 warp + g (i < 2) or + 8, slot 8 j + 2t + i % 2. */
template <bool BF16, int DIM>
CUDA_INLINE void row_products(const struct sums_tile<DIM> *t, float x[8][4])
{
    int tid = thread_anew();
    int lane = tid % WARP;
    const uint16_t *q = t->q + (tid / WARP * 16 + lane % 16) * t->LEN + lane / 16 * 8;
    const uint16_t *k = t->k + (lane % 8 + lane / 16 * 8) * t->LEN + lane / 8 % 2 * 8;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i / 4][i % 4] = 0.0f;
    }
#pragma unroll 4
    for (int32_t d = 0; d < DIM; d += 16) {
        uint32_t a[4];

        matrix_load4<false>(q + d, a);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];

            matrix_load4<false>(k + j * 16 * t->LEN + d, b);
            mma_half<BF16>(x[2 * j], a, b);
            mma_half<BF16>(x[2 * j + 1], a, b + 2);
        }
    }
}

/* The next tile of 64 slots from s0 on that some row sees; n_slots and beyond: none. */
CUDA_INLINE int32_t next_slots(const struct attend *p, const struct cuda_seq *s, int32_t s0,
                               int32_t first_pos, int32_t last_pos)
{
    while (s0 < s->n_slots && attend_unseen(p, s, s0, ROWS, first_pos, last_pos)) {
        s0 += ROWS;
    }
    return s0;
}

template <bool KB, int DIM>
CUDA_KERNEL void __launch_bounds__(THREADS, 2) observe_sums(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    struct sums_tile<DIM> *t = reinterpret_cast<struct sums_tile<DIM> *>(memory);
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
    struct attend_head h = attend_head_of(&p, head);
    int32_t first_pos = s->pos0 + row0;
    int32_t last_pos = s->pos0 + min(row0 + ROWS, s->n_rows) - 1;
    float slope = attend_slope(&p, head);
    float factor[2];
    struct running sum[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};

    if (!attend_observed(&p, seq) || attend_leaves_sums(&p, seq) || row0 >= s->n_rows ||
        row0 < first_row(&p, seq)) {
        return;
    }
    clear_queries<DIM>(&p, t->q, ROWS);
    copy_queries<DIM>(&p, s, row0, head, t->q);
    for (int r = 0; r < 2; r++) {
        int32_t row = min(row0 + own_row() + r * 8, s->n_rows - 1);

        factor[r] = p.query_factor[(size_t)(s->row0 + row) * p.n_q + head];
    }
    for (int32_t s0 = next_slots(&p, s, 0, first_pos, last_pos); s0 < s->n_slots;
         s0 = next_slots(&p, s, s0 + ROWS, first_pos, last_pos)) {
        float x[8][4];
        float v[32];

        __syncthreads(); /* k, pos, scale: read by all, the next tile's come in their place */
        load_slots(&p, s, &h, s0, ROWS, t->pos, t->scale);
        __syncthreads(); /* pos: written by two warps, read by all */
        load_k<ROWS, DIM>(&p, s, &h, s0, t->pos, t->k);
        async_wait<0>();
        __syncthreads(); /* k (and q): copied by all, read by all */
        row_products<KB, DIM>(t, x);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i] = x[i % 16 / 2][i / 16 * 2 + i % 2];
        }
#pragma unroll 1
        for (int i = 0; i < 32; i++) {
            int32_t slot = i % 16 / 2 * 8 + thread_anew() % 4 * 2 + i % 2;
            int32_t row = row0 + own_row() + i / 16 * 8;
            float logit = attend_logit(&p, v[0] * t->scale[slot] * (i < 16 ? factor[0] : factor[1]),
                                       slope, t->pos[slot], s->pos0 + row);

            turn_in<32>(
                v, attend_noisy(&p.observe[seq], logit, head, row, s->pos0 + row, t->pos[slot]));
        }
        running_add(&sum[0], v);
        running_add(&sum[1], v + 16);
    }
    for (int r = 0; r < 2 && threadIdx.x % 4 == 0; r++) {
        int32_t row = row0 + own_row() + r * 8;

        if (row < s->n_rows) {
            float *to = p.sums + ((size_t)(s->row0 + row) * p.n_q + head) * 2;

            to[0] = sum[r].top;
            to[1] = sum[r].sum > 0 ? 1.0f / sum[r].sum : 0.0f;
        }
    }
}

/* ---- columns -------------------------------------------------------------------------------- */

/* What a tile knows of one of its rows. */
struct alignas(16) row_side {
    float factor; /* what its queries were divided by */
    float top;    /* what its sum is relative to */
    float weight; /* 1 / the sum, times the policy's weight; 0: nothing comes of the row */
};

template <int DIM> struct columns_tile {
    static const int LEN = DIM + 8;
    static const int MT = DIM > 128 ? 1 : 2; /* matrices of 16 slots of a warp */
    static const int SLOTS = WARPS * 16 * MT;

    uint16_t q[2][ROWS * LEN]; /* K is there first */
    struct row_side side[2][ROWS];
    int32_t pos[SLOTS];
    float scale[SLOTS];
};

/* The next tile of rows from row0 on of which one sees a slot of [s0, s0 + n). */
CUDA_INLINE int32_t next_rows(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                              int32_t s0, int32_t n)
{
    while (row0 < s->n_rows &&
           attend_unseen(p, s, s0, n, s->pos0 + row0, s->pos0 + min(row0 + ROWS, s->n_rows) - 1)) {
        row0 += ROWS;
    }
    return row0;
}

/* First and last position that a warp's slots hold, to be compared as unsigned: none beyond the
 * last there is; where one holds no token, `last` is beyond. */
struct pos_range {
    uint32_t first, last;
};

CUDA_INLINE struct pos_range range_of(const int32_t *pos, int32_t n)
{
    uint32_t x = (uint32_t)pos[threadIdx.x % WARP % n];

    return {~warp_max_u32(~x), warp_max_u32(x)};
}

/* What that is made of; loaded while the tile before is at work, so nothing may look at it then. */
struct row_loads {
    float factor, top, inv;
};

CUDA_INLINE struct row_loads side_load(const struct attend *p, int32_t seq, int32_t row,
                                       int32_t head)
{
    const struct cuda_seq *s = &p->seqs.s[seq];
    struct row_loads r = {1.0f, 0.0f, 0.0f};

    if (row >= p->observe[seq].row_first && row < s->n_rows) {
        size_t at = (size_t)(s->row0 + row) * p->n_q + head;

        r.factor = p->query_factor[at];
        r.top = p->sums[at * 2];
        r.inv = p->sums[at * 2 + 1];
    }
    return r;
}

CUDA_INLINE struct row_side side_of(const struct ops_observe *o, int32_t row,
                                    const struct row_loads *x)
{
    int32_t n = row - o->row_first;
    float weight = exp2f(log2f(o->row_weight0) + (n > 0 ? (float)n * log2f(o->row_growth) : 0.0f));

    return {x->factor, x->top, x->inv > 0 ? x->inv * weight : 0.0f};
}

/* 16 rows from `row` of the tile on: x[m][j][i], slot 16 m + g (i < 2) or + 8 of the warp's, row
 * 8 j + 2t + i % 2. */
template <bool BF16, int DIM>
CUDA_INLINE void slot_products(const uint16_t *q, const uint32_t k[][DIM / 16][4],
                               float x[columns_tile<DIM>::MT][2][4])
{
#pragma unroll
    for (int i = 0; i < columns_tile<DIM>::MT * 8; i++) {
        x[i / 8][i / 4 % 2][i % 4] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < DIM / 16; d++) {
        uint32_t b[4];

        matrix_load4<false>(q + d * 16, b);
#pragma unroll
        for (int m = 0; m < columns_tile<DIM>::MT; m++) {
            mma_half<BF16>(x[m][0], k[m][d], b);
            mma_half<BF16>(x[m][1], k[m][d], b + 2);
        }
    }
}

/* PLAIN: what gave rows their output left their sums, and `top` in logits times log2(e). */
template <bool KB, bool PLAIN, int DIM>
CUDA_KERNEL void __launch_bounds__(THREADS, DIM > 128 ? 2 : 4)
    observe_columns(struct attend p, int32_t seq0)
{
    typedef struct columns_tile<DIM> tile;
    enum { MT = tile::MT };
    CUDA_SHARED(uint8_t, memory);
    tile *t = reinterpret_cast<tile *>(memory);
    int32_t seq = seq0 + (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t s0 = (int32_t)blockIdx.x * tile::SLOTS;
    struct attend_head h = attend_head_of(&p, head);
    float slope = attend_slope(&p, head);
    int lane = (int)threadIdx.x % WARP;
    int32_t own = (int32_t)threadIdx.x / WARP * 16 * MT; /* the warp's first slot of the tile */
    uint32_t k[MT][DIM / 16][4];
    int32_t pos[MT][2]; /* of slots own + 16 m + g and + 8 */
    float scale[MT][2];
    float sum[MT][2] = {};
    struct row_loads side = {};
    struct pos_range range;
    int32_t row0;

    if (!attend_observed(&p, seq) || attend_leaves_sums(&p, seq) != PLAIN || s0 >= s->n_slots) {
        return;
    }
    load_slots(&p, s, &h, s0, tile::SLOTS, t->pos, t->scale);
    __syncthreads(); /* pos, scale: written by a thread each, read by all */
    load_k<tile::SLOTS, DIM>(&p, s, &h, s0, t->pos, t->q[0]);
    async_wait<0>();
    __syncthreads(); /* K: copied by all, read by all */
#pragma unroll
    for (int i = 0; i < MT * (DIM / 16); i++) {
        int32_t slot = own + i % MT * 16;

        matrix_load4<false>(t->q[0] + (slot + lane % 16) * tile::LEN + i / MT * 16 + lane / 16 * 8,
                            k[i % MT][i / MT]);
    }
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int32_t slot = own + i / 2 * 16 + i % 2 * 8 + lane / 4;

        pos[i / 2][i % 2] = t->pos[slot];
        scale[i / 2][i % 2] =
            PLAIN ? fmaxf(p.scale * LOG2E * t->scale[slot], 1e-30f) : t->scale[slot];
    }
    range = range_of(t->pos + own, 16 * MT);
    __syncthreads(); /* K: read by all, queries come in its place */
    if (DIM > 128) { /* elsewhere K, which had as many rows, has left zeros */
        clear_queries<DIM>(&p, t->q[1], ROWS);
    }
    row0 = next_rows(&p, s, first_row(&p, seq), s0, tile::SLOTS);
    if (row0 < s->n_rows) {
        copy_queries<DIM>(&p, s, row0, head, t->q[0]);
        if (threadIdx.x < ROWS) {
            side = side_load(&p, seq, row0 + (int32_t)threadIdx.x, head);
            t->side[0][threadIdx.x] = side_of(&p.observe[seq], row0 + (int32_t)threadIdx.x, &side);
        }
        async_commit();
    }
    for (int now = 0; row0 < s->n_rows; now = !now) {
        int32_t next = next_rows(&p, s, row0 + ROWS, s0, tile::SLOTS);
        int32_t first_pos = s->pos0 + row0;
        int32_t last_pos = s->pos0 + min(row0 + ROWS, s->n_rows) - 1;
        bool seen = last_pos >= 0 && range.first <= (uint32_t)last_pos;
        bool partly = first_pos < 0 || range.last > (uint32_t)first_pos ||
                      (p.window > 0 && (int32_t)range.first <= last_pos - p.window);

        async_wait<0>();
        __syncthreads(); /* q, side: written by all, read by all; the others: read by all */
        if (next < s->n_rows) {
            copy_queries<DIM>(&p, s, next, head, t->q[!now]);
            async_commit();
            if (threadIdx.x < ROWS) {
                side = side_load(&p, seq, next + (int32_t)threadIdx.x, head);
            }
        }
#pragma unroll 1
        for (int32_t r = 0; r < ROWS && seen; r += 16) {
            const uint16_t *q =
                t->q[now] + (r + lane % 8 + lane / 16 * 8) * tile::LEN + lane / 8 % 2 * 8;
            const struct row_side *of = t->side[now] + r + lane % 4 * 2;
            float x[MT][2][4];

            slot_products<KB, DIM>(q, k, x);
            if (PLAIN && partly) {
#pragma unroll
                for (int i = 0; i < MT * 8; i++) {
                    int32_t row = r + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
                    float *y = &x[i / 8][i / 4 % 2][i % 4];

                    *y = kv_visible(pos[i / 8][i / 2 % 2], first_pos + row, p.window) ? *y
                                                                                      : -INFINITY;
                }
            }
            if (PLAIN) {
#pragma unroll
                for (int j = 0; j < 4; j++) { /* a row of the lane's each */
                    const struct row_side row = of[j / 2 * 8 + j % 2];

#pragma unroll
                    for (int i = 0; i < MT * 2; i++) {
                        float y = x[i / 2][j / 2][i % 2 * 2 + j % 2];

                        y = fmaf(KB ? y : y * row.factor, scale[i / 2][i % 2], -row.top);
                        /* 16: more than there is; where nothing is seen it is no number */
                        sum[i / 2][i % 2] += exp2_about(fminf(y, 16.0f)) * row.weight;
                    }
                }
            } else {
                float v[MT * 8];

#pragma unroll
                for (int i = 0; i < MT * 8; i++) {
                    v[i] = x[i / 8][i / 4 % 2][i % 4];
                }
#pragma unroll 1
                for (int i = 0; i < MT * 8; i++) {
                    int a = i / 8 * 2 + i / 2 % 2;      /* which of the lane's slots */
                    int32_t at = i / 4 % 2 * 8 + i % 2; /* row, from the lane's first one */
                    int32_t slot = own + a * 8 + lane / 4;
                    int32_t row = row0 + r + lane % 4 * 2 + at;
                    float y = 0;

                    if (of[at].weight > 0) { /* else it may be no row, or the logit anything */
                        y = attend_logit(&p, v[0] * of[at].factor * t->scale[slot], slope,
                                         t->pos[slot], s->pos0 + row);
                        y = attend_noisy(&p.observe[seq], y, head, row, s->pos0 + row,
                                         t->pos[slot]);
                        y = y > -INFINITY ? expf(y - of[at].top) * of[at].weight : 0.0f;
                    }
                    turn_in<MT * 8>(v, y);
                }
#pragma unroll
                for (int i = 0; i < MT * 8; i++) {
                    sum[i / 8][i / 2 % 2] += v[i];
                }
            }
        }
        if (next < s->n_rows && threadIdx.x < ROWS) {
            t->side[!now][threadIdx.x] =
                side_of(&p.observe[seq], next + (int32_t)threadIdx.x, &side);
        }
        row0 = next;
    }
#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int32_t slot = s0 + own + i / 2 * 16 + i % 2 * 8 + lane / 4;
        float v = quad_sum(sum[i / 2][i % 2]);

        if (lane % 4 == 0 && slot < s->n_slots) {
            p.logits[((size_t)blockIdx.z * p.n_q + head) * p.max_slots + slot] = v;
        }
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) observe_scores(struct attend p, int32_t seq0)
{
    int32_t seq = seq0 + (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t group = (int32_t)blockIdx.y;
    int32_t slot = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    int32_t n_heads = p.n_q / p.seqs.layout.n_groups;
    const float *part = p.logits + ((size_t)blockIdx.z * p.n_q + group * n_heads) * p.max_slots;

    if (attend_observed(&p, seq) && slot < s->n_slots) {
        float *score = s->score + (size_t)group * s->cap + slot;
        float total = *score * attend_damp(&p.observe[seq], s->n_rows);

        for (int32_t h = 0; h < n_heads; h++) {
            total += part[(size_t)h * p.max_slots + slot];
        }
        *score = total;
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

template <bool KB, bool PLAIN, int DIM>
static int columns(struct cuda *cu, const struct attend *p, int32_t slots, int32_t seq0, int32_t n)
{
    dim3 grid(cuda_div_up((uint64_t)slots, columns_tile<DIM>::SLOTS), (unsigned)p->n_q,
              (unsigned)n);

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), sizeof(struct columns_tile<DIM>),
                      (observe_columns<KB, PLAIN, DIM>), *p, seq0);
    return cuda_launched(cu, "observe_columns");
}

template <bool KB, int DIM>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    int32_t first = rows; /* row of those whose queries are made */
    bool leaves = false;
    bool sums = false;
    int r;

    for (int32_t i = 0; i < p->seqs.n; i++) {
        if (attend_observed(p, i)) {
            first = min(first, first_row(p, i));
            leaves |= attend_leaves_sums(p, i);
            sums |= !attend_leaves_sums(p, i);
        }
    }
    CUDA_LAUNCH(cu, dim3((unsigned)(rows - first), (unsigned)p->seqs.n), dim3(QUERY_WARPS * WARP),
                0, observe_queries<KB>, *p, first);
    r = cuda_launched(cu, "observe_queries");
    if (r == 0 && sums) {
        dim3 grid(cuda_div_up((uint64_t)rows, ROWS), (unsigned)p->n_q, (unsigned)p->seqs.n);

        CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), sizeof(struct sums_tile<DIM>),
                          (observe_sums<KB, DIM>), *p);
        r = cuda_launched(cu, "observe_sums");
    }
    for (int32_t seq0 = 0; seq0 < p->seqs.n && r == 0; seq0 += cu->scratch.n_observed) {
        int32_t n = min(cu->scratch.n_observed, p->seqs.n - seq0);

        r = leaves ? columns<KB, true, DIM>(cu, p, slots, seq0, n) : 0;
        r = r == 0 && sums ? columns<KB, false, DIM>(cu, p, slots, seq0, n) : r;
        if (r == 0) {
            CUDA_LAUNCH(cu,
                        dim3(cuda_div_up((uint64_t)slots, THREADS),
                             (unsigned)p->seqs.layout.n_groups, (unsigned)n),
                        dim3(THREADS), 0, observe_scores, *p, seq0);
            r = cuda_launched(cu, "observe_scores");
        }
    }
    return r;
}

template <bool KB>
static int launch_dim(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    int32_t dim = p->seqs.layout.k_dim;

    return dim <= 64    ? launch<KB, 64>(cu, p, rows, slots)
           : dim <= 128 ? launch<KB, 128>(cu, p, rows, slots)
                        : launch<KB, 256>(cu, p, rows, slots);
}

int cuda_attend_scores(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    return p->seqs.layout.k_type == OPS_KV_BF16 ? launch_dim<true>(cu, p, rows, slots)
                                                : launch_dim<false>(cu, p, rows, slots);
}
