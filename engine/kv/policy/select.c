/* SPDX-License-Identifier: Apache-2.0 */
/* Policy words to ops_select.
 *
 * mode=paper counts the current token and the local window inside k. mode=as-shipped is the
 * authors' evaluation code: k and the window are beside the current token, which is free, so both
 * are one more (the current token is then the latest of the window). */

#include "engine/kv/policy/select.h"

void select_make(const struct policy *p, struct ops_select *ret)
{
    int32_t free_token = p->select_mode == POLICY_AS_SHIPPED;

    *ret = (struct ops_select){.kind = OPS_SELECT_ALL};
    if (p->select == POLICY_SPARQ) {
        ret->kind = OPS_SELECT_SPARQ;
        ret->r = p->r;
        ret->k = p->top_k + free_token;
        ret->local = p->local + free_token;
        ret->mean = p->mean != POLICY_MEAN_OFF;
    } else if (p->select == POLICY_TOPV) {
        ret->kind = OPS_SELECT_TOPV;
        ret->k = p->top_k;
        ret->renorm = p->renorm != 0;
    } else if (p->select == POLICY_INFINIGEN) {
        bool all = policy_on_disk(p) && p->share == 100; /* read as one, no choice */

        ret->kind = all ? OPS_SELECT_ALL : OPS_SELECT_GIVEN;
        ret->alpha = p->alpha;
        ret->cap = p->cap;
        ret->count = p->count;
        ret->share = p->share;
        ret->use = p->place == POLICY_LRU       ? OPS_USE_LAST
                   : p->place == POLICY_COUNTER ? OPS_USE_COUNT
                                                : OPS_USE_NONE;
    }
}

int32_t select_part_dims(const struct policy *p, int32_t k_dim)
{
    int32_t n = (int32_t)(p->partial * (float)k_dim);

    return p->select != POLICY_INFINIGEN ? 0 : n > 1 ? n : 1;
}

enum ops_kv_type select_part_type(const struct policy *p)
{
    return p->select != POLICY_INFINIGEN ? OPS_KV_F32
           : p->partial8                 ? OPS_KV_FP8
           : p->k_type == OPS_KV_F32     ? OPS_KV_F32
                                         : OPS_KV_F16;
}

bool select_means(const struct policy *p, int32_t n_q, int32_t n_k, int32_t n_v)
{
    if (p->select != POLICY_SPARQ || p->mean == POLICY_MEAN_OFF) {
        return false;
    }
    return p->mean == POLICY_MEAN_ON || (n_q == n_k && n_q == n_v);
}
