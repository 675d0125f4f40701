/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill products by cublasLt: what a row gives must not depend on its company. Quantised weights
 * are multiplied as bf16 (cublas_products.cu).
 *
 * The library is opened at run time (dlopen, by the major version that this was built with) and
 * never linked; where it cannot be had, own tiles serve (gemm_half_tiles.cu). It chooses among
 * kernels by the number of rows, and may divide a sum among blocks, so it is not left to choose:
 *
 *   - for each shape (rows, columns, type of a weight) an algorithm is taken once, before a plan is
 *     made (cublas_try.cu), by its heuristics for the most rows that a call may have, without
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
 * Its errors become errno here. On an H200: 14336 x 4096 bf16 by 512 rows 595 TFLOP/s, by 2,048
 * rows 654; a square product of 8,192 reaches 790 there.
 *
 * Here are the calls and one product; the choice of algorithms is in cublas_choice.cu, what a
 * prompt's rows ask for in cublas_products.cu. */

#include "kernels/cuda/cublas_calls.cuh"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/times.cuh"

#if CUDA_LT

#include <dlfcn.h>

#ifndef CUDA_LT_LIBRARY
#define LT_TEXT_(x) #x
#define LT_TEXT(x) LT_TEXT_(x)
#define CUDA_LT_LIBRARY "libcublasLt.so." LT_TEXT(CUBLAS_VER_MAJOR)
#endif

struct lt_calls lt_calls;

static struct cuda_lt_use lt_use; /* of the backend that was created last */

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

/* Are 16-bit products with f32 sums as fast as the chip's size allows? Other cards have half the
 * rate, there the own tiles' bytes win: by data sheets 71 against some 125 T/s on an RTX 3090. */
static bool is_fast(const struct cuda *cu)
{
    return (cu->sm_major == 8 && cu->sm_minor == 0) || cu->sm_major == 9 || cu->sm_major == 10;
}

int cuda_lt_create(struct cuda *cu, enum backend_prefill prefill, struct error *reterr)
{
    struct error e = {};
    int r = 0;

    lt_use = {};
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
    cu->lt->unpacks = prefill == BACKEND_PREFILL_CUBLAS || is_fast(cu);
    (void)snprintf(cu->lt_text, sizeof(cu->lt_text), "cublasLt %zu.%zu.%zu%s",
                   lt_calls.version / 10000, lt_calls.version / 100 % 100, lt_calls.version % 100,
                   cu->lt->unpacks ? ", of quantised weights as bf16" : "");
    lt_use = cuda_lt_held(cu);
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

struct cuda_lt_use cuda_lt_planned(const struct backend_config *config)
{
    struct cuda_lt_use none = {};

    return config && config->prefill == BACKEND_PREFILL_OWN ? none : lt_use;
}

struct cuda_lt_use cuda_lt_held(const struct cuda *cu)
{
    struct cuda_lt_use use = {};

    if (cu->lt) {
        use.work = cu->lt->workspace;
        use.unpacks = cu->lt->unpacks;
    }
    return use;
}

void cuda_lt_limits(struct cuda *cu)
{
    if (cu->lt) {
        struct cuda_lt *lt = cu->lt;

        lt->max_rows = cu->scratch.lt_rows;
        lt->sums = cu->scratch.lt_floats;
        if (lt->tried_rows < lt->max_rows || lt->tried_weights != cu->scratch.lt_weights) {
            lt->n_shapes = 0;
            lt->n_asked = 0;
            lt->n_own = 0;
            lt->tried_rows = 0;
        }
    }
}

void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size)
{
    const struct cuda_lt *lt = cu->lt;
    char code[48] = "";

    if (lt && lt->code_bytes > 0) {
        (void)snprintf(code, sizeof(code), ", its code %llu MiB",
                       (unsigned long long)(lt->code_bytes + (1 << 20) - 1) >> 20);
    }
    if (lt && lt->n_own > 0) {
        (void)snprintf(buf, size, "prefill %s%s, own tiles for %d of %d shapes (%s)", cu->lt_text,
                       code, lt->n_own, lt->n_asked, lt->why);
    } else {
        (void)snprintf(buf, size, "prefill %s%s", cu->lt_text, code);
    }
}

/* ---- one product ---------------------------------------------------------------------------- */

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

cublasStatus_t lt_set_layouts(struct cuda_lt *lt, const struct lt_shape *s, int32_t n,
                                  int64_t ldy)
{
    int64_t k = lt_w_pad(s->n_cols);
    cublasStatus_t e = set_layout(lt->w[s->bf16], k, s->n_rows, k);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = set_layout(lt->x[s->bf16], k, n, lt_x_pad(s->n_cols));
    }
    return e == CUBLAS_STATUS_SUCCESS ? set_layout(lt->y, s->n_rows, n, ldy) : e;
}

int lt_product(struct cuda *cu, const struct lt_shape *s, const uint8_t *w, const uint16_t *x,
                   int32_t n, float *y, int64_t ldy, bool add)
{
    struct cuda_lt *lt = cu->lt;
    float one = 1.0f;
    float beta = add ? 1.0f : 0.0f;
    cublasStatus_t e = lt_set_layouts(lt, s, n, ldy);
    bool timed = cuda_times_on();
    int r = timed ? cuda_times_ready(cu) : 0;

    if (r < 0) {
        return r;
    }
    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt_calls.Matmul(lt->handle, lt->desc, &one, w, lt->w[s->bf16], x, lt->x[s->bf16], &beta,
                            y, lt->y, y, lt->y, &s->algo, cu->scratch.lt_work,
                            (size_t)lt->workspace, cu->stream);
    }
    r = lt_err(cu, e, "matmul");
    return r < 0 || !timed ? r
                           : cuda_times_note(cu, "cublasLt",
                                             dim3((unsigned)s->n_rows, (unsigned)s->n_cols, 1));
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

struct cuda_lt_use cuda_lt_planned(const struct backend_config *)
{
    return {};
}

struct cuda_lt_use cuda_lt_held(const struct cuda *)
{
    return {};
}

void cuda_lt_limits(struct cuda *)
{
}

int cuda_lt_weights_try(struct backend *, const struct backend_limits *,
                        const struct ops_weight_desc *const *, int32_t, struct error *)
{
    return 0;
}

int cuda_lt_weight(struct cuda *, const struct ops_weight *)
{
    return 0;
}

void cuda_lt_describe(const struct cuda *cu, char *buf, size_t size)
{
    (void)snprintf(buf, size, "prefill %s", cu->lt_text);
}

bool cuda_lt_takes(const struct cuda *, const struct ops_weight *)
{
    return false;
}

bool cuda_lt_reads(const struct cuda *, const struct ops_weight *)
{
    return false;
}

int cuda_lt_products(struct cuda *cu, struct gemm *p, const struct ops_weight *const *weights)
{
    return cuda_gemm_half_tiles(cu, p, weights[0]->type == DTYPE_BF16);
}

#endif
