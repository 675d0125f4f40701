/* SPDX-License-Identifier: Apache-2.0 */
/* Random weights. Quantised blocks are random bytes with their scales set afterwards, which also
 * makes blocks no encoder would make (extreme codes beside zeros, negative scales). */

#include "tests/kernels/check_weight.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/half.h"

static uint16_t random_half(struct check *c, float size)
{
    return half_f16_from_f32(size * (check_uniform(c) * 1.5f - 0.5f));
}

static void random_block(struct check *c, enum dtype type, uint8_t *block, float size)
{
    int n_bytes = dtype_info(type)->block_bytes;

    for (int i = 0; i < n_bytes; i++) {
        block[i] = (uint8_t)check_range(c, 0, 255);
    }
    switch (type) {
    case DTYPE_Q4_0:
        ((struct block_q4_0 *)(void *)block)->d = random_half(c, size / 8);
        break;
    case DTYPE_Q4_1:
        ((struct block_q4_1 *)(void *)block)->d = random_half(c, size / 8);
        ((struct block_q4_1 *)(void *)block)->m = random_half(c, size);
        break;
    case DTYPE_Q5_0:
        ((struct block_q5_0 *)(void *)block)->d = random_half(c, size / 16);
        break;
    case DTYPE_Q5_1:
        ((struct block_q5_1 *)(void *)block)->d = random_half(c, size / 16);
        ((struct block_q5_1 *)(void *)block)->m = random_half(c, size);
        break;
    case DTYPE_Q8_0:
        ((struct block_q8_0 *)(void *)block)->d = random_half(c, size / 128);
        break;
    case DTYPE_Q4_K:
        ((struct block_q4_k *)(void *)block)->d = random_half(c, size / 256);
        ((struct block_q4_k *)(void *)block)->dmin = random_half(c, size / 32);
        break;
    case DTYPE_Q5_K:
        ((struct block_q5_k *)(void *)block)->d = random_half(c, size / 512);
        ((struct block_q5_k *)(void *)block)->dmin = random_half(c, size / 32);
        break;
    case DTYPE_Q6_K:
        ((struct block_q6_k *)(void *)block)->d = random_half(c, size / 2048);
        break;
    case DTYPE_Q2_K: {
        struct block_q2_k *b = (void *)block;

        b->d = random_half(c, size / 32);
        b->dmin = random_half(c, size / 32);
        break;
    }
    case DTYPE_Q3_K:
        ((struct block_q3_k *)(void *)block)->d = random_half(c, size / 64);
        break;
    case DTYPE_IQ4_NL:
        ((struct block_iq4_nl *)(void *)block)->d = random_half(c, size / 127);
        break;
    case DTYPE_IQ4_XS:
        ((struct block_iq4_xs *)(void *)block)->d = random_half(c, size / 2048);
        break;
    case DTYPE_MXFP4: { /* six powers of two below the size */
        int e = 0;

        (void)frexpf(size / 12, &e);
        block[0] = (uint8_t)(e + 128 - check_range(c, 0, 5));
        break;
    }
    default:
        break;
    }
}

enum { ROWS_BETWEEN = 2 /* matrices of a stack, as where a tensor holds another stack too */ };

static void make(struct check *c, struct check_weight *w, enum dtype type, enum ops_role role,
                 int32_t n_stack, int32_t n_rows, int32_t n_cols, float size)
{
    int32_t step = n_rows + (n_stack > 1 ? ROWS_BETWEEN : 0);
    size_t n = (size_t)n_stack * (size_t)step * (size_t)n_cols;
    size_t block_len = (size_t)dtype_info(type)->block_len;
    size_t block_bytes = (size_t)dtype_info(type)->block_bytes;
    struct error e = {0};
    struct ops_weight_desc desc = {.name = "weight",
                                   .type = type,
                                   .role = role,
                                   .n_rows = n_rows,
                                   .n_cols = n_cols,
                                   .n_stack = (uint32_t)n_stack,
                                   .stack_rows = step};

    *w = (struct check_weight){.data = malloc(n / block_len * block_bytes),
                               .f32 = malloc(n * sizeof(float))};
    if (block_len == 1) {
        for (size_t i = 0; i < n; i++) {
            w->f32[i] = size * check_normal(c);
        }
        check_require(dtype_encode(type, w->f32, w->data, n), "weights");
    } else {
        for (size_t i = 0; i < n / block_len; i++) {
            random_block(c, type, (uint8_t *)w->data + i * block_bytes, size);
        }
    }
    dtype_decode(type, w->data, w->f32, n);
    for (int32_t i = 1; i < n_stack; i++) {
        memmove(w->f32 + (size_t)i * (size_t)n_rows * (size_t)n_cols,
                w->f32 + (size_t)i * (size_t)step * (size_t)n_cols,
                (size_t)n_rows * (size_t)n_cols * sizeof(float));
    }
    desc.data = w->data;
    for (int s = 0; s < CHECK_SIDES; s++) {
        check_require(c->sides[s]->ops->weight_create(c->sides[s], &desc, &w->w[s], &e), e.text);
    }
}

void check_weight_make(struct check *c, struct check_weight *w, enum dtype type, enum ops_role role,
                       int32_t n_rows, int32_t n_cols, float size)
{
    make(c, w, type, role, 1, n_rows, n_cols, size);
}

void check_weight_stack(struct check *c, struct check_weight *w, enum dtype type, int32_t n_stack,
                        int32_t n_rows, int32_t n_cols, float size)
{
    make(c, w, type, OPS_ROLE_MATMUL, n_stack, n_rows, n_cols, size);
}

void check_weight_free(struct check *c, struct check_weight *w)
{
    for (int s = 0; s < CHECK_SIDES && w->data; s++) {
        c->sides[s]->ops->weight_destroy(c->sides[s], &w->w[s]);
    }
    free(w->data);
    free(w->f32);
    *w = (struct check_weight){0};
}
