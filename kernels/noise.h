/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_NOISE_H
#define PIPIT_KERNELS_NOISE_H

/* The noise that Keyformer adds to a logit before it scores a key: a function of
 * (seed, layer, query head, query position, key position) alone, so that every backend, batch,
 * thread and replay draws the same numbers.
 *
 * Philox4x32-10 (base/rng.h), key = seed, counter =
 *     [0]  key position p:  (p >> 6) << 4 | (p & 15)     | 1 << 31 for a second draw
 *     [1]  query position, or 0xffffffff with noise=once
 *     [2]  reading layer
 *     [3]  query head
 * and word (p >> 4) & 3 of the result. So the 64 positions of an aligned run are 16 counters x 4
 * words, in order: a vector kernel evaluates 16 counters at once and uses every word unshuffled.
 *
 *     Gumbel(0, 1)  -log(-log(u))
 *     Gauss         0.5772 + 1.2825 * sqrt(-2 log(u)) * cos(2 pi u'), u' from the second draw:
 *                   Gumbel's mean and deviation (the paper's Table 4)
 *     constant      0.5772
 * u in (0, 1) has 23 bits and a half, so the draws are finite: Gumbel lies in [-2.82, 16.64].
 * e^(x + Gumbel) = e^x / -log(u): with tau 1 a kernel may reuse the softmax's exponentials. */

#include <math.h>
#include <stdint.h>

#include "base/device.h"
#include "base/rng.h"
#include "kernels/ops.h"

#define NOISE_MEAN 0.5772f
#define NOISE_SIGMA 1.2825f
#define NOISE_ONCE 0xffffffffu

static inline HOST_DEVICE float noise_uniform(const struct ops_observe *o, uint32_t head,
                                              uint32_t query_pos, uint32_t key_pos,
                                              uint32_t second)
{
    uint32_t counter[4] = {(key_pos >> 6) << 4 | (key_pos & 15) | second << 31,
                           o->noise_once ? NOISE_ONCE : query_pos, (uint32_t)o->layer, head};
    uint32_t words[4];

    rng_philox(rng_key_make(o->seed), counter, words);
    /* Not words[key_pos >> 4 & 3]: on a GPU the words would leave registers for that. */
    return rng_uniform(key_pos & 32   ? (key_pos & 16 ? words[3] : words[2])
                       : key_pos & 16 ? words[1]
                                      : words[0]);
}

static inline HOST_DEVICE float noise_draw(const struct ops_observe *o, uint32_t head,
                                           uint32_t query_pos, uint32_t key_pos)
{
    float u;

    switch (o->noise) {
    case OPS_NOISE_NONE:
        return 0.0f;
    case OPS_NOISE_GUMBEL:
        return -logf(-logf(noise_uniform(o, head, query_pos, key_pos, 0)));
    case OPS_NOISE_GAUSS:
        u = noise_uniform(o, head, query_pos, key_pos, 1);
        return NOISE_MEAN +
               NOISE_SIGMA * sqrtf(-2.0f * logf(noise_uniform(o, head, query_pos, key_pos, 0))) *
                   cosf(6.2831853f * u);
    case OPS_NOISE_CONST:
        return NOISE_MEAN;
    }
    return 0.0f;
}

#endif
