/* SPDX-License-Identifier: Apache-2.0 */
/* Packing, and causal attention both ways: heads and sequences of multiples of 32; only blocks at
 * or below the diagonal are computed. The way back computes the logits again from the row's log
 * sum, instead of keeping the probabilities, and works on transposed blocks (keys by queries), of
 * which every operand of its three products is a plain or a pair-wise store. See tile.h.
 */

#include "tools/distill/tile.h"

#ifdef TILE_AMX
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* 0, or -1 where the system grants no tile registers. */
int tile_request(void)
{
#ifdef TILE_AMX
    return syscall(SYS_arch_prctl, 0x1023, 18) ? -1 : 0;
#else
    return 0;
#endif
}

#ifndef TILE_AMX
float *tile_wide(void)
{
    static _Thread_local _Alignas(64) float wide[WIDE];

    return wide;
}
#endif

/* Right operand of m columns and k rows from w (m, k), rows `ld` apart: for x w^T. With `plain`
 * from w (k, m): for x w. */
void tile_pack(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain, uint16_t *dst)
{
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i rows = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)(ld / 2)));

    for (int64_t p = 0; p < m / 16; p++) {
        uint16_t *tiles = dst + p / 2 * 32 * k + p % 2 * TILE;

        for (int64_t r = 0; r < k / 2; r++) {
            __m512i pairs;

            if (plain) {
                const __m256i *even = (const void *)(w + 2 * r * ld + p * 16);
                const __m256i *odd = (const void *)(w + (2 * r + 1) * ld + p * 16);

                pairs = _mm512_or_si512(
                    _mm512_cvtepu16_epi32(_mm256_loadu_si256(even)),
                    _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(odd)), 16));
            } else {
                pairs = _mm512_i32gather_epi32(rows, w + p * 16 * ld + 2 * r, 4);
            }
            _mm512_storeu_si512(tiles + r / 16 * 2 * TILE + r % 16 * 32, pairs);
        }
    }
}

void tile_pack_weights(const uint16_t *w, int64_t ld, int64_t m, int64_t k, int64_t plain,
                       uint16_t *dst)
{
#ifdef TILE_HALVES
    _Alignas(64) uint16_t pairs[1024];

    for (int64_t p = 0; p < m; p += 32) {
        for (int64_t r = 0; r < k; r += 32) {
            tile_pack(w + (plain ? r * ld + p : p * ld + r), ld, 32, 32, plain, pairs);
            for (int64_t i = 0; i < 32; i++) {
                for (int64_t j = 0; j < 32; j += 16) {
                    __m512i both = _mm512_load_si512(pairs + j / 16 * TILE + i / 2 * 32);
                    __m512i one = i % 2 ? _mm512_srli_epi32(both, 16) : both;
                    __m512 v = (__m512)_mm512_slli_epi32(one, 16);

                    _mm256_storeu_si256((void *)(dst + (p * k + (r + i) * 32) + j),
                                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
                }
            }
        }
    }
#else
    tile_pack(w, ld, m, k, plain, dst);
#endif
}

/* Where row r of (heads, n, value_dim) lies, columns from c (a multiple of 32). */
static inline uint16_t *at_head(struct given o, const struct rows *rows, int64_t r, int64_t c)
{
    return o.width ? tiled(o.to + r / rows->n * o.step, o.width, r % rows->n, c)
                   : o.to + r * rows->value_dim + c;
}

/* The last key that row r reads. */
static int64_t last_key(const struct rows *rows, int64_t r)
{
    return rows->at ? rows->at[r] : r;
}

/* How many keys the 32 query rows from r read together, and how many all of them do, in blocks
 * of 32. */
static int64_t keys_of(const struct rows *rows, int64_t r)
{
    return last_key(rows, r + 31) / 32 * 32 + 32;
}

static int64_t keys_of_all(const struct rows *rows, int64_t r)
{
    return last_key(rows, r) / 32 * 32;
}

/* Causal attention. One K/V head, `heads` query heads that read it: q bf16 (heads, n, key_dim), k
 * (keys, key_dim), v (keys, value_dim); log_sum (heads, n), base 2, for the way back, unless null.
 */
void attend(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
            int64_t heads, float scale, struct given o, float *log_sum, uint8_t *scratch)
{
    const int64_t s = rows->keys;
    const int64_t n = rows->n;
    const int64_t dim = rows->key_dim;
    uint16_t *kp = (uint16_t *)scratch;
    uint16_t *vp = kp + s * dim;
    uint16_t *p = vp + s * rows->value_dim;
    float *logits = (float *)(p + 32 * s);
    /* rows a power of two apart would share a few sets of the L1 cache */
    const int64_t ld = s + 16;
    const __m512 f = _mm512_set1_ps(scale * LOG2E);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    _Alignas(64) float t[1024];

    tile_pack(k, dim, s, dim, 0, kp);
    tile_pack(v, rows->value_dim, rows->value_dim, s, 1, vp);
    for (int64_t r = 0; r < heads * n; r += 32) {
        const int64_t keys = keys_of(rows, r % n);
        const int64_t all = keys_of_all(rows, r % n);
        float inv[32];

        for (int64_t c = 0; c < keys; c += 32) {
            block(0, q + r * dim, q + (r + 16) * dim, 32, dim * 2, kp + c * dim, dim / 32,
                  logits + c, ld);
        }
        for (int64_t i = 0; i < 32; i++) {
            float *row = logits + i * ld;
            const __m512 low = _mm512_set1_ps(-1e30f);
            __m512 top = low;
            __m512 sum = _mm512_setzero_ps();

            const int64_t last = last_key(rows, r % n + i);

            for (int64_t h = all; h < keys; h += 16) {
                __mmask16 live = _mm512_cmple_epi32_mask(lane, _mm512_set1_epi32((int)(last - h)));

                _mm512_storeu_ps(row + h,
                                 _mm512_mask_blend_ps(live, low, _mm512_loadu_ps(row + h)));
            }
            for (int64_t c = 0; c < keys; c += 16) {
                top = _mm512_max_ps(top, _mm512_loadu_ps(row + c));
            }
            top = _mm512_mul_ps(f, _mm512_set1_ps(_mm512_reduce_max_ps(top)));
            for (int64_t c = 0; c < keys; c += 32) {
                __m512 a = exp2_16(_mm512_fmsub_ps(f, _mm512_loadu_ps(row + c), top));
                __m512 b = exp2_16(_mm512_fmsub_ps(f, _mm512_loadu_ps(row + c + 16), top));

                sum = _mm512_add_ps(sum, _mm512_add_ps(a, b));
                store32(tiled(p, keys, i, c), a, b);
            }
            float total = _mm512_reduce_add_ps(sum);

            inv[i] = 1 / total;
            if (log_sum) {
                log_sum[r + i] = _mm512_cvtss_f32(top) + __builtin_log2f(total);
            }
        }
        for (int64_t c = 0; c < rows->value_dim; c += 32) {
            block(0, p, p + 16 * keys, TILE, 64, vp + c * s, keys / 32, t, 32);
            for (int64_t i = 0; i < 32; i++) {
                const float *row = t + i * 32;
                __m512 one = _mm512_set1_ps(inv[i]);

                store32(at_head(o, rows, r + i, c), _mm512_mul_ps(one, _mm512_load_ps(row)),
                        _mm512_mul_ps(one, _mm512_load_ps(row + 16)));
            }
        }
    }
}

/* q, o bf16 (b, kv * heads, s, 64), k, v bf16 (b, kv, s, 64); log_sum (b, kv * heads, s) or null.
 */
void tile_attention(const uint16_t *q, const uint16_t *k, const uint16_t *v, int64_t groups,
                    int64_t heads, int64_t s, float scale, uint16_t *o, float *log_sum,
                    uint8_t *scratch)
{
    tiles_begin();
    for (int64_t i = 0; i < groups; i++) {
        int64_t at = i * heads * s;

        attend(&(struct rows){s, s, 0, DIM, DIM}, q + at * DIM, k + i * s * DIM, v + i * s * DIM,
               heads, scale, (struct given){o + at * DIM, 0, 0}, log_sum ? log_sum + at : 0,
               scratch);
    }
    tiles_end();
}

/* 16 x 16 floats turned over its diagonal, rows `from` apart, to rows of bf16 `to` apart. */
static void turned(const float *x, int64_t from, uint16_t *y, int64_t to)
{
    const __m512i at =
        _mm512_mullo_epi32(_mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0),
                           _mm512_set1_epi32((int)from));

    for (int64_t i = 0; i < 16; i++) {
        store16(y + i * to, _mm512_i32gather_ps(at, x + i, 4));
    }
}

/* The last keys of rows r to r + 15. */
static inline __m512i last_keys(const struct rows *rows, int64_t r, __m512i lane)
{
    return rows->at ? _mm512_loadu_si512(rows->at + r)
                    : _mm512_add_epi32(lane, _mm512_set1_epi32((int)r));
}

/* The way back of `attend`. dout bf16 (heads, n, value_dim), dq as q; dk, dv f32 += their sums. */
void attend_back(const struct rows *rows, const uint16_t *q, const uint16_t *k, const uint16_t *v,
                 struct given o, const float *log_sum, const uint16_t *dout, int64_t heads,
                 float scale, uint16_t *dq, float *dk, float *dv, uint8_t *scratch)
{
    const int64_t s = rows->keys;
    const int64_t n = rows->n;
    const int64_t dim[2] = {rows->value_dim, rows->key_dim};
    const int64_t ld = s + 32;
    uint16_t *q_right = (uint16_t *)scratch;
    uint16_t *q_rows = q_right + n * dim[1];
    uint16_t *do_right = q_rows + n * dim[1];
    uint16_t *do_rows = do_right + n * dim[0];
    uint16_t *k_turned = do_rows + n * dim[0];
    uint16_t *p = k_turned + ld * dim[1];
    uint16_t *ds = p + 32 * n;
    uint16_t *ds_right = ds + 32 * n;
    float *dot = (float *)(ds_right + n * s);
    const __m512 f = _mm512_set1_ps(scale * LOG2E);
    const __m512 by = _mm512_set1_ps(scale);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i mix = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i by_rows = _mm512_mullo_epi32(lane, _mm512_set1_epi32((int)(dim[1] / 2)));
    _Alignas(64) float t[1024];
    _Alignas(64) float u[1024];

    for (int64_t j = 0; j < s; j += 16) {
        for (int64_t i = 0; i < dim[1]; i += 2) {
            __m512i pairs = _mm512_i32gather_epi32(by_rows, k + j * dim[1] + i, 4);

            _mm256_storeu_si256((void *)(k_turned + i * ld + j), _mm512_cvtepi32_epi16(pairs));
            _mm256_storeu_si256((void *)(k_turned + (i + 1) * ld + j),
                                _mm512_cvtepi32_epi16(_mm512_srli_epi32(pairs, 16)));
        }
    }
    for (int64_t head = 0; head < heads; head++) {
        const uint16_t *mine = q + head * n * dim[1];
        const uint16_t *dmine = dout + head * n * dim[0];
        const float *log_row = log_sum + head * n;
        int64_t from_row = 0;

        tile_pack(mine, dim[1], n, dim[1], 0, q_right);
        tile_pack(mine, dim[1], dim[1], n, 1, q_rows);
        tile_pack(dmine, dim[0], n, dim[0], 0, do_right);
        tile_pack(dmine, dim[0], dim[0], n, 1, do_rows);
        for (int64_t i = 0; i < n; i++) {
            __m512 sum = _mm512_setzero_ps();

            for (int64_t j = 0; j < dim[0]; j += 16) {
                const uint16_t *from = at_head(o, rows, head * n + i, j / 32 * 32);

                sum = _mm512_fmadd_ps(load16(dmine + i * dim[0] + j), load16(from + j % 32), sum);
            }
            dot[i] = _mm512_reduce_add_ps(sum);
        }
        for (int64_t key = 0; key < s; key += 32) {
            while (from_row < n && keys_of(rows, from_row) <= key) {
                from_row += 32;
            }
            const int64_t queries = n - from_row;

            for (int64_t c = from_row; c < n; c += 32) {
                const int some = keys_of_all(rows, c) < key + 32;

                block(0, k + key * dim[1], k + (key + 16) * dim[1], 32, dim[1] * 2,
                      q_right + c * dim[1], dim[1] / 32, t, 32);
                block(0, v + key * dim[0], v + (key + 16) * dim[0], 32, dim[0] * 2,
                      do_right + c * dim[0], dim[0] / 32, u, 32);
                for (int64_t i = 0; i < 32; i += 2) {
                    __m512 g[2][2];

                    for (int64_t e = 0; e < 2; e++) {
                        const int64_t row = (i + e) * 32;
                        __m512 prob[2];

                        for (int64_t h = 0; h < 2; h++) {
                            __m512 x = _mm512_fmsub_ps(f, _mm512_load_ps(t + row + h * 16),
                                                       _mm512_loadu_ps(log_row + c + h * 16));
                            __mmask16 live = 0xffff;

                            if (some) {
                                live =
                                    _mm512_cmpge_epi32_mask(last_keys(rows, c + h * 16, lane),
                                                            _mm512_set1_epi32((int)(key + i + e)));
                            }
                            prob[h] = _mm512_maskz_mov_ps(live, exp2_16(x));
                            x = _mm512_sub_ps(_mm512_load_ps(u + row + h * 16),
                                              _mm512_loadu_ps(dot + c + h * 16));
                            g[e][h] = _mm512_mul_ps(_mm512_mul_ps(prob[h], x), by);
                        }
                        store32(tiled(p, queries, i + e, c - from_row), prob[0], prob[1]);
                        store32(tiled(ds, queries, i + e, c - from_row), g[e][0], g[e][1]);
                    }
                    for (int64_t h = 0; h < 2; h++) {
                        __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(g[1][h], g[0][h]);

                        _mm512_storeu_si512(ds_right + c * s + key * 32 + h * TILE + i / 2 * 32,
                                            _mm512_permutexvar_epi16(mix, pair));
                    }
                }
            }
            for (int64_t way = 0; queries > 0 && way < 2; way++) {
                const uint16_t *a = way ? ds : p;

                for (int64_t c = 0; c < dim[way]; c += 32) {
                    block(1, a, a + 16 * queries, TILE, 64,
                          (way ? q_rows : do_rows) + c * n + from_row * 32, queries / 32,
                          (way ? dk : dv) + key * dim[way] + c, dim[way]);
                }
            }
        }
        for (int64_t c = 0; c < n; c += 32) {
            for (int64_t i = 0; i < dim[1]; i += 32) {
                block(0, k_turned + i * ld, k_turned + (i + 16) * ld, 32, ld * 2, ds_right + c * s,
                      keys_of(rows, c) / 32, t, 32);
                for (int64_t h = 0; h < 4; h++) {
                    turned(t + h / 2 * 512 + h % 2 * 16, 32,
                           dq + (head * n + c + h % 2 * 16) * dim[1] + i + h / 2 * 16, dim[1]);
                }
            }
        }
    }
}

/* dk and dv bf16 (b, kv, s, 64). scratch: attend_back_scratch and s * 64 * 8 bytes. */
void tile_attention_back(const uint16_t *q, const uint16_t *k, const uint16_t *v, const uint16_t *o,
                         const float *log_sum, const uint16_t *dout, int64_t groups, int64_t heads,
                         int64_t s, float scale, uint16_t *dq, uint16_t *dk, uint16_t *dv,
                         uint8_t *scratch)
{
    float *sum_k = (float *)scratch;
    float *sum_v = sum_k + s * DIM;

    tiles_begin();
    for (int64_t i = 0; i < groups; i++) {
        int64_t at = i * heads * s;

        memset(sum_k, 0, (size_t)(2 * s * DIM) * sizeof(*sum_k));
        attend_back(&(struct rows){s, s, 0, DIM, DIM}, q + at * DIM, k + i * s * DIM,
                    v + i * s * DIM, (struct given){(uint16_t *)o + at * DIM, 0, 0}, log_sum + at,
                    dout + at * DIM, heads, scale, dq + at * DIM, sum_k, sum_v,
                    scratch + s * DIM * 8);
        for (int64_t j = 0; j < s * DIM; j += 32) {
            store32(dk + i * s * DIM + j, _mm512_loadu_ps(sum_k + j),
                    _mm512_loadu_ps(sum_k + j + 16));
            store32(dv + i * s * DIM + j, _mm512_loadu_ps(sum_v + j),
                    _mm512_loadu_ps(sum_v + j + 16));
        }
    }
    tiles_end();
}
