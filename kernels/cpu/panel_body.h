/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_PANEL_BODY_H
#define PIPIT_KERNELS_CPU_PANEL_BODY_H

/* The panel kernels, written once over the lanes of kernels/cpu/lanes_c.h. A file that offers them
 * for an instruction set includes that set's lanes first, then this, and calls panel_body_set().
 *
 * A tile is one panel (16 rows) by up to LANES_TILE tokens. A quantised block is unpacked into
 * eight vectors that stay in registers while the tile's tokens pass; each token's block is one
 * integer dot product (exact), then
 *
 *     acc = fma(m, s_a, acc)                 types with a minimum
 *     acc = fma((float)dot, d_w * d_a, acc)
 *
 * in that order for every tile size and lane type, so a token's bits do not depend on its company.
 * Float types keep four chains, column k in chain k % 4, for the latency of fma. */

#include <stdint.h>

#ifndef LANES_FN
#include "kernels/cpu/lanes_c.h"
#endif
#include "kernels/cpu/panel_block.h"
#include "kernels/cpu/table.h"
#include "kernels/cpu/unroll.h"

/* Asks for what comes after when bytes [at, at + n) are read. One ascending stream of prefetches
 * keeps no more lines in flight than an L1 has fill buffers; a core's L2 follows many streams at
 * once, one a 4 KiB page. So the 64 lines of the next pages are asked for in turn: 8 from each of
 * the next 8 pages, each 8 following those that the pages before asked for. On a Sapphire Rapids
 * Xeon two threads read 27 GB/s this way, 18 with one stream 8 KiB ahead.
 *
 * Each 512 bytes read ask for eight lines, one of each page: their places differ by a constant.
 * To find the place of each line by itself takes more instructions than to multiply what is in it.
 */
LANES_INLINE void panel_ask(const uint8_t *at, size_t n, const struct cpu_acts *a)
{
    const uint8_t *lot = (const uint8_t *)(((uintptr_t)at + 511) & ~(uintptr_t)511);

    for (; lot < at + n; lot += 512) {
        uintptr_t x = (uintptr_t)lot;
        const uint8_t *top =
            (const uint8_t *)((x & ~(uintptr_t)4095) + 8 * 4096 + (x >> 9 & 7) * 64);

        if (top < a->end) {
            UNROLL_LOOP
            for (int i = 0; i < 8; i++) {
                lanes_prefetch(top - (4096 - 512) * i);
            }
        } else {
            for (int i = 0; i < 8; i++) {
                const uint8_t *to = top - (4096 - 512) * i;

                lanes_prefetch(to >= a->end ? to + a->jump : to);
            }
        }
    }
}

/* Log2 of what is taken from a code, or -1. */
LANES_INLINE int panel_zero_log2(enum dtype type)
{
    switch (type) {
    case DTYPE_Q4_0:
        return 3;
    case DTYPE_Q5_0:
        return 4;
    case DTYPE_MXFP4:
        return 4;
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return LANES_SIGNED8 ? -1 : 7;
    case DTYPE_Q6_K:
        return 5;
    case DTYPE_Q3_K:
        return 2;
    default:
        return -1;
    }
}

/* The same of Q2_K and Q3_K. */
UNROLL_INLINE void panel_unpack_crumbs(enum dtype type, const uint8_t *w, li u[8])
{
    const li low = li_set1_8(3);
    const li four = li_set1_8(4);

    UNROLL_LOOP
    for (int j = 0; j < 8; j++) {
        li v = li_load(w + 64 * (j % 2));

        u[j] = li_and(j < 2 ? v : li_shr(v, j / 2 * 2), low);
    }
    if (type == DTYPE_Q3_K) {
        li h = li_load(w + PANEL_CRUMBS);

        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = li_or(u[j], li_and(j <= 2 ? li_shl(h, 2 - j) : li_shr(h, j - 2), four));
        }
    }
}

/* The codes of one block: u[j] = columns 4j..4j+3 of 16 rows. */
UNROLL_INLINE void panel_unpack(enum dtype type, const uint8_t *w, li u[8])
{
    const int bits = panel_code_bits(type);
    const li low = li_set1_8(15);
    const li one = li_set1_8(16);
    const li two = li_set1_8(48);

    if (type == DTYPE_Q8_0) {
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = li_load(w + 64 * j);
        }
        return;
    }
    if (bits <= 3) {
        panel_unpack_crumbs(type, w, u);
        return;
    }
    UNROLL_LOOP
    for (int j = 0; j < 4; j++) {
        li v = li_load(w + 64 * j);

        u[j] = li_and(v, low);
        u[j + 4] = li_and(li_shr(v, 4), low);
    }
    if (panel_is_looked_up(type)) {
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = li_lookup(panel_table(type), u[j]);
        }
    } else if (bits == 5) {
        li h = li_load(w + PANEL_NIBBLES);

        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            u[j] = li_or(u[j], li_and(j <= 4 ? li_shl(h, 4 - j) : li_shr(h, j - 4), one));
        }
    } else if (bits == 6) {
        UNROLL_LOOP
        for (int j = 0; j < 8; j++) {
            li h = li_load(w + PANEL_NIBBLES + 64 * (j / 4));
            int at = 2 * (j % 4);

            u[j] = li_or(u[j], li_and(at <= 4 ? li_shl(h, 4 - at) : li_shr(h, at - 4), two));
        }
    }
}

/* n tokens' blocks of a type with one scale a block; `a` is the first's, lda blocks apart. */
UNROLL_INLINE void panel_blocks(enum dtype type, const li u[8], lf wd, lf wm,
                                const struct panel_act *a, size_t lda, int n, lf *acc)
{
    int zero = panel_zero_log2(type);
    li dot[LANES_TILE];

    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        const struct panel_act *at = a + (size_t)t * lda;

        dot[t] = zero >= 0 ? li_shl(li_set1(at->nsum[0]), zero) : li_set1(0);
    }
    li_dots(dot, u, a->q, lda * sizeof(*a), n, 8, panel_code_bits(type));
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        const struct panel_act *at = a + (size_t)t * lda;

        if (panel_has_min(type)) {
            acc[t] = lf_fma(wm, lf_set1(at->s), acc[t]);
        }
        acc[t] = lf_fma(lf_of_int(dot[t]), lf_mul(wd, lf_set1(at->d)), acc[t]);
    }
}

/* Each half of the block has its own scale, of Q2_K its own minimum, too. */
UNROLL_INLINE void panel_halves(enum dtype type, const li u[8], const struct panel_factors *w,
                                const struct panel_act *a, size_t lda, int n, lf *acc)
{
    const int zero = panel_zero_log2(type);
    const int bits = panel_code_bits(type);
    li dot0[LANES_TILE];
    li dot1[LANES_TILE];

    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        const struct panel_act *at = a + (size_t)t * lda;
        li n0 = li_set1(at->nsum[1]);

        dot0[t] = zero >= 0 ? li_shl(n0, zero) : li_set1(0);
        dot1[t] = zero >= 0 ? li_shl(li_sub(li_set1(at->nsum[0]), n0), zero) : li_set1(0);
    }
    li_dots(dot0, u, a->q, lda * sizeof(*a), n, 4, bits);
    li_dots(dot1, u + 4, a->q + 16, lda * sizeof(*a), n, 4, bits);
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        const struct panel_act *at = a + (size_t)t * lda;
        lf d = lf_set1(at->d);
        lf f = lf_fma(lf_of_int(dot1[t]), w->sc1, lf_mul(lf_of_int(dot0[t]), w->sc0));

        if (type == DTYPE_Q2_K) { /* the sums are negative */
            lf s0 = lf_set1((float)at->nsum[1]);
            lf s1 = lf_set1((float)(at->nsum[0] - at->nsum[1]));

            acc[t] = lf_fma(lf_fma(s1, w->mn1, lf_mul(s0, w->mn0)), lf_mul(w->m, d), acc[t]);
        }
        acc[t] = lf_fma(f, lf_mul(w->d, d), acc[t]);
    }
}

/* few: weights come from memory; `from` tells where their stream goes. */
UNROLL_INLINE void panel_tile(enum dtype type, const uint8_t *w, int n_blocks,
                              const struct panel_act *a, size_t lda, int n, int few,
                              const struct cpu_acts *from, float *out)
{
    const int step = panel_step(type);
    struct panel_super super = {w, lf_set1(0), lf_set1(0)};
    lf acc[LANES_TILE];

    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        acc[t] = lf_set1(0);
    }
    for (int b = 0; b < n_blocks; b++, w += step, a++) {
        const uint8_t *begin = w;
        struct panel_factors f;
        li u[8];

        w = panel_enter(type, w, b, &super);
        if (few) {
            panel_ask(begin, (size_t)(w - begin) + (size_t)step, from);
        }
        panel_unpack(type, w, u);
        f = panel_factors_of(type, w, b, &super);
        UNROLL_LOOP
        for (int t = 0; t < n; t += LANES_ABREAST) {
            const struct panel_act *at = a + (size_t)t * lda;
            int m = n - t < LANES_ABREAST ? n - t : LANES_ABREAST;

            if (panel_has_halves(type)) {
                panel_halves(type, u, &f, at, lda, m, acc + t);
            } else {
                panel_blocks(type, u, f.d, f.m, at, lda, m, acc + t);
            }
        }
    }
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        lf_store(out + 16 * t, acc[t]);
    }
}

/* The tokens that no whole tile took, as one more tile: a few rows of whatever lies behind the last
 * token's cost less than unpacking the panel twice. Their results lie behind the last one's, where
 * nobody looks. */
UNROLL_INLINE void panel_rest(enum dtype type, const uint8_t *w, int n_blocks,
                              const struct panel_act *q, size_t ld, int32_t n, int few,
                              const struct cpu_acts *a, float *out)
{
    const int half = LANES_TILE > 8 ? 8 : 1;

    _Static_assert(LANES_TILE == 4 || LANES_TILE == 16, "n is 1..3, or 1..15");
    if (n > 8) {
        panel_tile(type, w, n_blocks, q, ld, LANES_TILE, few, a, out);
    } else if (n > 4) {
        panel_tile(type, w, n_blocks, q, ld, half, few, a, out);
    } else if (n > 2) {
        panel_tile(type, w, n_blocks, q, ld, 4, few, a, out);
    } else if (n == 2) {
        panel_tile(type, w, n_blocks, q, ld, 2, few, a, out);
    } else if (n == 1) {
        panel_tile(type, w, n_blocks, q, ld, 1, few, a, out);
    }
}

UNROLL_INLINE void panel_quant(enum dtype type, const uint8_t *w, const struct cpu_acts *a,
                               int32_t n, float *out)
{
    const int n_blocks = a->n_cols / PANEL_COLS;
    const struct panel_act *q = a->q;
    size_t ld = a->ldq;

    if (n < LANES_TILE) {
        panel_rest(type, w, n_blocks, q, ld, n, 1, a, out);
        return;
    }
    panel_tile(type, w, n_blocks, q, ld, LANES_TILE, 1, a, out);
    for (n -= LANES_TILE; n >= LANES_TILE; n -= LANES_TILE) {
        q += LANES_TILE * ld;
        out += 16 * LANES_TILE;
        panel_tile(type, w, n_blocks, q, ld, LANES_TILE, 0, a, out);
    }
    panel_rest(type, w, n_blocks, q + LANES_TILE * ld, ld, n, 0, a, out + 16 * LANES_TILE);
}

/* Columns k and, for BF16, k + 1 (k even) of a float panel. */
LANES_INLINE lf panel_column(enum dtype type, const uint8_t *w, int k)
{
    if (type == DTYPE_F32) {
        return lf_load((const float *)(const void *)w + 16 * (size_t)k);
    }
    if (type == DTYPE_F16) {
        return lf_of_f16(w + 32 * (size_t)k);
    }
    li pair = li_load(w + 64 * (size_t)(k / 2));
    return lf_bits(k % 2 ? li_and(pair, li_set1((int32_t)0xffff0000u)) : li_shl(pair, 16));
}

UNROLL_INLINE void panel_tile_float(enum dtype type, const uint8_t *w, int n_cols, const float *x,
                                    size_t ldx, int n, int few, const struct cpu_acts *from,
                                    float *out)
{
    const size_t bytes = type == DTYPE_F32 ? 256 : 128; /* of four columns */
    lf acc[4][4];
    int k = 0;

    UNROLL_LOOP
    for (int i = 0; i < 4 * n; i++) {
        acc[i / 4][i % 4] = lf_set1(0);
    }
    for (; k + 4 <= n_cols; k += 4) {
        if (few) {
            panel_ask(w + (size_t)(k / 4) * bytes, bytes, from);
        }
        UNROLL_LOOP
        for (int c = 0; c < 4; c++) {
            lf v = panel_column(type, w, k + c);

            UNROLL_LOOP
            for (int t = 0; t < n; t++) {
                acc[t][c] = lf_fma(v, lf_set1(x[(size_t)t * ldx + k + c]), acc[t][c]);
            }
        }
    }
    for (int c = 0; k + c < n_cols; c++) {
        lf v = panel_column(type, w, k + c);

        for (int t = 0; t < n; t++) {
            float xk = x[(size_t)t * ldx + k + c];
            lf *to = c == 0 ? &acc[t][0] : c == 1 ? &acc[t][1] : &acc[t][2];

            *to = lf_fma(v, lf_set1(xk), *to);
        }
    }
    UNROLL_LOOP
    for (int t = 0; t < n; t++) {
        lf_store(out + 16 * t, lf_add(lf_add(acc[t][0], acc[t][1]), lf_add(acc[t][2], acc[t][3])));
    }
}

UNROLL_INLINE void panel_float(enum dtype type, const uint8_t *w, const struct cpu_acts *a,
                               int32_t n, float *out)
{
    const float *x = a->x;

    if (n == 1) {
        panel_tile_float(type, w, a->n_cols, x, a->ldx, 1, 1, a, out);
        return;
    }
    for (; n >= 4; n -= 4, x += 4 * a->ldx, out += 16 * 4) {
        panel_tile_float(type, w, a->n_cols, x, a->ldx, 4, 0, a, out);
    }
    if (n >= 2) {
        panel_tile_float(type, w, a->n_cols, x, a->ldx, 2, 0, a, out);
        x += 2 * a->ldx;
        out += 16 * 2;
        n -= 2;
    }
    if (n >= 1) {
        panel_tile_float(type, w, a->n_cols, x, a->ldx, 1, 0, a, out);
    }
}

#define PANEL_DEFINE(slot, how, type)                                                              \
    static void LANES_FN(slot)(const uint8_t *panel, const struct cpu_acts *a, int32_t n,          \
                               float *out)                                                         \
    {                                                                                              \
        how(type, panel, a, n, out);                                                               \
    }

PANEL_DEFINE(panel_f32, panel_float, DTYPE_F32)
PANEL_DEFINE(panel_f16, panel_float, DTYPE_F16)
PANEL_DEFINE(panel_bf16, panel_float, DTYPE_BF16)
PANEL_DEFINE(panel_q4_0, panel_quant, DTYPE_Q4_0)
PANEL_DEFINE(panel_q4_1, panel_quant, DTYPE_Q4_1)
PANEL_DEFINE(panel_q5_0, panel_quant, DTYPE_Q5_0)
PANEL_DEFINE(panel_q5_1, panel_quant, DTYPE_Q5_1)
PANEL_DEFINE(panel_q8_0, panel_quant, DTYPE_Q8_0)
PANEL_DEFINE(panel_q2_k, panel_quant, DTYPE_Q2_K)
PANEL_DEFINE(panel_q3_k, panel_quant, DTYPE_Q3_K)
PANEL_DEFINE(panel_q4_k, panel_quant, DTYPE_Q4_K)
PANEL_DEFINE(panel_q5_k, panel_quant, DTYPE_Q5_K)
PANEL_DEFINE(panel_q6_k, panel_quant, DTYPE_Q6_K)
PANEL_DEFINE(panel_iq4_nl, panel_quant, DTYPE_IQ4_NL)
PANEL_DEFINE(panel_iq4_xs, panel_quant, DTYPE_IQ4_XS)
PANEL_DEFINE(panel_mxfp4, panel_quant, DTYPE_MXFP4)

#undef PANEL_DEFINE

static inline void panel_body_set(struct cpu_table *t)
{
    LANES_SET(t, panel_f32);
    LANES_SET(t, panel_f16);
    LANES_SET(t, panel_bf16);
    LANES_SET(t, panel_q4_0);
    LANES_SET(t, panel_q4_1);
    LANES_SET(t, panel_q5_0);
    LANES_SET(t, panel_q5_1);
    LANES_SET(t, panel_q8_0);
    LANES_SET(t, panel_q2_k);
    LANES_SET(t, panel_q3_k);
    LANES_SET(t, panel_q4_k);
    LANES_SET(t, panel_q5_k);
    LANES_SET(t, panel_q6_k);
    LANES_SET(t, panel_iq4_nl);
    LANES_SET(t, panel_iq4_xs);
    LANES_SET(t, panel_mxfp4);
}

#endif
