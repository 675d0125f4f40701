/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_EXPERTS_CUH
#define PIPIT_KERNELS_CUDA_EXPERTS_CUH

/* What the files of the operation experts share. An entry is a row and one of its experts; entry
 * row * n_used + i is the row's i-th. A tile is 8 or 32 entries at most, all of one expert. */

#include "kernels/cuda/gemm.cuh"

enum { EXPERTS_ENTRIES = 4096 };

/* Entries at once: as many as a batch has rows, and a row's own. */
static inline int32_t cuda_entries(const struct backend_limits *l)
{
    int32_t n = l->max_rows < EXPERTS_ENTRIES ? l->max_rows : (int32_t)EXPERTS_ENTRIES;

    return l->max_experts_used > n ? l->max_experts_used : n;
}

struct experts_tile {
    int32_t expert;
    int32_t first; /* in the list of entries */
    int32_t n;     /* 0: none */
};

/* A product of entries: y[entry] = act(x W[0]^T + bias) (* (x W[1]^T + bias)), x being prepared;
 * what the second is multiplied as, act says (gemm_up). */
struct experts_product {
    struct gemm g;   /* activations, n_cols; part 0, when gated part 1: the first expert's matrix */
    uint64_t stride; /* bytes from an expert's matrix to the next one's */
    const int32_t *list;
    const struct experts_tile *tiles;
    int32_t n_tiles;
    int32_t shared_by; /* so many entries have one row of activations */
    bool multiply;     /* y *= the product: it is the second of two */
};

/* `wide`: tiles are of 32 entries, not of 8. */
int cuda_experts_product(struct cuda *cu, struct experts_product *p, enum dtype type, bool wide);

/* weight.cu: bytes of one of the matrices of a stack. */
uint64_t cuda_matrix_bytes(enum dtype type, int32_t n_rows, int32_t n_cols);

#endif
