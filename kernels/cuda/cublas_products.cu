/* SPDX-License-Identifier: Apache-2.0 */
/* Products of prompts' rows by cublasLt: which of them it multiplies, and sums that are not the
 * output yet.
 *
 * A quantised weight is unpacked to bf16 in scratch (unpack.cu) just before each product, in slabs
 * of rows where scratch does not hold all of it: 128 MiB do, of a weight of an 8B model. Such
 * buffers do not stay in L2 (50 MB), and need not: writing 2 bytes a weight to memory is 3.5 of an
 * 8B chunk's some 76 ms on an H200, while slabs of 32 MB would leave 14336 columns 1,168 rows, by
 * 2,048 activations 80 tiles of 128 x 256 on 132 multiprocessors, and its products half as fast
 * again. So cut weights are cut by 2,048 rows, whose tiles are whole waves.
 *
 * That is done for any number of rows, one, too: what decides may not be the row's company, nor
 * where chunks end. It need not decide. By 16 rows the own tiles take some 0.3 ms a layer of 8B on
 * an H200 (a block of 64 tokens takes its 45 us or more, with whatever is in it), unpacking takes
 * 0.16 and the product 0.11. */

#include "kernels/cuda/cublas_calls.cuh"

#if CUDA_LT

enum { FINISH_THREADS = 256, FINISH_ROWS = 1024 /* outputs of a block */ };

struct lt_sums {
    const float *sum; /* (tokens, ld) */
    const float *up;  /* (tokens, ld_up), of a gated pair, else NULL */
    int64_t ld, ld_up;
    int32_t token0; /* of row 0 */
    int32_t part;
    bool scaled; /* by the token's factor of f16 */
};

CUDA_KERNEL void __launch_bounds__(FINISH_THREADS) lt_finish(struct gemm p, struct lt_sums s)
{
    int32_t token = s.token0 + (int32_t)blockIdx.y;
    const float *sum = s.sum + (int64_t)blockIdx.y * s.ld;
    const float *up = s.up + (int64_t)blockIdx.y * s.ld_up;
    float scale = s.scaled ? p.xe[token] : 1.0f;
    int32_t end = min((int32_t)(blockIdx.x + 1) * FINISH_ROWS, p.part[s.part].n_rows);

    for (int32_t row = (int32_t)blockIdx.x * FINISH_ROWS + (int32_t)threadIdx.x; row < end;
         row += FINISH_THREADS) {
        if (s.up) {
            gemm_finish_gated(&p, row, token, sum[row] * scale, up[row] * scale);
        } else {
            gemm_finish(&p, s.part, row, token, sum[row] * scale);
        }
    }
}

static int finish(struct cuda *cu, const struct gemm *p, const struct lt_sums &s, int32_t n)
{
    dim3 grid(cuda_div_up((uint64_t)p->part[s.part].n_rows, FINISH_ROWS), (unsigned)n);

    CUDA_LAUNCH(cu, grid, dim3(FINISH_THREADS), 0, lt_finish, *p, s);
    return cuda_launched(cu, "lt_finish");
}

/* May the library write there? At the distance of rows that its algorithm was tried with alone. */
static bool straight(const struct gemm_part *to)
{
    return to->ldy == lt_sums_ld(to->n_rows) && reinterpret_cast<uintptr_t>(to->y) % LT_ALIGN == 0;
}

/* What gate and up give, in bf16, as prepare_rows would make it of y: four outputs a thread. */
CUDA_KERNEL void __launch_bounds__(FINISH_THREADS)
    lt_pass(struct gemm p, struct lt_sums s, uint16_t *to)
{
    int32_t n_rows = p.part[0].n_rows;
    int32_t ld = (n_rows + 255) / 256 * 256;
    int32_t row = (int32_t)blockIdx.x * FINISH_ROWS + (int32_t)threadIdx.x * 4;
    const float *sum = s.sum + (int64_t)blockIdx.y * s.ld + row;
    const float *up = s.up + (int64_t)blockIdx.y * s.ld_up + row;
    float g[4] = {};
    float u[4] = {};
    float v[4];

    if (row >= ld) {
        return;
    }
    if (row + 4 <= n_rows && n_rows % 4 == 0) { /* sums lie by fours then */
        float4 g4 = *reinterpret_cast<const float4 *>(sum);
        float4 u4 = *reinterpret_cast<const float4 *>(up);

        g[0] = g4.x, g[1] = g4.y, g[2] = g4.z, g[3] = g4.w;
        u[0] = u4.x, u[1] = u4.y, u[2] = u4.z, u[3] = u4.w;
    } else {
        for (int i = 0; i < 4; i++) {
            g[i] = row + i < n_rows ? sum[i] : 0.0f;
            u[i] = row + i < n_rows ? up[i] : 0.0f;
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[i] = row + i < n_rows ? gemm_gated(&p, row + i, g[i], u[i]) : 0.0f;
    }
    *reinterpret_cast<uint2 *>(to + (int64_t)(s.token0 + (int32_t)blockIdx.y) * ld + row) =
        make_uint2(half2_of_f32<true>(v[0], v[1]), half2_of_f32<true>(v[2], v[3]));
}

static int pass(struct cuda *cu, const struct gemm *p, const struct lt_sums &s, int32_t n)
{
    dim3 grid(cuda_div_up((uint64_t)p->part[0].n_rows, FINISH_ROWS), (unsigned)n);

    cu->passed = {cu->passing, p->part[0].y, cu->scratch.passed};
    CUDA_LAUNCH(cu, grid, dim3(FINISH_THREADS), 0, lt_pass, *p, s, cu->scratch.passed);
    return cuda_launched(cu, "lt_pass");
}

static int finish_gated(struct cuda *cu, const struct gemm *p, const struct lt_sums &s, int32_t n)
{
    return cu->passing && !s.scaled ? pass(cu, p, s, n) : finish(cu, p, s, n);
}

/* y (n, ldy) = x W^T, + y when `add`; a quantised weight slab by slab. */
static int weight(struct cuda *cu, const struct gemm *p, int part, enum dtype type,
                  const uint16_t *x, int32_t n, float *y, int32_t ldy, bool add)
{
    const struct gemm_part *w = &p->part[part];
    bool plain = cuda_gemm_form(type) != GEMM_Q8;
    int32_t step = lt_slab_rows(cu, type, w->n_rows, p->n_cols);
    uint16_t *slab = cu->scratch.lt_slab;
    int r = 0;

    for (int32_t row = 0; row < w->n_rows && r == 0; row += step) {
        int32_t n_rows = min(w->n_rows - row, step);
        const struct lt_shape *s =
            lt_find(cu->lt, n_rows, p->n_cols, lt_sums_ld(w->n_rows), type != DTYPE_F16);

        r = plain ? 0
                  : cuda_unpack(cu, type, w->w, row, n_rows, p->n_cols, slab, lt_w_pad(p->n_cols));
        r = r < 0 ? r
                  : lt_product(cu, s, plain ? w->w : reinterpret_cast<const uint8_t *>(slab), x, n,
                               y + row, ldy, add);
    }
    return r;
}

/* Is the sum the output, but for what it is added to? */
static bool is_sum(const struct gemm_part *to, bool bf16)
{
    return bf16 && to->act == OPS_ACT_NONE && to->scale == 1.0f && !to->bias;
}

static int one_part(struct cuda *cu, const struct gemm *p, int part, enum dtype type)
{
    const struct gemm_part *to = &p->part[part];
    bool direct = is_sum(to, type != DTYPE_F16) && straight(to);
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = lt_sums_ld(to->n_rows);
    sums.part = part;
    sums.scaled = type == DTYPE_F16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += cu->lt->max_rows) {
        int32_t n = min(p->token_end - t, cu->lt->max_rows);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;

        if (direct) {
            r = weight(cu, p, part, type, x, n, to->y + (int64_t)t * to->ldy, to->ldy, p->add);
            continue;
        }
        sums.token0 = t;
        r = weight(cu, p, part, type, x, n, cu->scratch.lt_sums, sums.ld, false);
        r = r < 0 ? r : finish(cu, p, sums, n);
    }
    return r;
}

/* The gate's sums in scratch, the up projection's where the output will be; or both in scratch. */
static int gated(struct cuda *cu, const struct gemm *p, enum dtype type)
{
    const struct gemm_part *to = &p->part[0];
    int32_t ld = lt_sums_ld(to->n_rows);
    bool direct = straight(to);
    int32_t most = direct ? cu->lt->max_rows : (cu->lt->max_rows + 1) / 2;
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = sums.ld_up = ld;
    sums.scaled = type == DTYPE_F16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += most) {
        int32_t n = min(p->token_end - t, most);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;
        float *up = direct ? to->y + (int64_t)t * to->ldy
                           : cu->scratch.lt_sums + (int64_t)most * ld;

        sums.token0 = t;
        sums.up = up;
        r = weight(cu, p, 0, type, x, n, cu->scratch.lt_sums, ld, false);
        r = r < 0 ? r : weight(cu, p, 1, type, x, n, up, ld, false);
        r = r < 0 ? r : finish_gated(cu, p, sums, n);
    }
    return r;
}

/* ---- several weights as one ----------------------------------------------------------------- */

/* Parts whose weights one product takes. */
struct lt_joined {
    const struct lt_shape *shape; /* NULL: there is no such product */
    bool plain;
    bool direct; /* into the outputs, which lie side by side */
};

/* Do the outputs of each row of activations lie one behind the other, as the weights do? */
static bool side_by_side(const struct gemm *p, bool bf16)
{
    bool all = true;

    for (int i = 0; i < p->n_parts && all; i++) {
        all = is_sum(&p->part[i], bf16) && p->part[i].ldy == p->part[0].ldy &&
              (i == 0 || p->part[i].y == p->part[i - 1].y + p->part[i - 1].n_rows);
    }
    return all;
}

static bool any_sum(const struct gemm *p, bool bf16)
{
    bool any = false;

    for (int i = 0; i < p->n_parts; i++) {
        any = any || is_sum(&p->part[i], bf16);
    }
    return any;
}

/* Only what the model says is one (ops_weight_desc.joins): q, k and v, or gate and up. Others of
 * a call, as stores that are filled together, could fit a shape by chance, and their rows' bits
 * would depend on how many they are. The rows of a call do not decide. Outputs that the library
 * would write one by one, but cannot in one product, stay apart: to bring them there from sums in
 * scratch takes as long as is won. */
static struct lt_joined join(const struct cuda *cu, const struct gemm *p,
                             const struct ops_weight *const *weights)
{
    bool bf16 = weights[0]->type != DTYPE_F16;
    struct lt_joined j = {};
    int64_t n_rows = 0;
    const struct lt_shape *s;

    j.plain = cuda_gemm_form(weights[0]->type) != GEMM_Q8;
    for (int i = 0; i < p->n_parts; i++) {
        const uint8_t *end = i > 0 ? p->part[i - 1].w + (uint64_t)p->part[i - 1].n_rows *
                                                            (uint64_t)p->pitch
                                   : NULL;

        if (j.plain && i > 0 && p->part[i].w != end) {
            return j;
        }
        n_rows += p->part[i].n_rows;
    }
    if (p->n_parts != (p->gated ? 2 : 3) || n_rows > INT32_MAX / 2) {
        return j;
    }
    s = lt_find(cu->lt, (int32_t)n_rows, p->n_cols, lt_sums_ld((int32_t)n_rows), bf16);
    j.direct = !p->gated && side_by_side(p, bf16) &&
               p->part[0].ldy == lt_sums_ld((int32_t)n_rows) &&
               reinterpret_cast<uintptr_t>(p->part[0].y) % LT_ALIGN == 0;
    if (s && s->served && (p->gated || j.direct || !any_sum(p, bf16)) &&
        lt_most(cu->lt, s->ldy) > 0 &&
        lt_slab_rows(cu, weights[0]->type, (int32_t)n_rows, p->n_cols) >= n_rows) {
        j.shape = s;
    }
    return j;
}

/* The weights' values, of quantised ones in scratch. */
static int values_of(struct cuda *cu, const struct gemm *p,
                     const struct ops_weight *const *weights, const struct lt_joined &j,
                     const uint8_t **ret)
{
    int32_t ld = lt_w_pad(p->n_cols);
    uint16_t *to = cu->scratch.lt_slab;
    int r = 0;

    *ret = j.plain ? p->part[0].w : reinterpret_cast<const uint8_t *>(to);
    for (int i = 0; i < p->n_parts && !j.plain && r == 0; i++) {
        r = cuda_unpack(cu, weights[i]->type, p->part[i].w, 0, p->part[i].n_rows, p->n_cols, to,
                        ld);
        to += (int64_t)p->part[i].n_rows * ld;
    }
    return r;
}

/* Sums of all parts lie side by side in scratch. */
static int finish_joined(struct cuda *cu, const struct gemm *p, struct lt_sums sums, int32_t n)
{
    int r = 0;

    if (p->gated) {
        sums.up = sums.sum + p->part[0].n_rows;
        return finish_gated(cu, p, sums, n);
    }
    for (int i = 0; i < p->n_parts && r == 0; i++) {
        sums.part = i;
        r = finish(cu, p, sums, n);
        sums.sum += p->part[i].n_rows;
    }
    return r;
}

static int joined(struct cuda *cu, const struct gemm *p, const struct ops_weight *const *weights,
                  const struct lt_joined &j)
{
    int32_t most = j.direct ? cu->lt->max_rows : lt_most(cu->lt, j.shape->ldy);
    const uint8_t *values = NULL;
    struct lt_sums sums = {};
    int r = values_of(cu, p, weights, j, &values);

    most = min(most, j.shape->most);
    sums.sum = cu->scratch.lt_sums;
    sums.ld = sums.ld_up = j.shape->ldy;
    sums.scaled = weights[0]->type == DTYPE_F16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += most) {
        int32_t n = min(p->token_end - t, most);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;

        if (j.direct) {
            r = lt_product(cu, j.shape, values, x, n, p->part[0].y + (int64_t)t * p->part[0].ldy,
                           p->part[0].ldy, p->add);
            continue;
        }
        sums.token0 = t;
        r = lt_product(cu, j.shape, values, x, n, cu->scratch.lt_sums, sums.ld, false);
        r = r < 0 ? r : finish_joined(cu, p, sums, n);
    }
    return r;
}

/* ---- which ---------------------------------------------------------------------------------- */

static bool served(const struct cuda *cu, int32_t n_rows, int32_t n_cols, enum dtype type)
{
    int32_t step = cu->lt ? lt_slab_rows(cu, type, n_rows, n_cols) : 0;
    bool all = step > 0;

    for (int32_t row = 0; row < n_rows && all; row += step) {
        const struct lt_shape *s = lt_find(cu->lt, min(n_rows - row, step), n_cols,
                                           lt_sums_ld(n_rows), type != DTYPE_F16);

        all = s && s->served;
    }
    return all;
}

bool cuda_lt_takes(const struct cuda *cu, const struct ops_weight *w)
{
    return cu->lt && w->type != DTYPE_F32 && w->role == OPS_ROLE_MATMUL &&
           (cu->lt->unpacks || cuda_gemm_form(w->type) != GEMM_Q8) &&
           served(cu, w->n_rows, w->n_cols, w->type);
}

bool cuda_lt_reads(const struct cuda *cu, const struct ops_weight *w)
{
    return w->type != DTYPE_F16 && cuda_lt_takes(cu, w);
}

int cuda_lt_products(struct cuda *cu, struct gemm *p, const struct ops_weight *const *weights)
{
    bool bf16 = weights[0]->type == DTYPE_BF16;
    struct gemm own = *p;
    struct lt_joined j = {};
    int r = cu->lt ? cuda_queue_flush(cu) : 0;

    if (r == 0 && cu->lt) {
        j = join(cu, p, weights);
    }
    if (r < 0 || j.shape) {
        return r < 0 ? r : joined(cu, p, weights, j);
    }
    if (p->gated) {
        return served(cu, p->part[0].n_rows, p->n_cols, weights[0]->type)
                   ? gated(cu, p, weights[0]->type)
                   : cuda_gemm_half_tiles(cu, p, bf16);
    }
    own.n_parts = 0;
    for (int i = 0; i < p->n_parts && r == 0; i++) {
        if (served(cu, p->part[i].n_rows, p->n_cols, weights[i]->type)) {
            r = one_part(cu, p, i, weights[i]->type);
        } else {
            own.part[own.n_parts++] = p->part[i];
        }
    }
    return r < 0 || own.n_parts == 0 ? r : cuda_gemm_half_tiles(cu, &own, bf16);
}

#endif
