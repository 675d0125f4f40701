/* SPDX-License-Identifier: Apache-2.0 */
/* Page classes and variants of precision. Stores whose head groups have the same heads, dims and
 * types share a page class whatever their layer. */

#include "engine/kv/plan/geometry_impl.h"

#include <errno.h>
#include <stdio.h>

#include "engine/kv/policy/select.h"

static int32_t gcd(int32_t a, int32_t b)
{
    while (b) {
        int32_t t = a % b;

        a = b;
        b = t;
    }
    return a;
}

int32_t geometry_groups(const struct geometry_store *st)
{
    return st->state_bytes ? 1 : gcd(st->n_k, st->n_v);
}

static bool same_class(const struct ops_kv_layout *a, const struct ops_kv_layout *b)
{
    return a->k_heads == b->k_heads && a->v_heads == b->v_heads && a->k_dim == b->k_dim &&
           a->v_dim == b->v_dim && a->k_type == b->k_type && a->v_type == b->v_type &&
           a->k_unrotated == b->k_unrotated && a->rank == b->rank && a->part_dims == b->part_dims &&
           a->part_type == b->part_type && a->part_apart == b->part_apart &&
           a->page_bytes == b->page_bytes; /* states have no heads */
}

static int find_class(struct geometry *s, const struct ops_kv_layout *l, int32_t n_before,
                      struct error *reterr)
{
    for (int32_t i = 0; i < n_before; i++) {
        if (same_class(&s->layouts[i], l)) {
            return s->class_of[i];
        }
    }
    if (s->n_classes == GEOMETRY_MAX_CLASSES) {
        return error_set(reterr, -ENOTSUP, "the cache would need more than %d page classes",
                         GEOMETRY_MAX_CLASSES);
    }
    struct geometry_class *c = &s->classes[s->n_classes];
    char part[32] = "";

    c->page_bytes = l->page_bytes;
    c->state = l->k_heads == 0;
    if (c->state) {
        (void)snprintf(c->name, sizeof(c->name), "recurrent state");
        return s->n_classes++;
    }
    c->part_bytes = l->part_apart ? l->part_bytes : 0;
    if (l->part_dims > 0) {
        (void)snprintf(part, sizeof(part), "%s + %s %dx%d", l->part_apart ? " (host)" : "",
                       ops_kv_type_name(l->part_type), l->k_heads, l->part_dims);
    }
    (void)snprintf(c->name, sizeof(c->name), "%s %dx%d + %s %dx%d%s%s", ops_kv_type_name(l->k_type),
                   l->k_heads, l->k_dim, ops_kv_type_name(l->v_type), l->v_heads, l->v_dim,
                   l->rank == OPS_RANK_2K  ? " + K twice"
                   : l->rank == OPS_RANK_8 ? " + K twice, fp8"
                                           : "",
                   part);
    return s->n_classes++;
}

/* What a page of the store holds under a policy: 64 slots, or a state whatever the policy is. */
static int lay_page(const struct geometry *s, const struct policy *p,
                    const struct geometry_store *st, struct ops_kv_layout *ret,
                    struct error *reterr)
{
    int32_t n_groups = geometry_groups(st);

    if (st->state_bytes) {
        *ret = (struct ops_kv_layout){.n_groups = 1,
                                      .page_bytes = (st->state_bytes + 63) & ~UINT64_C(63)};
        return 0;
    }
    *ret = (struct ops_kv_layout){
        .n_groups = n_groups,
        .k_heads = st->n_k / n_groups,
        .v_heads = st->n_v / n_groups,
        .k_dim = st->k_dim,
        .v_dim = st->v_dim,
        .k_type = policy_k_type(p, st->shared),
        .v_type = policy_v_type(p, st->shared),
        .k_unrotated = p->pos_new != 0,
        .rank = (enum ops_rank)p->rank,
        .part_dims = st->skew ? select_part_dims(p, st->k_dim) : 0,
    };
    ret->part_type = ret->part_dims == 0 ? OPS_KV_F32 : select_part_type(p);
    ret->part_apart = ret->part_dims > 0 && policy_on_host(p);
    return s->config.ops->kv_layout(ret, reterr);
}

bool geometry_same_pages(const struct policy *a, const struct policy *b)
{
    return a->k_type == b->k_type && a->v_type == b->v_type && a->shared == b->shared &&
           a->pos_new == b->pos_new && a->rank == b->rank &&
           select_part_dims(a, 1 << 20) == select_part_dims(b, 1 << 20) &&
           select_part_type(a) == select_part_type(b) && policy_on_host(a) == policy_on_host(b);
}

int geometry_lay_classes(struct geometry *s, struct error *reterr)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        const struct policy *p = &s->config.mix.part[v].policy;

        s->variant[v] = v;
        for (int32_t e = 0; e < v; e++) {
            if (geometry_same_pages(&s->config.mix.part[e].policy, p)) {
                s->variant[v] = s->variant[e];
                break;
            }
        }
        for (int32_t i = 0; i < s->config.n_stores; i++) {
            const struct geometry_store *st = &s->config.stores[i];
            int32_t at = v * s->config.n_stores + i;
            struct ops_kv_layout *l = &s->layouts[at];
            int r = lay_page(s, p, st, l, reterr);

            if (r) {
                return r;
            }
            r = find_class(s, l, at, reterr);
            if (r < 0) {
                return r;
            }
            s->class_of[at] = (uint8_t)r;
        }
    }
    return 0;
}

int geometry_variant(const struct geometry *s, const struct policy *p)
{
    for (int32_t v = 0; v < s->config.mix.n; v++) {
        if (geometry_same_pages(&s->config.mix.part[v].policy, p)) {
            return s->variant[v];
        }
    }
    return -ENOENT;
}
