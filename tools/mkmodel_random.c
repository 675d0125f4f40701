/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers near a normal distribution: the sum of the four bytes of a Philox word, which has the
 * right shape to about three deviations and costs next to nothing. K-quants, which have no encoder
 * here, are made as blocks at once: random codes, random small scales, and a block scale that gives
 * the wanted deviation around 0. */

#include "tools/mkmodel_random.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "quant/half.h"

/* FNV-1a */
static uint32_t hash(const char *s)
{
    uint32_t h = 2166136261u;

    for (; *s; s++) {
        h = (h ^ (uint8_t)*s) * 16777619u;
    }
    return h;
}

struct stream {
    struct rng_key key;
    uint32_t counter[4];
};

static struct stream stream_begin(const struct mkmodel_random *r, uint64_t row)
{
    return (struct stream){rng_key_make(r->seed),
                           {0, (uint32_t)row, (uint32_t)(row >> 32), hash(r->name)}};
}

static void stream_words(struct stream *s, uint32_t ret[4])
{
    rng_philox(s->key, s->counter, ret);
    s->counter[0]++;
}

static void stream_bytes(struct stream *s, void *dst, size_t n)
{
    uint8_t *p = dst;
    uint32_t words[4];

    for (size_t done = 0; done < n; done += sizeof(words)) {
        stream_words(s, words);
        memcpy(p + done, words, n - done < sizeof(words) ? n - done : sizeof(words));
    }
}

static float near_normal(uint32_t w)
{
    int sum = (int)(w & 255) + (int)(w >> 8 & 255) + (int)(w >> 16 & 255) + (int)(w >> 24);

    return (float)(sum - 510) * (1.0f / 147.8f); /* sqrt(4 * (256^2 - 1) / 12) */
}

static void fill_floats(const struct mkmodel_random *r, struct stream *s, float *dst, uint64_t n)
{
    uint32_t words[4];

    for (uint64_t i = 0; i < n; i++) {
        if (i % 4 == 0) {
            stream_words(s, words);
        }
        dst[i] = r->mean + r->deviation * near_normal(words[i % 4]);
    }
}

/* Eight 6-bit scales that are also the minima, packed as quant/dtype_k.c unpacks them. */
static void pack_scales(struct stream *s, uint8_t ret[12])
{
    uint8_t v[8];

    stream_bytes(s, v, sizeof(v));
    for (int i = 0; i < 8; i++) {
        v[i] = 32 | (v[i] & 31);
    }
    for (int i = 0; i < 4; i++) {
        ret[i] = (uint8_t)(v[i] | (v[i + 4] >> 4) << 6);
        ret[i + 4] = ret[i];
        ret[i + 8] = (uint8_t)((v[i + 4] & 15) | (v[i + 4] & 15) << 4);
    }
}

/* Codes are uniform: their deviation is that of a uniform distribution of that many steps, the
 * scales' root mean square is 48.4. With minimum = scale * (steps - 1) / 2 the mean is 0. */
static void block_of_4_5(const struct mkmodel_random *r, struct stream *s, int steps, uint16_t *d,
                         uint16_t *dmin, uint8_t scales[12])
{
    float spread = sqrtf((float)(steps * steps - 1) / 12.0f);
    float scale = r->deviation / (48.4f * spread);

    *d = half_f16_from_f32(scale);
    *dmin = half_f16_from_f32(half_f16_to_f32(*d) * (float)(steps - 1) / 2);
    pack_scales(s, scales);
}

static void fill_q4_k(const struct mkmodel_random *r, struct stream *s, struct block_q4_k *b)
{
    block_of_4_5(r, s, 16, &b->d, &b->dmin, b->scales);
    stream_bytes(s, b->qs, sizeof(b->qs));
}

static void fill_q5_k(const struct mkmodel_random *r, struct stream *s, struct block_q5_k *b)
{
    block_of_4_5(r, s, 32, &b->d, &b->dmin, b->scales);
    stream_bytes(s, b->qh, sizeof(b->qh));
    stream_bytes(s, b->qs, sizeof(b->qs));
}

static void fill_q6_k(const struct mkmodel_random *r, struct stream *s, struct block_q6_k *b)
{
    stream_bytes(s, b->ql, sizeof(b->ql));
    stream_bytes(s, b->qh, sizeof(b->qh));
    stream_bytes(s, b->scales, sizeof(b->scales));
    for (int i = 0; i < 16; i++) {
        int magnitude = 64 | (b->scales[i] & 63);

        b->scales[i] = (int8_t)(b->scales[i] < 0 ? -magnitude : magnitude);
    }
    b->d = half_f16_from_f32(r->deviation / (97.3f * 18.5f));
}

/* Scales of 16..31, negative or not: root mean square 23.9; that of the table is 67.4. */
static void fill_iq4_xs(const struct mkmodel_random *r, struct stream *s, struct block_iq4_xs *b)
{
    uint8_t v[8];

    stream_bytes(s, b->qs, sizeof(b->qs));
    stream_bytes(s, v, sizeof(v));
    b->scales_h = 0;
    memset(b->scales_l, 0, sizeof(b->scales_l));
    for (int g = 0; g < 8; g++) {
        int magnitude = 16 | (v[g] & 15);
        unsigned sc = (unsigned)(32 + (v[g] & 16 ? -magnitude : magnitude));

        b->scales_l[g / 2] |= (uint8_t)((sc & 15) << (g % 2 * 4));
        b->scales_h |= (uint16_t)(sc >> 4 << (2 * g));
    }
    b->d = half_f16_from_f32(r->deviation / (23.9f * 67.4f));
}

/* Codes of 0..3, the mean of 1.5 taken off by the minima; scales of 8..15: root mean square 11.7.
 * Code and scale fall together, so that the mean stays 0. */
static void fill_q2_k(const struct mkmodel_random *r, struct stream *s, struct block_q2_k *b)
{
    stream_bytes(s, b->qs, sizeof(b->qs));
    stream_bytes(s, b->scales, sizeof(b->scales));
    for (int i = 0; i < 16; i++) {
        unsigned sc = 8u | (b->scales[i] & 7u);

        b->scales[i] = (uint8_t)(sc | sc << 4);
    }
    b->d = half_f16_from_f32(r->deviation / (11.7f * 1.118f));
    b->dmin = half_f16_from_f32(1.5f * r->deviation / (11.7f * 1.118f));
}

/* Scales of 16..31, negative or not, as of IQ4_XS; codes of -4..3: root mean square 2.35. */
static void fill_q3_k(const struct mkmodel_random *r, struct stream *s, struct block_q3_k *b)
{
    uint8_t v[16];

    stream_bytes(s, b->hmask, sizeof(b->hmask));
    stream_bytes(s, b->qs, sizeof(b->qs));
    stream_bytes(s, v, sizeof(v));
    memset(b->scales, 0, sizeof(b->scales));
    for (int i = 0; i < 16; i++) {
        int magnitude = 16 | (v[i] & 15);
        unsigned sc = (unsigned)(32 + (v[i] & 16 ? -magnitude : magnitude));

        b->scales[i % 8] |= (uint8_t)((sc & 15) << (i / 8 * 4));
        b->scales[8 + i % 4] |= (uint8_t)(sc >> 4 << (i / 4 * 2));
    }
    b->d = half_f16_from_f32(r->deviation / (23.9f * 2.35f));
}

int mkmodel_random_row(const struct mkmodel_random *r, enum dtype type, uint64_t row, uint64_t n,
                       float *scratch, void *dst)
{
    struct stream s = stream_begin(r, row);

    if (dtype_info(type)->block_len <= 32) { /* the search for K-quants takes minutes */
        fill_floats(r, &s, scratch, n);
        return dtype_encode(type, scratch, dst, n);
    }
    for (uint64_t i = 0; i < n / 256; i++) {
        if (type == DTYPE_Q4_K) {
            fill_q4_k(r, &s, (struct block_q4_k *)dst + i);
        } else if (type == DTYPE_Q5_K) {
            fill_q5_k(r, &s, (struct block_q5_k *)dst + i);
        } else if (type == DTYPE_Q2_K) {
            fill_q2_k(r, &s, (struct block_q2_k *)dst + i);
        } else if (type == DTYPE_Q3_K) {
            fill_q3_k(r, &s, (struct block_q3_k *)dst + i);
        } else if (type == DTYPE_IQ4_XS) {
            fill_iq4_xs(r, &s, (struct block_iq4_xs *)dst + i);
        } else {
            fill_q6_k(r, &s, (struct block_q6_k *)dst + i);
        }
    }
    return 0;
}
