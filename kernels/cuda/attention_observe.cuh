/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_OBSERVE_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_OBSERVE_CUH

/* What the files of observed prefill rows share: queries as 16 bits in scratch, and tiles of them
 * and of K in shared memory.
 *
 * In shared memory rows are 16 bytes longer than the head, so that a matrix load meets all banks:
 * 37 KB at 128, 69 KB at 256. Queries have the 16-bit type that keys have; 8-bit caches go as f16,
 * exactly, their scales applied to the logits. Queries beyond f16's range are divided by a power of
 * two, per row. */

#include "kernels/cuda/attention_rows.cuh"

enum { THREADS = 128, WARPS = 4, ROWS = 64 };

static inline __host__ __device__ int32_t pieces_of(int32_t dim)
{
    return (dim + KV_VEC - 1) / KV_VEC;
}

/* The row's queries of one head, and what they were divided by. */
CUDA_INLINE uint16_t *query_at(const struct attend *p, int32_t row, int32_t head)
{
    return p->queries + ((size_t)row * p->n_q + head) * (pieces_of(p->seqs.layout.k_dim) * KV_VEC);
}

/* The first row whose queries are made: that of the first observed row's tile. */
static inline __host__ __device__ int32_t first_row(const struct attend *p, int32_t seq)
{
    return p->observe[seq].row_first / ROWS * ROWS;
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* Rows [row0, row0 + 64) of one head, asynchronously; beyond the sequence's last zeros. Columns
 * beyond the head are not written. */
template <int DIM>
CUDA_INLINE void copy_queries(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                              int32_t head, uint16_t *to)
{
    int32_t n_vec = pieces_of(p->seqs.layout.k_dim);
    int tid = thread_anew();

#pragma unroll
    for (int i = 0; i < ROWS * DIM / KV_VEC / THREADS; i++) {
        int32_t r = (tid + i * THREADS) / (DIM / KV_VEC);
        int32_t vec = (tid + i * THREADS) % (DIM / KV_VEC);
        uint16_t *at = to + r * (DIM + 8) + vec * KV_VEC;

        if (vec < n_vec && row0 + r < s->n_rows) {
            async_copy16(at, query_at(p, s->row0 + row0 + r, head) + vec * KV_VEC);
        } else if (vec < n_vec) {
            *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
        }
    }
}

/* Columns beyond the head of n rows. */
template <int DIM> CUDA_INLINE void clear_queries(const struct attend *p, uint16_t *rows, int32_t n)
{
    int32_t beyond = DIM / KV_VEC - pieces_of(p->seqs.layout.k_dim);

    for (int32_t i = (int32_t)threadIdx.x; i < n * beyond; i += THREADS) {
        uint16_t *at = rows + (i / beyond + 1) * (DIM + 8) - 8 - (i % beyond + 1) * KV_VEC;

        *reinterpret_cast<uint4 *>(at) = make_uint4(0, 0, 0, 0);
    }
}

/* Positions of n slots from s0 on, -1 beyond the last, and scales of their K. */
CUDA_INLINE void load_slots(const struct attend *p, const struct cuda_seq *s,
                            const struct attend_head *h, int32_t s0, int32_t n, int32_t *pos,
                            float *scale)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t i = (int32_t)threadIdx.x;
    int32_t slot = s0 + i;

    if (i < n) {
        pos[i] = slot < s->n_slots ? kv_pos(s, h->group, slot) : -1;
        scale[i] = pos[i] < 0 ? 1.0f
                              : kv_scale_of(l->k_type, kv_page(l, s, h->group, slot), l->k_scale_at,
                                            h->k_head, slot);
    }
}

/* Eight elements of 8 or 4 bits as they are loaded. */
struct k_piece {
    uint32_t lo, hi;
    uint16_t scale; /* of 4 bits */
};

CUDA_INLINE struct k_piece piece_load(const struct cuda_layout *l, uint8_t *page, int32_t head,
                                      int32_t slot, int32_t i)
{
    const uint8_t *row = kv_k_row(l, page, head, slot);
    struct k_piece r = {};

    if (kv_four(l->k_type)) {
        r.lo = reinterpret_cast<const uint32_t *>(row)[i];
        r.scale = kv_scales(page, l->k_scale_at, l->k_scales, head, slot)[i / 4];
    } else {
        uint2 v = reinterpret_cast<const uint2 *>(row)[i];

        r.lo = v.x;
        r.hi = v.y;
    }
    return r;
}

/* As f16; of 4 bits times the scale. */
CUDA_INLINE uint4 piece_widen(int32_t type, const struct k_piece *x)
{
    float scale = f32_of_f16(x->scale);
    float v[KV_VEC];
    uint32_t w[4];

    if (!kv_four(type)) {
        return widen8<true>(type, x->lo, x->hi, 0);
    }
    kv_load8(OPS_KV_G4, reinterpret_cast<const uint8_t *>(&x->lo), 0, v);
    for (int j = 0; j < 4; j++) {
        w[j] = half2_of_f32<false>(fminf(fmaxf(v[2 * j] * scale, -65504.0f), 65504.0f),
                                   fminf(fmaxf(v[2 * j + 1] * scale, -65504.0f), 65504.0f));
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

/* One head of K of N slots from s0 on, which begins a page; those that hold no token, and columns
 * beyond the head, become 0. Asynchronous where bytes need no change; commits. */
template <int N, int DIM>
CUDA_INLINE void load_k(const struct attend *p, const struct cuda_seq *s,
                        const struct attend_head *h, int32_t s0, const int32_t *pos, uint16_t *to)
{
    enum { PIECES = DIM / KV_VEC, AHEAD = 4 };
    const struct cuda_layout *l = &p->seqs.layout;
    bool codes = kv_has_scale(l->k_type) || kv_four(l->k_type);
    int32_t n_vec = pieces_of(l->k_dim);
    uint8_t *pages[2];

    pages[0] = kv_page(l, s, h->group, s0);
    pages[1] = N > OPS_PAGE_SLOTS && s0 + OPS_PAGE_SLOTS < s->n_slots
                   ? kv_page(l, s, h->group, s0 + OPS_PAGE_SLOTS)
                   : pages[0];
#pragma unroll 1
    for (int32_t i0 = (int32_t)threadIdx.x; i0 < N * PIECES; i0 += AHEAD * THREADS) {
        struct k_piece x[AHEAD];

#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            int32_t slot = (i0 + j * THREADS) / PIECES;
            int32_t vec = (i0 + j * THREADS) % PIECES;
            uint8_t *page = slot < OPS_PAGE_SLOTS ? pages[0] : pages[1];
            uint4 *at = reinterpret_cast<uint4 *>(to + slot * (DIM + 8) + vec * KV_VEC);

            x[j] = {};
            if (pos[slot] < 0 || vec >= n_vec) {
                *at = make_uint4(0, 0, 0, 0);
            } else if (codes) {
                x[j] = piece_load(l, page, h->k_head, slot, vec);
            } else {
                async_copy16(at, kv_k_row(l, page, h->k_head, slot) + vec * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < AHEAD && codes; j++) {
            int32_t slot = (i0 + j * THREADS) / PIECES;
            int32_t vec = (i0 + j * THREADS) % PIECES;

            *reinterpret_cast<uint4 *>(to + slot * (DIM + 8) + vec * KV_VEC) =
                piece_widen(l->k_type, &x[j]);
        }
    }
    async_commit();
}

/* v[0] comes last, and x in its place: so a loop goes through registers. Noise has one copy of its
 * code so; unrolled, it would be most of the kernel. */
template <int N> CUDA_INLINE void turn_in(float v[N], float x)
{
#pragma unroll
    for (int i = 1; i < N; i++) {
        v[i - 1] = v[i];
    }
    v[N - 1] = x;
}

/* ---- the calls ------------------------------------------------------------------------------ */

/* p->sums of the observed rows of sequences whose sums no other kernel leaves
 * (attention_observe_sums.cu). */
int cuda_observe_sums(struct cuda *cu, const struct attend *p, int32_t rows);
/* p->logits: what each head gives to the slots of sequences [seq0, seq0 + n). `plain`: of those
 * whose sums were left by what gave rows their output, else of the others
 * (attention_observe_columns.cu). */
int cuda_observe_columns(struct cuda *cu, const struct attend *p, bool plain, int32_t slots,
                         int32_t seq0, int32_t n);

#endif
