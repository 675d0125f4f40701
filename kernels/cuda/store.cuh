/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_STORE_CUH
#define PIPIT_KERNELS_CUDA_STORE_CUH

/* One head of one row, by one warp: norm, RoPE, and the store of K and V with quantisation in the
 * store. The head lies in shared memory, so that both forms of RoPE find their pairs. Used by
 * rope_store and by the products of q, k and v that store what they give, which must come to the
 * same bits however each is compiled: products and sums are rounded one by one.
 *
 * Angles: position times frequency in double, reduced to half turns there, sine and cosine in f32
 * (sincospi): right to f32 at any position, and a double product costs one instruction. Codes and
 * scales are those of kernels/kv_code.h to the bit.
 *
 * Where a ring is shorter than the sequence's rows, rows that a later one overwrites are left out;
 * so rows may be stored in any order. A negative victim (none found) stores nothing.
 *
 * FOUR: caches of four bits, transformed V, the latest tokens. The products' kernels have no
 * registers for these: such heads are stored by rope_store.
 *
 * Sums of V: what a victim's slot held is taken away by a kernel before (kv_sum.cu), what is stored
 * is added by the warp that stores it. */

#include "kernels/cuda/kv_four.cuh"
#include "kernels/cuda/kv_part.cuh"

enum { HEAD_MAX = 256 };

enum store_kind { STORE_Q, STORE_K, STORE_V };

struct cuda_store {
    struct cuda_seqs seqs;
    float *q;
    const float *k;
    const float *v;
    int32_t ldq, ldk, ldv;
    int32_t n_q, n_k, n_v, k_dim;
    struct cuda_norm q_norm, k_norm;
    int32_t form, n_dims;
    int32_t n_decode; /* rows that keep v_sum */
    float mscale;
    float inv_freq[CUDA_ROPE_PAIRS];
    /* of products that store (gemm_heads.cuh): */
    int32_t first; /* enum store_kind of the product's first part */
    uint32_t
        *arrived; /* (n_q + n_k + n_v) blocks that have written of a head; 0 between launches */
};

/* Everything but seqs. */
struct cuda_store cuda_store_of(const struct ops_rope_store *p);
int cuda_store_check(const struct cuda *cu, const struct ops_rope_store *p);

CUDA_INLINE void norm_head(const struct cuda_norm *norm, float *head, int32_t n)
{
    int lane = (int)threadIdx.x % WARP;
    float mean = 0;
    float sum = 0;
    float inv;

    if (!norm->w) {
        return;
    }
    if (norm->layer) {
        for (int32_t i = lane; i < n; i += WARP) {
            sum += head[i];
        }
        mean = warp_sum(sum) / (float)n;
        sum = 0;
    }
    for (int32_t i = lane; i < n; i += WARP) {
        float d = __fsub_rn(head[i], mean);

        sum = __fadd_rn(sum, __fmul_rn(d, d));
    }
    inv = 1.0f / sqrtf(__fadd_rn(warp_sum(sum) / (float)n, norm->eps));
    for (int32_t i = lane; i < n; i += WARP) {
        head[i] = __fadd_rn(__fmul_rn(__fmul_rn(__fsub_rn(head[i], mean), inv), norm->w[i]),
                            norm->b ? norm->b[i] : 0.0f);
    }
    __syncwarp(); /* head: each lane wrote its own, others read it next */
}

CUDA_INLINE void rope_head(const struct cuda_store *p, float *head, int32_t pos)
{
    int32_t half = p->n_dims / 2;

    if (p->form == OPS_ROPE_NONE) {
        return;
    }
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < half; i += WARP) {
        double turns = (double)pos * (double)p->inv_freq[i] * 0.31830988618379067154; /* of pi */
        float c;
        float s;
        int32_t a = p->form == OPS_ROPE_NORM ? 2 * i : i;
        int32_t b = p->form == OPS_ROPE_NORM ? 2 * i + 1 : i + half;
        float x0 = head[a];
        float x1 = head[b];

        sincospif((float)(turns - 2.0 * rint(turns * 0.5)), &s, &c);
        c *= p->mscale;
        s *= p->mscale;
        head[a] = __fsub_rn(__fmul_rn(x0, c), __fmul_rn(x1, s));
        head[b] = __fadd_rn(__fmul_rn(x0, s), __fmul_rn(x1, c));
    }
    __syncwarp(); /* head: pairs written above, read in another order next */
}

/* kv_code_encode() of one head to a row of a page; what pads the row becomes 0. FOUR: or in four
 * bits. */
template <bool FOUR>
CUDA_INLINE void encode_head(int32_t type, const float *head, int32_t n, uint8_t *row,
                             uint16_t *scale_at)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t padded = (n + KV_VEC - 1) / KV_VEC * KV_VEC;
    float inverse = 0;

    if (FOUR && kv_four(type)) {
        four_encode(head, n, row, scale_at);
        return;
    }
    if (kv_has_scale(type)) {
        float top = 0;
        uint16_t scale;

        for (int32_t i = lane; i < n; i += WARP) {
            top = fmaxf(top, fabsf(head[i]));
        }
        scale = kv_code_scale(type, warp_max(top));
        inverse = kv_code_inverse(type, scale);
        if (lane == 0) {
            *scale_at = scale;
        }
    }
    for (int32_t i = lane; i < padded; i += WARP) {
        float x = i < n ? head[i] : 0.0f;
        float limit = type == OPS_KV_F16 ? 65504.0f : 0x1.fep127f;

        switch (type) {
        case OPS_KV_F32:
            reinterpret_cast<float *>(row)[i] = x;
            break;
        case OPS_KV_F16:
            reinterpret_cast<uint16_t *>(row)[i] = f16_of_f32(fminf(fmaxf(x, -limit), limit));
            break;
        case OPS_KV_BF16:
            reinterpret_cast<uint16_t *>(row)[i] = bf16_of_f32(fminf(fmaxf(x, -limit), limit));
            break;
        case OPS_KV_FP8:
            row[i] = fp8_of_f32(__fmul_rn(x, inverse));
            break;
        default:
            row[i] = (uint8_t)(int8_t)fminf(fmaxf(rintf(__fmul_rn(x, inverse)), -127.0f), 127.0f);
        }
    }
}

/* The same in 8 bits to the latest tokens' entry, where row i of the sequence writes one. */
CUDA_INLINE void store_latest(const struct cuda_layout *l, const struct cuda_seq *s, int32_t group,
                              int32_t i, int32_t h, bool is_k, const float *values)
{
    int32_t n = is_k ? l->k_dim : l->v_dim;

    if (s->latest && kv_four(is_k ? l->k_type : l->v_type) &&
        i + OPS_LATEST_ENTRIES >= s->n_rows) {
        uint8_t *entry = latest_head(l, s, group, s->pos0 + i, is_k, h);

        encode_head<false>(OPS_KV_I8, values, n, entry, reinterpret_cast<uint16_t *>(entry + n));
    }
}

/* `values`: shared, free afterwards (its own partial key is made there). */
template <bool FOUR>
CUDA_INLINE void store_head(const struct cuda_store *p, const struct cuda_seq *s, int32_t i,
                            int32_t head, bool is_k, float *values)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t of_group = is_k ? l->k_heads : l->v_heads;
    int32_t group = head / of_group;
    int32_t slot = s->victim ? s->victim[group] : s->ring ? (s->slot0 + i) % s->ring : s->slot0 + i;
    uint8_t *page;

    if (slot < 0 || (s->ring > 0 && i + s->ring < s->n_rows)) {
        return;
    }
    page = kv_page(l, s, group, slot);
    if (is_k) {
        for (int32_t d = (int32_t)threadIdx.x % WARP; d < l->k_dim && s->center; d += WARP) {
            values[d] = __fsub_rn(values[d], s->center[(size_t)head * l->k_dim + d]);
        }
        for (int32_t d = (int32_t)threadIdx.x % WARP; d < l->k_dim && s->balance; d += WARP) {
            values[d] = __fmul_rn(values[d], s->balance[(size_t)head * l->k_dim + d]);
        }
        __syncwarp(); /* values: each lane wrote its own, others read them next */
        if (s->k_hadamard) {
            hadamard_by_warp(values, l->k_dim);
        }
        encode_head<FOUR>(l->k_type, values, l->k_dim, kv_k_row(l, page, head % of_group, slot),
                          FOUR ? kv_scales(page, l->k_scale_at, l->k_scales, head % of_group, slot)
                               : kv_scale(page, l->k_scale_at, head % of_group, slot));
        if (FOUR) {
            store_latest(l, s, group, i, head % of_group, true, values);
        }
        __syncwarp(); /* the row and its scale: written by all lanes, read again below */
        kv_rank_row(l, page, head % of_group, slot);
        kv_part_row(l, s, page, group, head % of_group, slot, values);
    } else {
        if (FOUR && s->v_hadamard) {
            hadamard_by_warp(values, l->v_dim);
        }
        encode_head<FOUR>(l->v_type, values, l->v_dim, kv_v_row(l, page, head % of_group, slot),
                          FOUR ? kv_scales(page, l->v_scale_at, l->v_scales, head % of_group, slot)
                               : kv_scale(page, l->v_scale_at, head % of_group, slot));
        if (FOUR) {
            store_latest(l, s, group, i, head % of_group, false, values);
        }
        if (s->v_sum && s->row0 + i < p->n_decode) {
            const uint8_t *row = kv_v_row(l, page, head % of_group, slot);
            float *sum = s->v_sum + (size_t)head * l->v_dim;

            __syncwarp(); /* the row and its scale: written by all lanes, read again below */
            float scale = kv_scale_of(l->v_type, page, l->v_scale_at, head % of_group, slot);

            for (int32_t d = (int32_t)threadIdx.x % WARP; d < l->v_dim; d += WARP) {
                sum[d] += kv_element(l->v_type, row, d, scale);
            }
        }
    }
    if (is_k && head % of_group == 0 && threadIdx.x % WARP == 0) {
        if (s->slot_pos) {
            s->slot_pos[(size_t)group * s->cap + slot] = s->pos0 + i;
        }
        if (s->score) {
            s->score[(size_t)group * s->cap + slot] = 0.0f;
        }
    }
}

CUDA_INLINE int32_t store_heads(const struct cuda_store *p, int32_t kind)
{
    return kind == STORE_Q ? p->n_q : kind == STORE_K ? p->n_k : p->n_v;
}

CUDA_INLINE int32_t store_dim(const struct cuda_store *p, int32_t kind)
{
    return kind == STORE_V ? p->seqs.layout.v_dim : p->k_dim;
}

/* Of a row, as the product gave it. */
CUDA_INLINE const float *store_from(const struct cuda_store *p, int32_t kind, int32_t row,
                                    int32_t h)
{
    return kind == STORE_Q   ? p->q + (size_t)row * p->ldq + (size_t)h * p->k_dim
           : kind == STORE_K ? p->k + (size_t)row * p->ldk + (size_t)h * p->k_dim
                             : p->v + (size_t)row * p->ldv + (size_t)h * p->seqs.layout.v_dim;
}

/* To its place, from `head`, which it changes; the warp's lanes see all of it. */
template <bool FOUR>
CUDA_INLINE void store_finish(const struct cuda_store *p, int32_t kind, int32_t row, int32_t h,
                              float *head)
{
    const struct cuda_seq *s = p->seqs.s;

    while (row >= s->row0 + s->n_rows) {
        s++;
    }
    if (kind != STORE_V) {
        norm_head(kind == STORE_Q ? &p->q_norm : &p->k_norm, head, p->k_dim);
        rope_head(p, head, s->pos0 + row - s->row0);
    }
    if (kind != STORE_Q) {
        store_head<FOUR>(p, s, row - s->row0, h, kind == STORE_K, head);
        return;
    }
    if (s->balance) {
        int32_t share = p->n_q / (p->seqs.layout.n_groups * p->seqs.layout.k_heads);
        const float *balance = s->balance + (size_t)(h / share) * p->k_dim;

        for (int32_t i = (int32_t)threadIdx.x % WARP; i < p->k_dim; i += WARP) {
            head[i] = head[i] / balance[i];
        }
        __syncwarp(); /* head: each lane wrote its own, others read them next */
    }
    if (s->k_hadamard) {
        hadamard_by_warp(head, p->k_dim);
    }
    for (int32_t i = (int32_t)threadIdx.x % WARP; i < p->k_dim; i += WARP) {
        p->q[(size_t)row * p->ldq + (size_t)h * p->k_dim + i] = head[i];
    }
}

#endif
