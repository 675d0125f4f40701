/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to tokens without the host (ops.h ops_sample): to the bit what the engine's sampler
 * draws, for greedy rows and for those with top_k.
 *
 * Blocks share a row. Its logits fall into at most 2048 groups that lie one behind the other; a
 * warp finds the best of a group. The block that ends last (a counter, as in gemm_heads.cuh) goes
 * on alone. It sorts the groups by their best. The k best logits all lie in the first k groups, and
 * none is worse than the best of the k-th. So these groups alone are read again, and what is no
 * worse is sorted. Rows with more such logits than there is room for (many ties) take the k-th best
 * by radix over all logits (topk.cuh). Order: the largest logit first, ties to the lower id.
 *
 * The weights are computed by as many threads. One thread adds them, in falling order, in double,
 * as the host does: that order is the result. exp and products are rounded one by one. */

#include <cerrno>
#include <cfloat>

#include "kernels/cuda/topk.cuh"

extern "C" {
#include "base/rng.h"
}

enum {
    SAMPLE_ROWS = CUDA_SAMPLE_ROWS,
    SAMPLE_K = OPS_SAMPLE_MAX_K,
    GROUPS = CUDA_SAMPLE_GROUPS,
    WARP_GROUPS = 2 /* a warp's, in phase 1 */
};

static_assert((int)SAMPLE_K == (int)TOPK_THREADS, "a thread for each of the best");
static_assert(GROUPS == 2 * TOPK_THREADS, "a thread sorts two");

struct sample {
    const float *logits;
    int32_t *ids;
    uint64_t *best;    /* (rows, GROUPS) */
    uint32_t *arrived; /* (rows) */
    int32_t ld, n_vocab;
    int32_t n_groups, group; /* how many, and logits of each */
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

/* The best key of each of the warp's groups; 0, a NaN's: a NaN or +inf is among its logits. */
CUDA_INLINE void best_of_groups(const struct sample *p, const struct ranked_logits *c,
                                uint64_t *best)
{
    int32_t warp = (int32_t)(blockIdx.x * TOPK_WARPS + threadIdx.x / WARP);

#pragma unroll
    for (int j = 0; j < WARP_GROUPS; j++) {
        int32_t g = warp * WARP_GROUPS + j;
        int32_t end = min((g + 1) * p->group, p->n_vocab);
        uint64_t key = TOPK_NONE;

#pragma unroll 4
        for (int32_t i = g * p->group + (int32_t)threadIdx.x % WARP; i < end; i += WARP) {
            uint64_t k = c->l[i] <= FLT_MAX ? topk_key(c, 0, i) : 0;

            key = k < key ? k : key;
        }
        for (int m = 16; m > 0; m >>= 1) {
            uint64_t other = __shfl_xor_sync(ALL_LANES, key, m);

            key = other < key ? other : key;
        }
        if (threadIdx.x % WARP == 0 && g < p->n_groups) {
            best[g] = key;
        }
    }
}

/* Sorts n keys, a power of two up to 2 TOPK_THREADS, the smallest first (a bitonic network).
 * All threads; key: written before the call, in order behind it. */
CUDA_INLINE void sort_keys(uint64_t *key, int32_t n)
{
    for (int32_t size = 2; size <= n; size *= 2) {
        for (int32_t step = size / 2; step > 0; step /= 2) {
            int32_t i = (int32_t)threadIdx.x / step * 2 * step + (int32_t)threadIdx.x % step;

            __syncthreads(); /* key: as the step before left it */
            if ((int32_t)threadIdx.x < n / 2) {
                uint64_t a = key[i];
                uint64_t b = key[i + step];
                bool swap = (a > b) == ((i & size) == 0);

                key[i] = swap ? b : a;
                key[i + step] = swap ? a : b;
            }
        }
    }
    __syncthreads(); /* key: in order */
}

/* Appends the keys no worse than `last` of logits [from, end), a lane each; *n counts them, those
 * beyond the room, too. */
CUDA_INLINE void collect(const struct ranked_logits *c, int32_t from, int32_t end, uint64_t last,
                         uint64_t *key, int32_t room, int32_t *n)
{
    for (int32_t i = from + (int32_t)threadIdx.x % WARP; i < end; i += WARP) {
        uint64_t k = topk_key(c, 0, i);

        if (k <= last) {
            int32_t at = atomicAdd(n, 1);

            if (at < room) {
                key[at] = k;
            }
        }
    }
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

/* One thread: which of the n best, falling, it is. w: weights without temperature; e: with, 0 for
 * those that min_p drops. */
CUDA_INLINE int32_t draw(const struct ops_sample_row *r, const float *w, const float *e, int32_t n)
{
    double u = rng_draw(r->seed, r->index);
    double total = 0;
    double sum = 0;
    int32_t last = -1;

    n = r->top_p < 1 ? nucleus(w, n, r->top_p) : n;
    for (int32_t i = 0; i < n; i++) {
        total += (double)e[i];
    }
    for (int32_t i = 0; i < n; i++) {
        if (e[i] > 0) {
            last = i;
            sum += (double)e[i];
            if (u * total < sum) {
                break;
            }
        }
    }
    return last;
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) sample_rows(struct sample p)
{
    __shared__ uint64_t group[GROUPS];
    __shared__ uint64_t key[GROUPS];
    __shared__ int32_t count[256];
    __shared__ int32_t n_keys;
    __shared__ bool is_last;
    const struct ops_sample_row *r = &p.row[blockIdx.y];
    struct ranked_logits c = {p.logits + (size_t)blockIdx.y * (size_t)p.ld};
    uint64_t *best = p.best + (size_t)blockIdx.y * GROUPS;
    int32_t own = (int32_t)threadIdx.x;
    int32_t warp = own / WARP;
    int32_t n = 1;
    uint64_t last = TOPK_NONE;
    bool bad;

    best_of_groups(&p, &c, best);
    __syncthreads(); /* best: written by the block's warps */
    if (own == 0) {
        __threadfence(); /* the block's part of best before the count */
        is_last = atomicInc(&p.arrived[blockIdx.y], gridDim.x - 1) == gridDim.x - 1;
        n_keys = 0;
        __threadfence(); /* the count before best is read */
    }
    __syncthreads(); /* is_last, n_keys: written above */
    if (!is_last) {
        return;
    }
    for (int32_t i = own; i < GROUPS; i += TOPK_THREADS) {
        group[i] = i < p.n_groups ? __ldcg(best + i) : TOPK_NONE;
    }
    while (n < p.n_groups) {
        n *= 2;
    }
    sort_keys(group, n);
    bad = group[0] == 0 || c.l[(uint32_t)group[0]] < -FLT_MAX;
    if (bad || r->temperature <= 0) {
        if (own == 0) {
            p.ids[blockIdx.y] = bad ? -1 : (int32_t)(uint32_t)group[0];
        }
        return;
    }

    if (r->top_k <= p.n_groups) {
        last = group[r->top_k - 1];
    }
    for (int32_t i = warp; i < min(r->top_k, p.n_groups); i += TOPK_WARPS) {
        int32_t from = (int32_t)(uint32_t)group[i] / p.group * p.group;

        collect(&c, from, min(from + p.group, p.n_vocab), last, key, GROUPS, &n_keys);
    }
    __syncthreads(); /* key, n_keys: complete */
    if (n_keys > GROUPS) { /* the same for all threads */
        last = topk_nth(&c, 0, p.n_vocab, r->top_k, count);
        if (own == 0) {
            n_keys = 0;
        }
        __syncthreads(); /* n_keys: cleared */
        for (int32_t i = warp * WARP; i < p.n_vocab; i += TOPK_THREADS) {
            collect(&c, i, min(i + (int32_t)WARP, p.n_vocab), last, key, GROUPS, &n_keys);
        }
        __syncthreads(); /* key, n_keys: complete */
    }
    for (n = 1; n < n_keys;) {
        n *= 2;
    }
    for (int32_t i = n_keys + own; i < n; i += TOPK_THREADS) {
        key[i] = TOPK_NONE;
    }
    sort_keys(key, n);

    float *w = reinterpret_cast<float *>(group); /* no longer needed */
    float *e = w + SAMPLE_K;

    if (own < r->top_k) {
        float below = __fsub_rn(c.l[(uint32_t)key[own]], c.l[(uint32_t)key[0]]);

        w[own] = sample_exp(below);
        e[own] = w[own] >= r->min_p ? sample_exp(below / r->temperature) : 0.0f;
    }
    __syncthreads(); /* w, e: written by those that rank */
    if (own == 0) {
        p.ids[blockIdx.y] = (int32_t)(uint32_t)key[draw(r, w, e, r->top_k)];
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
        s.best = cu->scratch.sample_best;
        s.arrived = cu->scratch.sample_arrived;
        s.group = (int32_t)cuda_div_up((uint64_t)p->n_vocab, GROUPS * WARP) * WARP;
        s.n_groups = (int32_t)cuda_div_up((uint64_t)p->n_vocab, (uint64_t)s.group);
        memcpy(s.row, p->rows + i, (size_t)n * sizeof(s.row[0]));
        CUDA_LAUNCH(cu,
                    dim3(cuda_div_up((uint64_t)s.n_groups, TOPK_WARPS * WARP_GROUPS), (unsigned)n),
                    dim3(TOPK_THREADS), 0, sample_rows, s);
        r = cuda_launched(cu, "sample_rows");
    }
    return r;
}
