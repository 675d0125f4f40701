/* SPDX-License-Identifier: Apache-2.0 */
/* kv_import and kv_export: what goes in comes out, bit for bit, for every pair of types, odd dims,
 * unequal heads, and ranges that begin and end inside a page; slots outside the range stay. */

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_kv.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 1,
    .max_decode = 1,
    .max_seqs = 1,
    .max_cols = 64,
    .max_outputs = 64,
    .max_heads = 16,
    .max_head_dim = 256,
    .max_slots = 256,
};

static void round_trip(struct check *c, struct ops_kv_layout *l)
{
    enum { CAP = 200, FIRST = 37, N = 91 };
    struct check_kv kv;
    struct check_kv other;

    if (!check_kv_offered(c, l) ||
        !check_case(c, "%s/%s groups %d k %d x %d v %d x %d", ops_kv_type_name(l->k_type),
                    ops_kv_type_name(l->v_type), l->n_groups, l->k_heads, l->k_dim, l->v_heads,
                    l->v_dim)) {
        return;
    }
    check_kv_make(c, &kv, l, CAP, CAP, false, false);
    check_kv_make(c, &other, l, CAP, CAP, false, false); /* only its content is used */
    while (check_call(c)) {
        struct ops_kv of = check_kv_of(c, &kv);
        struct ops_kv_slots slots = {
            .kv = &of,
            .group = l->n_groups - 1,
            .slot0 = FIRST,
            .n_slots = N,
            .host = other.content + (size_t)((l->n_groups - 1) * CAP + FIRST) * other.slot_bytes,
        };

        c->err = c->ops->kv_import(c->be, &slots);
    }
    check_kv_export(c, &kv, CAP);
    memcpy(kv.content + (size_t)((l->n_groups - 1) * CAP + FIRST) * kv.slot_bytes,
           other.content + (size_t)((l->n_groups - 1) * CAP + FIRST) * kv.slot_bytes,
           N * kv.slot_bytes);
    for (int s = 0; s < 2; s++) {
        check_bits(c, s == 0 ? "slots of the reference" : "slots", kv.back[s], kv.content,
                   (size_t)l->n_groups * CAP * kv.slot_bytes);
    }
    check_kv_free(&kv);
    check_kv_free(&other);
}

void check_op(struct check *c)
{
    for (int t = 0; t < check_kv_n_types; t++) {
        struct ops_kv_layout l = {.k_type = check_kv_types[t].k, .v_type = check_kv_types[t].v};

        l.n_groups = 3;
        l.k_heads = l.v_heads = 1;
        l.k_dim = l.v_dim = 64;
        round_trip(c, &l);
        l.n_groups = 2;
        l.k_heads = 1;
        l.v_heads = 4;
        l.k_dim = 128;
        l.v_dim = 32;
        round_trip(c, &l);
        l.n_groups = 1;
        l.k_heads = 2;
        l.v_heads = 3;
        l.k_dim = 20;
        l.v_dim = 40;
        round_trip(c, &l);
        l.k_dim = 256;
        l.v_dim = 80;
        round_trip(c, &l);
    }
}
