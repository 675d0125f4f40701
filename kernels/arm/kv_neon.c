/* SPDX-License-Identifier: Apache-2.0 */
/* The cache's kernels for NEON. The code is in kernels/cpu/kv_body.h, kv_select_body.h,
 * kv_soft_body.h and kv_store_body.h; this file is what the library of this instruction set
 * compiles with its own flags. */

#include "kernels/arm/kv_lanes_neon.h"

#include "kernels/arm/arm.h"
#include "kernels/cpu/kv_body.h"
#include "kernels/cpu/kv_encode16_body.h"
#include "kernels/cpu/kv_select_body.h"
#include "kernels/cpu/kv_soft_body.h"
#include "kernels/cpu/kv_store_body.h"

void arm_table_kv_neon(struct cpu_table *t)
{
    kv_body_set(t);
    kv_encode16_body_set(t);
    kv_select_body_set(t);
    kv_soft_body_set(t);
    kv_store_body_set(t);
}
