/* SPDX-License-Identifier: Apache-2.0 */
/* Types of blocks in the cache: what no block can hold becomes what one can, and heads that are not
 * whole blocks are refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/kv_code.h"

Test(kv_code, a_block_takes_any_number)
{
    static const enum ops_kv_type types[] = {OPS_KV_Q8_0, OPS_KV_Q4_0};

    for (int t = 0; t < 2; t++) {
        float x[64];
        float y[64];
        uint8_t codes[2 * 34];

        for (int i = 0; i < 64; i++) {
            x[i] = (float)(i % 32 - 16);
        }
        x[3] = NAN;
        x[40] = INFINITY;
        x[41] = -1e30f;
        memset(codes, 0xff, sizeof(codes)); /* what a page's last owner left */
        kv_code_encode(types[t], x, codes, NULL, 64);
        kv_code_decode(types[t], codes, 0, y, 64);
        for (int i = 0; i < 64; i++) {
            cr_assert(isfinite(y[i]), "%s %d", ops_kv_type_name(types[t]), i);
        }
        cr_assert_float_eq(y[3], 0, 1e-6f);
        cr_assert_float_eq(y[0], -16, 0.1f);
        cr_assert_gt(y[40], 5e4f);
        cr_assert_lt(y[41], -5e4f);
    }
}

Test(kv_code, heads_are_whole_blocks)
{
    struct ops_kv_layout l = {.k_heads = 1, .v_heads = 1, .k_dim = 64, .v_dim = 48};
    struct error e = {0};

    l.k_type = l.v_type = OPS_KV_FP8;
    cr_assert_eq(kv_code_check(&l, &e), 0);
    l.v_type = OPS_KV_Q4_0;
    cr_assert_eq(kv_code_check(&l, &e), -ENOTSUP);
    cr_assert(strstr(e.text, "q4_0 has blocks of 32, and the model heads of 48"), "%s", e.text);
}
