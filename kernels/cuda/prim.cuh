/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_PRIM_CUH
#define PIPIT_KERNELS_CUDA_PRIM_CUH

/* What kernels use beyond plain CUDA C: launches, dynamic shared memory, number formats, warp and
 * block sums, matrix fragments, asynchronous copies. The only file with inline PTX, and the only
 * one that knows whether a GPU's compiler or the CPU emulation of tests/cuda/emu reads it.
 *
 * Sums have one order whatever the number of blocks and rows: a butterfly over lanes gives every
 * lane the same bits (a + b = b + a), warps are added in their order. */

#ifdef __CUDACC__
#include <cuda_runtime.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include <emu.cuh>
#endif

#include <cmath>
#include <cstdint>

extern "C" {
#include "quant/half.h"
}

/* ---- launches ------------------------------------------------------------------------------- */

/* CUDA_KNOWN(kernel): before a kernel is launched by its address (cuda.cuh's CUDA_LAUNCH); a
 * compiler for GPUs knows it already. CUDA_SHARED(type, name): dynamic shared memory. */
#ifdef __CUDACC__
#define CUDA_KNOWN(kernel) ((void)0)
#define CUDA_SHARED(type, name)                                                                    \
    extern __shared__ __align__(128) uint8_t name##_bytes[];                                       \
    type *name = reinterpret_cast<type *>(name##_bytes)
#define CUDA_KERNEL static __global__
#else
#define CUDA_KNOWN(kernel) emu_known(#kernel, kernel)
#define CUDA_SHARED(type, name) type *name = reinterpret_cast<type *>(emu_shared())
#define CUDA_KERNEL static
#endif
#define CUDA_INLINE static __device__ __forceinline__

enum { WARP = 32, ALL_LANES = 0xffffffff };

/* Kernels that may be launched before the one ahead of them has ended (CUDA_LAUNCH_EARLY; sm_90 and
 * up, elsewhere nothing): grid_begin() at once, so that the next may come early in turn,
 * grid_prefetch() of 128 bytes that no kernel writes (weights), and grid_wait() by every thread
 * before it touches anything else. The one ahead has then ended, and so has everything before it,
 * for it waited in turn. grid_ahead(true) ... grid_ahead(false) stand around reads before
 * grid_wait() of what no kernel of the step writes: the emulator traps all others. */
#ifdef __CUDACC__
CUDA_INLINE void grid_begin(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
CUDA_INLINE void grid_prefetch(const void *p)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
#else
    (void)p;
#endif
}
CUDA_INLINE void grid_wait(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#define grid_ahead(on) ((void)0)
#else
#define grid_begin() ((void)0)
#define grid_prefetch(p) ((void)(p))
#define grid_wait() emu_grid_wait(__FILE__, __LINE__)
#define grid_ahead emu_grid_ahead
#endif

/* `yes` for sm_100 and up, or for sm_86 to sm_89, else `no`: mostly of blocks a multiprocessor that
 * ptxas is told, 0 for none. Where it is told no number, ptxas saves registers for more blocks, and
 * on these spills; and kernels that just fit on sm_80 and sm_90 take a few registers more there. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define CUDA_ON_100(yes, no) (yes)
#else
#define CUDA_ON_100(yes, no) (no)
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ > 800 && __CUDA_ARCH__ < 900
#define CUDA_ON_86(yes, no) (yes)
#else
#define CUDA_ON_86(yes, no) (no)
#endif

/* i, of which the compiler knows nothing: what is made of it is made anew in each turn of a loop,
 * where registers are scarcer than instructions. */
CUDA_INLINE int anew(int i)
{
#ifdef __CUDACC__
    asm volatile("" : "+r"(i));
#endif
    return i;
}

CUDA_INLINE int thread_anew(void)
{
    return anew((int)threadIdx.x);
}

/* ---- number formats ------------------------------------------------------------------------- */

#ifdef __CUDACC__
CUDA_INLINE float f32_of_f16(uint16_t h)
{
    return __half2float(__ushort_as_half(h));
}
CUDA_INLINE float f32_of_bf16(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}
CUDA_INLINE uint16_t f16_of_f32(float x)
{
    return __half_as_ushort(__float2half_rn(x));
}
CUDA_INLINE uint16_t bf16_of_f32(float x)
{
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
#else
#define f32_of_f16 half_f16_to_f32
#define f32_of_bf16 half_bf16_to_f32
#define f16_of_f32 half_f16_from_f32
#define bf16_of_f32 half_bf16_from_f32
#endif

/* quant/fp8.h's e4m3 by integers, as that file defines it: nearest, ties to even, saturating. The
 * library's own conversion takes some 70 instructions below sm_89 and is wrong in nothing else. */
CUDA_INLINE uint8_t fp8_of_f32(float x)
{
    uint32_t u = __float_as_uint(x);
    uint32_t sign = u >> 24 & 0x80;

    u &= 0x7fffffff;
    if (u >= 0x43e00000) {
        return (uint8_t)(sign | 0x7e);
    }
    if (u < 0x3c800000) {
        float r = __fadd_rn(__uint_as_float(u), 16384.0f);

        return (uint8_t)(sign | (__float_as_uint(r) - 0x46800000));
    }
    u += 0x7ffff + (u >> 20 & 1);
    return (uint8_t)(sign | (u - 0x3c000000) >> 20);
}

/* The code's value times 2^-8: the bits shifted into an f16. */
CUDA_INLINE float f32_of_fp8(uint8_t code)
{
    return f32_of_f16((uint16_t)((code & 0x80) << 8 | (code & 0x7f) << 7));
}

/* 2^x to 2 units of the last place; results below 2^-126 may be 0. */
CUDA_INLINE float exp2_about(float x)
{
#ifdef __CUDACC__
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* Two elements of 16 bits, `lo` in the lower half. */
template <bool BF16> CUDA_INLINE uint32_t half2_of_f32(float lo, float hi)
{
#ifdef __CUDACC__
    uint32_t r;

    if (BF16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    }
    return r;
#else
    return BF16 ? bf16_of_f32(lo) | (uint32_t)bf16_of_f32(hi) << 16
                : f16_of_f32(lo) | (uint32_t)f16_of_f32(hi) << 16;
#endif
}

/* Four codes as f16, without their scale; of fp8 times 2^-8, as f32_of_fp8(). */
CUDA_INLINE void half4_of_fp8(uint32_t codes, uint32_t ret[2])
{
    for (int i = 0; i < 2; i++) {
        uint32_t x = __byte_perm(codes, 0, i == 0 ? 0x1404 : 0x3424); /* in the upper bytes */

        ret[i] = (x & 0x80008000) | (x >> 1 & 0x3f803f80);
    }
}

CUDA_INLINE void half4_of_s8(uint32_t codes, uint32_t ret[2])
{
    for (int i = 0; i < 2; i++) {
        /* 1024 + 128 + code: the byte is the lower part of what 1024 has of a fraction */
        uint32_t x = __byte_perm(codes ^ 0x80808080, 0x64646464, i == 0 ? 0x4140 : 0x4342);
#ifdef __CUDACC__
        __half2 y = __hsub2(*reinterpret_cast<__half2 *>(&x), __float2half2_rn(1152.0f));

        ret[i] = *reinterpret_cast<uint32_t *>(&y);
#else
        ret[i] = f16_of_f32(f32_of_f16((uint16_t)x) - 1152.0f) |
                 (uint32_t)f16_of_f32(f32_of_f16((uint16_t)(x >> 16)) - 1152.0f) << 16;
#endif
    }
}

/* Both f16 of x times another, rounded once, as near to infinity as f16 goes. */
CUDA_INLINE uint32_t half2_times(uint32_t x, uint16_t scale)
{
#ifdef __CUDACC__
    __half2 y = __hmul2(*reinterpret_cast<__half2 *>(&x), __half2half2(__ushort_as_half(scale)));

    y = __hmin2(__hmax2(y, __float2half2_rn(-65504.0f)), __float2half2_rn(65504.0f));
    return *reinterpret_cast<uint32_t *>(&y);
#else
    float s = f32_of_f16(scale);
    float lo = f32_of_f16((uint16_t)x) * s;
    float hi = f32_of_f16((uint16_t)(x >> 16)) * s;

    return f16_of_f32(fminf(fmaxf(lo, -65504.0f), 65504.0f)) |
           (uint32_t)f16_of_f32(fminf(fmaxf(hi, -65504.0f), 65504.0f)) << 16;
#endif
}

/* Both products of f16, rounded once. */
CUDA_INLINE uint32_t half2_product(uint32_t x, uint32_t y)
{
#ifdef __CUDACC__
    __half2 r = __hmul2(*reinterpret_cast<__half2 *>(&x), *reinterpret_cast<__half2 *>(&y));

    return *reinterpret_cast<uint32_t *>(&r);
#else
    return f16_of_f32(f32_of_f16((uint16_t)x) * f32_of_f16((uint16_t)y)) |
           (uint32_t)f16_of_f32(f32_of_f16((uint16_t)(x >> 16)) * f32_of_f16((uint16_t)(y >> 16)))
               << 16;
#endif
}

/* Four of the 8 bytes of a and b by the nibbles of `at`; a nibble with its upper bit set gives that
 * byte's upper bit in all 8 bits. */
CUDA_INLINE uint32_t byte_perm_signed(uint32_t a, uint32_t b, uint32_t at)
{
#ifdef __CUDACC__
    uint32_t r;

    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(at));
    return r;
#else
    uint32_t r = __byte_perm(a, b, at & 0x7777);

    for (int i = 0; i < 4; i++) {
        if (at >> (4 * i + 3) & 1) {
            r = (r & ~(0xffu << 8 * i)) | (r >> (8 * i + 7) & 1 ? 0xffu << 8 * i : 0);
        }
    }
    return r;
#endif
}

template <bool BF16> CUDA_INLINE float f32_of_half(uint32_t h)
{
    return BF16 ? f32_of_bf16((uint16_t)h) : f32_of_f16((uint16_t)h);
}

/* Four codes of fp8 as f16, times 1 / FP8_HALF_UNIT as half4_of_fp8() gives them: from sm_89 on an
 * instruction makes the plain e4m3 value of two. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define FP8_HALF_UNIT 0.00390625f
#else
#define FP8_HALF_UNIT 1.0f
#endif
CUDA_INLINE void half4_of_e4m3(uint32_t codes, uint32_t ret[2])
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %2;"
        " cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
        : "=r"(ret[0]), "=r"(ret[1])
        : "r"(codes));
#else
    half4_of_fp8(codes, ret);
#endif
}

/* ---- warps and blocks ----------------------------------------------------------------------- */

CUDA_INLINE float warp_sum(float x)
{
    for (int m = 16; m > 0; m >>= 1) {
        x += __shfl_xor_sync(ALL_LANES, x, m);
    }
    return x;
}

CUDA_INLINE float warp_max(float x)
{
    for (int m = 16; m > 0; m >>= 1) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

CUDA_INLINE uint32_t warp_max_u32(uint32_t x)
{
#ifdef __CUDACC__
    return __reduce_max_sync(ALL_LANES, x);
#else
    for (int m = 16; m > 0; m >>= 1) {
        uint32_t other = __shfl_xor_sync(ALL_LANES, x, m);

        x = x > other ? x : other;
    }
    return x;
#endif
}

CUDA_INLINE int32_t warp_sum_s32(int32_t x)
{
#ifdef __CUDACC__
    return __reduce_add_sync(ALL_LANES, x);
#else
    for (int m = 16; m > 0; m >>= 1) {
        x += __shfl_xor_sync(ALL_LANES, x, m);
    }
    return x;
#endif
}

/* Over a block of n_warps <= 32 whole warps; `part` is shared (32). All threads get the result. */
CUDA_INLINE float block_sum(float x, float *part, int n_warps)
{
    float sum = 0;

    x = warp_sum(x);
    __syncthreads(); /* part: what the call before read from it */
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = x;
    }
    __syncthreads(); /* part: written above, read below */
    for (int i = 0; i < n_warps; i++) {
        sum += part[i];
    }
    return sum;
}

CUDA_INLINE float block_max(float x, float *part, int n_warps)
{
    x = warp_max(x);
    __syncthreads(); /* part: what the call before read from it */
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = x;
    }
    __syncthreads(); /* part: written above, read below */
    x = part[0];
    for (int i = 1; i < n_warps; i++) {
        x = fmaxf(x, part[i]);
    }
    return x;
}

/* ---- matrix fragments ----------------------------------------------------------------------- */

/* c (16 x 8, f32) += a (16 x 16) b (16 x 8), of one warp. Lane = 4 g + t holds of a rows g and
 * g + 8, of b column g, of c rows g, g + 8 and columns 2t, 2t + 1. */
template <bool BF16> CUDA_INLINE void mma_half(float c[4], const uint32_t a[4], const uint32_t b[2])
{
#ifdef __CUDACC__
    if (BF16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#else
    emu_mma_half(c, a, b, BF16);
#endif
}

/* Four 8 x 8 matrices of 16-bit elements from shared memory: lane 8 i + r gives the address of row
 * r of matrix i (16 bytes); of matrix i lane 4 g + t gets elements 2t and 2t + 1 of row g, with
 * TRANS element g of rows 2t and 2t + 1, in ret[i]. */
template <bool TRANS> CUDA_INLINE void matrix_load4(const void *row, uint32_t ret[4])
{
#ifdef __CUDACC__
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);

    if (TRANS) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                     : "r"(at)
                     : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(ret[0]), "=r"(ret[1]), "=r"(ret[2]), "=r"(ret[3])
                     : "r"(at)
                     : "memory");
    }
#else
    emu_matrix_load4(row, ret, TRANS);
#endif
}

/* An 8 x 8 matrix of 16-bit elements, turned: lane 4 g + t gives elements 2t and 2t + 1 of row g
 * and gets those of column g. */
CUDA_INLINE uint32_t matrix_turn(uint32_t pair)
{
#ifdef __CUDACC__
    uint32_t r;

    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
#else
    return emu_matrix_turn(pair);
#endif
}

/* d (16 x 8, int) = c + a (16 x 32) b (32 x 8), signed bytes. */
CUDA_INLINE void mma_s8_k32(int d[4], const uint32_t a[4], const uint32_t b[2], const int c[4])
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%10,%11,%12,%13};"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]),
                   "r"(c[1]), "r"(c[2]), "r"(c[3]));
#else
    for (int i = 0; i < 4; i++) {
        d[i] = c[i];
    }
    emu_mma_s8(d, a, b, 2);
#endif
}

/* c (16 x 8, int) += a (16 x 16) b (16 x 8), signed bytes. */
CUDA_INLINE void mma_s8_k16(int c[4], const uint32_t a[2], uint32_t b)
{
#ifdef __CUDACC__
    asm volatile("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 "
                 "{%0,%1,%2,%3},{%4,%5},{%6},{%0,%1,%2,%3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(b));
#else
    emu_mma_s8(c, a, &b, 1);
#endif
}

/* ---- matrices of sm_90 ---------------------------------------------------------------------- */

/* wgmma, of 4 warps that begin at a multiple of 4, each its 16 rows as the sums of mma_half():
 * x[4 j + i] of columns [8 j, 8 j + 8). Operands in shared memory are rows of 128 bytes, whose
 * 16-byte pieces are swapped (piece ^ row % 8), and begin at multiples of 1,024 bytes; a product
 * may begin inside one.
 *
 * group_fence_shared() by who wrote shared memory, before the barrier; group_begin() before the
 * first product that uses registers written since; products, group_commit(), group_wait<n>(): all
 * but the n last groups are done. Until then no register of theirs may be touched. A commit without
 * products makes a group, too; one behind a branch that makes products, a second. */
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDACC__)
#define CUDA_HAS_WGMMA 1
#endif

#ifdef __CUDACC__
#ifdef CUDA_HAS_WGMMA
#define X4(i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define X16(i) X4(i), X4(i + 4), X4(i + 8), X4(i + 12)
#define X32 X16(0), X16(16)
#define X64 X32, X16(32), X16(48)
#define R32                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define R64                                                                                        \
    R32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,"    \
        "%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
CUDA_INLINE void group_fence_shared(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

CUDA_INLINE void group_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

CUDA_INLINE void group_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int N_PENDING> CUDA_INLINE void group_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N_PENDING) : "memory");
}

/* A matrix in shared memory; `panel`: bytes from 64 columns to the next 64, where it is used with
 * its rows as what is summed over. */
CUDA_INLINE uint64_t group_matrix(const void *at, uint32_t panel)
{
    return ((uint32_t)__cvta_generic_to_shared(at) & 0x3ffff) >> 4 | (uint64_t)(panel >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}

/* x (64 x 128) = a (64 x 16) b (128 x 16)', added to x with `add`. */
template <bool BF16>
CUDA_INLINE void group_mma(float x[64], uint64_t a, uint64_t b, bool add)
{
#define MMA(type)                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                                      \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" R64             \
                 "}, %64, %65, p, 1, 1, 0, 0;\n}"                                                  \
                 : X64                                                                             \
                 : "l"(a), "l"(b), "r"((int)add))
    if (BF16) {
        MMA("bf16");
    } else {
        MMA("f16");
    }
#undef MMA
}

/* x (64 x N) += a (64 x 16) b (16 x N), N 64 or 128; a as the 16 x 16 of mma_half(). */
template <bool BF16, int N>
CUDA_INLINE void group_mma_values(float x[N / 2], const uint32_t a[4], uint64_t b)
{
#define MMA(type, n, registers, sums, r0, r1, r2, r3, r4)                                          \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" registers     \
                 "}, {" r0 "," r1 "," r2 "," r3 "}, " r4 ", 1, 1, 1, 1;"                           \
                 : sums                                                                            \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
    if constexpr (N == 128 && BF16) {
        MMA("bf16", "128", R64, X64, "%64", "%65", "%66", "%67", "%68");
    } else if constexpr (N == 128) {
        MMA("f16", "128", R64, X64, "%64", "%65", "%66", "%67", "%68");
    } else if constexpr (BF16) {
        MMA("bf16", "64", R32, X32, "%32", "%33", "%34", "%35", "%36");
    } else {
        MMA("f16", "64", R32, X32, "%32", "%33", "%34", "%35", "%36");
    }
#undef MMA
}
#undef X4
#undef X16
#undef X32
#undef X64
#undef R32
#undef R64
#endif
#else
#define group_fence_shared() ((void)0)
#define group_begin() ((void)0)
#define group_commit emu_group_commit
template <int N_PENDING> static inline void group_wait(void)
{
    emu_group_wait(N_PENDING);
}
#define group_matrix emu_group_matrix
template <bool BF16>
static inline void group_mma(float x[64], uint64_t a, uint64_t b, bool add)
{
    emu_group_mma(x, a, b, add, BF16);
}
template <bool BF16, int N>
static inline void group_mma_values(float x[N / 2], const uint32_t a[4], uint64_t b)
{
    emu_group_mma_values(x, a, b, N, BF16);
}
#endif

/* ---- asynchronous copies -------------------------------------------------------------------- */

/* 16 bytes from global to shared memory; groups complete in order. */
CUDA_INLINE void async_copy16(void *to, const void *from)
{
#ifdef __CUDACC__
    asm volatile(
        "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
#else
    emu_async_copy(to, from, 16);
#endif
}

/* The same of 4. */
CUDA_INLINE void async_copy4(void *to, const void *from)
{
#ifdef __CUDACC__
    asm volatile(
        "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"((uint32_t)__cvta_generic_to_shared(to)),
        "l"(from)
        : "memory");
#else
    emu_async_copy(to, from, 4);
#endif
}

CUDA_INLINE void async_commit(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    emu_async_commit();
#endif
}

template <int N_PENDING> CUDA_INLINE void async_wait(void)
{
#ifdef __CUDACC__
    asm volatile("cp.async.wait_group %0;" ::"n"(N_PENDING) : "memory");
#else
    emu_async_wait(N_PENDING);
#endif
}

#endif
