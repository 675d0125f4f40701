/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_GEMM_HALF_CUH
#define PIPIT_KERNELS_CUDA_GEMM_HALF_CUH

/* Products of decode rows and weights of 16 bits (f16, bf16), whose rows lie as in the file.
 *
 * A matrix instruction sums over 16 columns in any order as long as both operands agree. So a lane
 * loads 16 bytes of its row, columns 8t .. 8t+7 of 32, and of its token; the two halves of those
 * are two instructions. No repacking.
 *
 * A block of 8 warps a multiprocessor, each with its share of the weight's tiles of 16 rows. Warp w
 * takes steps w, w + 8, ... of 64 columns, whole lines, of several tiles at once. What a lane will
 * need it copies to shared memory for itself, RING steps ahead and across tiles: 64 KB a block are
 * always under way, and nobody waits for another warp until the sums. The first copies start before
 * the kernel ahead has ended: no kernel writes weights. Activations come in two pieces. Which
 * columns a warp sums, and in which order, follows from their number alone, so a token's bits do
 * not depend on its company. */

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/row.cuh"

enum {
    RING = 4,  /* steps of a tile that a warp has under way */
    ITEM = 128 /* 16 bytes of a step: 16 rows of 64 columns */
};

/* Tiles whose sums are added up at once; two: a gated pair. */
#define RED_TILES 2

/* The block's tiles: of a gated pair, tile 2i of the gate and 2i + 1 of the up projection are the
 * same 16 rows. */
struct share {
    int32_t begin, end;
    int32_t group; /* at once */
};

/* MOST: tiles whose sums a warp forms at once, even. */
template <int MOST> CUDA_INLINE struct share share_of(const struct gemm &p)
{
    int32_t each = p.gated ? 2 : 1;
    int64_t n = p.part[p.gated ? 0 : p.n_parts - 1].end;
    int32_t begin = (int32_t)((int64_t)blockIdx.x * n / (int32_t)gridDim.x);
    int32_t end = (int32_t)(((int64_t)blockIdx.x + 1) * n / (int32_t)gridDim.x);
    int32_t groups = (end - begin + MOST / each - 1) / (MOST / each);

    return {begin * each, end * each, (end - begin + groups - 1) / groups * each};
}

CUDA_INLINE int part_of_tile(const struct gemm &p, int32_t tile, int32_t *ret_row0)
{
    int32_t block = p.gated ? tile / 2 : tile;
    int part = p.gated ? tile % 2 : gemm_part_of(&p, &block);

    *ret_row0 = block * 16;
    return part;
}

/* What a warp copies next. */
struct ring {
    uint4 *slots; /* (RING, 4, WARP), from the lane's own on */
    int32_t slot;
    int32_t tile, n, i; /* the group's first tile, its tiles, which of them */
    int32_t step, n_steps;
};

/* One step of one tile, or nothing: either is a group of copies. */
CUDA_INLINE void ring_copy(const struct gemm &p, const struct share &s, struct ring *r)
{
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;

    if (r->tile < s.end && r->step < r->n_steps) {
        int32_t row0;
        const struct gemm_part &part = p.part[part_of_tile(p, r->tile + r->i, &row0)];
        int32_t at = r->step * 128 + lane % 4 * 16;
        int32_t next = r->step * 128 + 64 < p.pitch ? 64 : 0; /* rows are whole halves of lines */
        const uint8_t *a = part.w + (uint64_t)min(row0 + lane / 4, part.n_rows - 1) * p.pitch + at;
        const uint8_t *b =
            part.w + (uint64_t)min(row0 + lane / 4 + 8, part.n_rows - 1) * p.pitch + at;
        uint4 *to = r->slots + r->slot * ITEM;

        async_copy16(to, a);
        async_copy16(to + WARP, b);
        async_copy16(to + 2 * WARP, a + next);
        async_copy16(to + 3 * WARP, b + next);
        r->slot = (r->slot + 1) % RING;
        if (++r->i == r->n) {
            r->i = 0;
            r->step += GEMM_WARPS;
            if (r->step >= r->n_steps) {
                r->step = warp;
                r->tile += r->n;
                r->n = min(s.group, s.end - r->tile);
            }
        }
    }
    async_commit();
}

CUDA_INLINE struct ring ring_begin(const struct gemm &p, const struct share &s, uint4 *slots)
{
    int warp = (int)threadIdx.x / WARP;
    struct ring r = {slots + warp * RING * ITEM + (int)threadIdx.x % WARP,
                     0,
                     s.begin,
                     min(s.group, s.end - s.begin),
                     0,
                     warp,
                     (p.n_cols + 63) / 64};

    for (int i = 0; i < RING; i++) {
        ring_copy(p, s, &r);
    }
    return r;
}

/* Activations as the kernel reads them: column c of a token's piece k at token[c * stride + k *
 * piece], of 8 columns at a time. */
struct pieces {
    const uint16_t *x;
    uint64_t piece;
    int32_t stride;
    const float *xe; /* f16: a token's factor */
};

template <bool BF16, int NT>
CUDA_INLINE void step_of_tile(const uint4 *at, const uint4 x[NT][HALF_PIECES], float acc[NT][4])
{
    uint4 w0 = at[0];
    uint4 w8 = at[WARP];

#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            gemm_step32<BF16>(w0, w8, x[i][k], acc[i]);
        }
    }
}

template <int NT>
CUDA_INLINE void load_pieces(const struct pieces &x, const uint16_t *const token[NT], int32_t col,
                             uint4 ret[NT][HALF_PIECES])
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            ret[i][k] =
                *reinterpret_cast<const uint4 *>(token[i] + col * x.stride + (uint64_t)k * x.piece);
        }
    }
}

/* Sums of n tiles by one group of 8 tokens; the next step's activations are loaded a step ahead. */
template <bool BF16, int MOST>
CUDA_INLINE void sum_tiles_by_8(const struct gemm &p, const struct share &s, struct ring *r,
                                int32_t *slot, const struct pieces &x,
                                const uint16_t *const token[1], int32_t n, float acc[MOST][1][4])
{
    uint4 now[2][1][HALF_PIECES];
    uint4 next[2][1][HALF_PIECES];
    int32_t step = (int32_t)threadIdx.x / WARP;

    if (step < r->n_steps) {
        load_pieces<1>(x, token, step * 64, next[0]);
        load_pieces<1>(x, token, step * 64 + 32, next[1]);
    }
    for (; step < r->n_steps; step += GEMM_WARPS) {
        int32_t ahead = min(step + GEMM_WARPS, r->n_steps - 1) * 64;
        bool whole = step * 64 + 32 < p.n_cols;

#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            now[0][0][k] = next[0][0][k];
            now[1][0][k] = next[1][0][k];
        }
        load_pieces<1>(x, token, ahead, next[0]);
        load_pieces<1>(x, token, ahead + 32, next[1]);
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i < n) {
                const uint4 *at = r->slots + *slot * ITEM;

                async_wait<RING - 1>();
                step_of_tile<BF16, 1>(at, now[0], acc[i]);
                if (whole) {
                    step_of_tile<BF16, 1>(at + 2 * WARP, now[1], acc[i]);
                }
                *slot = (*slot + 1) % RING;
                ring_copy(p, s, r);
            }
        }
    }
}

/* By NT of them; two tiles share what is loaded of the activations. */
template <bool BF16, int NT, int MOST>
CUDA_INLINE void sum_tiles_by_more(const struct gemm &p, const struct share &s, struct ring *r,
                                   int32_t *slot, const struct pieces &x,
                                   const uint16_t *const token[NT], int32_t n,
                                   float acc[MOST][NT][4])
{
    for (int32_t step = (int32_t)threadIdx.x / WARP; step < r->n_steps; step += GEMM_WARPS) {
        bool whole = step * 64 + 32 < p.n_cols;

#pragma unroll
        for (int i = 0; i < MOST; i += 2) {
            if (i < n) {
                bool both = i + 1 < n;
                int32_t second = (*slot + 1) % RING; /* `both` or not: bytes that are there */

                if (both) {
                    async_wait<RING - 2>();
                } else {
                    async_wait<RING - 1>();
                }
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    if (h == 0 || whole) {
                        uint4 part[NT][HALF_PIECES];

                        load_pieces<NT>(x, token, step * 64 + h * 32, part);
                        step_of_tile<BF16, NT>(r->slots + *slot * ITEM + h * 2 * WARP, part,
                                               acc[i]);
                        if (both) {
                            step_of_tile<BF16, NT>(r->slots + second * ITEM + h * 2 * WARP, part,
                                                   acc[i + 1]);
                        }
                    }
                }
                *slot = both ? (second + 1) % RING : second;
                ring_copy(p, s, r);
                if (both) {
                    ring_copy(p, s, r);
                }
            }
        }
    }
}

/* Sum in of a tile: (NT, 16, 8) of each warp. */
template <int NT> CUDA_INLINE float red_sum(const float *red, int32_t tile, int32_t in)
{
    float sum = 0;

    for (int w = 0; w < GEMM_WARPS; w++) {
        sum += red[(tile * GEMM_WARPS + w) * NT * 128 + in];
    }
    return sum;
}

/* n tiles from `tile` on, of which red has the sums of all warps, to y. */
template <bool BF16, int NT>
CUDA_INLINE void finish_tiles(const struct gemm &p, int32_t tile, int32_t n, int32_t token0,
                              const float *red, const float *xe)
{
    for (int32_t e = (int32_t)threadIdx.x; e < (p.gated ? 1 : n) * NT * 128; e += GEMM_THREADS) {
        int32_t of = e / (NT * 128);
        int32_t in = e % (NT * 128);
        int32_t token = token0 + in / 128 * 8 + in % 8;
        int32_t row0;
        int part = part_of_tile(p, tile + of, &row0);
        int32_t row = row0 + in % 128 / 8;
        float sum;

        if (row >= p.part[part].n_rows || token >= p.token_end) {
            continue;
        }
        sum = red_sum<NT>(red, of, in) * (BF16 ? 1.0f : xe[token]);
        if (p.gated) {
            gemm_finish_gated(&p, row, token, sum,
                              red_sum<NT>(red, 1, in) * (BF16 ? 1.0f : xe[token]));
        } else {
            gemm_finish(&p, part, row, token, sum);
        }
    }
}

/* The block's tiles for the tokens of its y. `store`: what becomes of the heads, or NULL. red:
 * shared (RED_TILES, GEMM_WARPS, NT, 16, 8). */
template <bool BF16, int NT, int MOST>
CUDA_INLINE void stream_tiles(const struct gemm &p, const struct share &s, struct ring *r,
                              const struct pieces &x, float *red, const struct cuda_store *store)
{
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * 8 * NT;
    int32_t slot = 0;
    const uint16_t *token[NT];

    for (int i = 0; i < NT; i++) {
        token[i] = x.x + (uint64_t)min(token0 + i * 8 + lane / 4, p.token_end - 1) * p.pad +
                   lane % 4 * 8 * x.stride;
    }
    for (int32_t tile = s.begin; tile < s.end; tile += s.group) {
        int32_t n = min(s.group, s.end - tile);
        float acc[MOST][NT][4] = {};

        if constexpr (NT == 1) {
            sum_tiles_by_8<BF16, MOST>(p, s, r, &slot, x, token, n, acc);
        } else {
            sum_tiles_by_more<BF16, NT, MOST>(p, s, r, &slot, x, token, n, acc);
        }
#pragma unroll 1
        for (int32_t from = 0; from < n; from += RED_TILES) {
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                if (i / RED_TILES * RED_TILES == from && i < n) {
                    for (int j = 0; j < NT; j++) {
                        float *to =
                            red + ((i % RED_TILES * GEMM_WARPS + warp) * NT + j) * 128 + lane * 2;

                        to[0] = acc[i][j][0];
                        to[1] = acc[i][j][1];
                        to[64] = acc[i][j][2];
                        to[65] = acc[i][j][3];
                    }
                }
            }
            __syncthreads(); /* red: written by all, read by all */
            finish_tiles<BF16, NT>(p, tile + from, min(n - from, RED_TILES), token0, red, x.xe);
            for (int i = 0; store && i < RED_TILES && from + i < n; i++) {
                int32_t row0;
                int part = part_of_tile(p, tile + from + i, &row0);

                gemm_store_heads<NT>(&p, store, part, row0, red);
            }
            __syncthreads(); /* red: read by all before it is written again */
        }
    }
}

/* Of shared memory: the ring, red; then a single token's pieces. */
template <int NT> static constexpr size_t red_bytes(void)
{
    return (size_t)RED_TILES * GEMM_WARPS * NT * 128 * sizeof(float);
}

static constexpr size_t ring_bytes = (size_t)GEMM_WARPS * RING * ITEM * sizeof(uint4);

template <bool BF16, int NT, int MOST>
CUDA_INLINE void stream_rows(const struct gemm &p, const struct cuda_store *store)
{
    CUDA_SHARED(uint8_t, shared);
    struct share s = share_of<MOST>(p);
    struct pieces x = {p.xh, p.piece, 1, p.xe};
    struct ring r;

    grid_begin();
    r = ring_begin(p, s, reinterpret_cast<uint4 *>(shared));
    grid_wait();
    stream_tiles<BF16, NT, MOST>(p, s, &r, x, reinterpret_cast<float *>(shared + ring_bytes),
                                 store);
}

#endif
