/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows, and what a policy observes of them, where K or V has 32 bits. All
 * other caches go to attention_rows.cu or attention_wgmma.cu, and to attention_observe.cu. Those
 * hold queries, K and V in 16 bits. For f32 they would have to round to 16 bits, which the one who
 * chose f32 does not want, or to multiply two pieces of each: three products for one, and twice the
 * shared memory, of which heads of 256 leave none.
 *
 * prefill  Block of 128 threads: one query head, 32 consecutive rows, over all slots in tiles of
 *          32, softmax as it goes. K and V tiles lie in shared memory as f32, one after the other
 *          in the same place. A thread has 2 rows; 8 threads share them: 4 slots each for the
 *          logits, every eighth four dims for the values. Tiles that no row sees are left out
 *          where slots are positions. A row's bits do not depend on the other 31: a tile it does
 *          not see multiplies by 1 and adds 0.
 * columns  Block: 32 slots of one group. Rows in order, heads in order, as ops.h has it: the
 *          logits are formed again, and divided by the sums that `prefill` left.
 *
 * Shared memory: 32 (k_dim + max(k_dim, v_dim) + 44) floats: 37 KB at 128, 70 KB at 256. Products
 * are f32 FMA, not tensor cores. Rates: not measured. */

#include "kernels/cuda/attention.cuh"

/* Blocks a multiprocessor that ptxas is told of `prefill`: left alone it saves registers for more,
 * and spills. */
enum { THREADS = 128, MIN_BLOCKS = 3, ROWS = 32, SLOTS = 32, P_LEN = 36 };

struct tile {
    float *q;     /* (ROWS, q_len) */
    float *kv;    /* (SLOTS, kv_len) */
    float *p;     /* (ROWS, P_LEN) */
    int32_t *pos; /* (SLOTS) */
    int32_t q_len, kv_len;
};

static inline __host__ __device__ int32_t padded(int32_t dim)
{
    return (dim + KV_VEC - 1) / KV_VEC * KV_VEC;
}

static inline __host__ __device__ int32_t tile_floats(int32_t k_dim, int32_t v_dim)
{
    int32_t kv = padded(k_dim > v_dim ? k_dim : v_dim) + 4;

    return ROWS * (padded(k_dim) + 4) + SLOTS * kv + ROWS * P_LEN + SLOTS;
}

CUDA_INLINE struct tile tile_of(float *memory, const struct cuda_layout *l)
{
    struct tile t;

    t.q_len = padded(l->k_dim) + 4;
    t.kv_len = padded(max(l->k_dim, l->v_dim)) + 4;
    t.q = memory;
    t.kv = t.q + ROWS * t.q_len;
    t.p = t.kv + SLOTS * t.kv_len;
    t.pos = reinterpret_cast<int32_t *>(t.p + ROWS * P_LEN);
    return t;
}

/* Query rows [row0, row0 + 32) of a sequence; what lies beyond is 0. */
CUDA_INLINE void load_q(const struct attend *p, const struct cuda_seq *s, int32_t row0,
                        int32_t head, struct tile *t)
{
    int32_t k_dim = p->seqs.layout.k_dim;

    for (int32_t i = (int32_t)threadIdx.x; i < ROWS * t->q_len; i += THREADS) {
        int32_t r = i / t->q_len;
        int32_t d = i % t->q_len;

        t->q[i] = row0 + r < s->n_rows && d < k_dim
                      ? p->q[(size_t)(s->row0 + row0 + r) * p->ldq + (size_t)head * k_dim + d]
                      : 0.0f;
    }
}

/* Positions of slots [s0, s0 + 32); -1 beyond the last. */
CUDA_INLINE void load_pos(const struct cuda_seq *s, int32_t group, int32_t s0, struct tile *t)
{
    if (threadIdx.x < SLOTS) {
        int32_t slot = s0 + (int32_t)threadIdx.x;

        t->pos[threadIdx.x] = slot < s->n_slots ? kv_pos(s, group, slot) : -1;
    }
}

/* One head of K (or V) of the tile's slots as f32; empty slots are 0. */
CUDA_INLINE void load_kv(const struct attend *p, const struct cuda_seq *s, int32_t group,
                         int32_t head, bool is_k, int32_t s0, struct tile *t)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t n_vec = padded(is_k ? l->k_dim : l->v_dim) / KV_VEC;
    int32_t type = is_k ? l->k_type : l->v_type;

    for (int32_t i = (int32_t)threadIdx.x; i < SLOTS * n_vec; i += THREADS) {
        int32_t slot = s0 + i / n_vec;
        float v[KV_VEC] = {};
        float scale = 0.0f;

        if (t->pos[i / n_vec] >= 0) {
            uint8_t *page = kv_page(l, s, group, slot);

            kv_load8(type, is_k ? kv_k_row(l, page, head, slot) : kv_v_row(l, page, head, slot),
                     i % n_vec, v);
            scale = kv_scale_of(type, page, is_k ? l->k_scale_at : l->v_scale_at, head, slot);
        }
        for (int j = 0; j < KV_VEC; j++) {
            t->kv[i / n_vec * t->kv_len + i % n_vec * KV_VEC + j] = v[j] * scale;
        }
    }
}

/* dot[i][j]: rows 2 (tid / 8) + i, slots tid % 8 + 8 j. */
CUDA_INLINE void dots(const struct tile *t, float dot[2][4])
{
    const float *q = t->q + (int32_t)threadIdx.x / 8 * 2 * t->q_len;
    const float *k = t->kv + (int32_t)threadIdx.x % 8 * t->kv_len;

    for (int i = 0; i < 8; i++) {
        dot[i / 4][i % 4] = 0.0f;
    }
    for (int32_t d = 0; d < t->q_len - 4; d += 4) {
        float4 a[2];

        for (int i = 0; i < 2; i++) {
            a[i] = *reinterpret_cast<const float4 *>(q + i * t->q_len + d);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float4 b = *reinterpret_cast<const float4 *>(k + j * 8 * t->kv_len + d);

            for (int i = 0; i < 2; i++) {
                dot[i][j] += a[i].x * b.x;
                dot[i][j] += a[i].y * b.y;
                dot[i][j] += a[i].z * b.z;
                dot[i][j] += a[i].w * b.w;
            }
        }
    }
}

/* Over the 8 threads of a row. */
CUDA_INLINE float row_max(float x)
{
    for (int m = 4; m > 0; m >>= 1) {
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, m));
    }
    return x;
}

CUDA_INLINE float row_sum(float x)
{
    for (int m = 4; m > 0; m >>= 1) {
        x += __shfl_xor_sync(ALL_LANES, x, m);
    }
    return x;
}

/* A running softmax of one row: largest value and sum of e^(x - largest). */
struct running {
    float top, sum;
};

/* Takes 4 values of each of the row's 8 threads, which become e^...; returns what earlier sums are
 * multiplied by. */
CUDA_INLINE float running_add(struct running *r, float x[4])
{
    float top = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
    float sum = 0;
    float factor;

    top = fmaxf(r->top, row_max(top));
    factor = top == r->top ? 1.0f : expf(r->top - top); /* top is finite if they differ */
    for (int j = 0; j < 4; j++) {
        x[j] = x[j] > -INFINITY ? expf(x[j] - top) : 0.0f;
        sum += x[j];
    }
    r->sum = r->sum * factor + row_sum(sum);
    r->top = top;
    return factor;
}

template <int NJ> CUDA_KERNEL void __launch_bounds__(THREADS, MIN_BLOCKS) prefill(struct attend p)
{
    CUDA_SHARED(float, memory);
    const struct cuda_layout *l = &p.seqs.layout;
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    const struct ops_observe *o = &p.observe[seq];
    int32_t head = (int32_t)blockIdx.y;
    int32_t row0 = (int32_t)blockIdx.x * ROWS;
    struct attend_head h = attend_head_of(&p, head);
    struct tile t = tile_of(memory, l);
    int32_t own = (int32_t)threadIdx.x / 8 * 2; /* first of this thread's rows */
    int32_t part = (int32_t)threadIdx.x % 8;
    int32_t last_row = min(row0 + ROWS, s->n_rows) - 1;
    float slope = attend_slope(&p, head);
    bool observed = attend_observed(&p, seq);
    struct running sum[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    struct running noisy[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    float acc[2][NJ][4] = {};

    if (row0 >= s->n_rows) {
        return;
    }
    load_q(&p, s, row0, head, &t);
    for (int32_t s0 = 0; s0 < s->n_slots; s0 += SLOTS) {
        float x[2][4];

        if (attend_unseen(&p, s, s0, SLOTS, s->pos0 + row0, s->pos0 + last_row)) {
            continue;
        }
        __syncthreads(); /* kv, pos: read by all in the tile before */
        load_pos(s, h.group, s0, &t);
        __syncthreads(); /* pos: written by the first warp, read by all */
        load_kv(&p, s, h.group, h.k_head, true, s0, &t);
        __syncthreads(); /* kv: keys loaded by all, read by all */
        dots(&t, x);
        for (int i = 0; i < 2; i++) {
            int32_t row_pos = s->pos0 + row0 + own + i;
            float n[4];
            float factor;

            for (int j = 0; j < 4; j++) {
                int32_t pos = t.pos[part + 8 * j];

                x[i][j] = attend_logit(&p, x[i][j], slope, pos, row_pos);
                n[j] =
                    observed ? attend_noisy(o, x[i][j], head, row0 + own + i, row_pos, pos) : 0.0f;
            }
            factor = running_add(&sum[i], x[i]);
            if (observed) {
                (void)running_add(&noisy[i], n);
            }
            for (int j = 0; j < 4; j++) {
                t.p[(own + i) * P_LEN + part + 8 * j] = x[i][j];
            }
            for (int j = 0; j < NJ * 4; j++) {
                acc[i][j / 4][j % 4] *= factor;
            }
        }
        __syncthreads(); /* kv: keys read by all, values come in their place; p: complete */
        load_kv(&p, s, h.group, h.v_head, false, s0, &t);
        __syncthreads(); /* kv: values loaded by all, read by all */
        for (int32_t slot = 0; slot < SLOTS; slot++) {
            float e[2] = {t.p[own * P_LEN + slot], t.p[(own + 1) * P_LEN + slot]};

#pragma unroll
            for (int j = 0; j < NJ; j++) {
                int32_t d = part * 4 + 32 * j;

                if (d < l->v_dim) {
                    float4 v = *reinterpret_cast<const float4 *>(t.kv + slot * t.kv_len + d);

                    for (int i = 0; i < 2; i++) {
                        acc[i][j][0] += e[i] * v.x;
                        acc[i][j][1] += e[i] * v.y;
                        acc[i][j][2] += e[i] * v.z;
                        acc[i][j][3] += e[i] * v.w;
                    }
                }
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        int32_t row = row0 + own + i;
        float inv =
            attend_with_sink(&p, head, sum[i].top, sum[i].sum > 0 ? 1.0f / sum[i].sum : 0.0f);
        float *out = p.out + (size_t)(s->row0 + row) * p.ldo + (size_t)head * l->v_dim;

        if (row >= s->n_rows) {
            continue;
        }
        for (int j = 0; j < NJ * 4; j++) {
            int32_t d = part * 4 + 32 * (j / 4) + j % 4;

            if (d < l->v_dim) {
                out[d] =
                    acc[i][j / 4][j % 4] * inv + 0.0f; /* -0 becomes 0: tiles left out add none */
            }
        }
        if (observed && part == 0) {
            float *to = p.sums + ((size_t)(s->row0 + row) * p.n_q + head) * 2;

            to[0] = noisy[i].top;
            to[1] = noisy[i].sum > 0 ? 1.0f / noisy[i].sum : 0.0f;
        }
    }
}

/* ---- columns -------------------------------------------------------------------------------- */

/* Probabilities of one head, added to those of the heads before it. */
CUDA_INLINE void add_head(const struct attend *p, int32_t seq, int32_t row0, int32_t head,
                          const struct tile *t, float sum[2][4])
{
    const struct cuda_seq *s = &p->seqs.s[seq];
    int32_t own = (int32_t)threadIdx.x / 8 * 2;
    int32_t part = (int32_t)threadIdx.x % 8;
    float slope = attend_slope(p, head);
    float x[2][4];

    dots(t, x);
    for (int i = 0; i < 8; i++) {
        int32_t row = row0 + own + i / 4;
        int32_t pos = t->pos[part + 8 * (i % 4)];
        float v = row < s->n_rows ? attend_logit(p, x[i / 4][i % 4], slope, pos, s->pos0 + row)
                                  : -INFINITY;

        if (v > -INFINITY) {
            const float *sums = p->sums + ((size_t)(s->row0 + row) * p->n_q + head) * 2;

            v = attend_noisy(&p->observe[seq], v, head, row, s->pos0 + row, pos);
            sum[i / 4][i % 4] += expf(v - sums[0]) * sums[1];
        }
    }
}

CUDA_KERNEL void __launch_bounds__(THREADS, CUDA_ON_100(1, 0)) columns(struct attend p)
{
    CUDA_SHARED(float, memory);
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    const struct ops_observe *o = &p.observe[seq];
    int32_t group = (int32_t)blockIdx.y;
    int32_t s0 = (int32_t)blockIdx.x * SLOTS;
    int32_t n_heads = p.n_q / p.seqs.layout.n_groups;
    struct tile t = tile_of(memory, &p.seqs.layout);
    int32_t slot = s0 + (int32_t)threadIdx.x;
    bool owner = threadIdx.x < SLOTS && slot < s->n_slots;
    float *score = s->score + (size_t)group * s->cap + slot;
    float weight = o->row_weight0;
    float total = 0;
    int32_t k_head = -1;

    if (!attend_observed(&p, seq) || s0 >= s->n_slots) {
        return;
    }
    load_pos(s, group, s0, &t);
    if (owner) {
        total = *score * attend_damp(o, s->n_rows);
    }
    for (int32_t row0 = o->row_first; row0 < s->n_rows; row0 += ROWS) {
        int32_t n = min((int32_t)ROWS, s->n_rows - row0);
        bool unseen = attend_unseen(&p, s, s0, SLOTS, s->pos0 + row0, s->pos0 + row0 + n - 1);
        float sum[2][4] = {};

        for (int32_t h = group * n_heads; h < (group + 1) * n_heads && !unseen; h++) {
            __syncthreads(); /* q, kv: read by all for the head before; pos: written */
            load_q(&p, s, row0, h, &t);
            if (attend_head_of(&p, h).k_head != k_head) {
                k_head = attend_head_of(&p, h).k_head;
                load_kv(&p, s, group, k_head, true, s0, &t);
            }
            __syncthreads(); /* q, kv: loaded by all, read by all */
            add_head(&p, seq, row0, h, &t, sum);
        }
        for (int i = 0; i < 8; i++) {
            t.p[((int32_t)threadIdx.x / 8 * 2 + i / 4) * P_LEN + (int32_t)threadIdx.x % 8 +
                i % 4 * 8] = sum[i / 4][i % 4];
        }
        __syncthreads(); /* p: written by all, read by the first warp */
        for (int32_t r = 0; r < n && owner; r++) {
            total += weight * t.p[r * P_LEN + (int32_t)threadIdx.x];
            weight *= o->row_growth;
        }
        __syncthreads(); /* p: read, may be written for the next rows */
    }
    if (owner) {
        *score = total;
    }
}

template <int NJ> static int launch(struct cuda *cu, struct attend *p, dim3 grid, size_t shared)
{
    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, prefill<NJ>, *p);
    return cuda_launched(cu, "prefill");
}

int cuda_attend_prefill(struct cuda *cu, struct attend *p)
{
    const struct cuda_layout *l = &p->seqs.layout;
    size_t shared = (size_t)tile_floats(l->k_dim, l->v_dim) * sizeof(float);
    int32_t rows = 0;
    int32_t slots = 0;
    dim3 grid;
    int r;

    for (int32_t i = 0; i < p->seqs.n; i++) {
        const struct cuda_seq *s = &p->seqs.s[i];

        rows = s->n_rows > rows ? s->n_rows : rows;
        if (s->score && p->observe[i].row_first < s->n_rows) {
            slots = s->n_slots > slots ? s->n_slots : slots;
        }
    }
    if (rows == 0) {
        return 0;
    }
    if (l->k_type != OPS_KV_F32 && l->v_type != OPS_KV_F32) {
        r = cuda_attend_has_wgmma(cu, p) ? cuda_attend_wgmma(cu, p, rows)
                                         : cuda_attend_rows(cu, p, rows);
        return r == 0 && slots > 0 ? cuda_attend_scores(cu, p, rows, slots) : r;
    }
    grid = dim3(cuda_div_up((uint64_t)rows, ROWS), (unsigned)p->n_q, (unsigned)p->seqs.n);
    r = l->v_dim <= 64    ? launch<2>(cu, p, grid, shared)
        : l->v_dim <= 128 ? launch<4>(cu, p, grid, shared)
                          : launch<8>(cu, p, grid, shared);
    if (r == 0 && slots > 0) {
        CUDA_LAUNCH_LARGE(
            cu,
            dim3(cuda_div_up((uint64_t)slots, SLOTS), (unsigned)l->n_groups, (unsigned)p->seqs.n),
            dim3(THREADS), shared, columns, *p);
        r = cuda_launched(cu, "columns");
    }
    return r;
}
