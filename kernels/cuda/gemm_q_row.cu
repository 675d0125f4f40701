/* SPDX-License-Identifier: Apache-2.0 */
/* Quantised weights, one decode row or output head: memory bound.
 *
 * Block: 8 warps for each 16 rows, tile after tile until all are done. Warp w takes units w, w + 8,
 * ... of each tile, through a ring of its own in shared memory: units are copied STAGES - 1 ahead,
 * also across tiles, and the first of them before the kernel ahead has ended.
 *
 * Products but the output head and those that store heads have two tiles side by side, 16 warps: a
 * warp ends with 32 columns of y, a block of the next product's activations, and writes their codes
 * if it is asked to (codes.cuh). The same warps in half as many blocks: with fewer than two tiles a
 * multiprocessor some have none.
 *
 * Of the matrix instruction's 8 columns one token needs one, so the columns are blocks instead:
 * column 2j holds block j of a group and no other, the four instructions of a group add to the same
 * registers, and lane 4 g + t ends with the sums of block t alone. Types with scales of 16 columns
 * (Q3_K, Q6_K) use columns 2j and 2j + 1 for the halves of a block. What follows a sum (scales,
 * offsets) is so done once and not for 8 tokens.
 *
 * Bits are those of gemm_q_stream.cu: the same products, added in the same order. */

#include <cerrno>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/gemm_q.cuh"

/* Stages of a warp's ring, of which two depths are compiled, and 2: the shallow one for as many
 * warps a multiprocessor as registers allow, the deep one for 16. Blocks are launched as many as
 * fit: with room left over, blocks of the next kernel would lie unevenly. */
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
    int32_t left; /* of this warp's units of the tile */
    int32_t half;
    int32_t at; /* byte of the ring: the unit to be used; the one before leaves room */
    int32_t stages;
};

/* Byte of the ring's last unit. */
template <typename F> CUDA_INLINE int32_t ring_last(const struct row_ring<F> *r)
{
    return (r->stages - 1) * F::UNIT;
}

/* Units of a tile for this warp. */
template <typename F> CUDA_INLINE int32_t row_mine(const struct gemm *p)
{
    int32_t n = (int32_t)frag_units(p->n_cols, F::COLS);

    return (n - thread_anew() / WARP % GEMM_WARPS + GEMM_WARPS - 1) / GEMM_WARPS;
}

template <typename F> CUDA_INLINE void ring_to_tile(const struct gemm *p, struct row_ring<F> *r)
{
    int32_t block = r->tile;
    int part = gemm_part_of(p, &block);

    r->left = row_mine<F>(p);
    r->from = p->part[part + r->half].w +
              ((uint64_t)block * frag_units(p->n_cols, F::COLS) +
               (int32_t)threadIdx.x / WARP % GEMM_WARPS) *
                  F::UNIT +
              threadIdx.x % WARP * 16;
}

/* Begins the copy of one more unit, if there is one, to byte `room`. */
template <typename F, int TILES>
CUDA_INLINE void ring_push(const struct gemm *p, struct row_ring<F> *r, int32_t room)
{
    constexpr int N = F::UNIT / 16;
    int lane = (int)threadIdx.x % WARP;
    uint8_t *to = r->ring + room + lane * 16;

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
            r->tile += p->gated && r->half == 0 ? 0 : (int32_t)gridDim.x * TILES;
            r->half = p->gated && r->half == 0;
            if (r->tile < r->n_tiles) {
                ring_to_tile(p, r);
            }
        }
    }
    async_commit();
}

template <typename F, int TILES>
CUDA_INLINE void ring_start(const struct gemm *p, int32_t n_tiles, int32_t stages, uint8_t *shared,
                            struct row_ring<F> *r)
{
    r->stages = stages;
    r->ring = shared + (int)threadIdx.x / WARP * (ring_last(r) + F::UNIT);
    r->n_tiles = row_mine<F>(p) > 0 ? n_tiles : 0;
    r->tile = (int32_t)blockIdx.x * TILES + (int32_t)threadIdx.x / GEMM_THREADS;
    r->half = 0;
    r->at = 0;
    if (r->tile < r->n_tiles) {
        ring_to_tile(p, r);
    }
    for (int32_t room = 0; room < ring_last(r); room += F::UNIT) {
        ring_push<F, TILES>(p, r, room);
    }
}

/* The next unit, there for all lanes. Valid until the next call. */
template <typename F, int TILES>
CUDA_INLINE const uint8_t *ring_pop(const struct gemm *p, struct row_ring<F> *r)
{
    const uint8_t *unit = r->ring + r->at;

    if (r->stages == row_ring<F>::DEEP) {
        async_wait<row_ring<F>::DEEP - 2>();
    } else if (r->stages == row_ring<F>::SHALLOW) {
        async_wait<row_ring<F>::SHALLOW - 2>();
    } else {
        async_wait<0>();
    }
    __syncwarp(); /* unit: copied by all lanes; the one before it: read by all, its room is free */
    ring_push<F, TILES>(p, r, r->at == 0 ? ring_last(r) : r->at - F::UNIT);
    r->at = r->at == ring_last(r) ? 0 : r->at + F::UNIT;
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
        v[0] = gemm_is_plain<F, PIECES>() ? gemm_times(c[0][2 * r], s.d)
                                          : v[0] * gemm_scale<F>(s.d);
        acc[r] += v[0] * p->xd[block];
        if (frag_has_offset<F>()) {
            acc[r] += s.m * p->xs[block];
        }
    }
}

/* What the sums of the one row are multiplied by; by a warp. */
CUDA_INLINE float row_factor(const struct gemm *p)
{
    if (p->squares) {
        return codes_inv_of(p->squares, p->n_cols, p->eps);
    }
    return p->xe ? p->xe[p->token0] : 1.0f;
}

/* The warps' sums of a turn: by half of a gated pair, tile, warp, row. */
template <int TILES> using row_sums = float[2][TILES][GEMM_WARPS][16];

/* The end of tiles [tile, tile + TILES), by a warp: a row a lane. */
template <int TILES>
CUDA_INLINE void row_finish(const struct gemm *p, int32_t tile, int32_t n_tiles,
                            const row_sums<TILES> &red, const struct cuda_codes *codes)
{
    int lane = (int)threadIdx.x % WARP;
    float factor = row_factor(p);
    int32_t block = tile + lane / 16;
    float y = 0.0f;

    if (lane < TILES * 16 && block < n_tiles) {
        int part = gemm_part_of(p, &block);
        int32_t row = block * 16 + lane % 16;
        float sum[2] = {0.0f, 0.0f};

        for (int w = 0; w < GEMM_WARPS; w++) {
            sum[0] += red[0][lane / 16 % TILES][w][lane % 16];
            sum[1] += p->gated ? red[1][lane / 16 % TILES][w][lane % 16] : 0.0f;
        }
        if (row < p->part[part].n_rows) {
            y = p->gated ? gemm_finish_gated(p, row, p->token0, sum[0] * factor, sum[1] * factor)
                         : gemm_finish(p, part, row, p->token0, sum[0] * factor);
        }
    }
    if (TILES == 2 && codes->xq) {
        codes_end(codes, y, tile / 2);
    }
}

/* The block's first tile of a turn. */
template <int TILES> CUDA_INLINE int32_t row_tile(int turn)
{
    return ((int32_t)blockIdx.x + turn * (int32_t)gridDim.x) * TILES;
}

/* `store`: what becomes of the heads, or NULL. */
template <typename F, int PIECES, int TILES>
CUDA_INLINE void row_tiles(const struct gemm &p, int32_t n_tiles, int32_t stages,
                           const struct cuda_codes *codes, const struct cuda_store *store,
                           float *heads)
{
    __shared__ row_sums<TILES> red[2]; /* by turns even and odd */
    CUDA_SHARED(uint8_t, shared);
    int warp = (int)threadIdx.x / WARP % GEMM_WARPS;
    int lane = (int)threadIdx.x % WARP;
    int32_t beside = (int32_t)threadIdx.x / GEMM_THREADS;
    struct row_masks masks = masks_of<F>();
    struct row_ring<F> ring {
    };

    grid_begin(); /* weights come in while the kernel ahead still runs */
    ring_start<F, TILES>(&p, n_tiles, stages, shared, &ring);
    if (TILES == 2 && codes->w && threadIdx.x == 0) {
        grid_prefetch(codes->w + (int32_t)blockIdx.x * TILES * 16);
    }
    grid_wait();
    for (int turn = 0; row_tile<TILES>(turn) < n_tiles; turn++) {
        for (int half = 0;
             half < (p.gated ? 2 : 1) && row_tile<TILES>(anew(turn)) + beside < n_tiles; half++) {
            float acc[2] = {0.0f, 0.0f};
            int own = thread_anew();
            uint32_t at = (uint32_t)(p.token0 * p.pad + own % 4 * 32 + own % WARP / 8 * 8 +
                                     own / WARP % GEMM_WARPS * F::COLS);

            for (int32_t u = row_mine<F>(&p); u > 0; u--) {
                const uint8_t *unit = ring_pop<F, TILES>(&p, &ring);

#pragma unroll
                for (int group = 0; group < F::GROUPS; group++) {
                    row_group<F, PIECES>(&p, unit, group, &masks, at + group * 128,
                                         at / 32 + group * 4, acc);
                }
                at += GEMM_WARPS * F::COLS;
            }
            for (int r = 0; r < 2; r++) {
                acc[r] += __shfl_xor_sync(ALL_LANES, acc[r], 1);
                acc[r] += __shfl_xor_sync(ALL_LANES, acc[r], 2);
                if (lane % 4 == 0) {
                    red[turn % 2][half][beside][warp][lane / 4 + r * 8] = acc[r];
                }
            }
        }
        __syncthreads(); /* red: written above, read by one warp; two turns on written again */
        if ((int)threadIdx.x / WARP == turn % (TILES * GEMM_WARPS)) {
            row_finish<TILES>(&p, row_tile<TILES>(anew(turn)), n_tiles, red[turn % 2], codes);
        }
    }
    for (int32_t tile = (int32_t)blockIdx.x; store && tile < n_tiles; tile += (int32_t)gridDim.x) {
        int32_t block = tile;
        int part = gemm_part_of(&p, &block);

        gemm_store_heads<1>(&p, store, part, block * 16, heads);
    }
}

/* Blocks of 8 warps a multiprocessor that registers are to allow. */
template <typename F, int PIECES, bool STORE> static constexpr int row_blocks(void)
{
    if (F::SCALES == FRAG_Q2 && !STORE) {
        return 2; /* two sums of each piece */
    }
    return STORE || PIECES == 2 ? 3 : 4;
}

/* One tile at a time, activations in two pieces: the output head. */
template <typename F>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (row_blocks<F, 2, false>()))
    row_q_exact(struct gemm p, int32_t n_tiles, int32_t stages)
{
    row_tiles<F, 2, 1>(p, n_tiles, stages, NULL, NULL, NULL);
}

template <typename F, int TILES>
CUDA_KERNEL void __launch_bounds__(TILES *GEMM_THREADS, (row_blocks<F, 1, false>()) / TILES)
    row_q(struct gemm p, int32_t n_tiles, int32_t stages, struct cuda_codes codes)
{
    row_tiles<F, 1, TILES>(p, n_tiles, stages, &codes, NULL, NULL);
}

/* Units that are too large for two tiles a block on a device of 100 KB. */
template <typename F> static constexpr bool row_has_narrow(void)
{
    return 2 * 2 * GEMM_WARPS * F::UNIT + (6 << 10) > 100 << 10;
}

template <typename F>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (row_blocks<F, 1, true>()))
    row_q_store(struct gemm p, int32_t n_tiles, int32_t stages, struct cuda_store store)
{
    __shared__ float heads[1024];

    row_tiles<F, 1, 1>(p, n_tiles, stages, NULL, &store, heads);
}

/* ---- dispatch -------------------------------------------------------------------------------- */

/* Shared bytes of a block beside the ring, the system's among them. */
enum { ROW_BESIDE = 3 << 10, ROW_BESIDE_STORE = 7 << 10 };

/* What a launch goes by. */
struct row_shape {
    uint32_t tiles; /* of a block */
    int32_t stages;
    size_t shared; /* dynamic bytes of a block */
    uint32_t fit;  /* blocks a multiprocessor by shared memory */
};

template <typename F>
static struct row_shape shape_of(const struct cuda *cu, uint32_t tiles, int32_t stages, bool store)
{
    size_t beside = store ? ROW_BESIDE_STORE : ROW_BESIDE;
    struct row_shape s = {tiles, stages, (size_t)GEMM_WARPS * tiles * (size_t)stages * F::UNIT, 0};

    s.fit = (uint32_t)((cu->shared_max + 1024) / (s.shared + tiles * beside));
    return s;
}

/* Measured on an H200, a tile a block: the deep ring pays for units of more than 2 KB, but not for
 * 4-bit codes of 256 columns, whose arithmetic wants more warps; for small units where there are
 * few tiles. What stores heads has few tiles, and a block that has two of them stores twice. */
template <typename F> static bool wants_deep(bool store, bool few)
{
    return store || F::UNIT <= 2048 ? few : F::CODE == 8 || F::HIGH > 0;
}

/* Two tiles side by side on a device of 100 KB: by two stages, or, of the largest units, not. */
template <typename F>
static struct row_shape choose(const struct cuda *cu, uint32_t n_tiles, bool exact, bool store)
{
    bool few = n_tiles <= 2 * (uint32_t)cu->n_sms;
    uint32_t tiles = exact || store ? 1 : 2;
    struct row_shape s = shape_of<F>(cu, 1, row_stages<F>(true), store);
    int32_t stages = row_stages<F>(s.fit >= 2 && wants_deep<F>(store, few));

    s = shape_of<F>(cu, tiles, stages, store);
    s = s.fit < 1 && tiles == 2 ? shape_of<F>(cu, 2, 2, store) : s;
    return s.fit < 1 && tiles == 2 ? shape_of<F>(cu, 1, stages, store) : s;
}

template <typename F>
static void launch_plain(struct cuda *cu, struct gemm *p, const struct row_shape *s, dim3 grid,
                         int32_t n_tiles)
{
    struct cuda_codes none = {};

    if constexpr (row_has_narrow<F>()) {
        if (s->tiles == 1) {
            CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), s->shared, (row_q<F, 1>), *p,
                                    n_tiles, s->stages, none);
            return;
        }
    }
    CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(2 * GEMM_THREADS), s->shared, (row_q<F, 2>), *p, n_tiles,
                            s->stages, none);
    if (p->gated || p->n_parts == 1) {
        cuda_call_offer(cu, p->part[0].y, p->part[0].n_rows, p->xq);
    }
}

template <typename F>
static int launch(struct cuda *cu, struct gemm *p, bool exact, const struct cuda_store *store)
{
    uint32_t n_tiles = gemm_blocks(p, 1);
    struct row_shape s = choose<F>(cu, n_tiles, exact, store != NULL);
    uint32_t most = (store   ? row_blocks<F, 1, true>()
                     : exact ? row_blocks<F, 2, false>()
                             : row_blocks<F, 1, false>()) /
                    s.tiles;
    uint32_t blocks = (uint32_t)cu->n_sms * (s.fit < 1 ? 1 : s.fit < most ? s.fit : most);
    uint32_t all = (n_tiles + s.tiles - 1) / s.tiles;
    dim3 grid(all < blocks ? all : blocks);

    if (store) {
        CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), s.shared, (row_q_store<F>), *p,
                                (int32_t)n_tiles, s.stages, *store);
    } else if (exact) {
        CUDA_LAUNCH_LARGE_EARLY(cu, grid, dim3(GEMM_THREADS), s.shared, (row_q_exact<F>), *p,
                                (int32_t)n_tiles, s.stages);
    } else {
        launch_plain<F>(cu, p, &s, grid, (int32_t)n_tiles);
    }
    return cuda_launched(cu, "row_q");
}

int cuda_gemm_q_row(struct cuda *cu, struct gemm *p, enum dtype type, bool exact,
                    const struct cuda_store *store)
{
    switch (type) {
#define ROW(TYPE, F)                                                                               \
    case TYPE:                                                                                     \
        return launch<F>(cu, p, exact && !store, store);
        FRAG_TYPES(ROW)
#undef ROW
    default:
        return -EINVAL;
    }
}
