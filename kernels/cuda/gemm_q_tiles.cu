/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, prefill rows: arithmetic bound.
 *
 * Block: 8 warps, 128 rows (64 of a gated pair) and 64 tokens. Weights go straight to registers
 * (fragment order, no shared memory), each read once for 64 tokens; activations come through shared
 * memory in pieces of 128 columns, two pieces deep: the next is copied while this one is used. Rows
 * of the pieces are 144 bytes apart, so the 8 lanes of a quarter warp meet different banks. Shared
 * memory: 23 KB. A block of 32 columns costs a warp 8 matrix instructions and, for scales, 96 or
 * 160 others. Share of the matrix rate: not measured. */

#include <cerrno>

#include "kernels/cuda/gemm_q.cuh"

enum { ROW = 144, COPIES = GEMM_TOKENS * 8 };

struct operands {
    uint8_t x[GEMM_TOKENS][ROW];
    float d[GEMM_TOKENS][4];
    float s[GEMM_TOKENS][4];
};

/* 128 columns of 64 tokens; what lies beyond the last token is the last token again. */
CUDA_INLINE void fetch(const struct gemm *p, int32_t token0, int32_t group, struct operands *to)
{
    int tid = (int)threadIdx.x;
    int32_t last = p->token_end - 1;

    for (int i = tid; i < COPIES; i += GEMM_THREADS) {
        int32_t token = min(token0 + i / 8, last);

        async_copy16(&to->x[i / 8][i % 8 * 16],
                     p->xq + (uint64_t)token * p->pad + group * 128 + i % 8 * 16);
    }
    if (tid < 2 * GEMM_TOKENS) {
        int32_t token = min(token0 + tid % GEMM_TOKENS, last);
        uint64_t at = (uint64_t)token * (uint64_t)(p->pad / 32) + (uint64_t)group * 4;

        if (tid < GEMM_TOKENS) {
            async_copy16(to->d[tid], p->xd + at);
        } else {
            async_copy16(to->s[tid - GEMM_TOKENS], p->xs + at);
        }
    }
    async_commit();
}

template <typename F> CUDA_KERNEL void __launch_bounds__(GEMM_THREADS) tiles_q(struct gemm p)
{
    __shared__ __align__(16) struct operands in[2];
    int lane = (int)threadIdx.x % WARP;
    struct gemm_tile t = gemm_tile_of(&p, (int)threadIdx.x / WARP);
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * GEMM_TOKENS;
    int32_t n_units = (int32_t)frag_units(p.n_cols, F::COLS);
    int32_t n_groups = n_units * F::GROUPS;
    int32_t last_tile = (p.part[t.part].n_rows - 1) / 16;
    const uint8_t *tile = p.part[t.part].w + (uint64_t)min(t.tile, last_tile) * n_units * F::UNIT;
    float acc[8][4] = {};

    fetch(&p, token0, 0, &in[0]);
    for (int32_t group = 0; group < n_groups; group++) {
        const struct operands *now = &in[group % 2];
        const uint8_t *unit = tile + (uint64_t)(group / F::GROUPS) * F::UNIT;
        struct frag_codes w;
        struct gemm_scales s;

        if (group + 1 < n_groups) {
            fetch(&p, token0, group + 1, &in[(group + 1) % 2]);
            async_wait<1>();
        } else {
            async_wait<0>();
        }
        frag_load<F>(unit, group % F::GROUPS, lane, &w);
        gemm_scales_load<F>(unit, group % F::GROUPS, lane, &s);
        __syncthreads(); /* now: copied by all threads, read by all */
#pragma unroll
        for (int i = 0; i < 8; i++) {
            uint32_t x[1][8];
            float xd[2][4];
            float xs[2][4];

            gemm_words(&now->x[i * 8 + lane / 4][lane % 4 * 32], x[0]);
            for (int k = 0; k < 2; k++) {
                gemm_floats(now->d[i * 8 + lane % 4 * 2 + k], xd[k]);
                if (frag_has_offset<F>()) {
                    gemm_floats(now->s[i * 8 + lane % 4 * 2 + k], xs[k]);
                }
            }
            gemm_group<F, 1>(&w, &s, x, xd, xs, acc[i]);
        }
        __syncthreads(); /* now: read by all before the group after next is copied there */
    }
    gemm_store_tile(&p, t, token0, acc,
                    reinterpret_cast<float(*)[16][GEMM_TOKENS]>(static_cast<void *>(in)));
}

template <typename F> static int launch(struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, p->gated ? 4 : GEMM_WARPS);
    uint32_t n = (uint32_t)(p->token_end - p->token0);

    CUDA_LAUNCH(cu, dim3(blocks, cuda_div_up(n, GEMM_TOKENS)), dim3(GEMM_THREADS), 0, (tiles_q<F>),
                *p);
    return cuda_launched(cu, "tiles_q");
}

int cuda_gemm_q_tiles(struct cuda *cu, struct gemm *p, enum dtype type)
{
    static_assert(sizeof(struct operands) * 2 >= 4 * 16 * GEMM_TOKENS * sizeof(float),
                  "a gated pair's exchange fits");
    switch (type) {
#define TILES(TYPE, F)                                                                             \
    case TYPE:                                                                                     \
        return launch<F>(cu, p);
        FRAG_TYPES(TILES)
#undef TILES
    default:
        return -EINVAL;
    }
}
