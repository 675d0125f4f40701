/* SPDX-License-Identifier: Apache-2.0 */
/* A mixture of experts. What a row's experts are never leaves the device.
 *
 * Rows go in groups: as many as have entries (experts.cuh) for which there is scratch. For each
 * group router    a matmul gives the logits, and the product of the shared expert's gate shared the
 * shared expert's layer by two matmuls choose    one block of 32 warps. A warp a row: the best
 * n_used in so many rounds over the logits, 32 of them a lane at most; their weights. Then a thread
 * an expert: its entries, in order, and the tiles they make. products  gate and up, then down
 * (experts_product.cu), of the tiles that there may be at most combine   y of a row: its entries in
 * ascending order of experts, then the shared expert's
 *
 * Everything that a row computes depends on itself alone. An expert's matrices are read once for 8
 * entries, or for 32 where a group has more than 8 an expert on average. Times: not measured. */

#include <cerrno>

#include "kernels/cuda/experts.cuh"

extern "C" {
#include "kernels/ops_experts.h"
}

enum { CHOOSE_THREADS = 1024, COMBINE_THREADS = 256, TILE = 8, WIDE_TILE = 32 };

static_assert((int)OPS_EXPERTS_MAX <= (int)CHOOSE_THREADS,
              "a thread an expert; a bit of 32 lanes' words");

/* ---- choice --------------------------------------------------------------------------------- */

struct choose {
    float *logits; /* (n, ld), of which the first n_expert; become probabilities */
    const float *router_bias;
    const float *choice_bias;
    const float *factors;
    int32_t *expert; /* (n, n_used) ascending */
    float *weight;   /* (n, n_used) */
    int32_t *list;   /* (n * n_used) entries by expert */
    struct experts_tile *tiles;
    int32_t ld, n, n_expert, n_used, kind, n_tiles, tile;
    bool normed;
    float factor;
};

/* llama.cpp divides by no less than this, the smallest normal f16. */
CUDA_INLINE float least_sum(float sum)
{
    return sum < 6.103515625e-5f ? 6.103515625e-5f : sum;
}

/* Bit i: expert 32 i + lane is one of the n_used with the largest score, NaN being -inf, ties going
 * to the lower number. */
CUDA_INLINE uint32_t choose_best(const struct choose &p, const float *score, const float *bias)
{
    int lane = (int)threadIdx.x % WARP;
    uint32_t mine = 0;

    for (int32_t k = 0; k < p.n_used; k++) {
        int32_t best = INT32_MAX;
        float top = -INFINITY;

        for (int32_t e = lane; e < p.n_expert; e += WARP) {
            float v = bias ? score[e] + bias[e] : score[e];

            v = v == v ? v : -INFINITY;
            if (!(mine >> (e / WARP) & 1) && (best == INT32_MAX || v > top)) {
                best = e;
                top = v;
            }
        }
        for (int m = 16; m > 0; m >>= 1) {
            float v = __shfl_xor_sync(ALL_LANES, top, m);
            int32_t e = __shfl_xor_sync(ALL_LANES, best, m);

            if (e != INT32_MAX && (best == INT32_MAX || v > top || (v == top && e < best))) {
                best = e;
                top = v;
            }
        }
        if (best % WARP == lane) {
            mine |= 1u << (best / WARP);
        }
    }
    return mine;
}

/* Logits to probabilities, by the lane that has them. */
CUDA_INLINE void to_probabilities(const struct choose &p, float *row)
{
    int lane = (int)threadIdx.x % WARP;
    float top = -INFINITY;
    float sum = 0;

    if (p.kind == OPS_ROUTER_SIGMOID) {
        for (int32_t e = lane; e < p.n_expert; e += WARP) {
            row[e] = 1.0f / (1.0f + expf(-row[e]));
        }
        return;
    }
    for (int32_t e = lane; e < p.n_expert; e += WARP) {
        top = fmaxf(top, row[e]);
    }
    top = warp_max(top);
    for (int32_t e = lane; e < p.n_expert; e += WARP) {
        row[e] = expf(row[e] - top);
        sum += row[e];
    }
    sum = warp_sum(sum);
    for (int32_t e = lane; e < p.n_expert; e += WARP) {
        row[e] /= sum;
    }
}

/* One row by one warp: which experts, and by what each one's output is multiplied. */
CUDA_INLINE void choose_row(const struct choose &p, int32_t row)
{
    float *logit = p.logits + (size_t)row * p.ld;
    int lane = (int)threadIdx.x % WARP;
    uint32_t mine = 0;
    float factor = p.factor;
    float sum = 0;
    int poison = 0;
    int32_t before = 0;

    for (int32_t e = lane; e < p.n_expert && p.router_bias; e += WARP) {
        logit[e] += p.router_bias[e];
    }
    if (!p.choice_bias) { /* before probabilities make equals of what differs */
        mine = choose_best(p, logit, NULL);
    }
    to_probabilities(p, logit);
    if (p.choice_bias) {
        mine = choose_best(p, logit, p.choice_bias);
    }
    for (int32_t e = lane; e < p.n_expert; e += WARP) {
        poison |= !(logit[e] == logit[e]); /* a sigmoid's NaN is its expert's alone */
        sum += mine >> (e / WARP) & 1 ? logit[e] : 0.0f;
    }
    sum = warp_sum(sum);
    sum = __any_sync(ALL_LANES, poison) ? NAN : sum;
    if (p.normed || !(sum == sum)) {
        factor /= least_sum(sum);
    }
    for (int32_t e = lane; e - lane < p.n_expert; e += WARP) {
        bool is_mine = mine >> (e / WARP) & 1;
        unsigned all = __ballot_sync(ALL_LANES, is_mine);

        if (is_mine) {
            int32_t at = row * p.n_used + before + __popc(all & ((1u << lane) - 1));

            p.expert[at] = e;
            p.weight[at] = logit[e] * factor * (p.factors ? p.factors[e] : 1.0f);
        }
        before += __popc(all);
    }
}

/* The sums of v[0] and v[1] over the threads before this one; of all of them in total. `sum` is
 * shared (2, CHOOSE_THREADS). */
CUDA_INLINE void sums_before(int32_t v[2], int32_t (*sum)[CHOOSE_THREADS], int32_t total[2])
{
    int t = (int)threadIdx.x;

    for (int k = 0; k < 2; k++) {
        sum[k][t] = v[k];
    }
    for (int d = 1; d < (int)blockDim.x; d *= 2) {
        int32_t less[2];

        __syncthreads(); /* sum: written by the round before, read below */
        for (int k = 0; k < 2; k++) {
            less[k] = t >= d ? sum[k][t - d] : 0;
        }
        __syncthreads(); /* sum: read above, written below */
        for (int k = 0; k < 2; k++) {
            sum[k][t] += less[k];
        }
    }
    __syncthreads(); /* sum: written by the last round, read below */
    for (int k = 0; k < 2; k++) {
        v[k] = sum[k][t] - v[k];
        total[k] = sum[k][blockDim.x - 1];
    }
}

/* Entries by expert, a thread each, and the tiles they make. */
CUDA_INLINE void sort_entries(const struct choose &p, int32_t (*sum)[CHOOSE_THREADS])
{
    int32_t n_entries = p.n * p.n_used;
    int32_t e = (int32_t)threadIdx.x;
    int32_t n = 0;
    int32_t before[2];
    int32_t total[2];
    int32_t at;

    for (int32_t i = 0; i < n_entries && e < p.n_expert; i++) {
        n += p.expert[i] == e;
    }
    before[0] = n;
    before[1] = (n + p.tile - 1) / p.tile;
    sums_before(before, sum, total);
    at = before[0];
    for (int32_t i = 0; i < n_entries && n > 0; i++) {
        if (p.expert[i] == e) {
            p.list[at++] = i;
        }
    }
    for (int32_t i = 0; i * p.tile < n; i++) {
        p.tiles[before[1] + i] = {e, before[0] + i * p.tile, min(p.tile, n - i * p.tile)};
    }
    for (int32_t i = total[1] + e; i < p.n_tiles; i += (int32_t)blockDim.x) {
        p.tiles[i] = {0, 0, 0};
    }
}

CUDA_KERNEL void __launch_bounds__(CHOOSE_THREADS, CUDA_ON_100(1, 0))
    choose_experts(struct choose p)
{
    __shared__ int32_t sum[2][CHOOSE_THREADS];

    grid_begin();
    grid_wait();
    for (int32_t row = (int32_t)threadIdx.x / WARP; row < p.n; row += (int32_t)blockDim.x / WARP) {
        choose_row(p, row);
    }
    __syncthreads(); /* expert: written above, read below */
    sort_entries(p, sum);
}

/* ---- combination ---------------------------------------------------------------------------- */

struct combine {
    const float *of; /* (n * n_used, ld): what experts gave */
    const float *weight;
    const float *shared; /* (n, ld), or NULL */
    const float *gate;   /* (n, ld_gate), or NULL */
    float *y;
    int32_t ld, ld_gate, ldy, n_cols, n_used;
    float scale; /* of the shared expert */
    bool add;
};

CUDA_KERNEL void combine_experts(struct combine p)
{
    int32_t c = (int32_t)(blockIdx.y * COMBINE_THREADS + threadIdx.x);
    size_t row = blockIdx.x;
    float *y = p.y + row * p.ldy + c;
    float v;

    grid_begin();
    grid_wait();
    if (c >= p.n_cols) {
        return;
    }
    v = p.add ? *y : 0.0f;
    for (int32_t i = 0; i < p.n_used; i++) {
        v += p.weight[row * p.n_used + i] * p.of[(row * p.n_used + i) * p.ld + c];
    }
    if (p.shared) {
        float gate = p.gate ? 1.0f / (1.0f + expf(-p.gate[row * p.ld_gate])) : 1.0f;

        v += p.scale * gate * p.shared[row * p.ld + c];
    }
    *y = v;
}

/* ---- a group of rows ------------------------------------------------------------------------ */

struct group {
    const struct ops_experts *p;
    struct ops_rows rows;
    const float *x;
    float *y;
    int32_t ld; /* of rows of experts' values */
    int32_t ld_logits;
    int32_t n_tiles;
    bool wide;
};

static int router(struct backend *be, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cuda_of(be)->scratch;
    struct ops_matmul m = {};

    m.rows = g->rows;
    m.norm = p->router_norm.w ? p->router_norm : p->norm;
    m.x = g->x;
    m.ldx = p->ldx;
    m.n_parts = p->shared_gate ? 2 : 1;
    m.part[0].w = p->router;
    m.part[0].scale = p->router_scale;
    m.part[0].y = s->router;
    m.part[0].ldy = g->ld_logits;
    m.part[1].w = p->shared_gate;
    m.part[1].y = s->router + p->n_expert;
    m.part[1].ldy = g->ld_logits;
    return cuda_matmul(be, &m);
}

/* y = act(x W^T + bias) of all rows. */
static int shared_part(struct backend *be, const struct group *g,
                       const struct ops_expert_part *part, enum ops_act act, float *y)
{
    struct ops_matmul m = {};

    m.rows = g->rows;
    m.norm = g->p->norm;
    m.x = g->x;
    m.ldx = g->p->ldx;
    m.n_parts = 1;
    m.part[0].w = part->w;
    m.part[0].bias = part->bias;
    m.part[0].act = act;
    m.part[0].y = y;
    m.part[0].ldy = g->ld;
    return cuda_matmul(be, &m);
}

/* The same of a gate and an up projection of different types, multiplied. */
static int shared_pair(struct backend *be, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cuda_of(be)->scratch;
    struct ops_mul m = {};
    int r = shared_part(be, g, &p->shared_gate_proj, p->act, s->hidden);

    m.rows = g->rows;
    m.x = s->shared;
    m.y = s->hidden;
    m.ldx = m.ldy = g->ld;
    m.n_cols = p->shared_up.w->n_rows;
    m.scale = 1.0f;
    r = r < 0 ? r : shared_part(be, g, &p->shared_up, OPS_ACT_NONE, s->shared);
    return r < 0 ? r : cuda_mul(be, &m);
}

/* The shared expert's layer, for all rows. */
static int shared(struct backend *be, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cuda_of(be)->scratch;
    struct ops_matmul in = {};
    struct ops_matmul out = {};
    int r;

    in.rows = g->rows;
    in.norm = p->norm;
    in.x = g->x;
    in.ldx = p->ldx;
    in.n_parts = 2;
    in.gated = true;
    in.part[0].w = p->shared_gate_proj.w;
    in.part[0].bias = p->shared_gate_proj.bias;
    in.part[0].act = p->act;
    in.part[0].y = s->hidden;
    in.part[0].ldy = g->ld;
    in.part[1].w = p->shared_up.w;
    in.part[1].bias = p->shared_up.bias;
    out.rows = g->rows;
    out.x = s->hidden;
    out.ldx = g->ld;
    out.n_parts = 1;
    out.part[0].w = p->shared_down.w;
    out.part[0].bias = p->shared_down.bias;
    out.part[0].y = s->shared;
    out.part[0].ldy = g->ld;
    r = p->shared_gate_proj.w->type == p->shared_up.w->type ? cuda_matmul(be, &in)
                                                            : shared_pair(be, g);
    return r < 0 ? r : cuda_matmul(be, &out);
}

static int choose(struct cuda *cu, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cu->scratch;
    int32_t warps = (p->n_expert + WARP - 1) / WARP;
    struct choose c = {};

    c.logits = s->router;
    c.router_bias = cuda_vector(p->router_bias);
    c.choice_bias = cuda_vector(p->choice_bias);
    c.factors = cuda_vector(p->factors);
    c.expert = s->chosen;
    c.weight = s->chosen_weight;
    c.list = s->entries;
    c.tiles = s->tiles;
    c.ld = g->ld_logits;
    c.n = g->rows.n;
    c.n_expert = p->n_expert;
    c.n_used = p->n_used;
    c.kind = p->kind;
    c.n_tiles = g->n_tiles;
    c.tile = g->wide ? WIDE_TILE : TILE;
    c.normed = p->normed;
    c.factor = ops_factor(p->weight_scale) * ops_factor(p->scale);
    warps = g->rows.n > warps ? g->rows.n : warps;
    warps = warps < CHOOSE_THREADS / WARP ? warps : CHOOSE_THREADS / WARP;
    CUDA_LAUNCH_EARLY(cu, dim3(1), dim3((unsigned)(warps * WARP)), 0, choose_experts, c);
    return cuda_launched(cu, "choose_experts");
}

static void take_part(const struct ops_expert_part *from, int32_t act, float *y, int32_t ldy,
                      struct gemm_part *ret)
{
    *ret = {};
    ret->w = static_cast<const uint8_t *>(from->w->device);
    ret->bias = cuda_vector(from->bias);
    ret->n_rows = from->w->n_rows;
    ret->act = act;
    ret->y = y;
    ret->ldy = ldy;
}

/* y = act(x a^T) * (x b^T) of all entries; without b y = act(x a^T), with `multiply` y *= x a^T.
 * `shared_by` entries have one row of x, which is normed. */
static int product(struct cuda *cu, const struct group *g, const struct cuda_norm *norm,
                   const float *x, int32_t ldx, int32_t shared_by, const struct ops_expert_part *a,
                   const struct ops_expert_part *b, int32_t act, bool multiply, float *y)
{
    const struct ops_weight *w = a->w;
    int32_t n = g->rows.n * g->p->n_used / shared_by;
    struct experts_product p = {};
    int r;

    cuda_gemm_begin(cu, w->n_cols, &p.g);
    p.g.pitch = cuda_gemm_pitch(w->type, w->n_cols);
    p.g.gated = b != NULL;
    take_part(a, act, y, g->ld, &p.g.part[0]);
    if (b) {
        take_part(b, OPS_ACT_NONE, NULL, 0, &p.g.part[1]);
    }
    p.stride = cuda_matrix_bytes(w->type, w->n_rows, w->n_cols);
    p.list = cu->scratch.entries;
    p.tiles = cu->scratch.tiles;
    p.n_tiles = g->n_tiles;
    p.shared_by = shared_by;
    p.multiply = multiply;
    r = cuda_gemm_prepare(cu, norm, x, ldx, n, 0, n, cuda_gemm_form(w->type), false, &p.g);
    return r < 0 ? r : cuda_experts_product(cu, &p, w->type, g->wide);
}

static int products(struct cuda *cu, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cu->scratch;
    struct cuda_norm norm = cuda_norm_of(&p->norm);
    struct cuda_norm none = {};
    bool same = p->gate.w->type == p->up.w->type;
    int r = product(cu, g, &norm, g->x, p->ldx, p->n_used, &p->gate, same ? &p->up : NULL, p->act,
                    false, s->hidden);

    if (r == 0 && !same) {
        r = product(cu, g, &norm, g->x, p->ldx, p->n_used, &p->up, NULL, p->act, true, s->hidden);
    }
    return r < 0 ? r
                 : product(cu, g, &none, s->hidden, g->ld, 1, &p->down, NULL, OPS_ACT_NONE, false,
                           s->expert_out);
}

static int combine(struct cuda *cu, const struct group *g)
{
    const struct ops_experts *p = g->p;
    const struct cuda_scratch *s = &cu->scratch;
    struct combine c = {};

    c.of = s->expert_out;
    c.weight = s->chosen_weight;
    c.shared = p->shared_up.w ? s->shared : NULL;
    c.gate = p->shared_gate ? s->router + p->n_expert : NULL;
    c.y = g->y;
    c.ld = g->ld;
    c.ld_gate = g->ld_logits;
    c.ldy = p->ldy;
    c.n_cols = p->router->n_cols;
    c.n_used = p->n_used;
    c.scale = ops_factor(p->scale);
    c.add = p->add;
    CUDA_LAUNCH_EARLY(cu,
                      dim3((unsigned)g->rows.n, cuda_div_up((uint64_t)c.n_cols, COMBINE_THREADS)),
                      dim3(COMBINE_THREADS), 0, combine_experts, c);
    return cuda_launched(cu, "combine_experts");
}

static int one_group(struct backend *be, struct group *g)
{
    struct cuda *cu = cuda_of(be);
    int32_t n = g->rows.n * g->p->n_used;
    int32_t most;
    int r;

    g->wide = n > 8 * g->p->n_expert;
    most = n / (g->wide ? WIDE_TILE : TILE) + g->p->n_expert;
    g->n_tiles = n < most ? n : most;
    r = router(be, g);
    if (r == 0) {
        r = choose(cu, g);
    }
    if (r == 0 && g->p->shared_up.w) {
        r = shared(be, g);
    }
    if (r == 0) {
        r = products(cu, g);
    }
    return r < 0 ? r : combine(cu, g);
}

int cuda_experts(struct backend *be, const struct ops_experts *p)
{
    struct cuda *cu = cuda_of(be);
    int32_t step;
    int r = 0;

    if (!ops_experts_valid(p, &cu->limits)) {
        return -EINVAL;
    }
    step = cuda_entries(&cu->limits) / p->n_used;
    for (int32_t row = 0; row < p->rows.n && r == 0; row += step) {
        int32_t decode = p->rows.n_decode - row;
        struct group g = {};

        g.p = p;
        g.rows.n = p->rows.n - row < step ? p->rows.n - row : step;
        g.rows.n_decode = decode < 0 ? 0 : decode < g.rows.n ? decode : g.rows.n;
        g.x = p->x + (size_t)row * (size_t)p->ldx;
        g.y = p->y + (size_t)row * (size_t)p->ldy;
        g.ld = (cu->limits.max_cols + 255) / 256 * 256;
        g.ld_logits = cu->limits.max_experts + 1;
        r = one_group(be, &g);
    }
    return r;
}
