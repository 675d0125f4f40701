/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH
#define PIPIT_KERNELS_CUDA_ATTENTION_STREAM_CUH

/* The kernel of attention_stream.cu, which says how it works. */

#include "kernels/cuda/attention_stream_tile.cuh"

/* ---- the end -------------------------------------------------------------------------------- */

/* Warps' sums, added in their order, to the chunk's part; or, with one chunk, to the row. */
template <int KF, int VF, int DIM>
CUDA_INLINE void stream_block_merge(const struct attend *p, const struct stream_block *b,
                                    struct stream_state *st,
                                    float acc[stream_shape<KF, VF, DIM>::SUMS][4], float *memory)
{
    using shape = stream_shape<KF, VF, DIM>;
    using value = typename shape::value;
    constexpr int VEC = shape::V_VEC;
    constexpr int HEADS = STREAM_HEADS;
    int32_t v_dim = p->seqs.layout.v_dim;
    int warps = (int)blockDim.x / WARP;
    int warp = (int)threadIdx.x / WARP;
    int lane = (int)threadIdx.x % WARP;
    float *tops = memory;
    float *sums = tops + warps * HEADS;
    float *values = sums + warps * HEADS;
    float unit = shape::BF16 ? 1.0f : st->unit / 16384.0f * value::UNIT;

    __syncthreads(); /* memory: stages, read by all */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = st->sum[h];

        for (int m = 4; m < WARP; m <<= 1) {
            sum += __shfl_xor_sync(ALL_LANES, sum, m);
        }
        if (lane < 4) {
            tops[warp * HEADS + lane * 2 + h] = st->top[h];
            sums[warp * HEADS + lane * 2 + h] = sum;
        }
    }
    __syncthreads(); /* tops, sums: written by a few, read by all */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int32_t head = lane % 4 * 2 + h;
        float top = -INFINITY;
        float *to = values + (warp * HEADS + head) * shape::OUT_LEN;
        float factor;

#pragma unroll 1
        for (int w = 0; w < warps; w++) {
            top = fmaxf(top, tops[w * HEADS + head]);
        }
        factor = st->top[h] > -INFINITY ? expf(st->top[h] - top) * unit : 0.0f;
        if constexpr (value::HALVES) { /* eight lanes' dims in a row */
#pragma unroll
            for (int i = 0; i < shape::SUMS * 2; i++) {
                int32_t d = i * 8 + lane / 4;

                if (head < b->n_heads && d < v_dim) {
                    to[d] = acc[i / 2][i % 2 * 2 + h] * factor;
                }
            }
        } else { /* four dims in a row */
#pragma unroll
            for (int i = 0; i < shape::SUMS; i += 2) {
                int32_t d = (i / (VEC / 2) * 8 + lane / 4) * VEC + i % (VEC / 2) * 2;

                if (head < b->n_heads && d < v_dim) {
                    *reinterpret_cast<float4 *>(to + d) =
                        make_float4(acc[i][h] * factor, acc[i][2 + h] * factor,
                                    acc[i + 1][h] * factor, acc[i + 1][2 + h] * factor);
                }
            }
        }
    }
    __syncthreads(); /* values: written by all, read by all */
#pragma unroll 1
    for (int32_t h = warp; h < b->n_heads; h += warps) {
        int32_t head = b->head0 + h;
        float *part =
            p->part + ((size_t)(b->seq * p->n_q + head) * p->n_chunks + b->chunk) * p->part_len;
        float *out = p->out + (size_t)b->s->row0 * p->ldo + (size_t)head * v_dim;
        float own = lane < warps ? tops[lane * HEADS + h] : -INFINITY;
        float top = warp_max(own);
        float sum = own > -INFINITY ? expf(own - top) * sums[lane * HEADS + h] : 0.0f;
        float inv;

        sum = warp_sum(sum);
        inv = attend_with_sink(p, head, top, sum > 0 ? 1.0f / sum : 0.0f);
        if (b->n_parts > 1 && lane == 0) {
            part[0] = top;
            part[1] = sum;
        }
#pragma unroll 1
        for (int32_t d = lane * 4; d < v_dim; d += 4 * WARP) {
            float4 v = make_float4(0, 0, 0, 0);

#pragma unroll 4
            for (int w = 0; w < warps; w++) {
                float4 a = *reinterpret_cast<const float4 *>(values +
                                                             (w * HEADS + h) * shape::OUT_LEN + d);

                v.x += a.x, v.y += a.y, v.z += a.z, v.w += a.w;
            }
            if (b->n_parts == 1) {
                out[d] = v.x * inv, out[d + 1] = v.y * inv;
                out[d + 2] = v.z * inv, out[d + 3] = v.w * inv;
            } else {
                *reinterpret_cast<float4 *>(part + 4 + d) = v;
            }
        }
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

/* This block's; false: it has no part. */
CUDA_INLINE bool stream_block_of(const struct attend *p, const struct stream_plan *plan,
                                 struct stream_block *b)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t sets = (plan->share + STREAM_HEADS - 1) / STREAM_HEADS;
    int32_t k = (int32_t)blockIdx.y;
    int32_t set = 0;
    int32_t lane = (int32_t)threadIdx.x % WARP;
    int32_t chunk;
    int32_t from;
    int32_t to;

    b->seq = (int32_t)blockIdx.z;
    b->s = &p->seqs.s[b->seq];
    chunk = stream_chunk(b->s->n_slots, plan);
    b->chunk = (int32_t)blockIdx.x;
    b->n_parts = stream_parts(b->s, plan);
    if (b->chunk >= b->n_parts) {
        return false;
    }
    if (sets > 1) {
        set = k % sets;
        k /= sets;
    }
    b->head0 = k * plan->share + set * STREAM_HEADS;
    b->n_heads = min((int32_t)STREAM_HEADS, plan->share - set * STREAM_HEADS);
    b->pos0 = b->s->pos0;
    b->n_slots = b->s->n_slots;
    b->group = 0;
    b->k_head = k;
    if (l->n_groups > 1) {
        b->group = k / l->k_heads;
        b->k_head = k % l->k_heads;
    }
    b->observed = attend_observed(p, b->seq);
    b->latest = b->chunk == stream_chunks(b->s->n_slots, chunk);
    if (b->latest) {
        b->tile = b->tile_end = b->first_page = 0;
        b->page = 0;
        return true;
    }
    b->seen_from = p->window > 0 ? max(b->pos0 - p->window + 1, 0) : 0;
    to = b->pos0 + 1;
    if (b->s->latest) {
        to = min(to, max(b->pos0 - OPS_LATEST + 1, b->s->latest_from));
    }
    to = max(to, b->seen_from);
    b->n_seen = to - b->seen_from;
    b->tile_whole = (b->seen_from + STREAM_TILE - 1) / STREAM_TILE;
    b->tile_whole_end = min(to, b->n_slots) / STREAM_TILE;
    b->ragged = b->s->slot_pos || b->observed || p->softcap > 0 || p->alibi_max > 0;
    from = b->chunk * chunk;
    to = min(from + chunk, b->n_slots);
    b->first_page = from / OPS_PAGE_SLOTS;
    b->page = 0;
    if (b->first_page + lane < (to + OPS_PAGE_SLOTS - 1) / OPS_PAGE_SLOTS) {
        b->page = b->s->pages[(size_t)b->group * b->s->max_pages + b->first_page + lane];
    }
    b->tile = from / STREAM_TILE + (int32_t)threadIdx.x / WARP;
    if (!b->s->slot_pos && !b->observed) { /* a slot is its position: some tiles nobody sees */
        to = min(to, b->seen_from + b->n_seen);
        while (b->tile < b->seen_from / STREAM_TILE) { /* a tile's warp stays the same */
            b->tile += (int32_t)blockDim.x / WARP;
        }
    }
    b->tile_end = (to + STREAM_TILE - 1) / STREAM_TILE;
    return true;
}

/* Blocks of a multiprocessor that registers shall suffice for. Rows of 256 bytes have blocks of
 * half as many warps. */
template <int KF, int DIM> static constexpr int stream_blocks(void)
{
    return DIM > 128 || stream_side<KF, DIM>::ROW == 256 ? 1 : 2;
}

template <int KF, int VF, int DIM, int STAGES>
CUDA_KERNEL void __launch_bounds__(STREAM_WARPS_MAX *WARP, stream_blocks<KF, DIM>())
    decode_stream(struct attend p, struct stream_plan plan)
{
    using shape = stream_shape<KF, VF, DIM>;
    CUDA_SHARED(uint8_t, memory);
    int lane = (int)threadIdx.x % WARP;
    int warps = (int)blockDim.x / WARP;
    int warp = (int)threadIdx.x / WARP;
    float *factors = reinterpret_cast<float *>(memory);
    uint4 *q = reinterpret_cast<uint4 *>(memory + STREAM_HEADS * 4);
    uint8_t *rest = memory + shape::q_bytes;
    uint8_t *stage = rest + (int)threadIdx.x / WARP * STAGES * shape::STAGE;
    float acc[shape::SUMS][4] = {};
    struct stream_state st = {{-INFINITY, -INFINITY}, {0, 0}, 1.0f, 16384.0f};
    float v[(DIM + 127) / 128][4];
    struct stream_queries<shape> queries;
    struct stream_lane places;
    struct stream_source source;
    struct stream_block b;
    bool mine = false;
    int n = 0; /* stages asked for */

    if (shape::value::SCALES > 0) { /* f16's smallest */
        st.unit = 5.9604645e-8f;
        st.times = 16384.0f * stream_inverse(st.unit);
    }
    grid_begin();
    if (!shape::key::FOUR && p.seqs.layout.k_row < shape::K_LOADS * 64) {
        stream_clear<KF, VF, DIM>(&p, STAGES, stage);
    }
    if (plan.ahead) { /* tiles that no row of the step is stored in, and pages, the host's */
        int32_t old = p.seqs.s[blockIdx.z].slot0 / STREAM_TILE;

        grid_ahead(true);
        mine = stream_block_of(&p, &plan, &b);
        source = stream_source_of<KF, VF, DIM>(&p, &b);
#pragma unroll 1
        for (; mine && n < STAGES && b.tile + n * warps < min(old, b.tile_end); n++) {
            stream_bring<KF, VF, DIM>(&p, &b, &source, b.tile + n * warps,
                                      stage + n * shape::STAGE);
            async_commit();
        }
        grid_ahead(false);
    }
    grid_wait();
    if (!plan.ahead) {
        mine = stream_block_of(&p, &plan, &b);
        source = stream_source_of<KF, VF, DIM>(&p, &b);
    }
    if (!mine) {
        return;
    }
    static_assert(!shape::value::FOUR ||
                      sizeof(struct stream_latest_memory<DIM>) <= shape::shared(4, 3),
                  "it fits");
    if (shape::value::FOUR && b.latest) {
        stream_latest<DIM>(&p, &b, memory);
        return;
    }
    stream_query_load<DIM>(&p, &b, warp, v); /* on its way while tiles are asked for */
#pragma unroll 1
    for (; n < STAGES; n++) {
        if (b.tile + n * warps < b.tile_end) {
            stream_bring<KF, VF, DIM>(&p, &b, &source, b.tile + n * warps,
                                      stage + n * shape::STAGE);
        }
        async_commit();
    }
    stream_query_store<KF, VF, DIM>(warp, v, q, factors);
#pragma unroll 1
    for (int h = warp + warps; h < STREAM_HEADS; h += warps) {
        stream_query_load<DIM>(&p, &b, h, v);
        stream_query_store<KF, VF, DIM>(h, v, q, factors);
    }
    __syncthreads(); /* q, factors: written by a warp a head, read by all */
    stream_queries_of<shape>(q, &queries);
    stream_lane_places<shape>(&places);
    places.plain = !(p.softcap > 0 || p.alibi_max > 0);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        places.factor[h] = (shape::BF16 ? 1.0f : factors[lane % 4 * 2 + h] * shape::key::UNIT) *
                           (places.plain ? p.scale : 1.0f);
        places.slope[h] = attend_slope(&p, b.head0 + lane % 4 * 2 + h);
    }
    for (int32_t tile = b.tile, at = 0; tile < b.tile_end; tile += warps) {
        uint8_t *here = stage + at * shape::STAGE;

        async_wait<STAGES - 1>();
        __syncwarp(); /* the tile: copied by all lanes, read by all */
        stream_tile<KF, VF, DIM>(&p, &b, tile, here, &queries, &places, &st, acc);
        __syncwarp(); /* the tile: read by all, another comes in its place */
        if (tile + STAGES * warps < b.tile_end) {
            stream_bring<KF, VF, DIM>(&p, &b, &source, tile + STAGES * warps, here);
        }
        async_commit();
        at = at + 1 < STAGES ? at + 1 : 0;
    }
    stream_block_merge<KF, VF, DIM>(&p, &b, &st, acc, reinterpret_cast<float *>(rest));
}

#endif
