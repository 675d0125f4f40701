/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CPU_H
#define PIPIT_BASE_CPU_H

/* What this CPU can do, asked of the CPU and of the operating system (XCR0, hwcap), once.
 * Kernel families are chosen from these flags; a mask takes flags away so that tests force any
 * variant. */

#include <stdint.h>

enum cpu_flag {
    CPU_AVX2 = 1u << 0,        /* AVX2, FMA, F16C */
    CPU_AVX512 = 1u << 1,      /* F, BW, DQ, VL, CD */
    CPU_AVX512_VNNI = 1u << 2,
    CPU_AVX512_BF16 = 1u << 3,
    CPU_AVX512_FP16 = 1u << 4,
    CPU_AMX_INT8 = 1u << 5,    /* only after the kernel granted tile data */
    CPU_AMX_BF16 = 1u << 6,
    CPU_AVX_VNNI = 1u << 7,
    CPU_NEON = 1u << 8,
    CPU_DOTPROD = 1u << 9,
    CPU_I8MM = 1u << 10,
    CPU_FP16 = 1u << 11,       /* Armv8.2 half-precision arithmetic */
};

uint32_t cpu_flags(void);

/* A word per flag, e.g. "avx2", for --version, logs and the mask option; NULL beyond the last.
 * `bit` counts from 0. */
const char *cpu_flag_name(int bit);

/* CPUs this process may use: affinity mask cut to the cgroup's quota, at least 1. */
int cpu_count(void);

#endif
