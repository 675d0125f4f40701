/* SPDX-License-Identifier: Apache-2.0 */
/* Products of rows with the experts chosen for them.
 *
 * Block: 8 warps, 16 rows of an expert's matrix, the entries of one tile. Which expert and which
 * entries that are it reads on the device; blocks of tiles that hold none end at once. Arithmetic
 * and order are those of the streaming kernels of decode rows (gemm_q_stream.cu, gemm_f32.cu; of 16
 * bits steps of 32 columns, not 64), for rows of both classes, so an entry's bits do not depend on
 * its tile.
 *
 * Bytes: an expert's matrix once a tile. Share of the bandwidth: not measured. */

#include <cerrno>

#include "kernels/cuda/experts.cuh"
#include "kernels/cuda/gemm_q.cuh"
#include "kernels/cuda/row.cuh"

/* The block's tile, once the kernel ahead has ended; the same in all threads. */
CUDA_INLINE struct experts_tile tile_of(const struct experts_product &p)
{
    grid_begin();
    grid_wait();
    return p.tiles[blockIdx.y];
}

/* entry[i], row[i]: what column i of the tile is, and its row of activations; beyond the tile's end
 * those of its last entry. Shared, for all threads of the block. */
CUDA_INLINE void columns_of(const struct experts_product &p, struct experts_tile t, int n,
                            int32_t *entry, int32_t *row)
{
    int i = (int)threadIdx.x;

    if (i < n) {
        entry[i] = p.list[t.first + min((int32_t)i, t.n - 1)];
        row[i] = entry[i] / p.shared_by;
    }
    __syncthreads(); /* entry, row: written above, read by all */
}

CUDA_INLINE float biased(const struct gemm_part *part, int32_t expert, int32_t row, float sum)
{
    return part->bias ? sum + part->bias[(size_t)expert * part->n_rows + row] : sum;
}

CUDA_INLINE void finish(const struct experts_product &p, int32_t expert, int32_t row, int32_t entry,
                        float sum, float up)
{
    const struct gemm_part *to = &p.g.part[0];
    float *y = to->y + (size_t)entry * to->ldy + row;
    float v = biased(to, expert, row, sum);

    if (p.multiply) {
        *y *= gemm_up(to->act, v);
        return;
    }
    v = gemm_act(to->act, v);
    *y = p.g.gated ? v * gemm_up(to->act, biased(&p.g.part[1], expert, row, up)) : v;
}

/* out (parts, 16, 8 NT) to y. */
template <int NT>
CUDA_INLINE void finish_tile(const struct experts_product &p, struct experts_tile t,
                             const int32_t *entry, float (*out)[16][8 * NT])
{
    for (int i = (int)threadIdx.x; i < 16 * 8 * NT; i += GEMM_THREADS) {
        int32_t row = (int32_t)blockIdx.x * 16 + i % 16;

        if (row < p.g.part[0].n_rows && i / 16 < t.n) {
            finish(p, t.expert, row, entry[i / 16], out[0][i % 16][i / 16],
                   p.g.gated ? out[1][i % 16][i / 16] : 0.0f);
        }
    }
}

/* ---- quantised ------------------------------------------------------------------------------ */

template <typename F, int NT>
CUDA_INLINE void unit_q(const struct gemm *p, const uint8_t *unit, int32_t col, const int32_t *row,
                        float acc[NT][4])
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
            uint32_t x[1][8];
            float xd[2][4];
            float xs[2][4];

            gemm_words(p->xq + (uint64_t)row[i * 8 + lane / 4] * p->pad + col + lane % 4 * 32,
                       x[0]);
            for (int k = 0; k < 2; k++) {
                uint64_t at = (uint64_t)row[i * 8 + lane % 4 * 2 + k] * (uint64_t)(p->pad / 32) +
                              (uint64_t)(col / 32);

                gemm_floats(p->xd + at, xd[k]);
                if (frag_has_offset<F>()) {
                    gemm_floats(p->xs + at, xs[k]);
                }
            }
            gemm_group<F, 1, 1>(&w, &s, x, xd, xs, &acc[i]);
        }
    }
}

/* Blocks a multiprocessor that ptxas is told, 0 for none: left alone it saves registers for more
 * of some types, and spills. */
template <typename F, int NT> static constexpr int product_blocks(void)
{
    return NT > 1 ? 1 : F::TYPE == DTYPE_IQ4_XS || F::SCALES == FRAG_Q6 ? 2 : CUDA_ON_100(2, 0);
}

template <typename F, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, (product_blocks<F, NT>()))
    experts_q(struct experts_product p)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];
    __shared__ int32_t entry[8 * NT];
    __shared__ int32_t row[8 * NT];
    struct experts_tile t = tile_of(p);
    int32_t n_units = (int32_t)frag_units(p.g.n_cols, F::COLS);

    if (t.n == 0) {
        return;
    }
    columns_of(p, t, 8 * NT, entry, row);
    for (int half = 0; half < (p.g.gated ? 2 : 1); half++) {
        const uint8_t *w = p.g.part[half].w + (uint64_t)t.expert * p.stride +
                           (uint64_t)blockIdx.x * n_units * F::UNIT;
        float acc[NT][4] = {};

        for (int32_t u = (int32_t)threadIdx.x / WARP; u < n_units; u += GEMM_WARPS) {
            unit_q<F, NT>(&p.g, w + (uint64_t)u * F::UNIT, u * F::COLS, row, acc);
        }
        gemm_reduce<NT>(acc, red, out[half]);
    }
    finish_tile<NT>(p, t, entry, out);
}

/* ---- 16 bits -------------------------------------------------------------------------------- */

template <bool BF16, int NT>
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS, NT > 1 ? 1 : 0)
    experts_half(struct experts_product p)
{
    __shared__ float red[GEMM_WARPS][16][8 * NT];
    __shared__ float out[2][16][8 * NT];
    __shared__ int32_t entry[8 * NT];
    __shared__ int32_t row[8 * NT];
    struct experts_tile t = tile_of(p);
    int lane = (int)threadIdx.x % WARP;
    int32_t last_row = p.g.part[0].n_rows - 1;
    int32_t row0 = min((int32_t)blockIdx.x * 16 + lane / 4, last_row);
    int32_t row8 = min((int32_t)blockIdx.x * 16 + lane / 4 + 8, last_row);
    int32_t n_steps = (p.g.n_cols + 31) / 32;
    const uint16_t *x[NT];

    if (t.n == 0) {
        return;
    }
    columns_of(p, t, 8 * NT, entry, row);
    for (int i = 0; i < NT; i++) {
        x[i] = p.g.xh + (uint64_t)row[i * 8 + lane / 4] * p.g.pad + lane % 4 * 8;
    }
    for (int half = 0; half < (p.g.gated ? 2 : 1); half++) {
        const uint8_t *w = p.g.part[half].w + (uint64_t)t.expert * p.stride + lane % 4 * 16;
        float acc[NT][4] = {};

#pragma unroll 4
        for (int32_t s = (int32_t)threadIdx.x / WARP; s < n_steps; s += GEMM_WARPS) {
            uint4 w0 = *reinterpret_cast<const uint4 *>(w + (uint64_t)row0 * p.g.pitch + s * 64);
            uint4 w8 = *reinterpret_cast<const uint4 *>(w + (uint64_t)row8 * p.g.pitch + s * 64);

#pragma unroll
            for (int i = 0; i < NT; i++) {
#pragma unroll
                for (int piece = 0; piece < HALF_PIECES; piece++) {
                    gemm_step32<BF16>(w0, w8,
                                      *reinterpret_cast<const uint4 *>(x[i] + piece * p.g.piece +
                                                                       (uint64_t)s * 32),
                                      acc[i]);
                }
            }
        }
        for (int i = 0; i < NT * 4 && !BF16; i++) {
            acc[i / 4][i % 4] *= p.g.xe[row[i / 4 * 8 + lane % 4 * 2 + i % 2]];
        }
        gemm_reduce<NT>(acc, red, out[half]);
    }
    finish_tile<NT>(p, t, entry, out);
}

/* ---- 32 bits -------------------------------------------------------------------------------- */

CUDA_INLINE float dot_f32(const struct gemm *p, const uint8_t *matrix, int32_t row, int32_t x_row)
{
    const float *w = reinterpret_cast<const float *>(matrix + (uint64_t)row * p->pitch);
    const float *x = p->xf + (uint64_t)x_row * p->ldx;
    float sum = 0;

    for (int32_t c = (int32_t)threadIdx.x % WARP; c < p->n_cols; c += WARP) {
        sum += w[c] * x[c];
    }
    return warp_sum(sum);
}

/* A warp two rows, an entry at a time. */
CUDA_KERNEL void __launch_bounds__(GEMM_THREADS) experts_f32(struct experts_product p)
{
    struct experts_tile t = tile_of(p);
    const uint8_t *w = p.g.part[0].w + (uint64_t)t.expert * p.stride;
    const uint8_t *up = p.g.gated ? p.g.part[1].w + (uint64_t)t.expert * p.stride : NULL;

    for (int k = 0; k < 2; k++) {
        int32_t row = (int32_t)blockIdx.x * 16 + (int32_t)threadIdx.x / WARP * 2 + k;

        for (int32_t i = 0; i < t.n && row < p.g.part[0].n_rows; i++) {
            int32_t entry = p.list[t.first + i];
            float sum = dot_f32(&p.g, w, row, entry / p.shared_by);
            float second = up ? dot_f32(&p.g, up, row, entry / p.shared_by) : 0.0f;

            if (threadIdx.x % WARP == 0) {
                finish(p, t.expert, row, entry, sum, second);
            }
        }
    }
}

/* ---- dispatch ------------------------------------------------------------------------------- */

template <typename F>
static void launch_q(struct cuda *cu, const struct experts_product *p, dim3 grid, bool wide)
{
    if (wide) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (experts_q<F, 4>), *p);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (experts_q<F, 1>), *p);
    }
}

template <bool BF16>
static void launch_half(struct cuda *cu, const struct experts_product *p, dim3 grid, bool wide)
{
    if (wide) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (experts_half<BF16, 4>), *p);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, (experts_half<BF16, 1>), *p);
    }
}

int cuda_experts_product(struct cuda *cu, struct experts_product *p, enum dtype type, bool wide)
{
    dim3 grid(cuda_div_up((uint64_t)p->g.part[0].n_rows, 16), (unsigned)p->n_tiles);

    switch (type) {
#define PRODUCT(TYPE, F)                                                                           \
    case TYPE:                                                                                     \
        launch_q<F>(cu, p, grid, wide);                                                            \
        break;
        FRAG_TYPES(PRODUCT)
#undef PRODUCT
    case DTYPE_F16:
        launch_half<false>(cu, p, grid, wide);
        break;
    case DTYPE_BF16:
        launch_half<true>(cu, p, grid, wide);
        break;
    case DTYPE_F32:
        CUDA_LAUNCH_EARLY(cu, grid, dim3(GEMM_THREADS), 0, experts_f32, *p);
        break;
    default:
        return -EINVAL;
    }
    return cuda_launched(cu, "experts_product");
}
