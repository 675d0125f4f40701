/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of one head of the cache in plain C: the definition of kernels/kv_code.h,
 * used by the reference backend and where no vector variant fits. */

#include "kernels/kv_code.h"

#include <string.h>

#include "quant/fp8.h"
#include "quant/half.h"

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

void kv_code_encode(enum ops_kv_type type, const float *src, void *dst, uint16_t *ret_scale,
                    int32_t n)
{
    uint16_t *half = dst;

    switch (type) {
    case OPS_KV_F32:
        memcpy(dst, src, (size_t)n * sizeof(float));
        break;
    case OPS_KV_F16:
        for (int32_t i = 0; i < n; i++) {
            half[i] = half_f16_from_f32(clamp(src[i], 65504.0f));
        }
        break;
    case OPS_KV_BF16:
        for (int32_t i = 0; i < n; i++) {
            half[i] = half_bf16_from_f32(clamp(src[i], 0x1.fep127f));
        }
        break;
    case OPS_KV_FP8:
        *ret_scale = fp8_encode_row(src, n, dst);
        break;
    case OPS_KV_I8:
        *ret_scale = fp8_encode_row_int8(src, n, dst);
        break;
    case OPS_KV_Q8_0:
    case OPS_KV_Q4_0:
        break;
    }
}

void kv_code_decode(enum ops_kv_type type, const void *src, uint16_t scale, float *dst, int32_t n)
{
    const uint16_t *half = src;

    switch (type) {
    case OPS_KV_F32:
        memcpy(dst, src, (size_t)n * sizeof(float));
        break;
    case OPS_KV_F16:
        for (int32_t i = 0; i < n; i++) {
            dst[i] = half_f16_to_f32(half[i]);
        }
        break;
    case OPS_KV_BF16:
        for (int32_t i = 0; i < n; i++) {
            dst[i] = half_bf16_to_f32(half[i]);
        }
        break;
    case OPS_KV_FP8:
        fp8_decode_row(src, scale, n, dst);
        break;
    case OPS_KV_I8:
        fp8_decode_row_int8(src, scale, n, dst);
        break;
    case OPS_KV_Q8_0:
    case OPS_KV_Q4_0:
        break;
    }
}
