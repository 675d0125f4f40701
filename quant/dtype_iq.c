/* SPDX-License-Identifier: Apache-2.0 */
/* Types whose codes are places in a table (quant/codebook.h): IQ4_NL and MXFP4 in blocks of 32,
 * IQ4_XS in blocks of 256 with a 6-bit scale for each 32.
 *
 * Encoding MXFP4 is defined by the format's reference: the exponent follows from the largest value,
 * each code is the nearest value, the first in the table of two alike. IQ4_NL's scale is a search:
 * the largest value is put at either end of the table, or a little beside it, the scale is refined
 * by least squares, and the one with the least sum of squared errors stays. IQ4_XS has no encoder.
 */

#include "quant/dtype_blocks.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "quant/codebook.h"
#include "quant/dtype.h"

enum {
    LEN = 32,
    HALF = 16,
    STRETCHES = 8, /* of IQ4_NL's search, to either side, 1/50 each */
    ZERO = 8,      /* IQ4_NL's code next to 0: its sign is that of the scale */
};

static const float iq4[16] = {CODEBOOK_IQ4(CODEBOOK_VALUE)};
static const float mxfp4[16] = {CODEBOOK_MXFP4(CODEBOOK_VALUE)};

static void decode_half(const float table[16], float d, const uint8_t qs[HALF], float *dst)
{
    for (int j = 0; j < HALF; j++) {
        dst[j] = d * table[qs[j] & 15];
        dst[j + HALF] = d * table[qs[j] >> 4];
    }
}

static void put_codes(const uint8_t q[LEN], uint8_t qs[HALF])
{
    for (int j = 0; j < HALF; j++) {
        qs[j] = (uint8_t)(q[j] | q[j + HALF] << 4);
    }
}

void dtype_decode_iq4_nl(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_iq4_nl *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        decode_half(iq4, half_f16_to_f32(b->d), b->qs, dst);
    }
}

void dtype_decode_iq4_xs(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_iq4_xs *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++) {
        float d = half_f16_to_f32(b->d);

        for (int g = 0; g < 8; g++, dst += LEN) {
            int low = b->scales_l[g / 2] >> (g % 2 * 4) & 15;
            int high = b->scales_h >> (2 * g) & 3;

            decode_half(iq4, d * (float)((low | high << 4) - 32), b->qs + g * HALF, dst);
        }
    }
}

void dtype_decode_mxfp4(const void *src, float *dst, uint64_t n_blocks)
{
    const struct block_mxfp4 *b = src;

    for (uint64_t i = 0; i < n_blocks; i++, b++, dst += LEN) {
        decode_half(mxfp4, codebook_e8m0(b->e), b->qs, dst);
    }
}

int dtype_encode_mxfp4(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_mxfp4 *b = dst;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        uint8_t q[LEN];
        float most = 0;
        float e;

        for (int j = 0; j < LEN; j++) {
            most = fmaxf(most, fabsf(src[j]));
        }
        e = most > 0 ? floorf(log2f(most)) + 125 : 0;
        b->e = e > 0 ? (uint8_t)e : 0;
        for (int j = 0; j < LEN; j++) {
            float d = codebook_e8m0(b->e);
            float least = INFINITY;

            q[j] = 0;
            for (int k = 0; k < 16; k++) {
                float error = fabsf(d * mxfp4[k] - src[j]);

                if (error < least) {
                    least = error;
                    q[j] = (uint8_t)k;
                }
            }
        }
        put_codes(q, b->qs);
    }
    return 0;
}

/* The place of the value nearest to v; the lower of two alike. */
static int nearest_iq4(float v)
{
    int at = 0;

    for (int step = 8; step > 0; step /= 2) { /* the last value whose lower bound v exceeds */
        at += v > (iq4[at + step] + iq4[at + step - 1]) / 2 ? step : 0;
    }
    return at;
}

/* Codes for a scale, and what they leave. */
static float encode_iq4(const float *x, float d, uint8_t q[LEN])
{
    float left = 0;

    for (int j = 0; j < LEN; j++) {
        float error;

        q[j] = (uint8_t)nearest_iq4(x[j] / d);
        error = x[j] - d * iq4[q[j]];
        left += error * error;
    }
    return left;
}

/* The scale that is best for these codes; 0 where none is. */
static float refit_iq4(const float *x, const uint8_t q[LEN])
{
    float xv = 0;
    float vv = 0;

    for (int j = 0; j < LEN; j++) {
        xv += x[j] * iq4[q[j]];
        vv += iq4[q[j]] * iq4[q[j]];
    }
    return vv > 0 ? xv / vv : 0;
}

static void try_iq4(const float *x, float d, struct block_iq4_nl *b, float *least)
{
    uint16_t h = half_f16_from_f32(d);
    float read = half_f16_to_f32(h);
    uint8_t q[LEN];
    float left;

    if (read == 0 || !isfinite(read)) {
        return;
    }
    left = encode_iq4(x, read, q);
    if (left < *least) {
        *least = left;
        b->d = h;
        put_codes(q, b->qs);
    }
}

/* x[most] is the largest. What no scale fits leaves the block as it is. */
static void search_iq4(const float *x, int most, struct block_iq4_nl *b)
{
    float least = INFINITY;

    for (int end = 0; end < 16; end += 15) {
        for (int i = -STRETCHES; i <= STRETCHES; i++) {
            float d = x[most] / iq4[end] * (1 + (float)i * 0.02f);
            uint8_t q[LEN];

            try_iq4(x, d, b, &least);
            if (d != 0 && fabsf(d) < 65504) {
                (void)encode_iq4(x, d, q);
                try_iq4(x, refit_iq4(x, q), b, &least);
            }
        }
    }
}

int dtype_encode_iq4_nl(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_iq4_nl *b = dst;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        int most = 0;

        for (int j = 1; j < LEN; j++) {
            most = fabsf(src[j]) > fabsf(src[most]) ? j : most;
        }
        b->d = 0;
        memset(b->qs, ZERO | ZERO << 4, HALF);
        if (fabsf(src[most]) > 127 * 65504.0f) {
            return -EINVAL;
        }
        search_iq4(src, most, b);
    }
    return 0;
}
