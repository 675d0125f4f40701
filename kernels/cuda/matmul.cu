/* SPDX-License-Identifier: Apache-2.0 */
/* y = norm(x) W^T + bias, activated, gated or added: preparation of the activations, and which
 * kernel runs.
 *
 * The products of q, k and v of decode rows store what they give (gemm_heads.cuh).
 *
 * A single decode row of 16-bit weights is normalised and cut into pieces by the kernel that
 * multiplies (norm_stream_half), to the same bits. Else one kernel normalises each row once and
 * writes it in the form that the weights' kernels read:
 *   f32   as it is
 *   q8    8 bits by blocks of 32 (scale absmax / 127), in fragment order; for the output head also
 *         what that left, in 8 bits of 1/254 of a step. A row alone has them from the kernel ahead
 *         where that is a product, or the end of attention, that is still only written down
 *         (cuda_call_offer): then this kernel is not launched
 *   f16   two f16 pieces, of the row divided by a power of two that brings its largest value below
 *         2^15
 *   bf16  two bf16 pieces
 *
 * Two pieces keep 22 bits in f16 and 16 in bf16 (a value is off by 2^-18 of itself at most), and
 * the weights stream by once. Prefill rows use one: there arithmetic is the limit, and a 16-bit
 * weight meets a 16-bit activation (docs/design/cuda.md). So do quantised weights that cublasLt
 * multiplies as bf16. A row with NaN or infinity gives NaN.
 *
 * What gate and up of prefill rows give comes in bf16 from lt_pass (cublas_products.cu), to the
 * same bits, where the matmul says who reads it (ops_matmul.reader). Then those rows are not
 * prepared. */

#include <cerrno>

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/cublas.cuh"
#include "kernels/cuda/gemm_heads.cuh"

enum { PREP_THREADS = 256, PREPARED_LT = GEMM_BF16 + 1 /* beside enum gemm_form */ };

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
    int32_t n_apart; /* rows whose norm's factor is apart, in xe */
    int32_t n_pieces; /* rows that have two of 16 bits */
    int32_t slice;   /* columns of a block, a multiple of 256 */
    int32_t form;    /* enum gemm_form */
    bool exact;
};

/* 1 / rms of a row, by all threads, valid in the first warp; `sums` is shared (CODES_NORMED / 128).
 */
CUDA_INLINE float prep_inv(const struct prep *p, const float *x, float *sums)
{
    int lane = (int)threadIdx.x % WARP;

    for (int32_t i = (int32_t)threadIdx.x / WARP; i * 128 < p->n_cols; i += PREP_THREADS / WARP) {
        float s[4];

#pragma unroll
        for (int k = 0; k < 4; k++) {
            int32_t c = i * 128 + k * WARP + lane;
            float v = c < p->n_cols ? x[c] : 0.0f;

            s[k] = codes_sum(__fmul_rn(v, v));
        }
        sums[i] = __fadd_rn(__fadd_rn(s[0], s[1]), __fadd_rn(s[2], s[3]));
    }
    __syncthreads(); /* sums: written by a warp each, read by the first one */
    return codes_inv(p->n_cols, p->norm.eps, [sums](int32_t i) { return sums[i]; });
}

/* Blocks of 32 of columns [from, end), a warp each. */
CUDA_INLINE void prep_q8(const struct prep *p, const float *x, int32_t from, int32_t end,
                         float *part, float *sums)
{
    uint64_t token = blockIdx.x;
    bool apart = (int32_t)blockIdx.x < p->n_apart;
    uint8_t *xq = p->xq + token * p->pad;
    struct row_norm r = {0.0f, 1.0f};

    if (!apart) {
        r = row_norm_of<PREP_THREADS>(&p->norm, x, p->n_cols, part);
    }
    for (int32_t b = from / 32 + (int32_t)threadIdx.x / WARP; b < end / 32;
         b += PREP_THREADS / WARP) {
        int32_t c = b * 32 + (int32_t)threadIdx.x % WARP;
        float v = c < p->n_cols ? x[c] : 0.0f;

        if (c < p->n_cols) {
            v = apart ? __fmul_rn(v, p->norm.w[c]) : row_normed(&p->norm, r, v, c);
        }
        codes_block(v, b, xq, p->xd + token * (p->pad / 32), p->xs + token * (p->pad / 32),
                    p->exact ? xq + p->piece : NULL);
    }
    if (from == 0) { /* one block of the row's */
        float inv = apart ? prep_inv(p, x, sums) : 1.0f;

        if (threadIdx.x == 0) {
            p->xe[token] = inv;
        }
    }
}

/* Columns [from, end); an f16 row's factor is that of all its columns. */
CUDA_INLINE void prep_half(const struct prep *p, const float *x, struct row_norm r, int32_t from,
                           int32_t end, float *part)
{
    uint64_t token = blockIdx.x;
    bool bf16 = p->form == GEMM_BF16;
    float scale = 1.0f;
    float top = 0.0f;

    for (int32_t c = (int32_t)threadIdx.x; c < p->n_cols && !bf16; c += PREP_THREADS) {
        top = fmaxf(top, fabsf(row_normed(&p->norm, r, x[c], c)));
    }
    if (!bf16) {
        scale = half_scale(block_max(top, part, PREP_THREADS / WARP));
        if (threadIdx.x == 0 && from == 0) {
            p->xe[token] = 1.0f / scale; /* a power of two: exact */
        }
    }
    for (int32_t c = from + (int32_t)threadIdx.x; c < end; c += PREP_THREADS) {
        float v = c < p->n_cols ? row_normed(&p->norm, r, x[c], c) * scale : 0.0f;
        uint16_t *to = p->xh + token * p->pad + c;

        if ((int32_t)blockIdx.x >= p->n_pieces) {
            *to = bf16 ? half_piece<true>(v) : half_piece<false>(v);
        } else if (bf16) {
            half_pieces<true>(v, to, p->piece);
        } else {
            half_pieces<false>(v, to, p->piece);
        }
    }
}

/* A row is shared out among blocks, each of which forms the norm's sums for itself: they are a
 * fraction of the work, and a row's bits do not depend on how many share it. */
CUDA_KERNEL void prepare_rows(struct prep p)
{
    __shared__ float part[32];
    __shared__ float sums[CODES_NORMED / 128];
    const float *x = p.x + (size_t)blockIdx.x * p.ldx;
    int32_t from = (int32_t)blockIdx.y * p.slice;
    int32_t end = min(from + p.slice, p.pad);
    struct row_norm r;

    grid_begin();
    row_norm_fetch<PREP_THREADS>(&p.norm, p.n_cols);
    grid_wait();
    if (p.form == GEMM_Q8) {
        prep_q8(&p, x, from, end, part, sums);
        return;
    }
    r = row_norm_of<PREP_THREADS>(&p.norm, x, p.n_cols, part);
    if (p.form == GEMM_F16 || p.form == GEMM_BF16) {
        prep_half(&p, x, r, from, end, part);
    } else {
        for (int32_t c = from + (int32_t)threadIdx.x; c < min(end, p.n_cols); c += PREP_THREADS) {
            p.xf[(size_t)blockIdx.x * p.pad + c] = row_normed(&p.norm, r, x[c], c);
        }
    }
}

/* ---- dispatch ------------------------------------------------------------------------------- */

enum gemm_form cuda_gemm_form(enum dtype type)
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

/* Blocks of 512 columns or more, at most four a multiprocessor. */
static int32_t slice_of(const struct cuda *cu, int32_t n_rows, int32_t pad)
{
    int32_t most = 4 * cu->n_sms / n_rows;
    int32_t slices = pad / 512 < most ? pad / 512 : most;
    int32_t columns = slices > 1 ? (pad + slices - 1) / slices : pad;

    return (columns + 255) / 256 * 256;
}

void cuda_gemm_begin(const struct cuda *cu, int32_t n_cols, struct gemm *g)
{
    const struct cuda_scratch *s = &cu->scratch;

    *g = {};
    g->n_cols = n_cols;
    g->pad = (n_cols + 255) / 256 * 256;
    g->ldx = g->pad;
    g->piece = (uint64_t)cuda_prepared_rows(&cu->limits) * (uint64_t)g->pad;
    g->xf = s->xf;
    g->xq = s->xq;
    g->xd = s->xd;
    g->xs = s->xs;
    g->xh = s->xh;
    g->xe = s->xe;
}

int32_t cuda_gemm_pitch(enum dtype type, int32_t n_cols)
{
    return (int32_t)(((int64_t)n_cols * (type == DTYPE_F32 ? 4 : 2) + 63) / 64 * 64);
}

/* Norms whose factor may be apart. */
static bool is_apart(const struct cuda_norm *norm, int32_t n_cols)
{
    return norm->w && !norm->b && !norm->layer && n_cols <= CODES_NORMED;
}

int cuda_gemm_prepare(struct cuda *cu, const struct cuda_norm *norm, const float *x, int32_t ldx,
                      int32_t n, int32_t n_apart, int32_t n_pieces, enum gemm_form form, bool exact,
                      const struct gemm *g)
{
    const struct cuda_scratch *s = &cu->scratch;
    struct prep prep = {};

    prep.norm = *norm;
    prep.x = x;
    prep.xf = s->xf;
    prep.xq = s->xq;
    prep.xd = s->xd;
    prep.xs = s->xs;
    prep.xh = s->xh;
    prep.xe = s->xe;
    prep.piece = g->piece;
    prep.ldx = ldx;
    prep.n_cols = g->n_cols;
    prep.pad = g->pad;
    prep.form = form;
    prep.exact = exact;
    prep.n_apart = is_apart(&prep.norm, g->n_cols) ? n_apart : 0;
    prep.n_pieces = n_pieces;
    prep.slice = slice_of(cu, n, g->pad);
    CUDA_LAUNCH_EARLY(cu, dim3((unsigned)n, cuda_div_up((uint64_t)g->pad, (uint64_t)prep.slice)),
                      dim3(PREP_THREADS), 0, prepare_rows, prep);
    return cuda_launched(cu, "prepare_rows");
}

/* Where one of the two rows of codes lies. */
static struct cuda_codes row_codes(const struct cuda *cu, int i, const struct gemm *g)
{
    uint64_t cols = ((uint64_t)cu->limits.max_cols + 255) / 256 * 256;
    struct cuda_codes c = {};

    c.xq = cu->scratch.row_codes + (uint64_t)i * CUDA_CODES_BYTES(cols);
    c.xd = reinterpret_cast<float *>(c.xq + cols);
    c.xs = c.xd + cols / 32;
    c.squares = c.xs + cols / 32;
    c.blocks = g->n_cols / 32;
    c.padded = g->pad / 32;
    return c;
}

/* Has the kernel ahead make the codes of the one row that it gave, if it can; g is to read them. */
static bool made_ahead(struct cuda *cu, const struct ops_matmul *p, const struct cuda_norm *norm,
                       struct gemm *g)
{
    bool normed = norm->w != NULL;
    const uint8_t *reads = NULL;
    struct cuda_codes *ahead;
    struct cuda_codes c;

    if (p->rows.n != 1 || p->rows.n_decode != 1 || g->n_cols % 32 != 0 ||
        (normed && !is_apart(norm, g->n_cols))) {
        return false;
    }
    ahead = cuda_call_offered(cu, p->x, g->n_cols, &reads);
    if (!ahead) {
        return false;
    }
    c = row_codes(cu, 0, g);
    c = reads == c.xq ? row_codes(cu, 1, g) : c;
    c.w = norm->w;
    c.squares = normed ? c.squares : NULL;
    *ahead = c;
    g->xq = c.xq;
    g->xd = c.xd;
    g->xs = c.xs;
    g->xe = NULL;
    g->squares = c.squares;
    g->eps = norm->eps;
    return true;
}

/* `n`: rows that are prepared, but for those that were passed. */
static int prepare(struct cuda *cu, const struct ops_matmul *p, int32_t n, enum gemm_form form,
                   struct gemm *g)
{
    const struct cuda_scratch *s = &cu->scratch;
    struct cuda_norm norm = cuda_norm_of(&p->norm);
    bool exact = false; /* the head: all rows by the kernels of decode rows */

    for (int i = 0; i < p->n_parts; i++) {
        exact = exact || p->part[i].w->role == OPS_ROLE_EMBED;
    }
    if (form == GEMM_Q8 && !exact && made_ahead(cu, p, &norm, g)) {
        return 0;
    }
    g->xq = s->xq;
    g->xd = s->xd;
    g->xs = s->xs;
    g->xe = s->xe;
    g->squares = NULL;
    return n == 0 ? 0
                  : cuda_gemm_prepare(cu, &norm, p->x, p->ldx, n, p->rows.n_decode,
                                      exact ? n : p->rows.n_decode, form, exact, g);
}

/* Quantised weights that cublasLt takes: codes of the decode rows, bf16 for the others, if they are
 * among the n. */
static int prepare_lt(struct cuda *cu, const struct ops_matmul *p, int32_t n, struct gemm *g)
{
    const struct cuda_scratch *s = &cu->scratch;
    struct cuda_norm norm = cuda_norm_of(&p->norm);
    int32_t n_decode = p->rows.n_decode;
    int r = 0;

    g->xq = s->xq;
    g->xd = s->xd;
    g->xs = s->xs;
    g->xe = s->xe;
    g->squares = NULL;
    if (n_decode > 0) {
        r = cuda_gemm_prepare(cu, &norm, p->x, p->ldx, n_decode, n_decode, 0, GEMM_Q8, false, g);
    }
    return r < 0 || n == n_decode
               ? r
               : cuda_gemm_prepare(cu, &norm, p->x, p->ldx, n, 0, 0, GEMM_BF16, false, g);
}

/* Tokens [g->token0, g->token_end) of parts of one type; `lt`: quantised, of any type each, and
 * cublasLt takes them. */
static int run(struct cuda *cu, struct gemm *g, const struct ops_weight *const *weights,
               bool decode, bool lt, const struct cuda_store *store)
{
    const struct ops_weight *w = weights[0];
    bool head = w->role == OPS_ROLE_EMBED;

    if (g->token0 == g->token_end) {
        return 0;
    }
    if (store) {
        return cuda_gemm_form(w->type) == GEMM_Q8
                   ? cuda_gemm_q_store(cu, g, w->type, store)
                   : cuda_gemm_half_store(cu, g, w->type == DTYPE_BF16, store);
    }
    switch (cuda_gemm_form(w->type)) {
    case GEMM_F32:
        return cuda_gemm_f32(cu, g);
    case GEMM_Q8:
        return decode || head ? cuda_gemm_q_stream(cu, g, w->type, head)
               : lt           ? cuda_lt_products(cu, g, weights)
                              : cuda_gemm_q_tiles(cu, g, w->type);
    default:
        return decode || head ? cuda_gemm_half_stream(cu, g, w->type == DTYPE_BF16)
                              : cuda_lt_products(cu, g, weights);
    }
}

/* Parts [first, end). */
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
        part->scale = ops_factor(p->part[i].scale);
        part->bias_scale = ops_factor(p->part[i].bias_scale);
    }
}

/* One decode row of 16-bit weights needs no preparation of its own. */
static bool fuses(const struct ops_matmul *p, const struct ops_weight *w)
{
    enum gemm_form form = cuda_gemm_form(w->type);

    return p->rows.n == 1 && p->rows.n_decode == 1 && (form == GEMM_F16 || form == GEMM_BF16);
}

static int run_fused(struct cuda *cu, const struct ops_matmul *p, int first, int end,
                     struct gemm *g, const struct cuda_store *store)
{
    struct cuda_norm norm = cuda_norm_of(&p->norm);
    bool bf16 = p->part[first].w->type == DTYPE_BF16;

    take_parts(p, first, end, g);
    g->token0 = 0;
    g->token_end = 1;
    return store ? cuda_gemm_half_fused_store(cu, g, bf16, &norm, p->x, store)
                 : cuda_gemm_half_fused(cu, g, bf16, &norm, p->x);
}

/* So do a few by bf16 weights where there is no norm; an f16 row has a factor. */
static bool is_raw(const struct ops_matmul *p, const struct ops_weight *w,
                   const struct cuda_store *store)
{
    return p->rows.n > 1 && p->rows.n <= 8 && p->rows.n_decode == p->rows.n && !p->norm.w &&
           w->type == DTYPE_BF16 && !store;
}

static int run_raw(struct cuda *cu, const struct ops_matmul *p, int first, int end, struct gemm g)
{
    take_parts(p, first, end, &g);
    g.token0 = 0;
    g.token_end = p->rows.n;
    g.xf = p->x;
    g.ldx = p->ldx;
    return cuda_gemm_half_raw(cu, &g);
}

/* The end of the parts from `first` on that have its type and role. */
static int same_until(const struct ops_matmul *p, int first, int end)
{
    int i = first + 1;

    while (i < end && p->part[i].w->type == p->part[first].w->type &&
           p->part[i].w->role == p->part[first].w->role) {
        i++;
    }
    return i;
}

static int run_parts(struct cuda *cu, const struct ops_matmul *p, int first, int end, bool lt,
                     const struct cuda_passed *passed, struct gemm *g,
                     const struct cuda_store *store)
{
    const struct ops_weight *weights[OPS_MATMUL_MAX_PARTS];
    const uint16_t *xh = g->xh;
    int r = 0;

    for (int i = first; i < end; i++) {
        weights[i] = p->part[i].w;
    }
    for (int at = first; at < end && r == 0;) {
        int to = same_until(p, at, end);

        take_parts(p, at, to, g);
        g->token0 = 0;
        g->token_end = p->rows.n_decode;
        r = run(cu, g, &weights[at], true, lt, store);
        at = to;
    }
    if (r == 0) {
        take_parts(p, first, end, g);
        g->token0 = p->rows.n_decode;
        g->token_end = p->rows.n;
        g->xh = passed ? passed->xh : xh;
        r = run(cu, g, &weights[first], false, lt, NULL);
        g->xh = xh;
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
    for (int i = 0; i < p->n_parts && !p->gated; i++) {
        if (p->part[i].act == OPS_ACT_SWIGLU_OAI) {
            return false;
        }
    }
    return !p->gated ||
           (p->n_parts == 2 && !p->add && p->part[0].w->n_rows == p->part[1].w->n_rows &&
            p->part[0].w->type == p->part[1].w->type);
}

/* Are the parts' weights quantised, prefill rows among the rows, and all theirs by cublasLt? */
static bool by_lt(const struct cuda *cu, const struct ops_matmul *p, int first, int end)
{
    bool all = p->rows.n > p->rows.n_decode && cuda_gemm_form(p->part[first].w->type) == GEMM_Q8;

    for (int i = first; i < end && all; i++) {
        all = cuda_lt_takes(cu, p->part[i].w);
    }
    return all;
}

/* Does this matmul read what the one before passed? Another one comes behind it only where a step
 * has failed in between. */
static bool reads(const struct ops_matmul *p, const struct cuda_passed *passed)
{
    return passed->reader && p->n_parts == 1 && p->part[0].w == passed->reader &&
           p->x == passed->y && !p->norm.w;
}

/* `store`: what the parts write are heads, which the products store; or NULL. */
static int multiply(struct cuda *cu, const struct ops_matmul *p, struct cuda_store *store)
{
    int32_t kind = store ? store->first : 0; /* of part 0 */
    struct cuda_passed last = cu->passed;
    const struct cuda_passed *passed = reads(p, &last) ? &last : NULL;
    int32_t n = passed ? p->rows.n_decode : p->rows.n; /* rows that are prepared */
    struct gemm g;
    int prepared = -1;
    int r = 0;

    cu->passed = {};
    if (!valid(cu, p)) {
        return -EINVAL;
    }
    cuda_gemm_begin(cu, p->part[0].w->n_cols, &g);
    g.gated = p->gated;
    g.add = p->add;
    for (int first = 0; first < p->n_parts && p->rows.n > 0 && r == 0;) {
        const struct ops_weight *w = p->part[first].w;
        int end = same_until(p, first, p->n_parts);

        g.pitch = cuda_gemm_pitch(w->type, g.n_cols);
        if (store) {
            store->first = kind + first;
        }
        if (fuses(p, w)) {
            r = run_fused(cu, p, first, end, &g, store);
            first = end;
            continue;
        }
        if (is_raw(p, w, store)) {
            r = run_raw(cu, p, first, end, g);
            first = end;
            continue;
        }
        bool lt = by_lt(cu, p, first, end);
        int form = lt ? PREPARED_LT : (int)cuda_gemm_form(w->type);

        while (lt && !p->gated && end < p->n_parts && by_lt(cu, p, end, end + 1)) {
            end++; /* unpacked, types are the same */
        }
        if (prepared != form) {
            prepared = form;
            r = lt ? prepare_lt(cu, p, n, &g) : prepare(cu, p, n, cuda_gemm_form(w->type), &g);
        }
        if (r == 0) {
            r = run_parts(cu, p, first, end, lt, passed, &g, store);
        }
        first = end;
    }
    return r;
}

int cuda_matmul(struct backend *be, const struct ops_matmul *p)
{
    struct cuda *cu = cuda_of(be);
    int r;

    cu->passing = p->reader && cuda_lt_reads(cu, p->reader) ? p->reader : NULL;
    r = multiply(cu, p, NULL);
    cu->passing = NULL;
    return r;
}

/* ---- q, k and v, and their store ------------------------------------------------------------ */

/* Does part i give n heads of `dim` to y, as they are? */
static bool gives_heads(const struct ops_matmul *p, int i, int32_t n, int32_t dim, const float *y,
                        int32_t ldy)
{
    const struct ops_weight *w = p->part[i].w;

    return i < p->n_parts && w->type != DTYPE_F32 && w->role == OPS_ROLE_MATMUL &&
           p->rows.n <= (cuda_gemm_form(w->type) == GEMM_Q8 ? GEMM_Q_STORES : GEMM_STORES) &&
           w->n_rows == n * dim && p->part[i].act == OPS_ACT_NONE && p->part[i].y == y &&
           p->part[i].ldy == ldy;
}

/* Decode rows, few enough for one launch's parameters and one block's tokens, of weights that the
 * streaming kernels read and for caches that their stores know. Sets store->seqs. */
static bool stores(const struct cuda *cu, const struct ops_matmul *p,
                   const struct ops_rope_store *s, struct cuda_store *store)
{
    int32_t n = p->rows.n;
    int32_t n_seq_rows = 0;
    int i = 0;

    if (n < 1 || p->rows.n_decode != n || p->gated || p->add || s->n_seqs > CUDA_SEQS ||
        s->n_seqs < 1 || s->rows.n != n || s->rows.n_decode != n || s->seqs[0].row0 != 0 ||
        s->n_q + s->n_k + s->n_v > 3 * cu->limits.max_heads ||
        cuda_seqs_take(s->seqs, 0, s->n_seqs, &store->seqs) != s->n_seqs) {
        return false;
    }
    for (int32_t j = 0; j < s->n_seqs; j++) {
        n_seq_rows += s->seqs[j].n_rows;
        if (s->seqs[j].kv.v_hadamard || kv_four(s->seqs[j].kv.layout->v_type)) {
            return false;
        }
    }
    if (n_seq_rows != n || (s->n_q > 0 && !gives_heads(p, i++, s->n_q, s->k_dim, s->q, s->ldq)) ||
        (s->n_k > 0 && !gives_heads(p, i++, s->n_k, s->k_dim, s->k, s->ldk)) ||
        (s->n_v > 0 && !gives_heads(p, i++, s->n_v, s->seqs[0].kv.layout->v_dim, s->v, s->ldv))) {
        return false;
    }
    return i == p->n_parts && i > 0 && (s->n_k > 0) == (s->n_v > 0);
}

int cuda_qkv_store(struct backend *be, const struct ops_matmul *p, const struct ops_rope_store *s)
{
    struct cuda *cu = cuda_of(be);
    struct cuda_store store = cuda_store_of(s);
    int r = cuda_store_check(cu, s);

    if (r < 0) {
        return r;
    }
    if (!stores(cu, p, s, &store)) {
        r = cuda_matmul(be, p);
        return r < 0 ? r : cuda_rope_store(be, s);
    }
    store.arrived = cu->scratch.arrived;
    store.first = s->n_q > 0 ? STORE_Q : STORE_K;
    r = cuda_kv_sum_drop(cu, &store.seqs, store.n_decode);
    return r < 0 ? r : multiply(cu, p, &store);
}
