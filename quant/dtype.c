/* SPDX-License-Identifier: Apache-2.0 */
/* The table of element types, and the way from a type to its decoder and encoder. Types of one
 * element a block (F32, F16, BF16) are done here; blocks of 32 are in dtype_q.c, of 256 in
 * dtype_k.c and dtype_k_encode.c, those with tables in dtype_iq.c. Nothing here is fast: kernels
 * have their own readers and are checked against these. */

#include "quant/dtype.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <strings.h>

#include "base/checked.h"
#include "quant/dtype_blocks.h"
#include "quant/half.h"

static void decode_f32(const void *src, float *dst, uint64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
}

static void decode_f16(const void *src, float *dst, uint64_t n)
{
    const uint16_t *h = src;

    for (uint64_t i = 0; i < n; i++) {
        dst[i] = half_f16_to_f32(h[i]);
    }
}

static void decode_bf16(const void *src, float *dst, uint64_t n)
{
    const uint16_t *h = src;

    for (uint64_t i = 0; i < n; i++) {
        dst[i] = half_bf16_to_f32(h[i]);
    }
}

static int encode_f32(const float *src, void *dst, uint64_t n)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
    return 0;
}

static int encode_f16(const float *src, void *dst, uint64_t n)
{
    uint16_t *h = dst;

    for (uint64_t i = 0; i < n; i++) {
        h[i] = half_f16_from_f32(src[i]);
        if ((h[i] & 0x7fff) == 0x7c00) {
            return -EINVAL;
        }
    }
    return 0;
}

static int encode_bf16(const float *src, void *dst, uint64_t n)
{
    uint16_t *h = dst;

    for (uint64_t i = 0; i < n; i++) {
        h[i] = half_bf16_from_f32(src[i]);
        if ((h[i] & 0x7fff) == 0x7f80) {
            return -EINVAL;
        }
    }
    return 0;
}

struct codec {
    struct dtype_info info;
    void (*decode)(const void *src, float *dst, uint64_t n_blocks);
    int (*encode)(const float *src, void *dst, uint64_t n_blocks);
};

/* clang-format off */
static const struct codec codecs[] = {
    [DTYPE_F32] = {{"F32", 1, 4, true}, decode_f32, encode_f32},
    [DTYPE_F16] = {{"F16", 1, 2, true}, decode_f16, encode_f16},
    [DTYPE_BF16] = {{"BF16", 1, 2, true}, decode_bf16, encode_bf16},
    [DTYPE_Q4_0] = {{"Q4_0", 32, sizeof(struct block_q4_0), true}, dtype_decode_q4_0, dtype_encode_q4_0},
    [DTYPE_Q4_1] = {{"Q4_1", 32, sizeof(struct block_q4_1), true}, dtype_decode_q4_1, dtype_encode_q4_1},
    [DTYPE_Q5_0] = {{"Q5_0", 32, sizeof(struct block_q5_0), true}, dtype_decode_q5_0, dtype_encode_q5_0},
    [DTYPE_Q5_1] = {{"Q5_1", 32, sizeof(struct block_q5_1), true}, dtype_decode_q5_1, dtype_encode_q5_1},
    [DTYPE_Q8_0] = {{"Q8_0", 32, sizeof(struct block_q8_0), true}, dtype_decode_q8_0, dtype_encode_q8_0},
    [DTYPE_Q2_K] = {{"Q2_K", 256, sizeof(struct block_q2_k), false}, dtype_decode_q2_k, NULL},
    [DTYPE_Q3_K] = {{"Q3_K", 256, sizeof(struct block_q3_k), false}, dtype_decode_q3_k, NULL},
    [DTYPE_Q4_K] = {{"Q4_K", 256, sizeof(struct block_q4_k), true}, dtype_decode_q4_k, dtype_encode_q4_k},
    [DTYPE_Q5_K] = {{"Q5_K", 256, sizeof(struct block_q5_k), true}, dtype_decode_q5_k, dtype_encode_q5_k},
    [DTYPE_Q6_K] = {{"Q6_K", 256, sizeof(struct block_q6_k), true}, dtype_decode_q6_k, dtype_encode_q6_k},
    [DTYPE_IQ4_NL] = {{"IQ4_NL", 32, sizeof(struct block_iq4_nl), true}, dtype_decode_iq4_nl, dtype_encode_iq4_nl},
    [DTYPE_IQ4_XS] = {{"IQ4_XS", 256, sizeof(struct block_iq4_xs), false}, dtype_decode_iq4_xs, NULL},
    [DTYPE_MXFP4] = {{"MXFP4", 32, sizeof(struct block_mxfp4), true}, dtype_decode_mxfp4, dtype_encode_mxfp4},
};
/* clang-format on */

enum { N_CODECS = sizeof(codecs) / sizeof(codecs[0]) };

const struct dtype_info *dtype_info(uint32_t type)
{
    return type < N_CODECS && codecs[type].info.name ? &codecs[type].info : NULL;
}

int dtype_from_name(const char *name)
{
    for (int i = 0; i < N_CODECS; i++) {
        if (codecs[i].info.name && strcasecmp(codecs[i].info.name, name) == 0) {
            return i;
        }
    }
    return -EINVAL;
}

bool dtype_row_bytes(enum dtype type, uint64_t n, uint64_t *ret)
{
    const struct dtype_info *info = dtype_info(type);

    return info && n % (uint64_t)info->block_len == 0 &&
           checked_mul_u64(n / (uint64_t)info->block_len, (uint64_t)info->block_bytes, ret);
}

void dtype_decode(enum dtype type, const void *src, float *dst, uint64_t n)
{
    codecs[type].decode(src, dst, n / (uint64_t)codecs[type].info.block_len);
}

int dtype_encode(enum dtype type, const float *src, void *dst, uint64_t n)
{
    if (!dtype_info(type) || !codecs[type].encode) {
        return -ENOTSUP;
    }
    for (uint64_t i = 0; i < n; i++) {
        if (!isfinite(src[i])) {
            return -EINVAL;
        }
    }
    return codecs[type].encode(src, dst, n / (uint64_t)codecs[type].info.block_len);
}
