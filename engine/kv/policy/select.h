/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_POLICY_SELECT_H
#define PIPIT_ENGINE_KV_POLICY_SELECT_H

/* Which slots a new token's query reads (sparse attention): one small table of functions a policy
 * word. The choice itself is the backend's (kernels/ops.h struct ops_select). */

#include "engine/kv/policy/policy.h"

struct select_ops {
    bool predicts; /* chooses for a layer before its query is there, from partial keys */
    /* Fills in what differs from reading all. */
    void (*make)(const struct policy *p, struct ops_select *ret);
    /* Values of a partial key of a key of k_dim, and their type. NULL: none. */
    int32_t (*part_dims)(const struct policy *p, int32_t k_dim);
    enum ops_kv_type (*part_type)(const struct policy *p);
    /* Does a store of these heads keep the mean of V? NULL: no. */
    bool (*means)(const struct policy *p, int32_t n_q, int32_t n_k, int32_t n_v);
};

/* `ret` for sequences under the policy. The mean is asked for where it may be; stores whose v_sum
 * is not kept (select_means()) must have it taken out. So must a choice made ahead in stores
 * without partial keys, and be told where it lies in the others. */
void select_make(const struct policy *p, struct ops_select *ret);

/* Values of a partial key, 0 where the policy has none. */
int32_t select_part_dims(const struct policy *p, int32_t k_dim);
/* Their type, f32 where there are none. */
enum ops_kv_type select_part_type(const struct policy *p);

/* Does the policy keep the mean of V of a store with n_k K heads and n_v V heads read by n_q query
 * heads? */
bool select_means(const struct policy *p, int32_t n_q, int32_t n_k, int32_t n_v);

#endif
