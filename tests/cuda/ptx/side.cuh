/* SPDX-License-Identifier: Apache-2.0 */
/* Every primitive of prim.cuh that has a variant for GPUs, as a function of one lane. Compiled
 * twice: with the stand-ins of the emulator (side_emu.cc), and with the GPU's variant, whose PTX is
 * interpreted (side_ptx.cc by asm.py). */

#include "kernels/cuda/prim.cuh"

#include "tests/cuda/ptx/cases.cuh"

#ifdef PTX_SIDE_EMU
#define CASE(name) extern "C" __device__ void emu_##name(const struct ptx_lane *l)
#else
#define CASE(name) extern "C" __device__ void ptx_##name(const struct ptx_lane *l)
#endif
#define IN_F32(i) __uint_as_float(l->in[i])

CUDA_INLINE void give(const struct ptx_lane *l, int at, const float *x, int n)
{
    for (int i = 0; i < n; i++) {
        l->out[at + i] = __float_as_uint(x[i]);
    }
}

/* ---- numbers -------------------------------------------------------------------------------- */

CASE(halves_of_f32)
{
    l->out[0] = half2_of_f32<false>(IN_F32(0), IN_F32(1));
    l->out[1] = half2_of_f32<true>(IN_F32(0), IN_F32(1));
    l->out[2] = f16_of_f32(IN_F32(0));
    l->out[3] = bf16_of_f32(IN_F32(0));
}

CASE(f32_of_half)
{
    l->out[0] = __float_as_uint(f32_of_half<false>(l->in[0]));
    l->out[1] = __float_as_uint(f32_of_half<true>(l->in[0]));
}

CASE(exp2_about)
{
    l->out[0] = __float_as_uint(exp2_about(IN_F32(0)));
}

CASE(half4_of_s8)
{
    half4_of_s8(l->in[0], l->out);
}

/* Their values, as the two variants have different units. */
CASE(half4_of_e4m3)
{
    uint32_t r[2];

    half4_of_e4m3(l->in[0], r);
    for (int i = 0; i < 4; i++) {
        l->out[i] = __float_as_uint(f32_of_half<false>(r[i / 2] >> (16 * (i % 2))) * FP8_HALF_UNIT);
    }
}

CASE(half2_times)
{
    l->out[0] = half2_times(l->in[0], (uint16_t)l->in[1]);
    l->out[1] = half2_product(l->in[0], l->in[1]);
}

CASE(byte_perm_signed)
{
    l->out[0] = byte_perm_signed(l->in[0], l->in[1], l->in[2]);
}

CASE(thread_anew)
{
    l->out[0] = (uint32_t)thread_anew();
}

CASE(grid)
{
    grid_begin();
    grid_prefetch(l->global + l->in[0] % PTX_GLOBAL);
    grid_wait();
    l->out[0] = 1;
}

/* ---- fragments ------------------------------------------------------------------------------ */

CUDA_INLINE void sums_of_half(const struct ptx_lane *l, bool bf16)
{
    float c[4];

    for (int i = 0; i < 4; i++) {
        c[i] = IN_F32(i);
    }
    if (bf16) {
        mma_half<true>(c, l->in + 4, l->in + 8);
    } else {
        mma_half<false>(c, l->in + 4, l->in + 8);
    }
    give(l, 0, c, 4);
}

CASE(mma_f16)
{
    sums_of_half(l, false);
}

CASE(mma_bf16)
{
    sums_of_half(l, true);
}

CASE(mma_s8_k32)
{
    int d[4];
    int c[4];

    for (int i = 0; i < 4; i++) {
        c[i] = (int)l->in[i];
    }
    mma_s8_k32(d, l->in + 4, l->in + 8, c);
    for (int i = 0; i < 4; i++) {
        l->out[i] = (uint32_t)d[i];
    }
}

CASE(mma_s8_k16)
{
    int c[4];

    for (int i = 0; i < 4; i++) {
        c[i] = (int)l->in[i];
    }
    mma_s8_k16(c, l->in + 4, l->in[6]);
    for (int i = 0; i < 4; i++) {
        l->out[i] = (uint32_t)c[i];
    }
}

CASE(matrix_load4)
{
    matrix_load4<false>(l->shared + l->in[0] % 1024 * 16, l->out);
    matrix_load4<true>(l->shared + l->in[0] % 1024 * 16, l->out + 4);
}

CASE(matrix_turn)
{
    l->out[0] = matrix_turn(l->in[0]);
}

/* ---- groups of four warps ------------------------------------------------------------------- */

/* Two groups of products, x and y: the first is waited for while the second may run. Of a head of
 * 64 elements the part `in[0]`. A is 64 rows in the first 8 KiB, B 128 rows behind it. */
CUDA_INLINE void group_products(const struct ptx_lane *l, bool bf16)
{
    float x[64];
    float y[64];
    int d = (int)(l->in[0] % 4);
    uint64_t a = group_matrix(l->shared + d * 32, 0);
    uint64_t b = group_matrix(l->shared + 8192 + d * 32, 0);
    bool add = l->in[1] != 0;

    for (int i = 0; i < 64; i++) {
        x[i] = IN_F32(2 + i);
        y[i] = IN_F32(65 - i);
    }
    group_fence_shared();
    __syncthreads(); /* shared memory: as the test wrote it */
    group_begin();
    if (bf16) {
        group_mma<true>(x, a, b, add);
        group_commit();
        group_mma<true>(y, a, b, !add);
    } else {
        group_mma<false>(x, a, b, add);
        group_commit();
        group_mma<false>(y, a, b, !add);
    }
    group_commit();
    group_wait<1>();
    give(l, 0, x, 64);
    group_wait<0>();
    give(l, 64, y, 64);
}

CASE(group_mma_f16)
{
    group_products(l, false);
}

CASE(group_mma_bf16)
{
    group_products(l, true);
}

/* B is 128 rows of N columns, of which 16 rows count; 64 columns are a panel of 16 KiB. */
template <bool BF16, int N> CUDA_INLINE void group_values(const struct ptx_lane *l)
{
    float x[N / 2];
    uint32_t a[4];
    int j = (int)(l->in[0] % 8);

    for (int i = 0; i < N / 2; i++) {
        x[i] = IN_F32(2 + i);
    }
    for (int i = 0; i < 4; i++) {
        a[i] = l->in[66 + i];
    }
    group_fence_shared();
    __syncthreads(); /* shared memory: as the test wrote it */
    group_begin();
    group_mma_values<BF16, N>(x, a, group_matrix(l->shared + j * 16 * 128, 128 * 128));
    group_commit();
    group_wait<0>();
    give(l, 0, x, N / 2);
}

CASE(group_values_f16_64)
{
    group_values<false, 64>(l);
}

CASE(group_values_f16_128)
{
    group_values<false, 128>(l);
}

CASE(group_values_bf16_64)
{
    group_values<true, 64>(l);
}

CASE(group_values_bf16_128)
{
    group_values<true, 128>(l);
}

/* ---- asynchronous copies -------------------------------------------------------------------- */

/* Four groups of copies, all but two of them waited for, then all; at last a copy of no group. What
 * is not waited for has not come: the stand-in is as late as it may be. in[0..4]: where from. */
CASE(async)
{
    uint8_t *to = l->shared + threadIdx.x * 80;
    const uint32_t *got = reinterpret_cast<const uint32_t *>(to);

    for (int i = 0; i < 4; i++) {
        if (i % 2 == 0) {
            async_copy16(to + 16 * i, l->global + l->in[i] % (PTX_GLOBAL / 16) * 16);
        } else {
            async_copy4(to + 16 * i + 4, l->global + l->in[i] % (PTX_GLOBAL / 4) * 4);
        }
        async_commit();
    }
    async_copy16(to + 64, l->global + l->in[4] % (PTX_GLOBAL / 16) * 16);
    async_wait<2>();
    for (int i = 0; i < 20; i++) {
        l->out[i] = got[i];
    }
    async_wait<0>();
    for (int i = 0; i < 20; i++) {
        l->out[20 + i] = got[i];
    }
}
