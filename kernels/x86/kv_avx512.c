/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's kernels for AVX-512 F, BW, DQ and VL. The code is in kernels/cpu/kv_body.h,
 * kv_soft_body.h and kv_store_body.h; this file is what the library of this instruction set
 * compiles with its own flags. */

#include "kernels/x86/kv_lanes_avx512.h"

#include "kernels/cpu/kv_body.h"
#include "kernels/cpu/kv_encode16_body.h"
#include "kernels/cpu/kv_select_body.h"
#include "kernels/cpu/kv_soft_body.h"
#include "kernels/cpu/kv_store_body.h"
#include "kernels/x86/x86.h"

void x86_table_kv_avx512(struct cpu_table *t)
{
    kv_body_set(t);
    kv_encode16_body_set(t);
    kv_select_body_set(t);
    kv_soft_body_set(t);
    kv_store_body_set(t);
}
