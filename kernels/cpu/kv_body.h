/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_BODY_H
#define PIPIT_KERNELS_CPU_KV_BODY_H

/* Reading the cache, written once over the lanes of kv_lanes_c.h: dot products with K, weighted
 * sums of V, conversion. Included by one file an instruction set (table_kv_c.c,
 * kernels/x86/kv_avx2.c and so on), after the lanes; exponentials and noise are in kv_soft_body.h,
 * stores in kv_store_body.h.
 *
 * K lies [dim][slot]: a vector is 16 slots, the query enters as a broadcast, no sum crosses lanes.
 * V lies [slot][dim]: a vector is 16 dims, the weight enters as a broadcast. Both loops keep
 * KV_ROWS x KV_COLS sums in registers and convert each vector of the cache once for KV_ROWS pairs.
 * A sum is one chain, over dims or over slots in order, so company does not show in its bits.
 * Both of 4 bits lie [slot][dim], in blocks of 32 with their scales: there a vector is 16 dims of a
 * slot for K too, and its sum crosses lanes once a slot.
 *
 * Prefetch: decode reads K and V once, from far away. While a block is multiplied, those after it
 * are asked for (kv_prefetch.h). */

#include "kernels/cpu/kv_load_g4_body.h"
#include "kernels/cpu/kv_prefetch.h"
#include "kernels/cpu/table.h"

LANES_INLINE size_t kv_element_bytes(enum ops_kv_type type)
{
    return type == OPS_KV_F32 ? 4 : type == OPS_KV_F16 || type == OPS_KV_BF16 ? 2 : 1;
}

/* 16 elements from index i; fp8 as e4m3 * 2^-8, i8 as integers: scales are the caller's. */
LANES_INLINE lf kv_load(enum ops_kv_type type, const void *p, size_t i)
{
    const uint8_t *at = (const uint8_t *)p + i * kv_element_bytes(type);

    switch (type) {
    case OPS_KV_F16:
        return lf_of_f16(at);
    case OPS_KV_BF16:
        return lf_of_bf16(at);
    case OPS_KV_FP8:
        return lf_of_fp8(at);
    case OPS_KV_I8:
        return lf_of_int(li_of_i8((const int8_t *)at));
    default:
        return lf_load((const float *)(const void *)at);
    }
}

/* A block of 4 bits takes as many shuffles and products as six pairs' sums: seven go at once where
 * 28 sums are registers. */
enum { KV_ROWS_G4 = KV_COLS >= 4 ? 7 : KV_ROWS };

/* call(now), of a number that is a constant in each case. */
#define KV_CASE(n, most, call)                                                                     \
    case n:                                                                                        \
        call(n <= (most) ? n : 1);                                                                 \
        break
#define KV_CASES(now, most, call)                                                                  \
    switch (now) {                                                                                 \
        KV_CASE(1, most, call);                                                                    \
        KV_CASE(2, most, call);                                                                    \
        KV_CASE(3, most, call);                                                                    \
        KV_CASE(4, most, call);                                                                    \
        KV_CASE(5, most, call);                                                                    \
        KV_CASE(6, most, call);                                                                    \
        KV_CASE(7, most, call);                                                                    \
    }

/* ---- 4 bits ---- */

#ifndef LANES_HAS_SUMS
LANES_INLINE void lf_store_sums(float *to, lf a, lf b, lf c, lf d)
{
    to[0] = lf_sum(a);
    to[1] = lf_sum(b);
    to[2] = lf_sum(c);
    to[3] = lf_sum(d);
}
#endif

LANES_INLINE size_t kv_row_bytes_g4(int32_t dims)
{
    return (size_t)(dims / GAUSS4_BLOCK) * sizeof(struct gauss4_block);
}

/* rows queries (a constant, at most KV_ROWS_G4) against 64 slots */
LANES_INLINE void kv_qk_rows_g4(int rows, const uint8_t *k, int32_t k_dim, const float *q,
                                size_t ldq, float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const size_t row_bytes = kv_row_bytes_g4(k_dim);
    const uint32_t due = kv_prefetch_share(ahead, row_bytes * CPU_KV_SLOTS, CPU_KV_SLOTS);

    for (int32_t s = 0; s < CPU_KV_SLOTS; s += 4) {
        lf sum[KV_ROWS_G4][4];

        if (ahead && s % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
#pragma GCC unroll 8
        for (int i = 0; i < 4; i++, k += row_bytes) {
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                sum[r][i] = lf_set1(0.0f);
            }
            for (int32_t d = 0; d < k_dim; d += GAUSS4_BLOCK) {
                lf low;
                lf high;

                kv_load_g4(k + kv_row_bytes_g4(d), &low, &high);
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++) {
                    const float *at = q + (size_t)r * ldq + (size_t)d;

                    sum[r][i] = kv_fma(low, lf_load(at), sum[r][i]);
                    sum[r][i] = kv_fma(high, lf_load(at + 16), sum[r][i]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            lf_store_sums(x + (size_t)r * ldx + (size_t)s, sum[r][0], sum[r][1], sum[r][2],
                          sum[r][3]);
        }
    }
}

/* rows pairs and the block of dims from d on */
LANES_INLINE void kv_pv_tile_g4(int rows, const uint8_t *v, int32_t v_pad, int32_t d,
                                const float *e, size_t lde, int32_t n_slots, float *acc,
                                struct cpu_kv_prefetch *ahead)
{
    const size_t row_bytes = kv_row_bytes_g4(v_pad);
    const uint32_t due = kv_prefetch_share(ahead, row_bytes * (size_t)n_slots, n_slots);
    lf sum[KV_ROWS_G4][2];

    v += kv_row_bytes_g4(d);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        sum[r][0] = lf_load(acc + r * v_pad + d);
        sum[r][1] = lf_load(acc + r * v_pad + d + 16);
    }
    for (int32_t s = 0; s < n_slots; s++, v += row_bytes) {
        lf low;
        lf high;

        if (ahead && d == 0 && s % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
        kv_load_g4(v, &low, &high);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            lf w = lf_set1(e[(size_t)r * lde + (size_t)s]);

            sum[r][0] = kv_fma(w, low, sum[r][0]);
            sum[r][1] = kv_fma(w, high, sum[r][1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
        lf_store(acc + r * v_pad + d, sum[r][0]);
        lf_store(acc + r * v_pad + d + 16, sum[r][1]);
    }
}

/* ---- the others, and which of the two ---- */

/* rows pairs (a constant, at most KV_ROWS) against a page of K */
LANES_INLINE void kv_qk_rows(enum ops_kv_type type, int rows, const void *k, int32_t k_dim,
                             const float *q, size_t ldq, float *x, size_t ldx,
                             struct cpu_kv_prefetch *ahead)
{
    if (type == OPS_KV_G4) {
        kv_qk_rows_g4(rows, k, k_dim, q, ldq, x, ldx, ahead);
        return;
    }
    const size_t row_bytes = CPU_KV_SLOTS * kv_element_bytes(type);
    const uint32_t due = kv_prefetch_share(ahead, row_bytes * (size_t)k_dim, k_dim);

    for (int c = 0; c < CPU_KV_SLOTS / 16; c += KV_COLS) {
        lf sum[KV_ROWS_G4][KV_COLS];

#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int j = 0; j < KV_COLS; j++) {
                sum[r][j] = lf_set1(0.0f);
            }
        }
        for (int32_t d = 0; d < k_dim; d++) {
            lf v[KV_COLS];

            if (ahead && c == 0 && d % KV_PREFETCH_ROWS == 0) {
                kv_prefetch_due(ahead, due);
            }
#pragma GCC unroll 8
            for (int j = 0; j < KV_COLS; j++) {
                v[j] = kv_load(type, k, (size_t)d * CPU_KV_SLOTS + (size_t)(c + j) * 16);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                lf w = lf_set1(q[(size_t)r * ldq + (size_t)d]);

#pragma GCC unroll 8
                for (int j = 0; j < KV_COLS; j++) {
                    sum[r][j] = kv_fma(w, v[j], sum[r][j]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
            for (int j = 0; j < KV_COLS; j++) {
                lf_store(x + (size_t)r * ldx + (size_t)(c + j) * 16, sum[r][j]);
            }
        }
    }
}

LANES_INLINE void kv_qk(enum ops_kv_type type, const void *k, int32_t k_dim, const float *q,
                        size_t ldq, int32_t n, float *x, size_t ldx, struct cpu_kv_prefetch *ahead)
{
    const int most = type == OPS_KV_G4 ? KV_ROWS_G4 : KV_ROWS;

    for (int32_t now; n > 0; n -= now) {
        now = n < most ? n : most;
#define KV_QK(rows) kv_qk_rows(type, rows, k, k_dim, q, ldq, x, ldx, ahead)
        KV_CASES(now, most, KV_QK)
#undef KV_QK
        q += (size_t)now * ldq;
        x += (size_t)now * ldx;
        ahead = NULL; /* and K is in L1 now */
    }
}

/* rows pairs and cols vectors of 16 dims from d0 on */
LANES_INLINE void kv_pv_tile(enum ops_kv_type type, int rows, int cols, const void *v,
                             int32_t v_pad, int32_t d0, const float *e, size_t lde, int32_t n_slots,
                             float *acc, struct cpu_kv_prefetch *ahead)
{
    const size_t row_bytes = (size_t)v_pad * kv_element_bytes(type);
    const uint32_t due = kv_prefetch_share(ahead, row_bytes * (size_t)n_slots, n_slots);
    lf sum[KV_ROWS_G4][KV_COLS];

#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            sum[r][j] = lf_load(acc + r * v_pad + d0 + 16 * j);
        }
    }
    for (int32_t s = 0; s < n_slots; s++) {
        lf x[KV_COLS];

        if (ahead && d0 == 0 && s % KV_PREFETCH_ROWS == 0) {
            kv_prefetch_due(ahead, due);
        }
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            x[j] = kv_load(type, v, (size_t)(s * v_pad + d0 + 16 * j));
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            lf w = lf_set1(e[(size_t)r * lde + (size_t)s]);

#pragma GCC unroll 8
            for (int j = 0; j < cols; j++) {
                sum[r][j] = kv_fma(w, x[j], sum[r][j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int j = 0; j < cols; j++) {
            lf_store(acc + r * v_pad + d0 + 16 * j, sum[r][j]);
        }
    }
}

LANES_INLINE void kv_pv_rows(enum ops_kv_type type, int rows, const void *v, int32_t v_pad,
                             const float *e, size_t lde, int32_t n_slots, float *acc,
                             struct cpu_kv_prefetch *ahead)
{
    int32_t d = 0;

    for (; type == OPS_KV_G4 && d < v_pad; d += GAUSS4_BLOCK) {
        kv_pv_tile_g4(rows, v, v_pad, d, e, lde, n_slots, acc, ahead);
    }
    for (; d + 16 * KV_COLS <= v_pad; d += 16 * KV_COLS) {
        kv_pv_tile(type, rows, KV_COLS, v, v_pad, d, e, lde, n_slots, acc, ahead);
    }
    for (; d < v_pad; d += 16) {
        kv_pv_tile(type, rows, 1, v, v_pad, d, e, lde, n_slots, acc, ahead);
    }
}

LANES_INLINE void kv_pv(enum ops_kv_type type, const void *v, int32_t v_pad, const float *e,
                        size_t lde, int32_t n, int32_t n_slots, float *acc,
                        struct cpu_kv_prefetch *ahead)
{
    const int most = type == OPS_KV_G4 ? KV_ROWS_G4 : KV_ROWS;

    for (int32_t now; n > 0; n -= now) {
        now = n < most ? n : most;
#define KV_PV(rows) kv_pv_rows(type, rows, v, v_pad, e, lde, n_slots, acc, ahead)
        KV_CASES(now, most, KV_PV)
#undef KV_PV
        e += (size_t)now * lde;
        acc += now * v_pad;
        ahead = NULL;
    }
}

#define KV_BODY_TYPE(name, type)                                                                   \
    static void LANES_FN(qk_##name)(const void *k, int32_t k_dim, const float *q, size_t ldq,      \
                                    int32_t n, float *x, size_t ldx,                               \
                                    struct cpu_kv_prefetch *ahead)                                 \
    {                                                                                              \
        kv_qk(type, k, k_dim, q, ldq, n, x, ldx, ahead);                                           \
    }                                                                                              \
    static void LANES_FN(pv_##name)(const void *v, int32_t v_pad, const float *e, size_t lde,      \
                                    int32_t n, int32_t n_slots, float *acc,                        \
                                    struct cpu_kv_prefetch *ahead)                                 \
    {                                                                                              \
        kv_pv(type, v, v_pad, e, lde, n, n_slots, acc, ahead);                                     \
    }

#define KV_BODY_UNPACK(name, type)                                                                 \
    static void LANES_FN(unpack_##name)(const void *src, size_t n, float *dst)                     \
    {                                                                                              \
        for (size_t i = 0; i < n; i += 16) {                                                       \
            lf_store(dst + i, kv_load(type, src, i));                                              \
        }                                                                                          \
    }

KV_BODY_TYPE(f32, OPS_KV_F32)
KV_BODY_TYPE(f16, OPS_KV_F16)
KV_BODY_TYPE(bf16, OPS_KV_BF16)
KV_BODY_TYPE(fp8, OPS_KV_FP8)
KV_BODY_TYPE(i8, OPS_KV_I8)
KV_BODY_TYPE(g4, OPS_KV_G4)
KV_BODY_UNPACK(f16, OPS_KV_F16)
KV_BODY_UNPACK(bf16, OPS_KV_BF16)
KV_BODY_UNPACK(fp8, OPS_KV_FP8)
KV_BODY_UNPACK(i8, OPS_KV_I8)

/* Whole blocks, scales included. */
static void LANES_FN(unpack_g4)(const void *src, size_t n, float *dst)
{
    const uint8_t *from = src;

    for (size_t i = 0; i < n; i += GAUSS4_BLOCK, from += sizeof(struct gauss4_block)) {
        lf low;
        lf high;

        kv_load_g4(from, &low, &high);
        lf_store(dst + i, low);
        lf_store(dst + i + 16, high);
    }
}

LANES_INLINE void kv_body_set(struct cpu_table *t)
{
    t->query_i8 = NULL; /* these read queries as they are */
    t->query_g4 = NULL;
    LANES_SET(t, qk_f32);
    LANES_SET(t, qk_f16);
    LANES_SET(t, qk_bf16);
    LANES_SET(t, qk_fp8);
    LANES_SET(t, qk_i8);
    LANES_SET(t, qk_g4);
    LANES_SET(t, pv_f32);
    LANES_SET(t, pv_f16);
    LANES_SET(t, pv_bf16);
    LANES_SET(t, pv_fp8);
    LANES_SET(t, pv_i8);
    LANES_SET(t, pv_g4);
    LANES_SET(t, unpack_f16);
    LANES_SET(t, unpack_bf16);
    LANES_SET(t, unpack_fp8);
    LANES_SET(t, unpack_i8);
    LANES_SET(t, unpack_g4);
}

#endif
