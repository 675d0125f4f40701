/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_PANEL_H
#define PIPIT_KERNELS_CPU_PANEL_H

/* How the cpu backend holds weights and activations: the one layout that packing, the plain C
 * kernels and all x86 kernels share, so that any variant runs on the same packed weight.
 *
 * A weight is a sequence of panels of 16 rows (the last is padded with zero rows). Inside a panel
 * the lane is the row: one 64-byte vector holds, for each of 16 rows, 4 consecutive columns of one
 * byte each. Activations then enter as the broadcast 32-bit operand of a dot-product instruction:
 * no shuffles, no horizontal sums, and each row's sum over blocks is one chain in fixed order.
 *
 * Quantised panels are blocks of 32 columns, b ascending ("vector j": columns 4j..4j+3 of the
 * block):
 *
 *     nibbles  4 vectors; low nibble of vector j: columns 4j.., high: columns 16 + 4j..    256 B
 *     high1    one vector of dwords: bit j + 8i of row r's dword: column 4j + i              64 B
 *     high2    two such vectors with 2 bits, dword h: columns 16h..16h+15, bits 2j+8i, j<4  128 B
 *     bytes    8 vectors of unsigned bytes                                                 512 B
 *     d, m     f16[16] scales and minima, one a row                                    each 32 B
 *
 *     Q4_0  nibbles d           288     w = d (q - 8)
 *     Q4_1  nibbles d m         320     w = d q + m
 *     Q5_0  nibbles high1 d     352     w = d (q - 16)
 *     Q5_1  nibbles high1 d m   384     w = d q + m
 *     Q8_0  bytes d             544     w = d (q - 128)
 *     IQ4_NL nibbles d          288     w = d table[q]  (quant/codebook.h)
 *     MXFP4 nibbles d           288     the same; d bf16[16], because f16 lacks its range
 *
 * K-quants are super-blocks of 8 blocks: a head of 320 bytes (d f16[16], dmin f16[16], then for
 * Q4_K and Q5_K sc u8[8][16], mn u8[8][16]; for Q6_K sc i8[16][16], one row of 16 per 16 columns),
 * then 8 times the bits:
 *
 *     Q4_K  320 + 8 * nibbles           2368     w = (d sc) q - (dmin mn)
 *     Q5_K  320 + 8 * (nibbles high1)   2880     the same
 *     Q6_K  320 + 8 * (nibbles high2)   3392     w = d sc (q - 32)
 *
 * Q2_K and Q3_K hold codes of two bits, and Q3_K the third one beside:
 *
 *     crumbs   2 vectors; bits 2i of vector j (i < 4, j < 2): columns 8i + 4j..             128 B
 *     high1    as above, of bit 2
 *
 *     Q2_K  576 + 8 * crumbs            1600     w = (d sc) q - (dmin mn); sc, mn u8[16][16]
 *     Q3_K  320 + 8 * (crumbs high1)    1856     w = (d sc) (q - 4); head as of Q6_K
 *
 * IQ4_XS is a super-block as well, its head 192 bytes: d f16[16], 32 bytes unused so that blocks
 * begin at whole vectors, sc i8[8][16].
 *
 *     IQ4_XS 192 + 8 * nibbles          2240     w = (d sc) table[q]
 *
 * Nothing is rounded: every element decodes to the bits that quant/ gives.
 *
 * Float panels are column after column: F32 f32[16], F16 f16[16]; BF16 goes by pairs of columns,
 * dword of row r = column 2i in the low half, 2i + 1 in the high half (odd counts padded with 0).
 *
 * Activations for quantised weights: blocks of 32 int8 with one f32 scale. nsum are minus the sum
 * of q, and of its first half: shifted left by log2 of a type's zero point they start the integer
 * dot product, so that (q_w - zero) . q_a is exact in int32. */

#include <stdint.h>

#include "quant/dtype.h"

enum {
    PANEL_ROWS = 16,
    PANEL_COLS = 32,          /* columns of a block */
    PANEL_NIBBLES = 256,
    PANEL_CRUMBS = 128,
    PANEL_HIGH1 = 64,
    PANEL_HIGH2 = 128,
    PANEL_BYTES = 512,
    PANEL_SCALES = 32,        /* f16[16] */
    PANEL_SUPER = 8,          /* blocks of a K-quant super-block */
    PANEL_SUPER_HEAD = 320,
    PANEL_SUPER_SC = 64,      /* offset of sc in the head */
    PANEL_SUPER_MN = 64 + 128,
    PANEL_XS_HEAD = 64 + 128, /* the head of IQ4_XS */
    PANEL_Q2_MN = 64 + 256,   /* of Q2_K: offset of mn */
    PANEL_Q2_HEAD = 64 + 512,
};

/* One block of one token's activations: x[k] is about d * q[k]. Not finite: d is NaN, q is 0. */
struct panel_act {
    float d;
    float s;          /* d * sum of q */
    int32_t nsum[2];  /* minus the sum of q[0..31], of q[0..15] */
    int8_t q[32];     /* -127..127 */
};

_Static_assert(sizeof(struct panel_act) == 48, "a stream of whole 16-byte units");

/* Bytes of one panel of n_cols columns (whole blocks of the type); 0 for an unknown type. */
static inline uint64_t panel_bytes(enum dtype type, uint64_t n_cols)
{
    switch (type) {
    case DTYPE_F32:
        return n_cols * 64;
    case DTYPE_F16:
        return n_cols * 32;
    case DTYPE_BF16:
        return (n_cols + 1) / 2 * 64;
    case DTYPE_Q4_0:
        return n_cols / 32 * (PANEL_NIBBLES + PANEL_SCALES);
    case DTYPE_Q4_1:
        return n_cols / 32 * (PANEL_NIBBLES + 2 * PANEL_SCALES);
    case DTYPE_IQ4_NL:
    case DTYPE_MXFP4:
        return n_cols / 32 * (PANEL_NIBBLES + PANEL_SCALES);
    case DTYPE_Q5_0:
        return n_cols / 32 * (PANEL_NIBBLES + PANEL_HIGH1 + PANEL_SCALES);
    case DTYPE_Q5_1:
        return n_cols / 32 * (PANEL_NIBBLES + PANEL_HIGH1 + 2 * PANEL_SCALES);
    case DTYPE_Q8_0:
        return n_cols / 32 * (PANEL_BYTES + PANEL_SCALES);
    case DTYPE_Q2_K:
        return n_cols / 256 * (PANEL_Q2_HEAD + PANEL_SUPER * PANEL_CRUMBS);
    case DTYPE_Q3_K:
        return n_cols / 256 * (PANEL_SUPER_HEAD + PANEL_SUPER * (PANEL_CRUMBS + PANEL_HIGH1));
    case DTYPE_Q4_K:
        return n_cols / 256 * (PANEL_SUPER_HEAD + PANEL_SUPER * PANEL_NIBBLES);
    case DTYPE_Q5_K:
        return n_cols / 256 * (PANEL_SUPER_HEAD + PANEL_SUPER * (PANEL_NIBBLES + PANEL_HIGH1));
    case DTYPE_Q6_K:
        return n_cols / 256 * (PANEL_SUPER_HEAD + PANEL_SUPER * (PANEL_NIBBLES + PANEL_HIGH2));
    case DTYPE_IQ4_XS:
        return n_cols / 256 * (PANEL_XS_HEAD + PANEL_SUPER * PANEL_NIBBLES);
    }
    return 0;
}

#endif
