/* SPDX-License-Identifier: Apache-2.0 */
/* layers.h: pages full of noise, numbered in order; as many layers as together exceed the device's
 * caches (kbench_copies). Sequences share their queries. */

#include "bench/kernels/layers.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

enum { ROW_FLOATS = 4096 }; /* of queries: 32 heads of 128, 16 of 256 */

static uint64_t row_bytes(const struct kbench *k)
{
    return (k->small ? (uint64_t)64 : (uint64_t)2048) * ROW_FLOATS * sizeof(float);
}

int layers_open(struct kbench *k, struct layers *l, struct error *e)
{
    int r = kbench_fill(k, row_bytes(k), &l->q, e);

    return r ? r : k->ops->alloc(k->be, row_bytes(k), "results", &l->out, e);
}

void layers_close(struct kbench *k, struct layers *l)
{
    k->ops->free(k->be, l->q, row_bytes(k));
    k->ops->free(k->be, l->out, row_bytes(k));
    l->q = NULL;
    l->out = NULL;
}

int layers_describe(struct kbench *k, struct layers *l, const struct layers_heads *heads,
                    enum ops_kv_type k_type, enum ops_kv_type v_type, enum ops_rank rank,
                    int32_t part_dims, struct error *e)
{
    int32_t ld = heads->n_q * heads->dim;

    l->heads = *heads;
    l->op = (struct ops_attention){.q = l->q,
                                   .out = l->out,
                                   .ldq = ld,
                                   .ldo = ld,
                                   .n_q = heads->n_q,
                                   .scale = 1.0f / sqrtf((float)heads->dim)};
    l->layout = (struct ops_kv_layout){.n_groups = heads->n_k,
                                       .k_heads = 1,
                                       .v_heads = 1,
                                       .k_dim = heads->dim,
                                       .v_dim = heads->dim,
                                       .k_type = k_type,
                                       .v_type = v_type,
                                       .rank = rank,
                                       .part_dims = part_dims,
                                       .part_type = OPS_KV_F16};
    return k->ops->kv_layout(&l->layout, e);
}

void layers_drop(struct kbench *k, struct layers *l)
{
    k->ops->free(k->be, l->pool, 0);
    k->ops->free(k->be, l->pages, 0);
    l->pool = NULL;
    l->pages = NULL;
}

int layers_make(struct kbench *k, struct layers *l, int32_t depth, int n_seqs, uint64_t touched,
                struct error *e)
{
    int32_t per_group = (depth + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS;
    uint64_t of_seq = (uint64_t)per_group * (uint64_t)l->layout.n_groups;
    uint64_t n_pages;
    uint32_t *table;
    void *pool = NULL;
    int r;

    touched = touched > 0 ? touched : of_seq * (uint64_t)n_seqs * l->layout.page_bytes;
    l->n = kbench_copies(k, touched);
    n_pages = of_seq * (uint64_t)n_seqs * (uint64_t)l->n;
    table = malloc(n_pages * sizeof(*table));
    if (!table) {
        return error_set(e, -ENOMEM, "no memory for page tables");
    }
    for (uint64_t i = 0; i < n_pages; i++) {
        table[i] = (uint32_t)i;
    }
    r = kbench_fill(k, n_pages * l->layout.page_bytes, &pool, e);
    l->pool = pool;
    r = r ? r : k->ops->alloc(k->be, n_pages * sizeof(*table), "page tables", &l->pages, e);
    if (!r && (r = k->ops->write(k->be, l->pages, table, n_pages * sizeof(*table)))) {
        r = error_set_errno(e, r, "write");
    }
    free(table);
    for (int i = 0; i < l->n; i++) {
        for (int s = 0; s < n_seqs; s++) {
            l->seqs[i][s] = (struct ops_seq){
                .row0 = s,
                .n_rows = 1,
                .pos0 = depth - 1,
                .slot0 = depth - 1,
                .kv = {.layout = &l->layout,
                       .pool = l->pool,
                       .pages = (uint32_t *)l->pages + of_seq * (uint64_t)(i * n_seqs + s),
                       .max_pages = per_group,
                       .cap = depth,
                       .k_hadamard = l->latest != NULL,
                       .v_hadamard = l->latest != NULL,
                       .latest = l->latest,
                       .n_slots = depth},
            };
        }
    }
    l->op.rows = (struct ops_rows){n_seqs, n_seqs};
    l->op.n_seqs = n_seqs;
    return r;
}

int layers_attend(struct kbench *k, void *arg, int n)
{
    struct layers *l = arg;
    int r = 0;

    for (int i = 0; i < n && !r; i++) {
        l->op.seqs = l->seqs[i % l->n];
        r = k->ops->attention(k->be, &l->op);
    }
    return r;
}

int layers_pieces(const struct kbench *k, const struct layers *l)
{
    return k->small ? l->n : LAYERS_MOST;
}
