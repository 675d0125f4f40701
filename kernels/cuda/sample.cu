/* SPDX-License-Identifier: Apache-2.0 */
/* From logits to tokens without the host (ops.h ops_sample): the engine's sampler's token, for
 * greedy rows and for those with top_k; sample_all.cu draws for those without.
 *
 * Blocks share a row. Its logits fall into at most 2048 groups that lie one behind the other; a
 * warp finds the best of a group. The block that ends last (a counter, as in gemm_heads.cuh) goes
 * on alone. The best of the groups is a greedy row's token. For top_k it halves the range of logits
 * until at least k groups, and not many more, have a best within the limit. So at least k logits
 * are within it, and all of these lie in those groups, which alone are read again. Each of them
 * goes to the place that as many others come before. Rows with more of them than there is room for
 * (many ties) take the k-th best by radix over all logits (topk.cuh). Order: the largest logit
 * first, ties to the lower id.
 *
 * The weights are computed by as many threads; one thread adds them, as integers. exp and products
 * are rounded one by one. */

#include <cerrno>

#include "kernels/cuda/sample.cuh"

CUDA_INLINE uint64_t warp_least(uint64_t key)
{
    for (int m = 16; m > 0; m >>= 1) {
        uint64_t other = __shfl_xor_sync(ALL_LANES, key, m);

        key = other < key ? other : key;
    }
    return key;
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
        key = warp_least(key);
        if (threadIdx.x % WARP == 0 && g < p->n_groups) {
            best[g] = key;
        }
    }
}

/* The least of all threads' keys; all threads get it. */
CUDA_INLINE uint64_t least_key(uint64_t key, uint64_t *part)
{
    key = warp_least(key);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = key;
    }
    __syncthreads(); /* part: written above, read by all */
    return warp_least(part[threadIdx.x % WARP]);
}

/* A limit that at least k of the groups' best are within: at most 2k of them, if ties allow. `own`:
 * two of them, this thread's; `least`: of all. */
CUDA_INLINE uint64_t limit_of(const uint64_t own[2], uint64_t least, int32_t k)
{
    uint32_t from = (uint32_t)(least >> 32);
    uint32_t to = (uint32_t)(TOPK_NONE >> 32);

    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        uint64_t limit = (uint64_t)mid << 32 | (uint32_t)TOPK_NONE;
        int32_t n = __syncthreads_count(own[0] <= limit) + __syncthreads_count(own[1] <= limit);

        from = n < k ? mid + 1 : from;
        to = n < k ? to : mid;
        if (n >= k && n <= 2 * k) {
            break;
        }
    }
    return (uint64_t)to << 32 | (uint32_t)TOPK_NONE;
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
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t need;

    for (int32_t i = 0; i < n; i++) {
        total += weight_units(w[i]);
    }
    need = units_share((double)top_p, total);
    for (int32_t i = 0; i < n; i++) {
        sum += weight_units(w[i]);
        if (sum >= need) {
            return i + 1;
        }
    }
    return n;
}

/* One thread: which of the n best, falling, it is. w: weights without temperature; e: with, 0 for
 * those that min_p drops. */
CUDA_INLINE int32_t draw(const struct ops_sample_row *r, const float *w, const float *e, int32_t n)
{
    uint64_t total = 0;
    uint64_t sum = 0;
    uint64_t at;
    int32_t i = 0;

    n = r->top_p < 1 ? nucleus(w, n, r->top_p) : n;
    for (int32_t k = 0; k < n; k++) {
        total += weight_units(e[k]);
    }
    at = units_drawn(rng_draw(r->seed, r->index), total);
    for (; i < n - 1; i++) {
        sum += weight_units(e[i]);
        if (sum > at) {
            break;
        }
    }
    return i;
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) sample_rows(struct sample p)
{
    __shared__ uint64_t key[GROUPS];
    __shared__ uint64_t part[TOPK_WARPS];
    __shared__ int32_t group[GROUPS];
    __shared__ int32_t count[256];
    __shared__ float w[SAMPLE_K];
    __shared__ float e[SAMPLE_K];
    __shared__ int32_t id[SAMPLE_K];
    __shared__ int32_t n_keys, n_groups;
    const struct ops_sample_row *r = &p.row[blockIdx.y];
    struct ranked_logits c = {p.logits + (size_t)blockIdx.y * (size_t)p.ld};
    uint64_t *best = p.best + (size_t)blockIdx.y * GROUPS;
    int32_t own = (int32_t)threadIdx.x;
    int32_t warp = own / WARP;
    uint64_t of_group[2];
    uint64_t first, last;
    float top;

    best_of_groups(&p, &c, best);
    if (own == 0) {
        n_keys = 0;
        n_groups = 0;
    }
    if (!sample_is_last(&p.arrived[blockIdx.y])) {
        return;
    }
    for (int j = 0; j < 2; j++) {
        int32_t g = own + j * TOPK_THREADS;

        of_group[j] = g < p.n_groups ? __ldcg(best + g) : TOPK_NONE;
    }
    first = least_key(of_group[0] < of_group[1] ? of_group[0] : of_group[1], part);
    top = c.l[(uint32_t)first];
    first = top < -FLT_MAX ? 0 : first;
    if (first == 0 || r->temperature <= 0 || takes_all(r, p.n_vocab)) {
        if (own == 0) {
            p.ids[blockIdx.y] = first == 0 ? -1 : (int32_t)(uint32_t)first;
            p.bounds[2 * blockIdx.y] = first;
        }
        for (int j = 0; j < 2 && takes_all(r, p.n_vocab); j++) {
            p.mass[(size_t)blockIdx.y * GROUPS + own + j * TOPK_THREADS] = 0;
        }
        return;
    }

    last = limit_of(of_group, first, r->top_k);
    for (int j = 0; j < 2; j++) {
        if (of_group[j] <= last && of_group[j] != TOPK_NONE) {
            group[atomicAdd(&n_groups, 1)] = own + j * TOPK_THREADS;
        }
    }
    __syncthreads(); /* group, n_groups: complete */
    for (int32_t i = warp; i < n_groups; i += TOPK_WARPS) {
        int32_t from = group[i] * p.group;

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
    for (int32_t i = own; i < n_keys; i += TOPK_THREADS) {
        int32_t before = 0;

#pragma unroll 4
        for (int32_t j = 0; j < n_keys; j++) {
            before += key[j] < key[i];
        }
        if (before < r->top_k) {
            float below = __fsub_rn(c.l[(uint32_t)key[i]], top);

            id[before] = (int32_t)(uint32_t)key[i];
            w[before] = sample_exp(below);
            e[before] = w[before] >= r->min_p ? sample_exp(below / r->temperature) : 0.0f;
        }
    }
    __syncthreads(); /* id, w, e: in order */
    if (own == 0) {
        p.ids[blockIdx.y] = id[draw(r, w, e, r->top_k)];
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
        s.mass = cu->scratch.sample_mass;
        s.bounds = cu->scratch.sample_bounds;
        s.arrived = cu->scratch.sample_arrived;
        s.group = (int32_t)cuda_div_up((uint64_t)p->n_vocab, GROUPS * WARP) * WARP;
        s.n_groups = (int32_t)cuda_div_up((uint64_t)p->n_vocab, (uint64_t)s.group);
        memcpy(s.row, p->rows + i, (size_t)n * sizeof(s.row[0]));
        CUDA_LAUNCH(cu,
                    dim3(cuda_div_up((uint64_t)s.n_groups, TOPK_WARPS * WARP_GROUPS), (unsigned)n),
                    dim3(TOPK_THREADS), 0, sample_rows, s);
        r = cuda_launched(cu, "sample_rows");
        r = r < 0 ? r : cuda_sample_all(cu, &s, n);
    }
    return r;
}
