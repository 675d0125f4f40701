/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_RECUR_H
#define PIPIT_KERNELS_CPU_TABLE_RECUR_H

/* Inner kernels of recurrent layers (recur.c). All variants give the same bits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { CPU_DELTA_ROWS = 16 };

/* Up to CPU_DELTA_ROWS rows of one head of the delta rule; lengths and gates are worked out. */
struct cpu_delta {
    int32_t n;
    int32_t k_dim;
    int32_t v_dim;      /* a multiple of 16 */
    const float *q;     /* (n, k_dim) */
    const float *k;     /* (n, k_dim) */
    const float *decay; /* (n) */
    const float *beta;  /* (n) */
    const float *v;     /* (n, ldv) */
    float *y;           /* (n, ldy): q S */
    const float *from;  /* (k_dim, v_dim): S before; */
    float *to;          /* and behind, may be the same */
    size_t ldv;
    size_t ldy;
};

typedef void cpu_delta_fn(const struct cpu_delta *d);

/* Up to CPU_DELTA_ROWS rows of one head of a state space; decays and steps are worked out. */
struct cpu_scan {
    int32_t n;
    int32_t k_dim;
    int32_t v_dim;      /* a multiple of 16 */
    const float *b;     /* (n, ldx): k_dim */
    const float *c;     /* (n, ldx): k_dim */
    const float *x;     /* (n, ldx): v_dim */
    const float *decay; /* (n) */
    const float *step;  /* (n) */
    float d;
    float *y;          /* (n, ldy): c S + d x */
    const float *from; /* (k_dim, v_dim): S before; */
    float *to;         /* and behind, may be the same */
    size_t ldx;
    size_t ldy;
};

typedef void cpu_scan_fn(const struct cpu_scan *s);

/* n rows of 16 channels, or of the first n_channels of them. */
struct cpu_conv {
    int32_t n;
    int32_t n_channels;
    int32_t width;
    const float *w;      /* (width, 16) */
    const float *bias;   /* (16) or NULL */
    float *u;            /* (width - 1, 16): the rows before, then the last ones */
    const float *x;      /* (n, ldx) */
    const float *before; /* (n, ldx) or NULL */
    const float *after;  /* (n, ldx) or NULL */
    float *y;            /* (n, ldy) */
    size_t ldx;
    size_t ldy;
    enum ops_act act;
};

typedef void cpu_conv_fn(const struct cpu_conv *c);

/* y = x * sigmoid(g), or x * silu(g), n floats; y may be x. */
typedef void cpu_gate_fn(const float *x, const float *g, int32_t n, bool silu, float *y);

/* clang-format off */
#define CPU_SLOTS_RECUR(X) \
    X(cpu_delta_fn, delta) \
    X(cpu_scan_fn, scan) \
    X(cpu_conv_fn, conv) \
    X(cpu_gate_fn, gate)
/* clang-format on */

#endif
