/* SPDX-License-Identifier: Apache-2.0 */
/* What a policy observes of prefill rows, on tensor cores; caches of 16, 8 and 4 bits. (What rows
 * give themselves: attention_rows.cu. Caches of 32 bits: attention_prefill.cu.)
 *
 * queries  Block a row: its queries as elements of 16 bits, once for all blocks that read them.
 * sums     attention_observe_sums.cu: of each row and head the largest logit and the sum.
 * columns  attention_observe_columns.cu: what the rows give to each slot, a head each.
 * scores   A thread a slot and group: adds what its heads gave, in their order, to the score. */

#include "kernels/cuda/attention_observe.cuh"

enum { QUERY_WARPS = 8, QUERY_DIM = 256 };

/* ---- queries -------------------------------------------------------------------------------- */

/* A warp every eighth head. */
template <bool BF16>
CUDA_KERNEL void __launch_bounds__(QUERY_WARPS *WARP)
    observe_queries(struct attend p, int32_t first)
{
    const struct cuda_seq *s = &p.seqs.s[blockIdx.y];
    int32_t k_dim = p.seqs.layout.k_dim;
    int32_t row = first + (int32_t)blockIdx.x;
    int lane = (int)threadIdx.x % WARP;

    if (!attend_observed(&p, (int32_t)blockIdx.y) || row >= s->n_rows ||
        row < first_row(&p, (int32_t)blockIdx.y)) {
        return;
    }
#pragma unroll 2
    for (int32_t head = (int32_t)threadIdx.x / WARP; head < p.n_q; head += QUERY_WARPS) {
        const float *q = p.q + (size_t)(s->row0 + row) * p.ldq + (size_t)head * k_dim;
        uint16_t *to = query_at(&p, s->row0 + row, head);
        float v[QUERY_DIM / WARP];
        float factor = 1.0f;
        float top = 0.0f;
        float inv;

#pragma unroll
        for (int j = 0; j < QUERY_DIM / WARP; j++) {
            v[j] = lane + j * WARP < k_dim ? q[lane + j * WARP] : 0.0f;
            top = fmaxf(top, fabsf(v[j]));
        }
        top = BF16 ? 0.0f : warp_max(top);
        if (top > 32768.0f && top < INFINITY) { /* to below 2^15 */
            factor = __uint_as_float(((__float_as_uint(top) >> 23) - 14) << 23);
        }
        inv = 1.0f / factor;
#pragma unroll
        for (int j = 0; j < QUERY_DIM / WARP; j++) {
            if (lane + j * WARP < pieces_of(k_dim) * KV_VEC) {
                to[lane + j * WARP] = BF16 ? bf16_of_f32(v[j]) : f16_of_f32(v[j] * inv);
            }
        }
        if (lane == 0) {
            p.query_factor[(size_t)(s->row0 + row) * p.n_q + head] = factor;
        }
    }
}

/* ---- scores --------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) observe_scores(struct attend p, int32_t seq0)
{
    int32_t seq = seq0 + (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t group = (int32_t)blockIdx.y;
    int32_t slot = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    int32_t n_heads = p.n_q / p.seqs.layout.n_groups;
    const float *part = p.logits + ((size_t)blockIdx.z * p.n_q + group * n_heads) * p.max_slots;

    if (attend_observed(&p, seq) && slot < s->n_slots) {
        float *score = s->score + (size_t)group * s->cap + slot;
        float total = *score * attend_damp(&p.observe[seq], s->n_rows);

        for (int32_t h = 0; h < n_heads; h++) {
            total += part[(size_t)h * p.max_slots + slot];
        }
        *score = total;
    }
}

/* ---- launches ------------------------------------------------------------------------------- */

static int make_queries(struct cuda *cu, const struct attend *p, int32_t first, int32_t rows)
{
    dim3 grid((unsigned)(rows - first), (unsigned)p->seqs.n);

    if (p->seqs.layout.k_type == OPS_KV_BF16) {
        CUDA_LAUNCH(cu, grid, dim3(QUERY_WARPS * WARP), 0, observe_queries<true>, *p, first);
    } else {
        CUDA_LAUNCH(cu, grid, dim3(QUERY_WARPS * WARP), 0, observe_queries<false>, *p, first);
    }
    return cuda_launched(cu, "observe_queries");
}

static int add_scores(struct cuda *cu, const struct attend *p, int32_t slots, int32_t seq0,
                      int32_t n)
{
    CUDA_LAUNCH(cu,
                dim3(cuda_div_up((uint64_t)slots, THREADS), (unsigned)p->seqs.layout.n_groups,
                     (unsigned)n),
                dim3(THREADS), 0, observe_scores, *p, seq0);
    return cuda_launched(cu, "observe_scores");
}

int cuda_attend_scores(struct cuda *cu, const struct attend *p, int32_t rows, int32_t slots)
{
    int32_t first = rows; /* row of those whose queries are made */
    bool leaves = false;
    bool sums = false;
    int r;

    for (int32_t i = 0; i < p->seqs.n; i++) {
        if (attend_observed(p, i)) {
            first = min(first, first_row(p, i));
            leaves |= attend_leaves_sums(p, i);
            sums |= !attend_leaves_sums(p, i);
        }
    }
    r = make_queries(cu, p, first, rows);
    r = r == 0 && sums ? cuda_observe_sums(cu, p, rows) : r;
    for (int32_t seq0 = 0; seq0 < p->seqs.n && r == 0; seq0 += cu->scratch.n_observed) {
        int32_t n = min(cu->scratch.n_observed, p->seqs.n - seq0);

        r = leaves ? cuda_observe_columns(cu, p, true, slots, seq0, n) : 0;
        r = r == 0 && sums ? cuda_observe_columns(cu, p, false, slots, seq0, n) : r;
        r = r < 0 ? r : add_scores(cu, p, slots, seq0, n);
    }
    return r;
}
