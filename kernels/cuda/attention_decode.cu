/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of decode rows in plain f32, for caches that attention_stream.cu does not serve: f32,
 * pairs of two types, heads of other dims, K heads that share V heads or the reverse. Split over
 * fixed chunks of slots, merged in order.
 *
 * chunk    Block of 128 threads: one chunk (128, 512 or 1024 slots by n_slots), one K head, up to
 *          HB of the query heads that read it, one row. Three passes: logits (two threads a slot,
 *          each half of the dims, q from shared memory by broadcast), softmax (a warp a head),
 *          values (threads over dims and slots; slots of weight 0 are not read). Every K row is
 *          read once for HB heads, V rows once a V head. Shared memory: HB (k_dim + chunk + 1024)
 *          floats. Writes largest logit, sum, and the unnormalised sum of values.
 * merge    One block a row and query head; chunks in order.
 * observe  A thread a slot: sums the heads' probabilities in order into the score. Noisy logits
 *          come from scratch, where `chunk` left them: 4 bytes a slot and head, out of L2.
 *
 * Each row is its own: bits depend on its sequence alone. On an H200, 8 K heads of 128 and 32
 * query heads of bf16 it took 18.5 us at 128 slots, 85 at 8,192, 304 at 65,536: each warp has one
 * load under way. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/kv_four.cuh"

enum { THREADS = 128, PAGE = OPS_PAGE_SLOTS, HEAD_MAX = 256 };

/* The block's sequence, row, heads and slots. */
struct item {
    int32_t seq, row, chunk, s0, s1; /* slots [s0, s1) */
    int32_t head0, n_heads;          /* query heads */
    int32_t k_head, group;
    int32_t row_pos;
};

template <int HB> CUDA_INLINE bool item_of(const struct attend *p, struct item *it)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t share = p->n_q / (l->n_groups * l->k_heads); /* query heads of one K head */
    int32_t blocks = (share + HB - 1) / HB;
    int32_t k = (int32_t)blockIdx.y / blocks;
    int32_t b = (int32_t)blockIdx.y % blocks;
    const struct cuda_seq *s;
    int32_t chunk;

    it->seq = (int32_t)blockIdx.z;
    it->row = 0;
    s = &p->seqs.s[it->seq];
    chunk = cuda_chunk(s->n_slots);
    it->chunk = (int32_t)blockIdx.x;
    it->s0 = it->chunk * chunk;
    it->s1 = min(it->s0 + chunk, s->n_slots);
    it->head0 = k * share + b * HB;
    it->n_heads = min((int32_t)HB, share - b * HB);
    it->group = k / l->k_heads;
    it->k_head = k % l->k_heads;
    it->row_pos = s->pos0;
    return it->s0 < it->s1;
}

/* x (HB, chunk) = logits. `other` (HB, PAGE): the second half's products. */
template <int HB>
CUDA_INLINE void logits_pass(const struct attend *p, const struct item *it, const float *q,
                             int32_t q_len, float *x, int32_t x_len, float *other)
{
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = &p->seqs.s[it->seq];
    int32_t n_vec = q_len / KV_VEC;
    int32_t half = (int32_t)threadIdx.x / PAGE;
    int32_t in_page = (int32_t)threadIdx.x % PAGE;
    int32_t from = half ? n_vec / 2 : 0;
    int32_t to = half ? n_vec : n_vec / 2;

    for (int32_t s0 = it->s0; s0 < it->s1; s0 += PAGE) {
        int32_t slot = s0 + in_page;
        int32_t pos = slot < it->s1 ? kv_pos(s, it->group, slot) : -1;
        bool seen = kv_visible(pos, it->row_pos, p->window);
        uint8_t *page = kv_page(l, s, it->group, s0);
        bool four = kv_four(l->k_type);
        bool latest = seen && four && latest_has(s, it->row_pos, pos);
        const uint8_t *entry =
            latest ? latest_head(l, s, it->group, pos, true, it->k_head) : NULL;
        float dot[HB] = {};

        for (int32_t i = from; i < to && seen; i++) {
            float k[KV_VEC];

            if (latest) {
                latest_load8(entry, i, k);
            } else {
                kv_load8(l->k_type, kv_k_row(l, page, it->k_head, slot), i, k);
            }
            if (four) {
                float scale = latest ? latest_scale(entry, l->k_dim)
                                     : kv_scale8_k(l, page, it->k_head, slot, i);

                for (int j = 0; j < KV_VEC; j++) {
                    k[j] *= scale;
                }
            }
#pragma unroll
            for (int h = 0; h < HB; h++) {
#pragma unroll
                for (int j = 0; j < KV_VEC; j++) {
                    dot[h] += q[h * q_len + i * KV_VEC + j] * k[j];
                }
            }
        }
        for (int h = 0; h < HB && half; h++) {
            other[h * PAGE + in_page] = dot[h];
        }
        __syncthreads(); /* other: written by the second half, read by the first */
        if (!half) {
            float scale =
                seen ? kv_scale_of(l->k_type, page, l->k_scale_at, it->k_head, slot) : 0.0f;

            for (int h = 0; h < HB; h++) {
                x[h * x_len + slot - it->s0] =
                    attend_logit(p, (dot[h] + other[h * PAGE + in_page]) * scale,
                                 attend_slope(p, it->head0 + h), pos, it->row_pos);
            }
        }
        __syncthreads(); /* other: read, may be written for the next page */
    }
}

/* Largest value and sum of e^(x - largest) over n values by one warp; WRITE: x becomes e^... */
template <bool WRITE>
CUDA_INLINE void softmax_warp(float *x, int32_t n, float *ret_max, float *ret_sum)
{
    int lane = (int)threadIdx.x % WARP;
    float top = -INFINITY;
    float sum = 0;

    for (int32_t i = lane; i < n; i += WARP) {
        top = fmaxf(top, x[i]);
    }
    top = warp_max(top);
    for (int32_t i = lane; i < n; i += WARP) {
        float e = top > -INFINITY ? expf(x[i] - top) : 0.0f;

        sum += e;
        if (WRITE) {
            x[i] = e;
        }
    }
    *ret_max = top;
    *ret_sum = warp_sum(sum);
}

template <int HB>
CUDA_INLINE void softmax_pass(const struct attend *p, const struct item *it, float *x,
                              int32_t x_len)
{
    const struct cuda_seq *s = &p->seqs.s[it->seq];
    int lane = (int)threadIdx.x % WARP;
    int32_t n = (it->s1 - it->s0 + PAGE - 1) / PAGE * PAGE;

    for (int32_t h = (int32_t)threadIdx.x / WARP; h < it->n_heads; h += THREADS / WARP) {
        int32_t head = it->head0 + h;
        float *part =
            p->part + ((size_t)(it->seq * p->n_q + head) * p->n_chunks + it->chunk) * p->part_len;
        float *own = x + h * x_len;
        float top;
        float sum;

        if (attend_observed(p, it->seq)) {
            const struct ops_observe *o = &p->observe[it->seq];
            float *noisy = p->logits + (size_t)(it->seq * p->n_q + head) * p->max_slots + it->s0;

            for (int32_t i = lane; i < it->s1 - it->s0; i += WARP) {
                noisy[i] =
                    attend_noisy(o, own[i], head, 0, it->row_pos, kv_pos(s, it->group, it->s0 + i));
            }
            softmax_warp<false>(noisy, it->s1 - it->s0, &top, &sum);
            if (lane == 0) {
                part[2] = top;
                part[3] = sum;
            }
        }
        softmax_warp<true>(own, n, &top, &sum);
        if (lane == 0) {
            part[0] = top;
            part[1] = sum;
        }
    }
    __syncthreads(); /* x: weights, written by a warp a head, read by all */
}

/* Sums of values to part[4...]. `red` (groups of threads, HB, v padded). */
template <int HB>
CUDA_INLINE void values_pass(const struct attend *p, const struct item *it, const float *x,
                             int32_t x_len, float *red)
{
    const struct cuda_layout *l = &p->seqs.layout;
    const struct cuda_seq *s = &p->seqs.s[it->seq];
    int32_t n_vec = (l->v_dim + KV_VEC - 1) / KV_VEC;
    int32_t n_sub = THREADS / n_vec; /* slots taken at once */
    int32_t vec = (int32_t)threadIdx.x % n_vec;
    int32_t sub = (int32_t)threadIdx.x / n_vec;
    int32_t first = attend_head_of(p, it->head0).v_head;
    int32_t last = attend_head_of(p, it->head0 + it->n_heads - 1).v_head;
    int32_t heads_per_v = p->n_q / (l->n_groups * l->v_heads);
    int32_t in_group = it->head0 % (p->n_q / l->n_groups);
    float acc[HB][KV_VEC] = {};

    for (int32_t slot = it->s0 + sub; slot < it->s1 && sub < n_sub; slot += n_sub) {
        float w[HB];
        float any = 0;
        uint8_t *page;

#pragma unroll
        for (int h = 0; h < HB; h++) {
            w[h] = x[h * x_len + slot - it->s0];
            any = fmaxf(any, w[h]);
        }
        if (any == 0) {
            continue;
        }
        page = kv_page(l, s, it->group, slot);
        for (int32_t vh = first; vh <= last; vh++) {
            float v[KV_VEC];
            float scale;

            if (kv_four(l->v_type) && latest_has(s, it->row_pos, kv_pos(s, it->group, slot))) {
                const uint8_t *entry =
                    latest_head(l, s, it->group, kv_pos(s, it->group, slot), false, vh);

                scale = latest_scale(entry, l->v_dim);
                latest_load8(entry, vec, v);
            } else {
                scale = kv_scale8_v(l, page, vh, slot, vec);
                kv_load8(l->v_type, kv_v_row(l, page, vh, slot), vec, v);
            }
#pragma unroll
            for (int h = 0; h < HB; h++) {
                float e = first == last || (in_group + h) / heads_per_v == vh ? w[h] * scale : 0.0f;

#pragma unroll
                for (int j = 0; j < KV_VEC; j++) {
                    acc[h][j] += e * v[j];
                }
            }
        }
    }
    for (int i = 0; i < HB * KV_VEC && sub < n_sub; i++) {
        red[((size_t)sub * HB + i / KV_VEC) * n_vec * KV_VEC + vec * KV_VEC + i % KV_VEC] =
            acc[i / KV_VEC][i % KV_VEC];
    }
    __syncthreads(); /* red: written above, read below */
    for (int32_t i = (int32_t)threadIdx.x; i < it->n_heads * l->v_dim; i += THREADS) {
        int32_t h = i / l->v_dim;
        int32_t d = i % l->v_dim;
        float sum = 0;

        for (int32_t k = 0; k < n_sub; k++) {
            sum += red[((size_t)k * HB + h) * n_vec * KV_VEC + d];
        }
        p->part[((size_t)(it->seq * p->n_q + it->head0 + h) * p->n_chunks + it->chunk) *
                    p->part_len +
                4 + d] = sum;
    }
}

/* Blocks a multiprocessor that ptxas is told of: left alone it saves a register more, and spills. */
template <int HB>
CUDA_KERNEL void __launch_bounds__(THREADS, HB == 1 ? 8 : 5) decode_chunk(struct attend p)
{
    CUDA_SHARED(float, memory);
    const struct cuda_layout *l = &p.seqs.layout;
    int32_t q_len = (l->k_dim + KV_VEC - 1) / KV_VEC * KV_VEC;
    struct item it;
    float *q = memory;
    float *x;
    float *red;
    int32_t x_len;

    grid_begin();
    grid_wait();
    if (!item_of<HB>(&p, &it)) {
        return;
    }
    x_len = cuda_chunk(p.seqs.s[it.seq].n_slots);
    x = q + HB * q_len;
    red = x + HB * x_len;
    for (int32_t i = (int32_t)threadIdx.x; i < HB * q_len; i += THREADS) {
        int32_t h = i / q_len;
        int32_t d = i % q_len;

        q[i] =
            h < it.n_heads && d < l->k_dim
                ? p.q[(size_t)p.seqs.s[it.seq].row0 * p.ldq + (size_t)(it.head0 + h) * l->k_dim + d]
                : 0.0f;
    }
    __syncthreads(); /* q: loaded above, read by all */
    logits_pass<HB>(&p, &it, q, q_len, x, x_len, red);
    softmax_pass<HB>(&p, &it, x, x_len);
    values_pass<HB>(&p, &it, x, x_len, red);
}

/* ---- merge ---------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) decode_merge(struct attend p)
{
    const struct cuda_seq *s = &p.seqs.s[blockIdx.y];
    int32_t head = (int32_t)blockIdx.x;
    int32_t seq = (int32_t)blockIdx.y;
    int32_t n = (s->n_slots + cuda_chunk(s->n_slots) - 1) / cuda_chunk(s->n_slots);
    const float *part = p.part + (size_t)(seq * p.n_q + head) * p.n_chunks * p.part_len;
    float *out = p.out + (size_t)s->row0 * p.ldo + (size_t)head * p.seqs.layout.v_dim;
    float top;
    float inv;

    grid_begin();
    grid_wait();
    inv = attend_merge_sums(part, p.part_len, n, 0, &top);
    inv = attend_with_sink(&p, head, top, inv);
    for (int32_t d = (int32_t)threadIdx.x; d < p.seqs.layout.v_dim; d += THREADS) {
        out[d] = attend_merge_value(part, p.part_len, n, top, d) * inv;
    }
    if (threadIdx.x == 0 && attend_observed(&p, seq)) {
        float *sums = p.sums + (size_t)(seq * p.n_q + head) * 2;

        sums[1] = attend_merge_sums(part, p.part_len, n, 2, &sums[0]);
    }
}

/* ---- observe -------------------------------------------------------------------------------- */

CUDA_KERNEL void __launch_bounds__(THREADS) decode_observe(struct attend p)
{
    int32_t seq = (int32_t)blockIdx.z;
    const struct cuda_seq *s = &p.seqs.s[seq];
    const struct ops_observe *o = &p.observe[seq];
    int32_t group = (int32_t)blockIdx.y;
    int32_t slot = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    int32_t n_heads = p.n_q / p.seqs.layout.n_groups;
    float *score = s->score + (size_t)group * s->cap + slot;
    float sum = 0;

    if (slot >= s->n_slots || !attend_observed(&p, seq)) {
        return;
    }
    for (int32_t h = group * n_heads; h < (group + 1) * n_heads; h++) {
        const float *sums = p.sums + (size_t)(seq * p.n_q + h) * 2;
        float x = p.logits[(size_t)(seq * p.n_q + h) * p.max_slots + slot];

        sum += x > -INFINITY ? expf(x - sums[0]) * sums[1] : 0.0f;
    }
    *score = *score * o->damp + o->row_weight0 * sum;
}

int cuda_attend_observe(struct cuda *cu, const struct attend *p, int32_t most_slots)
{
    CUDA_LAUNCH(cu,
                dim3(cuda_div_up((uint64_t)most_slots, THREADS), (unsigned)p->seqs.layout.n_groups,
                     (unsigned)p->seqs.n),
                dim3(THREADS), 0, decode_observe, *p);
    return cuda_launched(cu, "decode_observe");
}

template <int HB> static int launch(struct cuda *cu, struct attend *p, int32_t chunk, int32_t share)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t k_len = (l->k_dim + KV_VEC - 1) / KV_VEC * KV_VEC;
    size_t shared = (size_t)HB * (size_t)(k_len + chunk + THREADS * KV_VEC) * sizeof(float);

    CUDA_LAUNCH_EARLY(cu,
                      dim3((unsigned)p->n_chunks,
                           (unsigned)(l->n_groups * l->k_heads) * cuda_div_up((uint64_t)share, HB),
                           (unsigned)p->seqs.n),
                      dim3(THREADS), shared, decode_chunk<HB>, *p);
    return cuda_launched(cu, "decode_chunk");
}

int cuda_attend_decode(struct cuda *cu, struct attend *p)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t share = p->n_q / (l->n_groups * l->k_heads);
    int32_t chunk = 0;
    int32_t most = 0;
    bool observed = false;
    int r;

    p->n_chunks = 1;
    for (int32_t i = 0; i < p->seqs.n; i++) {
        int32_t n = p->seqs.s[i].n_slots;
        int32_t c = cuda_chunk(n);

        chunk = c > chunk ? c : chunk;
        most = n > most ? n : most;
        p->n_chunks = (n + c - 1) / c > p->n_chunks ? (n + c - 1) / c : p->n_chunks;
        observed = observed || (n > 0 && p->seqs.s[i].score && p->observe[i].row_first < 1);
    }
    r = share >= 3   ? launch<4>(cu, p, chunk, share)
        : share == 2 ? launch<2>(cu, p, chunk, share)
                     : launch<1>(cu, p, chunk, share);
    if (r == 0) {
        CUDA_LAUNCH_EARLY(cu, dim3((unsigned)p->n_q, (unsigned)p->seqs.n), dim3(THREADS), 0,
                          decode_merge, *p);
        r = cuda_launched(cu, "decode_merge");
    }
    return r == 0 && observed ? cuda_attend_observe(cu, p, most) : r;
}
