/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_ROWS_CODES_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_ROWS_CODES_CUH

/* Pages of 8 and 4 bits on their way into a tile of 16 (attention_rows_tile.cuh). Codes are copied
 * as they are, a tile ahead, and widened by the thread that copied them; those of 4 bits times
 * their scale. Heads of more than 128, and rows that are no whole pieces of 16 bytes, are read when
 * they are needed. */

#include "kernels/cuda/attention_rows_tile.cuh"

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

#endif
