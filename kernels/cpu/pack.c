/* SPDX-License-Identifier: Apache-2.0 */
/* Weights into panels at load, and single rows back out for embeddings.
 *
 * The file's blocks of 32 keep columns j and j + 16 in one byte, which is what a panel's nibble
 * vectors do: such a block is moved as four dwords. Everything else goes code by code. Packing
 * runs once a load, some hundred megabytes a second a thread; decoding runs for one row a token. */

#include "kernels/cpu/pack.h"

#include <string.h>

#include "kernels/cpu/panel.h"
#include "quant/codebook.h"
#include "quant/half.h"

static void put16(uint8_t *at, int lane, uint16_t v)
{
    memcpy(at + 2 * lane, &v, 2);
}

static uint16_t get16(const uint8_t *at, int lane)
{
    uint16_t v;

    memcpy(&v, at + 2 * lane, 2);
    return v;
}

static float get_half(const uint8_t *at, int lane)
{
    return half_f16_to_f32(get16(at, lane));
}

/* n dwords of consecutive columns, one to each of n vectors. */
static void put_dwords(uint8_t *at, int lane, const uint8_t *src, int n, uint32_t flip)
{
    for (int j = 0; j < n; j++) {
        uint32_t v;

        memcpy(&v, src + 4 * j, 4);
        v ^= flip;
        memcpy(at + 64 * j + 4 * lane, &v, 4);
    }
}

/* The fifth bits of 32 columns (bit c belongs to column c) as the dword of one lane. */
static void put_high1(uint8_t *at, int lane, uint32_t bits)
{
    uint32_t v = 0;

    for (int c = 0; c < 32; c++) {
        v |= (bits >> c & 1) << (c / 4 + 8 * (c % 4));
    }
    memcpy(at + 4 * lane, &v, 4);
}

static uint32_t word(const uint8_t p[4])
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Codes of up to 4 + `high` bits of one block, for types whose file order is not the panel's. */
static void put_codes(uint8_t *at, int lane, const uint8_t q[32], int high)
{
    uint8_t low[16];
    uint32_t bits = 0;

    for (int c = 0; c < 16; c++) {
        low[c] = (uint8_t)((q[c] & 15) | q[c + 16] << 4);
    }
    put_dwords(at, lane, low, 4, 0);
    if (high == 1) {
        for (int c = 0; c < 32; c++) {
            bits |= (uint32_t)(q[c] >> 4 & 1) << c;
        }
        put_high1(at + PANEL_NIBBLES, lane, bits);
    } else if (high == 2) {
        for (int h = 0; h < 2; h++) {
            bits = 0;
            for (int c = 0; c < 16; c++) {
                bits |= (uint32_t)(q[16 * h + c] >> 4 & 3) << (2 * (c / 4) + 8 * (c % 4));
            }
            memcpy(at + PANEL_NIBBLES + 64 * h + 4 * lane, &bits, 4);
        }
    }
}

static void pack_32(enum dtype type, const uint8_t *src, int lane, uint8_t *w)
{
    switch (type) {
    case DTYPE_Q4_0: {
        const struct block_q4_0 *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put16(w + PANEL_NIBBLES, lane, b->d);
        break;
    }
    case DTYPE_Q4_1: {
        const struct block_q4_1 *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put16(w + PANEL_NIBBLES, lane, b->d);
        put16(w + PANEL_NIBBLES + PANEL_SCALES, lane, b->m);
        break;
    }
    case DTYPE_Q5_0: {
        const struct block_q5_0 *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put_high1(w + PANEL_NIBBLES, lane, word(b->qh));
        put16(w + PANEL_NIBBLES + PANEL_HIGH1, lane, b->d);
        break;
    }
    case DTYPE_Q5_1: {
        const struct block_q5_1 *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put_high1(w + PANEL_NIBBLES, lane, word(b->qh));
        put16(w + PANEL_NIBBLES + PANEL_HIGH1, lane, b->d);
        put16(w + PANEL_NIBBLES + PANEL_HIGH1 + PANEL_SCALES, lane, b->m);
        break;
    }
    case DTYPE_IQ4_NL: {
        const struct block_iq4_nl *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put16(w + PANEL_NIBBLES, lane, b->d);
        break;
    }
    case DTYPE_MXFP4: {
        const struct block_mxfp4 *b = (const void *)src;

        put_dwords(w, lane, b->qs, 4, 0);
        put16(w + PANEL_NIBBLES, lane, (uint16_t)(codebook_e8m0_bits(b->e) >> 16));
        break;
    }
    default: { /* Q8_0 */
        const struct block_q8_0 *b = (const void *)src;

        put_dwords(w, lane, (const uint8_t *)b->qs, 8, 0x80808080u);
        put16(w + PANEL_BYTES, lane, b->d);
        break;
    }
    }
}

/* Eight 6-bit scales and minima in 12 bytes; how they are interleaved is the format's. */
static void put_scales_k(uint8_t *head, int lane, const uint8_t s[12])
{
    for (int i = 0; i < 8; i++) {
        int sc = i < 4 ? s[i] & 63 : (s[i + 4] & 15) | (s[i - 4] >> 6) << 4;
        int mn = i < 4 ? s[i + 4] & 63 : s[i + 4] >> 4 | (s[i] >> 6) << 4;

        head[PANEL_SUPER_SC + 16 * i + lane] = (uint8_t)sc;
        head[PANEL_SUPER_MN + 16 * i + lane] = (uint8_t)mn;
    }
}

static void pack_q45_k(enum dtype type, const uint8_t *src, int lane, uint8_t *head)
{
    /* Q5_K is Q4_K with 32 bytes of high bits before the nibbles. */
    const struct block_q4_k *b4 = (const void *)src;
    const struct block_q5_k *b5 = (const void *)src;
    const uint8_t *qs = type == DTYPE_Q5_K ? b5->qs : b4->qs;
    const int step = PANEL_NIBBLES + (type == DTYPE_Q5_K ? PANEL_HIGH1 : 0);
    uint8_t q[32];

    put16(head, lane, b4->d);
    put16(head + PANEL_SCALES, lane, b4->dmin);
    put_scales_k(head, lane, b4->scales);
    for (int g = 0; g < 8; g++) {
        for (int c = 0; c < 32; c++) {
            int high = type == DTYPE_Q5_K ? b5->qh[c] >> g & 1 : 0;

            q[c] = (uint8_t)((qs[g / 2 * 32 + c] >> (g % 2 * 4) & 15) | high << 4);
        }
        put_codes(head + PANEL_SUPER_HEAD + step * g, lane, q, type == DTYPE_Q5_K);
    }
}

static void pack_q6_k(const uint8_t *src, int lane, uint8_t *head)
{
    const struct block_q6_k *b = (const void *)src;
    const int step = PANEL_NIBBLES + PANEL_HIGH2;
    uint8_t q[32];

    put16(head, lane, b->d);
    for (int i = 0; i < 16; i++) {
        head[PANEL_SUPER_SC + 16 * i + lane] = (uint8_t)b->scales[i];
    }
    for (int g = 0; g < 8; g++) {
        for (int c = 0; c < 32; c++) {
            int k = g % 4 * 32 + c; /* in its half of 128 */
            int low = b->ql[g / 4 * 64 + k % 64] >> (k / 64 * 4) & 15;
            int high = b->qh[g / 4 * 32 + k % 32] >> (k / 32 * 2) & 3;

            q[c] = (uint8_t)(low | high << 4);
        }
        put_codes(head + PANEL_SUPER_HEAD + step * g, lane, q, 2);
    }
}

/* Codes of two bits, or three with the third apart. */
static void put_crumbs(uint8_t *at, int lane, const uint8_t q[32], bool third)
{
    uint8_t low[8] = {0};
    uint32_t bits = 0;

    for (int c = 0; c < 32; c++) {
        low[c % 8] |= (uint8_t)((q[c] & 3) << (c / 8 * 2));
        bits |= (uint32_t)(q[c] >> 2 & 1) << c;
    }
    put_dwords(at, lane, low, 2, 0);
    if (third) {
        put_high1(at + PANEL_CRUMBS, lane, bits);
    }
}

static void pack_q2_k(const uint8_t *src, int lane, uint8_t *head)
{
    const struct block_q2_k *b = (const void *)src;
    uint8_t q[32];

    put16(head, lane, b->d);
    put16(head + PANEL_SCALES, lane, b->dmin);
    for (int i = 0; i < 16; i++) {
        head[PANEL_SUPER_SC + 16 * i + lane] = b->scales[i] & 15;
        head[PANEL_Q2_MN + 16 * i + lane] = b->scales[i] >> 4;
    }
    for (int g = 0; g < 8; g++) {
        for (int c = 0; c < 32; c++) {
            q[c] = (uint8_t)dtype_q2_k_code(b, 32 * g + c);
        }
        put_crumbs(head + PANEL_Q2_HEAD + PANEL_CRUMBS * g, lane, q, false);
    }
}

static void pack_q3_k(const uint8_t *src, int lane, uint8_t *head)
{
    const struct block_q3_k *b = (const void *)src;
    uint8_t q[32];

    put16(head, lane, b->d);
    for (int i = 0; i < 16; i++) {
        head[PANEL_SUPER_SC + 16 * i + lane] = (uint8_t)dtype_q3_k_scale(b, i);
    }
    for (int g = 0; g < 8; g++) {
        for (int c = 0; c < 32; c++) {
            q[c] = (uint8_t)(dtype_q3_k_code(b, 32 * g + c) + 4);
        }
        put_crumbs(head + PANEL_SUPER_HEAD + (PANEL_CRUMBS + PANEL_HIGH1) * g, lane, q, true);
    }
}

static void pack_iq4_xs(const uint8_t *src, int lane, uint8_t *head)
{
    const struct block_iq4_xs *b = (const void *)src;

    put16(head, lane, b->d);
    for (int g = 0; g < 8; g++) {
        int sc = (b->scales_l[g / 2] >> (g % 2 * 4) & 15) | (b->scales_h >> (2 * g) & 3) << 4;

        head[PANEL_SUPER_SC + 16 * g + lane] = (uint8_t)(sc - 32);
        put_dwords(head + PANEL_XS_HEAD + PANEL_NIBBLES * g, lane, b->qs + 16 * g, 4, 0);
    }
}

static void pack_float(enum dtype type, const uint8_t *src, int lane, int32_t n, uint8_t *w)
{
    for (int32_t k = 0; k < n; k++) {
        if (type == DTYPE_F32) {
            memcpy(w + 64 * (size_t)k + 4 * lane, src + 4 * (size_t)k, 4);
        } else if (type == DTYPE_F16) {
            memcpy(w + 32 * (size_t)k + 2 * lane, src + 2 * (size_t)k, 2);
        } else {
            memcpy(w + 64 * (size_t)(k / 2) + 4 * lane + 2 * (k % 2), src + 2 * (size_t)k, 2);
        }
    }
}

void pack_panel(enum dtype type, const uint8_t *rows, size_t row_bytes, int n_rows, int32_t n_cols,
                uint8_t *panel)
{
    const struct dtype_info *info = dtype_info(type);
    const size_t step = (size_t)panel_bytes(type, (uint64_t)info->block_len);

    for (int r = 0; r < n_rows; r++, rows += row_bytes) {
        if (info->block_len == 1) {
            pack_float(type, rows, r, n_cols, panel);
            continue;
        }
        for (int32_t b = 0; b < n_cols / info->block_len; b++) {
            const uint8_t *src = rows + (size_t)b * info->block_bytes;
            uint8_t *w = panel + (size_t)b * step;

            if (type == DTYPE_Q6_K) {
                pack_q6_k(src, r, w);
            } else if (type == DTYPE_Q2_K) {
                pack_q2_k(src, r, w);
            } else if (type == DTYPE_Q3_K) {
                pack_q3_k(src, r, w);
            } else if (type == DTYPE_IQ4_XS) {
                pack_iq4_xs(src, r, w);
            } else if (info->block_len == 256) {
                pack_q45_k(type, src, r, w);
            } else {
                pack_32(type, src, r, w);
            }
        }
    }
}

/* The codes of one lane's block: bits 4 (+ 1 or 2 high), or 8. */
static void get_codes(const uint8_t *w, int lane, int bits, uint8_t q[32])
{
    uint32_t high[2];

    if (bits == 8) {
        for (int j = 0; j < 8; j++) {
            memcpy(q + 4 * j, w + 64 * j + 4 * lane, 4);
        }
        return;
    }
    for (int c = 0; c < 16; c++) {
        uint8_t v = w[c / 4 * 64 + 4 * lane + c % 4];

        q[c] = v & 15;
        q[c + 16] = v >> 4;
    }
    if (bits == 5) {
        memcpy(high, w + PANEL_NIBBLES + 4 * lane, 4);
        for (int c = 0; c < 32; c++) {
            q[c] |= (uint8_t)((high[0] >> (c / 4 + 8 * (c % 4)) & 1) << 4);
        }
    } else if (bits == 6) {
        memcpy(&high[0], w + PANEL_NIBBLES + 4 * lane, 4);
        memcpy(&high[1], w + PANEL_NIBBLES + 64 + 4 * lane, 4);
        for (int c = 0; c < 32; c++) {
            q[c] |= (uint8_t)((high[c / 16] >> (2 * (c % 16 / 4) + 8 * (c % 4)) & 3) << 4);
        }
    }
}

static void decode_looked_up(enum dtype type, const uint8_t *w, int lane, float d, float *y)
{
    static const float iq4[16] = {CODEBOOK_IQ4(CODEBOOK_VALUE)};
    static const float mxfp4[16] = {CODEBOOK_MXFP4(CODEBOOK_VALUE)};
    uint8_t q[32];

    get_codes(w, lane, 4, q);
    for (int c = 0; c < 32; c++) {
        y[c] = d * (type == DTYPE_MXFP4 ? mxfp4 : iq4)[q[c]];
    }
}

static void decode_32(enum dtype type, const uint8_t *w, int lane, float *y)
{
    int bits = type == DTYPE_Q8_0 ? 8 : type == DTYPE_Q5_0 || type == DTYPE_Q5_1 ? 5 : 4;
    int zero = type == DTYPE_Q8_0 ? 128 : type == DTYPE_Q5_0 ? 16 : type == DTYPE_Q4_0 ? 8 : 0;
    const uint8_t *scale =
        w + (bits == 8 ? PANEL_BYTES : PANEL_NIBBLES + (bits == 5 ? PANEL_HIGH1 : 0));
    float d = get_half(scale, lane);
    uint8_t q[32];

    if (type == DTYPE_IQ4_NL || type == DTYPE_MXFP4) {
        d = type == DTYPE_MXFP4 ? half_bf16_to_f32(get16(scale, lane)) : d;
        decode_looked_up(type, w, lane, d, y);
        return;
    }
    get_codes(w, lane, bits, q);
    if (zero) {
        for (int c = 0; c < 32; c++) {
            y[c] = d * (float)(q[c] - zero);
        }
        return;
    }
    float m = get_half(scale + PANEL_SCALES, lane);
    for (int c = 0; c < 32; c++) {
        y[c] = d * (float)q[c] + m;
    }
}

static void decode_256(enum dtype type, const uint8_t *head, int lane, float *y)
{
    const int bits = type == DTYPE_Q6_K ? 6 : type == DTYPE_Q5_K ? 5 : 4;
    const size_t step = bits == 6   ? PANEL_NIBBLES + PANEL_HIGH2
                        : bits == 5 ? PANEL_NIBBLES + PANEL_HIGH1
                                    : PANEL_NIBBLES;
    const uint8_t *sc = head + PANEL_SUPER_SC + lane;
    const uint8_t *mn = head + PANEL_SUPER_MN + lane;
    float d = get_half(head, lane);
    float dmin = get_half(head + PANEL_SCALES, lane);
    uint8_t q[32];

    for (int g = 0; g < 8; g++, y += 32) {
        get_codes(head + PANEL_SUPER_HEAD + step * (size_t)g, lane, bits, q);
        for (int c = 0; c < 32; c++) {
            if (bits == 6) {
                float scale = d * (float)(int8_t)sc[16 * (2 * g + c / 16)];

                y[c] = scale * (float)(q[c] - 32);
            } else {
                float scale = d * (float)sc[16 * g];

                y[c] = scale * (float)q[c] - dmin * (float)mn[16 * g];
            }
        }
    }
}

static void decode_crumbs(enum dtype type, const uint8_t *head, int lane, float *y)
{
    const bool third = type == DTYPE_Q3_K;
    const uint8_t *w = head + (third ? PANEL_SUPER_HEAD : PANEL_Q2_HEAD) + 4 * lane;
    const uint8_t *sc = head + PANEL_SUPER_SC + lane;
    const uint8_t *mn = head + PANEL_Q2_MN + lane;
    float d = get_half(head, lane);
    float dmin = get_half(head + PANEL_SCALES, lane);

    for (int k = 0; k < 256; k++) {
        const uint8_t *at = w + (PANEL_CRUMBS + (third ? PANEL_HIGH1 : 0)) * (k / 32);
        int c = k % 32;
        int q = at[c % 8 / 4 * 64 + c % 4] >> (c / 8 * 2) & 3;
        int i = 16 * (k / 16);

        if (third) {
            q |= (at[PANEL_CRUMBS + c % 4] >> (c / 4) & 1) << 2;
            y[k] = d * (float)(int8_t)sc[i] * (float)(q - 4);
        } else {
            y[k] = d * (float)sc[i] * (float)q - dmin * (float)mn[i];
        }
    }
}

static void decode_iq4_xs(const uint8_t *head, int lane, float *y)
{
    float d = get_half(head, lane);

    for (int g = 0; g < 8; g++, y += 32) {
        int8_t sc = (int8_t)head[PANEL_SUPER_SC + 16 * g + lane];

        decode_looked_up(DTYPE_IQ4_XS, head + PANEL_XS_HEAD + (size_t)PANEL_NIBBLES * (size_t)g,
                         lane, d * (float)sc, y);
    }
}

static void decode_float(enum dtype type, const uint8_t *w, int lane, int32_t n, float *y)
{
    for (int32_t k = 0; k < n; k++) {
        if (type == DTYPE_F32) {
            memcpy(y + k, w + 64 * (size_t)k + 4 * lane, 4);
        } else if (type == DTYPE_F16) {
            y[k] = get_half(w + 32 * (size_t)k, lane);
        } else {
            y[k] = half_bf16_to_f32(get16(w + 64 * (size_t)(k / 2) + 4 * lane, k % 2));
        }
    }
}

void pack_decode_row(enum dtype type, const uint8_t *panels, int32_t row, int32_t n_cols, float *y)
{
    const int len = dtype_info(type)->block_len;
    const size_t step = (size_t)panel_bytes(type, (uint64_t)len);
    const int lane = row % PANEL_ROWS;
    const uint8_t *w =
        panels + (size_t)(row / PANEL_ROWS) * (size_t)panel_bytes(type, (uint64_t)n_cols);

    if (len == 1) {
        decode_float(type, w, lane, n_cols, y);
        return;
    }
    for (int32_t b = 0; b < n_cols / len; b++, w += step, y += len) {
        if (type == DTYPE_Q2_K || type == DTYPE_Q3_K) {
            decode_crumbs(type, w, lane, y);
        } else if (type == DTYPE_IQ4_XS) {
            decode_iq4_xs(w, lane, y);
        } else if (len == 256) {
            decode_256(type, w, lane, y);
        } else {
            decode_32(type, w, lane, y);
        }
    }
}
