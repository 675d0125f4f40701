/* SPDX-License-Identifier: Apache-2.0 */
/* Per-head norm, RoPE, and the store of K and V.
 *
 * Angles: p * inv_freq is formed in double, its cosine and sine are taken in double and then
 * rounded to f32 (an f32 product is off by 2e-4 rad at position 8000). The rotation is f32.
 *
 * Where a ring is shorter than the sequence's rows, a later row overwrites an earlier one; such
 * earlier rows are left out, so that rows may be stored in any order by several threads. */

#include <errno.h>
#include <math.h>
#include <string.h>

#include "kernels/hadamard.h"
#include "kernels/kv_latest.h"
#include "kernels/kv_round.h"
#include "kernels/ref/ref.h"

struct job {
    struct ref *ref;
    const struct ops_rope_store *p;
    struct pool_counter next;
};

void ref_rope_head(const struct ops_rope *rope, float *x, int32_t pos)
{
    int32_t half = rope->n_dims / 2;

    if (rope->form == OPS_ROPE_NONE) {
        return;
    }
    for (int32_t i = 0; i < half; i++) {
        double angle = (double)pos * (double)rope->inv_freq[i];
        float c = (float)cos(angle) * rope->mscale;
        float s = (float)sin(angle) * rope->mscale;
        float *a = rope->form == OPS_ROPE_NORM ? &x[2 * i] : &x[i];
        float *b = rope->form == OPS_ROPE_NORM ? &x[2 * i + 1] : &x[i + half];
        float x0 = *a;
        float x1 = *b;

        *a = x0 * c - x1 * s;
        *b = x0 * s + x1 * c;
    }
}

/* v_sum gets `factor` times the slot's V. */
static void add_to_sum(const struct ops_kv *kv, int32_t group, int32_t slot, float factor,
                       float *head)
{
    const struct ops_kv_layout *l = kv->layout;

    for (int32_t h = 0; h < l->v_heads; h++) {
        float *sum = kv->v_sum + (size_t)(group * l->v_heads + h) * (size_t)l->v_dim;

        ref_kv_value(kv, group, slot, h, head);
        for (int32_t d = 0; d < l->v_dim; d++) {
            sum[d] += factor * head[d];
        }
    }
}

static void store_group(const struct ops_rope_store *p, const struct ops_seq *seq, int32_t i,
                        int32_t group, const struct ref_thread *t)
{
    float *head = t->head;
    const struct ops_kv *kv = &seq->kv;
    const struct ops_kv_layout *l = kv->layout;
    size_t row = (size_t)(seq->row0 + i);
    int32_t slot = seq->victim ? seq->victim[group]
                   : seq->ring ? (seq->slot0 + i) % seq->ring
                               : seq->slot0 + i;
    struct ref_slot to = ref_kv_slot(kv, group, slot);
    bool sums = kv->v_sum && seq->row0 + i < p->rows.n_decode;
    bool latest = kv_latest_takes(seq, i);

    if (sums && seq->victim && ref_kv_pos(kv, group, slot) >= 0) {
        add_to_sum(kv, group, slot, -1.0f, head);
    }
    for (int32_t h = 0; h < l->k_heads; h++) {
        const float *k =
            p->k + row * (size_t)p->ldk + (size_t)(group * l->k_heads + h) * (size_t)l->k_dim;
        const float *center =
            kv->center ? kv->center + (size_t)(group * l->k_heads + h) * (size_t)l->k_dim : NULL;
        const float *balance =
            kv->balance ? kv->balance + (size_t)(group * l->k_heads + h) * (size_t)l->k_dim : NULL;

        ref_norm_row(&p->k_norm, k, head, l->k_dim);
        if (!l->k_unrotated) {
            ref_rope_head(&p->rope, head, seq->pos0 + i);
        }
        for (int32_t d = 0; d < l->k_dim && center; d++) {
            head[d] -= center[d];
        }
        for (int32_t d = 0; d < l->k_dim && balance; d++) {
            head[d] *= balance[d];
        }
        if (kv->k_hadamard) {
            hadamard_head(head, l->k_dim);
        }
        uint8_t *codes = to.k + (size_t)h * ops_kv_type_bytes(l->k_type, l->k_dim);

        if (kv->carry && kv_rounds(l->k_type)) {
            size_t d = (size_t)l->k_dim;

            uint16_t scale =
                kv_round_encode(l->k_type, kv->carry + (size_t)(group * l->k_heads + h) * d * d,
                                head, codes, l->k_dim);

            if (l->k_type == OPS_KV_FP8) {
                to.k_scale[h] = scale;
            }
        } else {
            kv_code_encode(l->k_type, head, codes, to.k_scale + h, l->k_dim);
        }
        if (latest && ops_kv_in_four_bits(l->k_type)) {
            kv_latest_store(kv_latest_k(kv, group, seq->pos0 + i, h), head, l->k_dim);
        }
    }
    for (int32_t h = 0; h < l->v_heads; h++) {
        const float *v =
            p->v + row * (size_t)p->ldv + (size_t)(group * l->v_heads + h) * (size_t)l->v_dim;

        memcpy(head, v, (size_t)l->v_dim * sizeof(*head));
        if (kv->v_hadamard) {
            hadamard_head(head, l->v_dim);
        }
        kv_code_encode(l->v_type, head, to.v + (size_t)h * ops_kv_type_bytes(l->v_type, l->v_dim),
                       to.v_scale + h, l->v_dim);
        if (latest && ops_kv_in_four_bits(l->v_type)) {
            kv_latest_store(kv_latest_v(kv, group, seq->pos0 + i, h), head, l->v_dim);
        }
    }
    ref_kv_make_part(kv, group, slot, head, t->page);
    if (kv->slot_pos) {
        kv->slot_pos[(size_t)group * (size_t)kv->cap + (size_t)slot] = seq->pos0 + i;
    }
    if (kv->score) {
        kv->score[(size_t)group * (size_t)kv->cap + (size_t)slot] = 0.0f;
    }
    if (sums) {
        add_to_sum(kv, group, slot, 1.0f, head);
    }
}

static void one_row(struct job *job, const struct ops_seq *seq, int32_t i,
                    const struct ref_thread *t)
{
    const struct ops_rope_store *p = job->p;
    const struct ops_kv_layout *l = seq->kv.layout;
    int32_t share = seq->kv.balance ? p->n_q / (l->n_groups * l->k_heads) : 1;
    bool overwritten = seq->ring > 0 && i + seq->ring < seq->n_rows;

    for (int32_t h = 0; h < p->n_q; h++) {
        float *q = p->q + (size_t)(seq->row0 + i) * (size_t)p->ldq + (size_t)h * (size_t)p->k_dim;

        ref_norm_row(&p->q_norm, q, q, p->k_dim);
        ref_rope_head(&p->rope, q, seq->pos0 + i);
        for (int32_t d = 0; d < p->k_dim && seq->kv.balance; d++) {
            q[d] /= seq->kv.balance[(size_t)(h / share) * (size_t)p->k_dim + (size_t)d];
        }
        if (seq->kv.k_hadamard) {
            hadamard_head(q, p->k_dim);
        }
    }
    if (p->n_k > 0 && !overwritten) {
        for (int32_t g = 0; g < seq->kv.layout->n_groups; g++) {
            store_group(p, seq, i, g, t);
        }
    }
}

static void rows(void *arg, int tid, int n_threads)
{
    struct job *job = arg;
    const struct ops_rope_store *p = job->p;
    int32_t s = 0;

    (void)n_threads;
    for (int i; (i = pool_counter_take(&job->next)) < p->rows.n;) {
        while (s + 1 < p->n_seqs && i >= p->seqs[s].row0 + p->seqs[s].n_rows) {
            s++;
        }
        one_row(job, &p->seqs[s], i - p->seqs[s].row0, &job->ref->threads[tid]);
    }
}

int ref_rope_store(struct backend *be, const struct ops_rope_store *p)
{
    struct ref *ref = (struct ref *)be;
    struct job job = {.ref = ref, .p = p};

    if (p->k_dim > ref->limits.max_head_dim) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs && p->n_k > 0; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (l->k_dim != p->k_dim || l->n_groups * l->k_heads != p->n_k ||
            l->n_groups * l->v_heads != p->n_v || (l->part_dims > 0 && !p->seqs[i].kv.skew) ||
            l->v_dim > ref->limits.max_head_dim ||
            (l->k_unrotated && (p->seqs[i].kv.center || p->seqs[i].kv.k_hadamard))) {
            return -EINVAL;
        }
    }
    pool_run(ref->pool, rows, &job);
    return 0;
}
