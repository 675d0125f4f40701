/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill products of 16-bit weights by cublasLt: what a row gives must not depend on its company.
 *
 * The library is opened at run time (dlopen, by the major version that this was built with) and
 * never linked; where it cannot be had, own tiles serve (gemm_half_tiles.cu). It chooses among
 * kernels by the number of rows, and may divide a sum among blocks, so it is not left to choose:
 *
 *   - for each shape (rows, columns, type of a weight) an algorithm is taken once, when the first
 *     such weight is loaded, by its heuristics for the most rows that a call may have, without
 *     reductions between blocks;
 *   - the library must take that algorithm for every number of rows up to the most
 *     (cublasLtMatmulAlgoCheck), within the workspace of the plan;
 *   - and it must show what is wanted: the last of n equal rows has the same bits for several n.
 *     That also loads the kernel, so that nothing is loaded later.
 *
 * A shape that has no such algorithm goes to the own tiles, for all its rows, for good. Operands
 * are those of the own tiles: activations rounded to the weights' 16 bits (matmul.cu), sums in f32.
 * Where the output is the sum, or the sum and what was there, the library writes it; a bias, an
 * activation, a gate or f16's factor of a row are added by `lt_finish`, from sums in scratch.
 *
 * Weights are rows in memory, so for a library that counts by columns: W is (K, M) transposed,
 * activations (K, N), output (M, N). K is the weight's row with its padding, zeros on both sides.
 *
 * Its errors become errno here. On an H200: 14336 x 4096 bf16 by 512 rows 595 TFLOP/s, by 2,048 rows
 * 654; a square product of 8,192 reaches 790 there. */

#include "kernels/cuda/cublas.cuh"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#if CUDA_LT

#include <dlfcn.h>

#ifdef __CUDACC__
#include <cublasLt.h>
#else
#include <emu_lt.cuh>
#endif

#ifndef CUDA_LT_LIBRARY
#define LT_TEXT_(x) #x
#define LT_TEXT(x) LT_TEXT_(x)
#define CUDA_LT_LIBRARY "libcublasLt.so." LT_TEXT(CUBLAS_VER_MAJOR)
#endif

enum {
    LT_SHAPES = 64,
    LT_TRIES = 8, /* algorithms of one shape that are looked at */
    LT_ALIGN = 16,
    TRIAL_ROWS = 3, /* that a trial compares: first, middle, last */
    FINISH_THREADS = 256,
    FINISH_ROWS = 1024, /* outputs of a block */
};

#define LT_CALLS(X)                                                                                \
    X(Create)                                                                                      \
    X(Destroy)                                                                                     \
    X(GetVersion)                                                                                  \
    X(GetStatusString)                                                                             \
    X(Matmul)                                                                                      \
    X(MatmulAlgoCheck)                                                                             \
    X(MatmulAlgoConfigGetAttribute)                                                                \
    X(MatmulAlgoGetHeuristic)                                                                      \
    X(MatmulDescCreate)                                                                            \
    X(MatmulDescDestroy)                                                                           \
    X(MatmulDescSetAttribute)                                                                      \
    X(MatmulPreferenceCreate)                                                                      \
    X(MatmulPreferenceDestroy)                                                                     \
    X(MatmulPreferenceSetAttribute)                                                                \
    X(MatrixLayoutCreate)                                                                          \
    X(MatrixLayoutDestroy)                                                                         \
    X(MatrixLayoutSetAttribute)

/* The library, open for the life of the process: it has threads and code on the device. */
static struct {
    void *library;
    size_t version;
#define LT_FIELD(name) decltype(&cublasLt##name) name;
    LT_CALLS(LT_FIELD)
#undef LT_FIELD
} lt_calls;

static uint64_t lt_workspace; /* of the backend that was created last */

struct lt_shape {
    int32_t n_rows, n_cols;
    bool bf16;
    bool served;
    cublasLtMatmulAlgo_t algo;
};

struct cuda_lt {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    cublasLtMatrixLayout_t w[2], x[2], y; /* w, x: of f16, bf16; sizes are set before each use */
    uint64_t workspace;
    int32_t max_rows; /* of one product */
    int32_t n_shapes, n_own;
    struct lt_shape shape[LT_SHAPES];
    char why[96]; /* the last shape that has no algorithm */
};

/* ---- errors --------------------------------------------------------------------------------- */

/* A fault of the device is the device's. */
static int lt_err(struct cuda *cu, cublasStatus_t s, const char *call)
{
    int r;

    if (s == CUBLAS_STATUS_SUCCESS) {
        return cuda_err(cu, cudaSuccess, call);
    }
    r = cuda_err(cu, cudaGetLastError(), call);
    r = r < 0 ? r : cuda_err(cu, cudaStreamSynchronize(cu->stream), call);
    if (r < 0) {
        return r;
    }
    (void)snprintf(cu->news, sizeof(cu->news), "cublasLt, %s: %s", call,
                   lt_calls.GetStatusString(s));
    return s == CUBLAS_STATUS_ALLOC_FAILED                                        ? -ENOMEM
           : s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE ? -EINVAL
                                                                                  : -EIO;
}

/* ---- opening -------------------------------------------------------------------------------- */

static int lt_open(struct error *reterr)
{
    const char *missing = NULL;
    void *library = lt_calls.library ? lt_calls.library : dlopen(CUDA_LT_LIBRARY, RTLD_NOW);
    int r = 0;

    if (!library) {
        return error_set(reterr, -ENOENT, "%s", dlerror());
    }
#define LT_FIND(name)                                                                              \
    lt_calls.name = reinterpret_cast<decltype(lt_calls.name)>(dlsym(library, "cublasLt" #name));   \
    missing = lt_calls.name ? missing : "cublasLt" #name;
    LT_CALLS(LT_FIND)
#undef LT_FIND
    if (missing) {
        r = error_set(reterr, -ENOEXEC, CUDA_LT_LIBRARY " has no %s", missing);
    } else {
        lt_calls.version = lt_calls.GetVersion();
        if (lt_calls.version / 10000 != CUBLAS_VER_MAJOR) {
            r = error_set(reterr, -ENOEXEC, CUDA_LT_LIBRARY " is %zu.%zu, this build needs %d",
                          lt_calls.version / 10000, lt_calls.version / 100 % 100, CUBLAS_VER_MAJOR);
        }
    }
    if (r < 0) {
        (void)dlclose(library);
    }
    lt_calls.library = r < 0 ? NULL : library;
    return r;
}

static cublasStatus_t set_u64(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t what,
                              uint64_t value)
{
    return lt_calls.MatrixLayoutSetAttribute(layout, what, &value, sizeof(value));
}

static cublasStatus_t prefer_u32(const struct cuda_lt *lt,
                                 cublasLtMatmulPreferenceAttributes_t what, uint32_t value)
{
    return lt_calls.MatmulPreferenceSetAttribute(lt->preference, what, &value, sizeof(value));
}

static cublasStatus_t describe_product(struct cuda_lt *lt)
{
    int32_t yes = CUBLAS_OP_T;
    int32_t no = CUBLAS_OP_N;
    cublasStatus_t s = lt_calls.MatmulDescCreate(&lt->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (s == CUBLAS_STATUS_SUCCESS) {
        s = lt_calls.MatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSA, &yes,
                                            sizeof(yes));
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = lt_calls.MatmulDescSetAttribute(lt->desc, CUBLASLT_MATMUL_DESC_TRANSB, &no, sizeof(no));
    }
    for (int i = 0; i < 2 && s == CUBLAS_STATUS_SUCCESS; i++) {
        cudaDataType_t type = i == 1 ? CUDA_R_16BF : CUDA_R_16F;

        s = lt_calls.MatrixLayoutCreate(&lt->w[i], type, 32, 1, 32);
        if (s == CUBLAS_STATUS_SUCCESS) {
            s = lt_calls.MatrixLayoutCreate(&lt->x[i], type, 32, 1, 32);
        }
    }
    return s == CUBLAS_STATUS_SUCCESS ? lt_calls.MatrixLayoutCreate(&lt->y, CUDA_R_32F, 1, 1, 4)
                                      : s;
}

/* No sum is divided among blocks; operands are aligned as scratch and weights are. */
static cublasStatus_t describe_preference(struct cuda_lt *lt)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasStatus_t s = lt_calls.MatmulPreferenceCreate(&lt->preference);

    if (s == CUBLAS_STATUS_SUCCESS) {
        s = lt_calls.MatmulPreferenceSetAttribute(lt->preference,
                                                  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &lt->workspace, sizeof(lt->workspace));
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        s = prefer_u32(lt, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                       CUBLASLT_REDUCTION_SCHEME_NONE);
    }
    for (int i = 0; i < 4 && s == CUBLAS_STATUS_SUCCESS; i++) {
        s = prefer_u32(lt, alignments[i], LT_ALIGN);
    }
    return s;
}

static int lt_start(struct cuda *cu, struct error *reterr)
{
    cublasStatus_t s;
    struct cuda_lt *lt;
    int r = lt_open(reterr);

    if (r < 0) {
        return r;
    }
    lt = static_cast<struct cuda_lt *>(calloc(1, sizeof(*lt)));
    if (!lt) {
        return error_set(reterr, -ENOMEM, "no memory for cublasLt");
    }
    cu->lt = lt;
    lt->workspace = (uint64_t)(cu->sm_major == 9 ? 32 : 4) << 20;
    s = lt_calls.Create(&lt->handle);
    s = s == CUBLAS_STATUS_SUCCESS ? describe_product(lt) : s;
    s = s == CUBLAS_STATUS_SUCCESS ? describe_preference(lt) : s;
    if (s == CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    r = lt_err(cu, s, "start");
    cu->news[0] = cu->lost ? cu->news[0] : '\0'; /* said in the description */
    cuda_lt_destroy(cu);
    return error_set(reterr, r, CUDA_LT_LIBRARY ": %s", lt_calls.GetStatusString(s));
}

int cuda_lt_create(struct cuda *cu, enum backend_prefill prefill, struct error *reterr)
{
    struct error e = {};
    int r = 0;

    lt_workspace = 0;
    if (prefill == BACKEND_PREFILL_OWN) {
        (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "own tiles");
        return 0;
    }
    if (prefill == BACKEND_PREFILL_AUTO && cu->integrated) { /* half a gigabyte of its storage */
        (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "own tiles, as on all shared memory");
        return 0;
    }
    r = lt_start(cu, &e);
    if (r < 0 && (prefill == BACKEND_PREFILL_CUBLAS || cu->lost)) {
        return error_set(reterr, r, "prefill by cublasLt: %s", e.text);
    }
    if (r < 0) {
        (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "own tiles (%.200s)", e.text);
        return 0;
    }
    (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "cublasLt %zu.%zu.%zu",
                   lt_calls.version / 10000, lt_calls.version / 100 % 100, lt_calls.version % 100);
    lt_workspace = cu->lt->workspace;
    return 0;
}

void cuda_lt_destroy(struct cuda *cu)
{
    struct cuda_lt *lt = cu->lt;

    if (!lt) {
        return;
    }
    for (int i = 0; i < 2; i++) {
        if (lt->w[i]) {
            (void)lt_calls.MatrixLayoutDestroy(lt->w[i]);
        }
        if (lt->x[i]) {
            (void)lt_calls.MatrixLayoutDestroy(lt->x[i]);
        }
    }
    if (lt->y) {
        (void)lt_calls.MatrixLayoutDestroy(lt->y);
    }
    if (lt->preference) {
        (void)lt_calls.MatmulPreferenceDestroy(lt->preference);
    }
    if (lt->desc) {
        (void)lt_calls.MatmulDescDestroy(lt->desc);
    }
    if (lt->handle) {
        (void)lt_calls.Destroy(lt->handle);
    }
    free(lt);
    cu->lt = NULL;
}

uint64_t cuda_lt_workspace(const struct backend_config *config)
{
    return config && config->prefill == BACKEND_PREFILL_OWN ? 0 : lt_workspace;
}

uint64_t cuda_lt_held(const struct cuda *cu)
{
    return cu->lt ? cu->lt->workspace : 0;
}

void cuda_lt_limits(struct cuda *cu)
{
    if (cu->lt) {
        cu->lt->max_rows = cu->scratch.lt_rows;
        cu->lt->n_shapes = 0;
        cu->lt->n_own = 0;
    }
}

void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size)
{
    const struct cuda_lt *lt = cu->lt;

    if (lt && lt->n_own > 0) {
        (void)snprintf(buf, size, "prefill %s, own tiles for %d of %d shapes (%s)", cu->lt_text,
                       lt->n_own, lt->n_shapes, lt->why);
    } else {
        (void)snprintf(buf, size, "prefill %s", cu->lt_text);
    }
}

/* ---- one product ---------------------------------------------------------------------------- */

static int32_t padded(int32_t n_cols) /* elements of a weight's row (weight.cu) */
{
    return (n_cols + 31) / 32 * 32;
}

static int32_t x_pad(int32_t n_cols)
{
    return (n_cols + 255) / 256 * 256;
}

static cublasStatus_t set_layout(cublasLtMatrixLayout_t layout, int64_t rows, int64_t cols,
                                 int64_t ld)
{
    cublasStatus_t s = set_u64(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, (uint64_t)rows);

    if (s == CUBLAS_STATUS_SUCCESS) {
        s = set_u64(layout, CUBLASLT_MATRIX_LAYOUT_COLS, (uint64_t)cols);
    }
    return s == CUBLAS_STATUS_SUCCESS ? set_u64(layout, CUBLASLT_MATRIX_LAYOUT_LD, (uint64_t)ld)
                                      : s;
}

static cublasStatus_t set_layouts(struct cuda_lt *lt, const struct lt_shape *s, int32_t n,
                                  int64_t ldy)
{
    int64_t k = padded(s->n_cols);
    cublasStatus_t e = set_layout(lt->w[s->bf16], k, s->n_rows, k);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = set_layout(lt->x[s->bf16], k, n, x_pad(s->n_cols));
    }
    return e == CUBLAS_STATUS_SUCCESS ? set_layout(lt->y, s->n_rows, n, ldy) : e;
}

/* y (n, ldy) = x W^T, + y when `add`. */
static int product(struct cuda *cu, const struct lt_shape *s, const uint8_t *w, const uint16_t *x,
                   int32_t n, float *y, int64_t ldy, bool add)
{
    struct cuda_lt *lt = cu->lt;
    float one = 1.0f;
    float beta = add ? 1.0f : 0.0f;
    cublasStatus_t e = set_layouts(lt, s, n, ldy);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt_calls.Matmul(lt->handle, lt->desc, &one, w, lt->w[s->bf16], x, lt->x[s->bf16], &beta,
                            y, lt->y, y, lt->y, &s->algo, cu->scratch.lt_work,
                            (size_t)lt->workspace, cu->stream);
    }
    return lt_err(cu, e, "matmul");
}

/* ---- which algorithm ------------------------------------------------------------------------ */

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

static int64_t sums_ld(int32_t n_rows)
{
    return (n_rows + 15) / 16 * 16;
}

static bool takes_all(struct cuda_lt *lt, const struct lt_shape *s)
{
    for (int32_t n = 1; n <= lt->max_rows; n++) {
        cublasLtMatmulHeuristicResult_t result = {};

        if (set_layouts(lt, s, n, sums_ld(s->n_rows)) != CUBLAS_STATUS_SUCCESS ||
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
    int64_t ld = sums_ld(s->n_rows);
    int r = 0;

    for (int i = 0; i < 2 * TRIAL_ROWS && r == 0; i++) {
        if (i % TRIAL_ROWS == 0) {
            r = product(cu, s, w, c->xh, n, c->lt_sums, ld, i > 0);
        }
        r = r < 0 ? r
                  : cu->be.ops->read(&cu->be, ret + (size_t)i * s->n_rows,
                                     c->lt_sums + rows[i % TRIAL_ROWS] * ld,
                                     (uint64_t)s->n_rows * sizeof(float));
    }
    return r;
}

/* Rows for a trial, all the same: numbers of all mantissas from 2^-4 to 2^4, for with few bits
 * every order of a sum gives the same. */
static int fill_trial(struct cuda *cu, const struct lt_shape *s)
{
    const struct backend_ops *ops = cu->be.ops;
    uint64_t pitch = (uint64_t)x_pad(s->n_cols) * sizeof(uint16_t);
    uint64_t bytes = pitch * (uint64_t)cu->lt->max_rows;
    uint8_t *x = reinterpret_cast<uint8_t *>(cu->scratch.xh);
    uint16_t *row = static_cast<uint16_t *>(malloc((size_t)pitch));
    uint32_t state = 1;
    int r;

    for (int32_t i = 0; row && i < x_pad(s->n_cols); i++) {
        uint32_t mantissa_bits = s->bf16 ? 7 : 10;
        uint32_t least = s->bf16 ? 127 - 4 : 15 - 4;

        state = state * 1664525u + 1013904223u;
        row[i] = (uint16_t)((state >> 31) << 15 | (least + (state >> 28 & 7)) << mantissa_bits |
                            (state >> 8 & ((1u << mantissa_bits) - 1)));
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
    struct cuda_lt *lt = cu->lt;
    size_t n = (size_t)s->n_rows;
    float *all = static_cast<float *>(malloc(4 * TRIAL_ROWS * n * sizeof(float)));
    float *few = all ? all + 2 * TRIAL_ROWS * n : NULL;
    bool same = true;
    int r = all ? 0 : -ENOMEM;

    r = r < 0 ? r : fill_trial(cu, s);
    r = r < 0 ? r : trial(cu, s, w, lt->max_rows, all);
    for (size_t i = 0; i <= sizeof(counts) / sizeof(counts[0]) && r == 0 && same; i++) {
        int32_t rows = i > 0 ? counts[i - 1] : lt->max_rows; /* rows of one product first */

        r = rows < lt->max_rows ? trial(cu, s, w, rows, few) : 0;
        for (int j = 0; j < 2 * TRIAL_ROWS && r == 0 && same; j++) {
            same = memcmp(all + (size_t)(j / TRIAL_ROWS * TRIAL_ROWS) * n,
                          (rows < lt->max_rows ? few : all) + (size_t)j * n,
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
    if (set_layouts(lt, s, lt->max_rows, sums_ld(s->n_rows)) != CUBLAS_STATUS_SUCCESS ||
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

static struct lt_shape *find(struct cuda_lt *lt, int32_t n_rows, int32_t n_cols, bool bf16)
{
    for (int32_t i = 0; i < lt->n_shapes; i++) {
        struct lt_shape *s = &lt->shape[i];

        if (s->n_rows == n_rows && s->n_cols == n_cols && s->bf16 == bf16) {
            return s;
        }
    }
    return NULL;
}

int cuda_lt_weight(struct cuda *cu, const struct ops_weight *w)
{
    struct cuda_lt *lt = cu->lt;
    bool bf16 = w->type == DTYPE_BF16;
    const char *why = "";
    struct lt_shape *s;
    int r;

    if (!lt || (!bf16 && w->type != DTYPE_F16) || w->role != OPS_ROLE_MATMUL || lt->max_rows < 1 ||
        w->n_rows > cu->limits.max_outputs || w->n_cols > cu->limits.max_cols ||
        find(lt, w->n_rows, w->n_cols, bf16) || lt->n_shapes == LT_SHAPES) {
        return 0;
    }
    s = &lt->shape[lt->n_shapes++];
    *s = {};
    s->n_rows = w->n_rows;
    s->n_cols = w->n_cols;
    s->bf16 = bf16;
    r = choose(cu, s, static_cast<const uint8_t *>(w->device), &why);
    if (!s->served) {
        (void)snprintf(lt->why, sizeof(lt->why), "%s for %d x %d", why, w->n_rows, w->n_cols);
        lt->n_own++;
    }
    if (!cu->lost) {
        cu->news[0] = '\0'; /* the description says it */
        return 0;
    }
    return r;
}

/* ---- sums that are not the output ----------------------------------------------------------- */

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
static bool straight(const struct gemm_part *to, const struct lt_shape *s)
{
    return to->ldy == sums_ld(s->n_rows) && reinterpret_cast<uintptr_t>(to->y) % LT_ALIGN == 0;
}

static int one_part(struct cuda *cu, const struct gemm *p, int part, const struct lt_shape *s)
{
    const struct gemm_part *to = &p->part[part];
    bool direct = s->bf16 && to->act == OPS_ACT_NONE && to->scale == 1.0f && !to->bias &&
                  straight(to, s);
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = sums_ld(s->n_rows);
    sums.part = part;
    sums.scaled = !s->bf16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += cu->lt->max_rows) {
        int32_t n = min(p->token_end - t, cu->lt->max_rows);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;

        if (direct) {
            r = product(cu, s, to->w, x, n, to->y + (int64_t)t * to->ldy, to->ldy, p->add);
            continue;
        }
        sums.token0 = t;
        r = product(cu, s, to->w, x, n, cu->scratch.lt_sums, sums.ld, false);
        r = r < 0 ? r : finish(cu, p, sums, n);
    }
    return r;
}

/* The gate's sums in scratch, the up projection's where the output will be; or both in scratch. */
static int gated(struct cuda *cu, const struct gemm *p, const struct lt_shape *s)
{
    const struct gemm_part *to = &p->part[0];
    int64_t ld = sums_ld(s->n_rows);
    bool direct = straight(to, s);
    int32_t most = direct ? cu->lt->max_rows : (cu->lt->max_rows + 1) / 2;
    struct lt_sums sums = {};
    int r = 0;

    sums.sum = cu->scratch.lt_sums;
    sums.ld = ld;
    sums.ld_up = direct ? to->ldy : ld;
    sums.scaled = !s->bf16;
    for (int32_t t = p->token0; t < p->token_end && r == 0; t += most) {
        int32_t n = min(p->token_end - t, most);
        const uint16_t *x = p->xh + (int64_t)t * p->pad;
        float *up = direct ? to->y + (int64_t)t * to->ldy : cu->scratch.lt_sums + most * ld;

        sums.token0 = t;
        sums.up = up;
        r = product(cu, s, to->w, x, n, cu->scratch.lt_sums, ld, false);
        r = r < 0 ? r : product(cu, s, p->part[1].w, x, n, up, sums.ld_up, false);
        r = r < 0 ? r : finish(cu, p, sums, n);
    }
    return r;
}

static const struct lt_shape *served(struct cuda *cu, const struct gemm *p, int part, bool bf16)
{
    const struct lt_shape *s = cu->lt ? find(cu->lt, p->part[part].n_rows, p->n_cols, bf16) : NULL;

    return s && s->served ? s : NULL;
}

int cuda_lt_products(struct cuda *cu, struct gemm *p, bool bf16)
{
    struct gemm own = *p;
    int r = cu->lt ? cuda_queue_flush(cu) : 0;

    if (p->gated) {
        const struct lt_shape *s = served(cu, p, 0, bf16);

        return r < 0 ? r : s ? gated(cu, p, s) : cuda_gemm_half_tiles(cu, p, bf16);
    }
    own.n_parts = 0;
    for (int i = 0; i < p->n_parts && r == 0; i++) {
        const struct lt_shape *s = served(cu, p, i, bf16);

        if (s) {
            r = one_part(cu, p, i, s);
        } else {
            own.part[own.n_parts++] = p->part[i];
        }
    }
    return r < 0 || own.n_parts == 0 ? r : cuda_gemm_half_tiles(cu, &own, bf16);
}

#else

/* Built without cublasLt.h. */

int cuda_lt_create(struct cuda *cu, enum backend_prefill prefill, struct error *reterr)
{
    (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "own tiles (built without cublasLt.h)");
    return prefill == BACKEND_PREFILL_CUBLAS
               ? error_set(reterr, -ENOTSUP, "prefill by cublasLt: built without cublasLt.h")
               : 0;
}

void cuda_lt_destroy(struct cuda *)
{
}

uint64_t cuda_lt_workspace(const struct backend_config *)
{
    return 0;
}

uint64_t cuda_lt_held(const struct cuda *)
{
    return 0;
}

void cuda_lt_limits(struct cuda *)
{
}

int cuda_lt_weight(struct cuda *, const struct ops_weight *)
{
    return 0;
}

void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size)
{
    (void)snprintf(buf, size, "prefill %s", cu->lt_text);
}

int cuda_lt_products(struct cuda *cu, struct gemm *p, bool bf16)
{
    return cuda_gemm_half_tiles(cu, p, bf16);
}

#endif
