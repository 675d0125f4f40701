/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_EXP_FIXED_H
#define PIPIT_BASE_EXP_FIXED_H

/* The exp that decides which token is drawn: of the host's sampler, of kernels/ref/ and, in the
 * same operations, of the cuda backend; and how its values are summed. */

#include <stdint.h>
#include <string.h>

#include "base/device.h"

/* e^x for x <= 0, 0 below -87; relative error under 2e-7. x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2
 * in two parts, so that r is exact), then Taylor's polynomial to the sixth power, whose rest is
 * 2^-23. Written in operations that IEEE 754 fixes, without contraction, so the bits are the same
 * on every machine. */
static inline float exp_fixed(float x)
{
    float clamped = x > -87.0f ? x : -87.0f;
    /* Adding 1.5 * 2^23 rounds to an integer, which then stands in the low bits. */
    float shifted = clamped * 1.44269504f + 0x1.8p23f;
    float n = shifted - 0x1.8p23f;
    float r = (clamped - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float poly = 1.0f / 720;
    uint32_t bits;
    float scale;

    poly = poly * r + 1.0f / 120;
    poly = poly * r + 1.0f / 24;
    poly = poly * r + 1.0f / 6;
    poly = poly * r + 0.5f;
    poly = poly * r + 1.0f;
    poly = poly * r + 1.0f;
    memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits << 23) + 0x3f800000u; /* 2^n: the shift drops everything but n */
    memcpy(&scale, &bits, sizeof(scale));
    return x > -87.0f ? poly * scale : 0.0f;
}

/* A weight of at most 1 in units of 2^-40; 0 below. Sums of up to 2^23 of them are exact, so that
 * they are the same in any order, by any number of threads. */
static inline HOST_DEVICE uint64_t weight_units(float w)
{
    return (uint64_t)(w * 0x1p40f);
}

/* e^x for x <= 0 in those units. */
static inline uint64_t exp_units(float x)
{
    return weight_units(exp_fixed(x));
}

/* How much of `total` the share p (0 to 1) is: what a sum must reach. */
static inline HOST_DEVICE uint64_t units_share(double p, uint64_t total)
{
    double share = p * (double)total;

    return share < (double)total ? (uint64_t)share : total;
}

/* Which unit of `total` (above 0) the draw u (0 to below 1) falls on: the token is the first whose
 * sum with those before it is above. */
static inline HOST_DEVICE uint64_t units_drawn(double u, uint64_t total)
{
    uint64_t at = units_share(u, total);

    return at < total ? at : total - 1;
}

#endif
