/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_X86_AMX_H
#define PIPIT_KERNELS_X86_AMX_H

/* AMX as the kernels of this folder use it: eight tiles of 16 rows of 64 bytes.
 *
 * Tiles 0-3 are the four products of two A tiles (4, 5) and two B tiles (6, 7): each loaded tile
 * meets two others, which the load ports can just keep up with (a tile load takes 8 cycles, a
 * product 16). Tile numbers are immediates, hence macros. */

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

struct amx_config {
    uint8_t palette;
    uint8_t start_row;
    uint8_t reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

_Static_assert(sizeof(struct amx_config) == 64, "what ldtilecfg reads");

/* gcc 12's _tile_loadconfig declares only the first 8 bytes as read and may drop the stores to the
 * rest: an instruction of our own has the whole struct as its operand. */
static inline void amx_begin(void)
{
    struct amx_config c;

    memset(&c, 0, sizeof(c));
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

/* Frees the registers' state: a thread with tiles in use costs 8 KiB more at each switch. */
static inline void amx_end(void)
{
    _tile_release();
}

/* Two rows of 32 or 16 bf16 next to each other, interleaved by pairs. */
static inline __m512i amx_interleave(void)
{
    const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);

    return _mm512_or_si512(low,
                           _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
}

/* A row of a B tile: `even` and `odd` are columns 2i and 2i + 1 of 16 outputs. */
static inline __m512i amx_pair(__m512 even, __m512 odd, __m512i interleave)
{
    return _mm512_permutexvar_epi16(interleave, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
}

#endif
