/* SPDX-License-Identifier: Apache-2.0 */
/* matmul: every weight type, norms, biases, activations, gate and residual, several parts, one row
 * and many; and batch invariance: a row alone has the bits it has in a batch, within its class,
 * also beside rows with NaN, Inf and numbers at the ends of f32. The reference is checked against
 * sums in double. */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "quant/half.h"
#include "tests/kernels/check_weight.h"

const uint32_t check_flags = ~(uint32_t)(CPU_AVX512_FP16 | CPU_AMX_INT8 | CPU_FP16);
const struct backend_limits check_limits = {
    .max_rows = 512,
    .max_decode = 16,
    .max_seqs = 8,
    .max_cols = 2304,
    .max_outputs = 2048,
    .max_quantised = 1 << 16, /* a GPU unpacks larger ones by slabs */
    .max_heads = 8,
    .max_head_dim = 64,
    .max_slots = 64,
};

struct shape {
    enum dtype type;
    int32_t n;
    int32_t n_decode;
    int32_t n_cols;
    int32_t n_rows[3]; /* of each part */
    int n_parts;
    int options;
};

enum {
    GATED = 1,
    ADD = 2,
    NORM = 4,
    BIAS = 8,
    EXTREME = 16,
    LAYER = 32,
    HEAD = 64,
    POISON = 128,
    SCALE = 256
};

/* With SCALE: of a part's product, and of its bias. */
static const float scales[] = {-0.25f, 1.75f, 3.0f};
static const float bias_scales[] = {0.5f, -2.0f, 0.0f};

struct inputs {
    struct check_weight w[3];
    struct check_weight bias[3];
    struct check_weight norm;
    struct check_buf *x;
    struct check_buf *y[3];
};

/* Row i of a part in double, before activation. */
static double in_double(const struct shape *s, const struct inputs *in, int part, int32_t i,
                        int32_t r)
{
    const float *x = (const float *)(const void *)in->x->init + (size_t)i * (size_t)s->n_cols;
    const float *w = in->w[part].f32 + (size_t)r * (size_t)s->n_cols;
    double mean = 0;
    double square = 0;
    double sum = 0;

    for (int32_t k = 0; k < s->n_cols; k++) {
        mean += s->options & LAYER ? (double)x[k] / s->n_cols : 0;
    }
    for (int32_t k = 0; k < s->n_cols; k++) {
        square += (x[k] - mean) * (x[k] - mean) / s->n_cols;
    }
    for (int32_t k = 0; k < s->n_cols; k++) {
        double v = s->options & NORM ? (x[k] - mean) / sqrt(square + 1e-6) * (double)in->norm.f32[k]
                                     : (double)x[k];

        sum += v * (double)w[k];
    }
    sum *= s->options & SCALE ? (double)scales[part] : 1;
    return s->options & BIAS
               ? sum + (double)in->bias[part].f32[r] *
                           (s->options & SCALE ? (double)ops_factor(bias_scales[part]) : 1)
               : sum;
}

static float round_bf16(float x)
{
    return half_bf16_to_f32(half_bf16_from_f32(x));
}

static bool is_cuda(const struct check *c)
{
    return strcmp(c->sides[1]->ops->name, "cuda") == 0;
}

/* Does this row meet weights rounded to bf16? A GPU's quantised ones, a CPU's of types that have
 * tiles. */
static bool is_tile_row(const struct check *c, const struct shape *s, int32_t i)
{
    return i >= s->n_decode && !(s->options & HEAD) &&
           (check_has_tiles_of(c, s->type) ||
            (dtype_info(s->type)->block_len > 1 && check_has_unpacked(c)));
}

/* Row i of x as a matmul on tiles sees it, else as a quantised one does: int8 by blocks of 32. */
static void round_acts(const struct shape *s, const struct inputs *in, int32_t i, bool tile,
                       float *ret)
{
    const float *x = (const float *)(const void *)in->x->init + (size_t)i * (size_t)s->n_cols;

    for (int32_t k = 0; k < s->n_cols && tile; k++) {
        ret[k] = round_bf16(x[k]);
    }
    if (tile) {
        return;
    }
    for (int32_t b = 0; b < s->n_cols; b += 32) {
        float top = 0;

        for (int32_t k = b; k < b + 32; k++) {
            top = fmaxf(top, fabsf(x[k]));
        }
        for (int32_t k = b; k < b + 32; k++) {
            ret[k] = top > 0 ? rintf(x[k] * (127.0f / top)) * (top / 127.0f) : 0;
        }
    }
}

/* Does a GPU's prefill round this row's activations to the weights' 16 bits? */
static bool is_half_row(const struct check *c, const struct shape *s, int32_t row)
{
    return is_cuda(c) && !(s->options & HEAD) && (s->type == DTYPE_F16 || s->type == DTYPE_BF16) &&
           row >= s->n_decode;
}

static const struct tolerance *tolerance_of(const struct check *c, const struct shape *s,
                                            int32_t row)
{
    if (is_tile_row(c, s, row)) {
        return &tol_bf16;
    }
    if (is_half_row(c, s, row)) {
        return &tol_half_acts;
    }
    switch (s->type) {
    case DTYPE_F32:
    case DTYPE_F16:
        return &tol_reduce;
    case DTYPE_BF16:
        return is_cuda(c) ? &tol_bf16_pieces : &tol_reduce;
    default:
        return s->options & HEAD ? &tol_head : &tol_int8_acts;
    }
}

/* A backend that rounds activations must be exact in everything else. */
static void against_rounded(struct check *c, const struct shape *s, const struct inputs *in)
{
    float *x = malloc((size_t)s->n_cols * 4);
    float *want = malloc((size_t)s->n * (size_t)s->n_rows[0] * 4);
    float *size = malloc((size_t)s->n * 4);

    for (int32_t i = 0; i < s->n; i++) {
        const bool tile = is_tile_row(c, s, i);
        if (tolerance_of(c, s, i) == &tol_reduce || tolerance_of(c, s, i) == &tol_bf16_pieces) {
            continue; /* hardly rounded */
        }
        if (is_cuda(c) && !tile) {
            continue; /* its codes are others */
        }
        const double most = tile && !is_cuda(c) ? tol_bf16_rounded.max : tol_reduce.max;
        double square = 0;

        round_acts(s, in, i, tile, x);
        for (int32_t r = 0; r < s->n_rows[0]; r++) {
            const float *w = in->w[0].f32 + (size_t)r * (size_t)s->n_cols;
            size_t at = (size_t)i * (size_t)s->n_rows[0] + (size_t)r;
            double v = s->options & BIAS ? (double)in->bias[0].f32[r] : 0;

            for (int32_t k = 0; k < s->n_cols; k++) {
                double wk = (double)(tile ? round_bf16(w[k]) : w[k]);

                v += (double)x[k] * wk;
                square += (double)x[k] * wk * (double)x[k] * wk;
            }
            v += s->options & ADD ? ((const float *)(const void *)in->y[0]->init)[at] : 0;
            want[at] = (float)v;
        }
        size[i] = (float)sqrt(square / s->n_rows[0]);
        /* what cancels out is no error: measured against the size of what was summed */
        for (int32_t r = 0; r < s->n_rows[0]; r++) {
            size_t at = (size_t)i * (size_t)s->n_rows[0] + (size_t)r;
            double got = ((const float *)(const void *)in->y[0]->out[1])[at];

            if (!(fabs(got - (double)want[at]) <= most * (double)size[i])) {
                check_fail(c, "y[%d][%d] is %g, wanted %g with rounded activations", i, r, got,
                           (double)want[at]);
            }
        }
    }
    free(size);
    free(want);
    free(x);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* A few outputs may all cancel: no mean, the largest difference counts. */
static struct tolerance few_outputs(const struct tolerance *tol, int32_t n)
{
    return (struct tolerance){n < 8 ? tol->max * tol->max : tol->nmse, tol->max, tol->reason};
}

static void against_double(struct check *c, const struct shape *s, const struct inputs *in)
{
    for (int part = 0; part < (s->options & GATED ? 1 : s->n_parts); part++) {
        int32_t n_rows = s->n_rows[part];
        float *want = malloc((size_t)s->n * (size_t)n_rows * 4);

        for (int32_t i = 0; i < s->n; i++) {
            for (int32_t r = 0; r < n_rows; r++) {
                size_t at = (size_t)i * (size_t)n_rows + (size_t)r;
                double v = in_double(s, in, part, i, r);

                if (s->options & GATED) {
                    v = silu(v) * in_double(s, in, 1, i, r);
                } else if (part == 0 && s->n_parts > 1) {
                    v = silu(v);
                }
                if (s->options & ADD) {
                    v += ((const float *)(const void *)in->y[part]->init)[at];
                }
                want[at] = (float)v;
            }
        }
        struct tolerance tol = few_outputs(&tol_reduce, s->n * n_rows);

        check_rows(c, "reference against double", (const void *)in->y[part]->out[0], want, s->n,
                   n_rows, n_rows, &tol);
        free(want);
    }
}

static void prepare(struct check *c, const struct shape *s, struct inputs *in)
{
    *in = (struct inputs){0};
    check_weight_make(c, &in->norm, DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_cols, 1);
    in->x = check_buf(c, "x", (size_t)s->n * (size_t)s->n_cols * 4);
    check_fill(c, in->x, 1);
    if (s->options & EXTREME) {
        float *x = (float *)(void *)in->x->init;

        memset(x, 0, (size_t)s->n_cols * 4);
        for (int32_t k = 0; k < s->n_cols && s->n > 1; k++) {
            x[s->n_cols + k] = k % 7 == 0 ? 1e12f : 1e-12f;
        }
    }
    if (s->options & POISON) {
        float *x = (float *)(void *)in->x->init;

        x[s->n_cols + 5] = NAN;
        x[2 * s->n_cols + 7] = -INFINITY;
        x[3 * s->n_cols + 9] = 3e38f;
        x[4 * s->n_cols] = 1e-44f;
    }
    for (int i = 0; i < s->n_parts; i++) {
        check_weight_make(c, &in->w[i], s->type,
                          s->options & HEAD ? OPS_ROLE_EMBED : OPS_ROLE_MATMUL, s->n_rows[i],
                          s->n_cols, 1 / sqrtf((float)s->n_cols));
        check_weight_make(c, &in->bias[i], DTYPE_F32, OPS_ROLE_VECTOR, 1, s->n_rows[i], 1);
        in->y[i] = check_buf(c,
                             i == 0   ? "y0"
                             : i == 1 ? "y1"
                                      : "y2",
                             (size_t)s->n * (size_t)s->n_rows[i] * 4);
        check_fill(c, in->y[i], 1);
    }
}

static struct ops_matmul params(const struct check *c, const struct shape *s,
                                const struct inputs *in)
{
    struct ops_matmul p = {
        .rows = {s->n, s->n_decode},
        .norm = {.w = s->options & NORM ? &in->norm.w[c->side] : NULL,
                 .eps = 1e-6f,
                 .kind = s->options & LAYER ? OPS_NORM_LAYER : OPS_NORM_RMS},
        .x = check_dev(c, in->x),
        .ldx = s->n_cols,
        .n_parts = s->n_parts,
        .gated = s->options & GATED,
        .add = s->options & ADD,
    };

    for (int i = 0; i < s->n_parts; i++) {
        p.part[i].w = &in->w[i].w[c->side];
        p.part[i].bias = s->options & BIAS ? &in->bias[i].w[c->side] : NULL;
        p.part[i].y = check_dev(c, in->y[i]);
        p.part[i].ldy = s->n_rows[i];
        p.part[i].scale = s->options & SCALE ? scales[i] : 0;
        p.part[i].bias_scale = s->options & SCALE ? bias_scales[i] : 0;
        p.part[i].act = i == 0 && s->n_parts > 1 ? OPS_ACT_SILU : OPS_ACT_NONE;
    }
    return p;
}

/* Each of a few rows alone, on the backend under test: the same bits. */
static void alone(struct check *c, const struct shape *s, const struct inputs *in)
{
    c->side = 1;
    c->be = c->sides[1];
    c->ops = c->be->ops;
    for (int32_t i = 0; i<s->n; i += s->n> 4 ? s->n / 4 : 1) {
        struct ops_matmul p = params(c, s, in);
        size_t row_bytes = (size_t)s->n_rows[0] * 4;
        uint8_t *got = malloc(row_bytes);
        uint8_t *y = check_dev(c, in->y[0]);

        check_require(c->ops->write(c->be, y, in->y[0]->init + (size_t)i * row_bytes, row_bytes),
                      "y");
        p.rows = (struct ops_rows){1, i < s->n_decode ? 1 : 0};
        p.x += (size_t)i * (size_t)s->n_cols;
        check_require(c->ops->matmul(c->be, &p), "matmul");
        check_require(c->ops->read(c->be, got, y, row_bytes), "y");
        check_bits(c, "a row alone", got, in->y[0]->out[1] + (size_t)i * row_bytes, row_bytes);
        free(got);
    }
}

/* What one part gave, against the reference: rows of class decode, then of class prefill. */
static void one_part(struct check *c, const struct shape *s, const struct inputs *in, int part)
{
    const int32_t n_rows = s->n_rows[part];
    const int32_t cut = s->n_decode < s->n ? s->n_decode : s->n;

    for (int class = 0; class < 2; class ++) {
        int32_t from = class ? cut : 0;
        int32_t n = class ? s->n - cut : cut;
        const struct tolerance *tol = tolerance_of(c, s, from);
        struct tolerance few;

        if (n == 0 || ((tol == &tol_int8_acts || tol == &tol_bf16) && n * n_rows < 8)) {
            continue; /* no mean over so few; against_rounded() sees them */
        }
        few = few_outputs(tol, n * n_rows);
        tol = &few;
        check_rows(c, in->y[part]->what,
                   (const float *)(const void *)in->y[part]->out[1] + (size_t)from * n_rows,
                   (const float *)(const void *)in->y[part]->out[0] + (size_t)from * n_rows, n,
                   n_rows, n_rows, tol);
    }
}

static void one(struct check *c, const struct shape *s)
{
    struct inputs in;

    if (!check_case(c, "matmul %s n %d/%d cols %d rows %d,%d,%d options %d",
                    dtype_info(s->type)->name, s->n, s->n_decode, s->n_cols, s->n_rows[0],
                    s->n_rows[1], s->n_rows[2], s->options)) {
        return;
    }
    prepare(c, s, &in);
    for (int i = 0; i < s->n_parts; i++) {
        uint64_t row_bytes = 0;

        (void)dtype_row_bytes(s->type, (uint64_t)s->n_cols, &row_bytes);
        c->bench_bytes += row_bytes * (uint64_t)s->n_rows[i];
    }
    while (check_call(c)) {
        struct ops_matmul p = params(c, s, &in);

        c->err = c->ops->matmul(c->be, &p);
    }
    if (s->options & POISON) { /* nobody crashes, and no row hears of another's NaN */
        alone(c, s, &in);
    } else if (!c->bench) {
        for (int i = 0; i < (s->options & GATED ? 1 : s->n_parts); i++) {
            one_part(c, s, &in, i);
        }
        if (c->first) {
            against_double(c, s, &in);
        }
        alone(c, s, &in);
        if (tolerance_of(c, s, s->n - 1) != &tol_reduce && !(s->options & (NORM | HEAD | SCALE)) &&
            s->n_parts == 1 && strcmp(c->sides[1]->ops->name, "ref") != 0) {
            against_rounded(c, s, &in);
        }
    }
    for (int i = 0; i < 3; i++) {
        check_weight_free(c, &in.w[i]);
        check_weight_free(c, &in.bias[i]);
    }
    check_weight_free(c, &in.norm);
}

static void bench(struct check *c)
{
    static const enum dtype types[] = {DTYPE_Q4_1, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K,
                                       DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_F16};
    static const int32_t n[] = {1, 8, 512};

    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++) {
            struct shape s = {types[t], n[i], n[i] <= 8 ? n[i] : 0, 2048, {2048, 2048}, 2, GATED};

            one(c, &s);
        }
    }
}

void check_op(struct check *c)
{
    static const enum dtype types[] = {DTYPE_F32,    DTYPE_F16,   DTYPE_BF16, DTYPE_Q4_0,
                                       DTYPE_Q4_1,   DTYPE_Q5_0,  DTYPE_Q5_1, DTYPE_Q8_0,
                                       DTYPE_Q4_K,   DTYPE_Q5_K,  DTYPE_Q6_K, DTYPE_IQ4_NL,
                                       DTYPE_IQ4_XS, DTYPE_MXFP4, DTYPE_Q2_K, DTYPE_Q3_K};

    if (c->bench) {
        bench(c);
        return;
    }
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        if (c->sides[1]->ops->lacks_types >> types[t] & 1) {
            continue;
        }
        int32_t block = dtype_info(types[t])->block_len;
        int32_t odd = block == 1 ? 67 : block == 32 ? 96 : 256;
        int32_t ragged = block == 1 ? 871 : block == 32 ? 1248 : 2304; /* a warp's last step */
        struct shape shapes[] = {
            {types[t], 1, 1, odd, {1}, 1, 0},
            {types[t], 1, 0, odd, {17}, 1, NORM},
            {types[t], 5, 2, odd, {33, 16, 7}, 3, NORM | BIAS},
            {types[t], 19, 3, 512, {50, 50}, 2, NORM | GATED},
            {types[t], 35, 0, 256, {64}, 1, ADD | BIAS},
            {types[t], 70, 1, 1536, {40}, 1, 0},
            {types[t], 45, 0, 2048, {48}, 1, ADD},
            {types[t], 33, 0, 768, {24, 24}, 2, GATED | BIAS},
            {types[t], 4, 4, 1536, {31}, 1, NORM | LAYER},
            {types[t], 4, 1, 256, {40, 17, 3}, 3, SCALE | BIAS},
            {types[t], 70, 1, 256, {40}, 1, SCALE | ADD},
            {types[t], 33, 1, 256, {24, 24}, 2, SCALE | GATED | BIAS},
            {types[t], 3, 3, 256, {20}, 1, EXTREME},
            {types[t], 3, 1, 256, {20, 20}, 2, EXTREME | GATED | NORM},
            {types[t], 9, 1, 256, {40}, 1, POISON},
            {types[t], 5, 1, 256, {40, 40}, 2, POISON | NORM | GATED},
            {types[t], 9, 1, 256, {40}, 1, POISON | HEAD},
            {types[t], 1, 1, 512, {100}, 1, NORM | HEAD},
            {types[t], 70, 1, 256, {100}, 1, NORM | HEAD},
            {types[t], 1, 1, 1536, {410, 40}, 2, 0}, /* more tiles than blocks of a row's kernel */
            {types[t], 2, 1, 256, {420, 420}, 2, GATED | NORM},
            {types[t], 7, 7, odd, {40, 9}, 2, BIAS}, /* decode rows in all sizes of a product */
            {types[t], 13, 13, odd, {150}, 1, ADD | NORM},
            {types[t], 30, 30, 256, {40, 40}, 2, GATED},
            {types[t], 33, 33, odd, {137, 9}, 2, ADD}, /* and in all that a block has of tiles */
            {types[t], 20, 20, 2304, {130, 140}, 2, BIAS},
            {types[t], 64, 64, 768, {275, 280}, 2, NORM},
            {types[t], 9, 9, 768, {330, 330}, 2, GATED | NORM},
            {types[t], 17, 17, 1536, {40}, 1, NORM | HEAD},
            {types[t], 12, 12, ragged, {290}, 1, BIAS},
            {types[t], 40, 40, ragged, {40, 60}, 2, 0},
        };

        for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
            one(c, &shapes[i]);
        }
    }
}
