/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_PART_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_PART_CUH

/* Of the kernel of attention_stream.cu, which says how it works: shapes, how tiles and queries come
 * to shared memory. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_four.cuh"

enum stream_form { STREAM_BF16, STREAM_F16, STREAM_FP8, STREAM_I8, STREAM_FOUR };

enum {
    STREAM_HEADS = 8,        /* query heads of a block: columns of a product */
    STREAM_TILE = 16,        /* slots of one product */
    STREAM_CHUNK_MAX = 2048, /* a lane knows one page: 32 of them */
    STREAM_WARPS_MAX = 8,
};

/* What a launch goes by; of the model's shape alone, not of the batch. */
struct stream_plan {
    int32_t aim_bits; /* 2^aim_bits chunks a sequence, if they come to so many slots: */
    int32_t least;
    int32_t share; /* query heads of a K head */
    bool ahead;    /* slots before a sequence's slot0 are as the step found them */
};

/* Slots of a chunk: whole pages. */
static inline __host__ __device__ int32_t stream_chunk(int32_t n_slots,
                                                       const struct stream_plan *plan)
{
    int32_t chunk = (n_slots + (1 << plan->aim_bits) - 1) >> plan->aim_bits;

    chunk = (chunk + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;
    return chunk < plan->least                 ? plan->least
           : chunk > (int32_t)STREAM_CHUNK_MAX ? (int32_t)STREAM_CHUNK_MAX
                                               : chunk;
}

static inline __host__ __device__ int32_t stream_chunks(int32_t n_slots, int32_t chunk)
{
    return n_slots > 0 ? (n_slots + chunk - 1) / chunk : 1;
}

/* Parts that add up to a row: chunks, and behind them the latest tokens, where those lie elsewhere.
 * Sums of transformed V have this part, too, so that decode_join turns them back. */
static inline __host__ __device__ int32_t stream_parts(const struct cuda_seq *s,
                                                       const struct stream_plan *plan)
{
    return stream_chunks(s->n_slots, stream_chunk(s->n_slots, plan)) + (s->latest || s->v_hadamard);
}

/* K, or V, in one form; heads of up to DIM. Of four bits a part is a block. */
template <int FORM, int DIM> struct stream_side {
    static constexpr bool CODES = FORM == STREAM_FP8 || FORM == STREAM_I8;
    static constexpr bool FOUR = FORM == STREAM_FOUR;
    static constexpr bool HALVES = !CODES && !FOUR;
    static constexpr int VEC = CODES ? 16 : 8; /* elements of 16 bytes; of four bits of 4 */
    static constexpr int PARTS = FOUR ? DIM / FOUR_BLOCK : DIM / VEC; /* of 16 bytes of a row */
    /* bytes from row to row of a stage */
    static constexpr int ROW = FOUR ? PARTS * 16 + 16 : PARTS < 8 ? 128 : PARTS * 16;
    static constexpr int SCALES = FOUR ? STREAM_TILE * PARTS * 2 : CODES ? STREAM_TILE * 2 : 0;
    static constexpr float UNIT = FORM == STREAM_FP8 ? FP8_HALF_UNIT : FOUR ? FOUR_UNIT : 1.0f;
};

/* Heads of up to DIM, K in form KF and V in form VF. */
template <int KF, int VF, int DIM> struct stream_shape {
    using key = stream_side<KF, DIM>;
    using value = stream_side<VF, DIM>;
    static constexpr bool BF16 = KF == STREAM_BF16;
    static constexpr int K_LOADS = (DIM / key::VEC + 3) / 4; /* of a lane and row: 4 lanes a row */
    static constexpr int V_VEC = value::FOUR ? 4 : value::VEC; /* dims of a lane in a row */
    static constexpr int V_LOADS = (DIM / V_VEC + 7) / 8;      /* 8 lanes a row */
    static constexpr int STEPS = K_LOADS * key::VEC / 4;       /* products of 16 dims of K */
    static constexpr int SUMS = V_LOADS * V_VEC / 2;           /* products of 16 dims of V */
    static constexpr int PIECES = BF16 ? 3 : 2;                /* of a query's component */
    static constexpr bool HELD = key::HALVES && DIM <= 128;    /* queries, in registers */
    static constexpr int V_AT = STREAM_TILE * key::ROW;
    static constexpr int POS_AT = V_AT + STREAM_TILE * value::ROW;
    static constexpr int K_SCALES_AT = POS_AT + STREAM_TILE * 4;
    static constexpr int V_SCALES_AT = K_SCALES_AT + key::SCALES;
    static constexpr int STAGE = V_SCALES_AT + value::SCALES; /* bytes */
    static constexpr int OUT_LEN = DIM + 4; /* floats from head to head, so that banks differ */

    static constexpr uint32_t q_bytes = STEPS * PIECES * WARP * 8 + STREAM_HEADS * 4;

    static constexpr uint32_t shared(int warps, int stages)
    {
        uint32_t fifo = (uint32_t)(warps * stages * STAGE);
        uint32_t merge = (uint32_t)(warps * STREAM_HEADS * (OUT_LEN + 2)) * 4;

        return q_bytes + (fifo > merge ? fifo : merge);
    }
};

/* The swizzle of a row: bits that a part's byte within it is combined with by exclusive or. What
 * lanes read at once lies in different banks then: of 16 bits one part of eight rows, of 8 bits
 * four parts of two rows (keys) or two parts of four (values). Rows of 4 bits have a part of
 * nothing behind them instead, so that only a row's number is not a constant of the code. */
template <class SIDE> CUDA_INLINE int stream_swap(int row)
{
    return SIDE::FOUR ? 0 : SIDE::HALVES ? (row & 7) << 4 : (row & 3) << 5;
}

/* Where part `part` of a tile's row lies. */
template <class SIDE> CUDA_INLINE int stream_at(int row, int part)
{
    return row * SIDE::ROW + (part * 16 ^ stream_swap<SIDE>(row));
}

/* The slot of a tile that is row g of a product (and slot + 8 row g + 8). */
CUDA_INLINE int stream_slot(int g)
{
    return g % 2 ? 4 + (g / 2 + 2) % 4 : g / 2;
}

struct stream_block {
    const struct cuda_seq *s;
    int32_t seq, chunk, n_parts;
    int32_t head0, n_heads, group, k_head;
    int32_t tile, tile_end;             /* slots / 16 that this warp takes, every n_warps-th */
    int32_t pos0, n_slots;              /* as s has them */
    int32_t seen_from, n_seen;          /* positions that this part sees */
    int32_t tile_whole, tile_whole_end; /* tiles whose slots are all seen, */
    bool ragged;                        /* unless there is more to find out about each slot */
    bool observed;
    bool latest; /* this part is the latest tokens, not a chunk */
    int32_t first_page;
    uint32_t page; /* lane i: number of page first_page + i */
};

#include "kernels/cuda/attention_latest.cuh"

/* ---- bringing ------------------------------------------------------------------------------- */

/* Where this lane copies from and to: what is the same for all tiles. */
struct stream_source {
    const uint8_t *pool;
    const int32_t *slot_pos; /* of the group */
    uint32_t k, v, scales;   /* byte of a page: of its part of slot 0, ... */
    int32_t k_to, v_to;      /* and of a stage */
    int32_t scales_step;     /* bytes from slot to slot */
    bool has_k, has_v, has_scales;
};

template <class SIDE> CUDA_INLINE int stream_lane_row(void)
{
    return (int)threadIdx.x % WARP / SIDE::PARTS;
}

template <class SIDE> CUDA_INLINE int stream_lane_part(void)
{
    return (int)threadIdx.x % WARP % SIDE::PARTS;
}

template <int KF, int VF, int DIM>
CUDA_INLINE struct stream_source stream_source_of(const struct attend *p,
                                                  const struct stream_block *b)
{
    using key = stream_side<KF, DIM>;
    using value = stream_side<VF, DIM>;
    const struct cuda_layout *l = &p->seqs.layout;
    int lane = (int)threadIdx.x % WARP;
    bool is_k = lane < key::SCALES / 16; /* scales of K, and behind them those of V */
    int32_t slot = b->k_head * OPS_PAGE_SLOTS;
    struct stream_source f;

    f.pool = b->s->pool;
    f.slot_pos = b->s->slot_pos ? b->s->slot_pos + (size_t)b->group * b->s->cap : NULL;
    f.k = (uint32_t)((slot + stream_lane_row<key>()) * (int32_t)l->k_row +
                     stream_lane_part<key>() * 16);
    f.v = (uint32_t)(l->v_at) + (uint32_t)((slot + stream_lane_row<value>()) * (int32_t)l->v_row +
                                           stream_lane_part<value>() * 16);
    f.k_to = stream_at<key>(stream_lane_row<key>(), stream_lane_part<key>());
    f.v_to = stream_at<value>(stream_lane_row<value>(), stream_lane_part<value>());
    f.scales_step = (is_k ? key::SCALES : value::SCALES) / STREAM_TILE;
    f.scales = (uint32_t)(is_k ? l->k_scale_at : l->v_scale_at) +
               (uint32_t)(slot * f.scales_step + (lane - (is_k ? 0 : key::SCALES / 16)) * 16);
    f.has_k = stream_lane_part<key>() * 16 < (int32_t)l->k_row;
    f.has_v = stream_lane_part<value>() * 16 < (int32_t)l->v_row;
    f.has_scales = lane < (key::SCALES + value::SCALES) / 16;
    return f;
}

/* Copies of a tile's rows of K, or of V, by one warp. */
template <class SIDE>
CUDA_INLINE void stream_bring_rows(const uint8_t *from, uint32_t row_bytes, uint8_t *at, int to)
{
    constexpr int ROWS = WARP / SIDE::PARTS; /* at once, at most STREAM_TILE */
    constexpr uint32_t WHOLE = SIDE::PARTS * 16;
    bool whole = !SIDE::FOUR && row_bytes == WHOLE; /* rows are a constant apart */

#pragma unroll
    for (int i = 0; i < STREAM_TILE && whole; i += ROWS) {
        async_copy16(at + (to ^ stream_swap<SIDE>(i)) + i * SIDE::ROW, from + i * WHOLE);
    }
#pragma unroll
    for (int i = 0; i < STREAM_TILE && !whole; i += ROWS) {
        async_copy16(at + (to ^ stream_swap<SIDE>(i)) + i * SIDE::ROW,
                     from + (uint32_t)i * row_bytes);
    }
}

/* Copies of a tile's rows, positions and scales, by one warp. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_bring(const struct attend *p, const struct stream_block *b,
                              const struct stream_source *f, int32_t tile, uint8_t *at)
{
    using shape = stream_shape<KF, VF, DIM>;
    constexpr int32_t TILES = OPS_PAGE_SLOTS / STREAM_TILE;
    const struct cuda_layout *l = &p->seqs.layout;
    int lane = (int)threadIdx.x % WARP;
    uint32_t in_page = (uint32_t)tile % TILES * STREAM_TILE;
    uint32_t number =
        __shfl_sync(ALL_LANES, b->page, (int)((uint32_t)tile / TILES) - b->first_page);
    const uint8_t *page = f->pool + (size_t)number * l->page_bytes;

    if (f->has_k) {
        stream_bring_rows<typename shape::key>(page + (f->k + in_page * (uint32_t)l->k_row),
                                               (uint32_t)l->k_row, at, f->k_to);
    }
    if (f->has_v) {
        stream_bring_rows<typename shape::value>(page + (f->v + in_page * (uint32_t)l->v_row),
                                                 (uint32_t)l->v_row, at + shape::V_AT, f->v_to);
    }
    if (f->slot_pos && lane < STREAM_TILE && tile * STREAM_TILE + lane < b->n_slots) {
        async_copy4(at + shape::POS_AT + lane * 4, f->slot_pos + tile * STREAM_TILE + lane);
    }
    if (f->has_scales) { /* one lies behind the other */
        async_copy16(at + shape::K_SCALES_AT + lane * 16,
                     page + (f->scales + in_page * (uint32_t)f->scales_step));
    }
}

/* Parts of K that lie beyond its rows are never brought: they are 0 from the start. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_clear(const struct attend *p, int n_stages, uint8_t *at)
{
    using shape = stream_shape<KF, VF, DIM>;
    int lane = (int)threadIdx.x % WARP;

#pragma unroll 1
    for (int i = lane; i < n_stages * STREAM_TILE * 8; i += WARP) {
        int row = i / 8 % STREAM_TILE;

#pragma unroll 1
        for (int part = i % 8; part < shape::K_LOADS * 4; part += 8) {
            if (part * 16 >= (int32_t)p->seqs.layout.k_row) {
                *reinterpret_cast<uint4 *>(at + i / (8 * STREAM_TILE) * shape::STAGE +
                                           stream_at<typename shape::key>(row, part)) =
                    make_uint4(0, 0, 0, 0);
            }
        }
    }
}

/* ---- the queries ---------------------------------------------------------------------------- */

/* This lane's components of head h, four from dim 4 lane + 128 i on; 0 beyond the last. */
template <int DIM>
CUDA_INLINE void stream_query_load(const struct attend *p, const struct stream_block *b, int32_t h,
                                   float v[(DIM + 127) / 128][4])
{
    int32_t k_dim = p->seqs.layout.k_dim;
    const float *from = p->q + (size_t)b->s->row0 * p->ldq + (size_t)(b->head0 + h) * k_dim;
    bool whole = (k_dim | p->ldq) % 4 == 0 && reinterpret_cast<uintptr_t>(p->q) % 16 == 0;

#pragma unroll
    for (int i = 0; i < (DIM + 127) / 128; i++) {
        int32_t d = (int32_t)threadIdx.x % WARP * 4 + i * 128;
        float4 x = make_float4(0, 0, 0, 0);

        if (h < b->n_heads && d < k_dim) {
            if (whole) {
                x = *reinterpret_cast<const float4 *>(from + d);
            } else {
                x.x = from[d];
                x.y = d + 1 < k_dim ? from[d + 1] : 0.0f;
                x.z = d + 2 < k_dim ? from[d + 2] : 0.0f;
                x.w = d + 3 < k_dim ? from[d + 3] : 0.0f;
            }
        }
        v[i][0] = x.x, v[i][1] = x.y, v[i][2] = x.z, v[i][3] = x.w;
    }
}

/* The same as the second factor of the products: of step and lane 4 g + t four components of head
 * g, as 16-bit pieces that add up to it, the first two side by side, a third behind all of those.
 * For keys of 16 bits they are components 2t, 2t + 1, 2t + 8 and 2t + 9 of the step's 16, else four
 * in a row. Those of f16 are divided by a power of two, `factor`. By one warp. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_query_store(int32_t h, float v[(DIM + 127) / 128][4], uint4 *q,
                                    float *factor)
{
    using shape = stream_shape<KF, VF, DIM>;
    constexpr int VEC = shape::key::VEC;
    constexpr bool HALVES = shape::key::HALVES;
    int lane = (int)threadIdx.x % WARP;
    float inv = 1.0f;

    if (!shape::BF16) {
        float top = 0;

#pragma unroll
        for (int i = 0; i < (DIM + 127) / 128 * 4; i++) {
            top = fmaxf(top, fabsf(v[i / 4][i % 4]));
        }
        top = __uint_as_float((max(__float_as_uint(warp_max(top)) >> 23, 15u) - 14) << 23);
        inv = 1.0f / top;
        if (lane == 0) { /* components below 2^15 */
            factor[h] = top;
        }
    }
#pragma unroll
    for (int i = 0; i < (DIM + 127) / 128; i++) {
        int d = lane * 4 + i * 128;
        int part = d / VEC;
        int step = HALVES ? d / 16 : part / 4 * (VEC / 4) + d % VEC / 4;
        int to = step * WARP + h * 4 + (HALVES ? d % 8 / 2 : part % 4); /* and, HALVES, the next */
        uint2 *third = reinterpret_cast<uint2 *>(q + shape::STEPS * WARP);

        if (part >= shape::K_LOADS * 4) {
            break;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[i][j] *= inv;
        }
        if (shape::key::FOUR) { /* the order of four_halves() */
            float second = v[i][1];

            v[i][1] = v[i][2];
            v[i][2] = second;
        }
#pragma unroll
        for (int n = 0; n < shape::PIECES; n++) {
            uint2 w = {half2_of_f32<shape::BF16>(v[i][0], v[i][1]),
                       half2_of_f32<shape::BF16>(v[i][2], v[i][3])};

            v[i][0] -= f32_of_half<shape::BF16>(w.x & 0xffff);
            v[i][1] -= f32_of_half<shape::BF16>(w.x >> 16);
            v[i][2] -= f32_of_half<shape::BF16>(w.y & 0xffff);
            v[i][3] -= f32_of_half<shape::BF16>(w.y >> 16);
            uint2 *at = n < 2 ? reinterpret_cast<uint2 *>(q + to) + n : third + to;

            if (HALVES) {
                uint32_t *half = reinterpret_cast<uint32_t *>(at) + d % 16 / 8;

                half[0] = w.x;
                half[n < 2 ? 4 : 2] = w.y;
            } else {
                *at = w;
            }
        }
    }
}

#endif
