/* SPDX-License-Identifier: Apache-2.0 */
/* What whole passes share (bf16 in, f32 sums): tiles, packing, and `product`, whose sums go
 * straight to what comes next. A block of rows goes through all of a layer's products and the work
 * between them while it is in the L2 cache. The products themselves are AMX's (tile_amx.h) or
 * AVX-512's (tile_avx512.h, tile_halves.h), and are the same to what calls them:
 *
 *   tiles_begin, tiles_end   around a thread's work
 *   block                    32 x 32 sums
 *   product                  sums of whole operands, finished as tile_finish.h says
 *
 * Operands. Left: rows in tiles, for each 16 rows, for each 32 of k, 16 x 32 values (1 KB). Right:
 * packed once; for each 32 columns, for each 32 of k, two tiles of 16 columns, whose row r is the
 * pairs (2r, 2r + 1) of k (weights in tile_halves.h: its own). Rows, k and columns are multiples of
 * 32.
 *
 * What is only read again much later (for the way back) leaves by streaming stores of whole lines:
 * an ordinary store first fetches the line, which took longer than the product that made it.
 *
 * One thread a call; scratch is the caller's, all arrays are aligned to 64 bytes. ops.py and
 * layers.py compile and call this where the processor has AMX or AVX-512 with bf16; kernels of the
 * same meaning in PyTorch are what tests/tools/test_distill.py compares with.
 */

#ifndef PIPIT_DISTILL_TILE_H
#define PIPIT_DISTILL_TILE_H

#include <stdint.h>
#include <string.h>

#ifdef TILE_AMX
#include "tools/distill/tile_amx.h"
#elif defined(TILE_HALVES)
#include "tools/distill/tile_halves.h"
#else
#include "tools/distill/tile_avx512.h"
#endif

/* A right operand of `block`, and one of `product`. */
void tile_pack(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain, uint16_t *dst);
void tile_pack_weights(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain,
                       uint16_t *dst);

/* The query rows of a sequence: n of them, at its positions `at` (ascending), or at 0 to n - 1
 * where that is null; `keys` positions have keys of key_dim and values of value_dim. n is at most
 * keys; all are multiples of 32. */
struct rows {
    int64_t n;
    int64_t keys;
    const int32_t *at;
    int64_t key_dim;
    int64_t value_dim;
};

/* What attention gives: with a width of 0 bf16 (heads, n, value_dim), else every head's columns of
 * left operands of `width` columns, the next head's `step` values further. */
struct given {
    uint16_t *to;
    int64_t width;
    int64_t step;
};

/* One K/V head and its `heads` query heads (tile_attention.c). */
void attend(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
            int64_t heads, float scale, struct given o, float *log_sum, uint8_t *scratch);
void attend_back(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                 struct given o, const float *log_sum, const uint16_t *dout, int64_t heads,
                 float scale, uint16_t *dq, float *dk, float *dv, uint8_t *scratch);
/* Bytes. */
static inline int64_t attend_scratch(const struct rows *r)
{
    return r->keys * (2 * (r->key_dim + r->value_dim) + 192) + 2048;
}
static inline int64_t attend_back_scratch(const struct rows *r)
{
    return r->n * (4 * (r->key_dim + r->value_dim) + 132 + 2 * r->keys) +
           (r->keys + 32) * r->key_dim * 2;
}

#endif
