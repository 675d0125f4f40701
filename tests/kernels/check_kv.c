/* SPDX-License-Identifier: Apache-2.0 */
/* Caches for the checks. Pages are handed out in a shuffled order with unused ones between, so that
 * a kernel that takes pages for contiguous memory, or groups for one table, reads the wrong bytes.
 * Slots beyond those in use hold large finite values: whoever reads them shows it. */

#include "tests/kernels/check_kv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kv_latest.h"

const struct check_kv_types check_kv_types[] = {
    {OPS_KV_F32, OPS_KV_F32},   {OPS_KV_F16, OPS_KV_F16}, {OPS_KV_BF16, OPS_KV_BF16},
    {OPS_KV_FP8, OPS_KV_FP8},   {OPS_KV_I8, OPS_KV_I8},   {OPS_KV_I8, OPS_KV_FP8},
    {OPS_KV_F16, OPS_KV_FP8},   {OPS_KV_F32, OPS_KV_I8},  {OPS_KV_Q8_0, OPS_KV_Q8_0},
    {OPS_KV_Q4_0, OPS_KV_Q4_0}, {OPS_KV_G4, OPS_KV_G4},   {OPS_KV_I8, OPS_KV_G4},
};
const int check_kv_n_types = sizeof(check_kv_types) / sizeof(check_kv_types[0]);

bool check_kv_offered(struct check *c, struct ops_kv_layout *layout)
{
    return c->sides[1]->ops->kv_layout(layout, NULL) == 0;
}

/* One canonical slot with random values; `big` for slots that nobody should read. */
static void fill_slot(struct check *c, const struct ops_kv_layout *l, uint8_t *slot, bool big)
{
    float head[512];
    int32_t n_heads = l->k_heads + l->v_heads;
    uint8_t *scales = slot + (size_t)l->k_heads * ops_kv_type_bytes(l->k_type, l->k_dim) +
                      (size_t)l->v_heads * ops_kv_type_bytes(l->v_type, l->v_dim);

    for (int32_t h = 0; h < n_heads; h++) {
        bool is_k = h < l->k_heads;
        enum ops_kv_type type = is_k ? l->k_type : l->v_type;
        int32_t dim = is_k ? l->k_dim : l->v_dim;
        uint16_t scale;

        for (int32_t d = 0; d < dim; d++) {
            head[d] = big ? 3e4f : check_normal(c);
        }
        kv_code_encode(type, head, slot, &scale, dim);
        slot += ops_kv_type_bytes(type, dim);
        memcpy(scales, &scale, ops_kv_scale_bytes(type));
        scales += ops_kv_scale_bytes(type);
    }
}

static void shuffle_pages(struct check *c, const struct check_kv *kv, int32_t n_pages,
                          int32_t n_used)
{
    uint32_t *all = malloc((size_t)n_pages * sizeof(*all));

    for (int32_t i = 0; i < n_pages; i++) {
        int32_t j = check_range(c, 0, i);

        all[i] = all[j];
        all[j] = (uint32_t)i;
    }
    memcpy(kv->pages->init, all, (size_t)n_used * sizeof(*all));
    free(all);
}

/* A random orthogonal matrix for every K head: Gram-Schmidt. */
static void fill_skew(struct check *c, const struct ops_kv_layout *l, float *a)
{
    int32_t d = l->k_dim;

    for (int32_t row = 0; row < l->n_groups * l->k_heads * d; row++) {
        float *x = a + (size_t)row * (size_t)d;
        double sum = 0;

        for (int32_t i = 0; i < d; i++) {
            x[i] = check_normal(c);
        }
        for (int32_t other = row / d * d; other < row; other++) {
            const float *y = a + (size_t)other * (size_t)d;
            double dot = 0;

            for (int32_t i = 0; i < d; i++) {
                dot += (double)x[i] * (double)y[i];
            }
            for (int32_t i = 0; i < d; i++) {
                x[i] -= (float)(dot * (double)y[i]);
            }
        }
        for (int32_t i = 0; i < d; i++) {
            sum += (double)x[i] * (double)x[i];
        }
        for (int32_t i = 0; i < d; i++) {
            x[i] = (float)((double)x[i] / sqrt(sum));
        }
    }
}

void check_kv_make(struct check *c, struct check_kv *kv, const struct ops_kv_layout *layout,
                   int32_t cap, int32_t n_slots, bool positions, bool scores)
{
    uint64_t page_bytes = 0;
    int32_t groups = layout->n_groups;
    int32_t n_pages;

    *kv = (struct check_kv){.max_pages = (cap + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS,
                            .cap = cap,
                            .n_slots = n_slots,
                            .slot_bytes = ops_kv_slot_bytes(layout)};
    for (int s = 0; s < CHECK_SIDES; s++) {
        kv->layout[s] = *layout;
        check_require(c->sides[s]->ops->kv_layout(&kv->layout[s], NULL), "kv_layout");
        page_bytes = page_bytes > kv->layout[s].page_bytes ? page_bytes : kv->layout[s].page_bytes;
    }
    n_pages = groups * kv->max_pages + 3;
    kv->pool = check_buf(c, "pool", (size_t)n_pages * page_bytes);
    kv->pages = check_buf(c, "pages", (size_t)groups * (size_t)kv->max_pages * 4);
    kv->slot_pos = positions ? check_buf(c, "slot_pos", (size_t)groups * (size_t)cap * 4) : NULL;
    kv->score = scores ? check_buf(c, "score", (size_t)groups * (size_t)cap * 4) : NULL;
    if (layout->part_dims > 0) {
        kv->skew = check_buf(c, "skew",
                             (size_t)(groups * layout->k_heads) * (size_t)layout->k_dim *
                                 (size_t)layout->k_dim * sizeof(float));
        fill_skew(c, layout, (float *)(void *)kv->skew->init);
    }
    shuffle_pages(c, kv, n_pages, groups * kv->max_pages);
    for (int32_t i = 0; positions && i < groups * cap; i++) {
        ((int32_t *)(void *)kv->slot_pos->init)[i] = i % cap < n_slots ? i % cap : -1;
    }
    kv->content = malloc((size_t)groups * (size_t)cap * kv->slot_bytes);
    for (int32_t i = 0; i < groups * cap; i++) {
        fill_slot(c, layout, kv->content + (size_t)i * kv->slot_bytes, i % cap >= n_slots);
    }
}

void check_kv_balance(struct check *c, struct check_kv *kv)
{
    const struct ops_kv_layout *l = &kv->layout[0];
    size_t n = (size_t)(l->n_groups * l->k_heads) * (size_t)l->k_dim;

    kv->balance = check_buf(c, "balance", n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        ((float *)(void *)kv->balance->init)[i] = expf(check_normal(c));
    }
}

void check_kv_carry(struct check *c, struct check_kv *kv)
{
    const struct ops_kv_layout *l = &kv->layout[0];
    size_t n = (size_t)l->k_dim;
    size_t n_heads = (size_t)(l->n_groups * l->k_heads);
    float *to;

    kv->carry = check_buf(c, "carry", n_heads * n * n * sizeof(float));
    to = (void *)kv->carry->init;
    for (size_t i = 0; i < n_heads * n * n; i++) {
        to[i] = i % n < i / n % n ? check_normal(c) / (float)n : 0;
    }
}

void check_kv_latest(struct check *c, struct check_kv *kv, int32_t from)
{
    const struct ops_kv_layout *l = &kv->layout[0];
    uint64_t n = (uint64_t)(l->n_groups * OPS_LATEST_ENTRIES) * ops_kv_latest_bytes(l);
    float head[512];

    if (n == 0) {
        return;
    }
    kv->latest = check_buf(c, "latest", n);
    kv->latest_from = from;
    for (uint8_t *to = kv->latest->init; to < kv->latest->init + n;) {
        for (int32_t h = 0; h < l->k_heads + l->v_heads; h++) {
            int32_t dim = h < l->k_heads ? l->k_dim : l->v_dim;

            for (int32_t d = 0; d < dim; d++) {
                head[d] = check_normal(c);
            }
            if (ops_kv_in_four_bits(h < l->k_heads ? l->k_type : l->v_type)) {
                kv_latest_store(to, head, dim);
                to += kv_latest_head_bytes(dim);
            }
        }
    }
}

void check_kv_scatter(struct check *c, struct check_kv *kv)
{
    for (int32_t g = 0; g < kv->layout[0].n_groups; g++) {
        int32_t *pos = (int32_t *)(void *)kv->slot_pos->init + g * kv->cap;

        for (int32_t i = kv->n_slots; i-- > 1;) {
            int32_t j = check_range(c, 0, i);
            int32_t held = pos[i];

            pos[i] = pos[j];
            pos[j] = held;
        }
        for (int32_t i = 0; i < kv->n_slots; i += 7) {
            pos[i] = -1;
        }
    }
}

void check_kv_free(struct check_kv *kv)
{
    free(kv->content);
    free(kv->back[0]);
    free(kv->back[1]);
    *kv = (struct check_kv){0};
}

struct ops_kv check_kv_of(struct check *c, const struct check_kv *kv)
{
    struct ops_kv of = {
        .layout = &kv->layout[c->side],
        .pool = check_dev(c, kv->pool),
        .pages = check_dev(c, kv->pages),
        .max_pages = kv->max_pages,
        .cap = kv->cap,
        .slot_pos = check_dev(c, kv->slot_pos),
        .score = check_dev(c, kv->score),
        .skew = check_dev(c, kv->skew),
        .center = check_dev(c, kv->center),
        .balance = check_dev(c, kv->balance),
        .carry = check_dev(c, kv->carry),
        .k_hadamard = kv->k_hadamard,
        .v_hadamard = kv->v_hadamard,
        .latest = check_dev(c, kv->latest),
        .latest_from = kv->latest_from,
        .n_slots = kv->n_slots,
    };

    for (int32_t g = 0; g < of.layout->n_groups && !c->warm; g++) {
        struct ops_kv_slots slots = {
            .kv = &of,
            .group = g,
            .n_slots = kv->cap,
            .host = kv->content + (size_t)(g * kv->cap) * kv->slot_bytes,
        };

        check_require(c->ops->kv_import(c->be, &slots), "kv_import");
    }
    return of;
}

void check_kv_export(struct check *c, struct check_kv *kv, int32_t n_slots)
{
    for (c->side = 0; c->side < 2; c->side++) {
        struct backend *be = c->sides[c->side];
        struct ops_kv of;

        c->warm = true; /* the content is what the call left */
        of = check_kv_of(c, kv);
        of.n_slots = n_slots;
        kv->back[c->side] = calloc((size_t)of.layout->n_groups * (size_t)kv->cap, kv->slot_bytes);
        for (int32_t g = 0; g < of.layout->n_groups; g++) {
            struct ops_kv_slots slots = {
                .kv = &of,
                .group = g,
                .n_slots = n_slots,
                .host = kv->back[c->side] + (size_t)(g * kv->cap) * kv->slot_bytes,
            };

            check_require(be->ops->kv_export(be, &slots), "kv_export");
        }
    }
}

static void decode(const struct ops_kv_layout *l, const uint8_t *slot, int32_t head, bool is_k,
                   float *ret)
{
    size_t k_bytes = ops_kv_type_bytes(l->k_type, l->k_dim);
    size_t v_bytes = ops_kv_type_bytes(l->v_type, l->v_dim);
    size_t k_scale = ops_kv_scale_bytes(l->k_type);
    size_t scales = (size_t)l->k_heads * k_bytes + (size_t)l->v_heads * v_bytes;
    uint16_t scale = 0;

    if (is_k) {
        memcpy(&scale, slot + scales + (size_t)head * k_scale, k_scale);
        kv_code_decode(l->k_type, slot + (size_t)head * k_bytes, scale, ret, l->k_dim);
        return;
    }
    memcpy(&scale,
           slot + scales + (size_t)l->k_heads * k_scale +
               (size_t)head * ops_kv_scale_bytes(l->v_type),
           ops_kv_scale_bytes(l->v_type));
    kv_code_decode(l->v_type, slot + (size_t)l->k_heads * k_bytes + (size_t)head * v_bytes, scale,
                   ret, l->v_dim);
}

void check_kv_decode_k(const struct check_kv *kv, const uint8_t *slots, int32_t group, int32_t slot,
                       int32_t head, float *ret)
{
    decode(&kv->layout[0], slots + (size_t)(group * kv->cap + slot) * kv->slot_bytes, head, true,
           ret);
}

void check_kv_decode_v(const struct check_kv *kv, const uint8_t *slots, int32_t group, int32_t slot,
                       int32_t head, float *ret)
{
    decode(&kv->layout[0], slots + (size_t)(group * kv->cap + slot) * kv->slot_bytes, head, false,
           ret);
}
