/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of prefill rows on tensor cores; caches of 16 and 8 bits. (Those of 32 bits:
 * attention_prefill.cu; what a policy observes: attention_observe.cu.)
 *
 * Query heads that share a K head and a V head are one set, and (row, head) a pair of it: pair i is
 * row i / set, head i % set. A block has 64 or 128 consecutive pairs of one set, a warp 16 or 32 of
 * them (MT matrices of 16), over all slots in tiles of a page, softmax as it goes. So K and V are
 * read once for all heads of a set, and few tiles are seen by some of a block's rows only.
 *
 * Q, K and V lie in shared memory as 16-bit elements (attention_rows_tile.cuh). What has 16 bits is
 * copied asynchronously: a tile's values while its logits are formed, the next tile's keys while
 * values are summed. What has 8 or 4 is copied a tile ahead and widened (attention_rows_codes.cuh).
 *
 * Inside a tile that all rows of a warp see whole no position is looked at. The largest logit of a
 * row, what its sums are relative to, follows only where it grows by more than 2^8: else nothing is
 * multiplied again. Sums of e^x stay apart in a row's 4 lanes until the end.
 *
 * Precision: queries and probabilities have the 16-bit type that keys and values have; 8-bit caches
 * go as f16: the codes of K exactly, their scales applied to the logits; those of V times their
 * scale, rounded once. Sums are f32. Queries beyond f16's range are divided by a power of two, per
 * row.
 *
 * A row's bits depend on no other row, nor on MT: each is computed alike wherever it lies. Blocks
 * with the most tiles start first. */

#include "kernels/cuda/attention_rows_codes.cuh"

/* ---- one tile ------------------------------------------------------------------------------- */

/* x[m][j][i]: the warp's row 16 m + g (i < 2) or + 8, slot 8 j + 2t + i % 2. */
template <bool BF16, int MT, int DIM>
CUDA_INLINE void products(const struct tile<MT, DIM> *t, float x[MT][8][4])
{
    int tid = thread_anew();
    int warp = tid / WARP;
    int lane = tid % WARP;
    const uint16_t *q = t->q + (warp * 16 * MT + lane % 16) * t->LEN + lane / 16 * 8;
    const uint16_t *k = t->k + (lane % 8 + lane / 16 * 8) * t->LEN + lane / 8 % 2 * 8;

#pragma unroll
    for (int i = 0; i < MT * 32; i++) {
        x[i / 32][i / 4 % 8][i % 4] = 0.0f;
    }
#pragma unroll(DIM > 128 ? 4 : DIM / 16)
    for (int d = 0; d < DIM; d += 16) {
        uint32_t a[MT][4];

#pragma unroll
        for (int m = 0; m < MT; m++) {
            matrix_load4<false>(q + m * 16 * t->LEN + d, a[m]);
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];

            matrix_load4<false>(k + j * 16 * t->LEN + d, b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_half<BF16>(x[m][2 * j], a[m], b);
                mma_half<BF16>(x[m][2 * j + 1], a[m], b + 2);
            }
        }
    }
}

/* acc += probabilities (16 MT x 64, one warp) times the tile's values. */
template <bool BF16, int MT, int DIM>
CUDA_INLINE void add_values(const struct tile<MT, DIM> *t, const uint32_t e[MT][8][2],
                            float acc[MT][DIM / 8][4])
{
    int lane = thread_anew() % WARP;
    const uint16_t *v = t->v + lane % 16 * t->LEN + lane / 16 * 8;

#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t b[4];

            matrix_load4<true>(v + j * 16 * t->LEN + n * 16, b);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                uint32_t a[4] = {e[m][2 * j][0], e[m][2 * j][1], e[m][2 * j + 1][0],
                                 e[m][2 * j + 1][1]};

                mma_half<BF16>(acc[m][2 * n], a, b);
                mma_half<BF16>(acc[m][2 * n + 1], a, b + 2);
            }
        }
    }
}

/* From products to logits; those of what is not seen become -INFINITY. */
template <int MT, int DIM>
CUDA_INLINE void to_logits(const struct attend *p, const struct part *b, int32_t s0, bool plain,
                           bool partly, struct tile<MT, DIM> *t, float x[MT][8][4])
{
    int tid = thread_anew();
    int own = tid / WARP * 16 * MT + tid % WARP / 4;
    int pair = tid % 4 * 2;

#pragma unroll
    for (int j = 0; j < 8; j++) {
        if (kv_has_scale(p->seqs.layout.k_type)) {
            const uint16_t *scale = reinterpret_cast<const uint16_t *>(side(t, j)) + pair;
            float s[2] = {f32_of_f16(scale[0]), f32_of_f16(scale[1])};

#pragma unroll
            for (int i = 0; i < MT * 4; i++) {
                x[i / 4][j][i % 4] *= s[i % 2];
            }
        }
        if (!plain || partly) {
            int32_t pos[2] = {pos_of(b, s0, j * 8 + pair, t), pos_of(b, s0, j * 8 + pair + 1, t)};

#pragma unroll
            for (int i = 0; i < MT * 4; i++) {
                int row = own + i / 2 * 8;
                int32_t at = *row_pos(t, row);
                float *y = &x[i / 4][j][i % 4];

                if (!kv_visible(pos[i % 2], at, p->window)) {
                    *y = -INFINITY;
                } else if (!plain) {
                    *y *= *row_scale(t, row);
                    *y -= *row_slope(t, row) * (float)(at - pos[i % 2]);
                    *y = (p->softcap > 0 ? p->softcap * tanhf(*y / p->softcap) : *y) * LOG2E;
                }
            }
        }
    }
}

/* e: 2^(x - top) in 16 bits, of row 16 m + g + 8 h slots 8 j + 2t and the next; sums so far follow
 * where a row's top does. */
template <bool KB, bool VB, int MT, int DIM>
CUDA_INLINE void softmax(const struct attend *p, bool plain, struct tile<MT, DIM> *t,
                         const float x[MT][8][4], struct running run[MT][2],
                         float acc[MT][DIM / 8][4], uint32_t e[MT][8][2])
{
    int tid = thread_anew();
    int own = tid / WARP * 16 * MT + tid % WARP / 4;

#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int m = i / 2;
        int h = i % 2;
        float c = !plain ? 1.0f : KB ? p->scale * LOG2E : *row_scale(t, own + i * 8);
        float top = x[m][0][h * 2];
        float old = run[m][h].top;
        float sum = 0;

#pragma unroll
        for (int k = 1; k < 16; k++) {
            top = fmaxf(top, x[m][k / 2][h * 2 + k % 2]);
        }
        top = fminf(quad_max(top) * c, 1e30f);
        top = top > old + 8.0f ? top : old;
        if (__any_sync(ALL_LANES, top != old)) {
            float factor = top == old ? 1.0f : exp2_about(old - top); /* top is finite then */

#pragma unroll
            for (int n = 0; n < DIM / 4; n++) {
                acc[m][n / 2][h * 2 + n % 2] *= factor;
            }
            run[m][h] = {top, run[m][h].sum * factor};
        }
        top = top > -INFINITY ? top : 0.0f;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            float lo = exp2_about(fmaf(x[m][j][h * 2], c, -top));
            float hi = exp2_about(fmaf(x[m][j][h * 2 + 1], c, -top));

            sum += lo;
            sum += hi;
            e[m][j][h] = half2_of_f32<VB>(lo, hi);
        }
        run[m][h].sum += sum;
    }
}

/* ---- the kernel ----------------------------------------------------------------------------- */

template <int MT, int DIM>
CUDA_INLINE void write_out(const struct attend *p, const struct part *b,
                           const struct running run[MT][2],
                           float acc[MT][DIM / 8][4])
{
    int32_t v_dim = p->seqs.layout.v_dim;
    bool aligned = ((reinterpret_cast<uintptr_t>(p->out) | (uintptr_t)(p->ldo * 4) |
                     (uintptr_t)(v_dim * 4)) & 7) == 0;

#pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        int tid = thread_anew();
        int lane = tid % WARP;
        int m = i / 2;
        int h = i % 2;
        int32_t pair = b->pair0 + tid / WARP * 16 * MT + m * 16 + h * 8 + lane / 4;
        int32_t row = pair / b->set;
        int32_t head = b->head0 + pair % b->set;
        float sum = quad_sum(run[m][h].sum);
        float *out = p->out + (size_t)(b->s->row0 + row) * p->ldo + (size_t)head * v_dim;
        float inv;

        if (row >= b->s->n_rows) {
            continue;
        }
        leave_sums(p, b, row, head, run[m][h].top, sum);
        if (p->sinks && sum > 0) {
            sum += exp2f(p->sinks[head] * LOG2E - run[m][h].top);
        }
        inv = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            int32_t d = n * 8 + lane % 4 * 2;
            /* -0 becomes 0: tiles left out add none */
            float2 y = make_float2(acc[m][n][h * 2] * inv + 0.0f,
                                   acc[m][n][h * 2 + 1] * inv + 0.0f);

            if (aligned && d < v_dim) {
                *reinterpret_cast<float2 *>(out + d) = y;
            } else if (d < v_dim) {
                out[d] = y.x;
                if (d + 1 < v_dim) {
                    out[d + 1] = y.y;
                }
            }
        }
    }
}

/* Blocks of 128 pairs and heads of 128 have no registers left on sm_100 for logits with a cap or a
 * slope, or without a scale: launch_rows() gives these to blocks of 64. */
template <int MT, int DIM> static constexpr bool plain_alone(void)
{
    return CUDA_ON_100(MT > 1 && DIM > 64, false);
}

static __host__ __device__ bool is_plain(const struct attend *p)
{
    return p->scale > 0 && p->softcap <= 0 && p->alibi_max <= 0;
}

/* FOUR: V has four bits, K as many or 8. */
template <bool KB, bool VB, int MT, int DIM, bool FOUR>
CUDA_KERNEL void __launch_bounds__(THREADS, MT == 1 && DIM <= 128 ? 3 : 2)
    prefill_mma(struct attend p)
{
    CUDA_SHARED(uint8_t, memory);
    struct tile<MT, DIM> *t = reinterpret_cast<struct tile<MT, DIM> *>(memory);
    struct tile_raw<DIM> *raw = reinterpret_cast<struct tile_raw<DIM> *>(memory + sizeof(*t));
    const struct cuda_layout *l = &p.seqs.layout;
    bool k_codes = FOUR || kv_has_scale(l->k_type);
    bool v_codes = FOUR || (!VB && kv_has_scale(l->v_type));
    bool plain = plain_alone<MT, DIM>() || is_plain(&p);
    struct running run[MT][2];
    struct part b;
    float acc[MT][DIM / 8][4] = {};
    uint32_t page = 0;
    int32_t s0;

    if (!part_of(&p, t->PAIRS, &b)) {
        return;
    }
    s0 = next_tile<SLOTS>(&p, &b, 0);
    if (s0 < b.s->n_slots) {
        page = page_of(&b, s0);
        if (!k_codes) {
            copy_rows<true>(&p, &b, s0, page, false, t);
        } else {
            copy_codes<FOUR, true, DIM>(&p, &b, page, raw->k);
        }
        if (v_codes) {
            copy_codes<FOUR, false, DIM>(&p, &b, page, raw->v);
        }
        load_side(&p, &b, s0, page, t);
        async_commit();
    }
    clear_k(&p, t);
    load_q<KB>(&p, &b, plain, t);
    for (int i = 0; i < MT * 2; i++) {
        run[i / 2][i % 2] = {-INFINITY, 0.0f};
    }
    while (s0 < b.s->n_slots) {
        int32_t next = next_tile<SLOTS>(&p, &b, s0 + SLOTS);
        bool more = next < b.s->n_slots;
        uint32_t next_page = more ? page_of(&b, next) : 0;
        uint32_t e[MT][8][2];
        uint32_t flags;

        async_wait<0>();
        if (k_codes) {
            widen<FOUR, true>(&p, &b, s0, page, raw->k, false, t);
            if (more) {
                copy_codes<FOUR, true, DIM>(&p, &b, next_page, raw->k);
                async_commit();
            }
        }
        __syncthreads(); /* k, side: written by all, read by all; v: read by all */
        {
            int own = thread_anew() / WARP * 16 * MT; /* the warp's rows */
            int32_t first_pos = min(*row_pos(t, own), b.last_pos);
            int32_t last_pos = min(*row_pos(t, own + 16 * MT - 1), b.last_pos);

            flags = flags_of(&p, &b, s0, first_pos, last_pos, t);
        }
        if (!v_codes) {
            copy_rows<false>(&p, &b, s0, page, flags & DEAD, t);
            async_commit();
        }
        if (!(flags & UNSEEN)) {
            float x[MT][8][4];

            products<KB, MT, DIM>(t, x);
            if (k_codes || !plain || (flags & PARTLY)) {
                to_logits<MT, DIM>(&p, &b, s0, plain, flags & PARTLY, t, x);
            }
            softmax<KB, VB, MT, DIM>(&p, plain, t, x, run, acc, e);
        }
        if (v_codes) {
            widen<FOUR, false>(&p, &b, s0, page, raw->v, flags & DEAD, t);
            if (more) {
                copy_codes<FOUR, false, DIM>(&p, &b, next_page, raw->v);
                async_commit();
            }
        } else {
            async_wait<0>();
        }
        __syncthreads(); /* v: written by all, read by all; k, side: read by all */
        if (more) {
            if (!k_codes) {
                copy_rows<true>(&p, &b, next, next_page, false, t);
            }
            load_side(&p, &b, next, next_page, t);
            async_commit();
        }
        if (!(flags & UNSEEN)) {
            add_values<VB, MT, DIM>(t, e, acc);
        }
        page = next_page;
        s0 = next;
    }
    write_out<MT, DIM>(&p, &b, run, acc);
}

/* ---- launches ------------------------------------------------------------------------------- */

template <bool KB, bool VB, int MT, int DIM, bool FOUR = false>
static int launch(struct cuda *cu, const struct attend *p, int32_t rows)
{
    const struct cuda_layout *l = &p->seqs.layout;
    dim3 grid = grid_of_parts(p, rows, 16 * MT * WARPS);
    bool raw = DIM <= 128 && (FOUR || kv_has_scale(l->k_type) || kv_has_scale(l->v_type));
    size_t shared = sizeof(struct tile<MT, DIM>) + (raw ? sizeof(struct tile_raw<DIM>) : 0);

    CUDA_LAUNCH_LARGE(cu, grid, dim3(THREADS), shared, (prefill_mma<KB, VB, MT, DIM, FOUR>), *p);
    return cuda_launched(cu, "prefill_mma");
}

/* Of blocks of 64 pairs there are twice as many: where those of 128 would leave multiprocessors
 * without. */
template <bool B, int DIM, bool FOUR>
static int launch_rows(struct cuda *cu, const struct attend *p, int32_t rows)
{
    uint64_t pairs = (uint64_t)rows * p->n_q * p->seqs.n;
    bool narrow = cu->sm_major >= 10 && DIM > 64 && !is_plain(p);

    return pairs >= (uint64_t)cu->n_sms * 128 && !narrow ? launch<B, B, 2, DIM, FOUR>(cu, p, rows)
                                              : launch<B, B, 1, DIM, FOUR>(cu, p, rows);
}

template <bool B, bool FOUR = false>
static int launch_alike(struct cuda *cu, const struct attend *p, int32_t rows)
{
    int32_t dim = max(p->seqs.layout.k_dim, p->seqs.layout.v_dim);

    return dim <= 64    ? launch_rows<B, 64, FOUR>(cu, p, rows)
           : dim <= 128 ? launch_rows<B, 128, FOUR>(cu, p, rows)
                        : launch<B, B, 1, 256, FOUR>(cu, p, rows);
}

int cuda_attend_rows(struct cuda *cu, const struct attend *p, int32_t rows)
{
    bool kb = p->seqs.layout.k_type == OPS_KV_BF16;
    bool vb = p->seqs.layout.v_type == OPS_KV_BF16;

    return kv_four(p->seqs.layout.v_type) ? launch_alike<false, true>(cu, p, rows)
           : kb && vb                     ? launch_alike<true>(cu, p, rows)
           : kb                           ? launch<true, false, 1, 256>(cu, p, rows)
           : vb                           ? launch<false, true, 1, 256>(cu, p, rows)
                                          : launch_alike<false>(cu, p, rows);
}
