/* SPDX-License-Identifier: Apache-2.0 */
/* Scores of slots by what queries to come are expected to be (kernels/ops_expect.h): at a prompt's
 * end, and every so many new tokens.
 *
 * expect_future   what queries to come are expected to be (expect_future.cu).
 * expect_keys     a block a page and K head: exponents of 64 keys by every query head that reads
 *                 them. The keys lie in shared memory as f32, by dim. A thread has 8 slots and 4
 *                 rows of the square: three loads of 16 bytes for 32 multiply-adds, and lanes lie
 *                 so that a half warp's loads are one line. A warp has rows [16 b, 16 b + 16) of
 *                 the square, b = w, 7 - w, 8 + w, ..., so that all four have as much of the
 *                 triangle, and brings the square's tiles of 16 x 16 by itself, 1 KiB at a time,
 *                 one ahead of the one that it multiplies, through heads without a barrier.
 * expect_softmax  a block a query head: the largest exponent and 1 / the sum.
 * expect_scores   a block a page and group: lengths of V, weights, their sum over heads.
 *
 * By counts: an exponent is k_dim^2 / 2 products and 8 k_dim more, because tiles on the diagonal
 * are whole, so 4,096 slots of 32 heads of 128 are 1.2 G, once every 64 tokens a layer
 * (pipit-kbench: "expected"). A warp has 610 instructions a tile (sm_90), 512 of them products;
 * four blocks of 43 KB are on a multiprocessor at once, 512 of them in all: some 52 us of an H200.
 * Shared memory gives 6 lines for the 8 clocks that a warp's products of a dim take. The square's
 * triangle is read once a page and head, 75 MB from L2, the keys once a page and K head.
 *
 * In a decode step scores are made behind the step (cuda_queue_put_off): its list of kernels stays
 * the same whichever layer has its turn, and so does its graph. Nothing of the step reads them. */

#include <cerrno>
#include <cmath>

#include "kernels/cuda/expect.cuh"

enum {
    KEYS_WARPS = 4,
    KEYS_THREADS = KEYS_WARPS * WARP,
    KEYS_BLOCKS = 4, /* a multiprocessor */
    KEYS_I = 4,      /* rows of the square that a thread has, of a warp's 16 */
    KEYS_SLOTS = 8,
    KEYS_VECS = 4, /* of a slot, loaded at once */
    SOFTMAX_THREADS = 1024,
    SCORE_THREADS = 256,
    SCORE_PARTS = SCORE_THREADS / OPS_PAGE_SLOTS,
    BLOCKS = 4, /* a multiprocessor: left alone ptxas spills, to keep to 32 registers */
};

/* ---- keys ----------------------------------------------------------------------------------- */

CUDA_INLINE bool slot_lives(const struct cuda_expect *p, int32_t group, int32_t slot)
{
    return slot < p->s.n_slots && kv_pos(&p->s, group, slot) >= 0;
}

/* Of a row, 8 elements each from i on, without their scale, zeros beyond n > 0 of them: all loads
 * are under way together, because the type is asked for once. */
template <int TYPE>
CUDA_INLINE void load_vecs(const uint8_t *row, int32_t i, int32_t n, float x[KEYS_VECS][KV_VEC])
{
#pragma unroll
    for (int v = 0; v < KEYS_VECS; v++) {
        kv_load8(TYPE, row, v < n ? i + v : i, x[v]);
    }
#pragma unroll
    for (int v = 1; v < KEYS_VECS; v++) {
#pragma unroll
        for (int j = 0; j < KV_VEC; j++) {
            x[v][j] = v < n ? x[v][j] : 0.0f;
        }
    }
}

/* A page's keys as stored, (padded, 64), zeros where there are none. A thread has a slot. */
CUDA_INLINE void keys_load(const struct cuda_expect *p, int32_t group, int32_t k_head,
                           int32_t slot0, float *keys)
{
    const struct cuda_layout *l = &p->layout;
    const int32_t padded = expect_padded(l->k_dim) / KV_VEC;
    const int32_t vecs = (l->k_dim + KV_VEC - 1) / KV_VEC;
    const int32_t in_page = (int32_t)threadIdx.x % OPS_PAGE_SLOTS;
    const bool lives = slot_lives(p, group, slot0 + in_page);
    uint8_t *page = lives ? kv_page(l, &p->s, group, slot0) : NULL;

    for (int32_t i = (int32_t)threadIdx.x / OPS_PAGE_SLOTS * KEYS_VECS; i < padded;
         i += KEYS_THREADS / OPS_PAGE_SLOTS * KEYS_VECS) {
        float x[KEYS_VECS][KV_VEC] = {};
        float scale = 0;

        if (lives && i < vecs) {
            const uint8_t *row = kv_k_row(l, page, k_head, slot0 + in_page);

            switch (l->k_type) {
            case OPS_KV_F32:
                load_vecs<OPS_KV_F32>(row, i, vecs - i, x);
                break;
            case OPS_KV_F16:
                load_vecs<OPS_KV_F16>(row, i, vecs - i, x);
                break;
            case OPS_KV_BF16:
                load_vecs<OPS_KV_BF16>(row, i, vecs - i, x);
                break;
            case OPS_KV_FP8:
                load_vecs<OPS_KV_FP8>(row, i, vecs - i, x);
                break;
            case OPS_KV_G4:
                load_vecs<OPS_KV_G4>(row, i, vecs - i, x);
                break;
            default:
                load_vecs<OPS_KV_I8>(row, i, vecs - i, x);
            }
            /* four vectors are what has a scale of its own */
            scale = kv_scale8_k(l, page, k_head, slot0 + in_page, i);
        }
#pragma unroll
        for (int v = 0; v < KEYS_VECS; v++) {
#pragma unroll
            for (int j = 0; j < KV_VEC; j++) {
                if (i + v < padded) {
                    keys[((i + v) * KV_VEC + j) * OPS_PAGE_SLOTS + in_page] = x[v][j] * scale;
                }
            }
        }
    }
}

/* A warp's own rows of the square, pass by pass. */
CUDA_INLINE int32_t keys_block(int32_t pass)
{
    int32_t warp = (int32_t)threadIdx.x / WARP;

    return pass * KEYS_WARPS + (pass % 2 == 0 ? warp : KEYS_WARPS - 1 - warp);
}

/* The tile that a warp brings next: its pass and place in that pass's rows of a head's square. */
struct keys_next {
    const float *square;
    int32_t heads; /* still to come */
    int32_t pass;
    int32_t j;
};

/* Brings it to the warp's shared memory; to be waited for. */
CUDA_INLINE void keys_fetch(struct keys_next *next, int32_t blocks, int32_t passes, float *to)
{
    const int32_t block = keys_block(next->pass);
    const int32_t at = (int32_t)threadIdx.x % WARP * 4;

    if (next->heads > 0) {
        const float *from = next->square + expect_tile(blocks, block, next->j) + at;

        async_copy16(to + at, from);
        async_copy16(to + at + EXPECT_TILE / 2, from + EXPECT_TILE / 2);
    }
    async_commit();
    if (next->j++ == block) {
        next->j = 0;
        if (++next->pass == passes) {
            next->pass = 0;
            next->heads--;
            next->square += blocks * blocks * EXPECT_TILE;
        }
    }
}

/* A thread's slots are four next to each other, and four of the page's other half. */
CUDA_INLINE int32_t slot_of(int32_t s)
{
    return s % 4 + s / 4 * (OPS_PAGE_SLOTS / 2);
}

/* 16 dims j of 8 slots' keys times 4 rows i of the square. */
CUDA_INLINE void keys_multiply(const float *keys, const float *tile, float sums[KEYS_I][KEYS_SLOTS])
{
#pragma unroll
    for (int j = 0; j < EXPECT_LANES; j++) {
        float4 c4 = *reinterpret_cast<const float4 *>(tile + j * EXPECT_LANES);
        float4 k0 = *reinterpret_cast<const float4 *>(keys + j * OPS_PAGE_SLOTS);
        float4 k1 =
            *reinterpret_cast<const float4 *>(keys + j * OPS_PAGE_SLOTS + OPS_PAGE_SLOTS / 2);
        const float c[KEYS_I] = {c4.x, c4.y, c4.z, c4.w};
        const float k[KEYS_SLOTS] = {k0.x, k0.y, k0.z, k0.w, k1.x, k1.y, k1.z, k1.w};

#pragma unroll
        for (int i = 0; i < KEYS_I; i++) {
#pragma unroll
            for (int s = 0; s < KEYS_SLOTS; s++) {
                sums[i][s] += c[i] * k[s];
            }
        }
    }
}

CUDA_KERNEL void __launch_bounds__(KEYS_THREADS, KEYS_BLOCKS) expect_keys(struct cuda_expect p)
{
    CUDA_SHARED(float, keys); /* then (warps, 2) tiles of the square */
    __shared__ float part[2][KEYS_WARPS][OPS_PAGE_SLOTS];
    const int32_t padded = expect_padded(p.layout.k_dim);
    const int32_t blocks = padded / EXPECT_LANES;
    const int32_t group = (int32_t)blockIdx.y / p.layout.k_heads;
    const int32_t k_head = (int32_t)blockIdx.y % p.layout.k_heads;
    const int32_t slot0 = (int32_t)blockIdx.x * OPS_PAGE_SLOTS;
    const int32_t share = p.n_heads / p.layout.k_heads;
    const int32_t head0 = group * p.n_heads + k_head * share;
    const int32_t warp = (int32_t)threadIdx.x / WARP;
    const int32_t lane = (int32_t)threadIdx.x % WARP;
    const int32_t at_i = (lane % 2 + lane / 16 * 2) * KEYS_I;
    const int32_t at_slot = lane / 2 % 8 * 4; /* and those 32 further */
    float *const tiles = keys + padded * OPS_PAGE_SLOTS + warp * 2 * EXPECT_TILE;
    struct keys_next next = {p.square + (size_t)head0 * padded * padded, p.cov ? share : 0, 0, 0};
    int32_t passes = (blocks + KEYS_WARPS - 1) / KEYS_WARPS;
    int32_t turn = 0; /* which of the two tiles */

    if (group_stats(&p, group)[0] == 0) {
        return;
    }
    passes -= keys_block(passes - 1) >= blocks; /* only the last may lack some */
    if (passes > 0) {
        keys_fetch(&next, blocks, passes, tiles);
    }
    keys_load(&p, group, k_head, slot0, keys);
    __syncthreads(); /* keys: written by all, read by all */
    for (int32_t h = 0; h < share; h++) {
        const float *mean = p.mean + (size_t)(head0 + h) * padded;
        float x[KEYS_SLOTS] = {};

        for (int32_t pass = 0; pass < passes; pass++) {
            const int32_t block = keys_block(pass);
            const float *own = keys + (block * EXPECT_LANES + at_i) * OPS_PAGE_SLOTS + at_slot;
            float sums[KEYS_I][KEYS_SLOTS];

#pragma unroll
            for (int i = 0; i < KEYS_I; i++) {
                float m = mean[block * EXPECT_LANES + at_i + i];

#pragma unroll
                for (int s = 0; s < KEYS_SLOTS; s++) {
                    sums[i][s] = m;
                }
            }
            for (int32_t j = 0; j <= block && p.cov; j++) {
                keys_fetch(&next, blocks, passes, tiles + (turn ^ 1) * EXPECT_TILE);
                async_wait<1>();
                __syncwarp(); /* the tile: a piece by each lane, read by all */
                keys_multiply(keys + j * EXPECT_LANES * OPS_PAGE_SLOTS + at_slot,
                              tiles + turn * EXPECT_TILE + at_i, sums);
                __syncwarp(); /* read, before the next but one is written */
                turn ^= 1;
            }
#pragma unroll
            for (int i = 0; i < KEYS_I; i++) {
#pragma unroll
                for (int s = 0; s < KEYS_SLOTS; s++) {
                    x[s] += sums[i][s] * own[i * OPS_PAGE_SLOTS + slot_of(s)];
                }
            }
        }
#pragma unroll
        for (int s = 0; s < KEYS_SLOTS; s++) {
            x[s] += __shfl_xor_sync(ALL_LANES, x[s], 1);
            x[s] += __shfl_xor_sync(ALL_LANES, x[s], 16);
            if (at_i == 0) {
                part[h % 2][warp][at_slot + slot_of(s)] = x[s];
            }
        }
        __syncthreads(); /* part: written by warps, summed by the first; read a head before last */
        if (threadIdx.x < OPS_PAGE_SLOTS) {
            float sum = part[h % 2][0][threadIdx.x];

            for (int i = 1; i < KEYS_WARPS; i++) {
                sum += part[h % 2][i][threadIdx.x];
            }
            p.exponents[(size_t)(head0 + h) * p.max_slots + slot0 + threadIdx.x] =
                slot_lives(&p, group, slot0 + (int32_t)threadIdx.x) ? sum : -INFINITY;
        }
    }
}

CUDA_KERNEL void __launch_bounds__(SOFTMAX_THREADS, 1) expect_softmax(struct cuda_expect p)
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

            score +=
                (expf(x - p.tops[2 * head]) * p.tops[2 * head + 1] + p.floor) * length[in_page];
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
    size_t shared =
        ((size_t)expect_padded(p->layout.k_dim) * OPS_PAGE_SLOTS + KEYS_WARPS * 2 * EXPECT_TILE) *
        sizeof(float);
    int r;

    r = cuda_expect_future(cu, p, turn);
    if (r == 0) {
        CUDA_LAUNCH_LARGE(cu, dim3(pages, groups * (unsigned)p->layout.k_heads), dim3(KEYS_THREADS),
                          shared, expect_keys, *p);
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
