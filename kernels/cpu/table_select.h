/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_TABLE_SELECT_H
#define PIPIT_KERNELS_CPU_TABLE_SELECT_H

/* The part of the table of inner kernels (kernels/cpu/table.h) for queries that read some of the
 * cache (attention_select.c). Layout of a page: kernels/cpu/kv_page.h. As in table_kv.h a pair's
 * bits do not depend on the pairs beside it. */

#include <stddef.h>
#include <stdint.h>

/* x[i][s] = sum over j < n_dims of q[i][j] * k[dims[j]][s] for n pairs and slots [slot0, slot0 +
 * n_slots) of a page, both multiples of 16; dims NULL: 0, 1, 2 ... . k (k_dim, 64) of the type.
 * While they are read, the same stretches of the page at `ahead` (or NULL) are prefetched. */
typedef void cpu_kv_dims_fn(const void *k, const int32_t *dims, int32_t n_dims, const float *q,
                            size_t ldq, int32_t n, int32_t slot0, int32_t n_slots, float *x,
                            size_t ldx, const void *ahead);

/* x[i][s] = q[i] . row s, for n pairs and n_rows rows of `pad` elements (a multiple of 16), zeros
 * behind what counts; q rows ldq floats apart, readable up to pad. */
typedef void cpu_kv_rows_fn(const void *const *rows, int32_t n_rows, int32_t pad, const float *q,
                            size_t ldq, int32_t n, float *x, size_t ldx);

/* acc[i][d] += sum over s of e[i][s] * row s [d]; acc (n, pad). */
typedef void cpu_kv_blend_fn(const void *const *rows, int32_t n_rows, int32_t pad, const float *e,
                             size_t lde, int32_t n, float *acc);

/* How many of n floats (a multiple of 16) have bits that, as an integer, are at least `least`. For
 * floats from +0 on that is their order; negative ones are below. */
typedef int32_t cpu_kv_count_fn(const float *x, int32_t n, int32_t least);
/* Their indices, ascending; returns how many. idx has room for n. */
typedef int32_t cpu_kv_pick_fn(const float *x, int32_t n, int32_t least, int32_t *idx);

/* clang-format off */
#define CPU_SLOTS_SELECT(X) \
    X(cpu_kv_dims_fn, dims_f32) \
    X(cpu_kv_dims_fn, dims_f16) \
    X(cpu_kv_dims_fn, dims_bf16) \
    X(cpu_kv_dims_fn, dims_fp8) \
    X(cpu_kv_dims_fn, dims_i8) \
    X(cpu_kv_rows_fn, rows_f32) \
    X(cpu_kv_rows_fn, rows_f16) \
    X(cpu_kv_rows_fn, rows_bf16) \
    X(cpu_kv_rows_fn, rows_fp8) \
    X(cpu_kv_rows_fn, rows_i8) \
    X(cpu_kv_blend_fn, blend_f32) \
    X(cpu_kv_blend_fn, blend_f16) \
    X(cpu_kv_blend_fn, blend_bf16) \
    X(cpu_kv_blend_fn, blend_fp8) \
    X(cpu_kv_blend_fn, blend_i8) \
    X(cpu_kv_count_fn, kv_count) \
    X(cpu_kv_pick_fn, kv_pick)
/* clang-format on */

#endif
