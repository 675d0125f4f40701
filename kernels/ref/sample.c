/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens drawn from logits, and the way back of what was drawn: the definition of `sample`.
 *
 * The best, one after another: the largest logit that comes after the one before it, in falling
 * order, ties to the lower id; then top_p, min_p and the draw over them in that order, sums in
 * double. Each of them is a pass over the vocabulary: a definition, not a fast way. */

#include <errno.h>
#include <float.h>
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
    double total = 0;
    double sum = 0;

    for (int32_t i = 0; i < n; i++) {
        total += (double)exp_fixed(l[best[i]] - l[best[0]]);
    }
    for (int32_t i = 0; i < n; i++) {
        sum += (double)exp_fixed(l[best[i]] - l[best[0]]);
        if (sum >= (double)top_p * total) {
            return i + 1;
        }
    }
    return n;
}

/* What a token of those that are left weighs in the draw. */
static double weight(const struct ops_sample_row *row, float l, float max)
{
    bool dropped = row->min_p > 0 && exp_fixed(l - max) < row->min_p;

    return dropped ? 0 : (double)exp_fixed((l - max) / row->temperature);
}

static int32_t sample_row(const struct ops_sample_row *row, const float *l, int32_t n_vocab)
{
    int32_t best[OPS_SAMPLE_MAX_K];
    double u = rng_draw(row->seed, row->index);
    double total = 0;
    double sum = 0;
    int32_t last = -1;
    int32_t n = row->top_k;

    best[0] = all_numbers(l, n_vocab) ? next_best(l, n_vocab, -1) : -1;
    if (best[0] < 0 || l[best[0]] < -FLT_MAX) {
        return -1;
    }
    if (row->temperature <= 0) {
        return best[0];
    }
    for (int32_t i = 1; i < n; i++) {
        best[i] = next_best(l, n_vocab, best[i - 1]);
    }
    n = row->top_p < 1 ? nucleus(l, best, n, row->top_p) : n;
    for (int32_t i = 0; i < n; i++) {
        total += weight(row, l[best[i]], l[best[0]]);
    }
    for (int32_t i = 0; i < n && (last < 0 || u * total >= sum); i++) {
        double w = weight(row, l[best[i]], l[best[0]]);

        sum += w;
        last = w > 0 ? best[i] : last;
    }
    return last;
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
