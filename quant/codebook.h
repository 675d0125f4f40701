/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_CODEBOOK_H
#define PIPIT_QUANT_CODEBOOK_H

/* Types whose four-bit codes are places in a table of 16 values, as the format defines them.
 *
 * IQ4_NL and IQ4_XS: values denser about zero, for weights that are nearly normal. MXFP4: the 4-bit
 * floats of the OCP Microscaling specification (e2m1) times two; its scale is a power of two with
 * the exponent in a byte (e8m0), halved here because the values are doubled. */

#include <stdint.h>

#include "quant/half.h"

#define CODEBOOK_IQ4(X)                                                                            \
    X(-127), X(-104), X(-83), X(-65), X(-49), X(-35), X(-22), X(-10), X(1), X(13), X(25), X(38),   \
        X(53), X(69), X(89), X(113)
#define CODEBOOK_MXFP4(X)                                                                          \
    X(0), X(1), X(2), X(3), X(4), X(6), X(8), X(12), X(0), X(-1), X(-2), X(-3), X(-4), X(-6),      \
        X(-8), X(-12)

#define CODEBOOK_VALUE(v) (v)

/* The bits of half the scale 2^(e - 127) as an f32; below e = 2 it is subnormal. Its low 16 bits
 * are zeros: it is a bf16 as well. */
static inline uint32_t codebook_e8m0_bits(uint8_t e)
{
    return e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23;
}

static inline float codebook_e8m0(uint8_t e)
{
    return half_from_bits32(codebook_e8m0_bits(e));
}

#endif
