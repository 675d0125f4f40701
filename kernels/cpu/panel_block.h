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

LANES_INLINE int panel_is_k(enum dtype type)
{
    return type == DTYPE_Q4_K || type == DTYPE_Q5_K || type == DTYPE_Q6_K;
}

LANES_INLINE int panel_has_min(enum dtype type)
{
    return type == DTYPE_Q4_1 || type == DTYPE_Q5_1 || type == DTYPE_Q4_K || type == DTYPE_Q5_K;
}

LANES_INLINE int panel_code_bits(enum dtype type)
{
    switch (type) {
    case DTYPE_Q8_0:
        return 8;
    case DTYPE_Q6_K:
        return 6;
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q5_K:
        return 5;
    default:
        return 4;
    }
}

LANES_INLINE int panel_code_bytes(enum dtype type)
{
    int bits = panel_code_bits(type);

    return bits == 8   ? PANEL_BYTES
           : bits == 6 ? PANEL_NIBBLES + PANEL_HIGH2
           : bits == 5 ? PANEL_NIBBLES + PANEL_HIGH1
                       : PANEL_NIBBLES;
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
    lf sc0; /* Q6_K: beside d, of columns 0..15 */
    lf sc1; /* and 16..31 */
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
    return w + PANEL_SUPER_HEAD;
}

/* Of block b, whose codes lie at w. */
LANES_INLINE struct panel_factors panel_factors_of(enum dtype type, const uint8_t *w, int b,
                                                   const struct panel_super *s)
{
    struct panel_factors f = {s->d, s->d, s->d, s->d};

    if (type == DTYPE_Q6_K) {
        const int8_t *sc = (const int8_t *)s->head + PANEL_SUPER_SC + 32 * (b % PANEL_SUPER);

        f.sc0 = lf_of_int(li_of_i8(sc));
        f.sc1 = lf_of_int(li_of_i8(sc + 16));
    } else if (panel_is_k(type)) {
        const uint8_t *sc = s->head + 16 * (b % PANEL_SUPER);

        f.d = lf_mul(s->d, lf_of_int(li_of_u8(sc + PANEL_SUPER_SC)));
        f.m = lf_sub(lf_set1(0), lf_mul(s->dmin, lf_of_int(li_of_u8(sc + PANEL_SUPER_MN))));
    } else {
        const uint8_t *scales = w + panel_code_bytes(type);

        f.d = lf_of_f16(scales);
        f.m = panel_has_min(type) ? lf_of_f16(scales + PANEL_SCALES) : f.d;
    }
    return f;
}

#endif
