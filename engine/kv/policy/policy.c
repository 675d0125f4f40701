/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy says of slots and of where they lie. */

#include "engine/kv/policy/policy.h"

#include "engine/kv/policy/place.h"
#include "engine/kv/policy/select.h"
#include "engine/kv/policy/word.h"

bool policy_evicts(const struct policy *p)
{
    return p->place->evicts;
}

bool policy_scores(const struct policy *p)
{
    return p->place->scores;
}

bool policy_observes(const struct policy *p)
{
    return p->place->observe != NULL;
}

bool policy_expects(const struct policy *p)
{
    return p->place->expects;
}

bool policy_has_surrogate(const struct policy *p)
{
    return p->place->surrogate;
}

bool policy_selects(const struct policy *p)
{
    return p->select != NULL;
}

bool policy_predicts(const struct policy *p)
{
    return p->select && p->select->predicts;
}

bool policy_only_appends(const struct policy *p)
{
    return !policy_evicts(p) && !policy_selects(p) && !p->pos_new;
}

bool policy_cuts_chunks(const struct policy *p)
{
    return p->prefill == POLICY_BOUNDED;
}

bool policy_joins_chunks(const struct policy *p)
{
    return !policy_evicts(p) && !policy_on_disk(p);
}

bool policy_one_turn(const struct policy *p)
{
    return p->mode == POLICY_AS_SHIPPED;
}

bool policy_centers(const struct policy *p)
{
    bool small = p->k_type != OPS_KV_F32 && p->k_type != OPS_KV_F16 && p->k_type != OPS_KV_BF16;

    return p->center == POLICY_CENTER_AUTO && small && !p->pos_new;
}

static bool of_integers(enum ops_kv_type type)
{
    return type == OPS_KV_I8 || type == OPS_KV_Q8_0 || type == OPS_KV_Q4_0 || type == OPS_KV_G4;
}

const char *policy_precision(const struct policy *p)
{
    return policy_word_of(p, AXIS_PRECISION)->name;
}

enum ops_kv_type policy_k_type(const struct policy *p, bool shared)
{
    return shared && p->shared == POLICY_STORES_KV8 ? OPS_KV_I8 : p->k_type;
}

enum ops_kv_type policy_v_type(const struct policy *p, bool shared)
{
    return shared && p->shared == POLICY_STORES_KV8 ? OPS_KV_FP8 : p->v_type;
}

bool policy_rotates(const struct policy *p, enum ops_kv_type type)
{
    return p->rot != POLICY_ROT_OFF && of_integers(type) && !p->pos_new && !policy_selects(p);
}

bool policy_may_rotate(const struct policy *p)
{
    return of_integers(p->k_type);
}

bool policy_spills(const struct policy *p)
{
    return policy_predicts(p) && p->pool == POLICY_POOL_SLOTS && p->full == POLICY_SPILL;
}

bool policy_on_disk(const struct policy *p)
{
    return policy_predicts(p) && (p->pool == POLICY_POOL_DISK || policy_spills(p));
}

bool policy_on_host(const struct policy *p)
{
    return policy_predicts(p) && p->pool == POLICY_POOL_HOST;
}

const char *policy_disk_option(const struct policy *p)
{
    return policy_spills(p) ? "full=spill" : "pool=disk";
}

int32_t policy_most_tokens(const struct policy *p, int32_t ctx)
{
    return p->place->endless && ctx < KV_ENDLESS_TOKENS ? KV_ENDLESS_TOKENS : ctx;
}

static int32_t slots_of(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    int64_t of = p->budget_kind == POLICY_PERCENT_CTX ? ctx : n_tokens;
    int64_t slots = p->budget;

    if (p->budget_kind == POLICY_SLOTS) {
        slots += p->place->sinks_beside ? p->sinks : 0;
    } else {
        slots = of * p->budget / 100;
        slots = slots < p->min ? p->min : slots;
    }
    return slots > ctx ? ctx : (int32_t)slots;
}

int32_t policy_budget(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return policy_evicts(p) ? slots_of(p, n_tokens, ctx) : 0;
}

int32_t policy_pool_slots(const struct policy *p, int32_t n_tokens, int32_t ctx)
{
    return policy_spills(p) ? slots_of(p, n_tokens, ctx) : 0;
}
