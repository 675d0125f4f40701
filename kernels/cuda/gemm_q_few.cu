/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, 9 and more decode rows and output heads: bound by instructions.
 *
 * Block: 8 warps, one a multiprocessor; 1, 2, 4 or 8 tiles of 16 rows at once, 16 or 32 tokens. A
 * warp has one tile and all tokens, so a code is unpacked once for them. Warps that have the same
 * tile share out its columns: they take units of the weight that lie side by side, a chunk. The
 * activations of a chunk come to shared memory once for all tiles of the block, a unit for its
 * warp. Both are asked for two steps of 256 columns ahead, across tiles; the first weights before
 * the kernel ahead has ended.
 *
 * Bits are those of gemm_q_stream.cu: there warp w sums units w, w + 8, ...; such a sum is a strand
 * here. Warps sum strand after strand, and add them to their tile's total in the strands' order.
 *
 * Bytes from L2 a launch: the weight once per 16 or 32 tokens, activations once per tiles at once.
 * A matrix instruction has 22 (Q4_0) to 27 (Q4_K) others beside it by 32 tokens. Not measured;
 * docs/design/cuda.md has what counts say. */

#include <cerrno>

#include "kernels/cuda/gemm_q.cuh"

enum {
    ROW = 144, /* bytes of a token's 128 codes: 8 lanes of a quarter warp meet different banks */
    DEEP = 3,  /* steps under way, the one in use among them; or, where there is no room, two */
    SHALLOW = 2,
    FEW_SHIFT = 3,       /* tiles at once: 1 << shift, units of a chunk: 8 >> shift */
    FEW_STATIC = 1 << 10 /* shared bytes of a block beside the dynamic ones, at most */
};

/* Chunks of a step, which is 256 columns of each warp: two of a strand that follow each other, or
 * one. */
template <typename F> static constexpr int EACH = 2 / F::GROUPS;

/* A block's shared memory: totals (tiles, NT, lanes, 4); stages of activations (EACH, 8 >> shift
 * units, groups), each of codes (PIECES, tokens, ROW), scales (tokens, 4) and sums (the same); and
 * stages of weights (EACH, 8 warps). */
template <typename F, int PIECES, int NT> struct few {
    static constexpr int TOKENS = 8 * NT;
    static constexpr int CODES = PIECES * TOKENS * ROW;
    static constexpr int GROUP = CODES + TOKENS * 16 * (frag_has_offset<F>() ? 2 : 1);
    static constexpr int X = F::GROUPS * GROUP; /* a unit's */
    static constexpr int WEIGHTS = GEMM_WARPS * F::UNIT;
    static constexpr int TOTAL = NT * WARP * 16; /* of a tile */

    static constexpr size_t shared(int32_t shift, int32_t stages)
    {
        return (size_t)((TOTAL << shift) +
                        stages * EACH<F> * ((GEMM_WARPS >> shift) * X + WEIGHTS));
    }
};

template <typename F> CUDA_INLINE int32_t few_units(const struct gemm &p)
{
    return (int32_t)frag_units(p.n_cols, F::COLS);
}

template <typename F> CUDA_INLINE int32_t few_chunks(const struct gemm &p, int32_t shift)
{
    return (few_units<F>(p) + (GEMM_WARPS >> shift) - 1) >> (3 - shift);
}

CUDA_INLINE int32_t few_token0(const struct gemm &p, int32_t tokens)
{
    return p.token0 + (int32_t)blockIdx.y * tokens;
}

/* Which of the tiles at once is the warp's, and which of a chunk's units. */
CUDA_INLINE int32_t few_tile(int32_t shift)
{
    return ((int32_t)threadIdx.x / WARP) & ((1 << shift) - 1);
}

CUDA_INLINE int32_t few_unit(int32_t shift)
{
    return ((int32_t)threadIdx.x / WARP) >> shift;
}

/* What comes in next: chunks of the tiles from `tile` on. Chunks go by strands: 0, tiles, 2
 * tiles.., then 1, 1 + tiles... */
struct few_at {
    int32_t tile, chunk;
};

template <typename F>
CUDA_INLINE void few_next(const struct gemm &p, const struct share &s, int32_t shift,
                          struct few_at *at)
{
    int32_t n = few_chunks<F>(p, shift);

    at->chunk += EACH<F> << shift;
    if (at->chunk < n) {
        return;
    }
    at->chunk = (at->chunk & ((1 << shift) - 1)) + 1;
    if (at->chunk == min(1 << shift, n)) {
        at->chunk = 0;
        at->tile += s.group;
    }
}

/* A chunk's activations to `to`; what lies beyond the last token is the last token again. */
template <typename F, int PIECES, int NT>
CUDA_INLINE void few_fetch(const struct gemm &p, int32_t shift, int32_t chunk, uint8_t *to)
{
    using S = few<F, PIECES, NT>;
    constexpr uint32_t ROWS = GEMM_THREADS / 8; /* copied at once, by 8 threads each */
    uint32_t tid = (uint32_t)thread_anew();
    int32_t first = (chunk << (3 - shift)) * F::GROUPS;
    int32_t n = min(F::GROUPS << (3 - shift), few_units<F>(p) * F::GROUPS - first);
    int32_t token = few_token0(p, S::TOKENS) + (int32_t)(tid / 8 % S::TOKENS);
    uint32_t from = (uint32_t)(min(token, p.token_end - 1) * p.pad + first * 128) + tid % 8 * 16;
    uint8_t *codes = to + tid / 8 % S::TOKENS * ROW + tid % 8 * 16;

#pragma unroll 1
    for (int32_t i = (int32_t)(tid / 8 / S::TOKENS); i < n; i += ROWS / S::TOKENS) {
        for (int piece = 0; piece < PIECES; piece++) {
            async_copy16(codes + i * S::GROUP + piece * S::TOKENS * ROW,
                         p.xq + piece * p.piece + from + i * 128);
        }
    }
    token = few_token0(p, S::TOKENS) + (int32_t)(tid % S::TOKENS);
    from = (uint32_t)(min(token, p.token_end - 1) * (p.pad / 32) + first * 4);
    to += S::CODES + tid % S::TOKENS * 16;
#pragma unroll 1
    for (int32_t i = (int32_t)(tid / S::TOKENS); i < n; i += GEMM_THREADS / S::TOKENS) {
        async_copy16(to + i * S::GROUP, p.xd + from + i * 4);
        if (frag_has_offset<F>()) {
            async_copy16(to + i * S::GROUP + S::TOKENS * 16, p.xs + from + i * 4);
        }
    }
}

/* The warp's units of the next step, where it has some, to `to`. */
template <typename F>
CUDA_INLINE void few_fetch_units(const struct gemm &p, const struct share &s, int32_t shift,
                                 const struct few_at &at, uint8_t *to)
{
    constexpr int N = F::UNIT / 16;
    int32_t unit = (at.chunk << (3 - shift)) + few_unit(shift);
    int32_t tile = at.tile + few_tile(shift);
    int lane = (int)threadIdx.x % WARP;
    int32_t row0;

    static_assert(F::UNIT % 16 == 0, "copied by 16 bytes");
    if (tile >= min(at.tile + s.group, s.end)) {
        return;
    }
    const uint8_t *w = p.part[part_of_tile(p, tile, &row0)].w;
    const uint8_t *from =
        w + ((uint64_t)((uint32_t)row0 / 16) * (uint32_t)few_units<F>(p) + (uint32_t)unit) *
                F::UNIT;

    from += lane * 16;
    to += lane * 16;
#pragma unroll
    for (int each = 0; each < EACH<F>; each++) {
        if (unit + each * GEMM_WARPS < few_units<F>(p)) {
#pragma unroll
            for (int i = 0; i < N / WARP; i++) {
                async_copy16(to + i * 512, from + i * 512);
            }
            if (N % WARP && lane < N % WARP) {
                async_copy16(to + N / WARP * 512, from + N / WARP * 512);
            }
        }
        from += GEMM_WARPS * F::UNIT; /* the strand's next */
        to += GEMM_WARPS * F::UNIT;
    }
}

/* 16 rows by all tokens, 128 columns. */
template <typename F, int PIECES, int NT>
CUDA_INLINE void few_sum(const uint8_t *unit, int group, const uint8_t *x, float acc[NT][4][4])
{
    using S = few<F, PIECES, NT>;
    int lane = (int)threadIdx.x % WARP;
    const uint8_t *codes = x + lane / 4 * ROW + lane % 4 * 32;
    const uint8_t *scales = x + S::CODES + lane % 4 * 32;
    struct frag_codes w;
    struct gemm_scales s;

    frag_load<F>(unit, group, lane, &w);
    gemm_scales_load<F>(unit, group, lane, &s);
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
#pragma unroll
        for (int i = 0; i < NT; i++) {
            uint32_t v[PIECES][8];
            float2 d[2], m[2];

            for (int piece = 0; piece < PIECES; piece++) {
                uint4 q = *reinterpret_cast<const uint4 *>(codes + (piece * NT + i) * 8 * ROW +
                                                           pair * 16);

                v[piece][pair * 4] = q.x, v[piece][pair * 4 + 1] = q.y;
                v[piece][pair * 4 + 2] = q.z, v[piece][pair * 4 + 3] = q.w;
            }
            for (int k = 0; k < 2; k++) {
                const uint8_t *at = scales + (i * 8 + k) * 16 + pair * 8;

                d[k] = *reinterpret_cast<const float2 *>(at);
                if (frag_has_offset<F>()) {
                    m[k] = *reinterpret_cast<const float2 *>(at + S::TOKENS * 16);
                }
            }
#pragma unroll
            for (int j = pair * 2; j < pair * 2 + 2; j++) {
                float sum[4];

                gemm_scaled<F, PIECES>(&w, &s, j, v, sum);
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    acc[i][j][c] += sum[c] * (j % 2 ? d[c % 2].y : d[c % 2].x);
                    if (frag_has_offset<F>()) {
                        acc[i][j][c] += s.row[c / 2].m[j] * (j % 2 ? m[c % 2].y : m[c % 2].x);
                    }
                }
            }
        }
    }
}

/* The strands that the block's warps have summed, in their order, to their tiles' totals; acc is 0
 * then. `has`: the warp has a tile; `first`: totals begin. */
template <int NT>
CUDA_INLINE void few_add(int32_t shift, bool has, bool first, float acc[NT][4][4], float4 *totals)
{
    float4 *total = totals + few_tile(shift) * NT * WARP + (int32_t)threadIdx.x % WARP;

#pragma unroll 1
    for (int32_t unit = 0; unit < GEMM_WARPS >> shift; unit++) {
        if (has && unit == few_unit(shift)) {
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const float(*a)[4] = acc[i];
                float4 t = {0.0f, 0.0f, 0.0f, 0.0f};

                if (!first || unit > 0) {
                    t = total[i * WARP];
                }
                t.x += (a[0][0] + a[1][0]) + (a[2][0] + a[3][0]);
                t.y += (a[0][1] + a[1][1]) + (a[2][1] + a[3][1]);
                t.z += (a[0][2] + a[1][2]) + (a[2][2] + a[3][2]);
                t.w += (a[0][3] + a[1][3]) + (a[2][3] + a[3][3]);
                total[i * WARP] = t;
            }
        }
        __syncthreads(); /* total: written by a warp of each tile, read by the next one */
    }
#pragma unroll
    for (int i = 0; i < NT * 16; i++) {
        acc[i / 16][i / 4 % 4][i % 4] = 0.0f;
    }
}

/* Totals of tiles [tile, tile + n), times the tokens' factors, to y. */
template <int NT>
CUDA_INLINE void few_store(const struct gemm &p, int32_t tile, int32_t n, const float *totals)
{
    constexpr int SUMS = NT * WARP * 4; /* of a tile */
    int32_t each = p.gated ? 2 : 1;

#pragma unroll 1
    for (int32_t i = thread_anew(); i < n / each * SUMS; i += GEMM_THREADS) {
        int32_t lane = i / 4 % WARP;
        int32_t at = i / SUMS * each;
        int32_t row0;
        int part = part_of_tile(p, tile + at, &row0);
        int32_t row = row0 + lane / 4 + i % 4 / 2 * 8;
        int32_t token = few_token0(p, 8 * NT) + i / (4 * WARP) % NT * 8 + lane % 4 * 2 + i % 2;

        if (row < p.part[part].n_rows && token < p.token_end) {
            float factor = p.xe[token];
            float sum = totals[at * SUMS + i % SUMS] * factor;

            if (p.gated) {
                gemm_finish_gated(&p, row, token, sum, totals[(at + 1) * SUMS + i % SUMS] * factor);
            } else {
                gemm_finish(&p, part, row, token, sum);
            }
        }
    }
}

template <typename F, int PIECES, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, 1)
    stream_q_few(struct gemm p, int32_t shift, int32_t stages)
{
    using S = few<F, PIECES, NT>;
    CUDA_SHARED(uint8_t, shared);
    int32_t x_bytes = (GEMM_WARPS >> shift) * S::X; /* a chunk's */
    uint8_t *x = shared + (S::TOTAL << shift);
    uint8_t *weights = x + stages * EACH<F> * x_bytes + (int32_t)threadIdx.x / WARP * F::UNIT;
    struct share s = share_of(p, 1 << shift);
    struct few_at ahead = {s.begin, 0}; /* stages - 1 steps */
    int32_t stage = 0;
    float acc[NT][4][4] = {}; /* by 8 tokens, block of a group, place in the fragment */

    grid_begin(); /* weights come in while the kernel ahead still runs */
    for (int32_t i = 0; i < stages - 1; i++) {
        if (ahead.tile < s.end) {
            few_fetch_units<F>(p, s, shift, ahead, weights + i * EACH<F> * S::WEIGHTS);
            few_next<F>(p, s, shift, &ahead);
        }
    }
    grid_wait();
    ahead = {s.begin, 0};
    for (int32_t i = 0; i < stages - 1; i++) {
        if (ahead.tile < s.end) {
            for (int each = 0; each < EACH<F>; each++) {
                few_fetch<F, PIECES, NT>(p, shift, ahead.chunk + (each << shift),
                                         x + (i * EACH<F> + each) * x_bytes);
            }
            few_next<F>(p, s, shift, &ahead);
        }
        async_commit();
    }
    for (int32_t tile = s.begin; tile < s.end; tile += s.group) {
        int32_t n = min(s.group, s.end - tile);

        for (int32_t strand = 0; strand < min(1 << shift, few_chunks<F>(p, shift)); strand++) {
            for (int32_t chunk = strand; chunk < few_chunks<F>(p, shift);
                 chunk += EACH<F> << shift) {
                int32_t free = (stage > 0 ? stage : stages) - 1;

                if (stages == DEEP) {
                    async_wait<DEEP - 2>();
                } else {
                    async_wait<SHALLOW - 2>();
                }
                __syncthreads(); /* stage: copied by all; the one before: read by all */
                if (ahead.tile < s.end) {
                    for (int each = 0; each < EACH<F>; each++) {
                        few_fetch<F, PIECES, NT>(p, shift, ahead.chunk + (each << shift),
                                                 x + (free * EACH<F> + each) * x_bytes);
                    }
                    few_fetch_units<F>(p, s, shift, ahead, weights + free * EACH<F> * S::WEIGHTS);
                    few_next<F>(p, s, shift, &ahead);
                }
                async_commit();
#pragma unroll
                for (int i = 0; i < 2; i++) { /* 128 columns */
                    int each = i / F::GROUPS;
                    int32_t unit = ((chunk + (each << shift)) << (3 - shift)) + few_unit(shift);

                    if (few_tile(shift) < n && unit < few_units<F>(p)) {
                        few_sum<F, PIECES, NT>(
                            weights + (stage * EACH<F> + each) * S::WEIGHTS, i % F::GROUPS,
                            x + (stage * EACH<F> + each) * x_bytes + few_unit(shift) * S::X +
                                i % F::GROUPS * S::GROUP,
                            acc);
                    }
                }
                stage = stage + 1 < stages ? stage + 1 : 0;
            }
            few_add<NT>(shift, few_tile(shift) < n, strand == 0, acc,
                        reinterpret_cast<float4 *>(static_cast<void *>(shared)));
        }
        few_store<NT>(p, tile, n,
                      reinterpret_cast<const float *>(static_cast<const void *>(shared)));
    }
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* What a launch goes by; stages 0: there is no room on this device. */
struct few_shape {
    int32_t shift, stages;
    size_t shared;
};

/* Tiles at once: as many as a multiprocessor has to do, because activations come once for all of
 * them; four or eight where it has more, by which leaves fewer warps idle. */
static int32_t shift_of(const struct cuda *cu, uint32_t n_tiles, bool gated)
{
    uint32_t each = cuda_div_up(n_tiles, (uint32_t)cu->n_sms);

    if (each <= 2) {
        return each == 1 && !gated ? 0 : 1;
    }
    return cuda_div_up(each, 4) * 4 < cuda_div_up(each, 8) * 8 ? 2 : FEW_SHIFT;
}

template <typename F, int PIECES, int NT>
static struct few_shape choose(const struct cuda *cu, uint32_t n_tiles, bool gated)
{
    size_t room = cu->shared_max - FEW_STATIC;

    for (int32_t shift = shift_of(cu, n_tiles, gated); shift <= FEW_SHIFT; shift++) {
        for (int32_t stages = DEEP; stages >= SHALLOW; stages--) {
            size_t shared = few<F, PIECES, NT>::shared(shift, stages);

            if (shared <= room) {
                return {shift, stages, shared};
            }
        }
    }
    return {};
}

template <typename F, int PIECES, int NT>
static bool launch(struct cuda *cu, struct gemm *p)
{
    uint32_t blocks = gemm_blocks(p, 1);
    uint32_t n = (uint32_t)(p->token_end - p->token0);
    struct few_shape s = choose<F, PIECES, NT>(cu, blocks * (p->gated ? 2 : 1), p->gated);
    dim3 grid(min(blocks, (uint32_t)cu->n_sms), cuda_div_up(n, few<F, PIECES, NT>::TOKENS));

    if (s.stages == 0) {
        return false;
    }
    CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), s.shared, (stream_q_few<F, PIECES, NT>),
                            *p, s.shift, s.stages);
    return true;
}

/* 32 tokens at a time where there are more than 16 and shared memory for them. */
template <typename F> static int launch_any(struct cuda *cu, struct gemm *p, bool exact)
{
    bool wide = !exact && p->token_end - p->token0 > 16;

    if ((wide && launch<F, 1, 4>(cu, p)) || (!exact && launch<F, 1, 2>(cu, p)) ||
        (exact && launch<F, 2, 2>(cu, p))) {
        return cuda_launched(cu, "stream_q_few");
    }
    return -EINVAL;
}

int cuda_gemm_q_few(struct cuda *cu, struct gemm *p, enum dtype type, bool exact)
{
    switch (type) {
#define FEW(TYPE, F)                                                                               \
    case TYPE:                                                                                     \
        return launch_any<F>(cu, p, exact);
        FRAG_TYPES(FEW)
#undef FEW
    default:
        return -EINVAL;
    }
}
