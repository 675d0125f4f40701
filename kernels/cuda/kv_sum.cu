/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of V over live slots (ops.h struct ops_kv_sum), which SparQ gives the rest of the
 * probability to.
 *
 * sum_slots  One block of 128 threads a V head: threads over groups of 8 dims, and over as many
 * slots as that leaves; their sums are added in order. Run once a prompt and every thousand tokens.
 * drop_slot  One warp a V head: takes away what the victim's slot held. */

#include <cerrno>

#include "kernels/cuda/kv.cuh"

enum { SUM_THREADS = 128, SUM_DIM = 256 };

CUDA_KERNEL void __launch_bounds__(SUM_THREADS) sum_slots(struct cuda_layout l, struct cuda_seq s)
{
    __shared__ float part[SUM_THREADS * KV_VEC];
    int32_t group = (int32_t)blockIdx.x / l.v_heads;
    int32_t head = (int32_t)blockIdx.x % l.v_heads;
    int32_t n_vec = (l.v_dim + KV_VEC - 1) / KV_VEC;
    int32_t n_sub = SUM_THREADS / n_vec;
    int32_t vec = (int32_t)threadIdx.x % n_vec;
    int32_t sub = (int32_t)threadIdx.x / n_vec;
    float acc[KV_VEC] = {};

    for (int32_t slot = sub; slot < s.n_slots && sub < n_sub; slot += n_sub) {
        if (kv_pos(&s, group, slot) >= 0) {
            uint8_t *page = kv_page(&l, &s, group, slot);
            float scale = kv_scale_of(l.v_type, page, l.v_scale_at, head, slot);
            float v[KV_VEC];

            kv_load8(l.v_type, kv_v_row(&l, page, head, slot), vec, v);
            for (int j = 0; j < KV_VEC; j++) {
                acc[j] += v[j] * scale;
            }
        }
    }
    for (int j = 0; j < KV_VEC && sub < n_sub; j++) {
        part[(sub * n_vec + vec) * KV_VEC + j] = acc[j];
    }
    __syncthreads(); /* part: written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < l.v_dim; d += SUM_THREADS) {
        float sum = 0;

        for (int32_t i = 0; i < n_sub; i++) {
            sum += part[i * n_vec * KV_VEC + d];
        }
        s.v_sum[(size_t)blockIdx.x * l.v_dim + d] = sum;
    }
}

int cuda_kv_sum(struct backend *be, const struct ops_kv_sum *p)
{
    struct cuda *cu = cuda_of(be);
    struct ops_seq seq = {};
    struct cuda_seqs seqs;

    if (!p->kv->v_sum || p->kv->layout->v_dim > SUM_DIM || kv_four(p->kv->layout->v_type)) {
        return -EINVAL;
    }
    seq.kv = *p->kv;
    (void)cuda_seqs_take(&seq, 0, 1, &seqs);
    CUDA_LAUNCH(cu, dim3((unsigned)(seqs.layout.n_groups * seqs.layout.v_heads)), dim3(SUM_THREADS),
                0, sum_slots, seqs.layout, seqs.s[0]);
    return cuda_launched(cu, "sum_slots");
}

CUDA_KERNEL void drop_slot(struct cuda_seqs seqs, int32_t n_decode)
{
    const struct cuda_layout *l = &seqs.layout;
    const struct cuda_seq *s = &seqs.s[blockIdx.y];
    int32_t group = (int32_t)blockIdx.x / l->v_heads;
    int32_t head = (int32_t)blockIdx.x % l->v_heads;
    float *sum = s->v_sum + (size_t)blockIdx.x * l->v_dim;
    int32_t slot;
    uint8_t *page;
    float scale;

    if (!s->v_sum || !s->victim || s->row0 >= n_decode) {
        return;
    }
    slot = s->victim[group];
    if (slot < 0 || kv_pos(s, group, slot) < 0) {
        return;
    }
    page = kv_page(l, s, group, slot);
    scale = kv_scale_of(l->v_type, page, l->v_scale_at, head, slot);
    for (int32_t d = (int32_t)threadIdx.x; d < l->v_dim; d += WARP) {
        sum[d] -= kv_element(l->v_type, kv_v_row(l, page, head, slot), d, scale);
    }
}

int cuda_kv_sum_drop(struct cuda *cu, const struct cuda_seqs *seqs, int32_t n_decode)
{
    bool any = false;

    for (int32_t i = 0; i < seqs->n; i++) {
        any = any || (seqs->s[i].v_sum && seqs->s[i].victim && seqs->s[i].row0 < n_decode);
    }
    if (!any) {
        return 0;
    }
    CUDA_LAUNCH(cu,
                dim3((unsigned)(seqs->layout.n_groups * seqs->layout.v_heads), (unsigned)seqs->n),
                dim3(WARP), 0, drop_slot, *seqs, n_decode);
    return cuda_launched(cu, "drop_slot");
}
