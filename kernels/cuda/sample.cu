/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to tokens without the host (ops.h ops_sample): to the bit what the engine's sampler
 * draws, for greedy rows and for those with top_k.
 *
 * Block of 1024 threads a row. One pass finds the best logit and what is no logit; eight more the
 * k-th best by radix (topk.cuh: the largest logit first, ties to the lower id). The k best go to
 * shared memory in falling order, each to the place that as many others come before. What then
 * decides, sums of at most 1024 weights, one thread adds in that order, in double, as the host
 * does: their order is the result. exp and products are rounded one by one. Bytes: the logits nine
 * times, the later ones from L2. Time: not measured. */

#include <cerrno>
#include <cfloat>

#include "kernels/cuda/topk.cuh"

extern "C" {
#include "base/rng.h"
}

enum { SAMPLE_ROWS = 32, SAMPLE_K = OPS_SAMPLE_MAX_K };

static_assert((int)SAMPLE_K == (int)TOPK_THREADS, "a thread for each of the best");

struct sample {
    const float *logits;
    int32_t *ids;
    int32_t ld, n_vocab;
    struct ops_sample_row row[SAMPLE_ROWS];
};

struct ranked_logits {
    const float *l;
};

CUDA_INLINE uint64_t topk_key(const struct ranked_logits *c, int32_t list, int32_t id)
{
    return (uint64_t)~topk_sortable(c->l[id]) << 32 | (uint32_t)id;
}

/* The sampler's e^x for x <= 0, in its operations. */
CUDA_INLINE float sample_exp(float x)
{
    float clamped = x > -87.0f ? x : -87.0f;
    float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504f), 0x1.8p23f);
    float n = __fsub_rn(shifted, 0x1.8p23f);
    float r =
        __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0x1.62e4p-1f)), __fmul_rn(n, 0x1.7f7d1cp-20f));
    float poly = 1.0f / 720;

    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 120);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 24);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 6);
    poly = __fadd_rn(__fmul_rn(poly, r), 0.5f);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f);
    return x > -87.0f
               ? __fmul_rn(poly, __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u))
               : 0.0f;
}

/* The best key of the block's row, all threads get it; TOPK_NONE: a NaN or +inf among the logits.
 */
CUDA_INLINE uint64_t best_key(const struct ranked_logits *c, int32_t n_vocab, uint64_t *part)
{
    uint64_t best = TOPK_NONE;
    int bad = 0;

    for (int32_t i = (int32_t)threadIdx.x; i < n_vocab; i += TOPK_THREADS) {
        uint64_t key = topk_key(c, 0, i);

        bad |= !(c->l[i] <= FLT_MAX);
        best = key < best ? key : best;
    }
    for (int m = 16; m > 0; m >>= 1) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, best, m);

        best = other < best ? other : best;
    }
    bad = __any_sync(ALL_LANES, bad);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = bad ? 0 : best; /* 0 would be a NaN's key */
    }
    __syncthreads(); /* part: written above, read by all */
    for (int i = 0; i < TOPK_WARPS; i++) {
        best = part[i] < best ? part[i] : best;
        bad |= part[i] == 0;
    }
    __syncthreads(); /* part: read, may be written again */
    return bad ? TOPK_NONE : best;
}

/* Of the n best in falling order, weights w relative to the first: how many top_p leaves. */
CUDA_INLINE int32_t nucleus(const float *w, int32_t n, float top_p)
{
    double total = 0;
    double sum = 0;

    for (int32_t i = 0; i < n; i++) {
        total += (double)w[i];
    }
    for (int32_t i = 0; i < n; i++) {
        sum += (double)w[i];
        if (sum >= (double)top_p * total) {
            return i + 1;
        }
    }
    return n;
}

/* One thread: which of the n best, falling, it is. */
CUDA_INLINE int32_t draw(const struct ops_sample_row *r, const float *l, const float *w, int32_t n)
{
    double u = rng_draw(r->seed, r->index);
    double total = 0;
    double sum = 0;
    int32_t last = -1;

    n = r->top_p < 1 ? nucleus(w, n, r->top_p) : n;
    for (int32_t i = 0; i < n; i++) {
        if (w[i] >= r->min_p) {
            total += (double)sample_exp(__fsub_rn(l[i], l[0]) / r->temperature);
        }
    }
    for (int32_t i = 0; i < n; i++) {
        float e = w[i] >= r->min_p ? sample_exp(__fsub_rn(l[i], l[0]) / r->temperature) : 0.0f;

        if (e > 0) {
            last = i;
            sum += (double)e;
            if (u * total < sum) {
                break;
            }
        }
    }
    return last;
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) sample_rows(struct sample p)
{
    __shared__ uint64_t key[SAMPLE_K];
    __shared__ float l[SAMPLE_K];
    __shared__ float w[SAMPLE_K];
    __shared__ int32_t id[SAMPLE_K];
    __shared__ uint64_t part[TOPK_WARPS];
    __shared__ int32_t count[256];
    __shared__ int32_t taken;
    const struct ops_sample_row *r = &p.row[blockIdx.x];
    struct ranked_logits c = {p.logits + (size_t)blockIdx.x * p.ld};
    uint64_t best = best_key(&c, p.n_vocab, part);
    int32_t own = (int32_t)threadIdx.x;
    uint64_t last;

    if (best == TOPK_NONE || c.l[(uint32_t)best] < -FLT_MAX || r->temperature <= 0) {
        if (threadIdx.x == 0) {
            p.ids[blockIdx.x] =
                best == TOPK_NONE || c.l[(uint32_t)best] < -FLT_MAX ? -1 : (int32_t)(uint32_t)best;
        }
        return;
    }
    last = topk_nth(&c, 0, p.n_vocab, r->top_k, count);
    if (threadIdx.x == 0) {
        taken = 0;
    }
    __syncthreads(); /* taken: cleared */
    for (int32_t i = own; i < p.n_vocab; i += TOPK_THREADS) {
        uint64_t k = topk_key(&c, 0, i);

        if (k <= last) {
            key[atomicAdd(&taken, 1)] = k; /* top_k of them, in any order */
        }
    }
    __syncthreads(); /* key: complete */
    if (own < r->top_k) {
        int32_t before = 0;

        for (int32_t i = 0; i < r->top_k; i++) {
            before += key[i] < key[own];
        }
        id[before] = (int32_t)(uint32_t)key[own];
        l[before] = c.l[(uint32_t)key[own]];
        w[before] = sample_exp(__fsub_rn(l[before], c.l[(uint32_t)best]));
    }
    __syncthreads(); /* id, l, w: in order */
    if (threadIdx.x == 0) {
        p.ids[blockIdx.x] = id[draw(r, l, w, r->top_k)];
    }
}

int cuda_sample(struct backend *be, const struct ops_sample *p)
{
    struct cuda *cu = cuda_of(be);
    int r = 0;

    for (int32_t i = 0; i < p->n_rows; i++) {
        if (!ops_sample_covers(&p->rows[i], p->n_vocab)) {
            return -ENOTSUP;
        }
    }
    for (int32_t i = 0; i < p->n_rows && r == 0; i += SAMPLE_ROWS) {
        struct sample s = {};
        int32_t n = p->n_rows - i < (int32_t)SAMPLE_ROWS ? p->n_rows - i : (int32_t)SAMPLE_ROWS;

        s.logits = p->logits + (size_t)i * (size_t)p->ld;
        s.ids = p->ids + i;
        s.ld = p->ld;
        s.n_vocab = p->n_vocab;
        memcpy(s.row, p->rows + i, (size_t)n * sizeof(s.row[0]));
        CUDA_LAUNCH(cu, dim3((unsigned)n), dim3(TOPK_THREADS), 0, sample_rows, s);
        r = cuda_launched(cu, "sample_rows");
    }
    return r;
}
