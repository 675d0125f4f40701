/* SPDX-License-Identifier: Apache-2.0 */
/* Per-head norm, RoPE, and the store of K and V with quantisation in the store.
 *
 * A warp takes one head of one row: q heads, then K heads, then V heads of its sequence. The head
 * lies in shared memory (1 KB a warp) so that both forms of RoPE find their pairs. Bytes: q twice,
 * k and v once, the slot once.
 *
 * Angles: position times frequency in double, reduced to half turns there, sine and cosine in f32
 * (sincospi): right to f32 at any position, and a double product costs one instruction. Codes and
 * scales are those of kernels/kv_code.h to the bit.
 *
 * Where a ring is shorter than the sequence's rows, rows that a later one overwrites are left out;
 * so rows may be stored in any order. A negative victim (none found) stores nothing.
 *
 * Sums of V: what a victim's slot held is taken away by a kernel before (kv_sum.cu), what is stored
 * is added by the warp that stores it. */

#include <cerrno>

#include "kernels/cuda/kv.cuh"

enum { STORE_THREADS = 128, HEAD_MAX = 256 };

struct store {
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
};

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
        sum += (head[i] - mean) * (head[i] - mean);
    }
    inv = 1.0f / sqrtf(warp_sum(sum) / (float)n + norm->eps);
    for (int32_t i = lane; i < n; i += WARP) {
        head[i] = (head[i] - mean) * inv * norm->w[i] + (norm->b ? norm->b[i] : 0.0f);
    }
    __syncwarp(); /* head: each lane wrote its own, others read it next */
}

CUDA_INLINE void rope_head(const struct store *p, float *head, int32_t pos)
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
        head[a] = x0 * c - x1 * s;
        head[b] = x0 * s + x1 * c;
    }
    __syncwarp(); /* head: pairs written above, read in another order next */
}

/* kv_code_encode() of one head to a row of a page; what pads the row becomes 0. */
CUDA_INLINE void encode_head(int32_t type, const float *head, int32_t n, uint8_t *row,
                             uint16_t *scale_at)
{
    int lane = (int)threadIdx.x % WARP;
    int32_t padded = (n + KV_VEC - 1) / KV_VEC * KV_VEC;
    float inverse = 0;

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

CUDA_INLINE void store_head(const struct store *p, const struct cuda_seq *s, int32_t i,
                            int32_t head, bool is_k, const float *values)
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
        encode_head(l->k_type, values, l->k_dim, kv_k_row(l, page, head % of_group, slot),
                    kv_scale(page, l->k_scale_at, head % of_group, slot));
        __syncwarp(); /* the row and its scale: written by all lanes, read again below */
        kv_rank_row(l, page, head % of_group, slot);
    } else {
        encode_head(l->v_type, values, l->v_dim, kv_v_row(l, page, head % of_group, slot),
                    kv_scale(page, l->v_scale_at, head % of_group, slot));
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

CUDA_KERNEL void __launch_bounds__(STORE_THREADS) rope_store(struct store p)
{
    __shared__ float heads[STORE_THREADS / WARP][HEAD_MAX];
    int lane = (int)threadIdx.x % WARP;
    int32_t index = (int32_t)(blockIdx.y * (STORE_THREADS / WARP) + threadIdx.x / WARP);
    float *head = heads[threadIdx.x / WARP];
    int32_t row = p.seqs.s[0].row0 + (int32_t)blockIdx.x; /* y ends at 65,535 */
    const struct cuda_seq *s = p.seqs.s;
    bool is_q = index < p.n_q;
    bool is_k = !is_q && index < p.n_q + p.n_k;
    int32_t h = is_q ? index : is_k ? index - p.n_q : index - p.n_q - p.n_k;
    int32_t dim = is_q || is_k ? p.k_dim : p.seqs.layout.v_dim;
    const float *from;

    if (index >= p.n_q + p.n_k + p.n_v) {
        return;
    }
    while (row >= s->row0 + s->n_rows) {
        s++;
    }
    from = is_q   ? p.q + (size_t)row * p.ldq
           : is_k ? p.k + (size_t)row * p.ldk
                  : p.v + (size_t)row * p.ldv;
    for (int32_t i = lane; i < dim; i += WARP) {
        head[i] = from[(size_t)h * dim + i];
    }
    __syncwarp(); /* head: loaded above, read by other lanes next */
    if (is_q || is_k) {
        norm_head(is_q ? &p.q_norm : &p.k_norm, head, dim);
        rope_head(&p, head, s->pos0 + row - s->row0);
    }
    if (!is_q) {
        store_head(&p, s, row - s->row0, h, is_k, head);
        return;
    }
    for (int32_t i = lane; i < dim; i += WARP) {
        p.q[(size_t)row * p.ldq + (size_t)h * dim + i] = head[i];
    }
}

static int check(const struct cuda *cu, const struct ops_rope_store *p)
{
    if (p->k_dim > cu->limits.max_head_dim || p->k_dim > HEAD_MAX ||
        (p->rope.form != OPS_ROPE_NONE && p->rope.n_dims > 2 * CUDA_ROPE_PAIRS)) {
        return -EINVAL;
    }
    for (int32_t i = 0; i < p->n_seqs && p->n_k > 0; i++) {
        const struct ops_kv_layout *l = p->seqs[i].kv.layout;

        if (l->k_dim != p->k_dim || l->n_groups * l->k_heads != p->n_k ||
            l->n_groups * l->v_heads != p->n_v || l->v_dim > HEAD_MAX) {
            return -EINVAL;
        }
    }
    return 0;
}

int cuda_rope_store(struct backend *be, const struct ops_rope_store *p)
{
    struct cuda *cu = cuda_of(be);
    struct store s = {};
    int r = check(cu, p);

    s.q = p->q;
    s.k = p->k;
    s.v = p->v;
    s.ldq = p->ldq;
    s.ldk = p->ldk;
    s.ldv = p->ldv;
    s.n_q = p->n_q;
    s.n_k = p->n_k;
    s.n_v = p->n_v;
    s.k_dim = p->k_dim;
    s.q_norm = cuda_norm_of(&p->q_norm);
    s.k_norm = cuda_norm_of(&p->k_norm);
    s.form = p->rope.form;
    s.n_dims = p->rope.n_dims;
    s.mscale = p->rope.mscale;
    s.n_decode = p->n_v > 0 ? p->rows.n_decode : 0;
    for (int32_t i = 0; i < p->rope.n_dims / 2 && r == 0 && s.form != OPS_ROPE_NONE; i++) {
        s.inv_freq[i] = p->rope.inv_freq[i];
    }
    for (int32_t i = 0; i < p->n_seqs && r == 0;) {
        int32_t rows = 0;

        i += cuda_seqs_take(p->seqs, i, p->n_seqs, &s.seqs);
        for (int32_t j = 0; j < s.seqs.n; j++) {
            rows += s.seqs.s[j].n_rows;
        }
        r = cuda_kv_sum_drop(cu, &s.seqs, s.n_decode);
        if (r == 0 && rows > 0 && s.n_q + s.n_k + s.n_v > 0) {
            CUDA_LAUNCH(cu,
                        dim3((unsigned)rows,
                             cuda_div_up((uint64_t)(s.n_q + s.n_k + s.n_v), STORE_THREADS / WARP)),
                        dim3(STORE_THREADS), 0, rope_store, s);
            r = cuda_launched(cu, "rope_store");
        }
    }
    return r;
}
