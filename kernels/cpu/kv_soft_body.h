/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CPU_KV_SOFT_BODY_H
#define PIPIT_KERNELS_CPU_KV_SOFT_BODY_H

/* Logits, exponentials, noise and scores of one page of 64 slots, over the lanes (see kv_body.h).
 *
 * 2^x: x = n + r, r in [-1/2, 1/2], a polynomial of degree 5 with relative error 7.5e-8, times 2^n
 * made of n's bits; below -127 exactly 0, so a masked slot weighs nothing without being asked.
 * log: mantissa in [sqrt(1/2), sqrt(2)), f - f^2 / 2 + f^3 P(f), relative error 3e-8 (also next
 * to 1, where Gumbel's large draws come from). Both polynomials are least-squares fits reweighted
 * to equal ripples. */

#include <math.h>

#include "kernels/cpu/table.h"
#include "kernels/noise.h"

LANES_INLINE lf kv_exp2(lf x)
{
    x = lf_min(lf_max(x, lf_set1(-127.0f)), lf_set1(126.0f));

    li n = li_round(x);
    lf r = lf_sub(x, lf_of_int(n));
    lf p = lf_set1(0x1.5c08dcp-10f);

    p = kv_fma(p, r, lf_set1(0x1.3d0c52p-7f));
    p = kv_fma(p, r, lf_set1(0x1.c6b6e6p-5f));
    p = kv_fma(p, r, lf_set1(0x1.ebf918p-3f));
    p = kv_fma(p, r, lf_set1(0x1.62e428p-1f));
    p = kv_fma(p, r, lf_set1(1.0f));
    return lf_mul(p, lf_bits(li_shl(li_add(n, li_set1(127)), 23)));
}

/* x > 0, not subnormal */
LANES_INLINE lf kv_ln(lf x)
{
    /* e = exponent once the mantissa is brought into [sqrt(1/2), sqrt(2)) */
    li shifted = li_add(li_bits(x), li_set1(0x3f800000 - 0x3f3504f3));
    li e = li_sub(li_shr(shifted, 23), li_set1(127));
    lf f = lf_sub(lf_bits(li_sub(li_bits(x), li_shl(e, 23))), lf_set1(1.0f));
    lf p = lf_set1(0x1.645de2p-4f);
    lf f2 = lf_mul(f, f);

    p = kv_fma(p, f, lf_set1(-0x1.2432aap-3f));
    p = kv_fma(p, f, lf_set1(0x1.317470p-3f));
    p = kv_fma(p, f, lf_set1(-0x1.53824cp-3f));
    p = kv_fma(p, f, lf_set1(0x1.98d7f0p-3f));
    p = kv_fma(p, f, lf_set1(-0x1.000382p-2f));
    p = kv_fma(p, f, lf_set1(0x1.5556d8p-2f));
    p = kv_fma(lf_mul(p, f), f2, kv_fma(lf_set1(-0.5f), f2, f));
    return kv_fma(lf_of_int(e), lf_set1(0.693147181f), p);
}

LANES_INLINE lf kv_tanh(lf x)
{
    lf e = kv_exp2(lf_mul(x, lf_set1(2.88539008f)));

    return lf_sub(lf_set1(1.0f), lf_div(lf_set1(2.0f), lf_add(e, lf_set1(1.0f))));
}

/* The rarer terms of a logit, in natural units. */
LANES_INLINE lf kv_bend(const struct cpu_kv_logits *p, lf x, int i)
{
    if (p->slope != 0) {
        li d = li_sub(li_set1(p->row_pos), li_load(p->distance + i));

        x = lf_sub(x, lf_mul(lf_set1(p->slope), lf_of_int(d)));
    }
    if (p->softcap > 0) {
        x = lf_mul(lf_set1(p->softcap), kv_tanh(lf_div(x, lf_set1(p->softcap))));
    }
    return x;
}

static float LANES_FN(kv_logits)(const struct cpu_kv_logits *p, float *x)
{
    const float log2e = 1.44269504f;
    const bool bent = p->slope != 0 || p->softcap > 0;
    const lf limit = lf_set1(1e30f * log2e);
    const lf scale = lf_set1(bent ? p->scale / log2e : p->scale);
    lf max = lf_set1(CPU_KV_MASKED);

    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf v = lf_mul(lf_load(x + i), scale);

        if (p->k_scale) {
            v = lf_mul(v, lf_of_f16(p->k_scale + i));
        }
        if (bent) {
            v = lf_mul(kv_bend(p, v, i), lf_set1(log2e));
        }
        v = lf_min(lf_max(v, lf_sub(lf_set1(0.0f), limit)), limit);
        if (p->pos) {
            li pos = li_load(p->pos + i);
            li seen = li_and(li_greater(pos, li_set1(p->pos_min - 1)),
                             li_greater(li_set1(p->pos_max), li_sub(pos, li_set1(1))));

            v = lf_select(seen, v, lf_set1(CPU_KV_MASKED));
        }
        lf_store(x + i, v);
        max = lf_max(max, v);
    }
    return lf_max_of(max);
}

static float LANES_FN(kv_exp)(float *x, float max, const uint16_t *v_scale, float *e)
{
    const lf m = lf_set1(max);
    lf sum = lf_set1(0.0f);

    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf v = kv_exp2(lf_sub(lf_load(x + i), m));

        sum = lf_add(sum, v);
        if (e) {
            lf_store(e + i, v);
        }
        lf_store(x + i, v_scale ? lf_mul(v, lf_of_f16(v_scale + i)) : v);
    }
    return lf_sum(sum);
}

static float LANES_FN(kv_exp_weighed)(float *x, float max, const uint16_t *v_scale, const float *w,
                                      float *e, float *ret_sum)
{
    const lf m = lf_set1(max);
    lf sum = lf_set1(0.0f);
    lf weighed = lf_set1(0.0f);

    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf v = kv_exp2(lf_sub(lf_load(x + i), m));
        lf y = lf_mul(v, lf_load(w + i));

        sum = lf_add(sum, v);
        weighed = lf_add(weighed, y);
        lf_store(e + i, y);
        lf_store(x + i, v_scale ? lf_mul(v, lf_of_f16(v_scale + i)) : v);
    }
    *ret_sum = lf_sum(weighed);
    return lf_sum(sum);
}

/* One round of Philox; `k` is its key. */
LANES_INLINE void kv_philox_round(li c[4], uint32_t k0, uint32_t k1)
{
    li h0 = li_mul_high(c[0], 0xD2511F53u);
    li l0 = li_mul_low(c[0], 0xD2511F53u);
    li h1 = li_mul_high(c[2], 0xCD9E8D57u);
    li l1 = li_mul_low(c[2], 0xCD9E8D57u);

    c[0] = li_xor(li_xor(h1, c[1]), li_set1((int32_t)k0));
    c[2] = li_xor(li_xor(h0, c[3]), li_set1((int32_t)k1));
    c[1] = l1;
    c[3] = l0;
}

/* The draws of noise.h for 16 counters: 4 words each. Only word 0 differs among the counters, so
 * that half of the first two rounds' products are one number. */
LANES_INLINE void kv_philox(uint64_t seed, li c0, uint32_t row_pos, const struct ops_observe *o,
                            uint32_t head, li ret[4])
{
    uint32_t k0 = (uint32_t)seed;
    uint32_t k1 = (uint32_t)(seed >> 32);
    uint64_t p1 = (uint64_t)0xCD9E8D57u * (uint32_t)o->layer;
    uint64_t p0 = (uint64_t)0xD2511F53u * ((uint32_t)(p1 >> 32) ^ row_pos ^ k0);
    li c2 = li_xor(li_mul_high(c0, 0xD2511F53u), li_set1((int32_t)(head ^ k1)));
    li c3 = li_mul_low(c0, 0xD2511F53u);

    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
    ret[0] = li_xor(li_mul_high(c2, 0xCD9E8D57u), li_set1((int32_t)((uint32_t)p1 ^ k0)));
    ret[1] = li_mul_low(c2, 0xCD9E8D57u);
    ret[2] = li_xor(c3, li_set1((int32_t)((uint32_t)(p0 >> 32) ^ k1)));
    ret[3] = li_set1((int32_t)(uint32_t)p0);
    for (int round = 2; round < 10; round++) {
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
        kv_philox_round(ret, k0, k1);
    }
}

/* rng_uniform() of base/rng.h, then 1 / -log */
LANES_INLINE lf kv_inverse_exponential(li bits)
{
    lf u = lf_mul(lf_add(lf_of_int(li_shr(bits, 9)), lf_set1(0.5f)), lf_set1(0x1p-23f));

    return lf_div(lf_set1(-1.0f), kv_ln(u));
}

static void LANES_FN(kv_gumbel)(const struct cpu_kv_noise *p, float *ret)
{
    const uint32_t row_pos = p->o->noise_once ? NOISE_ONCE : p->row_pos;
    li words[4];

    if (p->aligned) { /* 16 counters are the 64 keys */
        li c0 = li_or(li_shl(li_shr(li_load(p->pos), 6), 4), li_and(li_load(p->pos), li_set1(15)));

        kv_philox(p->o->seed, c0, row_pos, p->o, p->head, words);
        for (int i = 0; i < 4; i++) {
            lf_store(ret + 16 * i, kv_inverse_exponential(words[i]));
        }
        return;
    }
    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        li pos = li_load(p->pos + i);
        li word = li_and(li_shr(pos, 4), li_set1(3));
        li bits;

        kv_philox(p->o->seed, li_or(li_shl(li_shr(pos, 6), 4), li_and(pos, li_set1(15))), row_pos,
                  p->o, p->head, words);
        bits = li_select(li_greater(word, li_set1(0)), words[1], words[0]);
        bits = li_select(li_greater(word, li_set1(1)), words[2], bits);
        bits = li_select(li_greater(word, li_set1(2)), words[3], bits);
        lf_store(ret + i, kv_inverse_exponential(bits));
    }
}

static float LANES_FN(kv_temper)(const float *x, const float *noise, float tau, float *z)
{
    const lf masked = lf_set1(CPU_KV_MASKED);
    const lf inverse = lf_set1(1.0f / tau);
    lf max = masked;

    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf v = lf_load(x + i);
        li there = li_greater(li_bits(masked), li_bits(v)); /* negative floats: as integers the
                                                               nearer to 0 the smaller */
        li positive = li_greater(li_bits(v), li_set1(-1));
        lf y = noise ? kv_fma(lf_load(noise + i), lf_set1(1.44269504f), v) : v;

        y = lf_mul(y, inverse);
        y = lf_select(li_or(there, positive), y, masked);
        lf_store(z + i, y);
        max = lf_max(max, y);
    }
    return lf_max_of(max);
}

static void LANES_FN(kv_log)(float *x, float factor)
{
    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf_store(x + i, lf_mul(kv_ln(lf_load(x + i)), lf_set1(factor)));
    }
}

static float LANES_FN(kv_weigh)(float *y, const float *w)
{
    lf sum = lf_set1(0.0f);

    for (int i = 0; i < CPU_KV_SLOTS; i += 16) {
        lf v = lf_mul(lf_load(y + i), lf_load(w + i));

        sum = lf_add(sum, v);
        lf_store(y + i, v);
    }
    return lf_sum(sum);
}

/* The page's scores stay in registers over all rows. */
static void LANES_FN(kv_score)(float *score, const struct cpu_kv_score *p)
{
    enum { N = CPU_KV_SLOTS / 16 };
    lf s[N];
    float weight = p->weight;

    for (int i = 0; i < N; i++) {
        s[i] = lf_load(score + 16 * i);
    }
    for (int32_t row = 0; row < p->n_rows; row++) {
        const float *seen = p->p + (size_t)row * p->ld_row;
        const float *f = p->f + (size_t)row * (size_t)p->n_heads;
        lf sum[N];

        for (int i = 0; i < N; i++) {
            sum[i] = lf_mul(lf_load(seen + 16 * i), lf_set1(f[0]));
        }
        for (int32_t h = 1; h < p->n_heads; h++) {
            seen += p->ld_head;
            for (int i = 0; i < N; i++) {
                sum[i] = lf_add(sum[i], lf_mul(lf_load(seen + 16 * i), lf_set1(f[h])));
            }
        }
        for (int i = 0; i < N; i++) {
            s[i] = lf_add(s[i], lf_mul(sum[i], lf_set1(weight)));
        }
        weight *= p->growth;
    }
    for (int i = 0; i < N; i++) {
        lf_store(score + 16 * i, s[i]);
    }
}

static float LANES_FN(kv_least)(const float *score, const int32_t *pos, int32_t n, int32_t pos_min,
                                int32_t pos_end)
{
    const lf none = lf_set1(INFINITY);
    lf least = none;
    float ret;
    int32_t i = 0;

    for (; i + 16 <= n; i += 16) {
        li p = li_load(pos + i);
        li among = li_and(li_greater(p, li_set1(pos_min - 1)), li_greater(li_set1(pos_end), p));

        least = lf_min(least, lf_select(among, lf_load(score + i), none));
    }
    ret = -lf_max_of(lf_sub(lf_set1(0.0f), least));
    for (; i < n; i++) {
        if (pos[i] >= pos_min && pos[i] < pos_end && score[i] < ret) {
            ret = score[i];
        }
    }
    return ret;
}

LANES_INLINE void kv_soft_body_set(struct cpu_table *t)
{
    LANES_SET(t, kv_logits);
    LANES_SET(t, kv_exp);
    LANES_SET(t, kv_exp_weighed);
    LANES_SET(t, kv_gumbel);
    LANES_SET(t, kv_temper);
    LANES_SET(t, kv_log);
    LANES_SET(t, kv_weigh);
    LANES_SET(t, kv_score);
    LANES_SET(t, kv_least);
}

#endif
