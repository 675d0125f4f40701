/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_GAUSS4_H
#define PIPIT_QUANT_GAUSS4_H

/* Four bits a value in blocks of 32, as the KV cache stores heads that were rotated, whose values
 * are spread like a Gaussian's: 16 levels, dense in the middle, and one f16 scale.
 *
 *     value = scale * gauss4_level[code]
 *
 * Byte i of a block holds the codes of values i (low half) and i + 16. Levels are int8, so that a
 * product of codes and integers is one of levels (16 bytes: a table that one shuffle reads). */

#include <stdint.h>

enum { GAUSS4_BLOCK = 32 };

struct gauss4_block {
    uint16_t scale; /* f16 bits */
    uint8_t codes[GAUSS4_BLOCK / 2];
};

extern const int8_t gauss4_level[16];

/* Between gauss4_level[8 + i] and the next one: what is larger has the next one's code. */
extern const float gauss4_upper[7];

/* The code whose level is nearest to x, a value over its block's scale. */
uint8_t gauss4_nearest(float x);

/* n finite numbers of at most 65504, whole blocks. The scale is first the largest value over 127,
 * then the one that suits the codes best (least squares), with the codes nearest under it; of the
 * two the one that is nearer to the values. */
void gauss4_encode(const float *src, void *dst, int32_t n);
void gauss4_decode(const void *src, float *dst, int32_t n);

#endif
