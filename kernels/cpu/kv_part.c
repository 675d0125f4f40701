/* SPDX-License-Identifier: Apache-2.0 */
/* Partial keys: of each slot the first part_dims values of A k, by which speculate.c ranks.
 *
 * K lies by dim, so 16 slots' values of one row of A are one pass of the kernel that ranks for
 * SparQ, with A's rows as the queries. Slots beside those asked for are computed with them and not
 * written. */

#include <string.h>

#include "kernels/cpu/kv.h"
#include "quant/half.h"

enum { ROWS = 64, LANES = 16 };

/* Values of n slots of one row, with their scales, to the page. */
static void put(const struct cpu *cpu, const struct ops_kv_layout *l, const float *x,
                const uint16_t *scales, int32_t n, uint8_t *to)
{
    float row[OPS_PAGE_SLOTS] = {0};
    uint16_t half[OPS_PAGE_SLOTS];

    for (int32_t i = 0; i < n; i++) {
        row[i] = scales ? x[i] * half_f16_to_f32(scales[i]) : x[i];
    }
    if (l->part_type == OPS_KV_F32) {
        memcpy(to, row, (size_t)n * sizeof(*row));
        return;
    }
    (void)cpu_kv_encode(&cpu->table, OPS_KV_F16)(row, kv_page_pad(n), half);
    memcpy(to, half, (size_t)n * sizeof(*half));
}

void cpu_kv_make_part(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, int32_t slot,
                      int32_t n, float *x)
{
    const struct ops_kv_layout *l = kv->layout;
    cpu_kv_dims_fn *fn = cpu_kv_dims(&cpu->table, l->k_type);
    uint8_t *page = kv_page_of(kv, group, slot);
    int32_t first = slot % OPS_PAGE_SLOTS;
    int32_t from = first / LANES * LANES;
    int32_t end = (first + n + LANES - 1) / LANES * LANES;
    size_t element = kv_page_element(l->part_type);

    for (int32_t h = 0; h < l->k_heads; h++) {
        const float *a =
            kv->skew + (size_t)(group * l->k_heads + h) * (size_t)l->k_dim * (size_t)l->k_dim;
        const uint16_t *scales = kv_page_k_scale(l, page, h);
        uint8_t *to = kv_page_part(l, page, h);

        for (int32_t j0 = 0; j0 < l->part_dims; j0 += ROWS) {
            int32_t rows = l->part_dims - j0 < ROWS ? l->part_dims - j0 : ROWS;

            fn(kv_page_k(l, page, h), NULL, l->k_dim, a + (size_t)j0 * (size_t)l->k_dim,
               (size_t)l->k_dim, rows, from, end - from, x, OPS_PAGE_SLOTS, NULL);
            for (int32_t j = 0; j < rows; j++) {
                put(cpu, l, x + (size_t)j * OPS_PAGE_SLOTS + first, scales ? scales + first : NULL,
                    n, to + ((size_t)(j0 + j) * OPS_PAGE_SLOTS + (size_t)first) * element);
            }
        }
    }
}
