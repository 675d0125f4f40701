/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers: short convolutions, the gated delta rule, the state space of Mamba-2, gates by
 * head.
 *
 * conv    Block of 128 threads: 128 channels, up to 32 rows of one sequence; a thread a channel.
 *         Rows depend on what goes in alone, so a sequence's rows are shared out among blocks. The
 *         first of them reads the state and writes it, last of all: it may be the same memory.
 * delta   Block of up to 512 threads: one V head of one sequence, its rows in order. A thread has
 *         32 (64) values of one column of S in registers; larger heads leave S in memory. Sums over
 *         a column go through shared memory, three barriers a row: 7 KB. Bytes: S twice a call.
 * scan    Block of up to 256 threads: one head of one sequence, its rows in order; a thread a column
 *         of S, which stays in memory. Bytes: S twice a row, of which the caches keep most. Its
 *         norm is a block a row and group behind it.
 * gate    Block of 256 threads: values of one row.
 *
 * A row's bits follow from its sequence alone: sums are over a head's own dims, in an order that
 * the head's size gives. Times: not measured. */

#include <cerrno>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/row.cuh"

enum {
    CONV_THREADS = 128,
    CONV_ROWS = 32,
    DELTA_THREADS = 512,
    DELTA_WIDE_THREADS = 384, /* that have registers for 64 values of the state each */
    DELTA_PAD = OPS_DELTA_MAX_DIM + 64,
    GATE_THREADS = 256
};

/* Sequences of one launch. */
struct states {
    struct ops_state s[CUDA_SEQS];
};

static int32_t states_take(const struct ops_state *seqs, int32_t first, int32_t n_seqs,
                           struct states *ret)
{
    int32_t n = n_seqs - first < CUDA_SEQS ? n_seqs - first : CUDA_SEQS;

    *ret = {};
    for (int32_t i = 0; i < n; i++) {
        ret->s[i] = seqs[first + i];
    }
    return n;
}

/* ---- short convolution ---------------------------------------------------------------------- */

struct conv {
    const float *w;
    const float *bias;
    const float *x;
    const float *before;
    const float *after;
    float *y;
    uint64_t at;
    int32_t n_channels, width, ldx, ldy, act;
};

CUDA_INLINE float conv_in(const struct conv *p, int32_t row, int32_t c)
{
    size_t at = (size_t)row * p->ldx + c;

    return p->before ? p->x[at] * p->before[at] : p->x[at];
}

/* Row `row` of the sequence's u, counted from its first one here; below 0 the state's. */
CUDA_INLINE float conv_u(const struct conv *p, const struct ops_state *s, int32_t row, int32_t c)
{
    if (row >= 0) {
        return conv_in(p, s->row0 + row, c);
    }
    return s->in ? reinterpret_cast<const float *>(
                       s->in + p->at)[(size_t)(p->width - 1 + row) * p->n_channels + c]
                 : 0.0f;
}

/* u[OPS_CONV_MAX_WIDTH - 1] is the latest; the first ones are not used where the width is less. */
CUDA_KERNEL void conv_rows(struct conv p, struct states states)
{
    constexpr int LAST = OPS_CONV_MAX_WIDTH - 1;
    const struct ops_state *s = &states.s[blockIdx.z];
    int32_t c = (int32_t)(blockIdx.x * CONV_THREADS + threadIdx.x);
    int32_t first = (int32_t)blockIdx.y * CONV_ROWS;
    int32_t end = min(first + (int32_t)CONV_ROWS, s->n_rows);
    int skip = OPS_CONV_MAX_WIDTH - p.width;
    float w[LAST + 1];
    float u[LAST + 1];

    grid_begin();
    grid_wait();
    if (c >= p.n_channels || (first >= s->n_rows && first > 0)) {
        return;
    }
#pragma unroll
    for (int j = 0; j <= LAST; j++) {
        w[j] = j >= skip ? p.w[(size_t)c * p.width + j - skip] : 0.0f;
        u[j] = j >= skip && j < LAST ? conv_u(&p, s, first + j - LAST, c) : 0.0f;
    }
    for (int32_t t = first; t < end; t++) {
        size_t at = (size_t)(s->row0 + t) * p.ldx + c;
        float z = 0;

        u[LAST] = conv_in(&p, s->row0 + t, c);
#pragma unroll
        for (int j = 0; j <= LAST; j++) {
            z = j >= skip ? z + w[j] * u[j] : z;
        }
#pragma unroll
        for (int j = 0; j < LAST; j++) {
            u[j] = u[j + 1];
        }
        z = gemm_act(p.act, p.bias ? z + p.bias[c] : z);
        p.y[(size_t)(s->row0 + t) * p.ldy + c] = p.after ? z * p.after[at] : z;
    }
    if (first > 0) {
        return;
    }
#pragma unroll
    for (int j = 0; j < LAST; j++) { /* all is read before any is written */
        u[j] = j >= skip ? conv_u(&p, s, s->n_rows + j - LAST, c) : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < LAST; j++) {
        if (j >= skip) {
            reinterpret_cast<float *>(s->out + p.at)[(size_t)(j - skip) * p.n_channels + c] = u[j];
        }
    }
}

int cuda_conv(struct backend *be, const struct ops_conv *p)
{
    struct cuda *cu = cuda_of(be);
    struct conv c = {cuda_vector(p->w), cuda_vector(p->bias), p->x,     p->before, p->after, p->y,
                     p->at,             p->n_channels,        p->width, p->ldx,    p->ldy,   p->act};
    int r = p->width < 2 || p->width > OPS_CONV_MAX_WIDTH ? -EINVAL : 0;

    for (int32_t i = 0; i < p->n_seqs && r == 0; i += CUDA_SEQS) {
        struct states states;
        int32_t n = states_take(p->seqs, i, p->n_seqs, &states);
        int32_t most = 1;

        for (int32_t k = 0; k < n; k++) {
            most = states.s[k].n_rows > most ? states.s[k].n_rows : most;
        }
        CUDA_LAUNCH_EARLY(cu,
                          dim3(cuda_div_up((uint64_t)p->n_channels, CONV_THREADS),
                               cuda_div_up((uint64_t)most, CONV_ROWS), (unsigned)n),
                          dim3(CONV_THREADS), 0, conv_rows, c, states);
        r = cuda_launched(cu, "conv_rows");
    }
    return r;
}

/* ---- gated delta rule ----------------------------------------------------------------------- */

struct delta {
    const float *a;
    const float *dt;
    const float *w;
    const float *qkv;
    const float *alpha;
    const float *beta;
    const float *z;
    float *y;
    uint64_t at;
    float eps;
    int32_t n_k, n_v, k_dim, v_dim, ldx, ldg, ldz, ldy;
    int32_t n_split; /* threads of a column */
    int32_t per;     /* of its values each has */
};

/* What the threads of a block share: a row's q and k, scaled, behind their dims zeros; sums. */
struct delta_shared {
    float qk[2][DELTA_PAD];
    float known[DELTA_THREADS];
    float out[DELTA_THREADS];
    float square[DELTA_THREADS / WARP];
};

/* A row of q (which 0) and one of k (1), a warp each. */
CUDA_INLINE void delta_fetch(const struct delta *p, int32_t row, int32_t h, struct delta_shared *sh)
{
    int lane = (int)threadIdx.x % WARP;
    int n_warps = (int)blockDim.x / WARP;

    for (int which = (int)threadIdx.x / WARP; which < 2; which += n_warps) {
        const float *x =
            p->qkv + (size_t)row * p->ldx + (size_t)(which * p->n_k + h % p->n_k) * p->k_dim;
        float sum = 0;
        float scale;

        for (int32_t i = lane; i < p->k_dim; i += WARP) {
            sum += x[i] * x[i];
        }
        scale = 1.0f / sqrtf(warp_sum(sum) + p->eps);
        scale = which == 0 ? scale / sqrtf((float)p->k_dim) : scale;
        for (int32_t i = lane; i < DELTA_PAD; i += WARP) {
            sh->qk[which][i] = i < p->k_dim ? x[i] * scale : 0.0f;
        }
    }
}

CUDA_INLINE float delta_decay(const struct delta *p, int32_t row, int32_t h)
{
    float x = p->alpha[(size_t)row * p->ldg + h] + p->dt[h];

    return expf(p->a[h] * (x > 20 ? x : log1pf(expf(x))));
}

/* Sum of a column's parts, in order. */
CUDA_INLINE float delta_sum(const struct delta *p, const float *part, int32_t j)
{
    float sum = 0;

    for (int32_t i = 0; i < p->n_split; i++) {
        sum += part[i * p->v_dim + j];
    }
    return sum;
}

/* beta * (v - what is known), when all parts of `known` are there. */
CUDA_INLINE float delta_learn(const struct delta *p, const struct delta_shared *sh, int32_t row,
                              int32_t h, int32_t j, float decay)
{
    float v =
        p->qkv[(size_t)row * p->ldx + (size_t)2 * p->n_k * p->k_dim + (size_t)h * p->v_dim + j];
    float beta = 1.0f / (1.0f + expf(-p->beta[(size_t)row * p->ldg + h]));

    return beta * (v - decay * delta_sum(p, sh->known, j));
}

/* When all parts of `out` are there: the head's norm, its gate, and the next row's q and k. */
CUDA_INLINE void delta_finish(const struct delta *p, struct delta_shared *sh, int32_t row,
                              int32_t h, bool more)
{
    int32_t j = (int32_t)threadIdx.x;
    float out = j < p->v_dim ? delta_sum(p, sh->out, j) : 0.0f;
    float square = warp_sum(out * out);
    float sum = 0;

    if (j % WARP == 0) {
        sh->square[j / WARP] = square;
    }
    if (more) {
        delta_fetch(p, row + 1, h, sh);
    }
    __syncthreads(); /* square and qk: written above, read below and by the next row */
    if (j >= p->v_dim) {
        return;
    }
    for (int i = 0; i * WARP < p->v_dim; i++) {
        sum += sh->square[i];
    }
    out *= 1.0f / sqrtf(sum / (float)p->v_dim + p->eps) * p->w[j];
    p->y[(size_t)row * p->ldy + (size_t)h * p->v_dim + j] =
        out * gemm_act(OPS_ACT_SILU, p->z[(size_t)row * p->ldz + (size_t)h * p->v_dim + j]);
}

/* S in registers, PER values a thread. */
template <int PER>
CUDA_KERNEL void __launch_bounds__(PER == 64 ? DELTA_WIDE_THREADS : DELTA_THREADS,
                                   CUDA_ON_100(1, 0))
    delta_rows(struct delta p, struct states states)
{
    __shared__ struct delta_shared sh;
    const struct ops_state *s = &states.s[blockIdx.y];
    int32_t h = (int32_t)blockIdx.x;
    int32_t j = (int32_t)threadIdx.x % p.v_dim;
    int32_t first = (int32_t)threadIdx.x / p.v_dim * PER;
    bool mine = (int32_t)threadIdx.x < p.n_split * p.v_dim;
    int32_t n = mine ? min((int32_t)PER, p.k_dim - first) : 0;
    size_t at = ((size_t)h * p.k_dim + first) * p.v_dim + j;
    float v[PER];

    grid_begin();
    grid_wait();
    first = mine ? first : 0;
#pragma unroll
    for (int i = 0; i < PER; i++) {
        v[i] = s->in && i < n
                   ? reinterpret_cast<const float *>(s->in + p.at)[at + (size_t)i * p.v_dim]
                   : 0.0f;
    }
    if (s->n_rows > 0) {
        delta_fetch(&p, s->row0, h, &sh);
    }
    __syncthreads(); /* qk: written above, read below */
    for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
        float decay = delta_decay(&p, row, h);
        float sum = 0;
        float learn;

#pragma unroll
        for (int i = 0; i < PER; i++) {
            sum += v[i] * sh.qk[1][first + i];
        }
        sh.known[threadIdx.x] = sum;
        __syncthreads(); /* known: written above, read below */
        learn = delta_learn(&p, &sh, row, h, j, decay);
        sum = 0;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            v[i] = decay * v[i] + sh.qk[1][first + i] * learn;
            sum += v[i] * sh.qk[0][first + i];
        }
        sh.out[threadIdx.x] = sum;
        __syncthreads(); /* out: written above, read below; qk: read by all before it changes */
        delta_finish(&p, &sh, row, h, row + 1 < s->row0 + s->n_rows);
    }
#pragma unroll
    for (int i = 0; i < PER; i++) {
        if (i < n) {
            reinterpret_cast<float *>(s->out + p.at)[at + (size_t)i * p.v_dim] = v[i];
        }
    }
}

/* The same with S in memory, where each thread touches its own values alone. */
CUDA_KERNEL void __launch_bounds__(DELTA_THREADS, CUDA_ON_86(1, 0))
    delta_rows_memory(struct delta p, struct states states)
{
    __shared__ struct delta_shared sh;
    const struct ops_state *s = &states.s[blockIdx.y];
    int32_t h = (int32_t)blockIdx.x;
    int32_t j = (int32_t)threadIdx.x % p.v_dim;
    int32_t first = (int32_t)threadIdx.x / p.v_dim * p.per;
    bool mine = (int32_t)threadIdx.x < p.n_split * p.v_dim;
    int32_t n = mine ? min(p.per, p.k_dim - first) : 0;
    size_t at = ((size_t)h * p.k_dim + first) * p.v_dim + j;
    const float *in = reinterpret_cast<const float *>(s->in + p.at) + at;
    float *v = reinterpret_cast<float *>(s->out + p.at) + at;

    grid_begin();
    grid_wait();
    for (int32_t i = 0; i < n && s->in != s->out; i++) {
        v[(size_t)i * p.v_dim] = s->in ? in[(size_t)i * p.v_dim] : 0.0f;
    }
    if (s->n_rows > 0) {
        delta_fetch(&p, s->row0, h, &sh);
    }
    __syncthreads(); /* qk: written above, read below */
    for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
        float decay = delta_decay(&p, row, h);
        float sum = 0;
        float learn;

        for (int32_t i = 0; i < n; i++) {
            sum += v[(size_t)i * p.v_dim] * sh.qk[1][first + i];
        }
        sh.known[threadIdx.x] = sum;
        __syncthreads(); /* known: written above, read below */
        learn = delta_learn(&p, &sh, row, h, j, decay);
        sum = 0;
        for (int32_t i = 0; i < n; i++) {
            float now = decay * v[(size_t)i * p.v_dim] + sh.qk[1][first + i] * learn;

            v[(size_t)i * p.v_dim] = now;
            sum += now * sh.qk[0][first + i];
        }
        sh.out[threadIdx.x] = sum;
        __syncthreads(); /* out: written above, read below; qk: read by all before it changes */
        delta_finish(&p, &sh, row, h, row + 1 < s->row0 + s->n_rows);
    }
}

static int delta_some(struct cuda *cu, struct delta *p, const struct states *states, int32_t n)
{
    dim3 grid((unsigned)p->n_v, (unsigned)n);
    uint32_t threads;

    p->per = 32;
    if (p->v_dim * (int32_t)cuda_div_up((uint64_t)p->k_dim, 32) > DELTA_THREADS) {
        p->per = 64;
    }
    p->n_split = (int32_t)cuda_div_up((uint64_t)p->k_dim, (uint64_t)p->per);
    if (p->v_dim * p->n_split > DELTA_THREADS) {
        p->n_split = DELTA_THREADS / p->v_dim;
        p->per = (int32_t)cuda_div_up((uint64_t)p->k_dim, (uint64_t)p->n_split);
    }
    threads = cuda_div_up((uint64_t)(p->v_dim * p->n_split), WARP) * WARP;
    if (p->per == 32) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(threads), 0, delta_rows<32>, *p, *states);
    } else if (p->per == 64 && threads <= DELTA_WIDE_THREADS) {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(threads), 0, delta_rows<64>, *p, *states);
    } else {
        CUDA_LAUNCH_EARLY(cu, grid, dim3(threads), 0, delta_rows_memory, *p, *states);
    }
    return cuda_launched(cu, "delta_rows");
}

int cuda_delta(struct backend *be, const struct ops_delta *p)
{
    struct cuda *cu = cuda_of(be);
    struct delta d = {cuda_vector(p->a),
                      cuda_vector(p->dt),
                      cuda_vector(p->w),
                      p->qkv,
                      p->alpha,
                      p->beta,
                      p->z,
                      p->y,
                      p->at,
                      p->eps,
                      p->n_k,
                      p->n_v,
                      p->k_dim,
                      p->v_dim,
                      p->ldx,
                      p->ldg,
                      p->ldz,
                      p->ldy,
                      0,
                      0};
    int r = 0;

    if (p->k_dim < 1 || p->k_dim > OPS_DELTA_MAX_DIM || p->v_dim < 1 ||
        p->v_dim > OPS_DELTA_MAX_DIM) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs && r == 0; i += CUDA_SEQS) {
        struct states states;
        int32_t n = states_take(p->seqs, i, p->n_seqs, &states);

        r = delta_some(cu, &d, &states, n);
    }
    return r;
}

/* ---- state space ---------------------------------------------------------------------------- */

struct scan {
    const float *a;
    const float *dt;
    const float *d;
    const float *w;
    const float *xbc;
    const float *step;
    const float *z;
    float *y;
    uint64_t at;
    float eps;
    int32_t n_k, n_v, k_dim, v_dim, ldx, ldz, ldy;
};

CUDA_KERNEL void __launch_bounds__(OPS_DELTA_MAX_DIM)
    scan_rows(struct scan p, struct states states)
{
    __shared__ float bc[2][OPS_DELTA_MAX_DIM];
    const struct ops_state *s = &states.s[blockIdx.y];
    int32_t h = (int32_t)blockIdx.x;
    int32_t j = (int32_t)threadIdx.x;
    bool mine = j < p.v_dim;
    size_t at = (size_t)h * p.k_dim * p.v_dim + j;
    size_t group = (size_t)p.n_v * p.v_dim + (size_t)(h / (p.n_v / p.n_k)) * p.k_dim;
    const float *in = reinterpret_cast<const float *>(s->in + p.at) + at;
    float *v = reinterpret_cast<float *>(s->out + p.at) + at;

    grid_begin();
    grid_wait();
    for (int32_t i = 0; i < p.k_dim && mine && s->in != s->out; i++) {
        v[(size_t)i * p.v_dim] = s->in ? in[(size_t)i * p.v_dim] : 0.0f;
    }
    for (int32_t row = s->row0; row < s->row0 + s->n_rows; row++) {
        const float *x = p.xbc + (size_t)row * p.ldx;
        float step = p.step[(size_t)row * p.ldz + h] + p.dt[h];
        float decay;
        float value = mine ? x[(size_t)h * p.v_dim + j] : 0.0f;
        float out = 0;

        step = step > 20 ? step : log1pf(expf(step));
        decay = expf(p.a[h] * step);
        for (int32_t i = j; i < p.k_dim; i += (int32_t)blockDim.x) {
            bc[0][i] = x[group + i];
            bc[1][i] = x[group + (size_t)p.n_k * p.k_dim + i];
        }
        __syncthreads(); /* bc: written above, read below */
        for (int32_t i = 0; i < p.k_dim && mine; i++) {
            float now = decay * v[(size_t)i * p.v_dim] + bc[0][i] * (step * value);

            v[(size_t)i * p.v_dim] = now;
            out += now * bc[1][i];
        }
        __syncthreads(); /* bc: read above, written by the next row */
        if (mine) {
            size_t to = (size_t)h * p.v_dim + j;

            p.y[(size_t)row * p.ldy + to] =
                (out + p.d[h] * value) * gemm_act(OPS_ACT_SILU, p.z[(size_t)row * p.ldz + to]);
        }
    }
}

/* The norm of one row's heads of one group. */
CUDA_KERNEL void __launch_bounds__(GATE_THREADS) scan_norm(struct scan p)
{
    __shared__ float part[GATE_THREADS / WARP];
    int32_t n = p.n_v / p.n_k * p.v_dim;
    float *y = p.y + (size_t)blockIdx.x * p.ldy + (size_t)blockIdx.y * n;
    const float *w = p.w + (size_t)blockIdx.y * n;
    float sum = 0;

    grid_begin();
    grid_wait();
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += GATE_THREADS) {
        sum += y[i] * y[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) {
        part[threadIdx.x / WARP] = sum;
    }
    __syncthreads(); /* part: written above, read below */
    sum = 0;
    for (int i = 0; i < GATE_THREADS / WARP; i++) {
        sum += part[i];
    }
    sum = 1.0f / sqrtf(sum / (float)n + p.eps);
    for (int32_t i = (int32_t)threadIdx.x; i < n; i += GATE_THREADS) {
        y[i] = y[i] * sum * w[i];
    }
}

int cuda_scan(struct backend *be, const struct ops_scan *p)
{
    struct cuda *cu = cuda_of(be);
    struct scan s = {cuda_vector(p->a), cuda_vector(p->dt), cuda_vector(p->d), cuda_vector(p->w),
                     p->xbc,            p->step,            p->z,              p->y,
                     p->at,             p->eps,             p->n_k,            p->n_v,
                     p->k_dim,          p->v_dim,           p->ldx,            p->ldz,
                     p->ldy};
    unsigned threads = cuda_div_up((uint64_t)p->v_dim, WARP) * WARP;
    int r = 0;

    if (p->k_dim < 1 || p->k_dim > OPS_DELTA_MAX_DIM || p->v_dim < 1 ||
        p->v_dim > OPS_DELTA_MAX_DIM || p->n_k < 1 || p->n_v % p->n_k) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs && r == 0; i += CUDA_SEQS) {
        struct states states;
        int32_t n = states_take(p->seqs, i, p->n_seqs, &states);

        CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->n_v, (unsigned)n), dim3(threads), 0, scan_rows, s,
                          states);
        r = cuda_launched(cu, "scan_rows");
    }
    for (int32_t i = 0; i < p->n_seqs && r == 0; i++) { /* rows that this call has made */
        struct scan some = s;

        some.y += (size_t)p->seqs[i].row0 * p->ldy;
        if (p->seqs[i].n_rows > 0) {
            CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->seqs[i].n_rows, (unsigned)p->n_k),
                              dim3(GATE_THREADS), 0, scan_norm, some);
            r = cuda_launched(cu, "scan_norm");
        }
    }
    return r;
}

/* ---- gates ---------------------------------------------------------------------------------- */

struct gate {
    const float *x;
    const float *gate;
    float *y;
    int32_t width, dim, ldx, ldg, ldy, x_step, gate_step;
};

CUDA_KERNEL void gate_rows(struct gate p)
{
    int32_t c = (int32_t)(blockIdx.y * GATE_THREADS + threadIdx.x);
    int32_t h = c / p.dim;
    size_t row = blockIdx.x;
    float v;

    grid_begin();
    grid_wait();
    if (c >= p.width) {
        return;
    }
    v = p.x[row * p.ldx + (size_t)h * p.x_step + c % p.dim];
    if (p.gate) {
        v *= 1.0f / (1.0f + expf(-p.gate[row * p.ldg + (size_t)h * p.gate_step + c % p.dim]));
    }
    p.y[row * p.ldy + c] = v;
}

int cuda_gate(struct backend *be, const struct ops_gate *p)
{
    struct cuda *cu = cuda_of(be);
    int32_t width = p->n_heads * p->dim;
    struct gate g = {p->x,   p->gate, p->y,   width,     p->dim,
                     p->ldx, p->ldg,  p->ldy, p->x_step, p->gate_step};

    if (p->rows.n == 0) {
        return 0;
    }
    CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->rows.n, cuda_div_up((uint64_t)width, GATE_THREADS)),
                      dim3(GATE_THREADS), 0, gate_rows, g);
    return cuda_launched(cu, "gate_rows");
}
