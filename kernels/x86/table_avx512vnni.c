/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for AVX-512 with VNNI. The code is in
 * kernels/cpu/panel_body.h and row_body.h; this file is what the library of this instruction set
 * compiles with its own flags. */

#include "kernels/x86/lanes_avx512.h"

#include "kernels/cpu/panel_body.h"
#include "kernels/x86/x86.h"

void x86_table_avx512vnni(struct cpu_table *t)
{
    panel_body_set(t);
    x86_table_kv_avx512vnni(t);
}
