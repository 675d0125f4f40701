/* SPDX-License-Identifier: Apache-2.0 */
/* attention: sequences of the decode class and of the prefill class go to their kernels, in batches
 * that share a page layout. */

#include <cerrno>

#include "kernels/cuda/attention.cuh"

static int check(const struct cuda *cu, const struct ops_attention *p)
{
    for (int32_t i = 0; i < p->n_seqs; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (p->seqs[i].kv.n_slots > cu->limits.max_slots || p->n_q > cu->limits.max_heads ||
            l->k_dim > cu->limits.max_head_dim || l->v_dim > cu->limits.max_head_dim ||
            l->k_unrotated || p->n_q % (l->n_groups * l->k_heads) != 0 ||
            p->n_q % (l->n_groups * l->v_heads) != 0 ||
            (p->observe && !cu->limits.observe && p->seqs[i].kv.score &&
             p->observe[i].row_first < p->seqs[i].n_rows)) {
            return -EINVAL;
        }
    }
    return 0;
}

/* Sequences [first, n) of one class; returns how many were done, or an error. */
static int32_t some(struct cuda *cu, const struct ops_attention *p, struct attend *a, int32_t first,
                    int32_t n, bool decode)
{
    int32_t room = decode && p->observe ? cu->scratch.n_observed : CUDA_SEQS;
    int32_t done =
        cuda_seqs_take(p->seqs, first, n - first < room ? n : first + room, &a->seqs);
    int r;

    for (int32_t i = 0; i < done; i++) {
        if (p->observe) {
            a->observe[i] = p->observe[first + i];
        } else {
            a->observe[i].row_first = INT32_MAX;
        }
    }
    r = decode ? cuda_attend_decode(cu, a) : cuda_attend_prefill(cu, a);
    return r < 0 ? r : done;
}

int cuda_attention(struct backend *be, const struct ops_attention *p)
{
    struct cuda *cu = cuda_of(be);
    struct attend a = {};
    int32_t n_decode = 0;
    int32_t r = p->select ? -ENOTSUP : check(cu, p);

    while (n_decode < p->n_seqs && p->seqs[n_decode].row0 < p->rows.n_decode) {
        n_decode++;
    }
    a.q = p->q;
    a.out = p->out;
    a.ldq = p->ldq;
    a.ldo = p->ldo;
    a.n_q = p->n_q;
    a.scale = p->scale;
    a.softcap = p->softcap;
    a.alibi_max = p->alibi_max;
    a.window = p->window;
    a.part = cu->scratch.part;
    a.part_len = cu->limits.max_head_dim + 4;
    a.sums = cu->scratch.sums;
    a.logits = cu->scratch.logits;
    a.max_slots = (cu->limits.max_slots + 63) / 64 * 64;
    for (int32_t i = 0; i < n_decode && r >= 0; i += r) {
        r = some(cu, p, &a, i, n_decode, true);
    }
    for (int32_t i = n_decode; i < p->n_seqs && r >= 0; i += r) {
        r = some(cu, p, &a, i, p->n_seqs, false);
    }
    return r < 0 ? r : 0;
}
