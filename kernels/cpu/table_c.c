/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C kernels of weights and rows, for CPUs without any of the instruction sets and for
 * tests that force them. They run on any CPU, so they are compiled with no special flags; fmaf
 * comes from the C library, which uses the CPU's instruction where there is one. */

#include "kernels/cpu/lanes_c.h"

#include "kernels/cpu/expect_body.h"
#include "kernels/cpu/panel_body.h"
#include "kernels/cpu/recur_body.h"
#include "kernels/cpu/row_body.h"
#include "kernels/cpu/table.h"

void cpu_table_dense_c(struct cpu_table *t)
{
    panel_body_set(t);
    row_body_set(t);
    recur_body_set(t);
    expect_body_set(t);
}
