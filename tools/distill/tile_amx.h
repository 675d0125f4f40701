/* SPDX-License-Identifier: Apache-2.0 */
/* The products of tile.h in AMX's tile registers: 32 x 32 sums stay in four of eight over the whole
 * of k. Products of a layer's shapes are bound by what moves between caches more than by the tile
 * unit.
 */

#ifndef PIPIT_DISTILL_TILE_AMX_H
#define PIPIT_DISTILL_TILE_AMX_H

#include "tools/distill/tile_finish.h"

struct tile_config {
    uint8_t palette;
    uint8_t start;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static inline void tiles_begin(void)
{
    struct tile_config c = {.palette = 1};

    for (int i = 0; i < 8; i++) {
        c.rows[i] = 16;
        c.row_bytes[i] = 64;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static inline void tiles_end(void)
{
    _tile_release();
}

/* Compilers know of no memory that a tile's load reads: what was stored before must be there. */
static inline void written(void)
{
    __asm__ volatile("" ::: "memory");
}

/* The 32 x 32 sums of left rows (`low`: 16 rows further) and a panel, stored at c, rows `ld` apart;
 * with `more`, added to what is there. */
static inline __attribute__((always_inline)) void block(int more, const uint16_t *a,
                                                        const uint16_t *low, int64_t a_step,
                                                        int64_t a_bytes, const uint16_t *b,
                                                        int64_t steps, float *c, int64_t ld)
{
    written();
    if (more) {
        _tile_loadd(0, c, ld * 4);
        _tile_loadd(1, c + 16, ld * 4);
        _tile_loadd(2, c + 16 * ld, ld * 4);
        _tile_loadd(3, c + 16 * ld + 16, ld * 4);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < steps; k++) {
        _tile_loadd(4, a + k * a_step, a_bytes);
        _tile_loadd(6, b + k * 2 * TILE, 64);
        _tile_loadd(7, b + k * 2 * TILE + TILE, 64);
        _tile_loadd(5, low + k * a_step, a_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, ld * 4);
    _tile_stored(1, c + 16, ld * 4);
    _tile_stored(2, c + 16 * ld, ld * 4);
    _tile_stored(3, c + 16 * ld + 16, ld * 4);
    written();
}

/* Panels of b are `stride` values apart; each is fetched towards the L2 cache, from the one that
 * all processors share, while the one before is at work. The rows of one block of sums are finished
 * between the tile instructions of the next: on their own they wait for the tile unit, and it for
 * them. */
static inline __attribute__((always_inline)) void product(enum mode mode, const uint16_t *a,
                                                          int64_t n, int64_t k, const uint16_t *b,
                                                          int64_t stride, int64_t m, void *c,
                                                          void *x, void *y)
{
    _Alignas(64) float sums[2][1024];
    const int64_t steps = k / 32;
    const int64_t each = ((31 + steps) / steps + 1) / 2 * 2;
    const int64_t lines = (1023 + n) / n; /* of the next panel, for each step of each block */
    int64_t row = 0;
    int64_t col = 0;
    int64_t i = 32;
    int turn = 0;

    written();
    for (int64_t p = 0; p < m / 32; p++) {
        const uint16_t *panel = b + p * stride;
        const char *next = (const char *)(panel + stride);

        for (int64_t r = 0; r < n; r += 32) {
            const uint16_t *top = a + r * k;
            const uint16_t *low = top + 16 * k;
            const float *last = sums[turn ^ 1];
            float *s = sums[turn];

            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t q = 0; q < steps; q++) {
                _tile_loadd(4, top + q * TILE, 64);
                _tile_loadd(6, panel + q * 2 * TILE, 64);
                _tile_loadd(7, panel + q * 2 * TILE + TILE, 64);
                _tile_loadd(5, low + q * TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
                for (int64_t line = 0; line < lines; line++) {
                    _mm_prefetch(next, _MM_HINT_T1);
                    next += 64;
                }
                if (i < 32) {
                    int64_t end = i + each < 32 ? i + each : 32;

                    finish(mode, last, i, end, row, col, n, m, c, x, y);
                    i = end;
                }
            }
            _tile_stored(0, s, 64);
            _tile_stored(1, s + 256, 64);
            _tile_stored(2, s + 512, 64);
            _tile_stored(3, s + 768, 64);
            row = r;
            col = p * 32;
            i = 0;
            turn ^= 1;
        }
    }
    finish(mode, sums[turn ^ 1], 0, 32, row, col, n, m, c, x, y);
}

#endif
