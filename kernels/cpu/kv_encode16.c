/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/kv_encode16.h"

#include <string.h>

#include "kernels/kv_round.h"
#include "quant/gauss4.h"
#include "quant/half.h"

static size_t at(int32_t dim, int32_t head)
{
    return (size_t)dim * CPU_KV_ENCODE16 + (size_t)head;
}

struct cpu_kv_encode16 cpu_kv_encode16_begin(enum ops_kv_type type, const float *carry, int32_t n,
                                             float *scratch)
{
    size_t scales = (size_t)(n / GAUSS4_BLOCK + 1) * CPU_KV_ENCODE16;
    struct cpu_kv_encode16 ret = {.type = type, .carry = carry, .n = n, .x = scratch};

    ret.step = ret.x + (size_t)n * CPU_KV_ENCODE16;
    ret.inverse = ret.step + scales;
    ret.head = ret.inverse + scales;
    ret.codes = (uint8_t *)(ret.head + n);
    return ret;
}

void cpu_kv_encode16_add(struct cpu_kv_encode16 *e, const float *head)
{
    for (int32_t d = 0; d < e->n; d++) {
        e->x[at(d, e->n_heads)] = head[d];
    }
    e->n_heads++;
}

static void encode_fp8(const struct cpu_table *t, const struct cpu_kv_encode16 *e, uint8_t *dst,
                       size_t row_bytes, uint16_t *scales)
{
    t->scale16_fp8(e->x, e->n, e->step, e->inverse);
    t->round16_fp8(e->carry, e->x, e->step, e->inverse, e->n, e->codes);
    for (int32_t i = 0; i < e->n_heads; i++) {
        scales[i] = half_f16_from_f32(e->step[i] * 256);
        for (int32_t d = 0; d < e->n; d++) {
            dst[(size_t)i * row_bytes + (size_t)d] = e->codes[at(d, i)];
        }
    }
}

static void encode_g4(const struct cpu_table *t, const struct cpu_kv_encode16 *e, uint8_t *dst,
                      size_t row_bytes)
{
    t->scale16_g4(e->x, e->n, e->step, e->inverse);
    t->round16_g4(e->carry, e->x, e->step, e->inverse, e->n, e->codes);
    for (int32_t i = 0; i < e->n_heads; i++) {
        for (int32_t b = 0; b < e->n / GAUSS4_BLOCK; b++) {
            struct gauss4_block block = {.scale = half_f16_from_f32(e->step[at(b, i)])};
            const uint8_t *low = e->codes + at(b * GAUSS4_BLOCK, i);
            const uint8_t *high = low + at(GAUSS4_BLOCK / 2, 0);

            for (int32_t d = 0; d < GAUSS4_BLOCK / 2; d++) {
                block.codes[d] = (uint8_t)(low[at(d, 0)] | high[at(d, 0)] << 4);
            }
            memcpy(dst + (size_t)i * row_bytes + (size_t)b * sizeof(block), &block, sizeof(block));
        }
    }
}

/* A chain alone is no shorter beside fifteen that nobody needs. */
static void encode_one(const struct cpu_table *t, const struct cpu_kv_encode16 *e, uint8_t *dst,
                       uint16_t *scales)
{
    uint16_t scale = 0;

    for (int32_t d = 0; d < e->n; d++) {
        e->head[d] = e->x[at(d, 0)];
    }
    if (e->carry) {
        scale = kv_round_encode(e->type, e->carry, e->head, dst, e->n);
    } else {
        (void)t->encode_g4(e->head, e->n, dst);
    }
    if (scales) {
        scales[0] = scale;
    }
}

void cpu_kv_encode16_end(const struct cpu_table *t, struct cpu_kv_encode16 *e, uint8_t *dst,
                         size_t row_bytes, uint16_t *scales)
{
    for (int32_t d = 0; d < e->n && e->n_heads > 1; d++) {
        for (int32_t i = e->n_heads; i < CPU_KV_ENCODE16; i++) {
            e->x[at(d, i)] = 0;
        }
    }
    if (e->n_heads == 1) {
        encode_one(t, e, dst, scales);
    } else if (e->type == OPS_KV_FP8) {
        encode_fp8(t, e, dst, row_bytes, scales);
    } else {
        encode_g4(t, e, dst, row_bytes);
    }
    e->n_heads = 0;
}
