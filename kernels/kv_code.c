/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding and decoding of one head of the cache in plain C: the definition of kernels/kv_code.h,
 * used by the reference backend and where no vector variant fits. */

#include "kernels/kv_code.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "quant/dtype.h"
#include "quant/fp8.h"
#include "quant/gauss4.h"
#include "quant/half.h"

int kv_code_check(const struct ops_kv_layout *l, struct error *reterr)
{
    const enum ops_kv_type type[] = {l->k_type, l->v_type};
    const int32_t dims[] = {l->k_dim, l->v_dim};

    for (int i = 0; i < 2; i++) {
        if (dims[i] % ops_kv_block_dims(type[i]) != 0) {
            return error_set(reterr, -ENOTSUP,
                             "a cache of type %s has blocks of %d, and the model heads of %d dims",
                             ops_kv_type_name(type[i]), ops_kv_block_dims(type[i]), dims[i]);
        }
    }
    return 0;
}

static float clamp(float x, float limit)
{
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* Of what f16 holds no block's scale overflows. */
static void encode_blocks(enum ops_kv_type type, const float *src, uint8_t *dst, int32_t n)
{
    enum { BLOCK = 32 };
    size_t bytes = (size_t)ops_kv_type_bytes(type, BLOCK);

    for (int32_t b = 0; b < n / BLOCK; b++) {
        float block[BLOCK];

        for (int i = 0; i < BLOCK; i++) {
            float x = src[BLOCK * b + i];

            block[i] = isnan(x) ? 0 : clamp(x, 65504.0f); /* a block has no NaN to keep it in */
        }
        if (type == OPS_KV_G4) {
            gauss4_encode(block, dst + (size_t)b * bytes, BLOCK);
            continue;
        }
        int r = dtype_encode(type == OPS_KV_Q8_0 ? DTYPE_Q8_0 : DTYPE_Q4_0, block,
                             dst + (size_t)b * bytes, BLOCK);

        assert(r == 0); /* finite, and its scale is f16's */
        (void)r;
    }
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
    case OPS_KV_G4:
        encode_blocks(type, src, dst, n);
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
        dtype_decode(DTYPE_Q8_0, src, dst, (uint64_t)n);
        break;
    case OPS_KV_Q4_0:
        dtype_decode(DTYPE_Q4_0, src, dst, (uint64_t)n);
        break;
    case OPS_KV_G4:
        gauss4_decode(src, dst, n);
        break;
    }
}
