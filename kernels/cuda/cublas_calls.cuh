/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUBLAS_CALLS_CUH
#define PIPIT_KERNELS_CUDA_CUBLAS_CALLS_CUH

/* What the files of cublasLt share: the library's calls, what it serves, one product. For these
 * files alone, and only where the toolkit has its header. */

#include "kernels/cuda/cublas.cuh"

#if CUDA_LT

#ifdef __CUDACC__
#include <cublasLt.h>
#else
#include <emu_lt.cuh>
#endif

enum { LT_SHAPES = 128, LT_ALIGN = 16 };

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
struct lt_calls {
    void *library;
    size_t version;
#define LT_FIELD(name) decltype(&cublasLt##name) name;
    LT_CALLS(LT_FIELD)
#undef LT_FIELD
};

extern struct lt_calls lt_calls;

struct lt_shape {
    int32_t n_rows, n_cols;
    int32_t ldy;  /* of its results, from one row of activations to the next, where they may stay */
    int32_t most; /* rows of activations that it was tried for */
    bool bf16;
    bool served;
    bool joined; /* of several weights alone */
    cublasLtMatmulAlgo_t algo;
};

struct cuda_lt {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t desc;
    cublasLtMatmulPreference_t preference;
    cublasLtMatrixLayout_t w[2], x[2], y; /* w, x: of f16, bf16; sizes are set before each use */
    uint64_t workspace;
    bool unpacks;     /* multiplies quantised weights, too */
    int32_t max_rows; /* of one product */
    uint64_t sums;    /* floats of sums that scratch holds */
    int32_t tried_rows;     /* that all shapes of the weights were tried for, 0: none, */
    uint64_t tried_weights; /* with slabs of so many */
    uint64_t code_bytes;    /* that the library took of the device then */
    int32_t n_shapes;
    int32_t n_asked, n_own; /* shapes of weights by themselves, and those that own tiles have */
    struct lt_shape shape[LT_SHAPES];
    char why[96]; /* the last shape that has no algorithm */
};

/* Elements from one row of the activations to the next. */
static inline int32_t lt_x_pad(int32_t n_cols)
{
    return (n_cols + 255) / 256 * 256;
}

/* Of one row of a 16-bit weight to the next (weight.cu), and of a slab. */
static inline int32_t lt_w_pad(int32_t n_cols)
{
    return (n_cols + 31) / 32 * 32;
}

/* Of sums in scratch, of a weight of so many rows. */
static inline int32_t lt_sums_ld(int32_t n_rows)
{
    return (n_rows + 15) / 16 * 16;
}

/* cublas.cu: the layouts of a product of n rows of activations, its results `ldy` apart. */
cublasStatus_t lt_set_layouts(struct cuda_lt *lt, const struct lt_shape *s, int32_t n, int64_t ldy);
/* y (n, ldy) = x W^T, + y when `add`, by the shape's algorithm. */
int lt_product(struct cuda *cu, const struct lt_shape *s, const uint8_t *w, const uint16_t *x,
               int32_t n, float *y, int64_t ldy, bool add);

/* Rows of activations of one product whose results lie in scratch, so far apart; 0: not one. */
static inline int32_t lt_most(const struct cuda_lt *lt, int32_t ld)
{
    uint64_t n = lt->sums / (uint64_t)ld;

    return n < (uint64_t)lt->max_rows ? (int32_t)n : lt->max_rows;
}

/* cublas_choice.cu: the shape that so many rows of a weight have, or NULL. */
struct lt_shape *lt_find(struct cuda_lt *lt, int32_t n_rows, int32_t n_cols, int32_t ldy,
                         bool bf16);
/* Whether the library may serve a weight; its shape chosen, unless it is known, or those of its
 * slabs. By its values, or by random numbers. `joined`: it stands for several weights, which are
 * there one by one, too. */
bool lt_eligible(const struct cuda_lt *lt, const struct ops_weight *w);
int lt_add(struct cuda *cu, const struct ops_weight *w, const uint8_t *random, bool joined);
/* The next number of a trial. */
uint16_t lt_trial_number(uint32_t *state, bool bf16);
/* Rows of a weight that one product takes, but for its last: all, or as many quantised ones as a
 * slab holds; 0: not one tile. */
int32_t lt_slab_rows(const struct cuda *cu, enum dtype type, int32_t n_rows, int32_t n_cols);

#endif

#endif
