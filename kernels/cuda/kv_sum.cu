/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of V over live slots (ops.h struct ops_kv_sum), which SparQ gives the rest of the
 * probability to.
 *
 * sum_slots  Block of 256 threads: a V head and a chunk of slots. Threads over groups of 8 dims,
 *            and over as many slots as that leaves, 4 of them loaded at once; their sums are added
 *            in order.
 * sum_parts  Block of 256 threads a V head: chunks in order, where there are several.
 * drop_slot  One warp a V head: takes away what the victim's slot held.
 *
 * The first two run once a prompt and every thousand tokens. 8,192 slots of 8 heads are 128 blocks
 * of 8 waits for memory each. With a block a head that took one slot after another it was 1,024. */

#include <cerrno>

#include "kernels/cuda/kv.cuh"

enum { SUM_THREADS = 256, SUM_DIM = 256, SUM_AHEAD = 4 };

struct kv_sums {
    struct cuda_layout l;
    struct cuda_seq s;
    float *part; /* (V heads, chunks, v_dim) */
    int32_t chunk, n_chunks;
};

template <int TYPE> CUDA_KERNEL void __launch_bounds__(SUM_THREADS) sum_slots(struct kv_sums p)
{
    __shared__ float part[SUM_THREADS * KV_VEC];
    const struct cuda_layout *l = &p.l;
    const struct cuda_seq *s = &p.s;
    int32_t group = (int32_t)blockIdx.y / l->v_heads;
    int32_t head = (int32_t)blockIdx.y % l->v_heads;
    int32_t n_vec = (l->v_dim + KV_VEC - 1) / KV_VEC;
    int32_t n_sub = SUM_THREADS / n_vec;
    int32_t vec = (int32_t)threadIdx.x % n_vec;
    int32_t sub = (int32_t)threadIdx.x / n_vec;
    int32_t from = (int32_t)blockIdx.x * p.chunk;
    int32_t end = min(from + p.chunk, s->n_slots);
    float *to = p.n_chunks == 1
                    ? s->v_sum + (size_t)blockIdx.y * l->v_dim
                    : p.part + ((size_t)blockIdx.y * p.n_chunks + blockIdx.x) * l->v_dim;
    float acc[KV_VEC] = {};

    for (int32_t s0 = from + sub; s0 < end && sub < n_sub; s0 += SUM_AHEAD * n_sub) {
        struct kv_raw<TYPE> raw[SUM_AHEAD];
        float scale[SUM_AHEAD];
        bool live[SUM_AHEAD];

#pragma unroll
        for (int a = 0; a < SUM_AHEAD; a++) {
            int32_t slot = s0 + a * n_sub;
            int32_t there = slot < end ? slot : s0; /* loads without a branch */
            uint8_t *page = kv_page(l, s, group, there);

            live[a] = kv_pos(s, group, there) >= 0 && slot < end;
            raw[a] = kv_raw_load<TYPE>(kv_v_row(l, page, head, there), vec);
            scale[a] = kv_scale_of(TYPE, page, l->v_scale_at, head, there);
        }
#pragma unroll
        for (int a = 0; a < SUM_AHEAD; a++) {
            float v[KV_VEC];

            kv_raw_floats<TYPE>(raw[a], v);
#pragma unroll
            for (int j = 0; j < KV_VEC; j++) { /* what holds no token may be anything */
                acc[j] += live[a] ? v[j] * scale[a] : 0.0f;
            }
        }
    }
    for (int j = 0; j < KV_VEC && sub < n_sub; j++) {
        part[(sub * n_vec + vec) * KV_VEC + j] = acc[j];
    }
    __syncthreads(); /* part: written above, read below */
    for (int32_t d = (int32_t)threadIdx.x; d < l->v_dim; d += SUM_THREADS) {
        float sum = 0;

        for (int32_t i = 0; i < n_sub; i++) {
            sum += part[i * n_vec * KV_VEC + d];
        }
        to[d] = sum;
    }
}

CUDA_KERNEL void __launch_bounds__(SUM_THREADS) sum_parts(struct kv_sums p)
{
    const float *part = p.part + (size_t)blockIdx.x * p.n_chunks * p.l.v_dim;

    for (int32_t d = (int32_t)threadIdx.x; d < p.l.v_dim; d += SUM_THREADS) {
        float sum = 0;

#pragma unroll 8
        for (int32_t i = 0; i < p.n_chunks; i++) {
            sum += part[(size_t)i * p.l.v_dim + d];
        }
        p.s.v_sum[(size_t)blockIdx.x * p.l.v_dim + d] = sum;
    }
}

template <int TYPE>
static int launch_sums(struct cuda *cu, const struct kv_sums *sums, unsigned n_heads)
{
    CUDA_LAUNCH(cu, dim3((unsigned)sums->n_chunks, n_heads), dim3(SUM_THREADS), 0, sum_slots<TYPE>,
                *sums);
    return cuda_launched(cu, "sum_slots");
}

int cuda_kv_sum(struct backend *be, const struct ops_kv_sum *p)
{
    struct cuda *cu = cuda_of(be);
    struct ops_seq seq = {};
    struct cuda_seqs seqs;
    struct kv_sums sums;
    unsigned n_heads;
    int r;

    if (!p->kv->v_sum || p->kv->layout->v_dim > SUM_DIM || kv_four(p->kv->layout->v_type) ||
        p->kv->layout->v_dim > cu->limits.max_head_dim ||
        p->kv->layout->n_groups * p->kv->layout->v_heads > cu->limits.max_heads ||
        p->kv->n_slots > cu->limits.max_slots) {
        return -EINVAL;
    }
    seq.kv = *p->kv;
    (void)cuda_seqs_take(&seq, 0, 1, &seqs);
    n_heads = (unsigned)(seqs.layout.n_groups * seqs.layout.v_heads);
    sums.l = seqs.layout;
    sums.s = seqs.s[0];
    sums.part = cu->scratch.part;
    sums.chunk = cuda_chunk(sums.s.n_slots);
    sums.n_chunks = max((sums.s.n_slots + sums.chunk - 1) / sums.chunk, 1);
    switch (seqs.layout.v_type) {
    case OPS_KV_F32:
        r = launch_sums<OPS_KV_F32>(cu, &sums, n_heads);
        break;
    case OPS_KV_F16:
        r = launch_sums<OPS_KV_F16>(cu, &sums, n_heads);
        break;
    case OPS_KV_BF16:
        r = launch_sums<OPS_KV_BF16>(cu, &sums, n_heads);
        break;
    case OPS_KV_FP8:
        r = launch_sums<OPS_KV_FP8>(cu, &sums, n_heads);
        break;
    default:
        r = launch_sums<OPS_KV_I8>(cu, &sums, n_heads);
    }
    if (r == 0 && sums.n_chunks > 1) {
        CUDA_LAUNCH(cu, dim3(n_heads), dim3(SUM_THREADS), 0, sum_parts, sums);
        r = cuda_launched(cu, "sum_parts");
    }
    return r;
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
