/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows on tensor cores; caches of 16 and 8 bits. (Those of 32 bits:
 * attention_prefill.cu; what a policy observes: attention_observe.cu.)
 *
 * Query heads that share a K head and a V head are one set, and (row, head) a pair of it: pair i is
 * row i / set, head i % set. A block has 64 or 128 consecutive pairs of one set, a warp 16 or 32 of
 * them (MT matrices of 16), over all slots in tiles of a page, softmax as it goes. So K and V are
 * read once for all heads of a set, and few tiles are seen by some of a block's rows only.
 *
 * Q, K and V lie in shared memory as 16-bit elements, in rows of DIM (64, 128 or 256) and 16 bytes
 * more, so that a matrix load meets all banks. What has 16 bits is copied asynchronously: a tile's
 * values while its logits are formed, the next tile's keys while values are summed. What has 8 is
 * copied as it is, a tile ahead, and widened by the thread that copied it; what has 4 likewise, and
 * times its scale.
 *
 * Inside a tile that all rows of a warp see whole no position is looked at. The largest logit of a
 * row, what its sums are relative to, follows only where it grows by more than 2^8: else nothing is
 * multiplied again. Sums of e^x stay apart in a row's 4 lanes until the end.
 *
 * Precision: queries and probabilities have the 16-bit type that keys and values have; 8-bit caches
 * go as f16: the codes of K exactly, their scales applied to the logits; those of V times their
 * scale, rounded once. Sums are f32. Queries beyond f16's range are divided by a power of two, per
 * row.
 *
 * A row's bits depend on no other row, nor on MT: each is computed alike wherever it lies. Blocks
 * with the most tiles start first. */

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

/* Are codes copied a tile ahead? Else they are read when they are needed. */
template <int DIM> CUDA_INLINE bool ahead(int32_t dim)
{
    return DIM <= 128 && dim % 16 == 0;
}

/* Rows of four bits as they are: a thread's pieces are 16 bytes, a block, and the block's scale,
 * which lies with its neighbour's behind the row's codes. */
template <bool IS_K, int DIM>
CUDA_INLINE void copy_four(const struct attend *p, const struct part *b, uint32_t page,
                           uint8_t *raw)
{
    enum { PIECES = DIM / FOUR_BLOCK };
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    const uint8_t *from = head_of<IS_K>(p, b, page);
    int32_t row_bytes = (int32_t)(IS_K ? l->k_row : l->v_row);
    int32_t n_scales = IS_K ? l->k_scales : l->v_scales;
    const uint16_t *scales = kv_scales(page_at(p, b, page), IS_K ? l->k_scale_at : l->v_scale_at,
                                       n_scales, IS_K ? b->k_head : b->v_head, 0);
    int32_t piece = tid % PIECES;

#pragma unroll
    for (int i = 0; i < SLOTS * PIECES / THREADS; i++) {
        int32_t r = tid / PIECES + i * (THREADS / PIECES);

        if (piece * 16 < row_bytes) {
            async_copy16(raw + r * DIM + piece * 16, from + r * row_bytes + piece * 16);
            async_copy4(raw + r * DIM + DIM / 2 + piece * 4, scales + r * n_scales + piece / 2 * 2);
        }
    }
}

/* The same of 8 bits as they are; of all rows. FOUR: or of four bits. */
template <bool FOUR, bool IS_K, int DIM>
CUDA_INLINE void copy_codes(const struct attend *p, const struct part *b, uint32_t page,
                            uint8_t *raw)
{
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    const uint8_t *from = head_of<IS_K>(p, b, page);
    int32_t row_bytes = (int32_t)(IS_K ? l->k_row : l->v_row);
    int32_t r0 = tid / 8;
    int32_t at = tid % 8 * 16;

    if (FOUR && kv_four(IS_K ? l->k_type : l->v_type)) {
        if constexpr (DIM <= 128) {
            copy_four<IS_K, DIM>(p, b, page, raw);
        }
        return;
    }
    if (!ahead<DIM>(row_bytes) || at >= row_bytes) {
        return;
    }
#pragma unroll
    for (int i = 0; i < SLOTS / (THREADS / 8); i++) {
        int32_t r = r0 + i * (THREADS / 8);

        async_copy16(raw + r * DIM + at, from + r * row_bytes + at);
    }
}

/* What copy_four() brought, times the scales. */
template <bool IS_K, int MT, int DIM>
CUDA_INLINE void widen_four(const struct attend *p, const struct part *b, int32_t s0,
                            uint32_t page, const uint8_t *raw, bool dead, struct tile<MT, DIM> *t)
{
    enum { PIECES = DIM / FOUR_BLOCK };
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    const uint8_t *from = head_of<IS_K>(p, b, page);
    int32_t row_bytes = (int32_t)(IS_K ? l->k_row : l->v_row);
    int32_t n_scales = IS_K ? l->k_scales : l->v_scales;
    const uint16_t *scales = kv_scales(page_at(p, b, page), IS_K ? l->k_scale_at : l->v_scale_at,
                                       n_scales, IS_K ? b->k_head : b->v_head, 0);
    int32_t piece = tid % PIECES;
    uint16_t *to = (IS_K ? t->k : t->v) + piece * FOUR_BLOCK;

    if (piece * 16 >= row_bytes) {
        return;
    }
#pragma unroll 1
    for (int i = 0; i < SLOTS * PIECES / THREADS; i++) {
        int32_t r = tid / PIECES + i * (THREADS / PIECES);
        bool gone = !IS_K && dead && pos_of(b, s0, r, t) < 0;
        uint16_t scale = 0;
        uint4 codes;

        if (DIM <= 128) {
            codes = *reinterpret_cast<const uint4 *>(raw + r * DIM + piece * 16);
            scale = reinterpret_cast<const uint16_t *>(raw + r * DIM + DIM / 2 +
                                                       piece * 4)[piece % 2];
        } else {
            codes = *reinterpret_cast<const uint4 *>(from + (size_t)r * row_bytes + piece * 16);
            scale = scales[r * n_scales + piece];
        }
        scale = gone ? 0 : scale;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t w[4];

            four_levels(j == 0 ? codes.x : j == 1 ? codes.y : j == 2 ? codes.z : codes.w, w);
            *reinterpret_cast<uint4 *>(to + r * t->LEN + j * 8) =
                make_uint4(half2_times(w[0], scale), half2_times(w[1], scale),
                           half2_times(w[2], scale), half2_times(w[3], scale));
        }
    }
}

template <bool FOUR, bool IS_K, int MT, int DIM>
CUDA_INLINE void widen(const struct attend *p, const struct part *b, int32_t s0, uint32_t page,
                       const uint8_t *raw, bool dead, struct tile<MT, DIM> *t)
{
    int tid = thread_anew();
    const struct cuda_layout *l = &p->seqs.layout;
    const uint8_t *from = head_of<IS_K>(p, b, page);
    int32_t type = IS_K ? l->k_type : l->v_type;
    int32_t row_bytes = (int32_t)(IS_K ? l->k_row : l->v_row);
    int32_t r0 = tid / 8;
    int32_t at = tid % 8;
    uint16_t *to = IS_K ? t->k : t->v;

    if (FOUR && kv_four(type)) {
        widen_four<IS_K>(p, b, s0, page, raw, dead, t);
        return;
    }
#pragma unroll(DIM > 128 ? 1 : 4)
    for (int i = 0; i < SLOTS / (THREADS / 8); i++) {
        int32_t r = r0 + i * (THREADS / 8);
        bool gone = !IS_K && dead && pos_of(b, s0, r, t) < 0;
        uint16_t scale = IS_K || gone ? 0
                                      : reinterpret_cast<uint16_t *>(
                                            side(t, AT_V_SCALE + r / 8))[r % 8];

        if (ahead<DIM>(row_bytes)) {
            if (at * 16 < row_bytes) {
                uint4 c = *reinterpret_cast<const uint4 *>(raw + r * DIM + at * 16);
                uint4 x = widen8<IS_K>(type, c.x, c.y, scale);
                uint4 y = widen8<IS_K>(type, c.z, c.w, scale);
                bool turned = at & 4; /* so that 8 lanes meet all banks */
                uint4 *row = reinterpret_cast<uint4 *>(to + r * t->LEN + at * 16);

                row[turned] = turned ? y : x;
                row[!turned] = turned ? x : y;
            }
        } else {
            for (int32_t d = at * KV_VEC; d < row_bytes; d += 64) {
                uint2 c = *reinterpret_cast<const uint2 *>(from + (size_t)r * row_bytes + d);

                *reinterpret_cast<uint4 *>(to + r * t->LEN + d) =
                    widen8<IS_K>(type, c.x, c.y, scale);
            }
        }
    }
}

/* ---- one tile ------------------------------------------------------------------------------- */

/* x[m][j][i]: the warp's row 16 m + g (i < 2) or + 8, slot 8 j + 2t + i % 2. */
template <bool BF16, int MT, int DIM>
CUDA_INLINE void products(const struct tile<MT, DIM> *t, float x[MT][8][4])
{
    int tid = thread_anew();
    int warp = tid / WARP;
    int lane = tid % WARP;
    const uint16_t *q = t->q + (warp * 16 * MT + lane % 16) * t->LEN + lane / 16 * 8;
    const uint16_t *k = t->k + (lane % 8 + lane / 16 * 8) * t->LEN + lane / 8 % 2 * 8;

#pragma unroll
    for (int i = 0; i < MT * 32; i++) {
        x[i / 32][i / 4 % 8][i % 4] = 0.0f;
    }
#pragma unroll(DIM > 128 ? 4 : DIM / 16)
    for (int d = 0; d < DIM; d += 16) {
        uint32_t a[MT][4];

#pragma unroll
        for (int m = 0; m < MT; m++) {
            matrix_load4<false>(q + m * 16 * t->LEN + d, a[m]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];

            matrix_load4<false>(k + j * 16 * t->LEN + d, b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_half<BF16>(x[m][2 * j], a[m], b);
                mma_half<BF16>(x[m][2 * j + 1], a[m], b + 2);
            }
        }
    }
}

/* acc += probabilities (16 MT x 64, one warp) times the tile's values. */
template <bool BF16, int MT, int DIM>
CUDA_INLINE void add_values(const struct tile<MT, DIM> *t, const uint32_t e[MT][8][2],
                            float acc[MT][DIM / 8][4])
{
    int lane = thread_anew() % WARP;
    const uint16_t *v = t->v + lane % 16 * t->LEN + lane / 16 * 8;

#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];

            matrix_load4<true>(v + j * 16 * t->LEN + n * 16, b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t a[4] = {e[m][2 * j][0], e[m][2 * j][1], e[m][2 * j + 1][0],
                                 e[m][2 * j + 1][1]};

                mma_half<BF16>(acc[m][2 * n], a, b);
                mma_half<BF16>(acc[m][2 * n + 1], a, b + 2);
            }
        }
    }
}

/* From products to logits; those of what is not seen become -INFINITY. */
template <int MT, int DIM>
CUDA_INLINE void to_logits(const struct attend *p, const struct part *b, int32_t s0, bool plain,
                           bool partly, struct tile<MT, DIM> *t, float x[MT][8][4])
{
    int tid = thread_anew();
    int own = tid / WARP * 16 * MT + tid % WARP / 4;
    int pair = tid % 4 * 2;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (kv_has_scale(p->seqs.layout.k_type)) {
            const uint16_t *scale = reinterpret_cast<const uint16_t *>(side(t, j)) + pair;
            float s[2] = {f32_of_f16(scale[0]), f32_of_f16(scale[1])};

#pragma unroll
            for (int i = 0; i < MT * 4; i++) {
                x[i / 4][j][i % 4] *= s[i % 2];
            }
        }
        if (!plain || partly) {
            int32_t pos[2] = {pos_of(b, s0, j * 8 + pair, t), pos_of(b, s0, j * 8 + pair + 1, t)};

#pragma unroll
            for (int i = 0; i < MT * 4; i++) {
                int row = own + i / 2 * 8;
                int32_t at = *row_pos(t, row);
                float *y = &x[i / 4][j][i % 4];

                if (!kv_visible(pos[i % 2], at, p->window)) {
                    *y = -INFINITY;
                } else if (!plain) {
                    *y *= *row_scale(t, row);
                    *y -= *row_slope(t, row) * (float)(at - pos[i % 2]);
                    *y = (p->softcap > 0 ? p->softcap * tanhf(*y / p->softcap) : *y) * LOG2E;
                }
            }
        }
    }
}

/* e: 2^(x - top) in 16 bits, of row 16 m + g + 8 h slots 8 j + 2t and the next; sums so far follow
 * where a row's top does. */
template <bool KB, bool VB, int MT, int DIM>
CUDA_INLINE void softmax(const struct attend *p, bool plain, struct tile<MT, DIM> *t,
                         const float x[MT][8][4], struct running run[MT][2],
                         float acc[MT][DIM / 8][4], uint32_t e[MT][8][2])
{
    int tid = thread_anew();
    int own = tid / WARP * 16 * MT + tid % WARP / 4;

#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int m = i / 2;
        int h = i % 2;
        float c = !plain ? 1.0f : KB ? p->scale * LOG2E : *row_scale(t, own + i * 8);
        float top = x[m][0][h * 2];
        float old = run[m][h].top;
        float sum = 0;

#pragma unroll
        for (int k = 1; k < 16; k++) {
            top = fmaxf(top, x[m][k / 2][h * 2 + k % 2]);
        }
        top = fminf(quad_max(top) * c, 1e30f);
        top = top > old + 8.0f ? top : old;
        if (__any_sync(ALL_LANES, top != old)) {
            float factor = top == old ? 1.0f : exp2_about(old - top); /* top is finite then */

#pragma unroll
            for (int n = 0; n < DIM / 4; n++) {
                acc[m][n / 2][h * 2 + n % 2] *= factor;
            }
            run[m][h] = {top, run[m][h].sum * factor};
        }
        top = top > -INFINITY ? top : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float lo = exp2_about(fmaf(x[m][j][h * 2], c, -top));
            float hi = exp2_about(fmaf(x[m][j][h * 2 + 1], c, -top));

            sum += lo;
            sum += hi;
            e[m][j][h] = half2_of_f32<VB>(lo, hi);
        }
        run[m][h].sum += sum;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int MT, int DIM>
CUDA_INLINE void write_out(const struct attend *p, const struct part *b,
                           const struct running run[MT][2],
                           float acc[MT][DIM / 8][4])
{
    int32_t v_dim = p->seqs.layout.v_dim;
    bool aligned = ((reinterpret_cast<uintptr_t>(p->out) | (uintptr_t)(p->ldo * 4) |
                     (uintptr_t)(v_dim * 4)) & 7) == 0;

#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int tid = thread_anew();
        int lane = tid % WARP;
        int m = i / 2;
        int h = i % 2;
        int32_t pair = b->pair0 + tid / WARP * 16 * MT + m * 16 + h * 8 + lane / 4;
        int32_t row = pair / b->set;
        int32_t head = b->head0 + pair % b->set;
        float sum = quad_sum(run[m][h].sum);
        float *out = p->out + (size_t)(b->s->row0 + row) * p->ldo + (size_t)head * v_dim;
        float inv;

        if (row >= b->s->n_rows) {
            continue;
        }
        leave_sums(p, b, row, head, run[m][h].top, sum);
        if (p->sinks && sum > 0) {
            sum += exp2f(p->sinks[head] * LOG2E - run[m][h].top);
        }
        inv = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            int32_t d = n * 8 + lane % 4 * 2;
            /* -0 becomes 0: tiles left out add none */
            float2 y = make_float2(acc[m][n][h * 2] * inv + 0.0f,
                                   acc[m][n][h * 2 + 1] * inv + 0.0f);

            if (aligned && d < v_dim) {
                *reinterpret_cast<float2 *>(out + d) = y;
            } else if (d < v_dim) {
                out[d] = y.x;
                if (d + 1 < v_dim) {
                    out[d + 1] = y.y;
                }
            }
        }
    }
}

/* FOUR: V has four bits, K as many or 8. */
template <bool KB, bool VB, int MT, int DIM, bool FOUR>
CUDA_KERNEL void __launch_bounds__(THREADS, MT == 1 && DIM <= 128 ? 3 : 2)
    prefill_mma(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    struct tile<MT, DIM> *t = reinterpret_cast<struct tile<MT, DIM> *>(memory);
    struct tile_raw<DIM> *raw = reinterpret_cast<struct tile_raw<DIM> *>(memory + sizeof(*t));
    const struct cuda_layout *l = &p.seqs.layout;
    bool k_codes = FOUR || kv_has_scale(l->k_type);
    bool v_codes = FOUR || (!VB && kv_has_scale(l->v_type));
    bool plain = p.scale > 0 && p.softcap <= 0 && p.alibi_max <= 0;
    struct running run[MT][2];
    struct part b;
    float acc[MT][DIM / 8][4] = {};
    uint32_t page = 0;
    int32_t s0;

    if (!part_of(&p, t->PAIRS, &b)) {
        return;
    }
    s0 = next_tile<SLOTS>(&p, &b, 0);
    if (s0 < b.s->n_slots) {
        page = page_of(&b, s0);
        if (!k_codes) {
            copy_rows<true>(&p, &b, s0, page, false, t);
        } else {
            copy_codes<FOUR, true, DIM>(&p, &b, page, raw->k);
        }
        if (v_codes) {
            copy_codes<FOUR, false, DIM>(&p, &b, page, raw->v);
        }
        load_side(&p, &b, s0, page, t);
        async_commit();
    }
    clear_k(&p, t);
    load_q<KB>(&p, &b, plain, t);
    for (int i = 0; i < MT * 2; i++) {
        run[i / 2][i % 2] = {-INFINITY, 0.0f};
    }
    while (s0 < b.s->n_slots) {
        int32_t next = next_tile<SLOTS>(&p, &b, s0 + SLOTS);
        bool more = next < b.s->n_slots;
        uint32_t next_page = more ? page_of(&b, next) : 0;
        uint32_t e[MT][8][2];
        uint32_t flags;

        async_wait<0>();
        if (k_codes) {
            widen<FOUR, true>(&p, &b, s0, page, raw->k, false, t);
            if (more) {
                copy_codes<FOUR, true, DIM>(&p, &b, next_page, raw->k);
                async_commit();
            }
        }
        __syncthreads(); /* k, side: written by all, read by all; v: read by all */
        {
            int own = thread_anew() / WARP * 16 * MT; /* the warp's rows */
            int32_t first_pos = min(*row_pos(t, own), b.last_pos);
            int32_t last_pos = min(*row_pos(t, own + 16 * MT - 1), b.last_pos);

            flags = flags_of(&p, &b, s0, first_pos, last_pos, t);
        }
        if (!v_codes) {
            copy_rows<false>(&p, &b, s0, page, flags & DEAD, t);
            async_commit();
        }
        if (!(flags & UNSEEN)) {
            float x[MT][8][4];

            products<KB, MT, DIM>(t, x);
            if (k_codes || !plain || (flags & PARTLY)) {
                to_logits<MT, DIM>(&p, &b, s0, plain, flags & PARTLY, t, x);
            }
            softmax<KB, VB, MT, DIM>(&p, plain, t, x, run, acc, e);
        }
        if (v_codes) {
            widen<FOUR, false>(&p, &b, s0, page, raw->v, flags & DEAD, t);
            if (more) {
                copy_codes<FOUR, false, DIM>(&p, &b, next_page, raw->v);
                async_commit();
            }
        } else {
            async_wait<0>();
        }
        __syncthreads(); /* v: written by all, read by all; k, side: read by all */
        if (more) {
            if (!k_codes) {
                copy_rows<true>(&p, &b, next, next_page, false, t);
            }
            load_side(&p, &b, next, next_page, t);
            async_commit();
        }
        if (!(flags & UNSEEN)) {
            add_values<VB, MT, DIM>(t, e, acc);
        }
        page = next_page;
        s0 = next;
    }
    write_out<MT, DIM>(&p, &b, run, acc);
}

/* ---- launches ------------------------------------------------------------------------------- */

template <bool KB, bool VB, int MT, int DIM, bool FOUR = false>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows)
{
    const struct cuda_layout *l = &p->seqs.layout;
    dim3 grid = grid_of_parts(p, rows, 16 * MT * WARPS);
    bool raw = DIM <= 128 && (FOUR || kv_has_scale(l->k_type) || kv_has_scale(l->v_type));
    size_t shared = sizeof(struct tile<MT, DIM>) + (raw ? sizeof(struct tile_raw<DIM>) : 0);

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, (prefill_mma<KB, VB, MT, DIM, FOUR>), *p);
    return cuda_launched(cu, "prefill_mma");
}

/* Of blocks of 64 pairs there are twice as many: where those of 128 would leave multiprocessors
 * without. */
template <bool B, int DIM, bool FOUR>
static int launch_rows(struct cuda *cu, const struct attend *p, int32_t rows)
{
    uint64_t pairs = (uint64_t)rows * p->n_q * p->seqs.n;

    return pairs >= (uint64_t)cu->n_sms * 128 ? launch<B, B, 2, DIM, FOUR>(cu, p, rows)
                                              : launch<B, B, 1, DIM, FOUR>(cu, p, rows);
}

template <bool B, bool FOUR = false>
static int launch_alike(struct cuda *cu, const struct attend *p, int32_t rows)
{
    int32_t dim = max(p->seqs.layout.k_dim, p->seqs.layout.v_dim);

    return dim <= 64    ? launch_rows<B, 64, FOUR>(cu, p, rows)
           : dim <= 128 ? launch_rows<B, 128, FOUR>(cu, p, rows)
                        : launch<B, B, 1, 256, FOUR>(cu, p, rows);
}

int cuda_attend_rows(struct cuda *cu, const struct attend *p, int32_t rows)
{
    bool kb = p->seqs.layout.k_type == OPS_KV_BF16;
    bool vb = p->seqs.layout.v_type == OPS_KV_BF16;

    return kv_four(p->seqs.layout.v_type) ? launch_alike<false, true>(cu, p, rows)
           : kb && vb                     ? launch_alike<true>(cu, p, rows)
           : kb                           ? launch<true, false, 1, 256>(cu, p, rows)
           : vb                           ? launch<false, true, 1, 256>(cu, p, rows)
                                          : launch_alike<false>(cu, p, rows);
}
