/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, one decode row or output head: memory bound.
 *
 * Block: 8 warps, 16 rows at a time, tile after tile until all are done. Warp w takes units w,
 * w + 8, ... of each tile, through a ring of its own in shared memory: units are copied STAGES - 1
 * ahead, also across tiles, and the first of them before the kernel ahead has ended.
 *
 * Of the matrix instruction's 8 columns one token needs one, so the columns are blocks instead:
 * column 2j holds block j of a group and no other, the four instructions of a group add to the same
 * registers, and lane 4 g + t ends with the sums of block t alone. Types with scales of 16 columns
 * (Q3_K, Q6_K) use columns 2j and 2j + 1 for the halves of a block. What follows a sum (scales,
 * offsets) is so done once and not for 8 tokens.
 *
 * Bits are those of gemm_q_stream.cu: the same products, added in the same order. */

#include <cerrno>

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/gemm_q.cuh"

/* Stages of a warp's ring, of which two depths are compiled: the shallow one for as many blocks a
 * multiprocessor as registers allow, the deep one for two. Blocks are launched as many as fit: with
 * room left over, blocks of the next kernel would lie unevenly. */
template <typename F> static __host__ __device__ constexpr int row_stages(bool deep)
{
    constexpr int least = F::UNIT < 2500 ? 3 : 2;
    constexpr int shallow = (53 << 10) / (GEMM_WARPS * F::UNIT);

    return deep ? (106 << 10) / (GEMM_WARPS * F::UNIT) : shallow < least ? least : shallow;
}

/* Units of the block's tiles in the order of their use, half after half of a gated pair. */
template <typename F> struct row_ring {
    static constexpr int DEEP = row_stages<F>(true);
    static constexpr int SHALLOW = row_stages<F>(false);

    const uint8_t *from; /* the lane's first bytes of the unit to be copied */
    uint8_t *ring;
    int32_t tile; /* of that unit */
    int32_t n_tiles;
    int32_t n_units;
    int32_t n_mine; /* units of a tile for this warp */
    int32_t left;   /* of them, of this tile */
    int32_t half;
    int32_t at;   /* byte of the ring: the unit to be used */
    int32_t room; /* and where there is room for one */
    int32_t last; /* the last unit's */
    bool deep;
};

template <typename F> CUDA_INLINE void ring_to_tile(const struct gemm *p, struct row_ring<F> *r)
{
    int32_t block = r->tile;
    int part = gemm_part_of(p, &block);

    r->left = r->n_mine;
    r->from = p->part[part + r->half].w +
              ((uint64_t)block * r->n_units + (int32_t)threadIdx.x / WARP) * F::UNIT +
              threadIdx.x % WARP * 16;
}

/* Begins the copy of one more unit, if there is one. */
template <typename F> CUDA_INLINE void ring_push(const struct gemm *p, struct row_ring<F> *r)
{
    constexpr int N = F::UNIT / 16;
    int lane = (int)threadIdx.x % WARP;
    uint8_t *to = r->ring + r->room + lane * 16;

    static_assert(F::UNIT % 16 == 0, "copied by 16 bytes");
    if (r->tile < r->n_tiles) {
#pragma unroll
        for (int i = 0; i < N / WARP; i++) {
            async_copy16(to + i * 512, r->from + i * 512);
        }
        if (N % WARP && lane < N % WARP) {
            async_copy16(to + N / WARP * 512, r->from + N / WARP * 512);
        }
        r->from += GEMM_WARPS * F::UNIT;
        if (--r->left == 0) {
            r->tile += p->gated && r->half == 0 ? 0 : (int32_t)gridDim.x;
            r->half = p->gated && r->half == 0;
            if (r->tile < r->n_tiles) {
                ring_to_tile(p, r);
            }
        }
    }
    async_commit();
}

template <typename F>
CUDA_INLINE void ring_start(const struct gemm *p, int32_t n_tiles, bool deep, uint8_t *shared,
                            struct row_ring<F> *r)
{
    int warp = (int)threadIdx.x / WARP;

    r->deep = deep;
    r->last = (row_stages<F>(deep) - 1) * F::UNIT;
    r->ring = shared + warp * (r->last + F::UNIT);
    r->n_units = (int32_t)frag_units(p->n_cols, F::COLS);
    r->n_mine = (r->n_units - warp + GEMM_WARPS - 1) / GEMM_WARPS;
    r->n_tiles = r->n_mine > 0 ? n_tiles : 0;
    r->tile = (int32_t)blockIdx.x;
    r->half = 0;
    r->room = 0;
    r->at = 0;
    if (r->tile < r->n_tiles) {
        ring_to_tile(p, r);
    }
    for (; r->room < r->last; r->room += F::UNIT) {
        ring_push(p, r);
    }
}

/* The next unit, there for all lanes. Valid until the next call. */
template <typename F>
CUDA_INLINE const uint8_t *ring_pop(const struct gemm *p, struct row_ring<F> *r)
{
    const uint8_t *unit = r->ring + r->at;

    if (r->deep) {
        async_wait<row_ring<F>::DEEP - 2>();
    } else {
        async_wait<row_ring<F>::SHALLOW - 2>();
    }
    __syncwarp(); /* unit: copied by all lanes; the one before it: read by all, its room is free */
    ring_push(p, r);
    r->room = r->at;
    r->at = r->at == r->last ? 0 : r->at + F::UNIT;
    return unit;
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Which bits of an activation word the lane has in the four instructions of a group: column g is
 * block g / 2's, or nobody's. */
struct row_masks {
    uint32_t low[4]; /* elements 0..15 of a block */
    uint32_t high[4];
};

template <typename F> CUDA_INLINE struct row_masks masks_of(void)
{
    int lane = (int)threadIdx.x % WARP;
    bool odd = lane / 4 % 2 != 0;
    struct row_masks m;

    for (int j = 0; j < 4; j++) {
        m.low[j] = lane / 8 == j && !odd ? 0xffffffffu : 0;
        m.high[j] = lane / 8 == j && odd == (F::SCALES == FRAG_Q6) ? 0xffffffffu : 0;
    }
    return m;
}

/* 16 rows times one group of 4 blocks: of rows g and g + 8 the lane adds block t's product. at: the
 * lane's first byte of the group's activations; block: block t's number. */
template <typename F, int PIECES>
CUDA_INLINE void row_group(const struct gemm *p, const uint8_t *unit, int group,
                           const struct row_masks *m, uint32_t at, uint32_t block, float acc[2])
{
    constexpr bool HALVES = F::SCALES == FRAG_Q6;
    constexpr int FROM = HALVES ? 0 : (int)GEMM_MAGIC;
    const int from[4] = {FROM, FROM, FROM, FROM};
    int lane = (int)threadIdx.x % WARP;
    struct frag_codes w;
    int c[PIECES][4];
    int less[PIECES][4]; /* Q2_K: sums of the minima */

    frag_load<F>(unit, group, lane, &w);
    for (int piece = 0; piece < PIECES; piece++) {
        uint2 x = *reinterpret_cast<const uint2 *>(p->xq + piece * p->piece + at);

#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t a[4] = {w.lo[0][j], w.lo[1][j], w.hi[0][j], w.hi[1][j]};
            uint32_t b[2] = {x.x & m->low[j], x.y & m->high[j]};

            mma_s8_k32(c[piece], a, b, j == 0 ? from : c[piece]);
            if (F::SCALES == FRAG_Q2) {
                frag_minima(&w, j, a);
                mma_s8_k32(less[piece], a, b, j == 0 ? from : less[piece]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        struct frag_scale1 s = frag_scale_one<F>(unit, group, lane / 4 + r * 8, lane % 4);
        float v[PIECES];

        for (int piece = 0; piece < PIECES; piece++) {
            v[piece] = HALVES ? (float)(c[piece][2 * r] * s.sub[0] + c[piece][2 * r + 1] * s.sub[1])
                              : gemm_of_magic(c[piece][2 * r]);
            if (F::SCALES == FRAG_Q2) {
                v[piece] = gemm_less(v[piece], gemm_of_magic(less[piece][2 * r]), s.d, s.m);
            }
        }
        if (PIECES == 2) {
            v[0] += v[PIECES - 1] * (1.0f / 254.0f);
        }
        acc[r] += v[0] * (gemm_scale<F>(s.d) * p->xd[block]);
        if (frag_has_offset<F>()) {
            acc[r] += s.m * p->xs[block];
        }
    }
}

/* `store`: what becomes of the heads, or NULL. */
template <typename F, int PIECES>
CUDA_INLINE void row_tiles(const struct gemm &p, int32_t n_tiles, bool deep,
                           const struct cuda_store *store, float *heads)
{
    __shared__ float red[2][2][GEMM_WARPS][16]; /* by tiles even and odd, half, warp, row */
    CUDA_SHARED(uint8_t, shared);
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    int turn = 0;
    uint32_t col = (uint32_t)(warp * F::COLS);
    uint32_t at0 = (uint32_t)(p.token0 * p.pad + lane % 4 * 32 + lane / 8 * 8) + col;
    uint32_t block0 = (uint32_t)(p.token0 * (p.pad / 32) + lane % 4) + col / 32;
    struct row_masks masks = masks_of<F>();
    struct row_ring<F> ring {
    };

    grid_begin(); /* weights come in while the kernel ahead still runs */
    ring_start(&p, n_tiles, deep, shared, &ring);
    grid_wait();
    for (int32_t tile = (int32_t)blockIdx.x; tile < n_tiles; tile += (int32_t)gridDim.x, turn++) {
        int32_t block = tile;
        int part = gemm_part_of(&p, &block);

        for (int half = 0; half < (p.gated ? 2 : 1); half++) {
            float acc[2] = {0.0f, 0.0f};
            uint32_t at = at0;
            uint32_t b = block0;

            for (int32_t u = ring.n_mine; u > 0; u--) {
                const uint8_t *unit = ring_pop(&p, &ring);

#pragma unroll
                for (int group = 0; group < F::GROUPS; group++) {
                    row_group<F, PIECES>(&p, unit, group, &masks, at + group * 128, b + group * 4,
                                         acc);
                }
                at += GEMM_WARPS * F::COLS;
                b += GEMM_WARPS * F::BLOCKS;
            }
            for (int r = 0; r < 2; r++) {
                acc[r] += __shfl_xor_sync(ALL_LANES, acc[r], 1);
                acc[r] += __shfl_xor_sync(ALL_LANES, acc[r], 2);
                if (lane % 4 == 0) {
                    red[turn % 2][half][warp][lane / 4 + r * 8] = acc[r];
                }
            }
        }
        __syncthreads(); /* red: written above, read by one warp; two turns on written again */
        if (warp == turn % GEMM_WARPS && lane < 16 && block * 16 + lane < p.part[part].n_rows) {
            float sum[2] = {0.0f, 0.0f};

            for (int w = 0; w < GEMM_WARPS; w++) {
                sum[0] += red[turn % 2][0][w][lane];
                sum[1] += p.gated ? red[turn % 2][1][w][lane] : 0.0f;
            }
            if (p.gated) {
                gemm_finish_gated(&p, block * 16 + lane, p.token0, sum[0], sum[1]);
            } else {
                gemm_finish(&p, part, block * 16 + lane, p.token0, sum[0]);
            }
        }
    }
    for (int32_t tile = (int32_t)blockIdx.x; store && tile < n_tiles; tile += (int32_t)gridDim.x) {
        int32_t block = tile;
        int part = gemm_part_of(&p, &block);

        gemm_store_heads<1>(&p, store, part, block * 16, heads);
    }
}

/* Blocks a multiprocessor that registers are to allow. */
template <typename F, int PIECES, bool STORE> static constexpr int row_blocks(void)
{
    if (F::SCALES == FRAG_Q2 && PIECES == 2) {
        return 2; /* two sums of each piece */
    }
    return STORE ? 3 : PIECES == 1 && F::BLOCKS == 4 ? 4 : 3;
}

template <typename F, int PIECES>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (row_blocks<F, PIECES, false>()))
    row_q(struct gemm p, int32_t n_tiles, bool deep)
{
    row_tiles<F, PIECES>(p, n_tiles, deep, NULL, NULL);
}

template <typename F>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (row_blocks<F, 1, true>()))
    row_q_store(struct gemm p, int32_t n_tiles, bool deep, struct cuda_store store)
{
    __shared__ float heads[1024];

    row_tiles<F, 1>(p, n_tiles, deep, &store, heads);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* Shared bytes of a block beside the ring, the system's among them. */
enum { ROW_BESIDE = 3 << 10, ROW_BESIDE_STORE = 7 << 10 };

template <typename F> static size_t ring_bytes(bool deep)
{
    return (size_t)GEMM_WARPS * (size_t)row_stages<F>(deep) * F::UNIT;
}

/* Measured on an H200: the deep ring pays for units of more than 2 KB, but not for 4-bit codes of
 * 256 columns, whose arithmetic wants more warps; for small units where there are few tiles. What
 * stores heads has few tiles, and a block that has two of them stores twice. */
template <typename F> static bool wants_deep(bool store, bool few)
{
    return store || F::UNIT <= 2048 ? few : F::CODE == 8 || F::HIGH > 0;
}

template <typename F, int PIECES>
static int launch(struct cuda *cu, struct gemm *p, const struct cuda_store *store)
{
    uint32_t n_tiles = gemm_blocks(p, 1);
    uint32_t sms = (uint32_t)cu->n_sms;
    uint32_t blocks = store ? row_blocks<F, PIECES, true>() : row_blocks<F, PIECES, false>();
    size_t beside = store ? ROW_BESIDE_STORE : ROW_BESIDE;
    size_t room = cu->shared_max + 1024;
    bool deep =
        2 * (ring_bytes<F>(true) + beside) <= room && wants_deep<F>(store, n_tiles <= 2 * sms);
    size_t shared = ring_bytes<F>(deep);
    uint32_t fit = (uint32_t)(room / (shared + beside));

    blocks = sms * (fit < 1 ? 1 : fit < blocks ? fit : blocks);
    dim3 grid(n_tiles < blocks ? n_tiles : blocks);
    if (store) {
        CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), shared, (row_q_store<F>), *p,
                                (int32_t)n_tiles, deep, *store);
    } else {
        CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), shared, (row_q<F, PIECES>), *p,
                                (int32_t)n_tiles, deep);
    }
    return cuda_launched(cu, "row_q");
}

int cuda_gemm_q_row(struct cuda *cu, struct gemm *p, enum dtype type, bool exact,
                    const struct cuda_store *store)
{
    switch (type) {
#define ROW(TYPE, F)                                                                               \
    case TYPE:                                                                                     \
        return exact && !store ? launch<F, 2>(cu, p, NULL) : launch<F, 1>(cu, p, store);
        FRAG_TYPES(ROW)
#undef ROW
    default:
        return -EINVAL;
    }
}
