/* SPDX-License-Identifier: Apache-2.0 */
/* Partial keys: of each slot the first part_dims values of A k, by which predict.c ranks.
 *
 * K lies by dim, so 16 slots' values of one row of A are one pass of the kernel that ranks for
 * SparQ, with A's rows as the queries. Slots beside those asked for are computed with them and not
 * written. In fp8 a slot's values have one scale, so they are put side by side before any is
 * written. */

#include <string.h>

#include "kernels/cpu/kv.h"
#include "quant/half.h"

enum { ROWS = 64, LANES = 16 };

/* Values of n slots of one row to the page. */
static void put_row(const struct cpu *cpu, const struct ops_kv_layout *l, const float *x, int32_t n,
                    uint8_t *to)
{
    float row[OPS_PAGE_SLOTS] = {0};
    uint16_t half[OPS_PAGE_SLOTS];

    if (l->part_type == OPS_KV_F32) {
        memcpy(to, x, (size_t)n * sizeof(*x));
        return;
    }
    memcpy(row, x, (size_t)n * sizeof(*x));
    (void)cpu_kv_encode(&cpu->table, OPS_KV_F16)(row, kv_page_pad(n), half);
    memcpy(to, half, (size_t)n * sizeof(*half));
}

/* One slot's values (part_dims, zeros to a whole 16) in codes; codes (as many): scratch. */
static void put_codes(const struct cpu *cpu, const struct ops_kv_layout *l, const float *x,
                      uint8_t *page, int32_t head, int32_t i, uint8_t *codes)
{
    uint8_t *to = kv_page_part(l, page, head) + i;

    kv_page_part_scale(l, page, head)[i] =
        cpu->table.encode_fp8(x, kv_page_pad(l->part_dims), codes);
    for (int32_t j = 0; j < l->part_dims; j++) {
        to[(size_t)j * OPS_PAGE_SLOTS] = codes[j];
    }
}

static void make_head(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, uint8_t *page,
                      int32_t head, int32_t first, int32_t n, const struct kv_thread *t)
{
    const struct ops_kv_layout *l = kv->layout;
    cpu_kv_dims_fn *fn = cpu_kv_dims(&cpu->table, l->k_type);
    int32_t from = first / LANES * LANES;
    int32_t end = (first + n + LANES - 1) / LANES * LANES;
    bool coded = l->part_type == OPS_KV_FP8;
    size_t pad = (size_t)kv_page_pad(l->part_dims);
    size_t element = kv_page_element(l->part_type);
    const float *a =
        kv->skew + (size_t)(group * l->k_heads + head) * (size_t)l->k_dim * (size_t)l->k_dim;
    const uint16_t *scales = kv_page_k_scale(l, page, head);
    uint8_t *to = kv_page_part(l, page, head) + (size_t)first * element;

    if (coded) {
        memset(t->k, 0, (size_t)n * pad * sizeof(float));
    }
    for (int32_t j0 = 0; j0 < l->part_dims; j0 += ROWS) {
        int32_t rows = l->part_dims - j0 < ROWS ? l->part_dims - j0 : ROWS;

        fn(kv_page_k(l, page, head), NULL, l->k_dim, a + (size_t)j0 * (size_t)l->k_dim,
           (size_t)l->k_dim, rows, from, end - from, t->x, OPS_PAGE_SLOTS, NULL);
        for (int32_t j = 0; j < rows; j++) {
            float *x = t->x + (size_t)j * OPS_PAGE_SLOTS + first;

            for (int32_t i = 0; i < n && scales; i++) {
                x[i] *= half_f16_to_f32(scales[first + i]);
            }
            for (int32_t i = 0; i < n && coded; i++) {
                t->k[(size_t)i * pad + (size_t)(j0 + j)] = x[i];
            }
            if (!coded) {
                put_row(cpu, l, x, n, to + (size_t)((j0 + j) * OPS_PAGE_SLOTS) * element);
            }
        }
    }
    for (int32_t i = 0; i < n && coded; i++) {
        put_codes(cpu, l, t->k + (size_t)i * pad, page, head, first + i, (uint8_t *)t->row);
    }
}

void cpu_kv_make_part(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, int32_t slot,
                      int32_t n, const struct kv_thread *t)
{
    uint8_t *page = kv_page_of(kv, group, slot);

    for (int32_t h = 0; h < kv->layout->k_heads; h++) {
        make_head(cpu, kv, group, page, h, slot % OPS_PAGE_SLOTS, n, t);
    }
}

void cpu_kv_move_part(const struct ops_kv_layout *l, uint8_t *to, int32_t i, uint8_t *from,
                      int32_t j)
{
    size_t part = kv_page_element(l->part_type);

    for (int32_t h = 0; h < l->k_heads && l->part_dims > 0; h++) {
        for (int32_t d = 0; d < l->part_dims; d++) {
            size_t row = (size_t)d * OPS_PAGE_SLOTS;

            memcpy(kv_page_part(l, to, h) + (row + (size_t)i) * part,
                   kv_page_part(l, from, h) + (row + (size_t)j) * part, part);
        }
        if (ops_kv_scale_bytes(l->part_type)) {
            kv_page_part_scale(l, to, h)[i] = kv_page_part_scale(l, from, h)[j];
        }
    }
}
