/* SPDX-License-Identifier: Apache-2.0 */
/* Types of blocks in the cache: what no block can hold becomes what one can, and heads that are not
 * whole blocks are refused. */

#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/kv_code.h"
#include "quant/gauss4.h"
#include "quant/half.h"

Test(kv_code, a_block_takes_any_number)
{
    static const enum ops_kv_type types[] = {OPS_KV_Q8_0, OPS_KV_Q4_0, OPS_KV_G4};

    for (int t = 0; t < 3; t++) {
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
        cr_assert_float_eq(y[3], 0, types[t] == OPS_KV_G4 ? 1.0f : 1e-6f); /* g4 has no 0 */
        cr_assert_float_eq(y[0], -16, types[t] == OPS_KV_G4 ? 0.5f : 0.1f);
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

Test(kv_code, gauss4_bytes_are_canonical)
{
    static const uint8_t bytes[18] = {0x00, 0x38, 0xf0, 0xe1, 0xd2, 0xc3, 0xb4, 0xa5, 0x96,
                                      0x87, 0x78, 0x69, 0x5a, 0x4b, 0x3c, 0x2d, 0x1e, 0x0f};
    static const float level[16] = {-127, -96, -75, -58, -44, -31, -18, -6,
                                    6,    18,  31,  44,  58,  75,  96,  127};
    float x[32];
    uint8_t again[18];

    gauss4_decode(bytes, x, 32);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(x[i], 0.5f * level[i]);
        cr_assert_eq(x[16 + i], 0.5f * level[15 - i]);
    }
    gauss4_encode(x, again, 32);
    cr_assert_arr_eq(again, bytes, 18);
    memset(x, 0, sizeof(x));
    gauss4_encode(x, again, 32);
    gauss4_decode(again, x, 32);
    for (int i = 0; i < 32; i++) {
        cr_assert_eq(x[i], 0);
    }
}

/* The least squared error under a scale, by trying every level. */
static double least_error(const float *x, double scale)
{
    double sum = 0;

    for (int i = 0; i < 32; i++) {
        double best = INFINITY;

        for (int c = 0; c < 16; c++) {
            double d = (double)x[i] - scale * gauss4_level[c];

            best = fmin(best, d * d);
        }
        sum += best;
    }
    return sum;
}

/* Of Gaussians: codes are the nearest under the block's scale, the scale is at least as good as the
 * largest value over 127, and 4.5 bits lose under 0.7 % of the squares. */
Test(kv_code, gauss4_is_near)
{
    uint32_t seed = 1;
    double all = 0;
    double lost = 0;

    for (int b = 0; b < 1000; b++) {
        float x[32];
        float y[32];
        struct gauss4_block g;
        double error = 0;
        float top = 0;

        for (int i = 0; i < 32; i++) {
            double sum = 0;

            for (int j = 0; j < 12; j++) { /* nearly a Gaussian */
                seed = seed * 1664525u + 1013904223u;
                sum += (double)(seed >> 8) / (1 << 24) - 0.5;
            }
            x[i] = (float)(sum * (b % 7 + 0.1));
            top = fmaxf(top, fabsf(x[i]));
            all += (double)x[i] * (double)x[i];
        }
        gauss4_encode(x, &g, 32);
        gauss4_decode(&g, y, 32);
        for (int i = 0; i < 32; i++) {
            error += pow((double)x[i] - (double)y[i], 2);
        }
        lost += error;
        double scale = (double)half_f16_to_f32(g.scale);
        double first = (double)half_f16_to_f32(half_f16_from_f32(top / 127));

        cr_assert_leq(error, least_error(x, scale) * 1.0001);
        cr_assert_leq(error, least_error(x, first) * 1.0001);
    }
    cr_assert_lt(lost, 0.007 * all, "%g of %g", lost, all);
}
