/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for AVX-512 F, BW, DQ and VL without VNNI: byte products go through int16. The code is in
 * kernels/cpu/panel_body.h and row_body.h; this file is what the library of this instruction set
 * compiles with its own flags. */

#include "kernels/x86/lanes_avx512.h"

#include "kernels/cpu/expect_body.h"
#include "kernels/cpu/panel_body.h"
#include "kernels/cpu/recur_body.h"
#include "kernels/cpu/row_body.h"
#include "kernels/x86/x86.h"

void x86_table_avx512(struct cpu_table *t)
{
    panel_body_set(t);
    row_body_set(t);
    recur_body_set(t);
    expect_body_set(t);
    x86_table_kv_avx512(t);
}
