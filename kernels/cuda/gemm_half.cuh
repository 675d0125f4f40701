/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_GEMM_HALF_CUH
#define PIPIT_KERNELS_CUDA_GEMM_HALF_CUH

/* Products of decode rows and weights of 16 bits (f16, bf16), whose rows lie as
 * in the file.
 *
 * A matrix instruction sums over 16 columns in any order as long as both
 * operands agree. So a lane loads 16 bytes of its row, columns 8t .. 8t+7 of
 * 32, and of its token; the two halves of those are two instructions. No
 * repacking.
 *
 * A block of 8 warps a multiprocessor, each with its share of the weight's tiles of 16 rows. Warp w
 * takes the w-th eighth of the columns, 128 (by more than 16 tokens 64) at a step, of several tiles
 * at once. It copies them to shared memory, 256 bytes of a row at a time, some steps ahead and
 * across tiles: memory serves that best, and nobody waits for another warp until the sums. The
 * first copies start before the kernel ahead has ended: no kernel writes weights. Activations come
 * in two pieces, and those of a step stay in registers for all tiles; those of a single token a
 * warp makes from its row. Which columns a warp sums, and in which order, follows from their number
 * alone, so a token's bits do not depend on its company. */

#include "kernels/cuda/gemm_heads.cuh"
#include "kernels/cuda/row.cuh"

enum { SLICE = 128 /* columns: warps' shares are multiples of them */ };

/* Odd rows have the halves of each 128 bytes changed over, so that 8 lanes, of two rows, meet in no
 * bank. */
CUDA_INLINE int32_t turned(int32_t row)
{
    return row % 2 * 64;
}

/* A warp's copies: what is next, and where what is read next will be. A step is STEP columns. */
template <int STEP> struct ring {
    static constexpr int ROW = STEP * 2;    /* bytes of a row's step */
    static constexpr int ITEM = 16 * ROW;   /* of a tile's */
    static constexpr int LANES = ROW / 16;  /* that copy a row */
    static constexpr int PARTS = STEP / 32; /* of a step: two matrix instructions a piece */

    /* Steps of a tile that a warp has under way; or, where there is no room, fewer. Of half a slice
     * they are one of all tiles at once: memory is read while activations come. */
    static constexpr int DEEP = STEP == SLICE ? 3 : 8;
    static constexpr int SHALLOW = STEP == SLICE ? 2 : 4;

    uint8_t *slots; /* (depth, ITEM) of the warp */
    int32_t depth;
    int32_t slot, read;       /* slots copied to next and read next */
    int32_t tile, n, i;       /* the group's first tile, its tiles, which of them */
    int32_t step, first, end; /* the warp's own steps: [first, end) */
};

template <int STEP> static __host__ __device__ constexpr int32_t ring_bytes(int32_t depth)
{
    return GEMM_WARPS * depth * ring<STEP>::ITEM;
}

/* One step of one tile, or nothing: either is a group of copies. */
template <int STEP>
CUDA_INLINE void ring_copy(const struct gemm &p, const struct share &s, struct ring<STEP> *r)
{
    constexpr int LANES = ring<STEP>::LANES;
    constexpr int ROW = ring<STEP>::ROW;
    int lane = (int)threadIdx.x % WARP;
    int row = lane / LANES; /* and every WARP / LANES from there */
    int32_t col = lane % LANES * 16;

    if (r->tile < s.end && r->step < r->end) {
        int32_t row0;
        const struct gemm_part &part = p.part[part_of_tile(p, r->tile + r->i, &row0)];
        int32_t at = r->step * ROW + col;
        int32_t last = part.n_rows - 1 - row0;
        const uint8_t *from = part.w + (uint64_t)row0 * p.pitch + at;
        uint8_t *to = r->slots + r->slot * ring<STEP>::ITEM + row * ROW + (col ^ turned(row));

        if (at < p.pitch) {
#pragma unroll
            for (int i = 0; i < 16; i += WARP / LANES) {
                async_copy16(to + i * ROW, from + min(i + row, last) * p.pitch);
            }
        }
        r->slot = r->slot + 1 == r->depth ? 0 : r->slot + 1;
        if (++r->i == r->n) {
            r->i = 0;
            if (++r->step == r->end) {
                r->step = r->first;
                r->tile += r->n;
                r->n = min(s.group, s.end - r->tile);
            }
        }
    }
    async_commit();
}

template <int STEP>
CUDA_INLINE struct ring<STEP> ring_begin(const struct gemm &p, const struct share &s, int32_t depth,
                                         uint8_t *slots) {
    int warp = (int)threadIdx.x / WARP;
    int32_t n_slices = (p.n_cols + SLICE - 1) / SLICE;
    int32_t each = (n_slices + GEMM_WARPS - 1) / GEMM_WARPS;
    int32_t n_steps = (p.n_cols + STEP - 1) / STEP;
    struct ring<STEP> r = {
    };

    r.slots = slots + warp * depth * ring<STEP>::ITEM;
    r.depth = depth;
    r.tile = s.begin;
    r.n = min(s.group, s.end - s.begin);
    r.first = min(warp * each * (SLICE / STEP), n_steps);
    r.end = min((warp + 1) * each * (SLICE / STEP), n_steps);
    r.step = r.first;
    for (int32_t i = 0; i < depth; i++) {
        ring_copy(p, s, &r);
    }
    return r;
}

/* Until the next step is there, for all lanes. */
template <int STEP> CUDA_INLINE void ring_wait(const struct ring<STEP> &r)
{
    if (r.depth == ring<STEP>::DEEP) {
        async_wait<ring<STEP>::DEEP - 1>();
    } else {
        async_wait<ring<STEP>::SHALLOW - 1>();
    }
    __syncwarp(); /* slots: copied by all lanes, read by all */
}

/* What was read may be overwritten. */
template <int STEP>
CUDA_INLINE void ring_next(const struct gemm &p, const struct share &s, struct ring<STEP> *r)
{
    __syncwarp(); /* slots: read by all lanes before they are copied to */
    r->read = r->read + 1 == r->depth ? 0 : r->read + 1;
    ring_copy(p, s, r);
}

/* Part j of what the lane reads next. */
template <int STEP>
CUDA_INLINE const uint8_t *part_at(const struct ring<STEP> &r, int32_t j)
{
    int lane = (int)threadIdx.x % WARP;

    return r.slots + r.read * ring<STEP>::ITEM + lane / 4 * ring<STEP>::ROW + lane % 4 * 16 +
           (j * 64 ^ turned(lane / 4));
}

/* Parts of a step that there are columns for. */
template <int STEP> CUDA_INLINE int32_t parts_of(const struct gemm &p, int32_t step)
{
    return min((p.n_cols - step * STEP + 31) / 32, STEP / 32);
}

/* Activations as matmul.cu prepares them: a token's piece k at [k * piece]. */
struct pieces {
    const uint16_t *x;
    uint64_t piece;
};

template <int NT>
CUDA_INLINE void load_pieces(const struct pieces &x, const uint16_t *const token[NT], int32_t col,
                             uint4 ret[NT][HALF_PIECES])
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            ret[i][k] = *reinterpret_cast<const uint4 *>(token[i] + col + (uint64_t)k * x.piece);
        }
    }
}

/* 32 columns of a tile; `at`: what the lane reads. */
template <bool BF16, int NT, int ROW>
CUDA_INLINE void sum_part(const uint8_t *at, const uint4 x[NT][HALF_PIECES], float acc[NT][4])
{
    uint4 w0 = *reinterpret_cast<const uint4 *>(at);
    uint4 w8 = *reinterpret_cast<const uint4 *>(at + 8 * ROW);
    uint32_t zero = NT > 1 ? blockIdx.z : 0; /* ptxas, not knowing it, lays out operands once */

    w0 = {w0.x ^ zero, w0.y ^ zero, w0.z ^ zero, w0.w ^ zero};
    w8 = {w8.x ^ zero, w8.y ^ zero, w8.z ^ zero, w8.w ^ zero};
#pragma unroll
    for (int i = 0; i < NT; i++) {
#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            gemm_step32<BF16>(w0, w8, x[i][k], acc[i]);
        }
    }
}

/* Activations of 8 NT tokens, prepared. */
template <int NT> struct prepared {
    const struct pieces *x;
    const uint16_t *token[NT];
};

/* What a lane has of a step's activations. */
template <int NT, int STEP> struct step_acts {
    uint4 part[STEP / 32][NT][HALF_PIECES];
};

template <int NT, int STEP>
CUDA_INLINE void load_step(struct prepared<NT> *from, int32_t step, int32_t parts,
                           struct step_acts<NT, STEP> *ret)
{
#pragma unroll
    for (int j = 0; j < STEP / 32; j++) {
        load_pieces<NT>(*from->x, from->token, step * STEP + min(j, parts - 1) * 32, ret->part[j]);
    }
}

/* 4 floats; those from n on are 0. */
CUDA_INLINE void load4(const float *from, int32_t c, int32_t n, float ret[4])
{
    if (c + 4 <= n && reinterpret_cast<uintptr_t>(from) % sizeof(float4) == 0) {
        float4 v = *reinterpret_cast<const float4 *>(from + c);

        ret[0] = v.x;
        ret[1] = v.y;
        ret[2] = v.z;
        ret[3] = v.w;
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        ret[i] = c + i < n ? from[c + i] : 0.0f;
    }
}

/* The same of bf16 from rows as they are, without a norm: a lane makes the pieces that it needs. */
struct raw_rows {
    const float *token;
    int32_t n_cols;
};

/* The pieces of eight columns. */
CUDA_INLINE void split8(const float v[8], uint4 ret[HALF_PIECES])
{
    uint16_t half[8][HALF_PIECES];

#pragma unroll
    for (int i = 0; i < 8; i++) {
        half_pieces<true>(v[i], half[i], 1);
    }
#pragma unroll
    for (int k = 0; k < HALF_PIECES; k++) {
        ret[k] = {half[0][k] | (uint32_t)half[1][k] << 16, half[2][k] | (uint32_t)half[3][k] << 16,
                  half[4][k] | (uint32_t)half[5][k] << 16, half[6][k] | (uint32_t)half[7][k] << 16};
    }
}

CUDA_INLINE void load_step(struct raw_rows *from, int32_t step, int32_t,
                           struct step_acts<1, SLICE> *ret)
{
    enum { PARTS = SLICE / 32, AT_ONCE = CUDA_ON_100(1, PARTS) /* registers are full there */ };

#pragma unroll
    for (int j0 = 0; j0 < PARTS; j0 += AT_ONCE) {
        float v[AT_ONCE][8];

#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            int32_t c = step * SLICE + (j0 + j) * 32 + (int32_t)threadIdx.x % 4 * 8;

            load4(from->token, c, from->n_cols, v[j]);
            load4(from->token, c + 4, from->n_cols, v[j] + 4);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            split8(v[j], ret->part[j0 + j][0]);
        }
    }
}

/* A single token's row, of which a warp makes the pieces of a step as it comes to it: 4 columns a
 * lane, loaded a step ahead. */
template <bool BF16> struct one_row {
    const float *x;
    struct cuda_norm norm;
    struct row_norm by;
    float scale;
    int32_t n_cols;
    uint16_t *pieces;   /* shared, the warp's: (SLICE / 8, HALF_PIECES, 8) */
    int32_t first, end; /* the warp's steps */
    float v[4], w[4];   /* of the next one */
};

template <bool BF16> CUDA_INLINE void begin_step(struct one_row<BF16> *from, int32_t step)
{
    int32_t c = step * SLICE + (int32_t)threadIdx.x % WARP * 4;

    load4(from->x, c, from->n_cols, from->v);
    if (from->norm.w) {
        load4(from->norm.w, c, from->n_cols, from->w);
    }
}

template <bool BF16>
CUDA_INLINE void load_step(struct one_row<BF16> *from, int32_t step, int32_t,
                           struct step_acts<1, SLICE> *ret)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t c = step * SLICE + lane * 4;
    uint16_t half[4][HALF_PIECES];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = from->v[i];

        if (from->norm.w) {
            v = c + i < from->n_cols ? row_normed_by(from->by, v, from->w[i],
                                                     from->norm.b ? from->norm.b[c + i] : 0.0f)
                                     : 0.0f;
        }
        half_pieces<BF16>(BF16 ? v : v * from->scale, half[i], 1);
    }
#pragma unroll
    for (int k = 0; k < HALF_PIECES; k++) {
        uint2 words = {half[0][k] | (uint32_t)half[1][k] << 16,
                       half[2][k] | (uint32_t)half[3][k] << 16};

        *reinterpret_cast<uint2 *>(from->pieces + lane / 2 * 8 * HALF_PIECES + k * 8 +
                                   lane % 2 * 4) = words;
    }
    __syncwarp(); /* pieces: written by all lanes, read by all; the ring's come before the next */
#pragma unroll
    for (int j = 0; j < SLICE / 32; j++) {
#pragma unroll
        for (int k = 0; k < HALF_PIECES; k++) {
            ret->part[j][0][k] = *reinterpret_cast<const uint4 *>(
                from->pieces + (j * 4 + lane % 4) * 8 * HALF_PIECES + k * 8);
        }
    }
    begin_step(from, step + 1 < from->end ? step + 1 : from->first); /* of the next tiles */
}

/* Sums of n tiles by 8 NT tokens or one: all tiles share a step's activations, which stay in
 * registers. */
template <bool BF16, int NT, int MOST, int STEP, typename FROM>
CUDA_INLINE void sum_tiles(const struct gemm &p, const struct share &s, struct ring<STEP> *r,
                           FROM *from, int32_t n, float acc[MOST][NT][4])
{
    constexpr int PARTS = ring<STEP>::PARTS;
    constexpr int ROW = ring<STEP>::ROW;

    for (int32_t step = r->first; step < r->end; step++) {
        int32_t parts = parts_of<STEP>(p, step);
        struct step_acts<NT, STEP> x;

        load_step(from, step, parts, &x);
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i < n) {
                ring_wait(*r);
                if (parts == PARTS) { /* without a branch inside: loads go ahead */
#pragma unroll
                    for (int j = 0; j < PARTS; j++) {
                        sum_part<BF16, NT, ROW>(part_at(*r, j), x.part[j], acc[i]);
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < PARTS - 1; j++) {
                        if (j < parts) {
                            sum_part<BF16, NT, ROW>(part_at(*r, j), x.part[j], acc[i]);
                        }
                    }
                }
                ring_next(p, s, r);
            }
        }
    }
}

/* What red holds of a tile and warp: (NT, 16, 8); of a single token (16). TILES: at once. */
template <int NT, bool ONE> struct red_of {
    static constexpr int N = ONE ? 16 : NT * 128;
    static constexpr int TILES = ONE ? 8 : 2;
    static constexpr size_t BYTES = (size_t)TILES * GEMM_WARPS * N * sizeof(float);
};

/* Sum `in` of a tile. */
template <int N> CUDA_INLINE float red_sum(const float *red, int32_t tile, int32_t in)
{
    float sum = 0;

    for (int w = 0; w < GEMM_WARPS; w++) {
        sum += red[(tile * GEMM_WARPS + w) * N + in];
    }
    return sum;
}

template <int NT, bool ONE>
CUDA_INLINE void red_put(const float acc[NT][4], int32_t tile, float *red)
{
    int lane = (int)threadIdx.x % WARP;
    float *to = red + (tile * GEMM_WARPS + (int)threadIdx.x / WARP) * red_of<NT, ONE>::N;

    if constexpr (ONE) {
        if (lane % 4 == 0) {
            to[lane / 4] = acc[0][0];
            to[lane / 4 + 8] = acc[0][2];
        }
    } else {
#pragma unroll
        for (int j = 0; j < NT; j++) {
            to[j * 128 + lane * 2] = acc[j][0];
            to[j * 128 + lane * 2 + 1] = acc[j][1];
            to[j * 128 + lane * 2 + 64] = acc[j][2];
            to[j * 128 + lane * 2 + 65] = acc[j][3];
        }
    }
}

/* Of a single token: where y is what the thread's sum of n tiles is added to, that. */
CUDA_INLINE float y_before(const struct gemm &p, int32_t tile, int32_t n)
{
    int32_t row0;

    if (p.add && (int32_t)threadIdx.x < n * 16) {
        int part = part_of_tile(p, tile + (int32_t)threadIdx.x / 16, &row0);
        int32_t row = row0 + (int32_t)threadIdx.x % 16;

        if (row < p.part[part].n_rows) {
            return p.part[part].y[(size_t)p.token0 * p.part[part].ldy + row];
        }
    }
    return 0.0f;
}

/* n tiles from `tile` on, of which red has the sums of all warps, to y. before: ONE's y_before. */
template <bool BF16, int NT, bool ONE>
CUDA_INLINE void finish_tiles(const struct gemm &p, int32_t tile, int32_t n, int32_t token0,
                              const float *red, const float *xe, float before)
{
    constexpr int N = red_of<NT, ONE>::N;
    int32_t each = p.gated ? 2 : 1;

    for (int32_t e = (int32_t)threadIdx.x; e < n / each * N; e += GEMM_THREADS) {
        int32_t of = e / N * each;
        int32_t in = e % N;
        int32_t token = token0 + (ONE ? 0 : in / 128 * 8 + in % 8);
        int32_t row0;
        int part = part_of_tile(p, tile + of, &row0);
        int32_t row = row0 + (ONE ? in : in % 128 / 8);
        float sum;

        if (row >= p.part[part].n_rows || token >= p.token_end) {
            continue;
        }
        sum = red_sum<N>(red, of, in) * (BF16 ? 1.0f : xe[token]);
        if (p.gated) {
            gemm_finish_gated(&p, row, token, sum,
                              red_sum<N>(red, of + 1, in) * (BF16 ? 1.0f : xe[token]));
        } else if constexpr (ONE) {
            sum = gemm_act(p.part[part].act, gemm_biased(&p.part[part], row, sum));
            p.part[part].y[(size_t)token * p.part[part].ldy + row] = p.add ? before + sum : sum;
        } else {
            gemm_finish(&p, part, row, token, sum);
        }
    }
}

/* Heads of n tiles from `tile` on, whose sums all threads have written to y, as gemm_store_heads,
 * but all of them at once: a thread a tile and head counts, and the heads of which this was the
 * last block are shared out among warps. `heads`: shared, of red_of's size. */
template <int NT, int TILES>
CUDA_INLINE void store_tiles(const struct gemm &p, const struct cuda_store *s, int32_t tile,
                             int32_t n, float *heads)
{
    __shared__ int32_t done[TILES * 16]; /* kind, head of what was the last of it, or -1 */
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    int32_t most = max(store_dim(s, STORE_K), store_dim(s, STORE_V));
    int32_t n_warps = min(1024 * NT / most, (int32_t)GEMM_WARPS);
    int32_t turn = 0;

    static_assert(HEAD_MAX <= 1024 && TILES * 16 <= GEMM_THREADS, "a thread a head of 16 rows");
    __syncthreads(); /* y: written by all; heads: what was there has been read */
    if ((int32_t)threadIdx.x < n * 16) {
        int32_t row0;
        int part = part_of_tile(p, tile + (int32_t)threadIdx.x / 16, &row0);
        int32_t kind = s->first + part;
        int32_t dim = store_dim(s, kind);
        int32_t h = row0 / dim + (int32_t)threadIdx.x % 16;
        bool mine = h <= (min(row0 + 16, p.part[part].n_rows) - 1) / dim;

        done[threadIdx.x] = -1;
        if (mine) {
            uint32_t others = (uint32_t)((h * dim + dim - 1) / 16 - h * dim / 16);
            uint32_t *arrived = s->arrived + h;

            arrived += (kind > STORE_Q ? s->n_q : 0) + (kind > STORE_K ? s->n_k : 0);
            __threadfence(); /* the block's part of y, seen at the barrier, before the count */
            if (atomicInc(arrived, others) == others) {
                done[threadIdx.x] = kind << 24 | h;
            }
            __threadfence(); /* what others counted before, before what is read below */
        }
    }
    __syncthreads(); /* done: written by a few, read by all */
    for (int32_t i = 0; i < n * 16; i += WARP) {
        int32_t mine = i + lane < n * 16 ? done[i + lane] : -1;
        uint32_t left = __ballot_sync(ALL_LANES, mine >= 0);

        for (int from = 0; left; from++, left >>= 1) {
            int32_t item = __shfl_sync(ALL_LANES, mine, from);

            for (int32_t row = p.token0; row < p.token_end && left & 1; row++) {
                if (turn++ % n_warps == warp) {
                    int32_t kind = item >> 24;
                    int32_t h = item & 0xffffff;
                    int32_t dim = store_dim(s, kind);
                    const float *y = store_from(s, kind, row, h);
                    float *head = heads + warp * most;

                    for (int32_t d = lane; d < dim; d += WARP) {
                        head[d] = __ldcg(y + d);
                    }
                    __syncwarp(); /* head: loaded above, read by other lanes next */
                    store_finish<false>(s, kind, row, h, head);
                    __syncwarp(); /* head: read by all before the next one is loaded there */
                }
            }
        }
    }
}

/* Sums of n tiles to y; red: shared, of red_of and for a head of each token. `store`: what becomes
 * of the heads, or NULL. */
template <bool BF16, int NT, int MOST, bool ONE>
CUDA_INLINE void put_tiles(const struct gemm &p, int32_t tile, int32_t n, int32_t token0,
                           const float acc[MOST][NT][4], const float *xe, float before, float *red,
                           const struct cuda_store *store)
{
    constexpr int TILES = red_of<NT, ONE>::TILES;

    static_assert(!ONE || (TILES >= MOST && TILES * 16 <= GEMM_THREADS), "a sum a thread");
#pragma unroll 1
    for (int32_t from = 0; from < n; from += TILES) {
#pragma unroll
        for (int i = 0; i < MOST; i++) {
            if (i / TILES * TILES == from && i < n) {
                red_put<NT, ONE>(acc[i], i % TILES, red);
            }
        }
        __syncthreads(); /* red: written by all, read by all */
        finish_tiles<BF16, NT, ONE>(p, tile + from, min(n - from, TILES), token0, red, xe, before);
        if (store) {
            store_tiles<NT, TILES>(p, store, tile + from, min(n - from, TILES), red);
        }
        __syncthreads(); /* red: read by all before it is written again */
    }
}

/* The block's tiles for up to 8 NT tokens, prepared or RAW (bf16, NT 1). */
template <bool BF16, int NT, int MOST, bool RAW, int STEP>
CUDA_INLINE void stream_tiles(const struct gemm &p, const struct share &s, struct ring<STEP> *r,
                              float *red, const struct cuda_store *store)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t token0 = p.token0 + (int32_t)blockIdx.y * 8 * NT;
    struct pieces x = {p.xh, p.piece};
    struct prepared<NT> from = {&x, {}};

    for (int i = 0; i < NT; i++) {
        from.token[i] =
            x.x + (uint64_t)min(token0 + i * 8 + lane / 4, p.token_end - 1) * p.pad + lane % 4 * 8;
    }
    for (int32_t tile = s.begin; tile < s.end; tile += s.group) {
        int32_t n = min(s.group, s.end - tile);
        float acc[MOST][NT][4] = {};

        if constexpr (RAW) {
            int32_t row = min(token0 + lane / 4, p.token_end - 1);
            struct raw_rows raw = {p.xf + (size_t)row * p.ldx, p.n_cols};

            sum_tiles<BF16, NT, MOST>(p, s, r, &raw, n, acc);
        } else {
            sum_tiles<BF16, NT, MOST>(p, s, r, &from, n, acc);
        }
        put_tiles<BF16, NT, MOST, false>(p, tile, n, token0, acc, p.xe, 0.0f, red, store);
    }
}

/* For one, from its row. */
template <bool BF16, int MOST>
CUDA_INLINE void stream_one(const struct gemm &p, const struct share &s, struct ring<SLICE> *r,
                            struct one_row<BF16> *from, const float *xe, float *red,
                            const struct cuda_store *store)
{
    for (int32_t tile = s.begin; tile < s.end; tile += s.group) {
        int32_t n = min(s.group, s.end - tile);
        float before = y_before(p, tile, n); /* under way while weights are */
        float acc[MOST][1][4] = {};

        sum_tiles<BF16, 1, MOST>(p, s, r, from, n, acc);
        put_tiles<BF16, 1, MOST, true>(p, tile, n, p.token0, acc, xe, before, red, store);
    }
}

/* Of up to 8 NT tokens. Behind the ring lies red. */
template <int NT> static constexpr int step_of = NT <= 2 ? SLICE : SLICE / 2;

template <bool BF16, int NT, int MOST, bool RAW>
CUDA_INLINE void stream_rows(const struct gemm &p, int32_t depth, const struct cuda_store *store)
{
    CUDA_SHARED(uint8_t, shared);
    constexpr int STEP = step_of<NT>;
    struct share s = share_of(p, MOST);
    struct ring<STEP> r;

    grid_begin();
    r = ring_begin<STEP>(p, s, depth, shared);
    grid_wait();
    stream_tiles<BF16, NT, MOST, RAW>(
        p, s, &r, reinterpret_cast<float *>(shared + ring_bytes<STEP>(depth)), store);
}

#endif
