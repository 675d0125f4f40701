/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_UNROLL_H
#define PIPIT_KERNELS_CPU_UNROLL_H

/* UNROLL_LOOP before a loop of constant length (at most 64): fully unrolled, so that arrays indexed
 * in it become registers. Without it clang keeps a tile's sums in memory, four times slower. */

#ifdef __clang__
#define UNROLL_LOOP _Pragma("clang loop unroll(full)")
#else
#define UNROLL_LOOP _Pragma("GCC unroll 64")
#endif

#endif
