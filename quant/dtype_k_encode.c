/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders of K-quant blocks: a search for the codes with the least sum of squared errors.
 *
 * Q4_K and Q5_K say x = d * scale_g * q - dmin * min_g, eight groups of 32 a block, scales and
 * minima of 6 bits; Q6_K says x = d * scale_g * q, sixteen groups of 16, signed scales of 8 bits.
 * Three stages:
 *
 *  1. each group alone: a line through its values for every way to lay the codes over their range
 *     (a range a little larger or smaller than it is), refined by least squares; the best one;
 *  2. the block's d and dmin from the largest scale and minimum; each group takes the best of the
 * small integers around its own, with codes made anew for each;
 *  3. d and dmin anew by least squares over the block, and stage 2 again, as long as that gains.
 *
 * Every value counts the same: what decoding gives is nearest to what was there. A block whose
 * scales are below the least f16 becomes zeros, as in the types with blocks of 32. */

#include "quant/dtype_blocks.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "quant/dtype.h"
#include "quant/half.h"

enum {
    LEN = 256,
    AFFINE = 32,     /* a group of Q4_K and Q5_K, */
    SIGNED = 16,     /* of Q6_K */
    MOST_SMALL = 63, /* a scale or minimum of 6 bits */
    STRETCHES = 10,  /* ways to stretch a group's range, to either side, a tenth of a code each */
    REFITS = 3,      /* of stage 3, at most */
};

/* The f16 nearest to v, as stored and as read; false where there is none. */
static bool to_half(float v, uint16_t *ret, float *ret_read)
{
    *ret = half_f16_from_f32(v);
    *ret_read = half_f16_to_f32(*ret);
    return (*ret & 0x7fff) < 0x7c00;
}

/* Clamped first, so that a cast rounds. */
static int nearest(float v, int least, int most)
{
    v = v - (float)least;
    v = v > 0 ? v : 0;
    v = v < (float)(most - least) ? v : (float)(most - least);
    return (int)(v + 0.5f) + least;
}

/* Errors are summed in lanes, so that a compiler may use vectors. */
static float sum_squares(const float *d, int n)
{
    float lane[8] = {0};

    for (int j = 0; j < n; j += 8) {
        for (int k = 0; k < 8; k++) {
            lane[k] += d[j + k] * d[j + k];
        }
    }
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/* ---- x = scale * q - min, q from 0 to most ----------------------------------------------------
 */

/* Codes for a scale and a minimum; returns the error. */
static float code_affine(const float *x, float scale, float min, int most, uint8_t *q)
{
    float inverse = scale > 0 ? 1 / scale : 0;
    float d[AFFINE];

    inverse = isfinite(inverse) ? inverse : 0;
    for (int j = 0; j < AFFINE; j++) {
        int code = nearest((x[j] + min) * inverse, 0, most);

        q[j] = (uint8_t)code;
        d[j] = x[j] - (scale * (float)code - min);
    }
    return sum_squares(d, AFFINE);
}

/* The line through codes and values with the least error; min and scale not negative. */
static void line_through(const float *x, const uint8_t *q, float *ret_scale, float *ret_min)
{
    double n = AFFINE;
    int32_t sum_q = 0;
    int32_t sum_qq = 0;
    double s_x = 0;
    double s_xq = 0;

    for (int j = 0; j < AFFINE; j++) {
        sum_q += q[j];
        sum_qq += q[j] * q[j];
        s_x += (double)x[j];
        s_xq += (double)x[j] * q[j];
    }
    double s_q = sum_q;
    double s_qq = sum_qq;
    double det = n * s_qq - s_q * s_q;
    double scale = det > 0 ? (n * s_xq - s_x * s_q) / det : 0;
    double min = -(s_x - scale * s_q) / n;

    if (min < 0) {
        min = 0;
        scale = s_qq > 0 ? s_xq / s_qq : 0;
    }
    *ret_scale = (float)(scale > 0 ? scale : 0);
    *ret_min = (float)min;
}

static void fit_affine(const float *x, int most, float *ret_scale, float *ret_min)
{
    float low = 0;
    float high = x[0];
    float best = INFINITY;
    uint8_t q[AFFINE];

    for (int j = 0; j < AFFINE; j++) {
        low = x[j] < low ? x[j] : low;
        high = x[j] > high ? x[j] : high;
    }
    /* Where squares are beyond f32 nothing is better than this, and to_half() refuses it. */
    *ret_scale = (high - low) / (float)most;
    *ret_min = -low;
    for (int k = -STRETCHES; k <= STRETCHES && high > low; k++) {
        float scale = (high - low) / ((float)most + 0.1f * (float)k);
        float min = -low;

        for (int pass = 0; pass < 3; pass++) {
            float error = code_affine(x, scale, min, most, q);

            if (error < best) {
                best = error;
                *ret_scale = scale;
                *ret_min = min;
            }
            line_through(x, q, &scale, &min);
        }
    }
}

/* A block of either type on its way: what is stored, and its codes one by one. */
struct affine {
    float d;
    float dmin;
    int scale[8];
    int min[8];
    uint8_t q[LEN];
    double error;
};

/* The small integers near `scale` and `min` with the least error. */
static double choose_group(const float *x, const struct affine *a, int most, int g, int reach,
                           int *ret_scale, int *ret_min, uint8_t *ret_q)
{
    float best = INFINITY;
    uint8_t q[AFFINE];
    int scale0 = *ret_scale;
    int min0 = *ret_min;

    for (int s = scale0 - reach; s <= scale0 + reach; s++) {
        for (int m = min0 - reach; m <= min0 + reach; m++) {
            if (s < 0 || m < 0 || s > MOST_SMALL || m > MOST_SMALL) {
                continue;
            }
            float error = code_affine(x + g * AFFINE, a->d * (float)s, a->dmin * (float)m, most, q);

            if (error < best) {
                best = error;
                *ret_scale = s;
                *ret_min = m;
                memcpy(ret_q, q, sizeof(q));
            }
        }
    }
    return (double)best;
}

static int small(float v, float unit)
{
    return unit > 0 ? nearest(v / unit, 0, MOST_SMALL) : 0;
}

/* d and dmin that suit the block's codes best: x = d * (scale q) - dmin * min. */
static void refit(const float *x, const struct affine *a, float *ret_d, float *ret_dmin)
{
    double aa = 0;
    double ab = 0;
    double bb = 0;
    double xa = 0;
    double xb = 0;

    for (int i = 0; i < LEN; i++) {
        double u = (double)a->scale[i / AFFINE] * a->q[i];
        double v = -(double)a->min[i / AFFINE];

        aa += u * u;
        ab += u * v;
        bb += v * v;
        xa += (double)x[i] * u;
        xb += (double)x[i] * v;
    }
    double det = aa * bb - ab * ab;

    *ret_d = a->d;
    *ret_dmin = a->dmin;
    if (det > 1e-9 * aa * bb) {
        double d = (xa * bb - xb * ab) / det;
        double dmin = (xb * aa - xa * ab) / det;

        if (d > 0 && dmin >= 0) {
            *ret_d = (float)d;
            *ret_dmin = (float)dmin;
        }
    } else if (aa > 0 && bb <= 0 && xa > 0) {
        *ret_d = (float)(xa / aa);
    }
}

static void round_groups(const float *x, const float *scale, const float *min, int most, int reach,
                         struct affine *a)
{
    a->error = 0;
    for (int g = 0; g < 8; g++) {
        a->scale[g] = small(scale[g], a->d);
        a->min[g] = small(min[g], a->dmin);
        a->error += choose_group(x, a, most, g, reach, &a->scale[g], &a->min[g], a->q + g * AFFINE);
    }
}

/* -EINVAL: d or dmin is no f16. */
static int encode_affine(const float *x, int most, struct affine *a, uint16_t *ret_d,
                         uint16_t *ret_dmin)
{
    float scale[8];
    float min[8];
    float max_scale = 0;
    float max_min = 0;

    for (int g = 0; g < 8; g++) {
        fit_affine(x + g * AFFINE, most, &scale[g], &min[g]);
        max_scale = scale[g] > max_scale ? scale[g] : max_scale;
        max_min = min[g] > max_min ? min[g] : max_min;
    }
    if (!to_half(max_scale / MOST_SMALL, ret_d, &a->d) ||
        !to_half(max_min / MOST_SMALL, ret_dmin, &a->dmin)) {
        return -EINVAL;
    }
    round_groups(x, scale, min, most, 2, a);
    for (int k = 0; k < REFITS; k++) {
        struct affine next = *a;
        uint16_t d;
        uint16_t dmin;

        refit(x, a, &next.d, &next.dmin);
        if (!to_half(next.d, &d, &next.d) || !to_half(next.dmin, &dmin, &next.dmin)) {
            break;
        }
        round_groups(x, scale, min, most, 1, &next);
        if (next.error >= a->error) {
            break;
        }
        *a = next;
        *ret_d = d;
        *ret_dmin = dmin;
    }
    return 0;
}

/* The inverse of what dtype_k.c reads. */
static void pack_scales(const struct affine *a, uint8_t s[12])
{
    memset(s, 0, 12);
    for (int i = 0; i < 4; i++) {
        s[i] = (uint8_t)(a->scale[i] | (a->scale[i + 4] >> 4) << 6);
        s[i + 4] = (uint8_t)(a->min[i] | (a->min[i + 4] >> 4) << 6);
        s[i + 8] = (uint8_t)((a->scale[i + 4] & 15) | (a->min[i + 4] & 15) << 4);
    }
}

static void pack_nibbles(const struct affine *a, uint8_t qs[128])
{
    for (int i = 0; i < 128; i++) {
        const uint8_t *q = a->q + i / 32 * 64 + i % 32;

        qs[i] = (uint8_t)((q[0] & 15) | (q[32] & 15) << 4);
    }
}

int dtype_encode_q4_k(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q4_k *b = dst;
    struct affine a;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        int r = encode_affine(src, 15, &a, &b->d, &b->dmin);

        if (r < 0) {
            return r;
        }
        pack_scales(&a, b->scales);
        pack_nibbles(&a, b->qs);
    }
    return 0;
}

int dtype_encode_q5_k(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q5_k *b = dst;
    struct affine a;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        int r = encode_affine(src, 31, &a, &b->d, &b->dmin);

        if (r < 0) {
            return r;
        }
        pack_scales(&a, b->scales);
        pack_nibbles(&a, b->qs);
        memset(b->qh, 0, sizeof(b->qh));
        for (int k = 0; k < LEN; k++) {
            b->qh[k % 32] |= (uint8_t)((a.q[k] >> 4) << k / 32);
        }
    }
    return 0;
}

/* ---- x = scale * q, q from -32 to 31 ----------------------------------------------------------
 */

static float code_signed(const float *x, float scale, int8_t *q)
{
    float inverse = scale != 0 ? 1 / scale : 0;
    float d[SIGNED];

    inverse = isfinite(inverse) ? inverse : 0;
    for (int j = 0; j < SIGNED; j++) {
        int code = nearest(x[j] * inverse, -32, 31);

        q[j] = (int8_t)code;
        d[j] = x[j] - scale * (float)code;
    }
    return sum_squares(d, SIGNED);
}

/* The factor with which codes come nearest to the values. */
static float factor_of(const float *x, const int8_t *q)
{
    double qq = 0;
    double xq = 0;

    for (int j = 0; j < SIGNED; j++) {
        qq += (double)q[j] * q[j];
        xq += (double)x[j] * q[j];
    }
    return qq > 0 ? (float)(xq / qq) : 0;
}

/* The value that is largest gets the code at the far end, -32: the scale's sign is its. */
static float fit_signed(const float *x)
{
    float largest = 0;
    float best = INFINITY;
    float ret;
    int8_t q[SIGNED];

    for (int j = 0; j < SIGNED; j++) {
        largest = fabsf(x[j]) > fabsf(largest) ? x[j] : largest;
    }
    ret = largest / -32.0f; /* stays where squares are beyond f32: refused by to_half() */
    for (int k = -STRETCHES; k <= STRETCHES && largest != 0; k++) {
        float scale = largest / (-32.0f + 0.1f * (float)k);

        for (int pass = 0; pass < 3; pass++) {
            float error = code_signed(x, scale, q);

            if (error < best) {
                best = error;
                ret = scale;
            }
            scale = factor_of(x, q);
        }
    }
    return ret;
}

struct sixes {
    float d;
    int scale[16];
    int8_t q[LEN];
    double error;
};

static void round_signed(const float *x, const float *scale, struct sixes *s)
{
    s->error = 0;
    for (int g = 0; g < 16; g++) {
        int near = s->d != 0 ? nearest(scale[g] / s->d, -128, 127) : 0;
        float best = INFINITY;
        int8_t q[SIGNED];

        for (int k = near - 2; k <= near + 2; k++) {
            float error =
                k < -128 || k > 127 ? INFINITY : code_signed(x + g * SIGNED, s->d * (float)k, q);

            if (error < best) {
                best = error;
                s->scale[g] = k;
                memcpy(s->q + g * SIGNED, q, sizeof(q));
            }
        }
        s->error += (double)best;
    }
}

static float refit_signed(const float *x, const struct sixes *s)
{
    double aa = 0;
    double xa = 0;

    for (int i = 0; i < LEN; i++) {
        double a = (double)s->scale[i / SIGNED] * s->q[i];

        aa += a * a;
        xa += (double)x[i] * a;
    }
    return aa > 0 ? (float)(xa / aa) : s->d;
}

static int encode_signed(const float *x, struct sixes *s, uint16_t *ret_d)
{
    float scale[16];
    float largest = 0;

    for (int g = 0; g < 16; g++) {
        scale[g] = fit_signed(x + g * SIGNED);
        largest = fabsf(scale[g]) > fabsf(largest) ? scale[g] : largest;
    }
    if (!to_half(largest / -128, ret_d, &s->d)) {
        return -EINVAL;
    }
    round_signed(x, scale, s);
    for (int k = 0; k < REFITS; k++) {
        struct sixes next = *s;
        uint16_t d;

        if (!to_half(refit_signed(x, s), &d, &next.d)) {
            break;
        }
        round_signed(x, scale, &next);
        if (next.error >= s->error) {
            break;
        }
        *s = next;
        *ret_d = d;
    }
    return 0;
}

int dtype_encode_q6_k(const float *src, void *dst, uint64_t n_blocks)
{
    struct block_q6_k *b = dst;
    struct sixes s;

    for (uint64_t i = 0; i < n_blocks; i++, b++, src += LEN) {
        int r = encode_signed(src, &s, &b->d);

        if (r < 0) {
            return r;
        }
        for (int g = 0; g < 16; g++) {
            b->scales[g] = (int8_t)s.scale[g];
        }
        memset(b->ql, 0, sizeof(b->ql));
        memset(b->qh, 0, sizeof(b->qh));
        for (int j = 0; j < LEN; j++) {
            int part = j / 128;
            int k = j % 128;
            int q = s.q[j] + 32;

            b->ql[part * 64 + k % 64] |= (uint8_t)((q & 15) << k / 64 * 4);
            b->qh[part * 32 + k % 32] |= (uint8_t)((q >> 4) << k / 32 * 2);
        }
    }
    return 0;
}
