/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_PANEL_BLOCK_H
#define PIPIT_KERNELS_CPU_PANEL_BLOCK_H

/* A quantised panel's block as the kernels read it (panel.h has the layout): where it ends, and by
 * what its 16 rows' codes are multiplied. Comes after a set of lanes. */

#include <stdint.h>

#ifndef LANES_FN
#include "kernels/cpu/lanes_c.h"
#endif
#include "kernels/cpu/panel.h"
#include "quant/codebook.h"

LANES_INLINE int panel_is_k(enum dtype type)
{
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q4_K || type == DTYPE_Q5_K ||
           type == DTYPE_Q6_K || type == DTYPE_IQ4_XS;
}

LANES_INLINE int panel_has_min(enum dtype type)
{
    return type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
}

/* Has each half of a block scales of its own? */
LANES_INLINE int panel_has_halves(enum dtype type)
{
    return type == DTYPE_Q2_K || type == DTYPE_Q3_K || type == DTYPE_Q6_K;
}

/* Are codes places in a table? */
LANES_INLINE int panel_is_looked_up(enum dtype type)
{
    return type == DTYPE_IQ4_NL || type == DTYPE_IQ4_XS || type == DTYPE_MXFP4;
}

/* The tables, with the zero point of panel_zero_log2() added: unsigned bytes of code_bits bits. */
LANES_INLINE const uint8_t *panel_table(enum dtype type)
{
#define PANEL_OF_IQ4(v) ((v) + 128)
#define PANEL_OF_MXFP4(v) ((v) + 16)
    static const uint8_t iq4[16] = {CODEBOOK_IQ4(PANEL_OF_IQ4)};
    static const uint8_t mxfp4[16] = {CODEBOOK_MXFP4(PANEL_OF_MXFP4)};
#undef PANEL_OF_IQ4
#undef PANEL_OF_MXFP4

    return type == DTYPE_MXFP4 ? mxfp4 : iq4;
}

/* Of what is multiplied. */
LANES_INLINE int panel_code_bits(enum dtype type)
{
    switch (type) {
    case DTYPE_Q8_0:
    case DTYPE_IQ4_NL:
    case DTYPE_IQ4_XS:
        return 8;
    case DTYPE_Q6_K:
        return 6;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
    case DTYPE_MXFP4:
        return 5;
    case DTYPE_Q3_K:
        return 3;
    case DTYPE_Q2_K:
        return 2;
    default:
        return 4;
    }
}

LANES_INLINE int panel_code_bytes(enum dtype type)
{
    int bits = panel_code_bits(type);

    return panel_is_looked_up(type) ? PANEL_NIBBLES
           : bits == 8               ? PANEL_BYTES
           : bits == 6               ? PANEL_NIBBLES + PANEL_HIGH2
           : bits == 5               ? PANEL_NIBBLES + PANEL_HIGH1
           : bits == 3               ? PANEL_CRUMBS + PANEL_HIGH1
           : bits == 2               ? PANEL_CRUMBS
                                     : PANEL_NIBBLES;
}

LANES_INLINE int panel_head_bytes(enum dtype type)
{
    return type == DTYPE_IQ4_XS ? PANEL_XS_HEAD
           : type == DTYPE_Q2_K ? PANEL_Q2_HEAD
                                : PANEL_SUPER_HEAD;
}

/* Bytes from block to block, a super-block's head not counted. */
LANES_INLINE int panel_step(enum dtype type)
{
    return panel_code_bytes(type) +
           (panel_is_k(type) ? 0 : (panel_has_min(type) ? 2 : 1) * PANEL_SCALES);
}

/* The head of the super-block that is being read (K-quants). */
struct panel_super {
    const uint8_t *head;
    lf d;
    lf dmin;
};

struct panel_factors {
    lf d;   /* of the codes */
    lf m;   /* of the activations' sums, where the type has a minimum */
    lf sc0; /* panel_has_halves(): beside d, of columns 0..15 */
    lf sc1; /* and 16..31 */
    lf mn0; /* Q2_K: beside m, the same */
    lf mn1;
};

/* Block b begins at w, or a super-block's head does: then the block lies behind it. Returns the
 * block's codes. */
LANES_INLINE const uint8_t *panel_enter(enum dtype type, const uint8_t *w, int b,
                                        struct panel_super *s)
{
    if (!panel_is_k(type) || b % PANEL_SUPER != 0) {
        return w;
    }
    *s = (struct panel_super){w, lf_of_f16(w), lf_of_f16(w + PANEL_SCALES)};
    return w + panel_head_bytes(type);
}

/* Of block b, whose codes lie at w. */
LANES_INLINE struct panel_factors panel_factors_of(enum dtype type, const uint8_t *w, int b,
                                                   const struct panel_super *s)
{
    struct panel_factors f = {s->d, s->d, s->d, s->d, s->d, s->d};

    if (type == DTYPE_Q2_K) {
        const uint8_t *sc = s->head + PANEL_SUPER_SC + 32 * (b % PANEL_SUPER);
        const uint8_t *mn = s->head + PANEL_Q2_MN + 32 * (b % PANEL_SUPER);

        f.m = s->dmin;
        f.sc0 = lf_of_int(li_of_u8(sc));
        f.sc1 = lf_of_int(li_of_u8(sc + 16));
        f.mn0 = lf_of_int(li_of_u8(mn));
        f.mn1 = lf_of_int(li_of_u8(mn + 16));
    } else if (panel_has_halves(type)) {
        const int8_t *sc = (const int8_t *)s->head + PANEL_SUPER_SC + 32 * (b % PANEL_SUPER);

        f.sc0 = lf_of_int(li_of_i8(sc));
        f.sc1 = lf_of_int(li_of_i8(sc + 16));
    } else if (type == DTYPE_IQ4_XS) {
        const int8_t *sc = (const int8_t *)s->head + PANEL_SUPER_SC + 16 * (b % PANEL_SUPER);

        f.d = lf_mul(s->d, lf_of_int(li_of_i8(sc)));
    } else if (panel_is_k(type)) {
        const uint8_t *sc = s->head + 16 * (b % PANEL_SUPER);

        f.d = lf_mul(s->d, lf_of_int(li_of_u8(sc + PANEL_SUPER_SC)));
        f.m = lf_sub(lf_set1(0), lf_mul(s->dmin, lf_of_int(li_of_u8(sc + PANEL_SUPER_MN))));
    } else {
        const uint8_t *scales = w + panel_code_bytes(type);

        f.d = type == DTYPE_MXFP4 ? lf_of_bf16(scales) : lf_of_f16(scales);
        f.m = panel_has_min(type) ? lf_of_f16(scales + PANEL_SCALES) : f.d;
    }
    return f;
}

#endif
