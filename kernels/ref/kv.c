/* SPDX-License-Identifier: Apache-2.0 */
/* The reference page: K of all 64 slots [slot][k_heads][k_dim], then V [slot][v_heads][v_dim], then
 * the scales of K [slot][k_heads] and of V [slot][v_heads] where the types have them, then partial
 * keys [slot][k_heads], each part_dims values and the scale where their type has one. Export and
 * import of slots in canonical form, which is the same order for one slot without partial keys. */

#include <errno.h>
#include <string.h>

#include "kernels/kv_code.h"
#include "kernels/ref/ref.h"

struct sizes { /* bytes of one slot's sections */
    size_t k;
    size_t v;
    size_t k_scale;
    size_t v_scale;
};

static struct sizes sizes_of(const struct ops_kv_layout *l)
{
    return (struct sizes){
        .k = (size_t)l->k_heads * (size_t)ops_kv_type_bytes(l->k_type, l->k_dim),
        .v = (size_t)l->v_heads * (size_t)ops_kv_type_bytes(l->v_type, l->v_dim),
        .k_scale = (size_t)l->k_heads * (size_t)ops_kv_scale_bytes(l->k_type),
        .v_scale = (size_t)l->v_heads * (size_t)ops_kv_scale_bytes(l->v_type),
    };
}

int ref_kv_layout(struct ops_kv_layout *l, struct error *reterr)
{
    int r = kv_code_check(l, reterr);

    if (r) {
        return r;
    }
    if (l->part_apart) {
        return error_set(reterr, -ENOTSUP, "backend \"ref\" has partial keys in the page alone");
    }
    l->page_bytes =
        OPS_PAGE_SLOTS * (ops_kv_slot_bytes(l) + ops_kv_part_bytes(l) * (uint64_t)l->k_heads);
    return 0;
}

struct ref_slot ref_kv_slot(const struct ops_kv *kv, int32_t group, int32_t slot)
{
    struct sizes size = sizes_of(kv->layout);
    size_t i = (size_t)(slot % OPS_PAGE_SLOTS);
    size_t entry = (size_t)group * (size_t)kv->max_pages + (size_t)(slot / OPS_PAGE_SLOTS);
    uint8_t *page = kv->pool + (size_t)kv->pages[entry] * kv->layout->page_bytes;
    uint8_t *v = page + OPS_PAGE_SLOTS * size.k;
    uint8_t *k_scale = v + OPS_PAGE_SLOTS * size.v;
    uint8_t *v_scale = k_scale + OPS_PAGE_SLOTS * size.k_scale;

    return (struct ref_slot){
        .k = page + i * size.k,
        .v = v + i * size.v,
        .k_scale = (uint16_t *)(void *)(k_scale + i * size.k_scale),
        .v_scale = (uint16_t *)(void *)(v_scale + i * size.v_scale),
    };
}

uint8_t *ref_kv_part(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t k_head)
{
    const struct ops_kv_layout *l = kv->layout;
    size_t entry = (size_t)group * (size_t)kv->max_pages + (size_t)(slot / OPS_PAGE_SLOTS);
    size_t head = (size_t)(slot % OPS_PAGE_SLOTS) * (size_t)l->k_heads + (size_t)k_head;

    return kv->pool + (size_t)(kv->pages[entry] + 1) * l->page_bytes -
           ((size_t)(OPS_PAGE_SLOTS * l->k_heads) - head) * ops_kv_part_bytes(l);
}

void ref_kv_part_values(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t k_head,
                        float *ret)
{
    const struct ops_kv_layout *l = kv->layout;
    const uint8_t *part = ref_kv_part(kv, group, slot, k_head);
    uint16_t scale = 0;

    memcpy(&scale, part + ops_kv_type_bytes(l->part_type, l->part_dims),
           ops_kv_scale_bytes(l->part_type));
    kv_code_decode(l->part_type, part, scale, ret, l->part_dims);
}

void ref_kv_make_part(const struct ops_kv *kv, int32_t group, int32_t slot, float *k, float *x)
{
    const struct ops_kv_layout *l = kv->layout;
    struct ref_slot s = ref_kv_slot(kv, group, slot);

    for (int32_t h = 0; h < l->k_heads && l->part_dims > 0; h++) {
        const float *a =
            kv->skew + (size_t)(group * l->k_heads + h) * (size_t)l->k_dim * (size_t)l->k_dim;
        uint8_t *to = ref_kv_part(kv, group, slot, h);
        uint16_t scale = 0;

        kv_code_decode(l->k_type, s.k + (size_t)h * ops_kv_type_bytes(l->k_type, l->k_dim),
                       ops_kv_scale_bytes(l->k_type) ? s.k_scale[h] : 0, k, l->k_dim);
        for (int32_t j = 0; j < l->part_dims; j++) {
            x[j] = 0;
            for (int32_t d = 0; d < l->k_dim; d++) {
                x[j] += a[j * l->k_dim + d] * k[d];
            }
        }
        kv_code_encode(l->part_type, x, to, &scale, l->part_dims);
        memcpy(to + ops_kv_type_bytes(l->part_type, l->part_dims), &scale,
               ops_kv_scale_bytes(l->part_type));
    }
}

int32_t ref_kv_pos(const struct ops_kv *kv, int32_t group, int32_t slot)
{
    return kv->slot_pos ? kv->slot_pos[(size_t)group * (size_t)kv->cap + (size_t)slot] : slot;
}

int32_t ref_own_slot(const struct ops_seq *seq, int32_t group)
{
    return seq->victim ? seq->victim[group] : seq->slot0;
}

void ref_kv_value(const struct ops_kv *kv, int32_t group, int32_t slot, int32_t v_head, float *ret)
{
    const struct ops_kv_layout *l = kv->layout;
    struct ref_slot s = ref_kv_slot(kv, group, slot);

    kv_code_decode(l->v_type, s.v + (size_t)v_head * (size_t)ops_kv_type_bytes(l->v_type, l->v_dim),
                   ops_kv_scale_bytes(l->v_type) ? s.v_scale[v_head] : 0, ret, l->v_dim);
}

/* Slots in order. */
int ref_kv_sum(struct backend *be, const struct ops_kv_sum *p)
{
    struct ref *ref = (struct ref *)be;
    const struct ops_kv *kv = p->kv;
    const struct ops_kv_layout *l = kv->layout;
    float *sum = kv->v_sum;
    float *v = ref->threads[0].head;

    if (!sum || l->v_dim > ref->limits.max_head_dim) {
        return -EINVAL;
    }
    memset(sum, 0, (size_t)l->n_groups * (size_t)l->v_heads * (size_t)l->v_dim * sizeof(*sum));
    for (int32_t g = 0; g < l->n_groups; g++) {
        for (int32_t s = 0; s < kv->n_slots; s++) {
            for (int32_t h = 0; h < l->v_heads && ref_kv_pos(kv, g, s) >= 0; h++) {
                float *to = sum + (size_t)(g * l->v_heads + h) * (size_t)l->v_dim;

                ref_kv_value(kv, g, s, h, v);
                for (int32_t d = 0; d < l->v_dim; d++) {
                    to[d] += v[d];
                }
            }
        }
    }
    return 0;
}

int ref_kv_export(struct backend *be, const struct ops_kv_slots *p)
{
    struct sizes size = sizes_of(p->kv->layout);
    uint8_t *host = p->host;

    (void)be;
    for (int32_t i = 0; i < p->n_slots; i++) {
        struct ref_slot s = ref_kv_slot(p->kv, p->group, p->slot0 + i);

        memcpy(host, s.k, size.k);
        memcpy(host += size.k, s.v, size.v);
        memcpy(host += size.v, s.k_scale, size.k_scale);
        memcpy(host += size.k_scale, s.v_scale, size.v_scale);
        host += size.v_scale;
    }
    return 0;
}

int ref_kv_import(struct backend *be, const struct ops_kv_slots *p)
{
    struct ref *ref = (struct ref *)be;
    struct sizes size = sizes_of(p->kv->layout);
    const uint8_t *host = p->host;

    for (int32_t i = 0; i < p->n_slots; i++) {
        struct ref_slot s = ref_kv_slot(p->kv, p->group, p->slot0 + i);

        memcpy(s.k, host, size.k);
        memcpy(s.v, host += size.k, size.v);
        memcpy(s.k_scale, host += size.v, size.k_scale);
        memcpy(s.v_scale, host += size.k_scale, size.v_scale);
        host += size.v_scale;
        if (p->kv->layout->part_dims > 0) {
            ref_kv_make_part(p->kv, p->group, p->slot0 + i, ref->threads[0].head,
                             ref->threads[0].page);
        }
    }
    return 0;
}
