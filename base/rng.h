/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_RNG_H
#define PIPIT_BASE_RNG_H

/* Philox4x32-10 (Salmon et al., SC 2011): a counter-based generator. The n-th number needs no
 * state but its counter, so every backend, batch and replay draws the same numbers. Used by the
 * sampler (counter = token index) and by Keyformer's noise. */

#include <stdint.h>

#include "base/device.h"

struct rng_key {
    uint32_t k[2];
};

static inline HOST_DEVICE struct rng_key rng_key_make(uint64_t seed)
{
    struct rng_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};

    return key;
}

static inline HOST_DEVICE void rng_philox(struct rng_key key, const uint32_t counter[4],
                                          uint32_t ret[4])
{
    uint32_t c0 = counter[0];
    uint32_t c1 = counter[1];
    uint32_t c2 = counter[2];
    uint32_t c3 = counter[3];
    uint32_t k0 = key.k[0];
    uint32_t k1 = key.k[1];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    ret[0] = c0;
    ret[1] = c1;
    ret[2] = c2;
    ret[3] = c3;
}

/* Uniform in (0, 1): 23 bits and a half, never 0 and never 1, exact in f32 (with 24 bits and a half
 * the largest value rounds to 1). */
static inline HOST_DEVICE float rng_uniform(uint32_t bits)
{
    return ((float)(bits >> 9) + 0.5f) * 0x1p-23f;
}

/* Number `index` of a sampler's stream: uniform in (0, 1), 52 bits and a half. */
enum { RNG_SAMPLER_DOMAIN = 0x73616d70 }; /* counter word 2; Keyformer's noise has others */

static inline HOST_DEVICE double rng_draw(uint64_t seed, uint64_t index)
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), RNG_SAMPLER_DOMAIN, 0};
    uint32_t bits[4];

    rng_philox(rng_key_make(seed), counter, bits);
    return ((double)((uint64_t)bits[0] << 20 | bits[1] >> 12) + 0.5) * 0x1p-52;
}

#endif
