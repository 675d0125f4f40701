/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_LOAD_G4_BODY_H
#define PIPIT_KERNELS_CPU_KV_LOAD_G4_BODY_H

/* A block of four bits, over the lanes of the file that includes this (kv_lanes_c.h and those of
 * the instruction sets). */

#include <string.h>

#include "quant/gauss4.h"
#include "quant/half.h"

/* The block's values with its scale: dims 0 to 15, 16 to 31. */
LANES_INLINE void kv_load_g4(const uint8_t *block, lf *ret_low, lf *ret_high)
{
    uint16_t half;

    memcpy(&half, block, sizeof(half));
    lf scale = lf_set1(half_f16_to_f32(half));

    *ret_low = lf_mul(scale, lf_of_g4(block + sizeof(half), false));
    *ret_high = lf_mul(scale, lf_of_g4(block + sizeof(half), true));
}

#endif
