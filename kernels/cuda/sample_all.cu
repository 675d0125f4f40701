/* SPDX-License-Identifier: Apache-2.0 */
/* Rows without top_k, as the default sampling is: every token may be drawn (ops.h ops_sample).
 *
 * Two kernels. Blocks share a row in each, as in sample.cu, and the block that ends last goes on
 * alone. Weights are integers, so that a sum is the host's in whatever order it is made.
 *
 *   sample_masses  where top_p is on: the mass of each 1/16 of a logit below the best, which
 *                  sample_rows found. The last block finds the 1/16 in which the masses reach
 *                  top_p of all, lists its tokens out of the groups whose best is there or above,
 *                  and finds the last token that is left by radix over keys: 8 bits a pass, masses
 *                  instead of numbers. If the list has no room (flat rows: a hundred thousand
 *                  tokens within a few logits), it does the same once more with 2,048 parts of
 *                  this 1/16, and if all of them tie, each pass of the radix reads all logits.
 *   sample_draw    what each group of logits holds of the weights that top_p and min_p leave. The
 *                  last block finds the group that the draw falls on, one warp the token in it.
 *
 * Both read a row's logits once with all of its blocks. */

#include "kernels/cuda/sample.cuh"

enum {
    BUCKETS = GROUPS,
    BUCKETS_A_UNIT = 16,
    DIGITS = 256,
    LANE_DIGITS = DIGITS / WARP,
    AT_ONCE = 8 /* loads of a thread in flight */
};

typedef unsigned long long units; /* what atomicAdd takes */

static_assert(sizeof(units) == sizeof(uint64_t), "the same");

/* Which 1/16 of a logit at distance `d` (0 to inf) from the best belongs to. */
CUDA_INLINE int32_t bucket_of(float d)
{
    return d < (float)(BUCKETS - 1) / (float)BUCKETS_A_UNIT
               ? (int32_t)(d * (float)BUCKETS_A_UNIT)
               : BUCKETS - 1;
}

CUDA_INLINE uint64_t mass_at(float below)
{
    return weight_units(sample_exp(below));
}

/* Sum over the block, and what is returned: over the threads before this one. `part` is shared
 * (TOPK_WARPS). */
CUDA_INLINE uint64_t block_before(uint64_t x, uint64_t *part, uint64_t *ret_total)
{
    int lane = (int)threadIdx.x % WARP;
    uint64_t upto = topk_upto(x);
    uint64_t own, warps;

    if (lane == WARP - 1) {
        part[threadIdx.x / WARP] = upto;
    }
    __syncthreads(); /* part: written above, read below */
    own = part[lane];
    warps = topk_upto(own);
    *ret_total = __shfl_sync(ALL_LANES, warps, WARP - 1);
    return __shfl_sync(ALL_LANES, warps - own, (int)threadIdx.x / WARP) + upto - x;
}

/* ---- the last token that top_p leaves ------------------------------------------------------- */

/* Tokens in one bucket, or in one part of one. */
struct in_bucket {
    struct ranked_logits c;
    const uint64_t *list; /* shared: their keys; NULL: they are looked for in the row */
    float top;
    int32_t bucket, part; /* part: -1: all of it */
};

/* Which of BUCKETS parts of its bucket. */
CUDA_INLINE int32_t part_of(float d)
{
    float at = d * (float)BUCKETS_A_UNIT;

    return (int32_t)((at - floorf(at)) * (float)BUCKETS);
}

CUDA_INLINE bool is_in(const struct in_bucket *b, float l)
{
    float d = __fsub_rn(b->top, l);

    return bucket_of(d) == b->bucket && (b->part < 0 || part_of(d) == b->part);
}

/* f(i, logit) of the row's n logits, by the block; eight loads of a thread are in flight. */
template <typename F> CUDA_INLINE void each_logit(const float *l, int32_t n, F f)
{
    for (int32_t at = (int32_t)threadIdx.x; at < n; at += AT_ONCE * TOPK_THREADS) {
        float x[AT_ONCE];

#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            x[j] = at + j * TOPK_THREADS < n ? l[at + j * TOPK_THREADS] : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            if (at + j * TOPK_THREADS < n) {
                f(at + j * TOPK_THREADS, x[j]);
            }
        }
    }
}

/* The first of n tokens, in order of their keys, with which their mass is `need` (above 0, and not
 * more than all of them have). `mass` is shared (DIGITS). */
CUDA_INLINE uint64_t key_at(const struct in_bucket *b, int32_t n, uint64_t need, units *mass)
{
    __shared__ uint64_t prefix, left;
    int32_t own = (int32_t)threadIdx.x;

    if (own == 0) {
        prefix = 0;
        left = need;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        uint64_t above;

        if (own < DIGITS) {
            mass[own] = 0;
        }
        __syncthreads(); /* mass cleared; prefix and left of the pass before */
        above = prefix;
        auto count = [&](uint64_t key, float l) {
            if (shift == 56 || key >> (shift + 8) == above) {
                atomicAdd(&mass[key >> shift & (DIGITS - 1)], (units)mass_at(__fsub_rn(l, b->top)));
            }
        };
        if (b->list) {
            for (int32_t i = own; i < n; i += TOPK_THREADS) {
                count(b->list[i], b->c.l[(uint32_t)b->list[i]]);
            }
        } else {
            each_logit(b->c.l, n, [&](int32_t i, float l) {
                if (is_in(b, l)) {
                    count(topk_key(&b->c, 0, i), l);
                }
            });
        }
        __syncthreads(); /* mass: complete */
        if (own < WARP) { /* a lane has eight digits, one of all is where the sum reaches `left` */
            uint64_t want = left;
            uint64_t sum = 0;

            __syncwarp(); /* left: read by all lanes, written by one below */
            for (int j = 0; j < LANE_DIGITS; j++) {
                sum += mass[own * LANE_DIGITS + j];
            }
            sum = topk_upto(sum) - sum;
            for (int j = 0; j < LANE_DIGITS; j++) {
                uint64_t m = mass[own * LANE_DIGITS + j];

                if (sum < want && want <= sum + m) {
                    prefix = above << 8 | (uint64_t)(own * LANE_DIGITS + j);
                    left = want - sum;
                }
                sum += m;
            }
        }
        __syncthreads(); /* prefix, left: written by one thread, read by all */
    }
    return prefix;
}

/* In which of the BUCKETS the sum of masses, of which a thread has two, reaches *need (above 0, and
 * not more than all of them); *need becomes what of that one is needed. By the block. */
CUDA_INLINE int32_t bucket_at(uint64_t before, const uint64_t two[2], uint64_t *need)
{
    __shared__ uint64_t left;
    __shared__ int32_t bucket;

    for (int j = 0; j < 2; j++) {
        if (before < *need && *need <= before + two[j]) { /* one thread's */
            bucket = 2 * (int32_t)threadIdx.x + j;
            left = *need - before;
        }
        before += two[j];
    }
    __syncthreads(); /* bucket, left: written by one thread, read by all */
    *need = left;
    return bucket;
}

CUDA_INLINE void list_add(uint64_t *list, int32_t *n_list, uint64_t key)
{
    int32_t at = atomicAdd(n_list, 1);

    if (at < (int32_t)GROUPS) {
        list[at] = key;
    }
}

/* Tokens of the bucket in the groups `group`, until the list is full. A warp has AT_ONCE groups
 * under way: one after another they took most of 119 us on an H200. */
CUDA_INLINE void list_groups(const struct in_bucket *b, const struct sample *p,
                             const int32_t *group, int32_t n_groups, uint64_t *list,
                             int32_t *n_list)
{
    int32_t lane = (int32_t)threadIdx.x % WARP;

    for (int32_t k = (int32_t)threadIdx.x / WARP * AT_ONCE;
         k < n_groups && *(volatile int32_t *)n_list <= (int32_t)GROUPS;
         k += TOPK_WARPS * AT_ONCE) {
        for (int32_t in = lane; in < p->group; in += WARP) {
            float x[AT_ONCE];

#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                int32_t i = k + j < n_groups ? group[k + j] * p->group + in : p->n_vocab;

                x[j] = i < p->n_vocab ? b->c.l[i] : -INFINITY;
            }
#pragma unroll
            for (int j = 0; j < AT_ONCE; j++) {
                if (x[j] > -INFINITY && is_in(b, x[j])) {
                    list_add(list, n_list, topk_key(&b->c, 0, group[k + j] * p->group + in));
                }
            }
        }
    }
}

/* The bucket has more tokens than a list: the part of it where the masses reach *need, and its
 * tokens. `mass`, `list`, `part` and `n_list` are shared. */
CUDA_INLINE void list_part(struct in_bucket *b, int32_t n, uint64_t *need, units *mass,
                           uint64_t *list, uint64_t *part, int32_t *n_list)
{
    int32_t own = (int32_t)threadIdx.x;
    uint64_t two[2];
    uint64_t before, total;

    for (int j = 0; j < 2; j++) {
        mass[2 * own + j] = 0;
    }
    if (own == 0) {
        *n_list = 0;
    }
    __syncthreads(); /* mass, n_list: cleared */
    each_logit(b->c.l, n, [&](int32_t, float l) {
        if (is_in(b, l)) {
            atomicAdd(&mass[part_of(__fsub_rn(b->top, l))],
                      (units)mass_at(__fsub_rn(l, b->top)));
        }
    });
    __syncthreads(); /* mass: complete */
    for (int j = 0; j < 2; j++) {
        two[j] = mass[2 * own + j];
    }
    before = block_before(two[0] + two[1], part, &total);
    b->part = bucket_at(before, two, need);
    each_logit(b->c.l, n, [&](int32_t i, float l) {
        if (is_in(b, l)) {
            list_add(list, n_list, topk_key(&b->c, 0, i));
        }
    });
    __syncthreads(); /* list, n_list: complete */
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) sample_masses(struct sample p)
{
    __shared__ units mass[BUCKETS];
    __shared__ uint64_t list[GROUPS];
    __shared__ uint64_t part[TOPK_WARPS];
    __shared__ int32_t group[GROUPS];
    __shared__ int32_t n_list, n_groups;
    const struct ops_sample_row *r = &p.row[blockIdx.y];
    struct in_bucket b = {{p.logits + (size_t)blockIdx.y * (size_t)p.ld}, NULL, 0, 0, -1};
    units *of_row = (units *)p.mass + (size_t)blockIdx.y * GROUPS;
    uint64_t first = p.bounds[2 * blockIdx.y];
    int32_t own = (int32_t)threadIdx.x;
    int32_t from = (int32_t)(blockIdx.x * TOPK_WARPS + threadIdx.x / WARP) * WARP_GROUPS * p.group;
    uint64_t two[2];
    uint64_t before, total, need, key;
    bool full;

    if (first == 0 || r->top_p >= 1 || !takes_all(r, p.n_vocab)) { /* all blocks of the row */
        return;
    }
    b.top = b.c.l[(uint32_t)first];
    for (int j = 0; j < 2; j++) {
        mass[own + j * TOPK_THREADS] = 0;
    }
    __syncthreads(); /* mass: cleared */
    for (int32_t i = from + own % WARP; i < from + p.group; i += WARP) { /* of two groups at once */
        float below[WARP_GROUPS];

#pragma unroll
        for (int j = 0; j < WARP_GROUPS; j++) {
            int32_t at = i + j * p.group;

            below[j] = at < p.n_vocab ? __fsub_rn(b.c.l[at], b.top) : -INFINITY;
        }
#pragma unroll
        for (int j = 0; j < WARP_GROUPS; j++) {
            uint64_t m = mass_at(below[j]);

            if (m > 0) {
                atomicAdd(&mass[bucket_of(-below[j])], (units)m);
            }
        }
    }
    __syncthreads(); /* mass: complete */
    for (int j = 0; j < 2; j++) {
        if (mass[own + j * TOPK_THREADS] > 0) {
            atomicAdd(of_row + own + j * TOPK_THREADS, mass[own + j * TOPK_THREADS]);
        }
    }
    if (own == 0) {
        n_list = 0;
        n_groups = 0;
    }
    if (!sample_is_last(&p.arrived[blockIdx.y])) {
        return;
    }
    for (int j = 0; j < 2; j++) {
        two[j] = __ldcg(of_row + 2 * own + j);
    }
    before = block_before(two[0] + two[1], part, &total);
    need = units_share((double)r->top_p, total);
    need = need > 0 ? need : 1; /* the best is always left */
    b.bucket = bucket_at(before, two, &need);
    for (int32_t g = own; g < p.n_groups; g += TOPK_THREADS) {
        float best = b.c.l[(uint32_t)p.best[(size_t)blockIdx.y * GROUPS + g]];

        if (bucket_of(__fsub_rn(b.top, best)) <= b.bucket) {
            group[atomicAdd(&n_groups, 1)] = g;
        }
    }
    __syncthreads(); /* group, n_groups: complete */
    list_groups(&b, &p, group, n_groups, list, &n_list);
    __syncthreads(); /* list, n_list: complete, or too many */
    full = n_list > (int32_t)GROUPS;
    __syncthreads(); /* n_list: read above, cleared below */
    if (full) { /* the same for all threads */
        list_part(&b, p.n_vocab, &need, mass, list, part, &n_list);
    }
    b.list = n_list <= (int32_t)GROUPS ? list : NULL; /* the same for all threads */
    key = key_at(&b, b.list ? n_list : p.n_vocab, need, mass);
    if (own == 0) {
        p.bounds[2 * blockIdx.y + 1] = key;
    }
}

/* ---- the draw ------------------------------------------------------------------------------- */

/* What token i weighs in the draw; `last`: the key of the last one that is left. */
CUDA_INLINE uint64_t drawn_units(const struct ops_sample_row *r, const struct ranked_logits *c,
                                 int32_t i, float top, uint64_t last)
{
    float below = __fsub_rn(c->l[i], top);
    bool left = topk_key(c, 0, i) <= last && sample_exp(below) >= r->min_p;

    return left ? mass_at(below / r->temperature) : 0;
}

CUDA_KERNEL void __launch_bounds__(TOPK_THREADS, 1) sample_draw(struct sample p)
{
    __shared__ uint64_t part[TOPK_WARPS];
    __shared__ uint64_t left;
    __shared__ int32_t group;
    const struct ops_sample_row *r = &p.row[blockIdx.y];
    struct ranked_logits c = {p.logits + (size_t)blockIdx.y * (size_t)p.ld};
    uint64_t *of_group = p.best + (size_t)blockIdx.y * GROUPS;
    uint64_t first = p.bounds[2 * blockIdx.y];
    int32_t own = (int32_t)threadIdx.x;
    int32_t lane = own % WARP;
    int32_t g = (int32_t)(blockIdx.x * TOPK_WARPS + threadIdx.x / WARP) * WARP_GROUPS;
    uint64_t last, before, total, at;
    uint64_t two[2] = {0, 0};
    float top;

    if (first == 0 || !takes_all(r, p.n_vocab)) { /* all blocks of the row */
        return;
    }
    last = r->top_p < 1 ? p.bounds[2 * blockIdx.y + 1] : TOPK_NONE;
    top = c.l[(uint32_t)first];
    for (int32_t i = g * p.group + lane; i < (g + 1) * p.group; i += WARP) { /* of two at once */
#pragma unroll
        for (int j = 0; j < WARP_GROUPS; j++) {
            int32_t at = i + j * p.group;

            two[j] += at < p.n_vocab ? drawn_units(r, &c, at, top, last) : 0;
        }
    }
    for (int j = 0; j < WARP_GROUPS; j++) {
        two[j] = topk_upto(two[j]);
        if (lane == WARP - 1 && g + j < p.n_groups) {
            of_group[g + j] = two[j];
        }
    }
    if (!sample_is_last(&p.arrived[blockIdx.y])) {
        return;
    }
    for (int j = 0; j < 2; j++) {
        two[j] = 2 * own + j < p.n_groups ? __ldcg(of_group + 2 * own + j) : 0;
    }
    before = block_before(two[0] + two[1], part, &total);
    at = units_drawn(rng_draw(r->seed, r->index), total);
    for (int j = 0; j < 2; j++) {
        if (before <= at && at < before + two[j]) { /* one thread's */
            group = 2 * own + j;
            left = at - before;
        }
        before += two[j];
    }
    __syncthreads(); /* group, left: written by one thread, read by all */
    if (own >= WARP) {
        return;
    }
    before = 0;
    for (int32_t i = group * p.group + lane;; i += WARP) { /* ends in this group */
        uint64_t own_units = i < p.n_vocab ? drawn_units(r, &c, i, top, last) : 0;
        uint64_t upto = before + topk_upto(own_units);

        if (upto - own_units <= left && left < upto) {
            p.ids[blockIdx.y] = i;
        }
        before = __shfl_sync(ALL_LANES, upto, WARP - 1);
        if (before > left) { /* the same for all lanes */
            break;
        }
    }
}

int cuda_sample_all(struct cuda *cu, const struct sample *p, int32_t n_rows)
{
    dim3 grid(cuda_div_up((uint64_t)p->n_groups, TOPK_WARPS * WARP_GROUPS), (unsigned)n_rows);
    bool any = false;
    int r;

    for (int32_t i = 0; i < n_rows; i++) {
        any = any || takes_all(&p->row[i], p->n_vocab);
    }
    if (!any) {
        return 0;
    }
    CUDA_LAUNCH(cu, grid, dim3(TOPK_THREADS), 0, sample_masses, *p);
    r = cuda_launched(cu, "sample_masses");
    if (r == 0) {
        CUDA_LAUNCH(cu, grid, dim3(TOPK_THREADS), 0, sample_draw, *p);
        r = cuda_launched(cu, "sample_draw");
    }
    return r;
}
