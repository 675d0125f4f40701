/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of quantised weights with int8 matrix products (smmla) from two tokens on. The code is in
 * panel_neon.h; this file is what the library of this instruction set compiles with its own flags.
 */

#include "kernels/arm/panel_neon.h"

#include "kernels/arm/arm.h"

void arm_table_i8mm(struct cpu_table *t)
{
    panel_neon_set(t);
}
