/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUDA_H
#define PIPIT_KERNELS_CUDA_CUDA_H

/* Inside the CUDA module: the backend's struct, its parameter staging, and the operations that the
 * table in backend.cu names. All work goes to one stream; host parameter arrays travel through a
 * ring of pinned memory (stage.cu), so that a call may return before the device has run it. */

#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "base/error.h"
#include "kernels/backend.h"
#ifdef __cplusplus
}
#endif

struct cublasContext;

enum {
    CUDA_WARP = 32,
    CUDA_STAGE_BYTES = 1 << 20, /* of one ring slot */
    CUDA_STAGES = 8,
};

struct cuda_stage {
    uint8_t *host;   /* pinned */
    uint8_t *device;
    cudaEvent_t done; /* the last call that reads `device` */
};

struct cuda_backend {
    struct backend be;
    int device;
    bool integrated; /* one memory with the host (Jetson) */
    int sm;          /* 80, 87, 90 ... */
    int n_sms;
    char name[128];
    cudaStream_t stream;
    struct cublasContext *blas;
    void *blas_workspace;
    size_t blas_workspace_bytes;
    struct cuda_stage stage[CUDA_STAGES];
    int stage_next;
    size_t stage_used;      /* of the current slot */
    struct backend_limits limits;
    /* Scratch taken by reserve (layout in scratch.cu). */
    uint8_t *scratch;
    uint64_t scratch_size;
    float *normed;          /* (max_rows, max_cols) f32: matmul's normed input */
    uint16_t *x16;          /* (max_rows, max_cols) bf16: prefill operand */
    uint16_t *w16;          /* dequantised slice of a weight, bf16 */
    uint64_t w16_elements;
    float *partial;         /* attention partials: (items, n_q of a group, v_dim + 2) */
    uint64_t partial_bytes;
    float *logits;          /* observed logits (max_heads, max_slots) by sequence row block */
    int err;                /* first error of the device; sticky ones end the engine */
    char err_text[160];
};

/* err.cu: CUDA errors become errno here and nowhere else. The first failing call is recorded. */
int cuda_check(struct cuda_backend *b, cudaError_t e, const char *what);
int cuda_check_blas(struct cuda_backend *b, int status, const char *what);
int cuda_launched(struct cuda_backend *b, const char *kernel); /* after each launch */

/* stage.cu: a copy of host data that the device can read until the ring comes round again. */
int cuda_stage_put(struct cuda_backend *b, const void *host, size_t bytes, const void **ret_device);
int cuda_stage_create(struct cuda_backend *b, struct error *reterr);
void cuda_stage_destroy(struct cuda_backend *b);

/* scratch.cu */
uint64_t cuda_scratch_bytes(const struct backend_config *config, const struct backend_limits *l);
int cuda_reserve(struct backend *be, const struct backend_limits *l, struct error *reterr);

/* weight.cu */
uint64_t cuda_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *d);
int cuda_weight_create(struct backend *be, const struct ops_weight_desc *d, struct ops_weight *ret,
                       struct error *reterr);
void cuda_weight_destroy(struct backend *be, struct ops_weight *w);

/* One file an operation. */
int cuda_embed(struct backend *be, const struct ops_embed *p);
int cuda_norm(struct backend *be, const struct ops_norm_op *p);
int cuda_matmul(struct backend *be, const struct ops_matmul *p);
int cuda_gather(struct backend *be, const struct ops_gather *p);
int cuda_softcap(struct backend *be, const struct ops_softcap *p);
int cuda_kv_layout(struct ops_kv_layout *layout, struct error *reterr);
int cuda_rope_store(struct backend *be, const struct ops_rope_store *p);
int cuda_attention(struct backend *be, const struct ops_attention *p);
int cuda_victim(struct backend *be, const struct ops_victim *p);
int cuda_cut(struct backend *be, const struct ops_cut *p);
int cuda_kv_export(struct backend *be, const struct ops_kv_slots *p);
int cuda_kv_import(struct backend *be, const struct ops_kv_slots *p);

static inline struct cuda_backend *cuda_of(struct backend *be)
{
    return (struct cuda_backend *)be;
}

#endif
