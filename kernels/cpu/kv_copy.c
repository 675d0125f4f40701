/* SPDX-License-Identifier: Apache-2.0 */
/* What a page of the cpu backend holds beside K and V for queries that select: K by slot
 * (OPS_RANK_2K), and K in fp8 by dim to rank by (OPS_RANK_8). Both are made from K as it is stored,
 * so canonical slots need not hold them. And v_sum, the sum of V over live slots. */

#include <errno.h>
#include <string.h>

#include "kernels/cpu/kv.h"
#include "quant/half.h"

/* One slot of one K head: its row, zeros behind it. */
static void gather_row(const struct ops_kv_layout *l, uint8_t *page, int32_t head, int32_t i,
                       uint8_t *row)
{
    size_t element = kv_page_element(l->k_type);
    const uint8_t *k = kv_page_k(l, page, head) + (size_t)i * element;

    memset(row, 0, (size_t)kv_page_pad(l->k_dim) * element);
    for (int32_t d = 0; d < l->k_dim; d++) {
        memcpy(row + (size_t)d * element, k + (size_t)d * OPS_PAGE_SLOTS * element, element);
    }
}

/* `row` of K's type to fp8, by dim. f (2, pad): scratch. */
static void rank_row(const struct cpu *cpu, const struct ops_kv_layout *l, uint8_t *page,
                     int32_t head, int32_t i, const uint8_t *row, float *f)
{
    int32_t pad = kv_page_pad(l->k_dim);
    cpu_kv_unpack_fn *unpack = cpu_kv_unpack(&cpu->table, l->k_type);
    const uint16_t *scales = kv_page_k_scale(l, page, head);
    uint8_t *rank = kv_page_rank(l, page, head) + i;
    uint8_t *codes = (uint8_t *)(f + pad);

    if (unpack) {
        unpack(row, (size_t)pad, f);
    } else {
        memcpy(f, row, (size_t)pad * sizeof(float));
    }
    for (int32_t d = 0; d < l->k_dim && scales; d++) {
        f[d] *= half_f16_to_f32(scales[i]);
    }
    kv_page_rank_scale(l, page, head)[i] = cpu->table.encode_fp8(f, pad, codes);
    for (int32_t d = 0; d < l->k_dim; d++) {
        rank[(size_t)d * OPS_PAGE_SLOTS] = codes[d];
    }
}

void cpu_kv_copy_k(const struct cpu *cpu, const struct ops_kv_layout *l, uint8_t *page,
                   int32_t head, int32_t first, int32_t n, float *scratch)
{
    size_t row_bytes = (size_t)kv_page_pad(l->k_dim) * kv_page_element(l->k_type);

    for (int32_t i = first; i < first + n && l->rank != OPS_RANK_ONCE; i++) {
        uint8_t *row = kv_page_rows(l, page, head) + (size_t)i * row_bytes;

        gather_row(l, page, head, i, row);
        if (l->rank == OPS_RANK_8) {
            rank_row(cpu, l, page, head, i, row, scratch);
        }
    }
}

void cpu_kv_move_k(const struct ops_kv_layout *l, uint8_t *to, int32_t i, uint8_t *from, int32_t j)
{
    size_t row_bytes = (size_t)kv_page_pad(l->k_dim) * kv_page_element(l->k_type);

    for (int32_t h = 0; h < l->k_heads && l->rank != OPS_RANK_ONCE; h++) {
        memcpy(kv_page_rows(l, to, h) + (size_t)i * row_bytes,
               kv_page_rows(l, from, h) + (size_t)j * row_bytes, row_bytes);
        if (l->rank == OPS_RANK_8) {
            uint8_t *a = kv_page_rank(l, to, h) + i;
            const uint8_t *b = kv_page_rank(l, from, h) + j;

            for (int32_t d = 0; d < l->k_dim; d++) {
                a[(size_t)d * OPS_PAGE_SLOTS] = b[(size_t)d * OPS_PAGE_SLOTS];
            }
            kv_page_rank_scale(l, to, h)[i] = kv_page_rank_scale(l, from, h)[j];
        }
    }
}

/* ---- v_sum ----------------------------------------------------------------------------------- */

void cpu_kv_add_value(const struct cpu *cpu, const struct ops_kv *kv, int32_t group, int32_t slot,
                      float factor, float *scratch)
{
    const struct ops_kv_layout *l = kv->layout;
    int32_t pad = kv_page_pad(l->v_dim);
    cpu_kv_unpack_fn *unpack = cpu_kv_unpack(&cpu->table, l->v_type);
    size_t row_bytes = kv_page_v_row_bytes(l);
    uint8_t *page = kv_page_of(kv, group, slot);
    int32_t i = slot % OPS_PAGE_SLOTS;

    for (int32_t h = 0; h < l->v_heads; h++) {
        const uint8_t *row = kv_page_v(l, page, h) + (size_t)i * row_bytes;
        const uint16_t *scales = kv_page_v_scale(l, page, h);
        float *sum = kv->v_sum + (size_t)(group * l->v_heads + h) * (size_t)l->v_dim;
        float scale = scales ? factor * half_f16_to_f32(scales[i]) : factor;

        if (unpack) {
            unpack(row, (size_t)pad, scratch);
        } else {
            memcpy(scratch, row, row_bytes);
        }
        for (int32_t d = 0; d < l->v_dim; d++) {
            sum[d] += scale * scratch[d];
        }
    }
}

struct job {
    const struct cpu *cpu;
    const struct ops_kv *kv;
    struct pool_counter next;
};

/* Weights of a page's slots in the sum: 1, or the scale, where one is live. */
static void live_weights(const struct ops_kv *kv, int32_t group, int32_t slot0,
                         const uint16_t *scales, float *e)
{
    for (int32_t i = 0; i < OPS_PAGE_SLOTS; i++) {
        bool live = slot0 + i < kv->n_slots && kv_slot_pos(kv, group, slot0 + i) >= 0;

        e[i] = !live ? 0 : scales ? half_f16_to_f32(scales[i]) : 1;
    }
}

/* In f32 whatever the type: pv of the type may round (table_kv.h), and single rows are taken away
 * from the sum later (cpu_kv_add_value). */
static void sum_group(const struct job *job, const struct kv_thread *t, int32_t group)
{
    const struct ops_kv *kv = job->kv;
    const struct ops_kv_layout *l = kv->layout;
    int32_t pad = kv_page_pad(l->v_dim);
    const struct cpu_table *table = &job->cpu->table;
    cpu_kv_unpack_fn *unpack = cpu_kv_unpack(table, l->v_type);

    for (int32_t h = 0; h < l->v_heads; h++) {
        memset(t->acc, 0, (size_t)pad * sizeof(float));
        for (int32_t s = 0; s < kv->n_slots; s += OPS_PAGE_SLOTS) {
            uint8_t *page = kv_page_of(kv, group, s);
            int32_t n = kv->n_slots - s < OPS_PAGE_SLOTS ? kv->n_slots - s : OPS_PAGE_SLOTS;
            const void *v = kv_page_v(l, page, h);

            live_weights(kv, group, s, kv_page_v_scale(l, page, h), t->x);
            if (unpack) {
                unpack(v, (size_t)n * (size_t)pad, t->v);
                v = t->v;
            }
            table->pv_f32(v, pad, t->x, OPS_PAGE_SLOTS, 1, n, t->acc, NULL);
        }
        memcpy(kv->v_sum + (size_t)(group * l->v_heads + h) * (size_t)l->v_dim, t->acc,
               (size_t)l->v_dim * sizeof(float));
    }
}

static void sum_groups(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    struct kv_scratch s = cpu_kv_scratch(job->cpu, tid);

    (void)n_threads;
    for (int g; (g = pool_counter_take(&job->next)) < job->kv->layout->n_groups;) {
        sum_group(job, &s.t, g);
    }
}

int cpu_kv_sum(struct backend *be, const struct ops_kv_sum *p)
{
    struct cpu *cpu = cpu_of(be);
    struct job job = {.cpu = cpu, .kv = p->kv};

    if (!p->kv->v_sum || p->kv->layout->v_dim > cpu->limits.max_head_dim) {
        return -EINVAL;
    }
    pool_run(cpu->pool, sum_groups, &job);
    return 0;
}
