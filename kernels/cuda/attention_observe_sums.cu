/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of observed prefill rows: of each row and head the largest logit and 1 / the sum of e^(x -
 * largest). Only where logits get noise, a temperature, a soft-cap or ALiBi: the others' sums are
 * left by the kernels that give rows their output.
 *
 * Block of 4 warps: 64 consecutive rows of one query head, a warp 16 of them, over all slots in
 * tiles of 64. Blocks with the most tiles start first. Sums are f32. */

#include "kernels/cuda/attention_observe.cuh"

template <int DIM> struct sums_tile {
    static const int LEN = DIM + 8;

    uint16_t q[ROWS * LEN], k[ROWS * LEN]; /* as many slots as rows */
    int32_t pos[ROWS];
    float scale[ROWS];
};

/* Takes the 16 logits that this lane holds of a row; `top` is a logit here. */
CUDA_INLINE void running_add(struct running *r, const float *v)
{
    float top = v[0];
    float sum = 0;

#pragma unroll
    for (int i = 1; i < 16; i++) {
        top = fmaxf(top, v[i]);
    }
    top = fmaxf(r->top, quad_max(top));
#pragma unroll
    for (int i = 0; i < 16; i++) {
        sum += v[i] > -INFINITY ? expf(v[i] - top) : 0.0f;
    }
    /* top is finite if they differ */
    r->sum = r->sum * (top == r->top ? 1.0f : expf(r->top - top)) + quad_sum(sum);
    r->top = top;
}

/* The lane's first row of 64. */
CUDA_INLINE int32_t own_row(void)
{
    int tid = thread_anew();

    return tid / WARP * 16 + tid % WARP / 4;
}

/* x[j][i]: row 16 warp + g (i < 2) or + 8, slot 8 j + 2t + i % 2. */
template <bool BF16, int DIM>
CUDA_INLINE void row_products(const struct sums_tile<DIM> *t, float x[8][4])
{
    int tid = thread_anew();
    int lane = tid % WARP;
    const uint16_t *q = t->q + (tid / WARP * 16 + lane % 16) * t->LEN + lane / 16 * 8;
    const uint16_t *k = t->k + (lane % 8 + lane / 16 * 8) * t->LEN + lane / 8 % 2 * 8;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        x[i / 4][i % 4] = 0.0f;
    }
#pragma unroll 4
    for (int32_t d = 0; d < DIM; d += 16) {
        uint32_t a[4];

        matrix_load4<false>(q + d, a);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];

            matrix_load4<false>(k + j * 16 * t->LEN + d, b);
            mma_half<BF16>(x[2 * j], a, b);
            mma_half<BF16>(x[2 * j + 1], a, b + 2);
        }
    }
}

/* The next tile of 64 slots from s0 on that some row sees; n_slots and beyond: none. */
CUDA_INLINE int32_t next_slots(const struct attend *p, const struct cuda_seq *s, int32_t s0,
                               int32_t first_pos, int32_t last_pos)
{
    while (s0 < s->n_slots && attend_unseen(p, s, s0, ROWS, first_pos, last_pos)) {
        s0 += ROWS;
    }
    return s0;
}

template <bool KB, int DIM>
CUDA_KERNEL void __launch_bounds__(THREADS, 2) observe_sums(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    struct sums_tile<DIM> *t = reinterpret_cast<struct sums_tile<DIM> *>(memory);
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t row0 = (int32_t)(gridDim.x - 1 - blockIdx.x) * ROWS;
    struct attend_head h = attend_head_of(&p, head);
    int32_t first_pos = s->pos0 + row0;
    int32_t last_pos = s->pos0 + min(row0 + ROWS, s->n_rows) - 1;
    float slope = attend_slope(&p, head);
    float factor[2];
    struct running sum[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};

    if (!attend_observed(&p, seq) || attend_leaves_sums(&p, seq) || row0 >= s->n_rows ||
        row0 < first_row(&p, seq)) {
        return;
    }
    clear_queries<DIM>(&p, t->q, ROWS);
    copy_queries<DIM>(&p, s, row0, head, t->q);
    for (int r = 0; r < 2; r++) {
        int32_t row = min(row0 + own_row() + r * 8, s->n_rows - 1);

        factor[r] = p.query_factor[(size_t)(s->row0 + row) * p.n_q + head];
    }
    for (int32_t s0 = next_slots(&p, s, 0, first_pos, last_pos); s0 < s->n_slots;
         s0 = next_slots(&p, s, s0 + ROWS, first_pos, last_pos)) {
        float x[8][4];
        float v[32];

        __syncthreads(); /* k, pos, scale: read by all, the next tile's come in their place */
        load_slots(&p, s, &h, s0, ROWS, t->pos, t->scale);
        __syncthreads(); /* pos: written by two warps, read by all */
        load_k<ROWS, DIM>(&p, s, &h, s0, t->pos, t->k);
        async_wait<0>();
        __syncthreads(); /* k (and q): copied by all, read by all */
        row_products<KB, DIM>(t, x);
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i] = x[i % 16 / 2][i / 16 * 2 + i % 2];
        }
#pragma unroll 1
        for (int i = 0; i < 32; i++) {
            int32_t slot = i % 16 / 2 * 8 + thread_anew() % 4 * 2 + i % 2;
            int32_t row = row0 + own_row() + i / 16 * 8;
            float logit = attend_logit(&p, v[0] * t->scale[slot] * (i < 16 ? factor[0] : factor[1]),
                                       slope, t->pos[slot], s->pos0 + row);

            turn_in<32>(
                v, attend_noisy(&p.observe[seq], logit, head, row, s->pos0 + row, t->pos[slot]));
        }
        running_add(&sum[0], v);
        running_add(&sum[1], v + 16);
    }
    for (int r = 0; r < 2 && threadIdx.x % 4 == 0; r++) {
        int32_t row = row0 + own_row() + r * 8;

        if (row < s->n_rows) {
            float *to = p.sums + ((size_t)(s->row0 + row) * p.n_q + head) * 2;

            to[0] = sum[r].top;
            to[1] = sum[r].sum > 0 ? 1.0f / sum[r].sum : 0.0f;
        }
    }
}

template <bool KB, int DIM>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows)
{
    dim3 grid(cuda_div_up((uint64_t)rows, ROWS), (unsigned)p->n_q, (unsigned)p->seqs.n);

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), sizeof(struct sums_tile<DIM>),
                      (observe_sums<KB, DIM>), *p);
    return cuda_launched(cu, "observe_sums");
}

template <bool KB> static int launch_dim(struct cuda *cu, const struct attend *p, int32_t rows)
{
    int32_t dim = p->seqs.layout.k_dim;

    return dim <= 64    ? launch<KB, 64>(cu, p, rows)
           : dim <= 128 ? launch<KB, 128>(cu, p, rows)
                        : launch<KB, 256>(cu, p, rows);
}

int cuda_observe_sums(struct cuda *cu, const struct attend *p, int32_t rows)
{
    return p->seqs.layout.k_type == OPS_KV_BF16 ? launch_dim<true>(cu, p, rows)
                                                : launch_dim<false>(cu, p, rows);
}
