/* SPDX-License-Identifier: Apache-2.0 */
/* y = norm(x) W^T + bias, activated, gated or added: preparation of the activations, and which
 * kernel runs.
 *
 * A single decode row of 16-bit weights is normalised and cut into pieces by the kernel that
 * multiplies (norm_stream_half), to the same bits. Else one kernel normalises each row once and
 * writes it in the form that the weights' kernels read:
 *   f32   as it is
 *   q8    8 bits by blocks of 32 (scale absmax / 127), in fragment order; for the output head also
 *         what that left, in 8 bits of 1/254 of a step
 *   f16   f16 pieces, the row divided by a power of two that brings its largest value below 2^15
 *   bf16  bf16 pieces
 * Decode rows use two f16 pieces (22 bits) or three bf16 pieces (24 bits): as good as f32, and the
 * weights stream by once whatever the number of pieces. Prefill rows use one: there arithmetic is
 * the limit, and a 16-bit weight meets a 16-bit activation (docs/decisions.md). A row with NaN or
 * infinity gives NaN. */

#include <cerrno>

#include "kernels/cuda/gemm.cuh"
#include "kernels/cuda/row.cuh"

enum { PREP_THREADS = 256 };

struct prep {
    struct cuda_norm norm;
    const float *x;
    float *xf;
    uint8_t *xq;
    float *xd;
    float *xs;
    uint16_t *xh;
    float *xe;
    uint64_t piece;
    int32_t ldx, n_cols, pad;
    int32_t form; /* enum gemm_form */
    bool exact;
};

/* Blocks of 32, a warp each. */
CUDA_INLINE void prep_q8(const struct prep *p, const float *row)
{
    int lane = (int)threadIdx.x % WARP;
    uint64_t token = blockIdx.x;

    for (int32_t b = (int32_t)threadIdx.x / WARP; b < p->pad / 32; b += PREP_THREADS / WARP) {
        int32_t c = b * 32 + lane;
        float v = c < p->n_cols ? row[c] : 0.0f;
        float top = warp_max(fabsf(v));
        float poison = warp_sum(v * 0.0f); /* NaN when there is a NaN or an infinity */
        bool tiny = !(top > 1e-36f);       /* 127 / top would overflow */
        float d = tiny ? 0.0f : top / 127.0f;
        float q = tiny ? 0.0f : rintf(v * (127.0f / top));
        float left = tiny || !p->exact ? 0.0f : rintf((v - q * d) * (127.0f * 254.0f / top));
        float sum;
        uint64_t at = token * p->pad + (uint64_t)(b / 4 * 128 + lane % 16 / 4 * 32 + b % 4 * 8 +
                                                  lane / 16 * 4 + lane % 4);

        q = poison == 0.0f ? fminf(fmaxf(q, -127.0f), 127.0f) : 0.0f;
        left = poison == 0.0f ? fminf(fmaxf(left, -127.0f), 127.0f) : 0.0f;
        p->xq[at] = (uint8_t)(int8_t)q;
        p->xq[p->piece + at] = (uint8_t)(int8_t)left;
        sum = warp_sum(q) + warp_sum(left) * (1.0f / 254.0f);
        if (lane == 0) {
            p->xd[token * (p->pad / 32) + b] = d + poison;
            p->xs[token * (p->pad / 32) + b] = d * sum + poison;
        }
    }
}

CUDA_INLINE void prep_half(const struct prep *p, const float *row, float *part)
{
    uint64_t token = blockIdx.x;
    bool bf16 = p->form == GEMM_BF16;
    float scale = 1.0f;
    float top = 0.0f;

    for (int32_t c = (int32_t)threadIdx.x; c < p->n_cols && !bf16; c += PREP_THREADS) {
        top = fmaxf(top, fabsf(row[c]));
    }
    if (!bf16) {
        scale = half_scale(block_max(top, part, PREP_THREADS / WARP));
        if (threadIdx.x == 0) {
            p->xe[token] = 1.0f / scale; /* a power of two: exact */
        }
    }
    for (int32_t c = (int32_t)threadIdx.x; c < p->pad; c += PREP_THREADS) {
        float v = c < p->n_cols ? row[c] * scale : 0.0f;
        uint16_t *to = p->xh + token * p->pad + c;

        if (bf16) {
            half_pieces<true, 3>(v, to, p->piece);
        } else {
            half_pieces<false, 2>(v, to, p->piece);
        }
    }
}

CUDA_KERNEL void prepare_rows(struct prep p)
{
    __shared__ float part[32];
    const float *x = p.x + (size_t)blockIdx.x * p.ldx;
    float *row = p.xf + (size_t)blockIdx.x * p.pad;
    struct row_norm r = row_norm_of<PREP_THREADS>(&p.norm, x, p.n_cols, part);

    for (int32_t c = (int32_t)threadIdx.x; c < p.n_cols; c += PREP_THREADS) {
        row[c] = row_normed(&p.norm, r, x[c], c);
    }
    __syncthreads(); /* row: written above by other threads than those that read it below */
    if (p.form == GEMM_Q8) {
        prep_q8(&p, row);
    } else if (p.form != GEMM_F32) {
        prep_half(&p, row, part);
    }
}

/* ---- dispatch ------------------------------------------------------------------------------- */

static enum gemm_form form_of(enum dtype type)
{
    switch (type) {
    case DTYPE_F32:
        return GEMM_F32;
    case DTYPE_F16:
        return GEMM_F16;
    case DTYPE_BF16:
        return GEMM_BF16;
    default:
        return GEMM_Q8;
    }
}

static int prepare(struct cuda *cu, const struct ops_matmul *p, enum gemm_form form, struct gemm *g)
{
    const struct cuda_scratch *s = &cu->scratch;
    struct prep prep = {};

    prep.norm = cuda_norm_of(&p->norm);
    prep.x = p->x;
    prep.xf = s->xf;
    prep.xq = s->xq;
    prep.xd = s->xd;
    prep.xs = s->xs;
    prep.xh = s->xh;
    prep.xe = s->xe;
    prep.piece = g->piece;
    prep.ldx = p->ldx;
    prep.n_cols = g->n_cols;
    prep.pad = g->pad;
    prep.form = form;
    for (int i = 0; i < p->n_parts; i++) {
        prep.exact = prep.exact || p->part[i].w->role == OPS_ROLE_EMBED;
    }
    CUDA_LAUNCH(cu, dim3((unsigned)p->rows.n), dim3(PREP_THREADS), 0, prepare_rows, prep);
    return cuda_launched(cu, "prepare_rows");
}

/* Tokens [g->token0, g->token_end) of parts of one type. */
static int run(struct cuda *cu, struct gemm *g, const struct ops_weight *w, bool decode)
{
    bool head = w->role == OPS_ROLE_EMBED;

    if (g->token0 == g->token_end) {
        return 0;
    }
    switch (form_of(w->type)) {
    case GEMM_F32:
        return cuda_gemm_f32(cu, g);
    case GEMM_Q8:
        return decode || head ? cuda_gemm_q_stream(cu, g, w->type, head)
                              : cuda_gemm_q_tiles(cu, g, w->type);
    default:
        return decode || head ? cuda_gemm_half_stream(cu, g, w->type == DTYPE_BF16)
                              : cuda_gemm_half_tiles(cu, g, w->type == DTYPE_BF16);
    }
}

/* Parts [first, end) have one type and role. */
static void take_parts(const struct ops_matmul *p, int first, int end, struct gemm *g)
{
    g->n_parts = end - first;
    for (int i = first; i < end; i++) {
        struct gemm_part *part = &g->part[i - first];

        part->w = static_cast<const uint8_t *>(p->part[i].w->device);
        part->bias = cuda_vector(p->part[i].bias);
        part->y = p->part[i].y;
        part->ldy = p->part[i].ldy;
        part->n_rows = p->part[i].w->n_rows;
        part->act = p->part[i].act;
    }
}

/* One decode row of 16-bit weights needs no preparation of its own. */
static bool fuses(const struct ops_matmul *p, const struct ops_weight *w, int32_t pad)
{
    enum gemm_form form = form_of(w->type);

    return p->rows.n == 1 && p->rows.n_decode == 1 && (form == GEMM_F16 || form == GEMM_BF16) &&
           cuda_gemm_half_fuses(pad, form == GEMM_BF16);
}

static int run_fused(struct cuda *cu, const struct ops_matmul *p, int first, int end,
                     struct gemm *g)
{
    struct cuda_norm norm = cuda_norm_of(&p->norm);

    take_parts(p, first, end, g);
    g->token0 = 0;
    g->token_end = 1;
    return cuda_gemm_half_fused(cu, g, p->part[first].w->type == DTYPE_BF16, &norm, p->x);
}

static int run_parts(struct cuda *cu, const struct ops_matmul *p, int first, int end,
                     struct gemm *g)
{
    int r;

    take_parts(p, first, end, g);
    g->token0 = 0;
    g->token_end = p->rows.n_decode;
    r = run(cu, g, p->part[first].w, true);
    if (r == 0) {
        g->token0 = p->rows.n_decode;
        g->token_end = p->rows.n;
        r = run(cu, g, p->part[first].w, false);
    }
    return r;
}

static bool valid(const struct cuda *cu, const struct ops_matmul *p)
{
    if (p->n_parts < 1 || p->n_parts > OPS_MATMUL_MAX_PARTS || p->rows.n > cu->limits.max_rows ||
        p->part[0].w->n_cols > cu->limits.max_cols) {
        return false;
    }
    for (int i = 1; i < p->n_parts; i++) {
        if (p->part[i].w->n_cols != p->part[0].w->n_cols) {
            return false;
        }
    }
    return !p->gated ||
           (p->n_parts == 2 && !p->add && p->part[0].w->n_rows == p->part[1].w->n_rows &&
            p->part[0].w->type == p->part[1].w->type);
}

int cuda_matmul(struct backend *be, const struct ops_matmul *p)
{
    struct cuda *cu = cuda_of(be);
    const struct cuda_scratch *s = &cu->scratch;
    struct gemm g = {};
    int prepared = -1;
    int r = 0;

    if (!valid(cu, p)) {
        return -EINVAL;
    }
    g.n_cols = p->part[0].w->n_cols;
    g.pad = (g.n_cols + 255) / 256 * 256;
    g.ldx = g.pad;
    g.piece = (uint64_t)cu->limits.max_rows * (uint64_t)g.pad;
    g.xf = s->xf;
    g.xq = s->xq;
    g.xd = s->xd;
    g.xs = s->xs;
    g.xh = s->xh;
    g.xe = s->xe;
    g.gated = p->gated;
    g.add = p->add;
    for (int first = 0; first < p->n_parts && p->rows.n > 0 && r == 0;) {
        const struct ops_weight *w = p->part[first].w;
        int end = first + 1;

        while (end < p->n_parts && p->part[end].w->type == w->type &&
               p->part[end].w->role == w->role) {
            end++;
        }
        g.pitch = (int32_t)(((int64_t)g.n_cols * (w->type == DTYPE_F32 ? 4 : 2) + 63) / 64 * 64);
        if (fuses(p, w, g.pad)) {
            r = run_fused(cu, p, first, end, &g);
            first = end;
            continue;
        }
        if (prepared != (int)form_of(w->type)) {
            prepared = form_of(w->type);
            r = prepare(cu, p, form_of(w->type), &g);
        }
        if (r == 0) {
            r = run_parts(cu, p, first, end, &g);
        }
        first = end;
    }
    return r;
}
