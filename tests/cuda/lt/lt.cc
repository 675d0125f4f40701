/* SPDX-License-Identifier: Apache-2.0 */
/* The library of lt.h. Environment: FAKE_LT_VERSION is what it says its version is. */

#include "lt.h"

#include <emu_lt.cuh>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

extern "C" {
#include "quant/half.h"
}

#define EXPORT extern "C" __attribute__((visibility("default")))

enum { MAX_CALLS = 1 << 14, MAX_ALGOS = 1 << 20, ALIGN = 16 };
static const uint64_t MAGIC = 0x6c74616c676fu;

struct cublasLtContext {
    int unused;
};
struct cublasLtMatmulDescOpaque_t {
    int trans_a, trans_b;
    bool f32;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
    uint64_t workspace;
    uint32_t reductions;
    uint32_t align[4];
};

/* algo.data */
enum { A_MAGIC, A_NUMBER, A_M, A_K, A_TYPE, A_SPLIT, A_WORKSPACE };

static struct fake_lt_call calls[MAX_CALLS];
static int n_calls, n_objects, fail_after, fail_status;
static uint64_t n_algos, few, refused_m, refused_n, code_bytes;
static bool loaded[MAX_ALGOS];
static int where;
static char broken[200];

static void break_rule(const char *format, ...)
{
    if (!broken[0]) {
        va_list args;

        va_start(args, format);
        (void)vsnprintf(broken, sizeof(broken), format, args);
        va_end(args);
    }
}

static cublasStatus_t fails(void)
{
    if (fail_after > 0 && --fail_after == 0) {
        return (cublasStatus_t)fail_status;
    }
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT void fake_lt_log_clear(void)
{
    n_calls = 0;
}

EXPORT const struct fake_lt_call *fake_lt_log(int *ret_n)
{
    *ret_n = n_calls;
    return calls;
}

EXPORT const char *fake_lt_broken(void)
{
    return broken[0] ? broken : NULL;
}

EXPORT int fake_lt_objects(void)
{
    return n_objects;
}

EXPORT void fake_lt_fail(int n, int status)
{
    fail_after = n;
    fail_status = status;
}

EXPORT int fake_lt_pending(void)
{
    return fail_after > 0;
}

EXPORT void fake_lt_few(uint64_t n)
{
    few = n;
}

EXPORT void fake_lt_where(int w)
{
    where = w;
}

EXPORT void fake_lt_refuse(uint64_t m, uint64_t n)
{
    refused_m = m;
    refused_n = n;
}

EXPORT void fake_lt_code(uint64_t bytes)
{
    code_bytes = bytes;
}

EXPORT void fake_lt_start(void)
{
    memset(loaded, 0, sizeof(loaded));
    fake_lt_code(0);
    broken[0] = 0;
    n_calls = 0;
    fake_lt_fail(0, 0);
    fake_lt_few(0);
    fake_lt_where(0);
    fake_lt_refuse(0, 0);
}

/* ---- objects -------------------------------------------------------------------------------- */

template <typename T> static cublasStatus_t make(T **ret)
{
    cublasStatus_t s = fails();

    if (s == CUBLAS_STATUS_SUCCESS) {
        *ret = static_cast<T *>(calloc(1, sizeof(T)));
        n_objects++;
    }
    return s;
}

template <typename T> static cublasStatus_t drop(T *p)
{
    n_objects--;
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    const char *s = getenv("FAKE_LT_VERSION");

    return s ? strtoul(s, NULL, 10) : 130100;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    static char text[40];

    (void)snprintf(text, sizeof(text), "status %d", (int)s);
    return text;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    return make(ret);
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    return drop(h);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t c,
                                        cudaDataType_t scale)
{
    cublasStatus_t s = make(ret);

    if (s == CUBLAS_STATUS_SUCCESS) {
        (*ret)->f32 = c == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F;
    }
    return s;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return drop(d);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t a, const void *value,
                                              size_t bytes)
{
    cublasStatus_t s = fails();

    if (s == CUBLAS_STATUS_SUCCESS && bytes != sizeof(int32_t)) {
        s = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        memcpy(a == CUBLASLT_MATMUL_DESC_TRANSA ? &d->trans_a : &d->trans_b, value, bytes);
    }
    return s;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    cublasStatus_t s = make(ret);

    if (s == CUBLAS_STATUS_SUCCESS) {
        (*ret)->reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
        (*ret)->workspace = 0;
    }
    return s;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return drop(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t a,
                                                    const void *value, size_t bytes)
{
    cublasStatus_t s = fails();
    bool is_64 = a == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    void *to = is_64 ? (void *)&p->workspace
               : a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                   ? (void *)&p->reductions
                   : (void *)&p->align[a - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES];

    if (s == CUBLAS_STATUS_SUCCESS && bytes != (is_64 ? 8u : 4u)) {
        s = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        memcpy(to, value, bytes);
    }
    return s;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType_t type,
                                          uint64_t rows, uint64_t cols, int64_t ld)
{
    cublasStatus_t s = make(ret);

    if (s == CUBLAS_STATUS_SUCCESS) {
        **ret = {type, rows, cols, ld};
    }
    return s;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return drop(l);
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t a,
                                                const void *value, size_t bytes)
{
    cublasStatus_t s = fails();

    if (s == CUBLAS_STATUS_SUCCESS && bytes != sizeof(uint64_t)) {
        s = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        memcpy(a == CUBLASLT_MATRIX_LAYOUT_ROWS   ? (void *)&l->rows
               : a == CUBLASLT_MATRIX_LAYOUT_COLS ? (void *)&l->cols
                                                  : (void *)&l->ld,
               value, bytes);
    }
    return s;
}

/* ---- the product ---------------------------------------------------------------------------- */

struct problem {
    uint64_t m, n, k;
    bool bf16;
    const uint8_t *a, *b, *c;
    uint8_t *d;
    int64_t lda, ldb, ldd;
    float alpha, beta;
};

/* (K, M) transposed times (K, N), both column by column, of 16 bits; f32 sums. */
static bool sound(const struct cublasLtMatmulDescOpaque_t *desc, cublasLtMatrixLayout_t la,
                  cublasLtMatrixLayout_t lb, cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld)
{
    bool types = la->type == lb->type && (la->type == CUDA_R_16BF || la->type == CUDA_R_16F) &&
                 lc->type == CUDA_R_32F && ld->type == CUDA_R_32F && desc->f32;

    if (desc->trans_a != CUBLAS_OP_T || desc->trans_b != CUBLAS_OP_N) {
        break_rule("operands are not TN");
    } else if (!types) {
        break_rule("types other than 16 bits and f32 sums");
    } else if (la->rows != lb->rows || la->cols != ld->rows || lb->cols != ld->cols ||
               lc->rows != ld->rows || lc->cols != ld->cols || lc->ld != ld->ld) {
        break_rule("shapes that do not fit: (%d, %d) (%d, %d) (%d, %d)", (int)la->rows,
                   (int)la->cols, (int)lb->rows, (int)lb->cols, (int)ld->rows, (int)ld->cols);
    } else if (la->ld < (int64_t)la->rows || lb->ld < (int64_t)lb->rows ||
               ld->ld < (int64_t)ld->rows || la->ld * 2 % ALIGN || lb->ld * 2 % ALIGN ||
               ld->ld * 4 % ALIGN) {
        break_rule("rows %d, %d, %d apart", (int)la->ld, (int)lb->ld, (int)ld->ld);
    } else {
        return true;
    }
    return false;
}

static float of16(const uint8_t *p, uint64_t i, bool bf16)
{
    uint16_t h;

    memcpy(&h, p + 2 * i, 2);
    return bf16 ? half_bf16_to_f32(h) : half_f16_to_f32(h);
}

/* In eight sums side by side: compilers make that quick. K is a multiple of 32. */
static void multiply(void *arg)
{
    const struct problem *p = static_cast<const struct problem *>(arg);
    float *a = static_cast<float *>(malloc((p->n + 1) * p->k * sizeof(float)));
    float *b = a ? a + p->k : NULL;

    for (uint64_t j = 0; j < p->n * p->k && a; j++) {
        b[j] = of16(p->b, j / p->k * (uint64_t)p->ldb + j % p->k, p->bf16);
    }
    for (uint64_t i = 0; i < p->m && a; i++) {
        for (uint64_t k = 0; k < p->k; k++) {
            a[k] = of16(p->a, i * (uint64_t)p->lda + k, p->bf16);
        }
        for (uint64_t j = 0; j < p->n; j++) {
            uint64_t at = (j * (uint64_t)p->ldd + i) * 4;
            float part[8] = {};
            float sum = 0;
            float old = 0;
            bool here = where == 0 || (where == 1 && p->beta != 0.0f) ||
                        (where == 2 && j == 0 && p->n > 2) ||
                        (where == 3 && j == p->n / 2 && p->n > 2) || (where == 4 && j == p->n - 1);
            uint64_t half = p->n < few && here ? p->k / 2 : 0; /* another order */

            for (uint64_t k = 0; k < p->k; k += 8) {
                uint64_t c = (k + half) % p->k;

                for (int l = 0; l < 8; l++) {
                    part[l] += a[c + l] * b[j * p->k + c + l];
                }
            }
            for (int l = 0; l < 8; l++) {
                sum += part[l];
            }
            if (p->beta != 0.0f) {
                memcpy(&old, p->c + at, 4);
            }
            sum = p->alpha * sum + (p->beta != 0.0f ? p->beta * old : 0.0f);
            memcpy(p->d + at, &sum, 4);
        }
    }
    free(a);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t stream)
{
    cublasStatus_t s = fails();
    struct problem p = {la->cols,
                        lb->cols,
                        la->rows,
                        la->type == CUDA_R_16BF,
                        static_cast<const uint8_t *>(a),
                        static_cast<const uint8_t *>(b),
                        static_cast<const uint8_t *>(c),
                        static_cast<uint8_t *>(d),
                        la->ld,
                        lb->ld,
                        ld->ld,
                        *static_cast<const float *>(alpha),
                        *static_cast<const float *>(beta)};
    struct emu_range touched[] = {
        {a, (size_t)((p.m - 1) * (uint64_t)p.lda + p.k) * 2},
        {b, (size_t)((p.n - 1) * (uint64_t)p.ldb + p.k) * 2},
        {d, (size_t)((p.n - 1) * (uint64_t)p.ldd + p.m) * 4},
        {workspace, bytes},
    };
    cudaError_t e;

    if (s != CUBLAS_STATUS_SUCCESS) {
        return s;
    }
    if (!h || !sound(desc, la, lb, lc, ld)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (algo->data[A_MAGIC] != MAGIC || algo->data[A_M] != p.m || algo->data[A_K] != p.k ||
        algo->data[A_TYPE] != (uint64_t)la->type) {
        break_rule("an algorithm that is not this shape's");
    } else if (bytes < algo->data[A_WORKSPACE] || (uintptr_t)workspace % 256 != 0) {
        break_rule("%zu bytes of workspace of %zu", bytes, (size_t)algo->data[A_WORKSPACE]);
    } else if ((uintptr_t)a % ALIGN || (uintptr_t)b % ALIGN || (uintptr_t)d % ALIGN || c != d) {
        break_rule("operands that are not aligned, or C that is not D");
    }
    if (stream->take && algo->data[A_NUMBER] < MAX_ALGOS && !loaded[algo->data[A_NUMBER]]) {
        if (stream->take(code_bytes) != cudaSuccess) {
            return CUBLAS_STATUS_ALLOC_FAILED;
        }
        loaded[algo->data[A_NUMBER]] = true;
    }
    if (n_calls == MAX_CALLS) {
        break_rule("more calls than are kept");
    } else {
        calls[n_calls++] = {p.m,   p.n,   p.k,     p.lda,           p.ldb,
                            p.ldd, p.bf16, p.beta != 0.0f, algo->data[A_NUMBER], bytes};
    }
    e = stream->run("cublasLtMatmul", multiply, &p, touched, 4);
    return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* ---- algorithms ----------------------------------------------------------------------------- */

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t a,
                                                    void *ret, size_t bytes, size_t *ret_bytes)
{
    cublasStatus_t s = fails();
    uint32_t value = a == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? (uint32_t)algo->data[A_SPLIT]
                                                          : algo->data[A_SPLIT] > 1 ? 2u : 0u;

    if (s == CUBLAS_STATUS_SUCCESS && bytes != sizeof(value)) {
        s = CUBLAS_STATUS_INVALID_VALUE;
    }
    if (s == CUBLAS_STATUS_SUCCESS) {
        memcpy(ret, &value, sizeof(value));
        *ret_bytes = sizeof(value);
    }
    return s;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                       cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *ret)
{
    cublasStatus_t s = fails();

    if (s != CUBLAS_STATUS_SUCCESS || !sound(desc, la, lb, lc, ld)) {
        return s != CUBLAS_STATUS_SUCCESS ? s : CUBLAS_STATUS_INVALID_VALUE;
    }
    if (refused_n == ld->cols && (refused_m == 0 || refused_m == ld->rows)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    ret->algo = *algo;
    ret->workspaceSize = algo->data[A_WORKSPACE];
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                              cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t *ret, int *ret_n)
{
    static const uint64_t workspaces[] = {64 << 20, 1 << 20, 1 << 20};
    static const uint64_t splits[] = {1, 4, 1};
    cublasStatus_t s = fails();

    *ret_n = 0;
    if (s != CUBLAS_STATUS_SUCCESS || !sound(desc, la, lb, lc, ld)) {
        return s != CUBLAS_STATUS_SUCCESS ? s : CUBLAS_STATUS_INVALID_VALUE;
    }
    for (int i = 0; i < 4; i++) {
        if (preference->align[i] > ALIGN) {
            break_rule("operands said to be aligned to %u bytes", preference->align[i]);
        }
    }
    for (int i = 0; i < 3 && *ret_n < most; i++) {
        if (workspaces[i] <= preference->workspace && (splits[i] == 1 || preference->reductions)) {
            ret[*ret_n] = {};
            ret[*ret_n].workspaceSize = workspaces[i];
            ret[(*ret_n)++].algo = {{MAGIC, ++n_algos, ld->rows, la->rows, (uint64_t)la->type,
                                     splits[i], workspaces[i]}};
        }
    }
    return CUBLAS_STATUS_SUCCESS;
}
