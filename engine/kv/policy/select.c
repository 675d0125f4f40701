/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy's word of selection says, and what holds where there is none. */

#include "engine/kv/policy/select.h"

void select_make(const struct policy *p, struct ops_select *ret)
{
    *ret = (struct ops_select){.kind = OPS_SELECT_ALL};
    if (p->select) {
        p->select->make(p, ret);
    }
}

int32_t select_part_dims(const struct policy *p, int32_t k_dim)
{
    return p->select && p->select->part_dims ? p->select->part_dims(p, k_dim) : 0;
}

enum ops_kv_type select_part_type(const struct policy *p)
{
    return p->select && p->select->part_type ? p->select->part_type(p) : OPS_KV_F32;
}

bool select_means(const struct policy *p, int32_t n_q, int32_t n_k, int32_t n_v)
{
    return p->select && p->select->means && p->select->means(p, n_q, n_k, n_v);
}
