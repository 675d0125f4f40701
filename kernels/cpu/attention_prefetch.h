/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_ATTENTION_PREFETCH_H
#define PIPIT_KERNELS_CPU_ATTENTION_PREFETCH_H

/* What decode attention asks for while it works on a chunk: lists of blocks for kv_prefetch.h, and a
 * pace. Pages whose parts are whole blocks are asked for a little ahead of reading (skewed); of
 * others the whole next chunk is, while this one is read (abreast). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/kv_prefetch.h"
#include "kernels/ops.h"

enum { ATT_PREFETCH_BLOCKS = 320 /* what is beyond is not asked for */ };

/* KV_CHUNK slots of a head group, fewer at the end. */
struct att_span {
    const struct ops_kv *kv;
    int32_t group;
    int32_t slot0;
    int32_t n_heads; /* that turn each page's logits into weights */
    bool noisy;      /* which a policy then looks at with noise */
};

struct att_prefetch {
    bool on;
    int32_t soft; /* lines to ask for with a page's weights of one head */
    int32_t n;
    struct cpu_kv_prefetch a;
    const uint8_t *block[ATT_PREFETCH_BLOCKS + KV_PREFETCH_ABREAST];
};

/* What to ask for while `now` is read: of itself, `next` (NULL: none) or else `weights` (NULL:
 * none). */
void att_look_ahead(const struct att_span *now, const struct att_span *next, const uint8_t *weights,
                    struct att_prefetch *ret);

/* A thread begins: nobody asked for its first chunk. */
void att_ask_at_once(const struct att_span *first);

static inline void att_ask(struct att_prefetch *a, int32_t n_lines)
{
    if (a->on) {
        kv_prefetch_due(&a->a, (uint32_t)n_lines * KV_PREFETCH_LINE);
    }
}

#endif
