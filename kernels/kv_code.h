/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_KV_CODE_H
#define PIPIT_KERNELS_KV_CODE_H

/* The cache's element types: how the f32 values of one head and one slot become bytes and a scale.
 * This is the definition; kernels that convert in registers give the same bits.
 *
 *   f32, f16, bf16  round to nearest even, after clamping to the type's largest finite value: an
 *                   infinity in V would turn every later row into NaN
 *   fp8, i8         codes and an f16 scale as quant/fp8.h defines them
 *   q8_0, q4_0      blocks of 32 as quant/dtype.h has them; heads are whole blocks; NaN becomes 0
 *
 * Inputs are finite. */

#include <stdint.h>

#include "base/error.h"
#include "kernels/ops.h"

/* -ENOTSUP, and the cause, for a layout whose heads are not whole blocks of its types. */
int kv_code_check(const struct ops_kv_layout *layout, struct error *reterr);

/* One head of n values. Only fp8 and i8 use the scale. */
void kv_code_encode(enum ops_kv_type type, const float *src, void *dst, uint16_t *ret_scale,
                    int32_t n);
void kv_code_decode(enum ops_kv_type type, const void *src, uint16_t scale, float *dst, int32_t n);

#endif
