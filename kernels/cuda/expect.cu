/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of slots by what queries to come are expected to be (kernels/ops_expect.h): at a prompt's
 * end, and every so many new tokens.
 *
 * expect_future   what queries to come are expected to be (expect_future.cu).
 * expect_keys     a block a page and K head: exponents of 64 keys by every query head that reads
 *                 them. A thread has a slot and 8 rows of the square at once; the square's numbers
 *                 are the same for all lanes.
 * expect_softmax  a block a query head: the largest exponent and 1 / the sum.
 * expect_scores   a block a page and group: lengths of V, weights, their sum over heads.
 *
 * By counts: an exponent is k_dim^2 / 2 products, so 4,096 slots of 32 heads of 128 are 1.1 G, some
 * 0.1 ms of an H200's f32 rate, once every 64 tokens a layer (pipit-kbench: "expected"). It has run
 * in the emulator only.
 *
 * In a decode step scores are made behind the step (cuda_queue_put_off): its list of kernels stays
 * the same whichever layer has its turn, and so does its graph. Nothing of the step reads them. */

#include <cerrno>
#include <cmath>

#include "kernels/cuda/expect.cuh"

enum {
    KEYS_THREADS = 256,
    KEYS_PARTS = KEYS_THREADS / OPS_PAGE_SLOTS,
    KEYS_ROWS = 8, /* of the square, at once */
    SOFTMAX_THREADS = 256,
    SCORE_THREADS = 256,
    SCORE_PARTS = SCORE_THREADS / OPS_PAGE_SLOTS,
    BLOCKS = 4, /* a multiprocessor: left alone ptxas spills, to keep to 32 registers */
};

/* ---- keys ----------------------------------------------------------------------------------- */

CUDA_INLINE bool slot_lives(const struct cuda_expect *p, int32_t group, int32_t slot)
{
    return slot < p->s.n_slots && kv_pos(&p->s, group, slot) >= 0;
}

CUDA_KERNEL void __launch_bounds__(KEYS_THREADS, BLOCKS - 1) expect_keys(struct cuda_expect p)
{
    CUDA_SHARED(float, tile); /* (padded, 64): keys as stored, zeros where there are none */
    __shared__ float part[KEYS_PARTS][OPS_PAGE_SLOTS];
    const int32_t padded = expect_padded(p.layout.k_dim);
    const int32_t group = (int32_t)blockIdx.y / p.layout.k_heads;
    const int32_t k_head = (int32_t)blockIdx.y % p.layout.k_heads;
    const int32_t slot0 = (int32_t)blockIdx.x * OPS_PAGE_SLOTS;
    const int32_t in_page = (int32_t)threadIdx.x % OPS_PAGE_SLOTS;
    const int32_t share = p.n_heads / p.layout.k_heads;
    const bool lives = slot_lives(&p, group, slot0 + in_page);

    if (group_stats(&p, group)[0] == 0) {
        return;
    }
    for (int32_t u = (int32_t)threadIdx.x; u < OPS_PAGE_SLOTS * padded / KV_VEC;
         u += KEYS_THREADS) {
        int32_t vec = u / OPS_PAGE_SLOTS; /* of this thread's own slot */
        float x[KV_VEC] = {};
        float scale = 0;

        if (lives && vec * KV_VEC < p.layout.k_dim) {
            uint8_t *page = kv_page(&p.layout, &p.s, group, slot0);

            kv_load8(p.layout.k_type, kv_k_row(&p.layout, page, k_head, slot0 + in_page), vec, x);
            scale = kv_scale8_k(&p.layout, page, k_head, slot0 + in_page, vec);
        }
        for (int j = 0; j < KV_VEC; j++) {
            tile[(vec * KV_VEC + j) * OPS_PAGE_SLOTS + in_page] = x[j] * scale;
        }
    }
    __syncthreads(); /* tile: written by all, read by all */
    for (int32_t h = 0; h < share; h++) {
        const int32_t head = group * p.n_heads + k_head * share + h;
        const float *mean = p.mean + (size_t)head * padded;
        const float *square = p.square + (size_t)head * padded * padded;
        float x = 0;

        for (int32_t i0 = (int32_t)threadIdx.x / OPS_PAGE_SLOTS * KEYS_ROWS; i0 < padded;
             i0 += KEYS_PARTS * KEYS_ROWS) {
            float row[KEYS_ROWS];

#pragma unroll
            for (int r = 0; r < KEYS_ROWS; r++) {
                row[r] = mean[i0 + r];
            }
            for (int32_t j = 0; j < i0 + KEYS_ROWS && p.cov; j += 4) {
                float k[4];

#pragma unroll
                for (int t = 0; t < 4; t++) {
                    k[t] = tile[(j + t) * OPS_PAGE_SLOTS + in_page];
                }
#pragma unroll
                for (int r = 0; r < KEYS_ROWS; r++) {
                    float4 s = *reinterpret_cast<const float4 *>(square + (i0 + r) * padded + j);

                    row[r] += s.x * k[0] + s.y * k[1] + s.z * k[2] + s.w * k[3];
                }
            }
#pragma unroll
            for (int r = 0; r < KEYS_ROWS; r++) {
                x += row[r] * tile[(i0 + r) * OPS_PAGE_SLOTS + in_page];
            }
        }
        part[threadIdx.x / OPS_PAGE_SLOTS][in_page] = x;
        __syncthreads(); /* part: written by all, summed by the first */
        if (threadIdx.x < OPS_PAGE_SLOTS) {
            x = part[0][in_page];
            for (int i = 1; i < KEYS_PARTS; i++) {
                x += part[i][in_page];
            }
            p.exponents[(size_t)head * p.max_slots + slot0 + in_page] = lives ? x : -INFINITY;
        }
        __syncthreads(); /* part: read, before the next head's is written */
    }
}

CUDA_KERNEL void __launch_bounds__(SOFTMAX_THREADS, BLOCKS) expect_softmax(struct cuda_expect p)
{
    __shared__ float of_warp[SOFTMAX_THREADS / WARP];
    const int32_t head = (int32_t)blockIdx.x;
    const float *x = p.exponents + (size_t)head * p.max_slots;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    float top = -INFINITY;
    float sum = 0;

    if (group_stats(&p, head / p.n_heads)[0] == 0) {
        return;
    }
    for (int32_t s = (int32_t)threadIdx.x; s < p.s.n_slots; s += SOFTMAX_THREADS) {
        top = fmaxf(top, x[s]);
    }
    of_warp[warp] = warp_max(top);
    __syncthreads(); /* of_warp: a warp each, read by all */
    top = of_warp[0];
    for (int i = 1; i < SOFTMAX_THREADS / WARP; i++) {
        top = fmaxf(top, of_warp[i]);
    }
    __syncthreads(); /* read, before sums are written there */
    for (int32_t s = (int32_t)threadIdx.x; s < p.s.n_slots && top > -INFINITY;
         s += SOFTMAX_THREADS) {
        sum += expf(x[s] - top);
    }
    of_warp[warp] = warp_sum(sum);
    __syncthreads(); /* as above */
    if (threadIdx.x == 0) {
        sum = of_warp[0];
        for (int i = 1; i < SOFTMAX_THREADS / WARP; i++) {
            sum += of_warp[i];
        }
        p.tops[2 * head] = top;
        p.tops[2 * head + 1] = 1.0f / sum;
    }
}

CUDA_KERNEL void __launch_bounds__(SCORE_THREADS, BLOCKS) expect_scores(struct cuda_expect p)
{
    __shared__ float length[OPS_PAGE_SLOTS];
    __shared__ float part[SCORE_PARTS][OPS_PAGE_SLOTS];
    const struct cuda_layout *l = &p.layout;
    const int32_t group = (int32_t)blockIdx.y;
    const int32_t slot0 = (int32_t)blockIdx.x * OPS_PAGE_SLOTS;
    const int32_t in_page = (int32_t)threadIdx.x % OPS_PAGE_SLOTS;
    const int32_t share = p.n_heads / l->v_heads;
    const int32_t of_four = (int32_t)threadIdx.x / SCORE_PARTS; /* four threads a slot's V */
    float score = 0;

    if (group_stats(&p, group)[0] == 0) {
        return;
    }
    for (int32_t v = 0; v < l->v_heads; v++) {
        float sum = 0;

        if (slot_lives(&p, group, slot0 + of_four)) {
            uint8_t *page = kv_page(l, &p.s, group, slot0);
            const uint8_t *row = kv_v_row(l, page, v, slot0 + of_four);

            for (int32_t vec = (int32_t)threadIdx.x % SCORE_PARTS; vec * KV_VEC < l->v_dim;
                 vec += SCORE_PARTS) {
                float scale = kv_scale8_v(l, page, v, slot0 + of_four, vec);
                float x[KV_VEC];

                kv_load8(l->v_type, row, vec, x);
                for (int j = 0; j < KV_VEC; j++) {
                    sum += x[j] * scale * (x[j] * scale);
                }
            }
        }
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (threadIdx.x % SCORE_PARTS == 0) {
            length[of_four] = sqrtf(sum);
        }
        __syncthreads(); /* length: by every fourth thread, read by all */
        for (int32_t h = (int32_t)threadIdx.x / OPS_PAGE_SLOTS; h < share; h += SCORE_PARTS) {
            int32_t head = group * p.n_heads + v * share + h;
            float x = p.exponents[(size_t)head * p.max_slots + slot0 + in_page];

            score += (expf(x - p.tops[2 * head]) * p.tops[2 * head + 1] + p.floor) *
                     length[in_page];
        }
        __syncthreads(); /* length: read, before the next one's is written */
    }
    part[threadIdx.x / OPS_PAGE_SLOTS][in_page] = score;
    __syncthreads(); /* part: written by all, summed by the first */
    if (threadIdx.x < OPS_PAGE_SLOTS && slot0 + in_page < p.s.n_slots) {
        score = part[0][in_page];
        for (int i = 1; i < SCORE_PARTS; i++) {
            score += part[i][in_page];
        }
        /* statistics out of a file may be anything finite */
        p.s.score[(size_t)group * p.s.cap + slot0 + in_page] =
            slot_lives(&p, group, slot0 + in_page) && fabsf(score) < INFINITY ? score : 0.0f;
    }
}

/* ---- the operation -------------------------------------------------------------------------- */

int cuda_expect_score(struct cuda *cu, const struct cuda_expect *p, const struct expect_pairs *turn)
{
    unsigned pages = cuda_div_up((uint64_t)p->s.n_slots, OPS_PAGE_SLOTS);
    unsigned groups = (unsigned)p->layout.n_groups;
    unsigned heads = (unsigned)p->n_heads * groups;
    size_t tile = (size_t)expect_padded(p->layout.k_dim) * OPS_PAGE_SLOTS * sizeof(float);
    int r;

    r = cuda_expect_future(cu, p, turn);
    if (r == 0) {
        CUDA_LAUNCH_LARGE(cu, dim3(pages, groups * (unsigned)p->layout.k_heads), dim3(KEYS_THREADS),
                          tile, expect_keys, *p);
        r = cuda_launched(cu, "expect_keys");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(heads), dim3(SOFTMAX_THREADS), 0, expect_softmax, *p);
        r = cuda_launched(cu, "expect_softmax");
    }
    if (r == 0) {
        CUDA_LAUNCH(cu, dim3(pages, groups), dim3(SCORE_THREADS), 0, expect_scores, *p);
        r = cuda_launched(cu, "expect_scores");
    }
    return r;
}

int cuda_expect(struct backend *be, const struct ops_expect *o)
{
    struct cuda *cu = cuda_of(be);
    const struct ops_kv_layout *l = o->seq->kv.layout;
    struct cuda_expect p = {};
    struct expect_pairs turn = {};
    struct cuda_seqs seqs;
    int r = 0;

    if (!cu->limits.expect || o->n_q > cu->limits.max_heads || l->k_dim > cu->limits.max_head_dim ||
        l->k_dim > HEAD_MAX || l->v_dim > HEAD_MAX || o->rope->n_dims > l->k_dim ||
        o->seq->kv.n_slots > cu->limits.max_slots || !o->seq->kv.slot_pos || !o->seq->kv.score) {
        return -EINVAL;
    }
    (void)cuda_seqs_take(o->seq, 0, 1, &seqs);
    p.layout = seqs.layout;
    p.s = seqs.s[0];
    p.q = o->q;
    p.ldq = o->ldq;
    p.n_heads = o->n_q / l->n_groups;
    p.first = o->first;
    p.cov = o->cov;
    p.scale = o->scale;
    p.floor = o->floor;
    p.stats = o->stats;
    p.form = o->rope->form;
    p.n_pairs = o->rope->form == OPS_ROPE_NONE ? 0 : o->rope->n_dims / 2;
    p.mean = cu->scratch.expect_mean;
    p.square = cu->scratch.expect_square;
    p.tops = cu->scratch.expect_tops;
    p.exponents = reinterpret_cast<float *>(cu->scratch.order);
    p.max_slots = (cu->limits.max_slots + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS * OPS_PAGE_SLOTS;
    if (o->first < o->seq->n_rows) {
        r = cuda_expect_count(cu, &p, o->rope);
    }
    if (r < 0 || !o->score || p.s.n_slots == 0) {
        return r;
    }
    cuda_expect_turns(o, &turn);
    return cuda_queue_put_off(cu, &p, &turn) ? 0 : cuda_expect_score(cu, &p, &turn);
}
