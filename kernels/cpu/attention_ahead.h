/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ATTENTION_AHEAD_H
#define PIPIT_KERNELS_CPU_ATTENTION_AHEAD_H

/* What decode attention asks for while it works on a chunk: lists of blocks for kv_ahead.h, and a
 * pace. Pages whose parts are whole blocks are asked for a little ahead of reading (skewed); of
 * others the whole next chunk is, while this one is read (abreast). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/kv_ahead.h"
#include "kernels/ops.h"

enum { ATT_AHEAD_BLOCKS = 320 /* what is beyond is not asked for */ };

/* KV_CHUNK slots of a head group, fewer at the end. */
struct att_span {
    const struct ops_kv *kv;
    int32_t group;
    int32_t slot0;
    int32_t n_heads; /* that turn each page's logits into weights */
    bool observed;   /* which a policy then looks at */
};

struct att_ahead {
    bool on;
    int32_t soft; /* lines to ask for with a page's weights of one head */
    int32_t n;
    struct cpu_kv_ahead a;
    const uint8_t *block[ATT_AHEAD_BLOCKS + KV_AHEAD_ABREAST];
};

/* What to ask for while `now` is read: of itself, `next` (NULL: none) or else `weights` (NULL:
 * none). */
void att_look_ahead(const struct att_span *now, const struct att_span *next, const uint8_t *weights,
                    struct att_ahead *ret);

/* A thread begins: nobody asked for its first chunk. */
void att_ask_at_once(const struct att_span *first);

static inline void att_ask(struct att_ahead *a, int32_t n_lines)
{
    if (a->on) {
        kv_ahead_due(&a->a, (uint32_t)n_lines * KV_AHEAD_LINE);
    }
}

#endif
