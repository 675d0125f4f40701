/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_QUANT_HALF_H
#define PIPIT_QUANT_HALF_H

/* IEEE binary16 and bfloat16 to and from f32, round to nearest even, by integer arithmetic: the
 * same bits on every compiler and CPU. Kernels use the CPU's own instructions and are checked
 * against these. */

#include <stdint.h>
#include <string.h>

static inline float half_from_bits32(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline uint32_t half_bits32(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float half_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    uint32_t rest = h & 0x7fff;

    if (rest >= 0x7c00) { /* Inf, NaN (payload kept, made quiet) */
        return half_from_bits32(sign | 0x7f800000 | ((rest & 0x3ff) << 13) |
                                (rest > 0x7c00 ? 0x400000 : 0));
    }
    if (rest >= 0x400) {
        return half_from_bits32(sign | ((rest << 13) + 0x38000000));
    }
    float sub = (float)rest * 0x1p-24f; /* exact */
    return half_from_bits32(sign | half_bits32(sub));
}

static inline uint16_t half_f16_from_f32(float f)
{
    uint32_t u = half_bits32(f);
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000);

    u &= 0x7fffffff;
    if (u > 0x7f800000) {
        return (uint16_t)(sign | 0x7e00 | ((u >> 13) & 0x3ff));
    }
    if (u >= 0x477ff000) { /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00);
    }
    if (u < 0x38800000) { /* subnormal in f16: let the f32 adder round at 2^-24 */
        float r = half_from_bits32(u) + 0.5f;

        return (uint16_t)(sign | (half_bits32(r) - half_bits32(0.5f)));
    }
    u += 0xfff + ((u >> 13) & 1);
    return (uint16_t)(sign | ((u - 0x38000000) >> 13));
}

static inline float half_bf16_to_f32(uint16_t h)
{
    return half_from_bits32((uint32_t)h << 16);
}

static inline uint16_t half_bf16_from_f32(float f)
{
    uint32_t u = half_bits32(f);

    if ((u & 0x7fffffff) > 0x7f800000) {
        return (uint16_t)((u >> 16) | 0x40);
    }
    return (uint16_t)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}

#endif
