/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_GEMM_CUH
#define PIPIT_KERNELS_CUDA_GEMM_CUH

/* What the matrix kernels share: their parameters, and how a sum becomes an output.
 *
 * Weights are the matrix instruction's A (16 rows), tokens its B (8 columns). Two shapes of kernel:
 *   stream  for decode rows and the output head: a block of 8 warps takes 16 rows; the warps share
 *           out the columns of the weight, sums are added in warp order. Which warp adds what
 *           follows from the number of columns alone, so a token's bits do not depend on its company.
 *   tiles   for prefill rows: a block takes 128 rows (64 of a gated pair) and 64 tokens; each sum
 *           runs over all columns in order. */

#include "kernels/cuda/cuda.cuh"

enum { GEMM_THREADS = 256, GEMM_WARPS = 8, GEMM_TOKENS = 64 /* of a tile */ };

enum gemm_form { GEMM_F32, GEMM_Q8, GEMM_F16, GEMM_BF16 };

struct gemm_part {
    const uint8_t *w;
    const float *bias;
    float *y;
    int32_t ldy;
    int32_t n_rows;
    int32_t act;
    float scale;
    float bias_scale;
    int32_t end; /* first block of the next part */
};

struct gemm {
    const float *xf;    /* (n, ldx) */
    const uint8_t *xq;  /* (2, max_rows, pad) */
    const float *xd;    /* (n, pad / 32) */
    const float *xs;
    const uint16_t *xh; /* (2, max_rows, pad): pieces; of prefill rows there is one */
    const float *xe;    /* (n): factors of sums; of codes NULL: 1, or what `squares` give */
    const float *squares; /* of codes that the kernel ahead made of a normed row (codes.cuh) */
    float eps;            /* that norm's */
    uint64_t piece;     /* elements from one piece of xq or xh to the next */
    int32_t pad;        /* n_cols rounded up to 256 */
    int32_t ldx;
    int32_t n_cols;
    int32_t pitch; /* bytes of a row of a plain weight */
    int32_t token0;
    int32_t token_end;
    int32_t n_parts;
    bool gated;
    bool add;
    struct gemm_part part[OPS_MATMUL_MAX_PARTS];
};

CUDA_INLINE float gemm_act(int32_t act, float x)
{
    switch (act) {
    case OPS_ACT_SILU:
        return x / (1.0f + expf(-x));
    case OPS_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
    case OPS_ACT_GELU_ERF:
        return 0.5f * x * (1.0f + erff(x * 0.70710678f));
    case OPS_ACT_RELU:
        return x > 0 ? x : 0.0f;
    case OPS_ACT_RELU_SQ:
        return x > 0 ? x * x : 0.0f;
    case OPS_ACT_SWIGLU_OAI:
        x = x > 7.0f ? 7.0f : x;
        return x / (1.0f + expf(-1.702f * x));
    default:
        return x;
    }
}

/* What an activated gate is multiplied by. */
CUDA_INLINE float gemm_up(int32_t act, float up)
{
    if (act != OPS_ACT_SWIGLU_OAI) {
        return up;
    }
    up = up > 7.0f ? 7.0f : up;
    return (up < -7.0f ? -7.0f : up) + 1.0f;
}

CUDA_INLINE float gemm_biased(const struct gemm_part *part, int32_t row, float sum)
{
    sum *= part->scale;
    return part->bias ? sum + part->bias_scale * part->bias[row] : sum;
}

/* Both return what they wrote. */
CUDA_INLINE float gemm_finish(const struct gemm *p, int part, int32_t row, int32_t token, float sum)
{
    const struct gemm_part *to = &p->part[part];
    float *y = to->y + (size_t)token * to->ldy + row;
    float v = gemm_act(to->act, gemm_biased(to, row, sum));

    v = p->add ? *y + v : v;
    *y = v;
    return v;
}

CUDA_INLINE float gemm_gated(const struct gemm *p, int32_t row, float gate, float up)
{
    const struct gemm_part *to = &p->part[0];

    return gemm_act(to->act, gemm_biased(to, row, gate)) *
           gemm_up(to->act, gemm_biased(&p->part[1], row, up));
}

CUDA_INLINE float gemm_finish_gated(const struct gemm *p, int32_t row, int32_t token, float gate,
                                    float up)
{
    const struct gemm_part *to = &p->part[0];
    float v = gemm_gated(p, row, gate, up);

    to->y[(size_t)token * to->ldy + row] = v;
    return v;
}

/* Which part a block belongs to; *block becomes its number within the part. */
CUDA_INLINE int gemm_part_of(const struct gemm *p, int32_t *block)
{
    int part = 0;

    while (*block >= p->part[part].end) {
        part++;
    }
    *block -= part > 0 ? p->part[part - 1].end : 0;
    return part;
}

/* The block's tiles: of a gated pair, tile 2i of the gate and 2i + 1 of the up projection are the
 * same 16 rows. */
struct share {
    int32_t begin, end;
    int32_t group; /* at once */
};

/* most: tiles at once; of a gated pair even. */
CUDA_INLINE struct share share_of(const struct gemm &p, int32_t most)
{
    int32_t each = p.gated ? 2 : 1;
    int64_t n = p.part[p.gated ? 0 : p.n_parts - 1].end;
    int32_t begin = (int32_t)((int64_t)blockIdx.x * n / (int32_t)gridDim.x);
    int32_t end = (int32_t)(((int64_t)blockIdx.x + 1) * n / (int32_t)gridDim.x);
    int32_t groups = (end - begin + most / each - 1) / (most / each);

    return {begin * each, end * each, (end - begin + groups - 1) / groups * each};
}

CUDA_INLINE int part_of_tile(const struct gemm &p, int32_t tile, int32_t *ret_row0)
{
    int32_t block = p.gated ? tile / 2 : tile;
    int part = p.gated ? tile % 2 : gemm_part_of(&p, &block);

    *ret_row0 = block * 16;
    return part;
}

/* 32 columns of 16 rows of 16-bit weights and of 8 tokens; of each lane 8 columns of rows g and g
 * + 8 and of token g, in the order that gemm_half.cuh says. */
template <bool BF16>
CUDA_INLINE void gemm_step32(const uint4 &w0, const uint4 &w8, const uint4 &x, float acc[4])
{
    uint32_t a[4] = {w0.x, w8.x, w0.y, w8.y};
    uint32_t b[2] = {x.x, x.y};
    uint32_t c[4] = {w0.z, w8.z, w0.w, w8.w};
    uint32_t d[2] = {x.z, x.w};

    mma_half<BF16>(acc, a, b);
    mma_half<BF16>(acc, c, d);
}

/* The end of a stream kernel: acc of 8 warps, each 16 rows x 8 NT tokens, added in warp order into
 * out (16, 8 NT). red is shared (GEMM_WARPS, 16, 8 NT). */
template <int NT>
CUDA_INLINE void gemm_reduce(const float acc[NT][4], float (*red)[16][8 * NT], float (*out)[8 * NT])
{
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    for (int i = 0; i < NT; i++) {
        for (int j = 0; j < 4; j++) {
            red[warp][lane / 4 + j / 2 * 8][i * 8 + lane % 4 * 2 + j % 2] = acc[i][j];
        }
    }
    __syncthreads(); /* red: written above, read below */
    for (int i = (int)threadIdx.x; i < 16 * 8 * NT; i += GEMM_THREADS) {
        float sum = 0;

        for (int w = 0; w < GEMM_WARPS; w++) {
            sum += red[w][i % 16][i / 16];
        }
        out[i % 16][i / 16] = sum;
    }
    __syncthreads(); /* out: written above, read by all; red: may be written again */
}

/* out (parts, 16, 8 NT) of a stream kernel's block, times the tokens' factors, to y. */
template <int NT>
CUDA_INLINE void gemm_store(const struct gemm *p, int part, int32_t row0, int32_t token0,
                            float (*out)[16][8 * NT])
{
    for (int i = (int)threadIdx.x; i < 16 * 8 * NT; i += GEMM_THREADS) {
        int32_t row = row0 + i % 16;
        int32_t token = token0 + i / 16;

        if (row < p->part[part].n_rows && token < p->token_end) {
            float factor = p->xe[token];
            float sum = out[0][i % 16][i / 16] * factor;

            if (p->gated) {
                gemm_finish_gated(p, row, token, sum, out[1][i % 16][i / 16] * factor);
            } else {
                gemm_finish(p, part, row, token, sum);
            }
        }
    }
}

/* Which 16 rows of which part a warp of a tile kernel takes: 8 tiles of one part, or 4 of the gate
 * and the same 4 of the up projection. */
struct gemm_tile {
    int part;
    int32_t tile;
};

CUDA_INLINE struct gemm_tile gemm_tile_of(const struct gemm *p, int warp)
{
    int32_t block = (int32_t)blockIdx.x;
    struct gemm_tile t;

    if (p->gated) {
        t.part = warp / 4;
        t.tile = block * 4 + warp % 4;
    } else {
        t.part = gemm_part_of(p, &block);
        t.tile = block * GEMM_WARPS + warp;
    }
    return t;
}

/* v = acc[i], by choice among registers: an index that varies would move acc to local memory, and
 * the loop that sums with it. */
CUDA_INLINE void gemm_pick(const float acc[8][4], int i, float v[4])
{
#pragma unroll
    for (int k = 0; k < 8 * 4; k++) {
        v[k % 4] = k / 4 == i || k < 4 ? acc[k / 4][k % 4] : v[k % 4];
    }
}

/* The end of a tile kernel: acc (16 rows x 64 tokens a warp) to y. Of a gated pair the warps of the
 * up projection hand their sums over through `exchange`, shared (4, 16, GEMM_TOKENS). */
CUDA_INLINE void gemm_store_tile(const struct gemm *p, struct gemm_tile t, int32_t token0,
                                 const float acc[8][4], float (*exchange)[16][GEMM_TOKENS])
{
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    if (p->gated) {
        __syncthreads(); /* exchange may lie where operands were read from */
#pragma unroll
        for (int i = 0; i < 8 * 4; i++) {
            if (warp >= 4) {
                exchange[warp - 4][lane / 4 + i % 4 / 2 * 8][i / 4 * 8 + lane % 4 * 2 + i % 2] =
                    acc[i / 4][i % 4];
            }
        }
        __syncthreads(); /* exchange: written by the warps above, read below */
    }
#pragma unroll 1
    for (int i = 0; i < 8; i++) {
        float v[4];

        gemm_pick(acc, i, v);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            int32_t r = lane / 4 + k / 2 * 8;
            int32_t c = i * 8 + lane % 4 * 2 + k % 2;
            int32_t row = t.tile * 16 + r;

            if (row >= p->part[t.part].n_rows || token0 + c >= p->token_end) {
                continue;
            }
            if (!p->gated) {
                gemm_finish(p, t.part, row, token0 + c, v[k]);
            } else if (warp < 4) {
                gemm_finish_gated(p, row, token0 + c, v[k], exchange[warp][r][c]);
            }
        }
    }
}

/* Fills `end` for a grid of blocks of n tiles; returns the number of blocks. */
static inline uint32_t gemm_blocks(struct gemm *p, int tiles)
{
    uint32_t end = 0;

    for (int i = 0; i < (p->gated ? 1 : p->n_parts); i++) {
        end += cuda_div_up((uint64_t)p->part[i].n_rows, (uint64_t)tiles * 16);
        p->part[i].end = (int32_t)end;
    }
    return end;
}

/* Rows that activations can be prepared of at once: a batch's, or of one row's experts. */
static inline int32_t cuda_prepared_rows(const struct backend_limits *l)
{
    return l->max_experts_used > l->max_rows ? l->max_experts_used : l->max_rows;
}

/* matmul.cu: where activations of so many columns are prepared; n rows of x, normed, written there
 * in the form that kernels of a weight's type read. `exact`: what 8 bits left, too. Of the first
 * n_apart rows in 8 bits a norm's factor is apart, in xe (codes.cuh); other rows' is 1. In 16 bits
 * the first n_pieces rows have two pieces, the others the first alone. */
enum gemm_form cuda_gemm_form(enum dtype type);
void cuda_gemm_begin(const struct cuda *cu, int32_t n_cols, struct gemm *g);
int32_t cuda_gemm_pitch(enum dtype type, int32_t n_cols);
int cuda_gemm_prepare(struct cuda *cu, const struct cuda_norm *norm, const float *x, int32_t ldx,
                      int32_t n, int32_t n_apart, int32_t n_pieces, enum gemm_form form, bool exact,
                      const struct gemm *g);

int cuda_gemm_f32(struct cuda *cu, struct gemm *p);
/* Decode rows and heads, or prefill rows. `exact`: activations in two pieces of 8 bits. */
int cuda_gemm_q_stream(struct cuda *cu, struct gemm *p, enum dtype type, bool exact);
/* The same bits by another kernel, for more than 8 tokens. */
int cuda_gemm_q_few(struct cuda *cu, struct gemm *p, enum dtype type, bool exact);
int cuda_gemm_q_tiles(struct cuda *cu, struct gemm *p, enum dtype type);
int cuda_gemm_half_stream(struct cuda *cu, struct gemm *p, bool bf16);
/* At most 8 decode rows of bf16 weights, p->xf as it is. */
int cuda_gemm_half_raw(struct cuda *cu, struct gemm *p);
/* One decode token, normalised in the kernel. */
int cuda_gemm_half_fused(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_norm *norm,
                         const float *x);
int cuda_gemm_half_tiles(struct cuda *cu, struct gemm *p, bool bf16);
/* unpack.cu: rows [row0, row0 + n_rows) of a quantised weight to `to` (n_rows, ld) bf16; row0 is a
 * multiple of 16, ld of 8. */
int cuda_unpack(struct cuda *cu, enum dtype type, const uint8_t *w, int32_t row0, int32_t n_rows,
                int32_t n_cols, uint16_t *to, int32_t ld);

#endif
