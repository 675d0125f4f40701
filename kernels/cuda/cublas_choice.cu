/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm of cublasLt serves a shape: taken once (cublas.cu says by which rules).
 *
 * The library's kernels come to the device as they are first used (CUDA_MODULE_LOADING=LAZY,
 * code.cu), and so does what it allocates for itself. So an engine has all shapes of its model
 * tried before it asks what is free (cublas_try.cu). Where nobody has asked for that, or there was
 * no memory for it, a shape is tried as the first such weight is loaded. */

#include "kernels/cuda/cublas_calls.cuh"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#if CUDA_LT

enum {
    LT_TRIES = 8,   /* algorithms of one shape that are looked at */
    TRIAL_ROWS = 3, /* that a trial compares: first, middle, last */
    SLAB_STEP = 2048, /* rows: 16 tiles of 128, by 8 of 256 activations a wave of an H200 */
};

static bool config_of(const cublasLtMatmulAlgo_t *algo, cublasLtMatmulAlgoConfigAttributes_t what,
                      uint32_t *ret)
{
    size_t n = 0;

    *ret = 0;
    return lt_calls.MatmulAlgoConfigGetAttribute(algo, what, ret, sizeof(*ret), &n) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool undivided(const cublasLtMatmulAlgo_t *algo)
{
    uint32_t split = 0;
    uint32_t scheme = 0;

    return config_of(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &split) && split <= 1 &&
           config_of(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme) &&
           scheme == CUBLASLT_REDUCTION_SCHEME_NONE;
}

static bool takes_all(struct cuda_lt *lt, const struct lt_shape *s)
{
    for (int32_t n = 1; n <= s->most; n++) {
        cublasLtMatmulHeuristicResult_t result = {};

        if (lt_set_layouts(lt, s, n, s->ldy) != CUBLAS_STATUS_SUCCESS ||
            lt_calls.MatmulAlgoCheck(lt->handle, lt->desc, lt->w[s->bf16], lt->x[s->bf16], lt->y,
                                     lt->y, &s->algo, &result) != CUBLAS_STATUS_SUCCESS ||
            result.workspaceSize > lt->workspace) {
            return false;
        }
    }
    return true;
}

/* Products of n equal rows: as they are, then added to that, the two forms that prompts ask for,
 * with the distance of rows that they ask for. The first, the middle and the last row of each, to
 * the host: (2, TRIAL_ROWS, n_rows). */
static int trial(struct cuda *cu, const struct lt_shape *s, const uint8_t *w, int32_t n, float *ret)
{
    const struct cuda_scratch *c = &cu->scratch;
    const int32_t rows[TRIAL_ROWS] = {0, n / 2, n - 1};
    int64_t ld = s->ldy;
    int r = 0;

    for (int i = 0; i < 2 * TRIAL_ROWS && r == 0; i++) {
        if (i % TRIAL_ROWS == 0) {
            r = lt_product(cu, s, w, c->xh, n, c->lt_sums, ld, i > 0);
        }
        r = r < 0 ? r
                  : cu->be.ops->read(&cu->be, ret + (size_t)i * s->n_rows,
                                     c->lt_sums + rows[i % TRIAL_ROWS] * ld,
                                     (uint64_t)s->n_rows * sizeof(float));
    }
    return r;
}

/* Numbers of all mantissas from 2^-4 to 2^4: with few bits every order of a sum gives the same. */
uint16_t lt_trial_number(uint32_t *state, bool bf16)
{
    uint32_t mantissa_bits = bf16 ? 7 : 10;
    uint32_t least = bf16 ? 127 - 4 : 15 - 4;
    uint32_t x = *state = *state * 1664525u + 1013904223u;

    return (uint16_t)((x >> 31) << 15 | (least + (x >> 28 & 7)) << mantissa_bits |
                      (x >> 8 & ((1u << mantissa_bits) - 1)));
}

/* Rows for a trial, all the same. */
static int fill_trial(struct cuda *cu, const struct lt_shape *s)
{
    const struct backend_ops *ops = cu->be.ops;
    uint64_t pitch = (uint64_t)lt_x_pad(s->n_cols) * sizeof(uint16_t);
    uint64_t bytes = pitch * (uint64_t)s->most;
    uint8_t *x = reinterpret_cast<uint8_t *>(cu->scratch.xh);
    uint16_t *row = static_cast<uint16_t *>(malloc((size_t)pitch));
    uint32_t state = 1;
    int r;

    for (int32_t i = 0; row && i < lt_x_pad(s->n_cols); i++) {
        row[i] = lt_trial_number(&state, s->bf16);
    }
    r = row ? ops->write(&cu->be, x, row, pitch) : -ENOMEM;
    for (uint64_t done = pitch; done < bytes && r == 0; done *= 2) {
        r = ops->copy(&cu->be, x + done, x, done < bytes - done ? done : bytes - done);
    }
    r = r < 0 ? r : ops->sync(&cu->be);
    free(row);
    return r;
}

/* Has a row these bits in any company? 1, 0, or why that cannot be known. */
static int same_bits(struct cuda *cu, const struct lt_shape *s, const uint8_t *w)
{
    static const int32_t counts[] = {1, 2, 8, 15, 16, 17, 33, 64, 65, 129, 257, 513, 1025};
    size_t n = (size_t)s->n_rows;
    float *all = static_cast<float *>(malloc(4 * TRIAL_ROWS * n * sizeof(float)));
    float *few = all ? all + 2 * TRIAL_ROWS * n : NULL;
    bool same = true;
    int r = all ? 0 : -ENOMEM;

    r = r < 0 ? r : fill_trial(cu, s);
    r = r < 0 ? r : trial(cu, s, w, s->most, all);
    for (size_t i = 0; i <= sizeof(counts) / sizeof(counts[0]) && r == 0 && same; i++) {
        int32_t rows = i > 0 ? counts[i - 1] : s->most; /* rows of one product first */

        r = rows < s->most ? trial(cu, s, w, rows, few) : 0;
        for (int j = 0; j < 2 * TRIAL_ROWS && r == 0 && same; j++) {
            same = memcmp(all + (size_t)(j / TRIAL_ROWS * TRIAL_ROWS) * n,
                          (rows < s->most ? few : all) + (size_t)j * n,
                          n * sizeof(float)) == 0;
        }
    }
    free(all);
    return r < 0 ? r : same;
}

static int choose(struct cuda *cu, struct lt_shape *s, const uint8_t *w, const char **ret_why)
{
    struct cuda_lt *lt = cu->lt;
    cublasLtMatmulHeuristicResult_t found[LT_TRIES] = {};
    int n = 0;
    int r = 0;

    *ret_why = "no algorithm";
    if (lt_set_layouts(lt, s, s->most, s->ldy) != CUBLAS_STATUS_SUCCESS ||
        lt_calls.MatmulAlgoGetHeuristic(lt->handle, lt->desc, lt->w[s->bf16], lt->x[s->bf16], lt->y,
                                        lt->y, lt->preference, LT_TRIES, found,
                                        &n) != CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    for (int i = 0; i < n && i < LT_TRIES && !s->served && r >= 0; i++) {
        s->algo = found[i].algo;
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > lt->workspace ||
            !undivided(&s->algo)) {
            continue;
        }
        *ret_why = "an algorithm that takes not all numbers of rows";
        if (takes_all(lt, s)) {
            r = same_bits(cu, s, w);
            s->served = r > 0;
            *ret_why = r < 0 ? "an error" : "bits that depend on the number of rows";
        }
    }
    return r < 0 ? r : 0;
}

struct lt_shape *lt_find(struct cuda_lt *lt, int32_t n_rows, int32_t n_cols, int32_t ldy, bool bf16)
{
    for (int32_t i = 0; i < lt->n_shapes; i++) {
        struct lt_shape *s = &lt->shape[i];

        if (s->n_rows == n_rows && s->n_cols == n_cols && s->ldy == ldy && s->bf16 == bf16) {
            return s;
        }
    }
    return NULL;
}

int32_t lt_slab_rows(const struct cuda *cu, enum dtype type, int32_t n_rows, int32_t n_cols)
{
    uint64_t most = cu->scratch.lt_weights / (uint64_t)lt_w_pad(n_cols);

    if (cuda_gemm_form(type) != GEMM_Q8 || most >= (uint64_t)n_rows) {
        return n_rows;
    }
    return (int32_t)(most >= SLAB_STEP ? most / SLAB_STEP * SLAB_STEP : most / 16 * 16);
}

/* Rows [row0, row0 + n_rows) of a weight, unless their shape is known. */
static int add_shape(struct cuda *cu, const struct ops_weight *w, int32_t row0, int32_t n_rows,
                     const uint8_t *random, bool joined)
{
    struct cuda_lt *lt = cu->lt;
    bool plain = cuda_gemm_form(w->type) != GEMM_Q8;
    bool bf16 = w->type != DTYPE_F16;
    const uint8_t *values = random ? random : static_cast<const uint8_t *>(w->device);
    const char *why = "an error";
    struct lt_shape *s;
    int r = 0;

    s = lt_find(lt, n_rows, w->n_cols, lt_sums_ld(w->n_rows), bf16);
    if (s ? s->served || !s->joined || joined : lt->n_shapes == LT_SHAPES) {
        return 0; /* what fails for several weights is tried again for one */
    }
    s = s ? s : &lt->shape[lt->n_shapes++];
    *s = {};
    s->n_rows = n_rows;
    s->n_cols = w->n_cols;
    s->ldy = lt_sums_ld(w->n_rows);
    s->most = lt_most(lt, s->ldy);
    s->bf16 = bf16;
    s->joined = joined;
    if (!plain && !random) {
        r = cuda_unpack(cu, w->type, values, row0, n_rows, w->n_cols, cu->scratch.lt_slab,
                        lt_w_pad(w->n_cols));
        values = reinterpret_cast<const uint8_t *>(cu->scratch.lt_slab);
    }
    r = r < 0 ? r : choose(cu, s, values, &why);
    lt->n_asked += !joined;
    if (!s->served && !joined) {
        (void)snprintf(lt->why, sizeof(lt->why), "%s for %d x %d", why, n_rows, w->n_cols);
        lt->n_own++;
    }
    if (!cu->lost) {
        cu->news[0] = '\0'; /* the description says it */
        return 0;
    }
    return r;
}

bool lt_eligible(const struct cuda_lt *lt, const struct ops_weight *w)
{
    return w->type != DTYPE_F32 && (cuda_gemm_form(w->type) != GEMM_Q8 || lt->unpacks) &&
           w->role == OPS_ROLE_MATMUL && ops_stack(w->n_stack) == 1;
}

int lt_add(struct cuda *cu, const struct ops_weight *w, const uint8_t *random, bool joined)
{
    int32_t step = lt_slab_rows(cu, w->type, w->n_rows, w->n_cols);
    int r = 0;

    for (int32_t row = 0; step > 0 && row < w->n_rows && r == 0; row += step) {
        r = add_shape(cu, w, row, w->n_rows - row < step ? w->n_rows - row : step, random, joined);
    }
    return r;
}

int cuda_lt_weight(struct cuda *cu, const struct ops_weight *w)
{
    const struct cuda_lt *lt = cu->lt;

    return !lt || !lt_eligible(lt, w) || lt->max_rows < 1 || w->n_rows > cu->limits.max_outputs ||
                   w->n_cols > cu->limits.max_cols
               ? 0
               : lt_add(cu, w, NULL, false);
}

#endif
