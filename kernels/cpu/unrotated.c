/* SPDX-License-Identifier: Apache-2.0 */
/* pos=new: keys lie unrotated and take the angle of their rank among the live slots (ops.h struct
 * ops_attention).
 *
 * Slot s stands at rank(s) + D with one D for all rows of a call. Instead of adding D to every key,
 * whose tables would then change with every token, queries are turned back by D; keys need the
 * angles of ranks 0, 1, 2 ... alone, made once for a model. Ranks come from a radix sort of the
 * positions, once a unit. Such layouts are for comparing with papers that use them: decode goes
 * through the prefill path too. */

#include <math.h>
#include <string.h>

#include "kernels/cpu/attention.h"

/* Sorts n keys by their upper half, a byte at a time; max is the largest upper half. Returns the
 * buffer the result is in. */
static uint64_t *sort_keys(uint64_t *keys, uint64_t *other, int32_t n, uint32_t max)
{
    for (int shift = 0; shift < 32 && max >> shift; shift += 8) {
        int32_t start[257] = {0};
        uint64_t *held = keys;

        for (int32_t i = 0; i < n; i++) {
            start[(keys[i] >> (32 + shift) & 255) + 1]++;
        }
        for (int i = 0; i < 256; i++) {
            start[i + 1] += start[i];
        }
        for (int32_t i = 0; i < n; i++) {
            other[start[keys[i] >> (32 + shift) & 255]++] = keys[i];
        }
        keys = other;
        other = held;
    }
    return keys;
}

int32_t att_rank(const struct att_unit *u)
{
    const struct ops_kv *kv = &u->seq->kv;
    int32_t last = u->seq->pos0 + u->seq->n_rows - 1;
    uint64_t *keys = u->t->keys;
    uint32_t max = 0;
    int32_t below = 0;
    int32_t n = 0;

    for (int32_t s = 0; s < kv->n_slots || s % OPS_PAGE_SLOTS != 0; s++) {
        int32_t pos = s < kv->n_slots ? kv_slot_pos(kv, u->group, s) : -1;

        u->t->rank[s] = 0;
        if (pos >= 0) {
            keys[n++] = (uint64_t)(uint32_t)pos << 32 | (uint32_t)s;
            max = (uint32_t)pos > max ? (uint32_t)pos : max;
            below += pos < last;
        }
    }
    keys = sort_keys(keys, keys + kv->n_slots, n, max);
    for (int32_t i = 0; i < n; i++) {
        u->t->rank[(uint32_t)keys[i]] = i;
    }
    return last - below;
}

static void fill(const struct ops_rope *r, int32_t step, int32_t n, size_t ld, float *cos_,
                 float *sin_)
{
    for (int32_t a = 0; a < n; a++) {
        for (int32_t i = 0; i < r->n_dims / 2; i++) {
            double angle = (double)a * step * (double)r->inv_freq[i];

            cos_[(size_t)a * ld + (size_t)i] = (float)cos(angle);
            sin_[(size_t)a * ld + (size_t)i] = (float)sin(angle);
        }
    }
}

struct kv_rank_table att_rank_table(const struct cpu *cpu, const struct kv_scratch *s,
                                    const struct ops_rope *r)
{
    struct kv_rope_key *const keys[] = {s->rank[0].key, s->rank[1].key};
    float *const inv_freqs[] = {s->rank[0].inv_freq, s->rank[1].inv_freq};
    bool stale;
    int i = cpu_kv_find_table(keys, inv_freqs, r, &stale);
    const struct kv_rank_table *t = &s->rank[i];

    if (stale) {
        fill(r, OPS_PAGE_SLOTS, cpu->limits.max_slots / OPS_PAGE_SLOTS + 1, t->ld, t->coarse_cos,
             t->coarse_sin);
        fill(r, 1, OPS_PAGE_SLOTS, t->ld, t->fine_cos, t->fine_sin);
    }
    return *t;
}

/* The two dims of pair i. */
static void pair_dims(const struct ops_rope *r, int32_t i, int32_t *ret_a, int32_t *ret_b)
{
    *ret_a = r->form == OPS_ROPE_NORM ? 2 * i : i;
    *ret_b = r->form == OPS_ROPE_NORM ? 2 * i + 1 : i + r->n_dims / 2;
}

/* k (k_dim, 64) of slots from slot0 on, rotated in place. */
void att_rotate_keys(const struct att_unit *u, const struct kv_rank_table *t, int32_t slot0,
                     float *k)
{
    const struct ops_rope *r = u->p->unrotated_rope;
    const int32_t *rank = u->t->rank + slot0;

    for (int32_t i = 0; i < r->n_dims / 2; i++) {
        int32_t a;
        int32_t b;

        pair_dims(r, i, &a, &b);
        for (int32_t s = 0; s < OPS_PAGE_SLOTS; s++) {
            size_t coarse = (size_t)(rank[s] / OPS_PAGE_SLOTS) * t->ld + (size_t)i;
            size_t fine = (size_t)(rank[s] % OPS_PAGE_SLOTS) * t->ld + (size_t)i;
            float c = t->coarse_cos[coarse] * t->fine_cos[fine] -
                      t->coarse_sin[coarse] * t->fine_sin[fine];
            float d = t->coarse_sin[coarse] * t->fine_cos[fine] +
                      t->coarse_cos[coarse] * t->fine_sin[fine];
            float x = k[a * OPS_PAGE_SLOTS + s] * r->mscale;
            float y = k[b * OPS_PAGE_SLOTS + s] * r->mscale;

            k[a * OPS_PAGE_SLOTS + s] = x * c - y * d;
            k[b * OPS_PAGE_SLOTS + s] = x * d + y * c;
        }
    }
}

/* One query head turned back by D, to dst (k_dim). */
void att_turn_query(const struct att_unit *u, int32_t d, const float *q, float *dst)
{
    const struct ops_rope *r = u->p->unrotated_rope;

    memcpy(dst, q, (size_t)u->l->k_dim * sizeof(float));
    for (int32_t i = 0; i < r->n_dims / 2; i++) {
        double angle = -(double)d * (double)r->inv_freq[i];
        float c = (float)cos(angle);
        float s = (float)sin(angle);
        int32_t a;
        int32_t b;

        pair_dims(r, i, &a, &b);
        dst[a] = q[a] * c - q[b] * s;
        dst[b] = q[a] * s + q[b] * c;
    }
}
