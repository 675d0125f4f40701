/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_KV_FOUR_CUH
#define PIPIT_KERNELS_CUDA_KV_FOUR_CUH

/* Caches of four bits: quant/gauss4.h's blocks of 32 in a page, and the latest tokens in 8 bits
 * beside them (kernels/kv_latest.h).
 *
 * A page has the codes of a row in the order of its elements, eight in a word of 32 bits, the
 * scales of its blocks in a panel of their own. A code's upper bit says that its level is positive,
 * the lower three count the levels by size, so that both signs look up one table. Behind the scales
 * of a row zeros fill up 2, 4 or 8: what is copied of 16 slots is whole 16 bytes. */

#include "kernels/cuda/kv.cuh"

enum { FOUR_BLOCK = 32 };

/* Eight codes from gauss4.h's form to the page's, or back. */
CUDA_INLINE uint32_t four_turn(uint32_t codes)
{
    uint32_t negative = ~codes & 0x88888888;

    return codes ^ (negative - (negative >> 3));
}

/* Scales of a slot and head, with those that fill up. */
static inline __host__ __device__ int32_t four_scales(int32_t dim)
{
    return dim <= 64 ? 2 : dim <= 128 ? 4 : 8;
}

/* The scale of elements [8 i, 8 i + 8) of a slot's row: of K, or of V. */
CUDA_INLINE float kv_scale8_k(const struct cuda_layout *l, uint8_t *page, int32_t head,
                              int32_t slot, int32_t i)
{
    return kv_four(l->k_type)
               ? f32_of_f16(kv_scales(page, l->k_scale_at, l->k_scales, head, slot)[i / 4])
               : kv_scale_of(l->k_type, page, l->k_scale_at, head, slot);
}

CUDA_INLINE float kv_scale8_v(const struct cuda_layout *l, uint8_t *page, int32_t head,
                              int32_t slot, int32_t i)
{
    return kv_four(l->v_type)
               ? f32_of_f16(kv_scales(page, l->v_scale_at, l->v_scales, head, slot)[i / 4])
               : kv_scale_of(l->v_type, page, l->v_scale_at, head, slot);
}

/* Levels of eight codes as f16, those of neighbours together. */
CUDA_INLINE void four_levels(uint32_t codes, uint32_t ret[4])
{
    uint32_t sizes = codes & 0x77777777;

#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t at = sizes >> (16 * i);
        uint32_t low = __byte_perm(0x80c08000, 0xf000b040, at);
        uint32_t high = __byte_perm(0x514f4c46, 0x57565453, at);

        /* 64 where the code's upper bit is 0: twice it is the sign */
        high += 2 * byte_perm_signed(0x40404040, 0x40404040, codes >> (16 * i));
        ret[2 * i] = __byte_perm(low, high, 0x5140);
        ret[2 * i + 1] = __byte_perm(low, high, 0x7362);
    }
}

/* What four_halves() gives is to be multiplied by. */
#define FOUR_UNIT (-16777216.0f)

/* Levels of eight codes as f16, by pairs: codes 0 and 2, 1 and 3, 4 and 6, 5 and 7. A level's size
 * is looked up as the lower byte of a number below 2^-14, 2^-24 times it, and the code's upper bit
 * is the sign: so they are level / FOUR_UNIT, exactly. */
CUDA_INLINE void four_halves(uint32_t codes, uint32_t ret[4])
{
    uint32_t at = codes & 0x77777777;
    uint32_t low = byte_perm_signed(FOUR_SIZES_LOW, FOUR_SIZES_HIGH, at);
    uint32_t high = byte_perm_signed(FOUR_SIZES_LOW, FOUR_SIZES_HIGH, at >> 16);
    uint32_t even = codes << 4 & 0x80808080;
    uint32_t odd = codes & 0x80808080;

    ret[0] = __byte_perm(low, even, 0x5240);
    ret[1] = __byte_perm(low, odd, 0x5341);
    ret[2] = __byte_perm(high, even, 0x7260);
    ret[3] = __byte_perm(high, odd, 0x7361);
}

/* ---- encoding ------------------------------------------------------------------------------- */

/* A sum over the 32 values of a block, 4 a lane, in their order; all 8 lanes get it. */
CUDA_INLINE float four_sum(const float x[4])
{
    int lane = (int)threadIdx.x % 8;
    float sum = 0;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        float own = __fadd_rn(__fadd_rn(__fadd_rn(__fadd_rn(sum, x[0]), x[1]), x[2]), x[3]);

        sum = __shfl_sync(ALL_LANES, own, (int)threadIdx.x % WARP - lane + i);
    }
    return sum;
}

/* The level of a code in the page's form. */
CUDA_INLINE float four_level(uint32_t code)
{
    float size = (float)(__byte_perm(FOUR_SIZES_LOW, FOUR_SIZES_HIGH, code & 7) & 0xff);

    return code & 8 ? size : -size;
}

/* Codes of a lane's four values, in the page's form, and the block's squared error: gauss4.c. */
CUDA_INLINE uint32_t four_code(const float x[4], uint16_t scale, float *ret_error)
{
    float s = f32_of_f16(scale);
    float inverse = s > 0 ? 1.0f / s : 0.0f;
    uint32_t codes = 0;
    float error[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = __fmul_rn(x[i], inverse);
        float size = fabsf(v);
        uint32_t n = (size > 12.0f) + (size > 24.5f) + (size > 37.5f) + (size > 51.0f) +
                     (size > 66.5f) + (size > 85.5f) + (size > 111.5f);
        float d;

        n |= v < 0 ? 0 : 8;
        codes |= n << (4 * i);
        d = __fsub_rn(x[i], __fmul_rn(s, four_level(n)));
        error[i] = __fmul_rn(d, d);
    }
    *ret_error = four_sum(error);
    return codes;
}

/* The scale that suits a block's codes best. */
CUDA_INLINE uint16_t four_suited(const float x[4], uint32_t codes)
{
    float product[4];
    float squares = 0;
    float sum;

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float level = four_level(codes >> (4 * i));

        product[i] = __fmul_rn(x[i], level);
        squares += level * level; /* whole numbers: exact */
    }
    for (int m = 1; m < 8; m <<= 1) {
        squares += __shfl_xor_sync(ALL_LANES, squares, m);
    }
    sum = four_sum(product);
    return f16_of_f32(sum > 0 ? sum / squares : 0.0f);
}

/* gauss4_encode() of one head in shared memory to a row of a page, by one warp: 8 lanes a block,
 * lane i of them elements [4 i, 4 i + 4). Sums one after another: kernels that store have few
 * registers left. */
CUDA_INLINE void four_encode(const float *head, int32_t n, uint8_t *row, uint16_t *scales)
{
    int lane = (int)threadIdx.x % WARP;

#pragma unroll 1
    for (int32_t b0 = 0; b0 < n / FOUR_BLOCK; b0 += WARP / 8) {
        int32_t block = b0 + lane / 8;
        bool there = block < n / FOUR_BLOCK;
        float x[4];
        float error = 0;
        float top = 0;
        uint16_t scale = 0;
        uint32_t codes = 0;

#pragma unroll
        for (int i = 0; i < 4; i++) {
            float v = there ? head[block * FOUR_BLOCK + lane % 8 * 4 + i] : 0.0f;

            x[i] = v != v ? 0.0f : fminf(fmaxf(v, -65504.0f), 65504.0f);
            top = fmaxf(top, fabsf(x[i]));
        }
        for (int m = 1; m < 8; m <<= 1) {
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, m));
        }
#pragma unroll 1
        for (int turn = 0; turn < 2; turn++) { /* one copy of the code */
            uint16_t own = turn == 0 ? f16_of_f32(top / 127.0f) : four_suited(x, codes);
            float e;
            uint32_t c = four_code(x, own, &e);

            if (turn == 0 || e < error) {
                scale = own;
                codes = c;
                error = e;
            }
        }
        if (there) {
            reinterpret_cast<uint16_t *>(row)[block * 8 + lane % 8] = (uint16_t)codes;
        }
        if (there && lane % 8 == 0) {
            scales[block] = scale;
        }
    }
    if (lane >= n / FOUR_BLOCK && lane < four_scales(n)) {
        scales[lane] = 0;
    }
}

/* hadamard_head(), the pairs of a pass dealt out to the lanes. */
CUDA_INLINE void hadamard_by_warp(float *head, int32_t n)
{
    const int32_t block = n & -n;
    const float scale = 1.0f / sqrtf((float)block);

    for (int32_t half = block / 2; half > 0; half /= 2) {
        for (int32_t i = (int32_t)threadIdx.x % WARP; i < n / 2; i += WARP) {
            float *a = head + i / half * 2 * half + i % half;
            float x = a[0];
            float y = a[half];

            a[0] = __fadd_rn(x, y);
            a[half] = __fsub_rn(x, y);
        }
        __syncwarp(); /* head: pairs written above, read in another order next */
    }
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < n; i += WARP) {
        head[i] = __fmul_rn(head[i], scale);
    }
    __syncwarp(); /* head: each lane wrote its own, others read them next */
}

/* ---- the latest tokens ---------------------------------------------------------------------- */

CUDA_INLINE int32_t latest_k_bytes(const struct cuda_layout *l)
{
    return kv_four(l->k_type) ? l->k_heads * (l->k_dim + 2) : 0;
}

/* A position's head of K, or of V: codes, then the scale. */
CUDA_INLINE uint8_t *latest_head(const struct cuda_layout *l, const struct cuda_seq *s,
                                 int32_t group, int32_t pos, bool is_k, int32_t head)
{
    int32_t k_bytes = latest_k_bytes(l);
    int32_t bytes = k_bytes + (kv_four(l->v_type) ? l->v_heads * (l->v_dim + 2) : 0);

    return s->latest + (size_t)(group * OPS_LATEST_ENTRIES + pos % OPS_LATEST_ENTRIES) * bytes +
           (is_k ? head * (l->k_dim + 2) : k_bytes + head * (l->v_dim + 2));
}

/* kv_latest_has(). */
CUDA_INLINE bool latest_has(const struct cuda_seq *s, int32_t row_pos, int32_t pos)
{
    return s->latest && pos > row_pos - OPS_LATEST && pos <= row_pos && pos >= s->latest_from;
}

CUDA_INLINE float latest_scale(const uint8_t *entry, int32_t dim)
{
    return f32_of_f16(*reinterpret_cast<const uint16_t *>(entry + dim));
}

/* Elements [8 i, 8 i + 8) of an entry's head, without the scale; entries lie at even bytes. */
CUDA_INLINE void latest_load8(const uint8_t *entry, int32_t i, float ret[KV_VEC])
{
    const uint16_t *from = reinterpret_cast<const uint16_t *>(entry) + i * (KV_VEC / 2);

    for (int j = 0; j < KV_VEC; j++) {
        ret[j] = (float)(int8_t)(from[j / 2] >> (j % 2 * 8));
    }
}

#endif
