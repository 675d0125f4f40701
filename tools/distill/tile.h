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
 * where that is null; `keys` positions have keys. n is at most keys, both multiples of 32. */
struct rows {
    int64_t n;
    int64_t keys;
    const int32_t *at;
};

/* One K/V head and its `heads` query heads (tile_attention.c). o and its like are bf16 (heads, n,
 * 64) where `width` is 0, else a left operand of `width` columns, of which these heads begin at
 * `col`. */
void attend(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
            int64_t heads, float scale, uint16_t *o, int64_t width, int64_t col, float *log_sum,
            uint8_t *scratch);
void attend_back(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                 const uint16_t *o, int64_t width, int64_t col, const float *log_sum,
                 const uint16_t *dout, int64_t heads, float scale, uint16_t *dq, float *dk,
                 float *dv, uint8_t *scratch);
/* Bytes; s: of keys. */
static inline int64_t attend_scratch(int64_t s)
{
    return s * 448 + 2048;
}
static inline int64_t attend_back_scratch(int64_t s)
{
    return s * (640 + 128 + 4) + 2 * s * s + 4096;
}

#endif
