/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of weights and rows for NEON alone. The code is in panel_neon.h, panel_float_neon.h and
 * kernels/cpu/row_body.h; this file is what the library of this instruction set compiles with its
 * own flags. */

#include "kernels/arm/panel_float_neon.h"
#include "kernels/arm/panel_neon.h"

#include "kernels/arm/arm.h"
#include "kernels/cpu/expect_body.h"
#include "kernels/cpu/recur_body.h"
#include "kernels/cpu/row_body.h"

void arm_table_neon(struct cpu_table *t)
{
    panel_neon_set(t);
    panel_float_set(t);
    row_body_set(t);
    recur_body_set(t);
    expect_body_set(t);
    arm_table_kv_neon(t);
}
