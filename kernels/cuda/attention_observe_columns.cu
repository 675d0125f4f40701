/* SPDX-License-Identifier: Apache-2.0 */
/* What observed prefill rows give to each slot, a query head each.
 *
 * Block of 4 warps: 128 slots of one query head (heads beyond 128: 64). K is the first operand and
 * stays in registers, a warp 32 slots; rows pass by in tiles of 64, copied a tile ahead. So a lane
 * sums over rows in a register for each of its slots, and nothing crosses lanes until the end.
 * Logits are formed again, and divided by the rows' sums. Sums are f32.
 *
 * Counts, heads of 128: a warp has 32 matrix instructions, 8 loads of matrices and some 90 others
 * for 32 slots and 16 rows. A prompt of 2,048 tokens and 32 heads is 140,000 such pieces: 30 to
 * 40 us of an H200, where blocks that loaded f32 queries row by row took 2.6 ms by
 * counts. */

#include "kernels/cuda/attention_observe.cuh"

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

template <bool KB, bool PLAIN, int DIM>
static int launch(struct cuda *cu, const struct attend *p, int32_t slots, int32_t seq0, int32_t n)
{
    dim3 grid(cuda_div_up((uint64_t)slots, columns_tile<DIM>::SLOTS), (unsigned)p->n_q,
              (unsigned)n);

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), sizeof(struct columns_tile<DIM>),
                      (observe_columns<KB, PLAIN, DIM>), *p, seq0);
    return cuda_launched(cu, "observe_columns");
}

template <bool KB, bool PLAIN>
static int launch_dim(struct cuda *cu, const struct attend *p, int32_t slots, int32_t seq0,
                      int32_t n)
{
    int32_t dim = p->seqs.layout.k_dim;

    return dim <= 64    ? launch<KB, PLAIN, 64>(cu, p, slots, seq0, n)
           : dim <= 128 ? launch<KB, PLAIN, 128>(cu, p, slots, seq0, n)
                        : launch<KB, PLAIN, 256>(cu, p, slots, seq0, n);
}

int cuda_observe_columns(struct cuda *cu, const struct attend *p, bool plain, int32_t slots,
                         int32_t seq0, int32_t n)
{
    bool kb = p->seqs.layout.k_type == OPS_KV_BF16;

    return kb && plain ? launch_dim<true, true>(cu, p, slots, seq0, n)
           : kb        ? launch_dim<true, false>(cu, p, slots, seq0, n)
           : plain     ? launch_dim<false, true>(cu, p, slots, seq0, n)
                       : launch_dim<false, false>(cu, p, slots, seq0, n);
}
