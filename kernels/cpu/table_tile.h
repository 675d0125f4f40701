/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_TILE_H
#define PIPIT_KERNELS_CPU_TABLE_TILE_H

/* The part of the table of inner kernels (kernels/cpu/table.h) that multiplies tiles of bf16, for
 * CPUs with a matrix unit. There is no plain C version: a slot is NULL where no instruction set
 * fills it, and rows of class prefill then go the way of all others (matmul.c).
 *
 * A tile is 16 rows of 64 bytes, 1 KiB in one piece:
 *
 *     A tile  16 rows of 32 bf16           activations of 16 tokens, 32 columns of them
 *     B tile  16 rows of 16 pairs of bf16  row i: columns 2i, 2i+1 of 32 for each of 16 outputs
 *     C tile  16 rows of 16 f32            a token a row, an output a column
 *
 * so a block of a weight panel (panel.h) unpacks into one B tile. The unit sums products of bf16 in
 * f32, pairs of columns in order, subnormal numbers as zero; a row of C depends on its row of A
 * alone. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { TILE_ROWS = 16, TILE_COLS = 32, TILE_ELEMENTS = 512 /* of an A or B tile */ };

/* Before the first and after the last tile kernel of a thread's piece of a job. */
typedef void cpu_tile_switch_fn(void);

/* One token's row of A tiles: n floats, rounded to nearest even, then zeros to a whole tile; tile
 * k's row begins at dst + k * TILE_ELEMENTS. */
typedef void cpu_tile_acts_fn(const float *x, int32_t n, uint16_t *dst);

/* Blocks [b0, b0 + n) of 32 columns of a panel with n_cols columns as n B tiles, each `step`
 * elements after the one before. */
typedef void cpu_tile_panel_fn(const uint8_t *panel, int32_t n_cols, int32_t b0, int32_t n,
                               uint16_t *dst, size_t step);

/* c[j] (n_rows, 16) = or += the n_k A tiles of each 16 rows times the n_k B tiles of output block
 * j. */
struct cpu_tile_mul {
    const uint16_t *a; /* tile k of rows 16i.. at a + i * lda + k * TILE_ELEMENTS */
    size_t lda;
    const uint16_t *b; /* tile k of output block j at b + (2k + j) * TILE_ELEMENTS */
    int32_t n_k;
    int32_t n_rows;    /* whole tiles */
    float *c[2];       /* rows ldc[j] floats apart */
    size_t ldc[2];
    int add;           /* else c is written only */
};

typedef void cpu_tile_mul_fn(const struct cpu_tile_mul *m);

/* ---- attention ---------------------------------------------------------------------------- */

enum {
    TILE_KEYS = 256,                     /* slots that one step of attention takes */
    TILE_KEY_TILES = TILE_KEYS / TILE_COLS,
    TILE_QUERIES = 32,                   /* rows of one query head that go together */
};

/* n_cols (a multiple of 16) columns of n_rows rows of a cache type become B tiles; columns go by
 * pairs of 16. Rows from n_valid on, and to a whole tile, are zeros. Without scales, but g4 with
 * them: its n_cols, or turned its n_rows, are whole blocks. */
struct cpu_tile_kv {
    enum ops_kv_type type;
    const void *src;     /* (n_rows, n_cols) */
    bool turned;         /* g4: src is (n_cols, n_rows), and n_valid is not read */
    int32_t n_rows;
    int32_t n_valid;
    int32_t n_cols;
    uint16_t *dst;
    size_t row_step;     /* elements from 32 rows to the next 32 */
    size_t pair_step;    /* elements from a pair of columns' tiles to the next */
};

typedef void cpu_tile_kv_fn(const struct cpu_tile_kv *p);

/* Up to TILE_QUERIES rows of one query head against up to TILE_KEYS slots: online softmax. `s` and
 * `p` are scratch; what lies in rows from n_rows on is anything, and becomes anything. */
struct cpu_tile_att {
    int32_t n_rows;
    int32_t n_slots;         /* a multiple of 32 */
    int32_t n_kd;            /* tiles of k_dim */
    int32_t n_vd;            /* blocks of 16 of v_dim */
    const uint16_t *q;       /* (2, n_kd) A tiles */
    const uint16_t *k;       /* (n_slots / 32, n_kd, 2) B tiles */
    const uint16_t *v;       /* (n_vd / 2, TILE_KEY_TILES, 2) B tiles */
    float *s;                /* (TILE_QUERIES, TILE_KEYS): dot products */
    uint16_t *p;             /* (2, TILE_KEY_TILES) A tiles: weights */
    float *acc;              /* (TILE_QUERIES, ld_acc) */
    size_t ld_acc;
    const float *k_mul;      /* (n_slots): dot products to logits in log2 units */
    const float *v_mul;      /* (n_slots) scales of V, or NULL */
    const int32_t *pos;      /* (n_slots) positions, or NULL: all rows see all slots */
    int32_t row_pos;         /* position of row 0; row i sees pos_min_i <= pos <= row_pos + i, */
    /* pos_min_i = max(0, row_pos + i - window + 1), or 0 without a window */
    int32_t window;
    float *max;              /* (n_rows): what exponents are taken against */
    float *sum;
    float *factor;           /* (n_rows), out: what sums before this step were multiplied with */
    float *seen;             /* (n_rows, ld_seen): the weights e, without v_mul; or NULL */
    size_t ld_seen;
};

typedef void cpu_tile_att_fn(const struct cpu_tile_att *p);

/* clang-format off */
#define CPU_SLOTS_TILE(X) \
    X(cpu_tile_switch_fn, tile_begin) \
    X(cpu_tile_switch_fn, tile_end) \
    X(cpu_tile_acts_fn, tile_acts) \
    X(cpu_tile_mul_fn, tile_mul) \
    X(cpu_tile_kv_fn, tile_kv) \
    X(cpu_tile_att_fn, tile_qk) \
    X(cpu_tile_att_fn, tile_soft) \
    X(cpu_tile_att_fn, tile_pv) \
    X(cpu_tile_panel_fn, tile_f16) \
    X(cpu_tile_panel_fn, tile_bf16) \
    X(cpu_tile_panel_fn, tile_q4_0) \
    X(cpu_tile_panel_fn, tile_q4_1) \
    X(cpu_tile_panel_fn, tile_q5_0) \
    X(cpu_tile_panel_fn, tile_q5_1) \
    X(cpu_tile_panel_fn, tile_q8_0) \
    X(cpu_tile_panel_fn, tile_q4_k) \
    X(cpu_tile_panel_fn, tile_q5_k) \
    X(cpu_tile_panel_fn, tile_q6_k) \
    X(cpu_tile_panel_fn, tile_iq4_nl) \
    X(cpu_tile_panel_fn, tile_iq4_xs) \
    X(cpu_tile_panel_fn, tile_mxfp4)
/* clang-format on */

#endif
