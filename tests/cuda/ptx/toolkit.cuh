/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_CUDA_PTX_TOOLKIT_CUH
#define PIPIT_TESTS_CUDA_PTX_TOOLKIT_CUH

/* CUDA's headers for prim.cuh as a GPU's compiler reads it, on the CPU; asm.py includes it first,
 * and gives empty files of their names. Threads, shuffles and integer intrinsics are the
 * emulator's, addresses the interpreter's. Of the CUDA Math API's half precision there is what
 * prim.cuh has: each result is exact, then rounded once; a NaN is 0x7fff. */

#include "tests/cuda/emu/emu.cuh"
#include "tests/cuda/ptx/ptx.cuh"

static inline size_t __cvta_generic_to_shared(const void *p)
{
    return ptx_shared_address(p);
}
static inline size_t __cvta_generic_to_global(const void *p)
{
    return (size_t)p;
}

struct __nv_bfloat16 {
    uint16_t bits;
};

static inline __nv_bfloat16 __float2bfloat16_rn(float x)
{
    return {ptx_half_of(x, true, false)};
}
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 x)
{
    return x.bits;
}

struct __half {
    uint16_t bits;
};
struct __half2 {
    uint16_t half[2];
};

static inline __half __ushort_as_half(uint16_t bits)
{
    return {bits};
}
static inline uint16_t __half_as_ushort(__half x)
{
    return x.bits;
}
static inline float __half2float(__half x)
{
    return (float)ptx_half_value(x.bits, false);
}
static inline __half __float2half_rn(float x)
{
    return {ptx_half_of(x, false, false)};
}
static inline __half2 __float2half2_rn(float x)
{
    return {{__float2half_rn(x).bits, __float2half_rn(x).bits}};
}
static inline __half2 __half2half2(__half x)
{
    return {{x.bits, x.bits}};
}

#define PTX_HALF2(name, result)                                                                    \
    static inline __half2 name(__half2 x, __half2 y)                                               \
    {                                                                                              \
        __half2 r;                                                                                 \
                                                                                                   \
        for (int i = 0; i < 2; i++) {                                                              \
            double a = ptx_half_value(x.half[i], false);                                           \
            double b = ptx_half_value(y.half[i], false);                                           \
                                                                                                   \
            r.half[i] = ptx_half_of(result, false, false);                                         \
        }                                                                                          \
        return r;                                                                                  \
    }
PTX_HALF2(__hmul2, a *b)
PTX_HALF2(__hsub2, a - b)
/* of a NaN and a number the number */
PTX_HALF2(__hmin2, fmin(a, b))
PTX_HALF2(__hmax2, fmax(a, b))

static inline uint32_t __reduce_max_sync(unsigned mask, uint32_t x)
{
    for (int m = 16; m > 0; m >>= 1) {
        uint32_t other = __shfl_xor_sync(mask, x, m);

        x = x > other ? x : other;
    }
    return x;
}
static inline int __reduce_add_sync(unsigned mask, int x)
{
    for (int m = 16; m > 0; m >>= 1) {
        x += __shfl_xor_sync(mask, x, m);
    }
    return x;
}

#endif
