/* SPDX-License-Identifier: Apache-2.0 */
/* Formulas of kv_lines.h. Nothing here looks at a page: tests/kernels/check_select.c measures which
 * lines a kernel's result depends on, and compares. */

#include "kernels/kv_lines.h"

#include <math.h>

enum { LINE = 64 };

/* The chance that w slots hold one of k that lie anywhere among n. */
static double chance(int32_t n, int32_t k, int32_t w)
{
    double none = 1;

    for (int32_t i = 0; i < w && none > 0; i++) {
        none *= (double)(n - k - i) / (double)(n - i);
    }
    return 1 - fmax(none, 0);
}

double kv_lines_some(int32_t n, int32_t k, int32_t local, uint64_t row_bytes)
{
    int32_t n_lines = (int32_t)(OPS_PAGE_SLOTS * row_bytes / LINE);
    int32_t others = n - local; /* slots before the local ones */
    double sum = 0;

    for (int32_t page = 0; page < n; page += OPS_PAGE_SLOTS) {
        for (int32_t i = 0; i < n_lines; i++) {
            int32_t first = page + (int32_t)((uint64_t)i * LINE / row_bytes);
            int32_t last = page + (int32_t)(((uint64_t)i * LINE + LINE - 1) / row_bytes);

            if (first >= n) {
                break;
            }
            last = last < n ? last : n - 1;
            sum += k >= n || last >= others ? 1 : chance(others, k - local, last - first + 1);
        }
    }
    return sum;
}

struct some {
    int32_t n;
    int32_t k;
    int32_t local;
};

static double some(const struct some *s, uint64_t row_bytes)
{
    return kv_lines_some(s->n, s->k, s->local, row_bytes);
}

static double all(const struct some *s, uint64_t row_bytes)
{
    return kv_lines_some(s->n, s->n, 0, row_bytes);
}

static int32_t pad(int32_t dim)
{
    return (dim + 15) & ~15;
}

static double values(const struct ops_kv_layout *l, const struct some *s)
{
    double lines = some(s, ops_kv_type_bytes(l->v_type, pad(l->v_dim)));

    return l->v_heads * (lines + (ops_kv_scale_bytes(l->v_type) ? some(s, 2) : 0));
}

/* One K head, chosen slots only: by dim, or from the copy by slot where only some are read. */
static double keys(const struct ops_kv_layout *l, const struct some *s)
{
    bool by_dim = l->rank == OPS_RANK_ONCE || s->k == s->n;
    uint64_t element = ops_kv_type_bytes(l->k_type, 1);
    double scales = ops_kv_scale_bytes(l->k_type) ? some(s, 2) : 0;

    if (ops_kv_block_dims(l->k_type) > 1) {
        return some(s, ops_kv_type_bytes(l->k_type, l->k_dim)) + scales;
    }
    return scales +
           (by_dim ? l->k_dim * some(s, element) : some(s, (uint64_t)pad(l->k_dim) * element));
}

/* One K head: r dims of all slots and the chosen slots' K, no line twice. */
static double ranked_keys(const struct ops_kv_layout *l, const struct some *s, int32_t r)
{
    uint64_t element = ops_kv_type_bytes(l->k_type, 1);
    bool scaled = ops_kv_scale_bytes(l->k_type);

    switch (l->rank) {
    case OPS_RANK_ONCE:
        return r * all(s, element) + (l->k_dim - r) * some(s, element) + (scaled ? all(s, 2) : 0);
    case OPS_RANK_2K:
        return r * all(s, element) + some(s, (uint64_t)pad(l->k_dim) * element) +
               (scaled ? all(s, 2) : 0);
    default: /* the copy in fp8 has scales of its own */
        return r * all(s, 1) + all(s, 2) + keys(l, s);
    }
}

double kv_lines_read(const struct ops_kv_layout *l, const struct ops_select *s, int32_t n)
{
    bool selects = s->kind != OPS_SELECT_ALL && s->k < n;
    struct some every = {n, n, 0};
    struct some chosen = every;

    if (selects) {
        chosen = (struct some){n, s->k, s->local};
    }
    if (s->kind == OPS_SELECT_SPARQ) {
        return l->k_heads * ranked_keys(l, &chosen, s->r) + values(l, &chosen);
    }
    return l->k_heads * keys(l, s->kind == OPS_SELECT_TOPV ? &every : &chosen) + values(l, &chosen);
}

double kv_lines_part(const struct ops_kv_layout *l, int32_t n)
{
    struct some every = {n, n, 0};

    return l->part_dims == 0
               ? 0
               : l->k_heads * (l->part_dims * all(&every, ops_kv_type_bytes(l->part_type, 1)) +
                               (ops_kv_scale_bytes(l->part_type) ? all(&every, 2) : 0));
}
