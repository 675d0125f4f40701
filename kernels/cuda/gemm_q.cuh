/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_GEMM_Q_CUH
#define PIPIT_KERNELS_CUDA_GEMM_Q_CUH

/* Quantised weights times 8-bit activations: one group of 4 blocks of 32 columns, 16 rows and
 * 8 tokens by a warp's byte matrix instructions. The sum of a block is an integer and exact;
 * blocks are added in f32 in their order, in decode rows and experts
 *     acc += (integer * weight's scale) * activations' scale  [+ offset * sum of activations]
 * and in tiles of prefill rows integer * (weight's scale * activations' scale). Q2_K, whose offsets
 * change every 16 columns, has a second integer, of the minima, instead:
 *     acc += (d * integer - dmin * second) * activations' scale
 * Streaming kernels keep a sum for each block of a group and add the four at a row's end: a lane of
 * gemm_q_row.cu has one of them. */

#include "kernels/cuda/frag.cuh"
#include "kernels/cuda/gemm.cuh"

struct gemm_scales {
    struct frag_scale row[2]; /* rows g and g + 8 */
};

template <typename F>
CUDA_INLINE void gemm_scales_load(const uint8_t *unit, int group, int lane, struct gemm_scales *ret)
{
    frag_scale_load<F>(unit, group, lane / 4, &ret->row[0]);
    frag_scale_load<F>(unit, group, lane / 4 + 8, &ret->row[1]);
}

/* 1.5 * 2^23: an integer of less than 2^22 added to its bits is that number added to its value, so
 * a matrix instruction that starts from them gives a sum that is an f32 already. */
enum { GEMM_MAGIC = 0x4b400000 };

CUDA_INLINE float gemm_of_magic(int sum)
{
    return __uint_as_float((uint32_t)sum) - __uint_as_float(GEMM_MAGIC);
}

/* The number of such a sum times a scale, rounded once: what the sum started from is taken off in
 * the same instruction. Times a scale, of which no type has more than 17 bits, it is exact. */
CUDA_INLINE float gemm_times(int sum, float d)
{
    return fmaf(__uint_as_float((uint32_t)sum), d, d * -__uint_as_float(GEMM_MAGIC));
}

/* d and -dmin of the sums of codes and of minima: they are the row's, so what comes of both is to
 * be multiplied by the activations' scale alone. */
CUDA_INLINE float gemm_less(float codes, float minima, float d, float m)
{
    return fmaf(codes, d, __fmul_rn(minima, m));
}

/* Weight's scale that is to follow a sum. */
template <typename F> CUDA_INLINE float gemm_scale(float d)
{
    return F::SCALES == FRAG_Q2 ? 1.0f : d;
}

/* Sums of block j, exact (of Q2_K rounded once): v[i] for rows g (i < 2) and g + 8, tokens 2t and
 * 2t + 1. */
template <typename F, bool MAGIC = true>
CUDA_INLINE void gemm_block(const struct frag_codes *w, const struct gemm_scales *s, int j,
                            const uint32_t x[8], float v[4])
{
    if (F::SCALES == FRAG_Q6) {
        int low[4] = {0, 0, 0, 0};
        int high[4] = {0, 0, 0, 0};
        uint32_t a[2] = {w->lo[0][j], w->lo[1][j]};
        uint32_t b[2] = {w->hi[0][j], w->hi[1][j]};

        mma_s8_k16(low, a, x[2 * j]);
        mma_s8_k16(high, b, x[2 * j + 1]);
        for (int i = 0; i < 4; i++) {
            const int *sub = s->row[i / 2].sub[j];

            v[i] = (float)(low[i] * sub[0] + high[i] * sub[1]); /* 4 * what is below 2^24 */
        }
        return;
    }
    constexpr int FROM = MAGIC ? (int)GEMM_MAGIC : 0;
    const int from[4] = {FROM, FROM, FROM, FROM};
    uint32_t a[4] = {w->lo[0][j], w->lo[1][j], w->hi[0][j], w->hi[1][j]};
    int c[4];

    mma_s8_k32(c, a, &x[2 * j], from);
    for (int i = 0; i < 4; i++) {
        v[i] = MAGIC ? gemm_of_magic(c[i]) : (float)c[i];
    }
    if (F::SCALES == FRAG_Q2) {
        uint32_t min[4];

        frag_minima(w, j, min);
        mma_s8_k32(c, min, &x[2 * j], from);
        for (int i = 0; i < 4; i++) {
            v[i] = gemm_less(v[i], MAGIC ? gemm_of_magic(c[i]) : (float)c[i], s->row[i / 2].d[j],
                             s->row[i / 2].m[j]);
        }
    }
}

/* Do sums meet their scale by gemm_times()? */
template <typename F, int PIECES> static __host__ __device__ constexpr bool gemm_is_plain(void)
{
    return PIECES == 1 && F::SCALES != FRAG_Q6 && F::SCALES != FRAG_Q2;
}

/* The same times the weight's scale, rounded once. x: 8 words a piece. */
template <typename F, int PIECES>
CUDA_INLINE void gemm_scaled(const struct frag_codes *w, const struct gemm_scales *s, int j,
                             const uint32_t (*x)[8], float v[4])
{
    if constexpr (gemm_is_plain<F, PIECES>()) {
        const int from[4] = {GEMM_MAGIC, GEMM_MAGIC, GEMM_MAGIC, GEMM_MAGIC};
        uint32_t a[4] = {w->lo[0][j], w->lo[1][j], w->hi[0][j], w->hi[1][j]};
        int c[4];

        mma_s8_k32(c, a, &x[0][2 * j], from);
        for (int i = 0; i < 4; i++) {
            v[i] = gemm_times(c[i], s->row[i / 2].d[j]);
        }
    } else {
        float left[4];

        gemm_block<F>(w, s, j, x[0], v);
        if (PIECES == 2) {
            gemm_block<F>(w, s, j, x[PIECES - 1], left);
        }
        for (int i = 0; i < 4; i++) {
            if (PIECES == 2) {
                v[i] += left[i] * (1.0f / 254.0f);
            }
            v[i] *= gemm_scale<F>(s->row[i / 2].d[j]);
        }
    }
}

/* x: 8 words a piece of the lane's token g; xd, xs: of tokens 2t and 2t + 1, by block. acc: one
 * sum, or one for each block of a group. */
template <typename F, int PIECES, int SUMS>
CUDA_INLINE void gemm_group(const struct frag_codes *w, const struct gemm_scales *s,
                            const uint32_t (*x)[8], const float (*xd)[4], const float (*xs)[4],
                            float (*acc)[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float v[4];

        gemm_scaled<F, PIECES>(w, s, j, x, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            acc[j % SUMS][i] += v[i] * xd[i % 2][j];
            if (frag_has_offset<F>()) {
                acc[j % SUMS][i] += s->row[i / 2].m[j] * xs[i % 2][j];
            }
        }
    }
}

CUDA_INLINE void gemm_words(const void *from, uint32_t ret[8])
{
    uint4 a = reinterpret_cast<const uint4 *>(from)[0];
    uint4 b = reinterpret_cast<const uint4 *>(from)[1];

    ret[0] = a.x, ret[1] = a.y, ret[2] = a.z, ret[3] = a.w;
    ret[4] = b.x, ret[5] = b.y, ret[6] = b.z, ret[7] = b.w;
}

CUDA_INLINE void gemm_floats(const float *from, float ret[4])
{
    float4 v = *reinterpret_cast<const float4 *>(from);

    ret[0] = v.x, ret[1] = v.y, ret[2] = v.z, ret[3] = v.w;
}

#endif
