/* SPDX-License-Identifier: Apache-2.0 */
/* The plain C kernels of the cache: what runs where no instruction set fits, or is forced. */

#include "kernels/cpu/kv_lanes_c.h"

#include "kernels/cpu/kv_body.h"
#include "kernels/cpu/kv_encode16_body.h"
#include "kernels/cpu/kv_select_body.h"
#include "kernels/cpu/kv_soft_body.h"
#include "kernels/cpu/kv_store_body.h"

void cpu_table_kv_c(struct cpu_table *t)
{
    kv_body_set(t);
    kv_encode16_body_set(t);
    kv_select_body_set(t);
    kv_soft_body_set(t);
    kv_store_body_set(t);
}
