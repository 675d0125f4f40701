/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, prefill rows: bound by instructions.
 *
 * Block: 8 warps, 128 rows (64 of a gated pair) and 64 tokens; two blocks a multiprocessor, for
 * which a thread has 128 registers. Weights go straight to registers (fragment order, no shared
 * memory), each read once for 64 tokens. Activations come through shared memory in pieces of 128
 * columns: two are on their way while one is used. Rows of the pieces are 144 bytes apart, so the 8
 * lanes of a quarter warp meet different banks. Shared memory: 34 KB.
 *
 * A matrix instruction (16 rows, 8 tokens, 32 columns) has 16 others beside it, or 20 with offsets:
 * scales change every 32 columns. On an H200 the loop reaches 185 to 240 TOP/s, Q6_K 160. */

#include <cerrno>

#include "kernels/cuda/gemm_q.cuh"

enum { ROW = 144, COPIES = GEMM_TOKENS * 8, STAGES = 3 };

struct operands {
    uint8_t x[GEMM_TOKENS][ROW];
    float d[GEMM_TOKENS][4];
    float s[GEMM_TOKENS][4];
};

/* 128 columns of 64 tokens; what lies beyond the last token is the last token again. */
CUDA_INLINE void fetch(const struct gemm *p, int32_t group, struct operands *to)
{
    int tid = thread_anew();
    int32_t token0 = p->token0 + (int32_t)blockIdx.y * GEMM_TOKENS;
    int32_t last = p->token_end - 1;

#pragma unroll
    for (int k = 0; k < COPIES / GEMM_THREADS; k++) {
        int row = tid / 8 + k * (GEMM_THREADS / 8);

        async_copy16(&to->x[row][tid % 8 * 16], p->xq + (uint64_t)min(token0 + row, last) * p->pad +
                                                    group * 128 + tid % 8 * 16);
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
}

/* Of 8 tokens from `token` on and two blocks of the group, 2h and 2h + 1: a lane's operands. */
struct pair {
    uint32_t x[8]; /* words of blocks 2h and 2h + 1 at 4h.. */
    float d[2][2]; /* of tokens 2t and 2t + 1 */
    float s[2][2];
};

template <typename F>
CUDA_INLINE void pair_load(const struct operands *now, int token, int h, struct pair *ret)
{
    int lane = thread_anew() % WARP;
    uint4 v = *reinterpret_cast<const uint4 *>(&now->x[token + lane / 4][lane % 4 * 32 + h * 16]);

    ret->x[4 * h] = v.x, ret->x[4 * h + 1] = v.y;
    ret->x[4 * h + 2] = v.z, ret->x[4 * h + 3] = v.w;
    for (int k = 0; k < 2; k++) {
        float2 d = *reinterpret_cast<const float2 *>(&now->d[token + lane % 4 * 2 + k][2 * h]);

        ret->d[k][0] = d.x, ret->d[k][1] = d.y;
        if (frag_has_offset<F>()) {
            d = *reinterpret_cast<const float2 *>(&now->s[token + lane % 4 * 2 + k][2 * h]);
            ret->s[k][0] = d.x, ret->s[k][1] = d.y;
        }
    }
}

/* Is there a group of that number? Q2_K is short of a register and asks the kernel's parameter: its
 * rows are whole units. */
template <typename F> CUDA_INLINE bool is_there(const struct gemm *p, int32_t group, int32_t n)
{
    return F::SCALES == FRAG_Q2 ? group * 128 < p->n_cols : group < n;
}

/* Blocks a multiprocessor: Q5_0, and on sm_100 Q4_0, need a few registers more than there are for
 * two. */
template <typename F>
constexpr int BLOCKS = F::TYPE == DTYPE_Q5_0 || CUDA_ON_100(F::TYPE == DTYPE_Q4_0, false) ? 1 : 2;

/* Types that are short of registers make addresses of weights anew, and where the group lies in its
 * unit. */
template <typename F>
constexpr bool ANEW =
    CUDA_ON_86(F::TYPE == DTYPE_Q4_0 || F::TYPE == DTYPE_Q4_K || F::TYPE == DTYPE_Q5_K ||
                   F::TYPE == DTYPE_Q6_K,
               CUDA_ON_100(F::TYPE == DTYPE_Q5_1 || F::TYPE == DTYPE_Q8_0, false));

template <typename F> CUDA_INLINE int32_t in_unit(int32_t group)
{
    return (ANEW<F> ? anew(group) : group) % F::GROUPS;
}

template <typename F>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, BLOCKS<F>) tiles_q(struct gemm p)
{
    __shared__ __align__(16) struct operands in[STAGES];
    __shared__ struct gemm_tile of[GEMM_WARPS]; /* for the end; registers are full */
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    int32_t n_units = (int32_t)frag_units(p.n_cols, F::COLS);
    int32_t n_groups = n_units * F::GROUPS;
    float acc[8][4] = {};

    struct gemm_tile t = gemm_tile_of(&p, warp);
    int32_t last_tile = (p.part[t.part].n_rows - 1) / 16;
    const uint8_t *unit = p.part[t.part].w + (uint64_t)min(t.tile, last_tile) * n_units * F::UNIT;

    if (lane == 0) {
        of[warp] = t;
    }
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < n_groups) {
            fetch(&p, i, &in[i]);
        }
        async_commit();
    }
    for (int32_t group = 0, stage = 0; is_there<F>(&p, group, n_groups); group++) {
        const struct operands *now = &in[stage];
        struct frag_codes w;
        struct gemm_scales s;

        int at = F::SCALES == FRAG_Q2 || ANEW<F> ? thread_anew() % WARP : lane;

        frag_load<F>(unit, in_unit<F>(group), at, &w);
        gemm_scales_load<F>(unit, in_unit<F>(group), at, &s);
        unit += in_unit<F>(group) == F::GROUPS - 1 ? F::UNIT : 0;
        async_wait<STAGES - 2>();
        __syncthreads(); /* now: copied by all threads; the group before: read by all */
        if (is_there<F>(&p, group + STAGES - 1, n_groups)) {
            fetch(&p, group + STAGES - 1, &in[stage > 0 ? stage - 1 : STAGES - 1]);
        }
        async_commit();
        stage = stage < STAGES - 1 ? stage + 1 : 0;
#pragma unroll
        for (int n = 0; n < 2 * 8; n++) {
            int i = frag_has_offset<F>() ? n / 2 : n % 8;
            int pair = frag_has_offset<F>() ? n % 2 : n / 8;
            struct pair x;

            pair_load<F>(now, i * 8, pair, &x);
#pragma unroll
            for (int j = pair * 2; j < pair * 2 + 2; j++) {
                float v[4];

                gemm_block<F, false>(&w, &s, j, x.x, v);
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    acc[i][k] += v[k] * (gemm_scale<F>(s.row[k / 2].d[j]) * x.d[k % 2][j % 2]);
                    if (frag_has_offset<F>()) {
                        acc[i][k] += s.row[k / 2].m[j] * x.s[k % 2][j % 2];
                    }
                }
            }
        }
    }
    __syncthreads(); /* in: read by all before the exchange is written there */
    gemm_store_tile(&p, of[warp], p.token0 + (int32_t)blockIdx.y * GEMM_TOKENS, acc,
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
