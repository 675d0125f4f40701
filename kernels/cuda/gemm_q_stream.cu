/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, 2 to 8 decode rows and output heads: memory bound. And which kernel takes how
 * many rows.
 *
 * Block: 8 warps, 16 rows, 8 tokens at a time; warp w takes units w, w + 8, ... of the tile.
 * Weights go from memory to registers in 16-byte loads, 512 contiguous bytes a warp; activations
 * come from L1 and L2. Shared memory: 5 KB. One token: gemm_q_row.cu; more: gemm_q_few.cu. Until a
 * device has timed that one, pipit-kbench has this one multiply more than 8, too, up to 16 at a
 * time. */

#include <cerrno>

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/gemm_q.cuh"

enum { STREAM_TOKENS = 32 }; /* of a block */

/* Blocks a multiprocessor that ptxas is told: as many as leave it registers enough. */
template <typename F, int PIECES, int NT> static constexpr int stream_blocks(void)
{
    constexpr bool many = F::SCALES != FRAG_D && F::SCALES != FRAG_E8;

    constexpr bool large = CUDA_ON_100(F::TYPE == DTYPE_IQ4_NL, false);

    return NT == 1 ? (many          ? (PIECES == 1 ? 2 : 1)
                      : PIECES == 1 ? CUDA_ON_100(2, 3)
                                    : 2)
                   : (many || large || PIECES == 2 ? 1 : 2);
}

template <typename F, int PIECES, int NT>
CUDA_INLINE void stream_unit(const struct gemm *p, const uint8_t *unit, int32_t col, int32_t token0,
                             float acc[NT][4][4])
{
    int lane = (int)threadIdx.x % WARP;

#pragma unroll
    for (int group = 0; group < F::GROUPS; group++, col += 128) {
        struct frag_codes w;
        struct gemm_scales s;

        frag_load<F>(unit, group, lane, &w);
        gemm_scales_load<F>(unit, group, lane, &s);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            int32_t last = p->token_end - 1;
            int32_t token = min(token0 + i * 8 + lane / 4, last);
            uint32_t x[PIECES][8];
            float xd[2][4];
            float xs[2][4];

            for (int piece = 0; piece < PIECES; piece++) {
                gemm_words(p->xq + piece * p->piece +
                               (uint32_t)(token * p->pad + col + lane % 4 * 32),
                           x[piece]);
            }
            for (int k = 0; k < 2; k++) {
                uint32_t at =
                    (uint32_t)(min(token0 + i * 8 + lane % 4 * 2 + k, last) * (p->pad / 32) +
                               col / 32);

                gemm_floats(p->xd + at, xd[k]);
                if (frag_has_offset<F>()) {
                    gemm_floats(p->xs + at, xs[k]);
                }
            }
            gemm_group<F, PIECES, 4>(&w, &s, x, xd, xs, acc[i]);
        }
    }
}

/* Sums of the block's 16 rows for 8 NT tokens. */
template <typename F, int PIECES, int NT>
CUDA_INLINE void stream_tile(const struct gemm &p, const uint8_t *tile, int32_t token0,
                             float (*red)[16][8 * NT], float (*out)[8 * NT])
{
    int32_t n_units = (int32_t)frag_units(p.n_cols, F::COLS);
    const uint8_t *next = tile + (int32_t)threadIdx.x / WARP * F::UNIT;
    float acc[NT][4][4] = {}; /* by 8 tokens, block of a group, place in the fragment */
    float sum[NT][4];

    for (int32_t u = (int32_t)threadIdx.x / WARP; u < n_units; u += GEMM_WARPS) {
        /* either way spills some types' registers */
        const uint8_t *unit =
            F::BLOCKS == 8 && F::TYPE != DTYPE_Q5_K ? next : tile + (uint32_t)(u * F::UNIT);

        stream_unit<F, PIECES, NT>(&p, unit, u * F::COLS, token0, acc);
        next += GEMM_WARPS * F::UNIT;
    }
    for (int i = 0; i < NT * 4; i++) {
        const float(*a)[4] = acc[i / 4];

        sum[i / 4][i % 4] = (a[0][i % 4] + a[1][i % 4]) + (a[2][i % 4] + a[3][i % 4]);
    }
    gemm_reduce<NT>(sum, red, out);
}

/* The block's 16 rows for the tokens of its y, 8 NT at a time: the weights come again from L1 or
 * L2. `store`: what becomes of the heads, or NULL. */
template <typename F, int PIECES, int NT>
CUDA_INLINE void stream_rows(const struct gemm &p, const struct cuda_store *store)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];
    int32_t block = (int32_t)blockIdx.x;
    int part = gemm_part_of(&p, &block);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * STREAM_TOKENS;
    int32_t token_end = min(token0 + STREAM_TOKENS, p.token_end);
    int32_t n_units = (int32_t)frag_units(p.n_cols, F::COLS);
    int32_t first = (int32_t)threadIdx.x / WARP * F::UNIT + (int32_t)threadIdx.x % WARP * 128;
    uint64_t at = (uint64_t)block * n_units * F::UNIT;

    grid_begin(); /* each warp's first unit to L2 while the kernel ahead still runs */
    if (first < ((int32_t)threadIdx.x / WARP + 1) * F::UNIT && first < n_units * F::UNIT) {
        grid_prefetch(p.part[part].w + at + first);
    }
    grid_wait();
    for (; token0 < token_end; token0 += 8 * NT) {
        for (int half = 0; half < (p.gated ? 2 : 1); half++) {
            stream_tile<F, PIECES, NT>(p, p.part[part + half].w + at, token0, red, out[half]);
        }
        gemm_store<NT>(&p, part, block * 16, token0, out);
    }
    if (store) {
        gemm_store_heads<NT>(&p, store, part, block * 16, &red[0][0][0]);
    }
}

template <typename F, int PIECES, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (stream_blocks<F, PIECES, NT>()))
    stream_q(struct gemm p)
{
    stream_rows<F, PIECES, NT>(p, NULL);
}

template <typename F>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (stream_blocks<F, 2, 1>()))
    stream_q_store(struct gemm p, struct cuda_store store)
{
    stream_rows<F, 1, 1>(p, &store);
}

/* Tokens at a time of more than 8, by 8: with 16, codes of 8 bits need a register too many. */
template <typename F> static constexpr int stream_wide(void)
{
    return F::CODE == 8 ? 1 : 2;
}

template <typename F> static int launch(struct cuda *cu, struct gemm *p, bool exact)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    dim3 grid(blocks, cuda_div_up(n, STREAM_TOKENS));

    if (exact) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_q<F, 2, 1>), *p);
    } else if (n <= 8) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_q<F, 1, 1>), *p);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_q<F, 1, stream_wide<F>()>), *p);
    }
    return cuda_launched(cu, "stream_q");
}

int cuda_gemm_q_stream(struct cuda *cu, struct gemm *p, enum dtype type, bool exact)
{
    int32_t n = p->token_end - p->token0;

    if ((uint64_t)p->token_end * (uint64_t)p->pad > INT32_MAX) {
        return -EINVAL; /* the kernels' index of an activation */
    }
    if (n == 1) {
        return cuda_gemm_q_row(cu, p, type, exact, NULL);
    }
    if (n >= cu->few_from) {
        return cuda_gemm_q_few(cu, p, type, exact);
    }
    switch (type) {
#define STREAM(TYPE, F)                                                                            \
    case TYPE:                                                                                     \
        return launch<F>(cu, p, exact);
        FRAG_TYPES(STREAM)
#undef STREAM
    default:
        return -EINVAL;
    }
}

template <typename F>
static int launch_store(struct cuda *cu, struct gemm *p, const struct cuda_store *s)
{
    CUDA_LAUNCH_EARLY(cu, dim3(gemm_blocks(p, 1)), dim3(GEMM_THREADS), 0, (stream_q_store<F>), *p,
                      *s);
    return cuda_launched(cu, "stream_q_store");
}

int cuda_gemm_q_store(struct cuda *cu, struct gemm *p, enum dtype type, const struct cuda_store *s)
{
    if (p->token_end - p->token0 == 1) {
        return cuda_gemm_q_row(cu, p, type, false, s);
    }
    if (p->token_end - p->token0 > GEMM_Q_STORES) {
        return -EINVAL; /* matmul.cu asks for none */
    }
    switch (type) {
#define STORE(TYPE, F)                                                                             \
    case TYPE:                                                                                     \
        return launch_store<F>(cu, p, s);
        FRAG_TYPES(STORE)
#undef STORE
    default:
        return -EINVAL;
    }
}
