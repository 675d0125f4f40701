/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of 16 bits (f16, bf16), their rows as in the file.
 *
 * A matrix instruction sums over 16 columns in any order as long as both operands agree. So a lane
 * loads 16 bytes of its row, columns 8t .. 8t+7 of 32, and of its token; the two halves of those
 * are two instructions. No repacking, no shared memory for weights, 64 bytes of 8 rows a load.
 *
 * stream  8 warps, 16 rows, 8 NT tokens; warp w takes steps w, w + 8, ... of 32 columns, four
 *         unrolled: 128 bytes of weights a lane under way, 32 KB a block. Activations in 2 (f16) or
 *         3 (bf16) pieces. A single token's are made in the block, norm included.
 * tiles   8 warps, 128 rows (64 of a gated pair), 64 tokens; activations, one piece, through shared
 *         memory in pieces of 64 columns, two deep; rows 144 bytes apart against bank conflicts.
 * Shares of bandwidth and matrix rate: not measured. */

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/row.cuh"

/* ---- stream --------------------------------------------------------------------------------- */

/* Before anything: 2 KB of each of the block's rows, 128 bytes a thread, to L2 while the kernel
 * ahead still runs; then the wait for it. */
CUDA_INLINE void stream_begin(const struct gemm &p)
{
    int32_t block = (int32_t)blockIdx.x;
    int part = gemm_part_of(&p, &block);
    int32_t row = min(block * 16 + (int32_t)threadIdx.x % 16, p.part[part].n_rows - 1);
    int32_t at = (int32_t)threadIdx.x / 16 * 128;

    grid_begin();
    if (at < p.pitch) {
        grid_prefetch(p.part[part].w + (uint64_t)row * p.pitch + at);
    }
    grid_wait();
}

/* The block's 16 rows for the tokens of its y; xh: pieces, `piece` elements apart, xe: a token's
 * factor. `store`: what becomes of the heads, or NULL. */
template <bool BF16, int NT>
CUDA_INLINE void stream_rows(const struct gemm &p, const uint16_t *xh, uint64_t piece_elements,
                             const float *xe, float (*red)[16][8 * NT], float (*out)[16][8 * NT],
                             const struct cuda_store *store)
{
    constexpr int PIECES = BF16 ? 3 : 2;
    int32_t block = (int32_t)blockIdx.x;
    int part = gemm_part_of(&p, &block);
    int lane = (int)threadIdx.x % WARP;
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * 8 * NT;
    int32_t last_row = p.part[part].n_rows - 1;
    int32_t n_steps = (p.n_cols + 31) / 32;
    const uint16_t *x[NT];

    for (int i = 0; i < NT; i++) {
        x[i] =
            xh + (uint64_t)min(token0 + i * 8 + lane / 4, p.token_end - 1) * p.pad + lane % 4 * 8;
    }
    for (int half = 0; half < (p.gated ? 2 : 1); half++) {
        const uint8_t *w = p.part[part + half].w + lane % 4 * 16;
        const uint8_t *row0 = w + (uint64_t)min(block * 16 + lane / 4, last_row) * p.pitch;
        const uint8_t *row8 = w + (uint64_t)min(block * 16 + lane / 4 + 8, last_row) * p.pitch;
        float acc[NT][4] = {};

#pragma unroll 4
        for (int32_t s = (int32_t)threadIdx.x / WARP; s < n_steps; s += GEMM_WARPS) {
            uint4 w0 = *reinterpret_cast<const uint4 *>(row0 + (uint64_t)s * 64);
            uint4 w8 = *reinterpret_cast<const uint4 *>(row8 + (uint64_t)s * 64);

#pragma unroll
            for (int i = 0; i < NT; i++) {
#pragma unroll
                for (int piece = 0; piece < PIECES; piece++) {
                    gemm_step32<BF16>(w0, w8,
                                      *reinterpret_cast<const uint4 *>(
                                          x[i] + piece * piece_elements + (uint64_t)s * 32),
                                      acc[i]);
                }
            }
        }
        if (!BF16) {
            for (int i = 0; i < NT * 4; i++) {
                acc[i / 4][i % 4] *=
                    xe[min(token0 + i / 4 * 8 + lane % 4 * 2 + i % 2, p.token_end - 1)];
            }
        }
        gemm_reduce<NT>(acc, red, out[half]);
    }
    gemm_store<NT>(&p, part, block * 16, token0, out);
    if (store) {
        gemm_store_heads<NT>(&p, store, part, block * 16, &red[0][0][0]);
    }
}

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS) stream_half(struct gemm p)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];

    stream_begin(p);
    stream_rows<BF16, NT>(p, p.xh, p.piece, p.xe, red, out, NULL);
}

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(NT))
    stream_half_store(struct gemm p, struct cuda_store store)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];

    stream_begin(p);
    stream_rows<BF16, NT>(p, p.xh, p.piece, p.xe, red, out, &store);
}

/* One token, from its row as it is: every block makes the pieces for itself, in shared memory. For
 * 4,096 columns that is 16 KB read from L2 and some 400 instructions a thread beside 128 KB of
 * weights, and a launch less. */
template <bool BF16>
CUDA_INLINE void norm_stream_rows(const struct gemm &p, const struct cuda_norm &norm,
                                  const float *x, const struct cuda_store *store)
{
    CUDA_SHARED(uint16_t, xh); /* (pieces, pad) */
    __shared__ float red[GEMM_WARPS][16][8];
    __shared__ float out[2][16][8];
    __shared__ float part[32];
    __shared__ float xe;
    struct row_norm r;
    float scale = 1.0f;

    stream_begin(p);
    r = row_norm_of<GEMM_THREADS>(&norm, x, p.n_cols, part);
    if (!BF16) {
        float top = 0.0f;

        for (int32_t c = (int32_t)threadIdx.x; c < p.n_cols; c += GEMM_THREADS) {
            top = fmaxf(top, fabsf(row_normed(&norm, r, x[c], c)));
        }
        scale = half_scale(block_max(top, part, GEMM_WARPS));
        if (threadIdx.x == 0) {
            xe = 1.0f / scale; /* a power of two: exact */
        }
    }
    for (int32_t c = (int32_t)threadIdx.x; c < p.pad; c += GEMM_THREADS) {
        float v = c < p.n_cols ? row_normed(&norm, r, x[c], c) * scale : 0.0f;

        half_pieces<BF16, BF16 ? 3 : 2>(v, xh + c, (uint64_t)p.pad);
    }
    __syncthreads(); /* xh, xe: written by all, read by all */
    stream_rows<BF16, 1>(p, xh, (uint64_t)p.pad, &xe, red, out, store);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS)
    norm_stream_half(struct gemm p, struct cuda_norm norm, const float *x)
{
    norm_stream_rows<BF16>(p, norm, x, NULL);
}

template <bool BF16>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, GEMM_STORE_BLOCKS(1))
    norm_stream_half_store(struct gemm p, struct cuda_norm norm, const float *x,
                           struct cuda_store store)
{
    norm_stream_rows<BF16>(p, norm, x, &store);
}

static size_t pieces_bytes(int32_t pad, bool bf16)
{
    return (size_t)pad * (bf16 ? 3 : 2) * sizeof(uint16_t);
}

/* Without more shared memory than a block has unasked. */
bool cuda_gemm_half_fuses(int32_t pad, bool bf16)
{
    return pieces_bytes(pad, bf16) <= 40 << 10;
}

int cuda_gemm_half_fused(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_norm *norm,
                         const float *x)
{
    uint32_t blocks = gemm_blocks(p, 1);
    size_t shared = pieces_bytes(p->pad, bf16);

    if (bf16) {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, 1), dim3(GEMM_THREADS), shared, norm_stream_half<true>,
                          *p, *norm, x);
    } else {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, 1), dim3(GEMM_THREADS), shared, norm_stream_half<false>,
                          *p, *norm, x);
    }
    return cuda_launched(cu, "norm_stream_half");
}

int cuda_gemm_half_fused_store(struct cuda *cu, struct gemm *p, bool bf16,
                               const struct cuda_norm *norm, const float *x,
                               const struct cuda_store *s)
{
    uint32_t blocks = gemm_blocks(p, 1);
    size_t shared = pieces_bytes(p->pad, bf16);

    if (bf16) {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, 1), dim3(GEMM_THREADS), shared,
                          norm_stream_half_store<true>, *p, *norm, x, *s);
    } else {
        CUDA_LAUNCH_EARLY(cu, dim3(blocks, 1), dim3(GEMM_THREADS), shared,
                          norm_stream_half_store<false>, *p, *norm, x, *s);
    }
    return cuda_launched(cu, "norm_stream_half_store");
}

int cuda_gemm_half_store(struct cuda *cu, struct gemm *p, bool bf16, const struct cuda_store *s)
{
    dim3 grid(gemm_blocks(p, 1), 1);
    bool few = p->token_end - p->token0 <= 8;

    if (few && bf16) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half_store<true, 1>), *p, *s);
    } else if (few) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half_store<false, 1>), *p, *s);
    } else if (bf16) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half_store<true, 4>), *p, *s);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half_store<false, 4>), *p, *s);
    }
    return cuda_launched(cu, "stream_half_store");
}

int cuda_gemm_half_stream(struct cuda *cu, struct gemm *p, bool bf16)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    dim3 grid(blocks, n <= 8 ? 1 : cuda_div_up(n, 32));

    if (n <= 8 && bf16) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half<true, 1>), *p);
    } else if (n <= 8) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half<false, 1>), *p);
    } else if (bf16) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half<true, 4>), *p);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (stream_half<false, 4>), *p);
    }
    return cuda_launched(cu, "stream_half");
}

/* ---- tiles ---------------------------------------------------------------------------------- */

enum { STEP = 64 /* columns of a piece */, ROW = STEP + 8 };

struct operands {
    uint16_t x[GEMM_TOKENS][ROW];
};

CUDA_INLINE void fetch(const struct gemm *p, int32_t token0, int32_t step, struct operands *to)
{
    for (int i = (int)threadIdx.x; i < GEMM_TOKENS * 8; i += GEMM_THREADS) {
        int32_t token = min(token0 + i / 8, p->token_end - 1);

        async_copy16(&to->x[i / 8][i % 8 * 8],
                     p->xh + (uint64_t)token * p->pad + step * STEP + i % 8 * 8);
    }
    async_commit();
}

template <bool BF16> CUDA_KERNEL void __launch_bounds__(GEMM_THREADS) tiles_half(struct gemm p)
{
    __shared__ __align__(16) struct operands in[2];
    int lane = (int)threadIdx.x % WARP;
    struct gemm_tile t = gemm_tile_of(&p, (int)threadIdx.x / WARP);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * GEMM_TOKENS;
    int32_t last_row = p.part[t.part].n_rows - 1;
    int32_t n_half = (p.n_cols + 31) / 32; /* the weight's rows are padded to 32 columns */
    int32_t n_steps = (n_half + 1) / 2;
    const uint8_t *w = p.part[t.part].w + lane % 4 * 16;
    const uint8_t *row0 = w + (uint64_t)min(t.tile * 16 + lane / 4, last_row) * p.pitch;
    const uint8_t *row8 = w + (uint64_t)min(t.tile * 16 + lane / 4 + 8, last_row) * p.pitch;
    float acc[8][4] = {};

    fetch(&p, token0, 0, &in[0]);
    for (int32_t step = 0; step < n_steps; step++) {
        const struct operands *now = &in[step % 2];

        if (step + 1 < n_steps) {
            fetch(&p, token0, step + 1, &in[(step + 1) % 2]);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        __syncthreads(); /* now: copied by all threads, read by all */
        for (int32_t h = 0; h < 2 && step * 2 + h < n_half; h++) {
            uint4 w0 = *reinterpret_cast<const uint4 *>(row0 + (uint64_t)(step * 2 + h) * 64);
            uint4 w8 = *reinterpret_cast<const uint4 *>(row8 + (uint64_t)(step * 2 + h) * 64);

#pragma unroll
            for (int i = 0; i < 8; i++) {
                gemm_step32<BF16>(w0, w8,
                                  *reinterpret_cast<const uint4 *>(
                                      &now->x[i * 8 + lane / 4][h * 32 + lane % 4 * 8]),
                                  acc[i]);
            }
        }
        __syncthreads(); /* now: read by all before the step after next is copied there */
    }
    if (!BF16) {
        for (int i = 0; i < 8 * 4; i++) {
            acc[i / 4][i % 4] *=
                p.xe[min(token0 + i / 4 * 8 + lane % 4 * 2 + i % 2, p.token_end - 1)];
        }
    }
    gemm_store_tile(&p, t, token0, acc,
                    reinterpret_cast<float(*)[16][GEMM_TOKENS]>(static_cast<void *>(in)));
}

int cuda_gemm_half_tiles(struct cuda *cu, struct gemm *p, bool bf16)
{
    uint32_t blocks = gemm_blocks(p, p->gated ? 4 : GEMM_WARPS);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    dim3 grid(blocks, cuda_div_up(n, GEMM_TOKENS));

    static_assert(sizeof(struct operands) * 2 >= 4 * 16 * GEMM_TOKENS * sizeof(float),
                  "a gated pair's exchange fits");
    if (bf16) {
        CUDA_LAUNCH(cu, grid, dim3(GEMM_THREADS), 0, (tiles_half<true>), *p);
    } else {
        CUDA_LAUNCH(cu, grid, dim3(GEMM_THREADS), 0, (tiles_half<false>), *p);
    }
    return cuda_launched(cu, "tiles_half");
}
