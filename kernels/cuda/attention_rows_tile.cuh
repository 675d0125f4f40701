/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_ROWS_TILE_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_ROWS_TILE_CUH

/* What a block of attention_rows.cu holds in shared memory, and how it comes there: queries, a
 * page's K and V of 16 bits, and what is known of its slots. (Codes of 8 and 4 bits:
 * attention_rows_codes.cuh.)
 *
 * Q, K and V are 16-bit elements, in rows of DIM (64, 128 or 256) and 16 bytes more, so that a
 * matrix load meets all banks. What has 16 bits is copied asynchronously. Queries beyond f16's
 * range are divided by a power of two, per row. */

#include "kernels/cuda/attention_rows.cuh"

enum { WARPS = 4, THREADS = WARPS * WARP, SLOTS = OPS_PAGE_SLOTS };

/* What a block reads of a tile beside its elements lies in the 16 bytes that make rows of q longer
 * than the head: with arrays of their own, heads of 256 would not fit the 99 KB of sm_86, 89 and
 * 120. By row of q: */
enum {
    AT_K_SCALE = 0, /* 8 scales each, of slots of K, */
    AT_V_SCALE = 8, /* of V; */
    AT_POS = 16,    /* 4 positions each, -1: no token; where slots are not positions; */
    AT_FLAGS = 32,  /* 2 words: enum tile_flag of half the slots */
};

/* Some row does not see some slot; some holds no token; no row sees any. */
enum tile_flag { PARTLY = 1, DEAD = 2, UNSEEN = 4 };

template <int MT, int DIM> struct tile {
    static const int PAIRS = 16 * MT * WARPS;
    static const int LEN = DIM + 8;
    static const int RAW = DIM > 128 ? 0 : DIM; /* bytes under way of one slot: wide ones are not */

    uint16_t q[PAIRS * LEN];
    uint16_t k[SLOTS * LEN];
    uint16_t v[SLOTS * LEN];
};

/* Behind it where K or V has 8 bits. */
template <int DIM> struct tile_raw {
    uint8_t k[SLOTS * DIM];
    uint8_t v[SLOTS * DIM];
};

template <int MT, int DIM> CUDA_INLINE uint8_t *side(struct tile<MT, DIM> *t, int row)
{
    return reinterpret_cast<uint8_t *>(t->q + (row + 1) * (DIM + 8) - 8);
}

/* What a block keeps of row r of q, in the same bytes of k and v. */
template <int MT, int DIM> CUDA_INLINE float *row_scale(struct tile<MT, DIM> *t, int r)
{
    return reinterpret_cast<float *>(t->k + (r / 4 + 1) * (DIM + 8) - 8) + r % 4;
}

template <int MT, int DIM> CUDA_INLINE float *row_slope(struct tile<MT, DIM> *t, int r)
{
    return reinterpret_cast<float *>(t->k + (r / 4 + 33) * (DIM + 8) - 8) + r % 4;
}

template <int MT, int DIM> CUDA_INLINE int32_t *row_pos(struct tile<MT, DIM> *t, int r)
{
    return reinterpret_cast<int32_t *>(t->v + (r / 4 + 1) * (DIM + 8) - 8) + r % 4;
}

/* Which page slot s0 lies in. */
CUDA_INLINE uint32_t page_of(const struct part *b, int32_t s0)
{
    return b->s->pages[(size_t)b->group * b->s->max_pages + s0 / OPS_PAGE_SLOTS];
}

/* ---- loading -------------------------------------------------------------------------------- */

/* Four elements of a query from d on; what lies beyond is 0. */
CUDA_INLINE float4 load_q4(const float *q, int32_t d, int32_t k_dim, bool aligned)
{
    float4 v = make_float4(0, 0, 0, 0);

    if (aligned && d + 4 <= k_dim) {
        return *reinterpret_cast<const float4 *>(q + d);
    }
    v.x = d < k_dim ? q[d] : 0.0f;
    v.y = d + 1 < k_dim ? q[d + 1] : 0.0f;
    v.z = d + 2 < k_dim ? q[d + 2] : 0.0f;
    v.w = d + 3 < k_dim ? q[d + 3] : 0.0f;
    return v;
}

/* The block's pairs as 16 bits, a warp a row, 4 under way. */
template <bool BF16, int MT, int DIM>
CUDA_INLINE void load_q(const struct attend *p, const struct part *b, bool plain,
                        struct tile<MT, DIM> *t)
{
    enum { N = DIM > 128 ? 2 : 1, AHEAD = 4 };
    int32_t k_dim = p->seqs.layout.k_dim;
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    bool aligned = ((reinterpret_cast<uintptr_t>(p->q) | (uintptr_t)(p->ldq * 4) |
                     (uintptr_t)(k_dim * 4)) & 15) == 0;

    for (int32_t r0 = warp * 16 * MT; r0 < (warp + 1) * 16 * MT; r0 += AHEAD) {
        float4 v[AHEAD][N];

#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int32_t pair = b->pair0 + r0 + i;
            int32_t row = pair / b->set;
            const float *q = p->q + (size_t)(b->s->row0 + row) * p->ldq +
                             (size_t)(b->head0 + pair % b->set) * k_dim;

#pragma unroll
            for (int n = 0; n < N; n++) {
                v[i][n] = row < b->s->n_rows ? load_q4(q, n * 128 + lane * 4, k_dim, aligned)
                                             : make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float factor = 1.0f;
            float top = 0.0f;
            float inv;

#pragma unroll
            for (int n = 0; n < N && !BF16; n++) {
                top = fmaxf(top, fmaxf(fmaxf(fabsf(v[i][n].x), fabsf(v[i][n].y)),
                                       fmaxf(fabsf(v[i][n].z), fabsf(v[i][n].w))));
            }
            top = BF16 ? 0.0f : warp_max(top);
            if (top > 32768.0f && top < INFINITY) { /* to below 2^15 */
                factor = __uint_as_float(((__float_as_uint(top) >> 23) - 14) << 23);
            }
            inv = 1.0f / factor;
#pragma unroll
            for (int n = 0; n < N; n++) {
                int32_t d = n * 128 + lane * 4;

                if (d < DIM) {
                    *reinterpret_cast<uint2 *>(t->q + (r0 + i) * t->LEN + d) =
                        make_uint2(half2_of_f32<BF16>(v[i][n].x * inv, v[i][n].y * inv),
                                   half2_of_f32<BF16>(v[i][n].z * inv, v[i][n].w * inv));
                }
            }
            if (lane == 0) {
                int32_t pair = b->pair0 + r0 + i;

                *row_scale(t, r0 + i) = p->scale * factor * (plain ? LOG2E : 1.0f);
                if (!plain) {
                    *row_slope(t, r0 + i) = attend_slope(p, b->head0 + pair % b->set);
                }
                *row_pos(t, r0 + i) = b->s->pos0 + pair / b->set;
            }
        }
    }
}

/* Columns of k beyond the head, which no copy writes. */
template <int MT, int DIM>
CUDA_INLINE void clear_k(const struct attend *p, struct tile<MT, DIM> *t)
{
    int32_t n_vec = (p->seqs.layout.k_dim + KV_VEC - 1) / KV_VEC;

    for (int32_t r = (int32_t)threadIdx.x / 8; r < SLOTS; r += THREADS / 8) {
        for (int32_t vec = n_vec + (int32_t)threadIdx.x % 8; vec < DIM / KV_VEC; vec += 8) {
            *reinterpret_cast<uint4 *>(t->k + r * t->LEN + vec * KV_VEC) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* Positions, where slots are none, and scales of the tile at s0. Asynchronous in part. */
template <int MT, int DIM>
CUDA_INLINE void load_side(const struct attend *p, const struct part *b, int32_t s0, uint32_t page,
                           struct tile<MT, DIM> *t)
{
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t i = tid;

    if (b->s->slot_pos && i < SLOTS) { /* two warps */
        int32_t pos = s0 + i < b->s->n_slots ? kv_pos(b->s, b->group, s0 + i) : -1;
        bool partly = !kv_visible(pos, b->first_pos, 0) ||
                      !kv_visible(pos, b->last_pos, p->window);
        uint32_t flags = (__any_sync(ALL_LANES, partly) ? (uint32_t)PARTLY : 0) |
                         (__any_sync(ALL_LANES, pos < 0) ? (uint32_t)DEAD : 0);

        reinterpret_cast<int32_t *>(side(t, AT_POS + i / 4))[i % 4] = pos;
        if (i % WARP == 0) {
            reinterpret_cast<uint32_t *>(side(t, AT_FLAGS))[i / WARP] = flags;
        }
    }
    if (kv_has_scale(l->k_type) && i < SLOTS / 8) {
        async_copy16(side(t, AT_K_SCALE + i),
                     kv_scale(page_at(p, b, page), l->k_scale_at, b->k_head, i * 8));
    }
    if (kv_has_scale(l->v_type) && i >= SLOTS / 8 && i < SLOTS / 4) {
        async_copy16(side(t, AT_V_SCALE + i - SLOTS / 8),
                     kv_scale(page_at(p, b, page), l->v_scale_at, b->v_head, (i - SLOTS / 8) * 8));
    }
}

/* enum tile_flag of what a warp with rows at [first_pos, last_pos] sees of the tile at s0. */
template <int MT, int DIM>
CUDA_INLINE uint32_t flags_of(const struct attend *p, const struct part *b, int32_t s0,
                              int32_t first_pos, int32_t last_pos, struct tile<MT, DIM> *t)
{
    if (b->s->slot_pos) {
        const uint32_t *flags = reinterpret_cast<const uint32_t *>(side(t, AT_FLAGS));

        return flags[0] | flags[1];
    }
    return (s0 + SLOTS - 1 > first_pos || (p->window > 0 && s0 <= last_pos - p->window)
                ? (uint32_t)PARTLY
                : 0) |
           (s0 + SLOTS > b->s->n_slots ? (uint32_t)(PARTLY | DEAD) : 0) |
           (attend_unseen(p, b->s, s0, SLOTS, first_pos, last_pos) ? (uint32_t)UNSEEN : 0);
}

template <int MT, int DIM>
CUDA_INLINE int32_t pos_of(const struct part *b, int32_t s0, int32_t i, struct tile<MT, DIM> *t)
{
    return b->s->slot_pos          ? reinterpret_cast<int32_t *>(side(t, AT_POS + i / 4))[i % 4]
           : s0 + i < b->s->n_slots ? s0 + i
                                    : -1;
}

/* Rows of 16 bits of one head of a page. Of V those that hold no token become 0; of K they are what
 * they are, for their logits are not used. */
template <bool IS_K, int MT, int DIM>
CUDA_INLINE void copy_rows(const struct attend *p, const struct part *b, int32_t s0, uint32_t page,
                           bool dead, struct tile<MT, DIM> *t)
{
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    const uint8_t *from = head_of<IS_K>(p, b, page);
    int32_t row_bytes = (int32_t)(IS_K ? l->k_row : l->v_row);
    int32_t r0 = tid / 8;
    int32_t at = tid % 8 * 16;
    uint8_t *to = reinterpret_cast<uint8_t *>(IS_K ? t->k : t->v) + r0 * (2 * t->LEN) + at;

    from += r0 * row_bytes + at;
#pragma unroll
    for (int i = 0; i < SLOTS / (THREADS / 8); i++) {
        int32_t r = r0 + i * (THREADS / 8);

#pragma unroll
        for (int32_t d = 0; d < DIM * 2; d += 128) {
            if (at + d < row_bytes) {
                uint8_t *x = to + i * (THREADS / 8) * (2 * t->LEN) + d;

                if (!IS_K && dead && pos_of(b, s0, r, t) < 0) {
                    *reinterpret_cast<uint4 *>(x) = make_uint4(0, 0, 0, 0);
                } else {
                    async_copy16(x, from + d);
                }
            }
        }
        from += THREADS / 8 * row_bytes;
    }
}

#endif
