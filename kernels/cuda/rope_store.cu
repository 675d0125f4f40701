/* SPDX-License-Identifier: Apache-2.0 */
/* Per-head norm, RoPE, and the store of K and V (store.cuh) as an operation.
 *
 * A warp takes one head of one row: q heads, then K heads, then V heads of its sequence. Shared
 * memory: 1 KB a warp. Bytes: q twice, k and v once, the slot once. */

#include <cerrno>

#include "kernels/cuda/store.cuh"

/* Blocks a multiprocessor that ptxas is told of: left alone it spills 4 bytes on sm_100 to 120, to
 * keep to 64 registers. */
enum { STORE_THREADS = 128, STORE_BLOCKS = 4 };

CUDA_KERNEL void __launch_bounds__(STORE_THREADS, STORE_BLOCKS) rope_store(struct cuda_store p)
{
    __shared__ float heads[STORE_THREADS / WARP][HEAD_MAX];
    int32_t h = (int32_t)(blockIdx.y * (STORE_THREADS / WARP) + threadIdx.x / WARP);
    float *head = heads[threadIdx.x / WARP];
    int32_t row = p.seqs.s[0].row0 + (int32_t)blockIdx.x; /* y ends at 65,535 */
    int32_t kind = STORE_Q;
    const float *from;

    while (kind <= STORE_V && h >= store_heads(&p, kind)) {
        h -= store_heads(&p, kind++);
    }
    if (kind > STORE_V) {
        return;
    }
    from = store_from(&p, kind, row, h);
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < store_dim(&p, kind); i += WARP) {
        head[i] = from[i];
    }
    __syncwarp(); /* head: loaded above, read by other lanes next */
    store_finish<true>(&p, kind, row, h, head);
}

int cuda_store_check(const struct cuda *cu, const struct ops_rope_store *p)
{
    if (p->k_dim > cu->limits.max_head_dim || p->k_dim > HEAD_MAX ||
        (p->rope.form != OPS_ROPE_NONE && p->rope.n_dims > 2 * CUDA_ROPE_PAIRS)) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs && p->n_k > 0; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (l->k_dim != p->k_dim || l->n_groups * l->k_heads != p->n_k ||
            l->n_groups * l->v_heads != p->n_v || l->v_dim > HEAD_MAX ||
            (kv_four(l->v_type) && p->seqs[i].kv.v_sum) ||
            (l->part_dims > 0 && !p->seqs[i].kv.skew && !(l->part_apart && !p->seqs[i].kv.part))) {
            return -EINVAL;
        }
    }
    return 0;
}

struct cuda_store cuda_store_of(const struct ops_rope_store *p)
{
    struct cuda_store s = {};

    s.q = p->q;
    s.k = p->k;
    s.v = p->v;
    s.ldq = p->ldq;
    s.ldk = p->ldk;
    s.ldv = p->ldv;
    s.n_q = p->n_q;
    s.n_k = p->n_k;
    s.n_v = p->n_v;
    s.k_dim = p->k_dim;
    s.q_norm = cuda_norm_of(&p->q_norm);
    s.k_norm = cuda_norm_of(&p->k_norm);
    s.form = p->rope.form;
    s.n_dims = p->rope.n_dims;
    s.mscale = p->rope.mscale;
    s.n_decode = p->n_v > 0 ? p->rows.n_decode : 0;
    for (int32_t i = 0; i < p->rope.n_dims / 2 && s.form != OPS_ROPE_NONE; i++) {
        s.inv_freq[i] = p->rope.inv_freq[i];
    }
    return s;
}

int cuda_rope_store(struct backend *be, const struct ops_rope_store *p)
{
    struct cuda *cu = cuda_of(be);
    int r = cuda_store_check(cu, p);
    struct cuda_store s;

    if (r < 0) {
        return r;
    }
    s = cuda_store_of(p);
    for (int32_t i = 0; i < p->n_seqs && r == 0;) {
        int32_t rows = 0;

        i += cuda_seqs_take(p->seqs, i, p->n_seqs, &s.seqs);
        for (int32_t j = 0; j < s.seqs.n; j++) {
            rows += s.seqs.s[j].n_rows;
        }
        r = cuda_kv_sum_drop(cu, &s.seqs, s.n_decode);
        if (r == 0 && rows > 0 && s.n_q + s.n_k + s.n_v > 0) {
            CUDA_LAUNCH(cu,
                        dim3((unsigned)rows,
                             cuda_div_up((uint64_t)(s.n_q + s.n_k + s.n_v), STORE_THREADS / WARP)),
                        dim3(STORE_THREADS), 0, rope_store, s);
            r = cuda_launched(cu, "rope_store");
        }
    }
    return r;
}
