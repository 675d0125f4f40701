/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_H
#define PIPIT_KERNELS_CPU_TABLE_H

/* The inner kernels of the cpu backend, chosen once from CPU flags.
 *
 * Every slot is filled with its plain C version first, then overridden by each instruction set
 * that the flags allow, weakest first (kernels/x86/x86.h). A slot keeps the name of what fills it
 * ("quantize_avx512") for describe() and for benches. A kernel does one thread's piece; splitting
 * among threads is the ops' business (matmul.c and so on).
 *
 * All variants of a matmul, norm, quantise or epilogue slot give the same bits: integer dot
 * products are exact, and the f32 steps that follow are the same sequence of IEEE operations per
 * element. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/panel.h"
#include "kernels/cpu/table_expect.h"
#include "kernels/cpu/table_kv.h"
#include "kernels/cpu/table_recur.h"
#include "kernels/cpu/table_select.h"
#include "kernels/cpu/table_tile.h"
#include "kernels/ops.h"

/* What a panel kernel multiplies with: n tokens. Quantised panels read `q`, float panels read
 * `x`. */
struct cpu_acts {
    int32_t n_cols;
    const struct panel_act *q; /* (n, ldq) blocks; n up to a whole tile of 16 may be read */
    size_t ldq;                /* blocks from token to token */
    const float *x;            /* (n, ldx) f32 */
    size_t ldx;
    /* Few tokens: what is asked for ahead, from `end` on, lies `jump` bytes further. Zeros: nothing
     * is known. */
    const uint8_t *end;
    ptrdiff_t jump;
};

/* How far the kernels of few tokens ask for memory ahead. */
#define CPU_PANEL_PREFETCH 32768

/* out[t * 16 + r] = panel row r . token t, for t in [0, n), n >= 1; out is 64-byte aligned. Rows of
 * q behind the last token's may be read, and their results written behind its, up to whole tiles of
 * 16:
 * the memory is there, what lies in it does not matter, but no other thread may be writing it.
 * Bytes after the panel may be prefetched, whatever lies there. */
typedef void cpu_panel_fn(const uint8_t *panel, const struct cpu_acts *a, int32_t n, float *out);

/* y = norm(x) * w (+ b), n floats; y may be x; b may be NULL. */
typedef void cpu_norm_fn(const float *x, const float *w, const float *b, float eps, int32_t n,
                         float *y);

/* y[0, n / 32) from x[0, n); n is a multiple of 32. */
typedef void cpu_quantize_fn(const float *x, int32_t n, struct panel_act *y);

/* The end of a matmul, for one panel and n tokens: v = scale * g[t*16 + r] (+ bias_scale *
 * bias[r]), then act, then times the same of u (as act says it) where that is not NULL, then
 * y[t * ldy + r] = v or += v. */
struct cpu_epilogue {
    const float *g;      /* (n, 16) */
    const float *u;      /* (n, 16) or NULL */
    const float *bias;   /* (n_rows) or NULL */
    const float *u_bias;
    float scale;
    float bias_scale;
    float u_scale;
    float u_bias_scale;
    float *y;
    size_t ldy;
    int32_t n;
    int32_t n_rows;      /* 1..16 */
    enum ops_act act;
    bool add;
};

typedef void cpu_epilogue_fn(const struct cpu_epilogue *e);

/* x = cap * tanh(x / cap), n floats. */
typedef void cpu_softcap_fn(float *x, int32_t n, float cap);

/* clang-format off */
#define CPU_SLOTS_DENSE(X) \
    X(cpu_panel_fn, panel_f32) \
    X(cpu_panel_fn, panel_f16) \
    X(cpu_panel_fn, panel_bf16) \
    X(cpu_panel_fn, panel_q4_0) \
    X(cpu_panel_fn, panel_q4_1) \
    X(cpu_panel_fn, panel_q5_0) \
    X(cpu_panel_fn, panel_q5_1) \
    X(cpu_panel_fn, panel_q8_0) \
    X(cpu_panel_fn, panel_q2_k) \
    X(cpu_panel_fn, panel_q3_k) \
    X(cpu_panel_fn, panel_q4_k) \
    X(cpu_panel_fn, panel_q5_k) \
    X(cpu_panel_fn, panel_q6_k) \
    X(cpu_panel_fn, panel_iq4_nl) \
    X(cpu_panel_fn, panel_iq4_xs) \
    X(cpu_panel_fn, panel_mxfp4) \
    X(cpu_norm_fn, norm_rms) \
    X(cpu_norm_fn, norm_layer) \
    X(cpu_quantize_fn, quantize) \
    X(cpu_epilogue_fn, epilogue) \
    X(cpu_softcap_fn, softcap)

struct cpu_table {
#define CPU_SLOT_MEMBER(type, slot) type *slot; const char *slot##_name;
    CPU_SLOTS_DENSE(CPU_SLOT_MEMBER)
    CPU_SLOTS_KV(CPU_SLOT_MEMBER)
    CPU_SLOTS_RECUR(CPU_SLOT_MEMBER)
    CPU_SLOTS_TILE(CPU_SLOT_MEMBER)
    CPU_SLOTS_SELECT(CPU_SLOT_MEMBER)
    CPU_SLOTS_EXPECT(CPU_SLOT_MEMBER)
#undef CPU_SLOT_MEMBER
};

/* CPU_TABLE_SET(t, norm_rms, avx2): the slot becomes norm_rms_avx2, its name "norm_rms_avx2". */
#define CPU_TABLE_SET(t, slot, isa) ((t)->slot = slot##_##isa, (t)->slot##_name = #slot "_" #isa)
/* clang-format on */

/* Fills every slot by the flags of base/cpu.h; those of table_tile.h, and query_ of table_kv.h, may
 * stay NULL. */
void cpu_table_init(struct cpu_table *t, uint32_t flags);

/* The slot that serves a weight type. */
cpu_panel_fn *cpu_table_panel(const struct cpu_table *t, enum dtype type);

/* All names, separated by spaces, cut to fit. */
void cpu_table_describe(const struct cpu_table *t, char *buf, size_t size);

/* The plain C versions: of weights and rows (table.c calls these), and of the cache. */
void cpu_table_dense_c(struct cpu_table *t);
void cpu_table_kv_c(struct cpu_table *t);

#endif
