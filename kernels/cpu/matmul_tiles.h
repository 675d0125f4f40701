/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_MATMUL_TILES_H
#define PIPIT_KERNELS_CPU_MATMUL_TILES_H

/* Matmul of rows of class prefill on tiles of bf16, where the CPU has them (matmul_tiles.c). */

#include "kernels/cpu/cpu.h"

/* Do rows of class prefill go this way? Depends on the weights and the CPU alone. */
bool cpu_tiles_serve(const struct cpu *cpu, const struct ops_matmul *p);

/* All rows of p, which are of class prefill and at least one. */
void cpu_tiles_matmul(const struct cpu *cpu, const struct ops_matmul *p);

#endif
