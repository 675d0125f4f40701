/* SPDX-License-Identifier: Apache-2.0 */
/* Behind the last layer: rows that were asked for, their logits, tokens drawn from them. */

#include <errno.h>

#include "base/clock.h"
#include "engine/model/forward_impl.h"

int forward_take(struct forward *f, const int32_t *rows, int32_t n, float *hidden)
{
    struct ops_gather p = {
        .x = f->cur.p,
        .y = hidden,
        .index = f->index,
        .n_rows = n,
        .n_cols = f->m->h.n_embd,
        .ldx = f->cur.ld,
        .ldy = f->x.ld,
    };
    int32_t seq = 0;

    for (int32_t i = 0; i < n; i++) {
        int32_t row = rows[i];

        if (f->beyond) {
            while (row >= f->b.seqs[seq].row0 + f->b.seqs[seq].n_rows) {
                seq++;
            }
            row = f->row0[seq] + (row - f->b.seqs[seq].row0 - f->first[seq]);
        }
        f->index[i] = row;
    }
    return f->ops->gather(f->be, &p);
}

int forward_head(struct forward *f, const float *hidden, int32_t n, int32_t n_decode,
                 const float **ret)
{
    const struct model *m = f->m;
    const struct ops_weight *w = &m->w[m->w[MT_OUTPUT].n_cols ? MT_OUTPUT : MT_EMBED];
    struct ops_matmul p = {
        .rows = {.n = n, .n_decode = n_decode},
        .norm = norm_of(f, &m->w[MT_OUTPUT_NORM], &m->w[MT_OUTPUT_NORM_B]),
        .x = hidden,
        .ldx = f->x.ld,
    };
    struct ops_softcap cap = {
        .x = f->logits.p,
        .n_rows = n,
        .n_cols = m->h.n_vocab,
        .ld = f->logits.ld,
        .cap = m->h.final_softcap,
    };
    int64_t t0 = clock_ns();

    p.part[0].scale = p.part[0].bias_scale = m->h.logit_scale;
    add_part(&p, w, &m->w[MT_OUTPUT_B], f->logits.p, f->logits.ld, OPS_ACT_NONE);
    int r = f->ops->matmul(f->be, &p);

    if (!r && cap.cap > 0.0f) {
        r = f->ops->softcap(f->be, &cap);
    }
    if (!r) {
        forward_beat(f, t0);
        *ret = f->logits.p;
    }
    return r;
}

int forward_logits(struct forward *f, const int32_t *rows, int32_t n, const float **ret)
{
    int32_t n_decode = 0;
    int r = forward_take(f, rows, n, f->head.p);

    while (n_decode < n && rows[n_decode] < f->b.rows.n_decode) {
        n_decode++;
    }
    return r ? r : forward_head(f, f->head.p, n, n_decode, ret);
}

int forward_draw(struct forward *f, const struct ops_sample_row *rows, int32_t n, int place)
{
    struct ops_sample p = {
        .logits = f->logits.p,
        .n_rows = n,
        .n_vocab = f->m->h.n_vocab,
        .ld = f->logits.ld,
        .rows = rows,
        .ids = f->drawn,
    };
    int r = f->ops->sample ? f->ops->sample(f->be, &p) : -ENOTSUP;

    return r ? r : f->ops->fetch(f->be, place, f->drawn, (uint64_t)n * sizeof(*f->drawn));
}

int forward_normed(struct forward *f, const int32_t *rows, int32_t n, const float **ret)
{
    const struct model *m = f->m;
    struct ops_norm_op p = {
        .rows = {.n = n},
        .norm = norm_of(f, &m->w[MT_OUTPUT_NORM], &m->w[MT_OUTPUT_NORM_B]),
        .x = f->head.p,
        .y = f->head.p,
        .ldx = f->x.ld,
        .ldy = f->x.ld,
        .n_cols = m->h.n_embd,
    };
    int64_t t0 = clock_ns();
    int r = forward_take(f, rows, n, f->head.p);

    r = r ? r : f->ops->norm(f->be, &p);
    if (!r) {
        forward_beat(f, t0);
        *ret = f->head.p;
    }
    return r;
}
