/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_X86_H
#define PIPIT_KERNELS_X86_X86_H

/* What each instruction set puts into the cpu backend's table, called weakest first for the flags
 * that are set (kernels/cpu/table.c). Each function lives in a library of its own with its own
 * compiler flags; nothing else may be compiled with them. */

#include "kernels/cpu/table.h"

void x86_table_avx2(struct cpu_table *t);    /* CPU_AVX2 */
void x86_table_kv_avx2(struct cpu_table *t); /* the cache's part */
void x86_table_kv_avx2_int(struct cpu_table *t); /* what is read in integers */
void x86_table_kv_avx2_fp8(struct cpu_table *t);
void x86_table_avxvnni(struct cpu_table *t); /* CPU_AVX2 and CPU_AVX_VNNI */
void x86_table_avx512(struct cpu_table *t);  /* CPU_AVX512 */
void x86_table_kv_avx512(struct cpu_table *t);
void x86_table_avx512vnni(struct cpu_table *t); /* CPU_AVX512 and CPU_AVX512_VNNI */
void x86_table_kv_avx512vnni(struct cpu_table *t);
void x86_table_kv_avx512fp16(struct cpu_table *t); /* CPU_AVX512 and CPU_AVX512_FP16 */
void x86_table_kv_amx(struct cpu_table *t);
void x86_table_amx(struct cpu_table *t); /* CPU_AVX512, CPU_AVX512_BF16 and CPU_AMX_BF16 */

#endif
