/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH

/* The kernel of attention_stream.cu, which says how it works. */

#include "kernels/cuda/attention.cuh"

enum stream_form { STREAM_BF16, STREAM_F16, STREAM_FP8, STREAM_I8 };

enum {
    STREAM_HEADS = 8,        /* query heads of a block: columns of a product */
    STREAM_TILE = 16,        /* slots of one product */
    STREAM_CHUNK_MAX = 2048, /* a lane knows one page: 32 of them */
    STREAM_WARPS_MAX = 8,
};

/* Slots of a chunk: some `aim` chunks a sequence, whole pages. */
static inline __host__ __device__ int32_t stream_chunk(int32_t n_slots, int32_t aim, int32_t least)
{
    int32_t chunk = (n_slots + aim - 1) / aim;

    chunk = (chunk + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;
    return chunk < least                       ? least
           : chunk > (int32_t)STREAM_CHUNK_MAX ? (int32_t)STREAM_CHUNK_MAX
                                               : chunk;
}

static inline __host__ __device__ int32_t stream_chunks(int32_t n_slots, int32_t chunk)
{
    return n_slots > 0 ? (n_slots + chunk - 1) / chunk : 1;
}

/* Heads of up to DIM. A lane's 16-byte loads of one row of K (4 lanes a row) and of V (8 lanes). */
template <int FORM, int DIM> struct stream_shape {
    static constexpr bool BF16 = FORM == STREAM_BF16;
    static constexpr bool CODES = FORM == STREAM_FP8 || FORM == STREAM_I8;
    static constexpr int VEC = CODES ? 16 : 8; /* elements of a load */
    static constexpr int K_LOADS = (DIM + 4 * VEC - 1) / (4 * VEC);
    static constexpr int V_LOADS = (DIM + 8 * VEC - 1) / (8 * VEC);
    static constexpr int STEPS = K_LOADS * VEC / 4; /* products of 16 dims of K */
    static constexpr int SUMS = V_LOADS * VEC / 2;  /* products of 16 dims of V */
    static constexpr int PIECES = BF16 ? 3 : 2;     /* of a query's component */
    static constexpr int STAGE = (2 * K_LOADS + 4 * V_LOADS + 1) * 512; /* bytes of a warp */
    static constexpr int OUT_LEN = DIM + 4; /* floats from head to head, so that banks differ */

    static constexpr uint32_t q_bytes = STEPS * PIECES * WARP * 8 + STREAM_HEADS * 4;

    static constexpr uint32_t shared(int warps, int stages, int32_t most_chunks)
    {
        uint32_t fifo = (uint32_t)(warps * stages * STAGE);
        uint32_t merge = (uint32_t)(warps * STREAM_HEADS * (OUT_LEN + 2)) * 4;
        uint32_t weights = (uint32_t)(STREAM_HEADS * (most_chunks + 1)) * 4;

        fifo = fifo > merge ? fifo : merge;
        return q_bytes + (fifo > weights ? fifo : weights);
    }
};

struct stream_block {
    const struct cuda_seq *s;
    int32_t seq, chunk, n_chunks;
    int32_t head0, n_heads, group, k_head;
    int32_t tile, tile_end; /* slots / 16 that this warp takes, every n_warps-th */
    bool observed;
    int32_t first_page;
    uint32_t page; /* lane i: number of page first_page + i */
};

/* ---- bringing ------------------------------------------------------------------------------- */

/* Copies of a tile's rows, positions and scales to the places where this very lane will read them.
 * Lane 4 g + t: K of slots 2g and 2g + 1, 16-byte parts 4u + t; V of slots 4t to 4t + 3, parts
 * 8r + g; positions and scales of slots 2g and 2g + 1. */
template <int FORM, int DIM>
CUDA_INLINE void stream_bring(const struct attend *p, const struct stream_block *b, int32_t tile,
                              uint8_t *at)
{
    using shape = stream_shape<FORM, DIM>;
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = b->s;
    int lane = (int)threadIdx.x % WARP;
    int g = lane / 4;
    int t = lane % 4;
    int32_t slot0 = tile * STREAM_TILE;
    int32_t in_page = slot0 % OPS_PAGE_SLOTS;
    uint32_t number = __shfl_sync(ALL_LANES, b->page, slot0 / OPS_PAGE_SLOTS - b->first_page);
    uint8_t *page = s->pool + (size_t)number * l->page_bytes;
    const uint8_t *k = kv_k_row(l, page, b->k_head, in_page + 2 * g) + t * 16;
    const uint8_t *v = kv_v_row(l, page, b->k_head, in_page + 4 * t) + g * 16;
    uint32_t k_left = l->k_row - t * 16; /* both rows are whole 16 bytes, parts may lie beyond */
    uint32_t v_left = l->v_row - g * 16;
    uint8_t *side = at + (2 * shape::K_LOADS + 4 * shape::V_LOADS) * 512 + lane * 16;

    at += lane * 16;
#pragma unroll
    for (int u = 0; u < shape::K_LOADS; u++) {
        if ((int32_t)k_left > u * 64) {
            async_copy16(at + u * 512, k + u * 64);
            async_copy16(at + (shape::K_LOADS + u) * 512, k + l->k_row + u * 64);
        }
    }
    at += 2 * shape::K_LOADS * 512;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int r = 0; r < shape::V_LOADS; r++) {
            if ((int32_t)v_left > r * 128) {
                async_copy16(at + (j * shape::V_LOADS + r) * 512, v + j * l->v_row + r * 128);
            }
        }
    }
    if (s->slot_pos) {
        const int32_t *pos = s->slot_pos + (size_t)b->group * s->cap + slot0 + 2 * g;

        if (slot0 + 2 * g < s->n_slots) {
            async_copy4(side, pos);
        }
        if (slot0 + 2 * g + 1 < s->n_slots) {
            async_copy4(side + 4, pos + 1);
        }
    }
    if (shape::CODES) {
        async_copy4(side + 8, kv_scale(page, l->k_scale_at, b->k_head, in_page + 2 * g));
        async_copy4(side + 12, kv_scale(page, l->v_scale_at, b->k_head, in_page + 2 * g));
    }
}

/* Parts of a row that lie beyond it are never brought: they are 0 from the start. */
template <int FORM, int DIM>
CUDA_INLINE void stream_clear(const struct attend *p, int n_stages, uint8_t *at)
{
    using shape = stream_shape<FORM, DIM>;
    int lane = (int)threadIdx.x % WARP;
    int32_t k_row = (int32_t)p->seqs.layout.k_row;
    int32_t v_row = (int32_t)p->seqs.layout.v_row;

    for (int n = 0; n < n_stages; n++) {
        uint4 *to = reinterpret_cast<uint4 *>(at + n * shape::STAGE) + lane;

        for (int i = 0; i < 2 * shape::K_LOADS; i++) {
            if ((i % shape::K_LOADS * 4 + lane % 4) * 16 >= k_row) {
                to[i * WARP] = make_uint4(0, 0, 0, 0);
            }
        }
        for (int i = 0; i < 4 * shape::V_LOADS; i++) {
            if ((i % shape::V_LOADS * 8 + lane / 4) * 16 >= v_row) {
                to[(2 * shape::K_LOADS + i) * WARP] = make_uint4(0, 0, 0, 0);
            }
        }
    }
}

/* ---- the queries ---------------------------------------------------------------------------- */

/* q as the second factor of the products: of step and piece, lane 4 g + t's four components of head
 * g, as 16-bit pieces that add up to it. Those of f16 are divided by a power of two, `factor`. */
template <int FORM, int DIM>
CUDA_INLINE void stream_queries(const struct attend *p, const struct stream_block *b, uint2 *q,
                                float *factor)
{
    using shape = stream_shape<FORM, DIM>;
    int32_t k_dim = p->seqs.layout.k_dim;
    const float *from = p->q + (size_t)b->s->row0 * p->ldq + (size_t)b->head0 * k_dim;
    int lane = (int)threadIdx.x % WARP;

    for (int32_t h = (int32_t)threadIdx.x / WARP; h < STREAM_HEADS && !shape::BF16;
         h += (int32_t)blockDim.x / WARP) {
        float top = 0;

        for (int32_t d = lane; d < k_dim && h < b->n_heads; d += WARP) {
            top = fmaxf(top, fabsf(from[(size_t)h * k_dim + d]));
        }
        top = warp_max(top);
        if (lane == 0) { /* components below 2^15 */
            factor[h] = __uint_as_float((max(__float_as_uint(top) >> 23, 15u) - 14) << 23);
        }
    }
    __syncthreads(); /* factor: written by a lane a head, read by all */
    for (int32_t i = (int32_t)threadIdx.x; i < shape::STEPS * WARP; i += (int32_t)blockDim.x) {
        int32_t step = i / WARP;
        int32_t h = i % WARP / 4;
        int32_t d0 =
            (step / (shape::VEC / 4) * 4 + i % 4) * shape::VEC + step % (shape::VEC / 4) * 4;
        float inv = shape::BF16 ? 1.0f : 1.0f / factor[h];
        float v[4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            v[j] = h < b->n_heads && d0 + j < k_dim ? from[(size_t)h * k_dim + d0 + j] * inv : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < shape::PIECES; n++) {
            uint2 w = {half2_of_f32<shape::BF16>(v[0], v[1]), half2_of_f32<shape::BF16>(v[2], v[3])};

            v[0] -= f32_of_half<shape::BF16>(w.x & 0xffff);
            v[1] -= f32_of_half<shape::BF16>(w.x >> 16);
            v[2] -= f32_of_half<shape::BF16>(w.y & 0xffff);
            v[3] -= f32_of_half<shape::BF16>(w.y >> 16);
            q[(step * shape::PIECES + n) * WARP + i % WARP] = w;
        }
    }
    __syncthreads(); /* q: written by all, read by all */
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

/* x[i]: products of slot 2g + i / 2 and head 2t + i % 2. */
template <int FORM, int DIM>
CUDA_INLINE void stream_products(const uint8_t *at, const uint2 *q, float x[4])
{
    using shape = stream_shape<FORM, DIM>;
    int lane = (int)threadIdx.x % WARP;
    float c[shape::PIECES][4] = {};

#pragma unroll
    for (int u = 0; u < shape::K_LOADS; u++) {
        uint4 a = reinterpret_cast<const uint4 *>(at)[u * WARP + lane];
        uint4 b = reinterpret_cast<const uint4 *>(at)[(shape::K_LOADS + u) * WARP + lane];
        uint32_t wa[4];
        uint32_t wb[4];

        wa[0] = a.x, wa[1] = a.y, wa[2] = a.z, wa[3] = a.w;
        wb[0] = b.x, wb[1] = b.y, wb[2] = b.z, wb[3] = b.w;
#pragma unroll
        for (int i = 0; i < shape::VEC / 4; i++) {
            uint32_t f[4];

            if (shape::CODES) {
                uint32_t fa[2];
                uint32_t fb[2];

                stream_widen<FORM>(wa[i], fa);
                stream_widen<FORM>(wb[i], fb);
                f[0] = fa[0], f[1] = fb[0], f[2] = fa[1], f[3] = fb[1];
            } else {
                f[0] = wa[2 * i % 4], f[1] = wb[2 * i % 4];
                f[2] = wa[2 * i % 4 + 1], f[3] = wb[2 * i % 4 + 1];
            }
#pragma unroll
            for (int n = 0; n < shape::PIECES; n++) {
                uint2 w = q[((u * (shape::VEC / 4) + i) * shape::PIECES + n) * WARP + lane];
                uint32_t h[2] = {w.x, w.y};

                mma_half<shape::BF16>(c[n], f, h);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
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

/* acc += weights times values. `seen`: lanes whose slot 2g (seen[0]), 2g + 1 (seen[1]) is visible:
 * values of others may be anything. */
template <int FORM, int DIM>
CUDA_INLINE void stream_values(const uint8_t *at, const float x[4], const uint32_t seen[2],
                               float acc[stream_shape<FORM, DIM>::SUMS][4])
{
    using shape = stream_shape<FORM, DIM>;
    int lane = (int)threadIdx.x % WARP;
    bool whole = (seen[0] & seen[1]) == ALL_LANES;
    uint32_t weight[2][2]; /* piece, half of the slots */

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t w = half2_of_f32<shape::BF16>(x[2 * i], x[2 * i + 1]);
        float lo = x[2 * i] - f32_of_half<shape::BF16>(w & 0xffff);
        float hi = x[2 * i + 1] - f32_of_half<shape::BF16>(w >> 16);

        weight[0][i] = matrix_turn(w);
        weight[1][i] = matrix_turn(half2_of_f32<shape::BF16>(lo, hi));
    }
#pragma unroll
    for (int r = 0; r < shape::V_LOADS; r++) {
        uint32_t w[4][4];

#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint4 v = reinterpret_cast<const uint4 *>(at)[(j * shape::V_LOADS + r) * WARP + lane];

            if (!whole && !(seen[j % 2] >> (lane % 4 * 8 + j / 2 * 4) & 1)) {
                v = make_uint4(0, 0, 0, 0);
            }
            w[j][0] = v.x, w[j][1] = v.y, w[j][2] = v.z, w[j][3] = v.w;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (shape::CODES) {
                uint32_t f[2][4];

#pragma unroll
                for (int j = 0; j < 2; j++) { /* slots 4t + j and 4t + j + 2 */
                    uint32_t pair[2];

                    stream_widen<FORM>(__byte_perm(w[j][i], w[j + 2][i], 0x5140), pair);
                    f[0][2 * j] = pair[0], f[0][2 * j + 1] = pair[1];
                    stream_widen<FORM>(__byte_perm(w[j][i], w[j + 2][i], 0x7362), pair);
                    f[1][2 * j] = pair[0], f[1][2 * j + 1] = pair[1];
                }
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    mma_half<false>(acc[(r * 8 + 2 * i) % shape::SUMS], f[0], weight[n]);
                    mma_half<false>(acc[(r * 8 + 2 * i + 1) % shape::SUMS], f[1], weight[n]);
                }
            } else {
                uint32_t f[4] = {
                    __byte_perm(w[0][i], w[2][i], 0x5410), __byte_perm(w[0][i], w[2][i], 0x7632),
                    __byte_perm(w[1][i], w[3][i], 0x5410), __byte_perm(w[1][i], w[3][i], 0x7632)};

                mma_half<shape::BF16>(acc[r * 4 + i], f, weight[0]);
                mma_half<shape::BF16>(acc[r * 4 + i], f, weight[1]);
            }
        }
    }
}

template <int FORM, int DIM>
CUDA_INLINE void stream_tile(const struct attend *p, const struct stream_block *b, int32_t tile,
                             const uint8_t *at, const uint2 *q, const float factor[2],
                             const float slope[2], struct stream_state *st,
                             float acc[stream_shape<FORM, DIM>::SUMS][4])
{
    using shape = stream_shape<FORM, DIM>;
    constexpr float FP8 = FORM == STREAM_FP8 ? FP8_HALF_UNIT : 1.0f;
    int lane = (int)threadIdx.x % WARP;
    uint4 side = reinterpret_cast<const uint4 *>(
        at)[(2 * shape::K_LOADS + 4 * shape::V_LOADS) * WARP + lane];
    int32_t row_pos = b->s->pos0;
    int32_t pos[2];
    bool visible[2];
    float v_scale[2];
    uint32_t seen[2];
    float x[4];

    stream_products<FORM, DIM>(at, q, x);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        int32_t slot = tile * STREAM_TILE + lane / 4 * 2 + i;
        float k_scale = shape::CODES ? FP8 * f32_of_f16((uint16_t)(side.z >> (16 * i))) : 1.0f;

        pos[i] = b->s->slot_pos ? (int32_t)(i ? side.y : side.x) : slot;
        pos[i] = slot < b->s->n_slots ? pos[i] : -1;
        visible[i] = kv_visible(pos[i], row_pos, p->window);
        seen[i] = __ballot_sync(ALL_LANES, visible[i]);
        v_scale[i] = shape::CODES && visible[i] ? f32_of_f16((uint16_t)(side.w >> (16 * i))) : 0.0f;
        x[2 * i] *= factor[0] * k_scale;
        x[2 * i + 1] *= factor[1] * k_scale;
    }
    if (p->softcap > 0 || p->alibi_max > 0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = attend_logit(p, x[i], slope[i % 2], pos[i / 2], row_pos);
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
                        tile * STREAM_TILE + lane / 4 * 2;

            if (head < b->n_heads) {
                to[0] = x[h];
                to[1] = x[2 + h];
            }
        }
    }
    stream_weights<shape::SUMS>(st, x, acc);
    if (shape::CODES) {
        stream_scale_values<shape::SUMS>(st, v_scale, x, acc);
    }
    if (!shape::BF16) { /* what is left of a weight after f16 is far from its smallest */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] *= 16384.0f;
        }
    }
    stream_values<FORM, DIM>(at + 2 * shape::K_LOADS * 512, x, seen, acc);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Warps' sums, added in their order, to the chunk's part; or, with one chunk, to the row. */
template <int FORM, int DIM>
CUDA_INLINE void stream_block_merge(const struct attend *p, const struct stream_block *b,
                                    struct stream_state *st,
                                    float acc[stream_shape<FORM, DIM>::SUMS][4], float *memory)
{
    using shape = stream_shape<FORM, DIM>;
    constexpr int HEADS = STREAM_HEADS;
    int32_t v_dim = p->seqs.layout.v_dim;
    int warps = (int)blockDim.x / WARP;
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    float *tops = memory;
    float *sums = tops + warps * HEADS;
    float *values = sums + warps * HEADS;
    float unit = (shape::BF16 ? 1.0f : 1.0f / 16384.0f) *
                 (FORM == STREAM_FP8 ? FP8_HALF_UNIT : 1.0f) * (shape::CODES ? st->unit : 1.0f);

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

        for (int w = 0; w < warps; w++) {
            top = fmaxf(top, tops[w * HEADS + head]);
        }
        factor = st->top[h] > -INFINITY ? expf(st->top[h] - top) * unit : 0.0f;
#pragma unroll
        for (int i = 0; i < shape::SUMS; i += 2) { /* four dims in a row */
            int32_t d =
                (i / (shape::VEC / 2) * 8 + lane / 4) * shape::VEC + i % (shape::VEC / 2) * 2;

            if (head < b->n_heads && d < v_dim) {
                *reinterpret_cast<float4 *>(to + d) =
                    make_float4(acc[i][h] * factor, acc[i][2 + h] * factor, acc[i + 1][h] * factor,
                                acc[i + 1][2 + h] * factor);
            }
        }
    }
    __syncthreads(); /* values: written by all, read by all */
    for (int32_t i = (int32_t)threadIdx.x; i < b->n_heads * (v_dim / 4); i += (int32_t)blockDim.x) {
        int32_t h = i / (v_dim / 4);
        int32_t d = i % (v_dim / 4) * 4;
        int32_t head = b->head0 + h;
        float *part =
            p->part + ((size_t)(b->seq * p->n_q + head) * p->n_chunks + b->chunk) * p->part_len;
        float4 v = make_float4(0, 0, 0, 0);
        float top = -INFINITY;
        float sum = 0;

        for (int w = 0; w < warps; w++) {
            top = fmaxf(top, tops[w * HEADS + h]);
        }
        for (int w = 0; w < warps; w++) {
            float4 a =
                *reinterpret_cast<const float4 *>(values + (w * HEADS + h) * shape::OUT_LEN + d);
            float own = tops[w * HEADS + h];

            sum += own > -INFINITY ? expf(own - top) * sums[w * HEADS + h] : 0.0f;
            v.x += a.x, v.y += a.y, v.z += a.z, v.w += a.w;
        }
        if (b->n_chunks == 1) {
            float *out = p->out + (size_t)b->s->row0 * p->ldo + (size_t)head * v_dim + d;
            float inv = attend_with_sink(p, head, top, sum > 0 ? 1.0f / sum : 0.0f);

            out[0] = v.x * inv, out[1] = v.y * inv, out[2] = v.z * inv, out[3] = v.w * inv;
        } else {
            *reinterpret_cast<float4 *>(part + 4 + d) = v;
            if (d == 0) {
                part[0] = top;
                part[1] = sum;
            }
        }
    }
}

/* By the last block of a row's heads: parts, added in the order of chunks. */
CUDA_INLINE void stream_row_merge(const struct attend *p, const struct stream_block *b,
                                  float *memory)
{
    int32_t v_dim = p->seqs.layout.v_dim;
    int lane = (int)threadIdx.x % WARP;
    float *weights = memory + STREAM_HEADS; /* (heads, chunks) */
    size_t stride = (size_t)p->n_chunks * p->part_len;
    const float *parts = p->part + (size_t)(b->seq * p->n_q + b->head0) * stride;

    for (int32_t h = (int32_t)threadIdx.x / WARP; h < b->n_heads; h += (int32_t)blockDim.x / WARP) {
        const float *part = parts + h * stride;
        float top = -INFINITY;
        float sum = 0;

        for (int32_t c = lane; c < b->n_chunks; c += WARP) {
            top = fmaxf(top, __ldcg(part + (size_t)c * p->part_len));
        }
        top = warp_max(top);
        for (int32_t c = lane; c < b->n_chunks; c += WARP) {
            float own = __ldcg(part + (size_t)c * p->part_len);
            float w = own > -INFINITY ? expf(own - top) : 0.0f;

            weights[h * b->n_chunks + c] = w;
            sum += w * __ldcg(part + (size_t)c * p->part_len + 1);
        }
        sum = warp_sum(sum);
        if (lane == 0) {
            memory[h] = attend_with_sink(p, b->head0 + h, top, sum > 0 ? 1.0f / sum : 0.0f);
        }
    }
    __syncthreads(); /* weights and 1 / sums: written by a warp a head, read by all */
    for (int32_t i = (int32_t)threadIdx.x; i < b->n_heads * (v_dim / 4); i += (int32_t)blockDim.x) {
        int32_t h = i / (v_dim / 4);
        int32_t d = i % (v_dim / 4) * 4;
        const float *part = parts + h * stride + 4 + d;
        float *out = p->out + (size_t)b->s->row0 * p->ldo + (size_t)(b->head0 + h) * v_dim + d;
        float4 v = make_float4(0, 0, 0, 0);

#pragma unroll 8
        for (int32_t c = 0; c < b->n_chunks; c++) {
            float4 a = __ldcg(reinterpret_cast<const float4 *>(part + (size_t)c * p->part_len));
            float w = weights[h * b->n_chunks + c];

            v.x += w * a.x, v.y += w * a.y, v.z += w * a.z, v.w += w * a.w;
        }
        out[0] = v.x * memory[h], out[1] = v.y * memory[h];
        out[2] = v.z * memory[h], out[3] = v.w * memory[h];
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* This block's; false: it has no part. */
CUDA_INLINE bool stream_block_of(const struct attend *p, int32_t aim, int32_t least,
                                 struct stream_block *b)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t share = p->n_q / (l->n_groups * l->k_heads);
    int32_t per_head = (share + STREAM_HEADS - 1) / STREAM_HEADS;
    int32_t k = (int32_t)blockIdx.y / per_head;
    int32_t part = (int32_t)blockIdx.y % per_head;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t chunk;
    int32_t from;
    int32_t to;

    b->seq = (int32_t)blockIdx.z;
    b->s = &p->seqs.s[b->seq];
    chunk = stream_chunk(b->s->n_slots, aim, least);
    b->chunk = (int32_t)blockIdx.x;
    b->n_chunks = stream_chunks(b->s->n_slots, chunk);
    b->head0 = k * share + part * STREAM_HEADS;
    b->n_heads = min((int32_t)STREAM_HEADS, share - part * STREAM_HEADS);
    b->group = k / l->k_heads;
    b->k_head = k % l->k_heads;
    from = b->chunk * chunk;
    to = min(from + chunk, b->s->n_slots);
    b->first_page = from / OPS_PAGE_SLOTS;
    b->page = 0;
    if (b->chunk >= b->n_chunks) {
        return false;
    }
    if (b->first_page + lane < (to + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS) {
        b->page = b->s->pages[(size_t)b->group * b->s->max_pages + b->first_page + lane];
    }
    b->observed = attend_observed(p, b->seq);
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

template <int FORM, int DIM, int STAGES>
CUDA_KERNEL void __launch_bounds__(STREAM_WARPS_MAX *WARP, 1)
    decode_stream(struct attend p, int32_t aim, int32_t least, uint32_t *arrived)
{
    using shape = stream_shape<FORM, DIM>;
    CUDA_SHARED(uint8_t, memory);
    __shared__ bool last;
    int lane = (int)threadIdx.x % WARP;
    int warps = (int)blockDim.x / WARP;
    float *factors = reinterpret_cast<float *>(memory);
    uint2 *q = reinterpret_cast<uint2 *>(memory + STREAM_HEADS * 4);
    uint8_t *rest = memory + shape::q_bytes;
    uint8_t *stage = rest + (int)threadIdx.x / WARP * STAGES * shape::STAGE;
    float acc[shape::SUMS][4] = {};
    struct stream_state st = {{-INFINITY, -INFINITY}, {0, 0}, 5.9604645e-8f}; /* f16's smallest */
    float factor[2] = {1, 1};
    float slope[2] = {0, 0};
    struct stream_block b;

    grid_begin();
    grid_wait();
    if (!stream_block_of(&p, aim, least, &b)) {
        return;
    }
    if (p.seqs.layout.k_row < shape::K_LOADS * 64 || p.seqs.layout.v_row < shape::V_LOADS * 128) {
        stream_clear<FORM, DIM>(&p, STAGES, stage);
    }
#pragma unroll
    for (int i = 0; i < STAGES; i++) {
        if (b.tile + i * warps < b.tile_end) {
            stream_bring<FORM, DIM>(&p, &b, b.tile + i * warps, stage + i * shape::STAGE);
        }
        async_commit();
    }
    stream_queries<FORM, DIM>(&p, &b, q, factors);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        factor[h] = shape::BF16 ? 1.0f : factors[lane % 4 * 2 + h];
        slope[h] = p.alibi_max > 0 ? attend_slope(&p, b.head0 + lane % 4 * 2 + h) : 0.0f;
    }
    for (int32_t tile = b.tile, at = 0; tile < b.tile_end; tile += warps) {
        async_wait<STAGES - 1>(); /* of this lane's copies, which nobody else reads */
        stream_tile<FORM, DIM>(&p, &b, tile, stage + at * shape::STAGE, q, factor, slope, &st, acc);
        if (tile + STAGES * warps < b.tile_end) {
            stream_bring<FORM, DIM>(&p, &b, tile + STAGES * warps, stage + at * shape::STAGE);
        }
        async_commit();
        at = at + 1 < STAGES ? at + 1 : 0;
    }
    stream_block_merge<FORM, DIM>(&p, &b, &st, acc, reinterpret_cast<float *>(rest));
    if (b.n_chunks == 1) {
        return;
    }
    __syncthreads(); /* the part: written by all, before it is counted */
    if (threadIdx.x == 0) {
        uint32_t others = (uint32_t)b.n_chunks - 1;

        __threadfence(); /* the block's part, seen at the barrier, before the count */
        last =
            atomicInc(arrived + b.seq * (int32_t)gridDim.y + (int32_t)blockIdx.y, others) == others;
        __threadfence(); /* what others counted before, before what is read below */
    }
    __syncthreads(); /* last: written by one, read by all */
    if (last) {
        stream_row_merge(&p, &b, reinterpret_cast<float *>(rest));
    }
}

#endif
