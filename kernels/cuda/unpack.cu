/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a quantised weight as bf16, for cublasLt (cublas_products.cu): to the bit what
 * quant/dtype.c decodes, rounded once to the nearest.
 *
 * A warp takes 16 rows and 128 columns, which lie in fragment order (frag.cuh). A byte becomes an
 * f32 by a permutation and a subtraction, then there is one multiplication, or multiplication and
 * addition, and half a conversion: 7 to 11 instructions a weight, all told. Products of scales and
 * codes are exact in f32 where an offset is added, so the addition rounds once, as the definition
 * does.
 *
 * Two lanes change halves, so that each writes 16 bytes and four of them 64 of a row. Blocks of 8
 * warps, no shared memory. Bytes: the weight's are read, 2 a weight written; of an 8B model's 7.0 G
 * weights in Q4_K 4.0 and 14.0 GB, 4.4 ms at the rate at which an H200 copies; instructions 2.0.
 *
 * bf16, not f16. An error of at most 2^-9 of each weight adds 2 % to the variance of what Q8_0's
 * own rounding leaves, and less to the others'; the activations that it meets are rounded the same
 * way, and the own tiles' activations in 8 bits are off by three times as much. In exchange all
 * scales of all formats are in its range, a row of activations needs no factor, and sums are
 * outputs already. */

#include <cerrno>

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/gemm.cuh"

enum { UNPACK_THREADS = 256, UNPACK_WARPS = UNPACK_THREADS / WARP };

/* Signed byte i of w, whose top bits are flipped: 2^23 + 128 more, in an f32's mantissa. */
CUDA_INLINE float unpack_byte(uint32_t flipped, int i)
{
    uint32_t bits = __byte_perm(flipped, 0x4b000000u, 0x7440u | (uint32_t)i);

    return __uint_as_float(bits) - 8388736.0f;
}

/* Four codes times d, plus m, as four bf16. */
template <typename F> CUDA_INLINE uint2 unpack_word(uint32_t codes, float d, float m)
{
    constexpr bool ADDS = frag_has_offset<F>() || F::SCALES == FRAG_Q2;
    uint32_t flipped = codes ^ 0x80808080u;
    float v[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        float q = unpack_byte(flipped, i);

        v[i] = ADDS ? fmaf(q, d, m) : __fmul_rn(q, d);
    }
    return make_uint2(half2_of_f32<true>(v[0], v[1]), half2_of_f32<true>(v[2], v[3]));
}

/* Of block j and half of the rows: a lane's elements 4t.. and 16 + 4t... */
template <typename F>
CUDA_INLINE void unpack_block(const struct frag_codes *w, const struct frag_scale *s, int half,
                              int j, uint2 *ret_lo, uint2 *ret_hi)
{
    float d[2] = {s->d[j], s->d[j]};
    float m[2] = {s->m[j], s->m[j]};

    if (F::SCALES == FRAG_Q6) {
        d[0] = __fmul_rn(d[0], (float)s->sub[j][0]);
        d[1] = __fmul_rn(d[1], (float)s->sub[j][1]);
    }
    if (F::SCALES == FRAG_Q2) { /* codes are times their scale; a minimum each 16 columns */
        uint32_t minima = w->min[half][j / 2] >> (j % 2 * 16);

        m[0] = __fmul_rn(m[0], (float)(minima & 255));
        m[1] = __fmul_rn(m[1], (float)(minima >> 8 & 255));
    }
    *ret_lo = unpack_word<F>(w->lo[half][j], d[0], m[0]);
    *ret_hi = unpack_word<F>(w->hi[half][j], d[1], m[1]);
}

/* Rows of tile blockIdx.y to `to` (n_rows, ld), columns below n_cols, of which there are whole
 * blocks of 32. */
template <typename F>
CUDA_KERNEL void __launch_bounds__(UNPACK_THREADS)
    unpack_q(const uint8_t *w, uint16_t *to, int32_t n_rows, int32_t n_cols, int32_t ld)
{
    int lane = (int)threadIdx.x % WARP;
    bool odd = lane % 2 != 0;
    int32_t group = (int32_t)blockIdx.x * UNPACK_WARPS + (int32_t)threadIdx.x / WARP;
    int32_t row = (int32_t)blockIdx.y * 16 + lane / 4;
    uint64_t n_units = frag_units(n_cols, F::COLS);
    const uint8_t *unit = w + ((uint64_t)blockIdx.y * n_units + group / F::GROUPS) * F::UNIT;
    struct frag_codes codes;
    struct frag_scale scales[2];

    if (group * 128 >= n_cols) {
        return;
    }
    frag_load<F>(unit, group % F::GROUPS, lane, &codes);
    frag_scale_load<F>(unit, group % F::GROUPS, lane / 4, &scales[0]);
    frag_scale_load<F>(unit, group % F::GROUPS, lane / 4 + 8, &scales[1]);
#pragma unroll
    for (int n = 0; n < 8; n++) {
        int half = n / 4;
        int j = n % 4;
        int32_t col = group * 128 + j * 32 + lane % 4 / 2 * 8 + (odd ? 16 : 0);
        uint2 lo;
        uint2 hi;

        unpack_block<F>(&codes, &scales[half], half, j, &lo, &hi);
        uint2 mine = odd ? hi : lo; /* the neighbour's part of it comes for the other half */
        uint2 give = odd ? lo : hi;
        uint32_t x = __shfl_xor_sync(ALL_LANES, give.x, 1);
        uint32_t y = __shfl_xor_sync(ALL_LANES, give.y, 1);

        if (group * 128 + j * 32 < n_cols && row + half * 8 < n_rows) {
            *reinterpret_cast<uint4 *>(to + (uint64_t)(row + half * 8) * (uint64_t)ld + col) =
                odd ? make_uint4(x, y, mine.x, mine.y) : make_uint4(mine.x, mine.y, x, y);
        }
    }
}

template <typename F>
static int launch(struct cuda *cu, const uint8_t *w, int32_t n_rows, int32_t n_cols, uint16_t *to,
                  int32_t ld)
{
    dim3 grid(cuda_div_up((uint64_t)n_cols, 128 * UNPACK_WARPS),
              cuda_div_up((uint64_t)n_rows, 16));

    CUDA_LAUNCH(cu, grid, dim3(UNPACK_THREADS), 0, (unpack_q<F>), w, to, n_rows, n_cols, ld);
    return cuda_launched(cu, "unpack_q");
}

int cuda_unpack(struct cuda *cu, enum dtype type, const uint8_t *w, int32_t row0, int32_t n_rows,
                int32_t n_cols, uint16_t *to, int32_t ld)
{
    switch (type) {
#define UNPACK(TYPE, F)                                                                            \
    case TYPE:                                                                                     \
        return launch<F>(cu, w + (uint64_t)(row0 / 16) * frag_units(n_cols, F::COLS) * F::UNIT,    \
                         n_rows, n_cols, to, ld);
        FRAG_TYPES(UNPACK)
#undef UNPACK
    default:
        return -EINVAL;
    }
}
