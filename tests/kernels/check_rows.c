/* SPDX-License-Identifier: Apache-2.0 */
/* embed (every weight type, repeated and last rows, scaled), gather (repeats, any order), mul and
 * softcap (saturated and tiny values). embed and gather are copies: bit for bit. */

#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = CPU_AVX2 | CPU_AVX512 | CPU_NEON;
const struct backend_limits check_limits = {
    .max_rows = 64,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 1024,
    .max_outputs = 128,
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 64,
};

static void embed(struct check *c, enum dtype type, int32_t n_cols, float scale)
{
    enum { N = 9, VOCAB = 37, LD = 1024 };
    static const int32_t ids[N] = {0, 36, 36, 5, 0, 17, 16, 35, 1};
    struct check_weight w;
    struct check_buf *y;
    struct ops_embed p = {.rows = {N, 4}, .ids = ids, .scale = scale, .ld = LD};

    if (!check_case(c, "embed %s cols %d", dtype_info(type)->name, n_cols)) {
        return;
    }
    check_weight_make(c, &w, type, OPS_ROLE_EMBED, VOCAB, n_cols, 1);
    y = check_buf(c, "y", N * LD * 4);
    check_fill(c, y, 1);
    while (check_call(c)) {
        p.w = &w.w[c->side];
        p.y = check_dev(c, y);
        c->err = c->ops->embed(c->be, &p);
    }
    check_bits(c, "embed", y->out[1], y->out[0], y->bytes);
    for (int i = 0; i < N; i++) {
        float *want = malloc((size_t)n_cols * 4);

        for (int32_t j = 0; j < n_cols; j++) {
            want[j] = w.f32[(size_t)ids[i] * (size_t)n_cols + (size_t)j] * scale;
        }
        check_bits(c, "reference's row", y->out[0] + (size_t)i * LD * 4, want, (size_t)n_cols * 4);
        free(want);
    }
    check_weight_free(c, &w);
}

static void gather(struct check *c, int32_t n_cols)
{
    static const int32_t index[] = {3, 0, 3, 7, 1};
    struct check_buf *x;
    struct check_buf *y;
    struct ops_gather p = {
        .index = index, .n_rows = 5, .n_cols = n_cols, .ldx = n_cols + 2, .ldy = n_cols + 1};

    if (!check_case(c, "gather cols %d", n_cols)) {
        return;
    }
    x = check_buf(c, "x", 8 * (size_t)p.ldx * 4);
    y = check_buf(c, "y", 5 * (size_t)p.ldy * 4);
    check_fill(c, x, 1);
    check_fill(c, y, 1);
    while (check_call(c)) {
        p.x = check_dev(c, x);
        p.y = check_dev(c, y);
        c->err = c->ops->gather(c->be, &p);
    }
    check_bits(c, "gather", y->out[1], y->out[0], y->bytes);
    for (int i = 0; i < 5; i++) {
        check_bits(c, "reference's row", y->out[0] + (size_t)i * (size_t)p.ldy * 4,
                   x->init + (size_t)index[i] * (size_t)p.ldx * 4, (size_t)n_cols * 4);
    }
}

static void mul(struct check *c, int32_t n_cols, bool by_row)
{
    struct check_buf *x;
    struct check_buf *y;
    struct ops_mul p = {
        .rows = {11, 3}, .ldx = n_cols + 3, .ldy = n_cols + 9, .n_cols = n_cols, .scale = 0.7071f};

    if (!check_case(c, "mul cols %d%s", n_cols, by_row ? " by rows" : "")) {
        return;
    }
    x = check_buf(c, "x", 11 * (size_t)p.ldx * 4);
    y = check_buf(c, "y", 11 * (size_t)p.ldy * 4);
    check_fill(c, x, 3);
    check_fill(c, y, 3);
    while (check_call(c)) {
        p.x = by_row ? check_dev(c, x) : NULL;
        p.y = check_dev(c, y);
        c->err = c->ops->mul(c->be, &p);
    }
    check_bits(c, "mul", y->out[1], y->out[0], y->bytes);
    for (int32_t i = 0; i < 11 * p.ldy;
         i++) { /* the definition, once more, and nothing beside it */
        const float *v = (const float *)(const void *)y->init;
        const float *u = (const float *)(const void *)x->init;
        int32_t col = i % p.ldy;
        float want = v[i];

        if (col < n_cols) {
            want = (by_row ? want * u[i / p.ldy * p.ldx + col] : want) * p.scale;
        }
        check_bits(c, "by hand", y->out[0] + (size_t)i * 4, (const uint8_t *)&want, 4);
    }
}

static void softcap(struct check *c, int32_t n_cols)
{
    struct check_buf *x;
    struct ops_softcap p = {.n_rows = 3, .n_cols = n_cols, .ld = n_cols + 5, .cap = 30};
    float *f;

    if (!check_case(c, "softcap cols %d", n_cols)) {
        return;
    }
    x = check_buf(c, "x", 3 * (size_t)p.ld * 4);
    check_fill(c, x, 40);
    f = (float *)(void *)x->init;
    f[0] = 1e30f;
    f[n_cols - 1] = -1e30f;
    f[n_cols / 2] = 1e-20f;
    while (check_call(c)) {
        p.x = check_dev(c, x);
        c->err = c->ops->softcap(c->be, &p);
    }
    check_floats(c, x, 3, p.ld, n_cols, &tol_elementwise);
}

void check_op(struct check *c)
{
    static const enum dtype types[] = {DTYPE_F32,    DTYPE_F16,   DTYPE_BF16, DTYPE_Q4_0,
                                       DTYPE_Q4_1,   DTYPE_Q5_0,  DTYPE_Q5_1, DTYPE_Q8_0,
                                       DTYPE_Q4_K,   DTYPE_Q5_K,  DTYPE_Q6_K, DTYPE_IQ4_NL,
                                       DTYPE_IQ4_XS, DTYPE_MXFP4, DTYPE_Q2_K, DTYPE_Q3_K};

    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        int32_t block = dtype_info(types[i])->block_len;

        if (c->sides[1]->ops->lacks_types >> types[i] & 1) {
            continue;
        }
        embed(c, types[i], block == 1 ? 67 : block, 1);
        embed(c, types[i], block == 1 ? 576 : 3 * block, 24);
    }
    gather(c, 1);
    gather(c, 67);
    mul(c, 1, true);
    mul(c, 77, false);
    mul(c, 256, true);
    softcap(c, 1);
    softcap(c, 77);
    softcap(c, 1024);
}
