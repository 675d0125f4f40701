/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of a prompt's queries (kernels/ops_expect.h).
 *
 * expect_count    a block a query head and 12 tiles of 16 x 16 sums of its triangle (of 36 where
 *                 k_dim is 128): 16 rows at a time, at positions [16 i, 16 i + 16), from one of two
 *                 buffers in shared memory, while the next 16 are made in the other and those after
 *                 them are loaded.
 *                   warps 0-2  multiply: a thread keeps 8 x 4 sums in registers and takes rows in
 *                              their order, by three loads of 16 bytes; lanes lie so that a half
 *                              warp's loads are one line
 *                   warps 3-7  make queries as they were before RoPE, times mscale, less the first
 *                              one: a warp a row, 3 or 4 each. The first of them also makes turns,
 *                              and in a head's first block the sums of its rows
 *                 Where no query was counted yet, each block makes the first one for itself.
 * expect_counted  their number.
 *
 * How rows are dealt out to calls changes no bit: an element's sum takes row after row, and a row
 * is made of its own numbers and its position. A pair's turn is that of position 16 i times that of
 * 0 to 15, each right to f32 (double angles, sincospif), so a position costs five instructions,
 * not 40. The product is off by 4e-7 at most. Over 2,000 positions below 131,072 it was off
 * by 1.0e-7 at most and 2.5e-8 rms, where rounding alone is 3.0e-8 and 1.5e-8.
 *
 * Bytes: queries once a block, so three times where k_dim is 128, of which L2 has two; 25 KB of
 * shared memory a block. Counts of sm_90's code, k_dim 128 without transform: of 16 rows a
 * multiplying warp has 604 instructions, 512 of them products, and a making one some 220. Three of
 * a multiprocessor's schedulers have one of each, 52 clocks a row: 2,048 rows of 32 heads are 96
 * blocks, which run side by side, and some 60 us of an H200. Shared memory gives 18 lines a row to
 * products. */

#include "kernels/cuda/expect.cuh"

enum {
    COUNT_THREADS = 256,
    COUNT_BLOCKS = 2, /* a multiprocessor */
    COUNT_ROWS = 16,
    COUNT_MULTIPLY = 3, /* warps; the others make, the first of them sums */
    COUNT_MAKE = COUNT_THREADS / WARP - COUNT_MULTIPLY,
    COUNT_OWN = (COUNT_ROWS + COUNT_MAKE - 1) / COUNT_MAKE, /* rows of a making warp, or one less */
    TILE_I = 8,
    TILE_J = 4,
    TILE_THREADS = EXPECT_TILE / TILE_I / TILE_J,
    COUNT_TILES = COUNT_MULTIPLY * WARP / TILE_THREADS,
};

/* PAIRS, of a lane that makes queries: 1, 2 or 4. Rows in shared memory and turns have room for as
 * many as a warp has, so that no lane asks whether it has a pair. */
template <int PAIRS> static constexpr int pairs_of_warp(void)
{
    return PAIRS * WARP;
}

/* What such a lane knows of the dims of its pairs, two of a pair next to each other. */
struct count_lane {
    int32_t dim[HEAD_MAX / WARP];
    int32_t load[HEAD_MAX / WARP]; /* where they are loaded, or what hadamard_in_lanes() takes */
    float times[HEAD_MAX / WARP];  /* the balance; 0 beyond the head */
    float first[HEAD_MAX / WARP];
};

/* Cosine and sine. */
CUDA_INLINE float2 turn_at(float freq, int32_t pos)
{
    double turns = (double)pos * (double)freq * 0.31830988618379067154; /* of pi */
    float2 r;

    sincospif((float)(turns - 2.0 * rint(turns * 0.5)), &r.y, &r.x);
    return r;
}

/* Pairs beyond those that RoPE turns are neighbours, and have no frequency. */
template <int PAIRS>
CUDA_INLINE void count_lane_of(const struct cuda_expect *p, int32_t head, struct count_lane *ret)
{
    const int32_t dim = p->layout.k_dim;
    const float *balance = p->s.balance ? p->s.balance + (size_t)k_head_of(p, head) * dim : NULL;
    const int32_t lane = (int32_t)threadIdx.x % WARP;

#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        int32_t pair = lane + j * WARP;
        int32_t a = 2 * pair;
        int32_t b = 2 * pair + 1;

        if (pair < p->n_pairs) {
            pair_dims(p, pair, &a, &b);
        }
        ret->dim[2 * j] = a;
        ret->dim[2 * j + 1] = b;
    }
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++) {
        int32_t d = p->s.k_hadamard ? lane + j * WARP : ret->dim[j];

        ret->load[j] = d < dim ? d : 0;
        ret->times[j] = ret->dim[j] >= dim ? 0.0f : balance ? balance[ret->dim[j]] : 1.0f;
        ret->first[j] = 0;
    }
}

/* Row i of the sequence; of rows that do not count another one, which is not looked at. */
template <int PAIRS>
CUDA_INLINE void query_load(const struct cuda_expect *p, const struct count_lane *of, int32_t i,
                            const float *q, float x[2 * PAIRS])
{
    i = i > p->first ? i : p->first;
    i = i < p->s.n_rows ? i : p->s.n_rows - 1;
    q += (int64_t)i * p->ldq;
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++) {
        x[j] = q[of->load[j]];
    }
}

/* The same before RoPE and less the first query, to shared memory; by one warp. The turn is that of
 * a multiple of 16, `far`, times that of what is left of the position, `near`. */
template <int PAIRS>
CUDA_INLINE void query_make(const struct cuda_expect *p, const struct count_lane *of,
                            const float2 far[PAIRS], const float2 *near, float x[2 * PAIRS],
                            float *to)
{
    const int32_t lane = (int32_t)threadIdx.x % WARP;

    if (p->s.k_hadamard) {
        hadamard_in_lanes<2 * PAIRS>(x, p->layout.k_dim);
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            to[lane + j * WARP] = x[j];
        }
        __syncwarp(); /* to: written by dims, read by pairs, whose lane alone writes them again */
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            x[j] = to[of->dim[j]];
        }
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++) {
        float2 b = near[lane + j * WARP];
        float c = fmaf(far[j].x, b.x, -__fmul_rn(far[j].y, b.y));
        float s = fmaf(far[j].y, b.x, __fmul_rn(far[j].x, b.y));
        float x0 = __fmul_rn(x[2 * j], of->times[2 * j]);
        float x1 = __fmul_rn(x[2 * j + 1], of->times[2 * j + 1]);

        x[2 * j] = __fsub_rn(fmaf(x0, c, __fmul_rn(x1, s)), of->first[2 * j]);
        x[2 * j + 1] = __fsub_rn(fmaf(x1, c, -__fmul_rn(x0, s)), of->first[2 * j + 1]);
    }
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++) {
        to[of->dim[j]] = x[j];
    }
}

/* Rows [from, to) enter 8 x 4 sums. */
template <int PAIRS>
CUDA_INLINE void multiply(const float *rows, int32_t from, int32_t to, int32_t at_i, int32_t at_j,
                          float sums[TILE_I * TILE_J])
{
#pragma unroll 4
    for (int32_t r = from; r < to; r++) {
        const float *row = rows + r * 2 * pairs_of_warp<PAIRS>();
        float4 a0 = *reinterpret_cast<const float4 *>(row + at_i);
        float4 a1 = *reinterpret_cast<const float4 *>(row + at_i + 4);
        float4 b4 = *reinterpret_cast<const float4 *>(row + at_j);
        const float a[TILE_I] = {a0.x, a0.y, a0.z, a0.w, a1.x, a1.y, a1.z, a1.w};
        const float b[TILE_J] = {b4.x, b4.y, b4.z, b4.w};

#pragma unroll
        for (int i = 0; i < TILE_I; i++) {
#pragma unroll
            for (int j = 0; j < TILE_J; j++) {
                sums[i * TILE_J + j] += a[i] * b[j];
            }
        }
    }
}

template <int PAIRS>
CUDA_KERNEL void __launch_bounds__(COUNT_THREADS, COUNT_BLOCKS)
    expect_count(struct cuda_expect p, struct expect_pairs freq)
{
    constexpr int ROW = 2 * pairs_of_warp<PAIRS>();
    CUDA_SHARED(float, memory);
    float *const buffers = memory; /* (2, 16, ROW) */
    float2 *const near = reinterpret_cast<float2 *>(buffers + 2 * COUNT_ROWS * ROW);
    float2 *const far = near + COUNT_ROWS * ROW / 2; /* (2, ROW / 2) */
    float *const first = reinterpret_cast<float *>(far + ROW);
    const int32_t padded = expect_padded(p.layout.k_dim);
    const int32_t head = (int32_t)blockIdx.x;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const bool fresh = group_stats(&p, head / p.n_heads)[0] == 0; /* then all of it is made here */
    const float *q = p.q + (int64_t)p.s.row0 * p.ldq + (int64_t)head * p.layout.k_dim;
    float *const stats = head_stats(&p, head);
    float *const sum = stats + padded;
    float *const products = sum + padded;
    const int32_t from = p.s.pos0 + p.first; /* positions */
    const int32_t to = p.s.pos0 + p.s.n_rows;
    const int32_t part0 = from / COUNT_ROWS;
    const int32_t n_parts = (to - 1) / COUNT_ROWS - part0 + 1;
    struct count_lane of;
    float held[TILE_I * TILE_J]; /* sums, or rows of a making warp as they were loaded */
    int32_t i_block = 0;
    int32_t j_block =
        (int32_t)blockIdx.y * COUNT_TILES + warp * (WARP / TILE_THREADS) + lane / TILE_THREADS;

    while (j_block > i_block) {
        i_block++;
        j_block -= i_block;
    }
    const bool multiplies = p.cov && warp < COUNT_MULTIPLY && i_block < padded / EXPECT_LANES;
    const bool sums = warp == COUNT_MULTIPLY && blockIdx.y == 0;
    const bool makes = warp >= COUNT_MULTIPLY;
    const int32_t row0 = COUNT_THREADS / WARP - 1 - warp; /* of a making warp, then every fifth */
    constexpr int SUM = TILE_I * TILE_J - 2 * PAIRS;      /* where `held` has sums beside rows */
    const int32_t at_i = i_block * EXPECT_LANES + lane % 2 * TILE_I;
    const int32_t at_j = j_block * EXPECT_LANES + lane / 2 % 4 * TILE_J;

    for (int32_t u = (int32_t)threadIdx.x; u < COUNT_ROWS * ROW / 2; u += COUNT_THREADS) {
        near[u] = turn_at(freq.a[u % (ROW / 2)], u / (ROW / 2));
    }
    for (int32_t u = (int32_t)threadIdx.x; u < ROW; u += COUNT_THREADS) {
        int32_t part = part0 + u / (ROW / 2);

        far[part % 2 * (ROW / 2) + u % (ROW / 2)] =
            turn_at(freq.a[u % (ROW / 2)], part * COUNT_ROWS);
    }
    for (int32_t d = (int32_t)threadIdx.x; d < ROW && !fresh; d += COUNT_THREADS) {
        first[d] = d < padded ? stats[d] : 0.0f;
    }
    count_lane_of<PAIRS>(&p, head, &of);
    __syncthreads(); /* turns, first: written by all, read by those that make */
    if (fresh && warp == COUNT_MULTIPLY + 1) {
        float2 at[PAIRS];

#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            at[j] = far[part0 % 2 * (ROW / 2) + lane + j * WARP];
        }
        query_load<PAIRS>(&p, &of, p.first, q, held);
        query_make<PAIRS>(&p, &of, at, near + from % COUNT_ROWS * (ROW / 2), held, first);
    }
    __syncthreads(); /* first: written by one warp, read by all */
#pragma unroll
    for (int j = 0; j < TILE_I * TILE_J; j++) {
        held[j] = 0;
    }
    if (multiplies && !fresh) {
#pragma unroll
        for (int i = 0; i < TILE_I; i++) {
#pragma unroll
            for (int j = 0; j < TILE_J; j++) {
                held[i * TILE_J + j] = products[expect_row(at_i + i) + at_j + j];
            }
        }
    } else if (sums && !fresh) {
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            held[SUM + j] = lane + j * WARP < padded ? sum[lane + j * WARP] : 0.0f;
        }
    }
    if (makes) {
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            of.first[j] = first[of.dim[j]];
        }
    }
    /* Turn n: rows of part n - 1 are multiplied, of n made, of n + 1 loaded. */
    for (int32_t n = -1; n <= n_parts; n++) {
        const int32_t pos = (part0 + n) * COUNT_ROWS; /* of the part that is made */

        if (makes) {
            float2 at[PAIRS];

#pragma unroll
            for (int j = 0; j < PAIRS; j++) {
                at[j] = far[((part0 + n) & 1) * (ROW / 2) + lane + j * WARP];
            }
#pragma unroll
            for (int i = 0; i < COUNT_OWN && n >= 0; i++) {
                int32_t r = row0 + i * COUNT_MAKE;

                if (i < COUNT_ROWS / COUNT_MAKE || r < COUNT_ROWS) {
                    query_make<PAIRS>(&p, &of, at, near + r * (ROW / 2), held + i * 2 * PAIRS,
                                      buffers + ((n & 1) * COUNT_ROWS + r) * ROW);
                }
            }
#pragma unroll
            for (int i = 0; i < COUNT_OWN; i++) {
                int32_t r = row0 + i * COUNT_MAKE;

                if (i < COUNT_ROWS / COUNT_MAKE || r < COUNT_ROWS) {
                    query_load<PAIRS>(&p, &of, pos + COUNT_ROWS + r - p.s.pos0, q,
                                      held + i * 2 * PAIRS);
                }
            }
        }
        if (n > 0 && warp <= COUNT_MULTIPLY) {
            const float *rows = buffers + (~n & 1) * COUNT_ROWS * ROW;
            int32_t at = pos - COUNT_ROWS;
            int32_t r0 = from > at ? from - at : 0;
            int32_t r1 = to - at < COUNT_ROWS ? to - at : COUNT_ROWS;

            if (multiplies) {
                multiply<PAIRS>(rows, r0, r1, at_i, at_j, held);
            }
            for (int32_t r = r0; r < r1 && sums; r++) {
#pragma unroll
                for (int j = 0; j < 2 * PAIRS; j++) {
                    held[SUM + j] += rows[r * ROW + lane + j * WARP];
                }
            }
            for (int32_t u = lane; u < ROW / 2 && warp == COUNT_MULTIPLY; u += WARP) {
                far[((part0 + n + 1) & 1) * (ROW / 2) + u] = turn_at(freq.a[u], pos + COUNT_ROWS);
            }
        }
        __syncthreads(); /* rows and turns: made, read next; those read are made anew next */
    }
    if (multiplies) {
#pragma unroll
        for (int i = 0; i < TILE_I; i++) {
#pragma unroll
            for (int j = 0; j < TILE_J; j++) {
                products[expect_row(at_i + i) + at_j + j] = held[i * TILE_J + j];
            }
        }
    } else if (sums) {
#pragma unroll
        for (int j = 0; j < 2 * PAIRS; j++) {
            int32_t d = lane + j * WARP;

            if (d < padded) {
                sum[d] = held[SUM + j];
            }
            if (d < padded && fresh) { /* else other blocks are reading it */
                stats[d] = first[d];
            }
        }
    }
    for (int32_t u = (int32_t)threadIdx.x; u < expect_triangle(p.layout.k_dim) && fresh && !p.cov;
         u += COUNT_THREADS) {
        products[u] = 0;
    }
}

CUDA_KERNEL void expect_counted(struct cuda_expect p)
{
    group_stats(&p, (int32_t)blockIdx.x)[0] += (float)(p.s.n_rows - p.first);
}

template <int PAIRS>
static int count(struct cuda *cu, const struct cuda_expect *p, const struct expect_pairs *freq)
{
    unsigned heads = (unsigned)(p->n_heads * p->layout.n_groups);
    unsigned tiles = (unsigned)expect_triangle(p->layout.k_dim) / EXPECT_TILE;

    CUDA_LAUNCH_LARGE(cu, dim3(heads, p->cov ? cuda_div_up(tiles, COUNT_TILES) : 1),
                      dim3(COUNT_THREADS),
                      (3 * COUNT_ROWS + 3) * 2 * pairs_of_warp<PAIRS>() * sizeof(float),
                      expect_count<PAIRS>, *p, *freq);
    return cuda_launched(cu, "expect_count");
}

int cuda_expect_count(struct cuda *cu, const struct cuda_expect *p, const struct ops_rope *rope)
{
    struct expect_pairs freq = {};
    int r;

    for (int32_t i = 0; i < p->n_pairs; i++) {
        freq.a[i] = rope->inv_freq[i];
    }
    r = p->layout.k_dim <= 2 * WARP   ? count<1>(cu, p, &freq)
        : p->layout.k_dim <= 4 * WARP ? count<2>(cu, p, &freq)
                                      : count<4>(cu, p, &freq);
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3((unsigned)p->layout.n_groups), dim3(1), 0, expect_counted, *p);
        r = cuda_launched(cu, "expect_counted");
    }
    return r;
}
