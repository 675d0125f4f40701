/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH

/* The kernel of attention_stream.cu, which says how it works. */

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

/* K, or V, in one form; heads of up to DIM. Of four bits a word of K and a lane's part of V. */
template <int FORM, int DIM> struct stream_side {
    static constexpr bool CODES = FORM == STREAM_FP8 || FORM == STREAM_I8;
    static constexpr bool FOUR = FORM == STREAM_FOUR;
    static constexpr int VEC = CODES ? 16 : 8; /* elements of 16 bytes, or of 4 */
    static constexpr int PARTS = FOUR ? DIM / FOUR_BLOCK : DIM / VEC; /* of 16 bytes of a row */
    /* bytes from row to row of a stage */
    static constexpr int ROW = PARTS < 8 && !FOUR ? 128 : PARTS * 16;
    static constexpr int SCALES = FOUR ? STREAM_TILE * PARTS * 2 : CODES ? STREAM_TILE * 2 : 0;
    static constexpr float UNIT = FORM == STREAM_FP8 ? FP8_HALF_UNIT : 1.0f;
};

/* Heads of up to DIM, K in form KF and V in form VF. */
template <int KF, int VF, int DIM> struct stream_shape {
    using key = stream_side<KF, DIM>;
    using value = stream_side<VF, DIM>;
    static constexpr bool BF16 = KF == STREAM_BF16;
    static constexpr int K_LOADS = (DIM / key::VEC + 3) / 4; /* of a lane and row: 4 lanes a row */
    static constexpr int V_VEC = value::FOUR ? DIM / 8 : value::VEC;
    static constexpr int V_LOADS = (DIM / V_VEC + 7) / 8; /* 8 lanes a row */
    static constexpr int STEPS = K_LOADS * key::VEC / 4;  /* products of 16 dims of K */
    static constexpr int SUMS = V_LOADS * V_VEC / 2;      /* products of 16 dims of V */
    static constexpr int PIECES = BF16 ? 3 : 2;           /* of a query's component */
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

/* Where part `part` of a tile's row lies: neither the rows that lanes read at once as keys nor
 * those that they read as values meet in a bank. */
template <class SIDE> CUDA_INLINE int stream_at(int row, int part)
{
    if (SIDE::FOUR) { /* 8 rows of PARTS parts, as words of K; 4 rows of a lane's part of V */
        int line = SIDE::PARTS == 8 ? row & 3 : SIDE::PARTS == 4 ? row >> 1 & 1 : 0;

        return row * SIDE::ROW + (part ^ (line << 1 | (row >> 2 & 1))) * 16;
    }
    return row * SIDE::ROW + (part ^ (row & 3) << 1) * 16;
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
    int32_t tile, tile_end; /* slots / 16 that this warp takes, every n_warps-th */
    bool observed;
    bool latest; /* this part is the latest tokens, not a chunk */
    int32_t first_page;
    uint32_t page; /* lane i: number of page first_page + i */
};

#include "kernels/cuda/attention_latest.cuh"

/* ---- bringing ------------------------------------------------------------------------------- */

/* Copies of a tile's rows of K, or of V, by one warp. */
template <class SIDE>
CUDA_INLINE void stream_bring_rows(const uint8_t *from, int32_t row_bytes, uint8_t *at)
{
    constexpr int LANES = SIDE::PARTS; /* of a row */
    constexpr int ROWS = WARP / LANES; /* at once, at most STREAM_TILE */
    int lane = (int)threadIdx.x % WARP;
    int row = lane / LANES;
    int part = lane % LANES;

    if (part * 16 < row_bytes) {
        from += row * row_bytes + part * 16;
#pragma unroll
        for (int i = 0; i < STREAM_TILE; i += ROWS) {
            async_copy16(at + stream_at<SIDE>(i + row, part), from + i * row_bytes);
        }
    }
}

/* Copies of a tile's rows, positions and scales, by one warp. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_bring(const struct attend *p, const struct stream_block *b, int32_t tile,
                              uint8_t *at)
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    using value = typename shape::value;
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = b->s;
    int lane = (int)threadIdx.x % WARP;
    int32_t slot0 = tile * STREAM_TILE;
    int32_t in_page = slot0 % OPS_PAGE_SLOTS;
    uint32_t number = __shfl_sync(ALL_LANES, b->page, slot0 / OPS_PAGE_SLOTS - b->first_page);
    uint8_t *page = s->pool + (size_t)number * l->page_bytes;

    stream_bring_rows<key>(kv_k_row(l, page, b->k_head, in_page), (int32_t)l->k_row, at);
    stream_bring_rows<value>(kv_v_row(l, page, b->k_head, in_page), (int32_t)l->v_row,
                             at + shape::V_AT);
    if (s->slot_pos && lane < STREAM_TILE && slot0 + lane < s->n_slots) {
        async_copy4(at + shape::POS_AT + lane * 4,
                    s->slot_pos + (size_t)b->group * s->cap + slot0 + lane);
    }
    if (lane < (key::SCALES + value::SCALES) / 16) { /* one lies behind the other */
        bool is_k = lane < key::SCALES / 16;
        const uint16_t *from =
            is_k ? kv_scales(page, l->k_scale_at, key::SCALES / (2 * STREAM_TILE), b->k_head,
                             in_page)
                 : kv_scales(page, l->v_scale_at, value::SCALES / (2 * STREAM_TILE), b->k_head,
                             in_page);

        async_copy16(at + shape::K_SCALES_AT + lane * 16,
                     from + (lane - (is_k ? 0 : key::SCALES / 16)) * 8);
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

/* The same as the second factor of the products: of step and piece, lane 4 g + t's four components
 * of head g, as 16-bit pieces that add up to it. Those of f16 are divided by a power of two,
 * `factor`. By one warp. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_query_store(int32_t h, float v[(DIM + 127) / 128][4], uint2 *q,
                                    float *factor)
{
    using shape = stream_shape<KF, VF, DIM>;
    constexpr int VEC = shape::key::VEC;
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
        int step = part / 4 * (VEC / 4) + d % VEC / 4;
        uint2 *to = q + step * shape::PIECES * WARP + h * 4 + part % 4;

        if (part >= shape::K_LOADS * 4) {
            break;
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[i][j] *= inv;
        }
#pragma unroll
        for (int n = 0; n < shape::PIECES; n++) {
            uint2 w = {half2_of_f32<shape::BF16>(v[i][0], v[i][1]),
                       half2_of_f32<shape::BF16>(v[i][2], v[i][3])};

            v[i][0] -= f32_of_half<shape::BF16>(w.x & 0xffff);
            v[i][1] -= f32_of_half<shape::BF16>(w.x >> 16);
            v[i][2] -= f32_of_half<shape::BF16>(w.y & 0xffff);
            v[i][3] -= f32_of_half<shape::BF16>(w.y >> 16);
            to[n * WARP] = w;
        }
    }
}

/* ---- a tile --------------------------------------------------------------------------------- */

template <int FORM> CUDA_INLINE void stream_widen(uint32_t codes, uint32_t ret[2])
{
    if (FORM == STREAM_FP8) {
        half4_of_e4m3(codes, ret);
    } else {
        half4_of_s8(codes, ret);
    }
}

/* A lane's part of keys as f16: of rows g and g + 8, `words` of each, to factors of products. */
template <int KF>
CUDA_INLINE void stream_widen_keys(const uint32_t wa[4], const uint32_t wb[4], int i, uint32_t f[4])
{
    if (KF == STREAM_FP8 || KF == STREAM_I8) {
        uint32_t fa[2];
        uint32_t fb[2];

        stream_widen<KF>(wa[i], fa);
        stream_widen<KF>(wb[i], fb);
        f[0] = fa[0], f[1] = fb[0], f[2] = fa[1], f[3] = fb[1];
    } else {
        f[0] = wa[2 * i % 4], f[1] = wb[2 * i % 4];
        f[2] = wa[2 * i % 4 + 1], f[3] = wb[2 * i % 4 + 1];
    }
}

/* x[i]: products of slot stream_slot(g) + i / 2 * 8 and head 2t + i % 2. Of four bits a load is a
 * block, whose sum its scale multiplies. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_products(const uint8_t *at, const uint2 *q, float x[4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    int lane = (int)threadIdx.x % WARP;
    int row = stream_slot(lane / 4);
    float c[shape::PIECES][4] = {};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = 0;
    }
#pragma unroll
    for (int u = 0; u < shape::K_LOADS; u++) {
        uint32_t wa[4];
        uint32_t wb[4];

        if (key::FOUR) {
            const uint8_t *from = at + stream_at<key>(row, u) + lane % 4 * 4;

            four_levels(*reinterpret_cast<const uint32_t *>(from), wa);
            four_levels(*reinterpret_cast<const uint32_t *>(from + 8 * key::ROW), wb);
        } else {
            const uint8_t *from = at + stream_at<key>(row, u * 4 + lane % 4);
            uint4 a = *reinterpret_cast<const uint4 *>(from);
            uint4 b = *reinterpret_cast<const uint4 *>(from + 8 * key::ROW);

            wa[0] = a.x, wa[1] = a.y, wa[2] = a.z, wa[3] = a.w;
            wb[0] = b.x, wb[1] = b.y, wb[2] = b.z, wb[3] = b.w;
        }
#pragma unroll
        for (int i = 0; i < key::VEC / 4; i++) {
            uint32_t f[4];

            stream_widen_keys<KF>(wa, wb, i, f);
#pragma unroll
            for (int n = 0; n < shape::PIECES; n++) {
                uint2 w = q[((u * (key::VEC / 4) + i) * shape::PIECES + n) * WARP + lane];
                uint32_t h[2] = {w.x, w.y};

                mma_half<shape::BF16>(c[n], f, h);
            }
        }
        if (key::FOUR) {
            const uint16_t *scales =
                reinterpret_cast<const uint16_t *>(at + shape::K_SCALES_AT) + row * key::PARTS + u;

#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] += (c[0][i] + c[1][i]) * f32_of_f16(scales[i / 2 * 8 * key::PARTS]);
                c[0][i] = 0;
                c[1][i] = 0;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4 && !key::FOUR; i++) {
        x[i] = c[0][i] + c[1][i];
        if (shape::PIECES > 2) {
            x[i] += c[shape::PIECES - 1][i];
        }
    }
}

/* What a warp keeps of heads 2t and 2t + 1. Sums of weights are the lane's own, over its slots.
 * Of codes, weights are multiplied by a slot's scale of V and
 * divided by `unit`, a power of two near the largest of those, so that f16 holds them. */
struct stream_state {
    float top[2], sum[2];
    float unit;
};

CUDA_INLINE float stream_max_slots(float x) /* over the lanes that share t */
{
    for (int m = 4; m < WARP; m <<= 1) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

/* x becomes weights. */
template <int SUMS>
CUDA_INLINE void stream_weights(struct stream_state *st, float x[4], float acc[SUMS][4])
{
    float factor[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = fmaxf(st->top[h], stream_max_slots(fmaxf(x[h], x[2 + h])));

        factor[h] = top == st->top[h] ? 1.0f : expf(st->top[h] - top);
        st->top[h] = top;
    }
    if (__any_sync(ALL_LANES, factor[0] != 1 || factor[1] != 1)) {
        st->sum[0] *= factor[0];
        st->sum[1] *= factor[1];
#pragma unroll
        for (int i = 0; i < SUMS * 4; i++) {
            acc[i / 4][i % 4] *= factor[i % 2];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = x[i] > -INFINITY ? expf(x[i] - st->top[i % 2]) : 0.0f;
        st->sum[i % 2] += x[i];
    }
}

CUDA_INLINE float stream_inverse(float power_of_2)
{
    return __uint_as_float(0x7f000000 - __float_as_uint(power_of_2));
}

/* The weights times the scales of V. */
template <int SUMS>
CUDA_INLINE void stream_scale_values(struct stream_state *st, const float scale[2], float x[4],
                                     float acc[SUMS][4])
{
    float top = fmaxf(scale[0], scale[1]);

    if (__any_sync(ALL_LANES, top >= 2 * st->unit)) {
        float unit = __uint_as_float(__float_as_uint(warp_max(top)) & 0x7f800000);
        float factor = st->unit * stream_inverse(unit);

        st->unit = unit;
#pragma unroll
        for (int i = 0; i < SUMS * 4; i++) {
            acc[i / 4][i % 4] *= factor;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] *= scale[i / 2] * stream_inverse(st->unit);
    }
}

/* Values of one load as f16 pairs of two slots: f[i] are factors of the product of dims 2 i and
 * 2 i + 1 of a lane's part. */
template <int VF>
CUDA_INLINE void stream_widen_values(const uint32_t w[4][4], int i, uint32_t f[2][4])
{
    if (VF == STREAM_FP8 || VF == STREAM_I8) {
#pragma unroll
        for (int j = 0; j < 2; j++) { /* of slots of rows 2t, 2t + 1 and 2t + 8, 2t + 9 */
            uint32_t pair[2];

            stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x5140), pair);
            f[0][2 * j] = pair[0], f[0][2 * j + 1] = pair[1];
            stream_widen<VF>(__byte_perm(w[2 * j][i], w[2 * j + 1][i], 0x7362), pair);
            f[1][2 * j] = pair[0], f[1][2 * j + 1] = pair[1];
        }
    } else {
        f[0][0] = __byte_perm(w[0][i], w[1][i], 0x5410);
        f[0][1] = __byte_perm(w[0][i], w[1][i], 0x7632);
        f[0][2] = __byte_perm(w[2][i], w[3][i], 0x5410);
        f[0][3] = __byte_perm(w[2][i], w[3][i], 0x7632);
    }
}

/* The same of four bits, one word of each slot: four products. `scale`: of the slots of rows 2t and
 * 2t + 1, 2t + 8 and 2t + 9. */
CUDA_INLINE void stream_four_values(const uint32_t w[4], const uint32_t scale[2], uint32_t f[4][4])
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        uint32_t a = w[2 * j];
        uint32_t b = w[2 * j + 1];
        uint32_t even[4];
        uint32_t odd[4];

        four_levels((a & 0x0f0f0f0f) | (b << 4 & 0xf0f0f0f0), even);
        four_levels((a >> 4 & 0x0f0f0f0f) | (b & 0xf0f0f0f0), odd);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[i][2 * j] = half2_product(even[i], scale[j]);
            f[i][2 * j + 1] = half2_product(odd[i], scale[j]);
        }
    }
}

/* acc += weights times values of four bits. */
template <class SHAPE>
CUDA_INLINE void stream_sum_four(const uint8_t *at, const uint8_t *scales_at,
                                 const uint32_t weight[2][2], const uint32_t seen[2],
                                 float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;
    constexpr int WORDS = SHAPE::V_VEC / 8;
    int lane = (int)threadIdx.x % WARP;
    int byte = lane / 4 * WORDS * 4; /* of the row: the lane's */
    uint32_t w[4][WORDS];
    uint32_t scale[2] = {0, 0};

#pragma unroll
    for (int j = 0; j < 4; j++) {
        int g = lane % 4 * 2 + j % 2;
        int slot = stream_slot(g) + j / 2 * 8;
        const uint8_t *from = at + stream_at<value>(slot, byte / 16) + byte % 16;
        uint32_t s = reinterpret_cast<const uint16_t *>(scales_at)[slot * value::PARTS + byte / 16];

        /* what nobody sees may be anything; 515.5 times 127 is what f16 holds */
        s = seen[j / 2] >> (g * 4) & 1 ? min(s, 0x6007u) : 0u;
        scale[j / 2] |= s << (j % 2 * 16);
        if constexpr (WORDS == 4) {
            uint4 v = *reinterpret_cast<const uint4 *>(from);

            w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
        } else if constexpr (WORDS == 2) {
            uint2 v = *reinterpret_cast<const uint2 *>(from);

            w[j][0] = v.x, w[j][1] = v.y;
        } else {
            w[j][0] = *reinterpret_cast<const uint32_t *>(from);
        }
    }
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        uint32_t own[4] = {w[0][i], w[1][i], w[2][i], w[3][i]};
        uint32_t f[4][4];

        stream_four_values(own, scale, f);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            mma_half<false>(acc[i * 4 + k], f[k], weight[0]);
            mma_half<false>(acc[i * 4 + k], f[k], weight[1]);
        }
    }
}

/* acc += weights times values of 16 or 8 bits. */
template <int VF, class SHAPE>
CUDA_INLINE void stream_sum_values(const uint8_t *at, const uint32_t weight[2][2],
                                   float acc[SHAPE::SUMS][4])
{
    using value = typename SHAPE::value;
    constexpr int TURNS = value::VEC / 8; /* products of 2 dims of a word */
    int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int r = 0; r < SHAPE::V_LOADS; r++) {
        uint32_t w[4][4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            int slot = stream_slot(lane % 4 * 2 + j % 2) + j / 2 * 8;
            uint4 v = *reinterpret_cast<const uint4 *>(
                at + stream_at<value>(slot, r * 8 + lane / 4));
            w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t f[2][4];

            stream_widen_values<VF>(w, i, f);
#pragma unroll
            for (int n = 0; n < 2; n++) {
#pragma unroll
                for (int k = 0; k < TURNS; k++) {
                    mma_half<SHAPE::BF16>(acc[((r * 4 + i) * TURNS + k) % SHAPE::SUMS], f[k],
                                          weight[n]);
                }
            }
        }
    }
}

/* acc += weights times values. `seen`: lanes whose first slot (seen[0]), second (seen[1]) is
 * visible. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_values(uint8_t *at, const uint8_t *scales_at, const float x[4],
                               const uint32_t seen[2],
                               float acc[stream_shape<KF, VF, DIM>::SUMS][4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using value = typename shape::value;
    int lane = (int)threadIdx.x % WARP;
    uint32_t weight[2][2]; /* piece, half of the slots */

    if (!value::FOUR && (seen[0] & seen[1]) != ALL_LANES) { /* unseen may be anything: 0 */
#pragma unroll 1
        for (int g = 0; g < STREAM_TILE; g++) {
            if (!((g < 8 ? seen[0] : seen[1]) >> (g % 8 * 4) & 1) && lane < value::PARTS) {
                *reinterpret_cast<uint4 *>(
                    at + stream_at<value>(stream_slot(g % 8) + g / 8 * 8, lane)) =
                    make_uint4(0, 0, 0, 0);
            }
        }
        __syncwarp(); /* zeros: written by some lanes, read by all */
    }

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t w = half2_of_f32<shape::BF16>(x[2 * i], x[2 * i + 1]);
        float lo = x[2 * i] - f32_of_half<shape::BF16>(w & 0xffff);
        float hi = x[2 * i + 1] - f32_of_half<shape::BF16>(w >> 16);

        weight[0][i] = matrix_turn(w);
        weight[1][i] = matrix_turn(half2_of_f32<shape::BF16>(lo, hi));
    }
    if constexpr (value::FOUR) {
        stream_sum_four<shape>(at, scales_at, weight, seen, acc);
    } else {
        stream_sum_values<VF, shape>(at, weight, acc);
    }
}

template <int KF, int VF, int DIM>
CUDA_INLINE void stream_tile(const struct attend *p, const struct stream_block *b, int32_t tile,
                             uint8_t *at, const uint2 *q, const float factor[2],
                             const float slope[2], struct stream_state *st,
                             float acc[stream_shape<KF, VF, DIM>::SUMS][4])
{
    using shape = stream_shape<KF, VF, DIM>;
    using key = typename shape::key;
    using value = typename shape::value;
    int lane = (int)threadIdx.x % WARP;
    int first = stream_slot(lane / 4);
    int32_t row_pos = b->s->pos0;
    int32_t pos[2];
    bool visible[2];
    bool elsewhere[2] = {false, false};
    float v_scale[2];
    uint32_t seen[2];
    float x[4];

    stream_products<KF, VF, DIM>(at, q, x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int own = first + i * 8;
        int32_t slot = tile * STREAM_TILE + own;
        const uint16_t *k_scales = reinterpret_cast<const uint16_t *>(at + shape::K_SCALES_AT);
        const uint16_t *v_scales = reinterpret_cast<const uint16_t *>(at + shape::V_SCALES_AT);
        float k_scale = key::CODES ? key::UNIT * f32_of_f16(k_scales[own]) : 1.0f;

        pos[i] = b->s->slot_pos ? reinterpret_cast<const int32_t *>(at + shape::POS_AT)[own] : slot;
        pos[i] = slot < b->s->n_slots ? pos[i] : -1;
        if (value::FOUR) {
            elsewhere[i] = latest_has(b->s, row_pos, pos[i]);
            pos[i] = elsewhere[i] ? -1 : pos[i];
        }
        visible[i] = kv_visible(pos[i], row_pos, p->window);
        seen[i] = __ballot_sync(ALL_LANES, visible[i]);
        v_scale[i] = value::CODES && visible[i] ? f32_of_f16(v_scales[own]) : 0.0f;
        x[2 * i] *= factor[0] * k_scale;
        x[2 * i + 1] *= factor[1] * k_scale;
    }
    if (p->softcap > 0 || p->alibi_max > 0) {
#pragma unroll 1
        for (int i = 0; i < 4; i++) { /* in turn through x[0]: one copy of the code */
            float v = attend_logit(p, x[0], i % 2 ? slope[1] : slope[0], i / 2 ? pos[1] : pos[0],
                                   row_pos);

            x[0] = x[1];
            x[1] = x[2];
            x[2] = x[3];
            x[3] = v;
        }
    } else { /* the same, shorter */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = visible[i / 2] ? fminf(fmaxf(p->scale * x[i], -1e30f), 1e30f) : -INFINITY;
        }
    }
    if (b->observed) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int32_t head = lane % 4 * 2 + h;
            float *to = p->logits + (size_t)(b->seq * p->n_q + b->head0 + head) * p->max_slots +
                        tile * STREAM_TILE + first;

            if (head < b->n_heads && !elsewhere[0]) {
                to[0] = x[h];
            }
            if (head < b->n_heads && !elsewhere[1]) {
                to[8] = x[2 + h];
            }
        }
    }
    stream_weights<shape::SUMS>(st, x, acc);
    if (value::CODES) {
        stream_scale_values<shape::SUMS>(st, v_scale, x, acc);
    }
    if (!shape::BF16) { /* what is left of a weight after f16 is far from its smallest */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= 16384.0f;
        }
    }
    stream_values<KF, VF, DIM>(at + shape::V_AT, at + shape::V_SCALES_AT, x, seen, acc);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Warps' sums, added in their order, to the chunk's part; or, with one chunk, to the row. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_block_merge(const struct attend *p, const struct stream_block *b,
                                    struct stream_state *st,
                                    float acc[stream_shape<KF, VF, DIM>::SUMS][4], float *memory)
{
    using shape = stream_shape<KF, VF, DIM>;
    using value = typename shape::value;
    constexpr int VEC = shape::V_VEC;
    constexpr int HEADS = STREAM_HEADS;
    int32_t v_dim = p->seqs.layout.v_dim;
    int warps = (int)blockDim.x / WARP;
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    float *tops = memory;
    float *sums = tops + warps * HEADS;
    float *values = sums + warps * HEADS;
    float unit = (shape::BF16 ? 1.0f : 1.0f / 16384.0f) * value::UNIT *
                 (value::CODES ? st->unit : 1.0f);

    __syncthreads(); /* memory: stages, read by all */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = st->sum[h];

        for (int m = 4; m < WARP; m <<= 1) {
            sum += __shfl_xor_sync(ALL_LANES, sum, m);
        }
        if (lane < 4) {
            tops[warp * HEADS + lane * 2 + h] = st->top[h];
            sums[warp * HEADS + lane * 2 + h] = sum;
        }
    }
    __syncthreads(); /* tops, sums: written by a few, read by all */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int32_t head = lane % 4 * 2 + h;
        float top = -INFINITY;
        float *to = values + (warp * HEADS + head) * shape::OUT_LEN;
        float factor;

#pragma unroll 1
        for (int w = 0; w < warps; w++) {
            top = fmaxf(top, tops[w * HEADS + head]);
        }
        factor = st->top[h] > -INFINITY ? expf(st->top[h] - top) * unit : 0.0f;
#pragma unroll
        for (int i = 0; i < shape::SUMS; i += 2) { /* four dims in a row */
            int32_t d = (i / (VEC / 2) * 8 + lane / 4) * VEC + i % (VEC / 2) * 2;

            if (head < b->n_heads && d < v_dim) {
                *reinterpret_cast<float4 *>(to + d) =
                    make_float4(acc[i][h] * factor, acc[i][2 + h] * factor, acc[i + 1][h] * factor,
                                acc[i + 1][2 + h] * factor);
            }
        }
    }
    __syncthreads(); /* values: written by all, read by all */
#pragma unroll 1
    for (int32_t h = warp; h < b->n_heads; h += warps) {
        int32_t head = b->head0 + h;
        float *part =
            p->part + ((size_t)(b->seq * p->n_q + head) * p->n_chunks + b->chunk) * p->part_len;
        float *out = p->out + (size_t)b->s->row0 * p->ldo + (size_t)head * v_dim;
        float own = lane < warps ? tops[lane * HEADS + h] : -INFINITY;
        float top = warp_max(own);
        float sum = own > -INFINITY ? expf(own - top) * sums[lane * HEADS + h] : 0.0f;
        float inv;

        sum = warp_sum(sum);
        inv = attend_with_sink(p, head, top, sum > 0 ? 1.0f / sum : 0.0f);
        if (b->n_parts > 1 && lane == 0) {
            part[0] = top;
            part[1] = sum;
        }
#pragma unroll 1
        for (int32_t d = lane * 4; d < v_dim; d += 4 * WARP) {
            float4 v = make_float4(0, 0, 0, 0);

#pragma unroll 4
            for (int w = 0; w < warps; w++) {
                float4 a = *reinterpret_cast<const float4 *>(values +
                                                             (w * HEADS + h) * shape::OUT_LEN + d);

                v.x += a.x, v.y += a.y, v.z += a.z, v.w += a.w;
            }
            if (b->n_parts == 1) {
                out[d] = v.x * inv, out[d + 1] = v.y * inv;
                out[d + 2] = v.z * inv, out[d + 3] = v.w * inv;
            } else {
                *reinterpret_cast<float4 *>(part + 4 + d) = v;
            }
        }
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* This block's; false: it has no part. */
CUDA_INLINE bool stream_block_of(const struct attend *p, const struct stream_plan *plan,
                                 struct stream_block *b)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t sets = (plan->share + STREAM_HEADS - 1) / STREAM_HEADS;
    int32_t k = (int32_t)blockIdx.y;
    int32_t set = 0;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t chunk;
    int32_t from;
    int32_t to;

    b->seq = (int32_t)blockIdx.z;
    b->s = &p->seqs.s[b->seq];
    chunk = stream_chunk(b->s->n_slots, plan);
    b->chunk = (int32_t)blockIdx.x;
    b->n_parts = stream_parts(b->s, plan);
    if (b->chunk >= b->n_parts) {
        return false;
    }
    if (sets > 1) {
        set = k % sets;
        k /= sets;
    }
    b->head0 = k * plan->share + set * STREAM_HEADS;
    b->n_heads = min((int32_t)STREAM_HEADS, plan->share - set * STREAM_HEADS);
    b->group = 0;
    b->k_head = k;
    if (l->n_groups > 1) {
        b->group = k / l->k_heads;
        b->k_head = k % l->k_heads;
    }
    b->observed = attend_observed(p, b->seq);
    b->latest = b->chunk == stream_chunks(b->s->n_slots, chunk);
    if (b->latest) {
        b->tile = b->tile_end = b->first_page = 0;
        b->page = 0;
        return true;
    }
    from = b->chunk * chunk;
    to = min(from + chunk, b->s->n_slots);
    b->first_page = from / OPS_PAGE_SLOTS;
    b->page = 0;
    if (b->first_page + lane < (to + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS) {
        b->page = b->s->pages[(size_t)b->group * b->s->max_pages + b->first_page + lane];
    }
    b->tile = from / STREAM_TILE + (int32_t)threadIdx.x / WARP;
    if (!b->s->slot_pos && !b->observed) { /* a slot is its position: some tiles nobody sees */
        to = min(to, b->s->pos0 + 1);
        from = p->window > 0 ? max(from, b->s->pos0 - p->window + 1) : from;
        while (b->tile < from / STREAM_TILE) { /* a tile's warp stays the same */
            b->tile += (int32_t)blockDim.x / WARP;
        }
    }
    b->tile_end = (to + STREAM_TILE - 1) / STREAM_TILE;
    return true;
}

template <int KF, int VF, int DIM, int STAGES>
CUDA_KERNEL void __launch_bounds__(STREAM_WARPS_MAX *WARP, 1)
    decode_stream(struct attend p, struct stream_plan plan)
{
    using shape = stream_shape<KF, VF, DIM>;
    CUDA_SHARED(uint8_t, memory);
    int lane = (int)threadIdx.x % WARP;
    int warps = (int)blockDim.x / WARP;
    int warp = (int)threadIdx.x / WARP;
    float *factors = reinterpret_cast<float *>(memory);
    uint2 *q = reinterpret_cast<uint2 *>(memory + STREAM_HEADS * 4);
    uint8_t *rest = memory + shape::q_bytes;
    uint8_t *stage = rest + (int)threadIdx.x / WARP * STAGES * shape::STAGE;
    float acc[shape::SUMS][4] = {};
    struct stream_state st = {{-INFINITY, -INFINITY}, {0, 0}, 5.9604645e-8f}; /* f16's smallest */
    float v[(DIM + 127) / 128][4];
    float factor[2] = {1, 1};
    float slope[2] = {0, 0};
    struct stream_block b;
    bool mine = false;
    int n = 0; /* stages asked for */

    grid_begin();
    if (!shape::key::FOUR && p.seqs.layout.k_row < shape::K_LOADS * 64) {
        stream_clear<KF, VF, DIM>(&p, STAGES, stage);
    }
    if (plan.ahead) { /* tiles that no row of the step is stored in, and pages, the host's */
        int32_t old = p.seqs.s[blockIdx.z].slot0 / STREAM_TILE;

        grid_ahead(true);
        mine = stream_block_of(&p, &plan, &b);
#pragma unroll 1
        for (; mine && n < STAGES && b.tile + n * warps < min(old, b.tile_end); n++) {
            stream_bring<KF, VF, DIM>(&p, &b, b.tile + n * warps, stage + n * shape::STAGE);
            async_commit();
        }
        grid_ahead(false);
    }
    grid_wait();
    if (!plan.ahead) {
        mine = stream_block_of(&p, &plan, &b);
    }
    if (!mine) {
        return;
    }
    if (shape::value::FOUR && b.latest) {
        stream_latest(&p, &b, reinterpret_cast<float *>(memory));
        return;
    }
    stream_query_load<DIM>(&p, &b, warp, v); /* on its way while tiles are asked for */
#pragma unroll 1
    for (; n < STAGES; n++) {
        if (b.tile + n * warps < b.tile_end) {
            stream_bring<KF, VF, DIM>(&p, &b, b.tile + n * warps, stage + n * shape::STAGE);
        }
        async_commit();
    }
    stream_query_store<KF, VF, DIM>(warp, v, q, factors);
#pragma unroll 1
    for (int h = warp + warps; h < STREAM_HEADS; h += warps) {
        stream_query_load<DIM>(&p, &b, h, v);
        stream_query_store<KF, VF, DIM>(h, v, q, factors);
    }
    __syncthreads(); /* q, factors: written by a warp a head, read by all */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        factor[h] = shape::BF16 ? 1.0f : factors[lane % 4 * 2 + h];
        slope[h] = p.alibi_max > 0 ? attend_slope(&p, b.head0 + lane % 4 * 2 + h) : 0.0f;
    }
    for (int32_t tile = b.tile, at = 0; tile < b.tile_end; tile += warps) {
        async_wait<STAGES - 1>();
        __syncwarp(); /* the tile: copied by all lanes, read by all */
        stream_tile<KF, VF, DIM>(&p, &b, tile, stage + at * shape::STAGE, q, factor, slope, &st,
                                 acc);
        __syncwarp(); /* the tile: read by all, another comes in its place */
        if (tile + STAGES * warps < b.tile_end) {
            stream_bring<KF, VF, DIM>(&p, &b, tile + STAGES * warps, stage + at * shape::STAGE);
        }
        async_commit();
        at = at + 1 < STAGES ? at + 1 : 0;
    }
    stream_block_merge<KF, VF, DIM>(&p, &b, &st, acc, reinterpret_cast<float *>(rest));
}

/* ---- chunks together ------------------------------------------------------------------------ */

enum { JOIN_WARPS = 4, JOIN_LOADS = 8 };

/* Block a row and query head: each warp adds every fourth chunk, in order, then the warps' sums are
 * added in order. `memory`: (JOIN_WARPS, v_dim), then weights of chunks. */
CUDA_KERNEL void __launch_bounds__(JOIN_WARPS *WARP)
    decode_join(struct attend p, struct stream_plan plan)
{
    CUDA_SHARED(float, memory);
    __shared__ float inv;
    const struct cuda_seq *s = &p.seqs.s[blockIdx.y];
    int32_t head = (int32_t)blockIdx.x;
    int32_t v_dim = p.seqs.layout.v_dim;
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int32_t n = stream_parts(s, &plan);
    const float *part =
        p.part + (size_t)((int32_t)blockIdx.y * p.n_q + head) * p.n_chunks * p.part_len;
    float *weights = memory + JOIN_WARPS * v_dim;

    grid_begin();
    grid_wait();
    if (n == 1) {
        return; /* the row is there already */
    }
    if (warp == 0) {
        float top = -INFINITY;
        float sum = 0;

#pragma unroll 1
        for (int32_t c = lane; c < n; c += WARP) {
            top = fmaxf(top, part[(size_t)c * p.part_len]);
        }
        top = warp_max(top);
#pragma unroll 1
        for (int32_t c = lane; c < n; c += WARP) {
            float own = part[(size_t)c * p.part_len];
            float w = own > -INFINITY ? expf(own - top) : 0.0f;

            weights[c] = w;
            sum += w * part[(size_t)c * p.part_len + 1];
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            inv = attend_with_sink(&p, head, top, sum > 0 ? 1.0f / sum : 0.0f);
        }
    }
    for (int32_t d0 = 0; d0 < v_dim; d0 += 4 * WARP) {
        int32_t d = d0 + lane * 4;
        float4 v = make_float4(0, 0, 0, 0);
        bool waited = d0 > 0;

        for (int32_t c0 = warp; c0 < n || !waited; c0 += JOIN_WARPS * JOIN_LOADS) {
            float4 a[JOIN_LOADS];

#pragma unroll
            for (int i = 0; i < JOIN_LOADS; i++) { /* on their way while the first warp sums */
                int32_t c = c0 + i * JOIN_WARPS;

                a[i] =
                    c < n && d < v_dim
                        ? *reinterpret_cast<const float4 *>(part + (size_t)c * p.part_len + 4 + d)
                        : make_float4(0, 0, 0, 0);
            }
            if (!waited) {
                __syncthreads(); /* weights, inv: written by a warp, read by all */
                waited = true;
            }
#pragma unroll
            for (int i = 0; i < JOIN_LOADS; i++) {
                int32_t c = c0 + i * JOIN_WARPS;
                float w = c < n ? weights[c] : 0.0f;

                v.x += w * a[i].x, v.y += w * a[i].y, v.z += w * a[i].z, v.w += w * a[i].w;
            }
        }
        if (d < v_dim) {
            *reinterpret_cast<float4 *>(memory + warp * v_dim + d) = v;
        }
    }
    __syncthreads(); /* sums of warps: written by all, read by all */
    for (int32_t d = (int32_t)threadIdx.x; d < v_dim; d += JOIN_WARPS * WARP) {
        float sum = 0;

        for (int w = 0; w < JOIN_WARPS; w++) {
            sum += memory[w * v_dim + d];
        }
        if (s->v_hadamard) {
            memory[d] = sum * inv; /* the first warp's sum, which this thread alone reads */
        } else {
            p.out[(size_t)s->row0 * p.ldo + (size_t)head * v_dim + d] = sum * inv;
        }
    }
    if (s->v_hadamard) {
        __syncthreads(); /* memory: the row, written by all, read by the first warp */
        if (warp == 0) {
            hadamard_by_warp(memory, v_dim);
            for (int32_t d = lane; d < v_dim; d += WARP) {
                p.out[(size_t)s->row0 * p.ldo + (size_t)head * v_dim + d] = memory[d];
            }
        }
    }
}

#endif
