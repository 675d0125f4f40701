/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens drawn from logits, and the way back of what was drawn: the definition of `sample`.
 *
 * With top_k the best, one after another: the largest logit that comes after the one before it, in
 * falling order, ties to the lower id; then top_p, min_p and the draw over them in that order.
 * Without, the last token that top_p leaves is found by bisection, and the draw goes over all ids.
 * Each of these is a pass over the vocabulary: a definition, not a fast way. Sums are of integers
 * (weight_units). */

#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/exp_fixed.h"
#include "base/rng.h"
#include "kernels/ref/ref.h"

/* The best token after `after` (-1: of all) in falling order; -1 when there is none. */
static int32_t next_best(const float *l, int32_t n, int32_t after)
{
    int32_t best = -1;

    for (int32_t i = 0; i < n; i++) {
        bool later = after < 0 || l[i] < l[after] || (l[i] == l[after] && i > after);

        if (later && (best < 0 || l[i] > l[best])) {
            best = i;
        }
    }
    return best;
}

static bool all_numbers(const float *l, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (!(l[i] <= FLT_MAX)) {
            return false;
        }
    }
    return true;
}

/* Of the n best, falling: how many top_p leaves. */
static int32_t nucleus(const float *l, const int32_t *best, int32_t n, float top_p)
{
    uint64_t total = 0;
    uint64_t sum = 0;

    for (int32_t i = 0; i < n; i++) {
        total += exp_units(l[best[i]] - l[best[0]]);
    }
    for (int32_t i = 0; i < n; i++) {
        sum += exp_units(l[best[i]] - l[best[0]]);
        if (sum >= units_share((double)top_p, total)) {
            return i + 1;
        }
    }
    return n;
}

/* The mass of all logits from `least` on. */
static uint64_t mass_from(const float *l, int32_t n, float max, float least)
{
    uint64_t sum = 0;

    for (int32_t i = 0; i < n; i++) {
        sum += l[i] >= least ? exp_units(l[i] - max) : 0;
    }
    return sum;
}

/* An integer of the same order as a float, and back. */
static float of_order(int32_t i)
{
    uint32_t bits = i < 0 ? 0x80000000u - (uint32_t)i : (uint32_t)i;
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static int32_t order_of(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return bits >> 31 ? -(int32_t)(bits & 0x7fffffffu) : (int32_t)bits;
}

/* The last token that top_p leaves of all, in falling order, ties to the lower id. */
static int32_t last_left(const float *l, int32_t n, float max, float top_p)
{
    uint64_t need = units_share((double)top_p, mass_from(l, n, max, -INFINITY));
    int32_t from = order_of(-FLT_MAX);
    int32_t to = order_of(max);
    uint64_t sum;
    int32_t last = -1;

    while (from < to) { /* the largest logit from which on the mass is enough */
        int32_t mid = (int32_t)(((int64_t)from + to + 1) >> 1);

        if (mass_from(l, n, max, of_order(mid)) >= need) {
            from = mid;
        } else {
            to = mid - 1;
        }
    }
    sum = mass_from(l, n, max, of_order(from + 1));
    for (int32_t i = 0; i < n && (last < 0 || sum < need); i++) {
        if (order_of(l[i]) == from) {
            sum += exp_units(l[i] - max);
            last = i;
        }
    }
    return last;
}

/* What a token of those that are left weighs in the draw. */
static uint64_t weight(const struct ops_sample_row *row, float l, float max)
{
    bool dropped = row->min_p > 0 && exp_fixed(l - max) < row->min_p;

    return dropped ? 0 : exp_units((l - max) / row->temperature);
}

/* Without top_k: over all tokens that top_p and min_p leave, in order of id. */
static int32_t draw_of_all(const struct ops_sample_row *row, const float *l, int32_t n, float max)
{
    int32_t last = row->top_p < 1 ? last_left(l, n, max, row->top_p) : -1;
    uint64_t total = 0;
    uint64_t sum = 0;

    for (int pass = 0; pass < 2; pass++) {
        uint64_t at = pass ? units_drawn(rng_draw(row->seed, row->index), total) : 0;

        for (int32_t i = 0; i < n; i++) {
            bool left = last < 0 || l[i] > l[last] || (l[i] == l[last] && i <= last);
            uint64_t w = left ? weight(row, l[i], max) : 0;

            total += pass ? 0 : w;
            sum += pass ? w : 0;
            if (sum > at) {
                return i;
            }
        }
    }
    return -1;
}

static int32_t sample_row(const struct ops_sample_row *row, const float *l, int32_t n_vocab)
{
    int32_t best[OPS_SAMPLE_MAX_K];
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t at;
    int32_t n = row->top_k;
    int32_t i = 0;

    best[0] = all_numbers(l, n_vocab) ? next_best(l, n_vocab, -1) : -1;
    if (best[0] < 0 || l[best[0]] < -FLT_MAX) {
        return -1;
    }
    if (row->temperature <= 0) {
        return best[0];
    }
    if (n <= 0 || n >= n_vocab) {
        return draw_of_all(row, l, n_vocab, l[best[0]]);
    }
    for (int32_t k = 1; k < n; k++) {
        best[k] = next_best(l, n_vocab, best[k - 1]);
    }
    n = row->top_p < 1 ? nucleus(l, best, n, row->top_p) : n;
    for (int32_t k = 0; k < n; k++) {
        total += weight(row, l[best[k]], l[best[0]]);
    }
    at = units_drawn(rng_draw(row->seed, row->index), total);
    while ((sum += weight(row, l[best[i]], l[best[0]])) <= at) {
        i++;
    }
    return best[i];
}

int ref_sample(struct backend *be, const struct ops_sample *p)
{
    (void)be;
    for (int32_t i = 0; i < p->n_rows; i++) {
        if (!ops_sample_covers(&p->rows[i], p->n_vocab)) {
            return -ENOTSUP;
        }
    }
    for (int32_t i = 0; i < p->n_rows; i++) {
        p->ids[i] = sample_row(&p->rows[i], p->logits + (size_t)i * (size_t)p->ld, p->n_vocab);
    }
    return 0;
}

int ref_fetch(struct backend *be, int place, const void *device, uint64_t bytes)
{
    if (bytes > BACKEND_FETCH_BYTES || place < 0 || place >= BACKEND_FETCHES) {
        return -EINVAL;
    }
    memcpy(((struct ref *)be)->fetched + place * BACKEND_FETCH_BYTES, device, (size_t)bytes);
    return 0;
}

int ref_fetched(struct backend *be, int place, void *host, uint64_t bytes)
{
    if (bytes > BACKEND_FETCH_BYTES || place < 0 || place >= BACKEND_FETCHES) {
        return -EINVAL;
    }
    memcpy(host, ((struct ref *)be)->fetched + place * BACKEND_FETCH_BYTES, (size_t)bytes);
    return 0;
}
