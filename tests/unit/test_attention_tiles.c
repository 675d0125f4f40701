/* SPDX-License-Identifier: Apache-2.0 */
/* Which attention goes as tiles of bf16 where a CPU has them: each type of the cache, on either
 * side. What the tiles compute is check_attention's to say; that a type goes the other way it
 * cannot see, for that way is the more exact one. */

#include <criterion/criterion.h>
#include <string.h>

#include "kernels/cpu/attention_block.h"

enum { N_TYPES = OPS_KV_G4 + 1 };

/* Of struct ops_kv_layout's types, by name: f16 and what is smaller, but GGUF's blocks. */
static bool wanted(enum ops_kv_type type)
{
    static const char *const tiled[] = {"f16", "bf16", "fp8", "i8", "kv4"};
    bool found = false;

    for (size_t i = 0; i < sizeof(tiled) / sizeof(tiled[0]); i++) {
        found = found || strcmp(ops_kv_type_name(type), tiled[i]) == 0;
    }
    return found;
}

static void stand_in(const struct cpu_tile_att *t)
{
    (void)t;
}

Test(attention_tiles, by_type)
{
    static struct cpu cpu = {.table.tile_qk = stand_in};
    static const struct ops_attention plain;
    int n = 0;

    for (int k = 0; k < N_TYPES; k++) {
        for (int v = 0; v < N_TYPES; v++) {
            struct ops_kv_layout l = {.k_type = (enum ops_kv_type)k, .v_type = (enum ops_kv_type)v};
            struct att_unit u = {.cpu = &cpu, .p = &plain, .l = &l};

            cr_assert_eq(att_tiles_serve(&u), wanted(l.k_type) && wanted(l.v_type), "%s, %s",
                         ops_kv_type_name(l.k_type), ops_kv_type_name(l.v_type));
            n += att_tiles_serve(&u);
        }
    }
    cr_assert_eq(n, 25);
}

Test(attention_tiles, not_where)
{
    static struct cpu cpu = {.table.tile_qk = stand_in};
    static struct cpu without;
    struct ops_kv_layout l = {.k_type = OPS_KV_G4, .v_type = OPS_KV_G4};
    struct ops_attention p = {0};
    struct att_unit u = {.cpu = &cpu, .p = &p, .l = &l};

    cr_assert(att_tiles_serve(&u));
    u.cpu = &without;
    cr_assert_not(att_tiles_serve(&u), "without a matrix unit");
    u.cpu = &cpu;
    p.softcap = 30;
    cr_assert_not(att_tiles_serve(&u), "softcap");
    p.softcap = 0;
    p.alibi_max = 8;
    cr_assert_not(att_tiles_serve(&u), "ALiBi");
    p.alibi_max = 0;
    l.k_unrotated = true;
    cr_assert_not(att_tiles_serve(&u), "pos=new");
}
