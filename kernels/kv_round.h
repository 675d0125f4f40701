/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_KV_ROUND_H
#define PIPIT_KERNELS_KV_ROUND_H

/* Keys rounded so that queries feel the error least (ops_kv.carry). Rounding each dim to its
 * nearest code makes |k - stored| least. What counts is (k - stored)^T C (k - stored), C the mean
 * of q q^T, and queries point in few directions. So dims are rounded one after another, the last
 * first, and what a dim is off by is carried into those before it, each by a coefficient of its
 * own: what Frantar et al. 2022 (GPTQ, arXiv 2210.17323) do to weights, done to a key.
 *
 * Stored bytes have the same form: whatever reads them is not concerned. */

#include <stdint.h>

#include "kernels/ops.h"

enum { KV_ROUND_MOST = 256 }; /* dims of a head */

/* Types whose steps are wide enough for that: fp8, and 4 bits. */
bool kv_rounds(enum ops_kv_type type);

/* One head of n finite values, which are bounded by what f16 holds, as kv_code_encode() with carry:
 * (n, n), row i has in [0, i) what dim i's error is multiplied by for each dim before it. Scales
 * are those of kv_code_encode() of the bounded values. Returns fp8's scale, else 0. The definition:
 * all backends that have it give the same bits. */
uint16_t kv_round_encode(enum ops_kv_type type, const float *carry, const float *src, void *dst,
                         int32_t n);

#endif
