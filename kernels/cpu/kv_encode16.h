/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_ENCODE16_H
#define PIPIT_KERNELS_CPU_KV_ENCODE16_H

/* K or V of one head, of up to 16 slots, encoded together: 4 bits, and keys in 4 bits or fp8 that
 * are rounded for their queries (kernels/kv_round.h). To the bits of each alone. */

#include <stddef.h>

#include "kernels/cpu/table.h"
#include "kernels/ops.h"

enum { CPU_KV_ENCODE16 = 16 };

struct cpu_kv_encode16 {
    enum ops_kv_type type;
    const float *carry; /* (n, n), or NULL (4 bits) */
    float *x;           /* (n, 16); this and the next are scratch */
    float *step;        /* (n / 32 + 1, 16) */
    float *inverse;     /* the same */
    float *head;        /* (n) */
    uint8_t *codes;     /* (n, 16) */
    int32_t n;          /* dims; of 4 bits whole blocks */
    int32_t n_heads;    /* that wait */
};

/* Floats of scratch for heads of n dims. */
static inline size_t cpu_kv_encode16_scratch(int32_t n)
{
    return (size_t)n * (CPU_KV_ENCODE16 + 1 + CPU_KV_ENCODE16 / sizeof(float)) +
           2 * CPU_KV_ENCODE16 * (size_t)(n / 32 + 1);
}

struct cpu_kv_encode16 cpu_kv_encode16_begin(enum ops_kv_type type, const float *carry, int32_t n,
                                             float *scratch);

/* Is it what encodes such heads? */
static inline bool cpu_kv_encode16_is(enum ops_kv_type type, const float *carry)
{
    return carry || type == OPS_KV_G4;
}

/* head (n). */
void cpu_kv_encode16_add(struct cpu_kv_encode16 *e, const float *head);
/* Rows of codes, row_bytes apart, and fp8's scales, of all heads that were added; none waits any
 * more. scales: NULL for 4 bits. */
void cpu_kv_encode16_end(const struct cpu_table *t, struct cpu_kv_encode16 *e, uint8_t *dst,
                         size_t row_bytes, uint16_t *scales);

#endif
