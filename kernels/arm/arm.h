/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_ARM_ARM_H
#define PIPIT_KERNELS_ARM_ARM_H

/* What each instruction set of AArch64 puts into the cpu backend's table, called weakest first for
 * the flags that are set (kernels/cpu/table.c). Each function lives in a library of its own with
 * its own compiler flags; nothing else may be compiled with them. */

#include "kernels/cpu/table.h"

void arm_table_neon(struct cpu_table *t);    /* CPU_NEON */
void arm_table_kv_neon(struct cpu_table *t); /* the cache's part */
void arm_table_dotprod(struct cpu_table *t); /* CPU_NEON and CPU_DOTPROD */
void arm_table_i8mm(struct cpu_table *t);    /* CPU_NEON, CPU_DOTPROD and CPU_I8MM */

#endif
