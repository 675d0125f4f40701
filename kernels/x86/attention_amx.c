/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows on AMX (kernels/cpu/attention_tiles.c): pages to bf16 tiles, dot
 * products, softmax, weighted sums.
 *
 * Softmax is most of the time: a product of 16 x 16 x 32 takes 16 cycles, the 16 x 16 exponentials
 * between two of them some 130. So it is short. The maximum that exponents are taken against may
 * lag by LAG behind the true one, weights then reach 2^8: no horizontal maximum and no rescaling of
 * sums in most steps. 2^x is a cubic on [0, 1) (relative error 7.5e-5, while a weight in bf16 is
 * known to 2e-3) and scalef, which also makes exact zeros of what is masked. */

#include <assert.h>
#include <math.h>

#include "kernels/x86/amx.h"

#include "kernels/cpu/kv.h"
#include "kernels/cpu/unroll.h"
#include "kernels/x86/kv_lanes_avx512.h"
#include "kernels/x86/x86.h"

#include "kernels/cpu/kv_load_g4_body.h"

#define LAG 8.0f
#define LOGIT_MAX (1e30f * 1.44269504f)

/* ---- pages ------------------------------------------------------------------------------------
 */

UNROLL_INLINE __m512 load_kv(enum ops_kv_type type, const uint8_t *p, size_t i)
{
    switch (type) {
    case OPS_KV_F16:
        return lf_of_f16(p + 2 * i);
    case OPS_KV_FP8:
        return lf_of_fp8(p + i);
    case OPS_KV_I8:
        return lf_of_int(li_of_i8((const int8_t *)p + i));
    default: /* OPS_KV_F32 */
        return _mm512_loadu_ps((const float *)(const void *)p + i);
    }
}

/* Two rows' 16 columns, interleaved; `odd` false: the second is zeros. */
UNROLL_INLINE __m512i pair_kv(enum ops_kv_type type, const uint8_t *p, size_t i, size_t ld,
                              bool odd, __m512i il)
{
    if (type == OPS_KV_BF16) {
        __m256i a = _mm256_loadu_si256((const void *)(p + 2 * i));
        __m256i b =
            odd ? _mm256_loadu_si256((const void *)(p + 2 * (i + ld))) : _mm256_setzero_si256();

        return _mm512_permutexvar_epi16(il, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1));
    }
    return amx_pair(load_kv(type, p, i), odd ? load_kv(type, p, i + ld) : _mm512_setzero_ps(), il);
}

_Static_assert((int)GAUSS4_BLOCK == (int)TILE_COLS,
               "a block is a tile's columns, or two tiles' outputs");

/* Sixteen rows of sixteen 32-bit values become columns. */
UNROLL_INLINE void turn_16(__m512i x[16])
{
    __m512i y[16];

    UNROLL_LOOP
    for (int i = 0; i < 16; i += 2) { /* y[i]: 0 and 1 of each four, y[i + 1]: 2 and 3 */
        y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
        y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
    }
    UNROLL_LOOP
    for (int i = 0; i < 16; i += 4) { /* x[i + j]: of rows i to i + 3 value j of each four */
        x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
        x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
        x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
        x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
    }
    UNROLL_LOOP
    for (int j = 0; j < 4; j++) { /* quarters q of x[j], x[4 + j], ... are column 4 q + j */
        __m512i a = _mm512_shuffle_i32x4(x[j], x[4 + j], 0x44);
        __m512i b = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0x44);
        __m512i c = _mm512_shuffle_i32x4(x[j], x[4 + j], 0xee);
        __m512i d = _mm512_shuffle_i32x4(x[8 + j], x[12 + j], 0xee);

        y[j] = _mm512_shuffle_i32x4(a, b, 0x88);
        y[4 + j] = _mm512_shuffle_i32x4(a, b, 0xdd);
        y[8 + j] = _mm512_shuffle_i32x4(c, d, 0x88);
        y[12 + j] = _mm512_shuffle_i32x4(c, d, 0xdd);
    }
    UNROLL_LOOP
    for (int i = 0; i < 16; i++) {
        x[i] = y[i];
    }
}

UNROLL_INLINE void kv_tiles(enum ops_kv_type type, const struct cpu_tile_kv *t)
{
    const __m512i il = amx_interleave();
    const size_t ld = (size_t)t->n_cols;

    for (int32_t r = 0; r < t->n_rows; r += TILE_COLS) {
        uint16_t *dst = t->dst + (size_t)(r / TILE_COLS) * t->row_step;

        for (int32_t i = 0; i < TILE_ROWS; i++) {
            int32_t row = r + 2 * i;
            uint16_t *to = dst + 32 * i;

            for (int32_t c = 0; c < t->n_cols; c += 16) {
                __m512i v = _mm512_setzero_si512();

                if (row < t->n_valid) {
                    v = pair_kv(type, t->src, (size_t)row * ld + (size_t)c, ld,
                                row + 1 < t->n_valid, il);
                }
                _mm512_storeu_si512(
                    to + (size_t)(c / 32) * t->pair_step + (size_t)(c / 16 % 2) * TILE_ELEMENTS, v);
            }
        }
    }
}

/* A slot's block of 32 dims, scaled, as bf16 in order. */
static inline __m512i block_g4(const uint8_t *block)
{
    __m512 low;
    __m512 high;

    kv_load_g4(block, &low, &high);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* V: a block's 32 dims are 16 columns of each of two tiles. */
static void kv_tiles_g4(const struct cpu_tile_kv *t)
{
    const __m512i il = amx_interleave();
    const size_t ld = (size_t)(t->n_cols / GAUSS4_BLOCK) * sizeof(struct gauss4_block);
    const uint8_t *src = t->src;

    for (int32_t row = 0; row < t->n_rows; row += 2, src += 2 * ld) {
        uint16_t *to = t->dst + (size_t)(row / TILE_COLS) * t->row_step + row % TILE_COLS * 16;
        const uint8_t *block = src;

        for (int32_t c = 0; c < t->n_cols; c += GAUSS4_BLOCK) {
            __m512 v[2][2] = {{_mm512_setzero_ps(), _mm512_setzero_ps()},
                              {_mm512_setzero_ps(), _mm512_setzero_ps()}};

            if (row < t->n_valid) {
                kv_load_g4(block, &v[0][0], &v[0][1]);
            }
            if (row + 1 < t->n_valid) {
                kv_load_g4(block + ld, &v[1][0], &v[1][1]);
            }
            _mm512_storeu_si512(to, amx_pair(v[0][0], v[1][0], il));
            _mm512_storeu_si512(to + TILE_ELEMENTS, amx_pair(v[0][1], v[1][1], il));
            to += t->pair_step;
            block += sizeof(struct gauss4_block);
        }
    }
}

/* K, whose slots lie one after another: pairs of dims of 16 slots, turned, are a tile's rows. */
static void kv_tiles_turned_g4(const struct cpu_tile_kv *t)
{
    const size_t ld = (size_t)(t->n_rows / GAUSS4_BLOCK) * sizeof(struct gauss4_block);

    for (int32_t c = 0; c < t->n_cols; c += 16) {
        const uint8_t *src = (const uint8_t *)t->src + (size_t)c * ld;
        uint16_t *to =
            t->dst + (size_t)(c / 32) * t->pair_step + (size_t)(c / 16 % 2) * TILE_ELEMENTS;

        for (int32_t r = 0; r < t->n_rows; r += TILE_COLS) {
            __m512i x[16];

            UNROLL_LOOP
            for (int i = 0; i < 16; i++) {
                x[i] = block_g4(src + (size_t)i * ld);
            }
            turn_16(x);
            UNROLL_LOOP
            for (int i = 0; i < 16; i++) {
                _mm512_storeu_si512(to + 32 * i, x[i]);
            }
            src += sizeof(struct gauss4_block);
            to += t->row_step;
        }
    }
}

static void tile_kv_amx(const struct cpu_tile_kv *t)
{
    switch (t->type) {
    case OPS_KV_G4:
        if (t->turned) {
            kv_tiles_turned_g4(t);
        } else {
            kv_tiles_g4(t);
        }
        break;
    case OPS_KV_F16:
        kv_tiles(OPS_KV_F16, t);
        break;
    case OPS_KV_BF16:
        kv_tiles(OPS_KV_BF16, t);
        break;
    case OPS_KV_FP8:
        kv_tiles(OPS_KV_FP8, t);
        break;
    case OPS_KV_I8:
        kv_tiles(OPS_KV_I8, t);
        break;
    case OPS_KV_F32: /* check_bits alone asks for it */
        kv_tiles(OPS_KV_F32, t);
        break;
    case OPS_KV_Q8_0:
    case OPS_KV_Q4_0:
        assert(!"has_tiles() of attention_tiles.c lets no other blocks through");
        break;
    }
}

/* ---- products ---------------------------------------------------------------------------------
 */

/* k_dim of 33 to 64: all of 32 queries stay in four tiles while the keys pass, so a product takes
 * half a tile load instead of a whole one. */
static void qk_resident(const struct cpu_tile_att *t)
{
    const uint16_t *k = t->k;
    float *s = t->s;

    _tile_loadd(4, t->q, 64);
    _tile_loadd(5, t->q + TILE_ELEMENTS, 64);
    _tile_loadd(6, t->q + 2 * TILE_ELEMENTS, 64);
    _tile_loadd(7, t->q + 3 * TILE_ELEMENTS, 64);
    for (int32_t j = 0; j < t->n_slots; j += 32, s += 32, k += 4 * TILE_ELEMENTS) {
        for (int32_t i = 0; i < 2; i++) {
            _tile_zero(0);
            _tile_zero(1);
            _tile_loadd(2, k + i * TILE_ELEMENTS, 64);
            _tile_loadd(3, k + (2 + i) * TILE_ELEMENTS, 64);
            _tile_dpbf16ps(0, 4, 2);
            _tile_dpbf16ps(1, 6, 2);
            _tile_dpbf16ps(0, 5, 3);
            _tile_dpbf16ps(1, 7, 3);
            _tile_stored(0, s + 16 * i, TILE_KEYS * 4);
            _tile_stored(1, s + 16 * TILE_KEYS + 16 * i, TILE_KEYS * 4);
        }
    }
}

static void tile_qk_amx(const struct cpu_tile_att *t)
{
    if (t->n_kd == 2 && t->n_rows > TILE_ROWS) {
        qk_resident(t);
        return;
    }
    const uint16_t *q1 = t->q + (size_t)t->n_kd * TILE_ELEMENTS;
    const uint16_t *k = t->k;
    const bool two = t->n_rows > TILE_ROWS;
    float *s = t->s;

    for (int32_t j = 0; j < t->n_slots; j += 32, s += 32) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int32_t d = 0; d < t->n_kd; d++, k += 2 * TILE_ELEMENTS) {
            _tile_loadd(4, t->q + (size_t)d * TILE_ELEMENTS, 64);
            _tile_loadd(6, k, 64);
            _tile_loadd(7, k + TILE_ELEMENTS, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (two) {
                _tile_loadd(5, q1 + (size_t)d * TILE_ELEMENTS, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, s, TILE_KEYS * 4);
        _tile_stored(1, s + 16, TILE_KEYS * 4);
        if (two) {
            _tile_stored(2, s + 16 * TILE_KEYS, TILE_KEYS * 4);
            _tile_stored(3, s + 16 * TILE_KEYS + 16, TILE_KEYS * 4);
        }
    }
}

static void tile_pv_amx(const struct cpu_tile_att *t)
{
    const size_t stride = t->ld_acc * 4;
    const bool two = t->n_rows > TILE_ROWS;
    const uint16_t *p1 = t->p + (size_t)TILE_KEY_TILES * TILE_ELEMENTS;
    const int32_t n_k = t->n_slots / TILE_COLS;

    for (int32_t d = 0; d < t->n_vd; d += 2) {
        const uint16_t *v = t->v + (size_t)d * TILE_KEY_TILES * TILE_ELEMENTS;
        const bool pair = d + 1 < t->n_vd;
        float *c0 = t->acc + 16 * d;
        float *c2 = c0 + 16 * t->ld_acc;

        _tile_loadd(0, c0, stride);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        if (pair) {
            _tile_loadd(1, c0 + 16, stride);
        }
        if (two) {
            _tile_loadd(2, c2, stride);
        }
        if (two && pair) {
            _tile_loadd(3, c2 + 16, stride);
        }
        for (int32_t k = 0; k < n_k; k++, v += 2 * TILE_ELEMENTS) {
            _tile_loadd(4, t->p + (size_t)k * TILE_ELEMENTS, 64);
            _tile_loadd(6, v, 64);
            _tile_loadd(7, v + TILE_ELEMENTS, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (two) {
                _tile_loadd(5, p1 + (size_t)k * TILE_ELEMENTS, 64);
                _tile_dpbf16ps(2, 5, 6);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
        _tile_stored(0, c0, stride);
        if (pair) {
            _tile_stored(1, c0 + 16, stride);
        }
        if (two) {
            _tile_stored(2, c2, stride);
        }
        if (two && pair) {
            _tile_stored(3, c2 + 16, stride);
        }
    }
}

/* ---- softmax ----------------------------------------------------------------------------------
 */

static inline __m512 exp2_of(__m512 x)
{
    __m512 f = _mm512_reduce_ps(x, 1); /* x - floor(x) */
    __m512 p = _mm512_set1_ps(0x1.3f9636p-4f);

    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.cefcb0p-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.64443ep-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0x1.fff634p-1f));
    return _mm512_scalef_ps(p, x);
}

/* What the row's logits are measured against rises; sums so far follow. */
static __attribute__((noinline)) void raise_max(const struct cpu_tile_att *t, int32_t row,
                                                float max)
{
    float *acc = t->acc + (size_t)row * t->ld_acc;
    float f = t->max[row] > CPU_KV_MASKED ? exp2f(t->max[row] - max) : 0;
    __m512 factor = _mm512_set1_ps(f);

    t->max[row] = max;
    t->sum[row] *= f;
    t->factor[row] = f;
    for (int32_t d = 0; d < t->n_vd; d++) {
        _mm512_storeu_ps(acc + 16 * d, _mm512_mul_ps(_mm512_loadu_ps(acc + 16 * d), factor));
    }
}

/* Row `row`'s logits of n vectors of slots, in place: scaled, within +-LOGIT_MAX, masked where
 * `pos` says so. Returns their maximum lane by lane. */
UNROLL_INLINE __m512 soft_logits(const struct cpu_tile_att *t, int32_t row, int n, __m512 *x)
{
    const float *s = t->s + (size_t)row * TILE_KEYS;
    const __m512 masked = _mm512_set1_ps(CPU_KV_MASKED);
    const __m512 least = _mm512_set1_ps(-LOGIT_MAX);
    const __m512 limit = _mm512_set1_ps(LOGIT_MAX);
    __m512 m0 = masked;
    __m512 m1 = masked;

    UNROLL_LOOP
    for (int j = 0; j < n; j++) {
        x[j] = _mm512_mul_ps(_mm512_loadu_ps(s + 16 * j), _mm512_loadu_ps(t->k_mul + 16 * j));
        /* NaN (of infinities that cancel) becomes the least; a maximum would pass it over. */
        x[j] = _mm512_min_ps(_mm512_max_ps(x[j], least), limit);
    }
    if (t->pos) {
        int32_t hi = t->row_pos + row;
        int32_t lo = t->window > 0 && hi - t->window + 1 > 0 ? hi - t->window + 1 : 0;

        UNROLL_LOOP
        for (int j = 0; j < n; j++) {
            __m512i p = _mm512_loadu_si512(t->pos + 16 * j);
            __mmask16 seen = _mm512_cmpge_epi32_mask(p, _mm512_set1_epi32(lo));

            seen = _mm512_mask_cmple_epi32_mask(seen, p, _mm512_set1_epi32(hi));
            x[j] = _mm512_mask_blend_ps(seen, masked, x[j]);
        }
    }
    UNROLL_LOOP
    for (int j = 0; j < n; j += 2) {
        m0 = _mm512_max_ps(m0, x[j]);
        m1 = _mm512_max_ps(m1, x[j + 1]);
    }
    return _mm512_max_ps(m0, m1);
}

UNROLL_INLINE void soft_row(const struct cpu_tile_att *t, int32_t row, int n)
{
    uint16_t *p = t->p + ((size_t)(row / TILE_ROWS) * TILE_KEY_TILES * TILE_ELEMENTS +
                          (size_t)(row % TILE_ROWS) * TILE_COLS);
    __m512 x[TILE_KEYS / 16];
    __m512 top = soft_logits(t, row, n, x);
    __m512 l0 = _mm512_setzero_ps();
    __m512 l1 = _mm512_setzero_ps();

    t->factor[row] = 1;
    if (_mm512_cmp_ps_mask(top, _mm512_set1_ps(t->max[row] + LAG), _CMP_NLE_UQ)) {
        raise_max(t, row, _mm512_reduce_max_ps(top));
    }
    const __m512 m = _mm512_set1_ps(t->max[row] > CPU_KV_MASKED ? t->max[row] : 0);

    UNROLL_LOOP
    for (int j = 0; j < n; j += 2) {
        __m512 a = exp2_of(_mm512_sub_ps(x[j], m));
        __m512 b = exp2_of(_mm512_sub_ps(x[j + 1], m));

        l0 = _mm512_add_ps(l0, a);
        l1 = _mm512_add_ps(l1, b);
        if (t->seen) {
            float *seen = t->seen + (size_t)row * t->ld_seen + 16 * j;

            _mm512_storeu_ps(seen, a);
            _mm512_storeu_ps(seen + 16, b);
        }
        if (t->v_mul) {
            a = _mm512_mul_ps(a, _mm512_loadu_ps(t->v_mul + 16 * j));
            b = _mm512_mul_ps(b, _mm512_loadu_ps(t->v_mul + 16 * j + 16));
        }
        _mm512_storeu_si512(p + (size_t)(j / 2) * TILE_ELEMENTS,
                            (__m512i)_mm512_cvtne2ps_pbh(b, a));
    }
    t->sum[row] += _mm512_reduce_add_ps(_mm512_add_ps(l0, l1));
}

/* Whole steps have their logits in registers. */
static void tile_soft_amx(const struct cpu_tile_att *t)
{
    if (t->n_slots == TILE_KEYS) {
        for (int32_t i = 0; i < t->n_rows; i++) {
            soft_row(t, i, TILE_KEYS / 16);
        }
        return;
    }
    for (int32_t i = 0; i < t->n_rows; i++) {
        switch (t->n_slots / 32) {
        case 1:
            soft_row(t, i, 2);
            break;
        case 2:
            soft_row(t, i, 4);
            break;
        case 3:
            soft_row(t, i, 6);
            break;
        case 4:
            soft_row(t, i, 8);
            break;
        case 5:
            soft_row(t, i, 10);
            break;
        case 6:
            soft_row(t, i, 12);
            break;
        default:
            soft_row(t, i, 14);
            break;
        }
    }
}

void x86_table_kv_amx(struct cpu_table *t)
{
    CPU_TABLE_SET(t, tile_kv, amx);
    CPU_TABLE_SET(t, tile_qk, amx);
    CPU_TABLE_SET(t, tile_soft, amx);
    CPU_TABLE_SET(t, tile_pv, amx);
}
