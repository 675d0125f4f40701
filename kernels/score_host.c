/* SPDX-License-Identifier: Apache-2.0 */

#include "kernels/score.h"

#include <assert.h>
#include <float.h>
#include <math.h>

enum { BLOCK = 4096, ROWS = 256 };

static float score_of(const float *x, int32_t n)
{
    float sum = 0;

    for (int32_t i = 0; i < n; i++) {
        sum += expf(x[i]);
    }
    return isnan(sum) ? 0 : fminf(sum, FLT_MAX);
}

/* Rows [first, first + n) of a sequence, which go to slots that lie together, or one to a victim's.
 */
static int score_rows(struct backend *be, const struct ops_score *p, const struct ops_seq *seq,
                      int32_t first, int32_t n)
{
    const struct backend_ops *ops = be->ops;
    const struct ops_kv *kv = &seq->kv;
    int32_t heads = kv->layout->k_heads;
    float x[BLOCK];
    float scores[ROWS];
    int r = ops->read(be, x, p->x + (size_t)(seq->row0 + first) * (size_t)p->ldx,
                      (uint64_t)n * (uint64_t)p->ldx * sizeof(*x));

    for (int32_t g = 0; !r && g < kv->layout->n_groups; g++) {
        int32_t slot = seq->slot0 + first;

        for (int32_t i = 0; i < n; i++) {
            scores[i] = score_of(x + (size_t)i * (size_t)p->ldx + g * heads, heads);
        }
        if (seq->victim) {
            r = ops->read(be, &slot, seq->victim + g, sizeof(slot));
        }
        r = r ? r
              : ops->write(be, kv->score + (size_t)g * (size_t)kv->cap + (size_t)slot, scores,
                           (uint64_t)n * sizeof(*scores));
    }
    return r;
}

int score_host(struct backend *be, const struct ops_score *p)
{
    int32_t most = BLOCK / p->ldx < ROWS ? BLOCK / p->ldx : ROWS;
    int r = 0;

    assert(most > 0);
    for (int32_t s = 0; s < p->n_seqs; s++) {
        const struct ops_seq *seq = &p->seqs[s];

        assert(!seq->ring && (!seq->victim || seq->n_rows == 1));
        for (int32_t i = 0; !r && i < seq->n_rows; i += most) {
            int32_t n = seq->n_rows - i < most ? seq->n_rows - i : most;

            r = score_rows(be, p, seq, i, n);
        }
    }
    return r;
}
