/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_UNROLL_H
#define PIPIT_KERNELS_CPU_UNROLL_H

/* UNROLL_LOOP before a loop of constant length (at most 64): fully unrolled, so that arrays indexed
 * in it become registers. Without it clang keeps a tile's sums in memory, four times slower.
 * UNROLL_INLINE before a function that is written once for many constant arguments.
 *
 * With a sanitizer neither does anything: the code means the same, and a compiler that checks each
 * of ten thousand unrolled accesses takes minutes a file. */

#include "base/sanitized.h"

#if defined(UNROLL_PLAIN) && !SANITIZED /* plain C lanes: arrays stay arrays anyway */
#define UNROLL_LOOP
#define UNROLL_INLINE static inline
#elif SANITIZED
#define UNROLL_LOOP
#define UNROLL_INLINE static __attribute__((noinline, unused))
#elif defined(__clang__)
#define UNROLL_LOOP _Pragma("clang loop unroll(full)")
#define UNROLL_INLINE static inline __attribute__((always_inline))
#else
#define UNROLL_LOOP _Pragma("GCC unroll 64")
#define UNROLL_INLINE static inline __attribute__((always_inline))
#endif

#endif
