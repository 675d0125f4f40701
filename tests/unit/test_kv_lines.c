/* SPDX-License-Identifier: Apache-2.0 */
/* Lines that a query moves, counted by hand: for each layout, precision and kind of selection, from
 * how many slots share a line. Which lines a kernel needs is measured in check_select. */

#include <criterion/criterion.h>
#include <math.h>

#include "kernels/kv_lines.h"

static struct ops_kv_layout layout(enum ops_kv_type type, enum ops_rank rank)
{
    return (struct ops_kv_layout){.n_groups = 1,
                                  .k_heads = 1,
                                  .v_heads = 1,
                                  .k_dim = 64,
                                  .v_dim = 64,
                                  .k_type = type,
                                  .v_type = type,
                                  .rank = rank};
}

static void same(const char *what, double got, double want)
{
    cr_assert(fabs(got - want) < 1e-6, "%s: %.7f lines, wanted %.7f", what, got, want);
}

static double read_of(enum ops_kv_type type, enum ops_rank rank, struct ops_select s, int32_t n)
{
    struct ops_kv_layout l = layout(type, rank);

    return kv_lines_read(&l, &s, n);
}

Test(kv_lines, of_an_array)
{
    same("128 rows of 128 bytes", kv_lines_some(128, 128, 0, 128), 256);
    same("5 of them", kv_lines_some(128, 5, 2, 128), 10);
    same("rows of 2 bytes, 32 a line", kv_lines_some(128, 128, 0, 2), 4);
    same("the last page has 3 rows", kv_lines_some(67, 67, 0, 2), 3);
    /* 1 of 64 lies in one of the two lines */
    same("one row, two lines", kv_lines_some(64, 1, 0, 2), 1);
    /* a line stays empty if both are in the other: 32 31 / (64 63) */
    same("two rows, two lines", kv_lines_some(64, 2, 0, 2), 2 * (1 - 32.0 * 31 / (64 * 63)));
    /* the last line for sure; the other one if the second of 63 is among its 32 */
    same("one of them the last", kv_lines_some(64, 2, 1, 2), 1 + 32.0 / 63);
    /* 160 bytes a row: 2.5 lines, every other pair of rows shares one. One row of 64 needs 2 and
     * the shared one */
    same("rows that straddle", kv_lines_some(64, 1, 0, 160), 3);
    same("all of them", kv_lines_some(64, 64, 0, 160), 160);
}

Test(kv_lines, of_a_query)
{
    struct ops_select all = {.kind = OPS_SELECT_ALL};
    struct ops_select sparq = {.kind = OPS_SELECT_SPARQ, .r = 8, .k = 4, .local = 1};
    struct ops_select topv = {.kind = OPS_SELECT_TOPV, .k = 4};
    struct ops_select given = {.kind = OPS_SELECT_GIVEN, .k = 2, .local = 1};
    /* three of 127 beside the last: the lines of 32 that are hit. The last line is. Three whole
     * ones miss with the chance C(95, 3) / C(127, 3). */
    double hit = 1 + 3 * (1 - 95.0 * 94 * 93 / (127.0 * 126 * 125));
    double hit64 = 1 + (1 - 63.0 * 62 * 61 / (127.0 * 126 * 125));

    /* two pages: K 64 dims of 2 lines, V 64 rows of 2 lines */
    same("full", read_of(OPS_KV_F16, OPS_RANK_ONCE, all, 128), 512);
    /* 36 of the last page: K both lines of each dim, V 36 rows */
    same("full, a page in part", read_of(OPS_KV_F16, OPS_RANK_ONCE, all, 100), 128 * 2 + 200);
    same("full, copies of K", read_of(OPS_KV_F16, OPS_RANK_2K, all, 128), 512);
    /* fp8: K a line a dim and page, V a line a slot, scales 2 bytes a slot and head */
    same("fp8", read_of(OPS_KV_FP8, OPS_RANK_ONCE, all, 128), 128 + 128 + 4 + 4);
    /* q8_0: 68 bytes a head of a slot, its own scales */
    same("q8_0", read_of(OPS_KV_Q8_0, OPS_RANK_ONCE, all, 128), 2 * 2 * 68);

    same("once", read_of(OPS_KV_F16, OPS_RANK_ONCE, sparq, 128), 8 * 4 + 56 * hit + 4 * 2);
    same("2k", read_of(OPS_KV_F16, OPS_RANK_2K, sparq, 128), 8 * 4 + 4 * 2 + 4 * 2);
    /* ranks: 8 dims of a line a page, and 2 lines of scales a page */
    same("rank8", read_of(OPS_KV_F16, OPS_RANK_8, sparq, 128), 8 * 2 + 4 + 4 * 2 + 4 * 2);
    /* fp8 by slot: a line a slot; K's scales all, V's where chosen */
    same("fp8, 2k", read_of(OPS_KV_FP8, OPS_RANK_2K, sparq, 128), 8 * 2 + 4 + 4 + 4 + hit);
    same("fp8, once", read_of(OPS_KV_FP8, OPS_RANK_ONCE, sparq, 128),
         8 * 2 + 56 * hit64 + 4 + 4 + hit);
    sparq.k = 128;
    same("k covers all", read_of(OPS_KV_F16, OPS_RANK_ONCE, sparq, 128), 512);

    same("topv", read_of(OPS_KV_F16, OPS_RANK_ONCE, topv, 128), 256 + 4 * 2);
    /* the last and one of 127 */
    same("given", read_of(OPS_KV_F16, OPS_RANK_ONCE, given, 128),
         64 * (1 + 3 * 32.0 / 127) + 2 * 2);
}

Test(kv_lines, of_heads_and_partial_keys)
{
    struct ops_kv_layout l = layout(OPS_KV_F16, OPS_RANK_ONCE);
    struct ops_select topv = {.kind = OPS_SELECT_TOPV, .k = 4};

    l.v_heads = 4;
    l.part_dims = 19;
    l.part_type = OPS_KV_F16;
    same("each V head chooses", kv_lines_read(&l, &topv, 128), 256 + 4 * 4 * 2);
    same("partial keys", kv_lines_part(&l, 128), 19 * 4);
    l.k_heads = 2;
    same("of two heads", kv_lines_part(&l, 128), 2 * 19 * 4);
    l.part_type = OPS_KV_FP8;
    same("in fp8, and their scales", kv_lines_part(&l, 128), 2 * (19 * 2 + 4));
}
