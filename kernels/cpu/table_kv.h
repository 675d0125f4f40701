/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_KV_H
#define PIPIT_KERNELS_CPU_TABLE_KV_H

/* The cache's part of the table of inner kernels (kernels/cpu/table.h): slots of rope, store,
 * attention and scoring, as X(function type, slot). Layout of a page: kernels/cpu/kv_page.h.
 *
 * Logits are in units of log2: x = scale * log2(e) * q.k, so that e^ is 2^. "Pairs" are
 * (row, query head) combinations that read the same K or V head; each pair's result is the same
 * bits whatever pairs are beside it. The variants of different instruction sets need not agree in
 * bits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum { CPU_KV_SLOTS = OPS_PAGE_SLOTS };

/* A logit that is not there. Far below -1e30 * log2(e); 2^(this - m) is 0 for every m in reach. */
#define CPU_KV_MASKED -3e38f

/* What decode attention will read next, in blocks of 4 KiB, and how far it has asked for it.
 * Kernels that are given one ask for `step` lines with each line that they read
 * (kernels/cpu/kv_prefetch.h), so that memory is at work evenly, whatever the arithmetic in
 * between.
 */
struct cpu_kv_prefetch {
    const uint8_t *const *block; /* the next lot's first */
    uint32_t n_streams;          /* abreast; 0: skewed */
    uint32_t stream;             /* abreast: the next line's */
    uint32_t offset;             /* the next line's in its block (skewed: in an eighth of it) */
    uint32_t due;                /* lines to be asked for, in 1 / 65536 */
    uint32_t step;               /* the same unit; at most a line */
};

/* A query head of k_dim dims in the form that qk of the type reads, in kv_page_pad(k_dim) floats.
 * NULL: qk reads it as it is. */
typedef void cpu_kv_query_fn(const float *q, int32_t k_dim, float *ret);

/* x[i][s] = q[i] . k[:, s] for n pairs and the page's 64 slots. k (k_dim, 64) of the type; q rows
 * ldq floats apart, as cpu_kv_query_fn leaves them, x rows ldx; ahead or NULL. qk_fp8 may round
 * q and sums of a few dims to f16, qk_i8 and qk_g4 q to 15 bits (decode attention's alone:
 * tests/kernels/tolerance.h). */
typedef void cpu_kv_qk_fn(const void *k, int32_t k_dim, const float *q, size_t ldq, int32_t n,
                          float *x, size_t ldx, struct cpu_kv_prefetch *ahead);

/* acc[i][d] += sum over s < n_slots of e[i][s] * v[s][d]. v (64, v_pad) of the type, v_pad a
 * multiple of 16; acc (n, v_pad); ahead as above. pv_fp8 may add a page's slots in f16, pv_g4 round
 * e times scale to 15 bits (decode attention's alone: tests/kernels/tolerance.h). */
typedef void cpu_kv_pv_fn(const void *v, int32_t v_pad, const float *e, size_t lde, int32_t n,
                          int32_t n_slots, float *acc, struct cpu_kv_prefetch *ahead);

/* n elements (a multiple of 16) to f32, without scales; g4: whole blocks, with them. */
typedef void cpu_kv_unpack_fn(const void *src, size_t n, float *dst);

/* What turns dot products into logits, for one pair and one page. */
struct cpu_kv_logits {
    float scale;             /* with log2(e) */
    const uint16_t *k_scale; /* f16 (64) or NULL */
    float softcap;           /* 0: none */
    float slope;             /* ALiBi's, 0: none */
    int32_t row_pos;
    const int32_t *distance; /* (64): positions for ALiBi; may be NULL without */
    const int32_t *pos;      /* (64): positions for masking; NULL: all visible */
    int32_t pos_min;         /* visible: pos_min <= pos <= pos_max */
    int32_t pos_max;
};

/* x (64) in place; returns the largest, CPU_KV_MASKED when none is visible. */
typedef float cpu_kv_logits_fn(const struct cpu_kv_logits *p, float *x);

/* x (64): e = 2^(x - max), 0 where masked; returns their sum. x becomes e * v_scale (f16 (64) or
 * NULL); e itself goes to `e` unless NULL. */
typedef float cpu_kv_exp_fn(float *x, float max, const uint16_t *v_scale, float *e);

/* The same, but that e gets 2^(x - max) times w (64), of which the sum is *ret_sum. */
typedef float cpu_kv_exp_weighed_fn(float *x, float max, const uint16_t *v_scale, const float *w,
                                    float *e, float *ret_sum);

/* Noise of one page's keys for one query head and row (kernels/noise.h). */
struct cpu_kv_noise {
    const struct ops_observe *o;
    uint32_t head;
    uint32_t row_pos;
    const int32_t *pos; /* (64), entries below 0 get anything finite */
    bool aligned;       /* pos is p, p + 1, ... with p a multiple of 64 */
};

/* e^noise for Gumbel noise, that is 1 / -log(u). */
typedef void cpu_kv_gumbel_fn(const struct cpu_kv_noise *p, float *ret);

/* z (64) = (x + noise) / tau, masked where x is; x in log2 units, noise natural or NULL. Returns
 * the largest. */
typedef float cpu_kv_temper_fn(const float *x, const float *noise, float tau, float *z);

/* log of n64 * 64 positive floats, in place, times `factor`. */
typedef void cpu_kv_log_fn(float *x, float factor);

/* y (64) *= w (64); returns the sum. */
typedef float cpu_kv_weigh_fn(float *y, const float *w);

/* What rows in order add to the scores of a page's slots. */
struct cpu_kv_score {
    const float *p; /* (n_rows, n_heads, 64) */
    size_t ld_row;
    size_t ld_head;
    const float *f; /* (n_rows, n_heads) */
    int32_t n_rows;
    int32_t n_heads;
    float weight; /* of the first row; each further one's is `growth` times as much */
    float growth;
};

/* score (64) += weight * sum over heads of f * p, row by row. */
typedef void cpu_kv_score_fn(float *score, const struct cpu_kv_score *p);

/* The least score among n slots with pos_min <= pos < pos_end; +Inf when there is none. */
typedef float cpu_kv_least_fn(const float *score, const int32_t *pos, int32_t n, int32_t pos_min,
                              int32_t pos_end);

/* One head of n values, rotated in place: x * cos + partner * sin, with the tables of
 * kernels/cpu/rope_table.h. */
typedef void cpu_kv_rope_fn(float *x, const float *cos, const float *sin, int32_t n_dims);

/* kernels/hadamard.h: one head of n values, in place, in its bits. */
typedef void cpu_kv_hadamard_fn(float *x, int32_t n);

/* y (n) = y - a, y * a, y / a, in the bits of these. */
typedef void cpu_kv_each_fn(float *y, const float *a, int32_t n);

/* kernels/kv_code.h: one head to the type's bytes; returns the scale where the type has one. */
typedef uint16_t cpu_kv_encode_fn(const float *x, int32_t n, void *dst);

/* Heads of 16 slots, x (n dims, 16) (kernels/cpu/kv_encode16.h), which are bounded by what f16
 * holds. step: what a code of 1 stands for, inverse: what takes values to codes; (16), g4
 * (n / 32, 16). */
typedef void cpu_kv_scale16_fn(float *x, int32_t n, float *step, float *inverse);
/* codes (n, 16); with carry, which g4 may lack, rounded by it, and x is written. */
typedef void cpu_kv_round16_fn(const float *carry, float *x, const float *step,
                               const float *inverse, int32_t n, uint8_t *codes);

/* clang-format off */
#define CPU_SLOTS_KV(X) \
    X(cpu_kv_query_fn, query_i8) \
    X(cpu_kv_query_fn, query_g4) \
    X(cpu_kv_qk_fn, qk_f32) \
    X(cpu_kv_qk_fn, qk_f16) \
    X(cpu_kv_qk_fn, qk_bf16) \
    X(cpu_kv_qk_fn, qk_fp8) \
    X(cpu_kv_qk_fn, qk_i8) \
    X(cpu_kv_qk_fn, qk_g4) \
    X(cpu_kv_pv_fn, pv_f32) \
    X(cpu_kv_pv_fn, pv_f16) \
    X(cpu_kv_pv_fn, pv_bf16) \
    X(cpu_kv_pv_fn, pv_fp8) \
    X(cpu_kv_pv_fn, pv_i8) \
    X(cpu_kv_pv_fn, pv_g4) \
    X(cpu_kv_unpack_fn, unpack_f16) \
    X(cpu_kv_unpack_fn, unpack_bf16) \
    X(cpu_kv_unpack_fn, unpack_fp8) \
    X(cpu_kv_unpack_fn, unpack_i8) \
    X(cpu_kv_unpack_fn, unpack_g4) \
    X(cpu_kv_encode_fn, encode_f16) \
    X(cpu_kv_encode_fn, encode_bf16) \
    X(cpu_kv_encode_fn, encode_fp8) \
    X(cpu_kv_encode_fn, encode_i8) \
    X(cpu_kv_encode_fn, encode_g4) \
    X(cpu_kv_scale16_fn, scale16_fp8) \
    X(cpu_kv_scale16_fn, scale16_g4) \
    X(cpu_kv_round16_fn, round16_fp8) \
    X(cpu_kv_round16_fn, round16_g4) \
    X(cpu_kv_logits_fn, kv_logits) \
    X(cpu_kv_exp_fn, kv_exp) \
    X(cpu_kv_exp_weighed_fn, kv_exp_weighed) \
    X(cpu_kv_gumbel_fn, kv_gumbel) \
    X(cpu_kv_temper_fn, kv_temper) \
    X(cpu_kv_log_fn, kv_log) \
    X(cpu_kv_weigh_fn, kv_weigh) \
    X(cpu_kv_score_fn, kv_score) \
    X(cpu_kv_least_fn, kv_least) \
    X(cpu_kv_rope_fn, rope_norm) \
    X(cpu_kv_rope_fn, rope_neox) \
    X(cpu_kv_hadamard_fn, kv_hadamard) \
    X(cpu_kv_each_fn, kv_minus) \
    X(cpu_kv_each_fn, kv_times) \
    X(cpu_kv_each_fn, kv_over)
/* clang-format on */

#endif
