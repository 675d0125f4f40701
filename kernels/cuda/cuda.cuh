/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_CUDA_CUH
#define PIPIT_KERNELS_CUDA_CUDA_CUH

/* The cuda backend, inside: one stream, one scratch, one file per family of operations.
 *
 * All calls come from one thread and go to one stream, so kernels run in the order of the calls;
 * `read` and `sync` wait. What a kernel needs to know of sequences travels by value as its
 * parameter (batches of CUDA_SEQS of them), so nothing on the host must outlive a call.
 *
 * Errors become errno in err.cu alone. After a sticky one the device is lost to this process: every
 * later call answers -ENODEV. */

#include "kernels/cuda/prim.cuh"

extern "C" {
#include "kernels/backend.h"
}

enum {
    CUDA_SEQS = 16,       /* sequences of one launch */
    CUDA_ROPE_PAIRS = 128,
    CUDA_IDS = 768,       /* row numbers of one launch */
    CUDA_STAGE = 4 << 20, /* pinned bytes through which small writes go */
};

/* Scratch, laid out by cuda_scratch() from the limits. */
struct cuda_scratch {
    float *xf;         /* (max_rows, max_cols): normalised activations */
    uint8_t *xq;       /* (2, max_rows, x_pad): int8 codes in fragment order, then what they left */
    float *xd;         /* (max_rows, x_pad / 32): scale of a block */
    float *xs;         /* (max_rows, x_pad / 32): its sum */
    uint16_t *xh;      /* (3, max_rows, x_pad): 16-bit pieces */
    float *xe;         /* (max_rows): factor that the f16 pieces were divided by */
    float *part;       /* decode attention: (max_decode, heads, chunks, dim + 4) */
    float *sums;       /* observed: (max_rows, heads, 2): largest logit, 1 / sum */
    float *logits;     /* observed decode rows: (n_observed, heads, max_slots) */
    int32_t *order;    /* cut: (heads + 1, max_slots) */
    int32_t *flag;     /* cut: failed, then slots to move by group (1 + heads) */
    uint64_t bytes;
    int32_t n_observed;
};

struct cuda {
    struct backend be;
    cudaStream_t stream;
    bool have_stream;
    int device;
    int n_sms;
    bool integrated;
    size_t shared_max; /* dynamic shared memory of one block */
    struct backend_limits limits;
    void *scratch_base;
    struct cuda_scratch scratch;
    uint8_t *stage; /* pinned (CUDA_STAGE) */
    size_t stage_used;
    bool lost;
    char device_name[96];
    char cause[160]; /* of the loss */
};

/* ---- err.cu --------------------------------------------------------------------------------- */

/* 0 or a negative errno; records the call when the error is sticky. */
int cuda_err(struct cuda *cu, cudaError_t e, const char *call);
/* The same with a text; cu may be NULL. */
int cuda_error(struct cuda *cu, cudaError_t e, const char *call, struct error *reterr);
/* After each launch. */
int cuda_launched(struct cuda *cu, const char *kernel);

/* ---- shared by kernels ---------------------------------------------------------------------- */

/* The byte layout of a page: K panels [k_heads][64][k_row], V panels [v_heads][64][v_row], K scales
 * [k_heads][64], V scales [v_heads][64]. A row is padded to whole groups of 8 elements with zeros,
 * so that every load is 8, 16 or 32 aligned bytes. */
struct cuda_layout {
    int32_t n_groups, k_heads, v_heads, k_dim, v_dim;
    int32_t k_type, v_type; /* enum ops_kv_type */
    uint32_t k_row, v_row;  /* bytes */
    uint32_t v_at, k_scale_at, v_scale_at;
    uint64_t page_bytes;
};

struct cuda_seq {
    uint8_t *pool;
    const uint32_t *pages;
    int32_t *slot_pos;
    float *score;
    const int32_t *victim;
    int32_t row0, n_rows, pos0, slot0, ring;
    int32_t max_pages, cap, n_slots;
};

struct cuda_seqs {
    struct cuda_layout layout; /* of all of them */
    int32_t n;
    struct cuda_seq s[CUDA_SEQS];
};

struct cuda_norm {
    const float *w;
    const float *b;
    float eps;
    int32_t layer;
};

/* Sequences from `first` on that share a layout, at most CUDA_SEQS; returns how many. */
int32_t cuda_seqs_take(const struct ops_seq *seqs, int32_t first, int32_t n, struct cuda_seqs *ret);
struct cuda_layout cuda_layout_of(const struct ops_kv_layout *l);
struct cuda_norm cuda_norm_of(const struct ops_norm *n);
/* f32 of a weight of role vector, NULL for NULL. */
const float *cuda_vector(const struct ops_weight *w);

static inline struct cuda *cuda_of(struct backend *be)
{
    return reinterpret_cast<struct cuda *>(be);
}

static inline uint32_t cuda_div_up(uint64_t a, uint64_t b)
{
    return (uint32_t)((a + b - 1) / b);
}

/* Decode attention's chunks: a function of n_slots alone (ops.h), so bits do not depend on load. */
static inline __host__ __device__ int32_t cuda_chunk(int32_t n_slots)
{
    return n_slots <= 4096 ? 128 : n_slots <= 32768 ? 512 : 1024;
}

/* ---- operations ----------------------------------------------------------------------------- */

uint64_t cuda_scratch(const struct backend_limits *limits, uint8_t *base, struct cuda_scratch *ret);

uint64_t cuda_weight_bytes(const struct backend_config *config, const struct ops_weight_desc *desc);
int cuda_weight_create(struct backend *be, const struct ops_weight_desc *desc,
                       struct ops_weight *ret, struct error *reterr);
void cuda_weight_destroy(struct backend *be, struct ops_weight *w);
int cuda_kv_layout(struct ops_kv_layout *layout, struct error *reterr);
int cuda_embed(struct backend *be, const struct ops_embed *p);
int cuda_norm(struct backend *be, const struct ops_norm_op *p);
int cuda_matmul(struct backend *be, const struct ops_matmul *p);
int cuda_gather(struct backend *be, const struct ops_gather *p);
int cuda_softcap(struct backend *be, const struct ops_softcap *p);
int cuda_rope_store(struct backend *be, const struct ops_rope_store *p);
int cuda_attention(struct backend *be, const struct ops_attention *p);
int cuda_victim(struct backend *be, const struct ops_victim *p);
int cuda_cut(struct backend *be, const struct ops_cut *p);
int cuda_kv_export(struct backend *be, const struct ops_kv_slots *p);
int cuda_kv_import(struct backend *be, const struct ops_kv_slots *p);

#endif
