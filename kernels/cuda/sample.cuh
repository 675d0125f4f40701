/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_SAMPLE_CUH
#define PIPIT_KERNELS_CUDA_SAMPLE_CUH

/* Tokens drawn on the device: what sample.cu (greedy rows, top_k) and sample_all.cu (all tokens)
 * share. Logits are ranked by a 64-bit key, the best first: the logit, then the id. */

#include <cfloat>

#include "kernels/cuda/topk.cuh"

extern "C" {
#include "base/exp_fixed.h"
#include "base/rng.h"
}

enum {
    SAMPLE_ROWS = CUDA_SAMPLE_ROWS,
    SAMPLE_K = OPS_SAMPLE_MAX_K,
    GROUPS = CUDA_SAMPLE_GROUPS,
    WARP_GROUPS = 2 /* a warp's */
};

static_assert((int)SAMPLE_K == (int)TOPK_THREADS, "a thread for each of the best");
static_assert((int)GROUPS == 2 * TOPK_THREADS, "two are a thread's");
static_assert((int)TOPK_WARPS == 32, "a lane each");

struct sample {
    const float *logits;
    int32_t *ids;
    uint64_t *best;    /* (rows, GROUPS) */
    uint64_t *mass;    /* (rows, GROUPS): of rows without top_k, by distance from the best */
    uint64_t *bounds;  /* (rows, 2): the first key, or 0: no token; the last that top_p leaves */
    uint32_t *arrived; /* (rows) */
    int32_t ld, n_vocab;
    int32_t n_groups, group; /* how many, and logits of each */
    struct ops_sample_row row[SAMPLE_ROWS];
};

struct ranked_logits {
    const float *l;
};

CUDA_INLINE uint64_t topk_key(const struct ranked_logits *c, int32_t list, int32_t id)
{
    return (uint64_t)~topk_sortable(c->l[id]) << 32 | (uint32_t)id;
}

/* Drawn for from all tokens: in order of id. */
static inline HOST_DEVICE bool takes_all(const struct ops_sample_row *r, int32_t n_vocab)
{
    return r->temperature > 0 && (r->top_k <= 0 || r->top_k >= n_vocab);
}

/* exp_fixed(), in its operations. */
CUDA_INLINE float sample_exp(float x)
{
    float clamped = x > -87.0f ? x : -87.0f;
    float shifted = __fadd_rn(__fmul_rn(clamped, 1.44269504f), 0x1.8p23f);
    float n = __fsub_rn(shifted, 0x1.8p23f);
    float r =
        __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0x1.62e4p-1f)), __fmul_rn(n, 0x1.7f7d1cp-20f));
    float poly = 1.0f / 720;

    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 120);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 24);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f / 6);
    poly = __fadd_rn(__fmul_rn(poly, r), 0.5f);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f);
    poly = __fadd_rn(__fmul_rn(poly, r), 1.0f);
    return x > -87.0f
               ? __fmul_rn(poly, __uint_as_float((__float_as_uint(shifted) << 23) + 0x3f800000u))
               : 0.0f;
}

/* The block's part of what the row's last block reads is written: is this the last of them? Then
 * `arrived` is 0 again. A barrier for all threads. */
CUDA_INLINE bool sample_is_last(uint32_t *arrived)
{
    __shared__ bool is_last;

    __syncthreads(); /* the block's part: written by all of its warps */
    if (threadIdx.x == 0) {
        __threadfence(); /* the part before the count */
        is_last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
        __threadfence(); /* the count before the others' parts are read */
    }
    __syncthreads(); /* is_last: written above */
    return is_last;
}

/* Rows without top_k, once sample_rows has their first keys. */
int cuda_sample_all(struct cuda *cu, const struct sample *p, int32_t n_rows);

#endif
