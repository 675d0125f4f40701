/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows on the matrix units of sm_90 (wgmma): heads of 64 and 128, K and V of
 * one type of 16 or 8 bits, neither softcap nor ALiBi; all else: attention_rows.cu, whose sets and
 * pairs these are.
 *
 * Block of 2 groups of 4 warps: 128 pairs, a group 64 of them, over tiles of 128 slots (2 pages).
 * In turn i the products of Q with the keys of tile i and those of the probabilities of tile i - 1
 * with its values are under way at once; the softmax of tile i runs beside the latter. Copies are a
 * turn ahead: the next tile's keys and this one's values go to buffers that the turn before has
 * read. So there is one barrier a turn. Codes of 8 bits come one turn earlier still, as they are,
 * and the thread that copied them widens them while products run.
 *
 * In shared memory rows are cut to panels of 64 elements, 128 bytes, whose 16-byte pieces are
 * swapped by row (piece ^ row % 8), as the matrix units want them.
 *
 * Precision and order: as attention_rows.cu, but for tiles of 128. A row's bits depend on no other
 * row. */

#include <cstring>

#include "kernels/cuda/attention_rows.cuh"

enum { GROUP = 128, GROUPS = 2, THREADS = GROUPS * GROUP, PAIRS = GROUPS * 64, SLOTS = 128 };

/* What a tile has beside its elements. */
struct tile_side {
    uint16_t k_scale[SLOTS], v_scale[SLOTS];
    int32_t pos[SLOTS]; /* where slots are not positions; -1: no token */
};

template <int DIM> struct tiles {
    uint8_t q[GROUPS][64 * DIM * 2];
    uint8_t k[2][SLOTS * DIM * 2]; /* of tile i in i % 2 */
    uint8_t v[2][SLOTS * DIM * 2];
    struct tile_side side[2];
};

/* Behind it where K and V have 8 bits: codes under way. */
template <int DIM> struct tiles_raw {
    uint8_t k[SLOTS * DIM];
    uint8_t v[SLOTS * DIM];
};

#ifdef CUDA_HAS_WGMMA /* elsewhere the kernel is empty, and never launched */

/* Where 16-byte piece `piece` of row `row` lies, in panels of `rows` rows. */
CUDA_INLINE int32_t piece_at(int32_t row, int32_t piece, int32_t rows)
{
    return piece / 8 * rows * 128 + row * 128 + ((piece ^ row) & 7) * 16;
}

/* ---- loading -------------------------------------------------------------------------------- */

/* A group's 64 pairs as 16 bits, a warp its 16. */
template <bool BF16, int DIM>
CUDA_INLINE void load_q(const struct attend *p, const struct part *b, uint8_t *to, float scale[2])
{
    enum { AHEAD = 16 }; /* rows whose loads are under way */
    int lane = (int)threadIdx.x % WARP;
    int warp = (int)threadIdx.x / WARP;
    bool aligned = ((reinterpret_cast<uintptr_t>(p->q) | (uintptr_t)(p->ldq * 4)) & 15) == 0;

    for (int32_t r0 = 0; r0 < 16; r0 += AHEAD) {
        float4 v[AHEAD];

#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int32_t pair = b->pair0 + warp * 16 + r0 + i;
            int32_t row = pair / b->set;
            const float *q = p->q + (size_t)(b->s->row0 + row) * p->ldq +
                             (size_t)(b->head0 + pair % b->set) * DIM + lane * 4;

            v[i] = make_float4(0, 0, 0, 0);
            if (row < b->s->n_rows && lane * 4 < DIM) {
                v[i] = aligned ? *reinterpret_cast<const float4 *>(q)
                               : make_float4(q[0], q[1], q[2], q[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            float factor = 1.0f;
            float top = 0.0f;
            float inv;

            if (!BF16) {
                top = warp_max(fmaxf(fmaxf(fabsf(v[i].x), fabsf(v[i].y)),
                                     fmaxf(fabsf(v[i].z), fabsf(v[i].w))));
            }
            if (top > 32768.0f && top < INFINITY) { /* to below 2^15 */
                factor = __uint_as_float(((__float_as_uint(top) >> 23) - 14) << 23);
            }
            inv = 1.0f / factor;
            if (lane * 4 < DIM) {
                *reinterpret_cast<uint2 *>(to + piece_at(warp % 4 * 16 + r0 + i, lane / 2, 64) +
                                           lane % 2 * 8) =
                    make_uint2(half2_of_f32<BF16>(v[i].x * inv, v[i].y * inv),
                               half2_of_f32<BF16>(v[i].z * inv, v[i].w * inv));
            }
            for (int h = 0; h < 2; h++) {
                scale[h] = r0 + i == h * 8 + lane / 4 ? p->scale * LOG2E * factor : scale[h];
            }
        }
    }
}

/* The pages of a tile; the second is the first where there is no other. */
struct pages {
    uint32_t at[2];
};

CUDA_INLINE struct pages pages_of(const struct part *b, int32_t s0)
{
    const uint32_t *pages = b->s->pages + (size_t)b->group * b->s->max_pages + s0 / OPS_PAGE_SLOTS;
    struct pages r = {};

    if (s0 < b->s->n_slots) {
        r.at[0] = pages[0];
        r.at[1] = pages[s0 + OPS_PAGE_SLOTS < b->s->n_slots];
    }
    return r;
}

CUDA_INLINE int32_t pos_of(const struct part *b, int32_t s0, int32_t i, const struct tile_side *t)
{
    return b->s->slot_pos ? t->pos[i] : s0 + i < b->s->n_slots ? s0 + i : -1;
}

template <bool CODES>
CUDA_INLINE void load_side(const struct attend *p, const struct part *b, int32_t s0,
                           struct pages pages, struct tile_side *t)
{
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t i = thread_anew();

    if (CODES && i < 32) { /* 8 slots each */
        uint8_t *page = page_at(p, b, i / 8 % 2 == 0 ? pages.at[0] : pages.at[1]);

        async_copy16((i < 16 ? t->k_scale : t->v_scale) + i % 16 * 8,
                     i < 16 ? kv_scale(page, l->k_scale_at, b->k_head, i % 8 * 8)
                            : kv_scale(page, l->v_scale_at, b->v_head, i % 8 * 8));
    }
    if (b->s->slot_pos && i < SLOTS) {
        t->pos[i] = s0 + i < b->s->n_slots ? kv_pos(b->s, b->group, s0 + i) : -1;
    }
}

/* Rows of 16 bits. Of V those that hold no token become 0; the logits of such K are not used. */
template <bool IS_K, int DIM>
CUDA_INLINE void copy_rows(const struct attend *p, const struct part *b, int32_t s0,
                           struct pages pages, const struct tile_side *t, uint8_t *to)
{
    enum { PIECES = DIM / 8, STEP = THREADS / PIECES };
    int tid = thread_anew();
    int32_t r0 = tid / PIECES;
    int32_t at = r0 * (DIM * 2) + tid % PIECES * 16;
    const uint8_t *from[2] = {head_of<IS_K>(p, b, pages.at[0]) + at,
                              head_of<IS_K>(p, b, pages.at[1]) + at};

    to += piece_at(r0, tid % PIECES, SLOTS); /* STEP is a multiple of 8: all of them swap alike */
#pragma unroll
    for (int i = 0; i < SLOTS / STEP; i++) {
        async_copy16(to + i * STEP * 128,
                     from[i * STEP / OPS_PAGE_SLOTS] + i * STEP % OPS_PAGE_SLOTS * (DIM * 2));
    }
    if (!IS_K && (b->s->slot_pos || s0 + SLOTS > b->s->n_slots)) {
        async_commit();
        async_wait<0>();
#pragma unroll 1
        for (int i = 0; i < SLOTS / STEP; i++) {
            if (pos_of(b, s0, r0 + i * STEP, t) < 0) {
                *reinterpret_cast<uint4 *>(to + i * STEP * 128) = make_uint4(0, 0, 0, 0);
            }
        }
    }
}

/* Rows of 8 bits as they are. */
template <bool IS_K, int DIM>
CUDA_INLINE void copy_codes(const struct attend *p, const struct part *b, struct pages pages,
                            uint8_t *raw)
{
    enum { PIECES = DIM / 16, STEP = THREADS / PIECES };
    int tid = thread_anew();

#pragma unroll
    for (int i = 0; i < SLOTS / STEP; i++) {
        int32_t r = tid / PIECES + i * STEP;
        const uint8_t *from = head_of<IS_K>(p, b, pages.at[i / (SLOTS / STEP / 2)]);

        async_copy16(raw + r * DIM + tid % PIECES * 16,
                     from + r % OPS_PAGE_SLOTS * DIM + tid % PIECES * 16);
    }
}

/* What this thread copied. */
template <bool IS_K, int DIM>
CUDA_INLINE void widen(const struct attend *p, const struct part *b, int32_t s0,
                       const struct tile_side *t, const uint8_t *raw, uint8_t *to)
{
    enum { PIECES = DIM / 16, STEP = THREADS / PIECES };
    const struct cuda_layout *l = &p->seqs.layout;
    int32_t type = IS_K ? l->k_type : l->v_type;
    int tid = thread_anew();
    int32_t piece = tid % PIECES;
    bool dead = b->s->slot_pos || s0 + SLOTS > b->s->n_slots;

#pragma unroll
    for (int i = 0; i < SLOTS / STEP; i++) {
        int32_t r = tid / PIECES + i * STEP;
        bool gone = !IS_K && dead && pos_of(b, s0, r, t) < 0;
        uint16_t scale = IS_K || gone ? 0 : t->v_scale[r];
        uint4 c = *reinterpret_cast<const uint4 *>(raw + r * DIM + piece * 16);

        *reinterpret_cast<uint4 *>(to + piece_at(r, 2 * piece, SLOTS)) =
            widen8<IS_K>(type, c.x, c.y, scale);
        *reinterpret_cast<uint4 *>(to + piece_at(r, 2 * piece + 1, SLOTS)) =
            widen8<IS_K>(type, c.z, c.w, scale);
    }
}

/* ---- one tile ------------------------------------------------------------------------------- */

/* Products become 2^(x - top), and `factor` what earlier sums are multiplied by. x[4 j + i]: the
 * warp's row g (i < 2) or g + 8, slot 8 j + 2t + i % 2. Are there factors other than 1? */
template <bool CODES>
CUDA_INLINE bool softmax(const struct attend *p, const struct part *b, int32_t s0,
                         const struct tile_side *t, const float scale[2], struct running run[2],
                         float x[64], float factor[2])
{
    int tid = thread_anew();
    int pair = tid % 4 * 2;
    int32_t first = b->pair0 + tid / (int)WARP * 16; /* the warp's first pair */
    int32_t first_pos = b->s->pos0 + first / b->set;
    int32_t last_pos = b->s->pos0 + (first + 15) / b->set;
    bool moved = false;

    if (CODES) {
#pragma unroll
        for (int j = 0; j < 16; j++) {
            uint32_t s = *reinterpret_cast<const uint32_t *>(t->k_scale + j * 8 + pair);
            float lo = f32_of_f16((uint16_t)s);
            float hi = f32_of_f16((uint16_t)(s >> 16));

            x[j * 4] *= lo;
            x[j * 4 + 1] *= hi;
            x[j * 4 + 2] *= lo;
            x[j * 4 + 3] *= hi;
        }
    }
    if (b->s->slot_pos || s0 + SLOTS - 1 > first_pos || s0 + SLOTS > b->s->n_slots ||
        (p->window > 0 && s0 <= last_pos - p->window)) {
        int32_t own = first + tid % (int)WARP / 4;
        int32_t pos[2] = {b->s->pos0 + own / b->set, b->s->pos0 + (own + 8) / b->set};

#pragma unroll
        for (int i = 0; i < 64; i++) {
            int32_t at = pos_of(b, s0, i / 4 * 8 + pair + i % 2, t);

            x[i] = kv_visible(at, pos[i / 2 % 2], p->window) ? x[i] : -INFINITY;
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float top = x[h * 2];
        float old = run[h].top;
        float sum[2] = {0, 0};

#pragma unroll
        for (int i = 1; i < 32; i++) {
            top = fmaxf(top, x[i / 2 * 4 + h * 2 + i % 2]);
        }
        top = fminf(quad_max(top) * scale[h], 1e30f);
        top = top > old + 8.0f ? top : old;
        factor[h] = top == old ? 1.0f : exp2_about(old - top); /* top is finite if they differ */
        moved |= top != old;
        run[h].top = top;
        top = top > -INFINITY ? top : 0.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float *y = &x[i / 2 * 4 + h * 2 + i % 2];

            *y = exp2_about(fmaf(*y, scale[h], -top));
            sum[i % 2] += *y;
        }
        run[h].sum = run[h].sum * factor[h] + (sum[0] + sum[1]);
    }
    return moved;
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int DIM>
CUDA_INLINE void write_out(const struct attend *p, const struct part *b,
                           const struct running run[2], const float acc[DIM / 2])
{
    bool aligned = ((reinterpret_cast<uintptr_t>(p->out) | (uintptr_t)(p->ldo * 4)) & 7) == 0;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int tid = thread_anew();
        int32_t pair = b->pair0 + tid / WARP * 16 + h * 8 + tid % WARP / 4;
        int32_t row = pair / b->set;
        int32_t head = b->head0 + pair % b->set;
        float sum = quad_sum(run[h].sum);
        float *out =
            p->out + (size_t)(b->s->row0 + row) * p->ldo + (size_t)head * DIM + tid % 4 * 2;
        float inv;

        if (row >= b->s->n_rows) {
            continue;
        }
        leave_sums(p, b, row, head, run[h].top, sum);
        if (p->sinks && sum > 0) {
            sum += exp2f(p->sinks[head] * LOG2E - run[h].top);
        }
        inv = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            /* -0 becomes 0: tiles left out add none */
            float2 y = make_float2(acc[n * 4 + h * 2] * inv + 0.0f,
                                   acc[n * 4 + h * 2 + 1] * inv + 0.0f);

            if (aligned) {
                *reinterpret_cast<float2 *>(out + n * 8) = y;
            } else {
                out[n * 8] = y.x;
                out[n * 8 + 1] = y.y;
            }
        }
    }
}

#endif

template <bool BF16, bool CODES, int DIM>
CUDA_KERNEL void __launch_bounds__(THREADS, 1) prefill_wgmma(struct attend p)
{
#ifdef CUDA_HAS_WGMMA
    CUDA_SHARED(uint8_t, memory);
    struct tiles<DIM> *t = reinterpret_cast<struct tiles<DIM> *>(
        (reinterpret_cast<uintptr_t>(memory) + 1023) & ~(uintptr_t)1023);
    struct tiles_raw<DIM> *raw = reinterpret_cast<struct tiles_raw<DIM> *>(t + 1);
    const uint8_t *q = t->q[threadIdx.x / GROUP];
    struct running run[2] = {{-INFINITY, 0.0f}, {-INFINITY, 0.0f}};
    float acc[DIM / 2];
    float scale[2] = {0.0f, 0.0f};
    uint32_t e[8][4]; /* 2^x of the tile before, of 16 slots each */
    struct part b;
    struct pages at, next_at;
    int32_t s0, next;

    if (!part_of(&p, PAIRS, &b)) {
        return;
    }
#pragma unroll
    for (int i = 0; i < DIM / 2; i++) {
        acc[i] = 0.0f;
    }
    s0 = next_tile<SLOTS>(&p, &b, 0);
    next = next_tile<SLOTS>(&p, &b, s0 + SLOTS);
    at = pages_of(&b, s0);
    next_at = pages_of(&b, next);
    if (s0 < b.s->n_slots) {
        load_side<CODES>(&p, &b, s0, at, &t->side[0]);
        if (CODES) {
            copy_codes<true, DIM>(&p, &b, at, raw->k);
            copy_codes<false, DIM>(&p, &b, at, raw->v);
        } else {
            copy_rows<true, DIM>(&p, &b, s0, at, &t->side[0], t->k[0]);
        }
        async_commit();
    }
    load_q<BF16, DIM>(&p, &b, t->q[threadIdx.x / GROUP], scale);
    if (CODES && s0 < b.s->n_slots) {
        async_wait<0>();
        widen<true, DIM>(&p, &b, s0, &t->side[0], raw->k, t->k[0]);
        if (next < b.s->n_slots) {
            copy_codes<true, DIM>(&p, &b, next_at, raw->k);
        }
        async_commit();
    }
    for (int i = 0; s0 < b.s->n_slots; i++) {
        int now = i % 2;
        float x[64];
        float factor[2];
        bool moved;

        async_wait<0>();
        group_fence_shared();
        __syncthreads(); /* k, v, side, q: written and read by all; the other k, v: read by all */
        group_begin();
#pragma unroll
        for (int d = 0; d < DIM / 16; d++) {
            group_mma<BF16>(x, group_matrix(q + d / 4 * 64 * 128 + d % 4 * 32, 0),
                            group_matrix(t->k[now] + d / 4 * SLOTS * 128 + d % 4 * 32, 0), d > 0);
        }
        group_commit();
        if (i > 0) {
#pragma unroll
            for (int j = 0; j < 8; j++) {
                group_mma_values<BF16, DIM>(acc, e[j],
                                            group_matrix(t->v[!now] + j * 16 * 128, SLOTS * 128));
            }
            group_commit(); /* with its products: else it would be a group of its own */
        } else {
            group_commit();
        }
        if (next < b.s->n_slots) {
            load_side<CODES>(&p, &b, next, next_at, &t->side[!now]);
        }
        if (CODES) {
            int32_t after = next_tile<SLOTS>(&p, &b, next + SLOTS);
            struct pages after_at = pages_of(&b, after);

            if (next < b.s->n_slots) {
                widen<true, DIM>(&p, &b, next, &t->side[!now], raw->k, t->k[!now]);
            }
            widen<false, DIM>(&p, &b, s0, &t->side[now], raw->v, t->v[now]);
            if (next < b.s->n_slots) {
                copy_codes<false, DIM>(&p, &b, next_at, raw->v);
            }
            if (after < b.s->n_slots) {
                copy_codes<true, DIM>(&p, &b, after_at, raw->k);
            }
            async_commit();
            group_wait<1>();
            moved = softmax<CODES>(&p, &b, s0, &t->side[now], scale, run, x, factor);
            at = next_at;
            next_at = after_at;
            s0 = next;
            next = after;
        } else {
            if (next < b.s->n_slots) {
                copy_rows<true, DIM>(&p, &b, next, next_at, &t->side[!now], t->k[!now]);
            }
            copy_rows<false, DIM>(&p, &b, s0, at, &t->side[now], t->v[now]);
            async_commit();
            group_wait<1>();
            moved = softmax<CODES>(&p, &b, s0, &t->side[now], scale, run, x, factor);
            at = next_at;
            s0 = next;
            next = next_tile<SLOTS>(&p, &b, s0 + SLOTS);
            next_at = pages_of(&b, next);
        }
        group_wait<0>();
        if (__any_sync(ALL_LANES, moved)) {
#pragma unroll
            for (int n = 0; n < DIM / 2; n++) {
                acc[n] *= factor[n / 2 % 2];
            }
        }
#pragma unroll
        for (int n = 0; n < 32; n++) {
            e[n / 4][n % 4] = half2_of_f32<BF16>(x[n * 2], x[n * 2 + 1]);
        }
        if (s0 >= b.s->n_slots) { /* the last tile's values */
            async_wait<0>();
            group_fence_shared();
            __syncthreads(); /* v: written by all, read by all */
            group_begin();
#pragma unroll
            for (int j = 0; j < 8; j++) {
                group_mma_values<BF16, DIM>(acc, e[j],
                                            group_matrix(t->v[now] + j * 16 * 128, SLOTS * 128));
            }
            group_commit();
            group_wait<0>();
        }
    }
    write_out<DIM>(&p, &b, run, acc);
#endif
}

/* ---- launches ------------------------------------------------------------------------------- */

template <bool BF16, bool CODES, int DIM>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows)
{
    dim3 grid = grid_of_parts(p, rows, PAIRS);
    size_t shared =
        sizeof(struct tiles<DIM>) + (CODES ? sizeof(struct tiles_raw<DIM>) : 0) + 1024;

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, (prefill_wgmma<BF16, CODES, DIM>), *p);
    return cuda_launched(cu, "prefill_wgmma");
}

template <int DIM> static int launch_dim(struct cuda *cu, const struct attend *p, int32_t rows)
{
    int32_t type = p->seqs.layout.k_type;

    return type == OPS_KV_BF16  ? launch<true, false, DIM>(cu, p, rows)
           : kv_has_scale(type) ? launch<false, true, DIM>(cu, p, rows)
                                : launch<false, false, DIM>(cu, p, rows);
}

bool cuda_attend_has_wgmma(const struct cuda *cu, const struct attend *p)
{
    const struct cuda_layout *l = &p->seqs.layout;

    return cu->sm_major == 9 && strstr(CUDA_ARCHS, "90") && p->scale > 0 && p->softcap <= 0 &&
           p->alibi_max <= 0 && l->k_type == l->v_type && !kv_four(l->k_type) &&
           l->k_dim == l->v_dim &&
           (l->k_dim == 64 || l->k_dim == 128);
}

int cuda_attend_wgmma(struct cuda *cu, const struct attend *p, int32_t rows)
{
    return p->seqs.layout.k_dim == 64 ? launch_dim<64>(cu, p, rows) : launch_dim<128>(cu, p, rows);
}
