/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_SELECT_CUH
#define PIPIT_KERNELS_CUDA_SELECT_CUH

/* Rows that select, as attention.cu hands them on. */

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/topk.cuh"

enum {
    SELECT_ON_CHIP = 22 << 10, /* slots whose sums a block of any sm_80 and later holds: 88 KB */
    SELECT_CHUNK_MAX = 1024,   /* cuda_chunk's largest */
};

bool cuda_select_valid(const struct cuda *cu, const struct ops_select *s, const struct ops_kv *kv);

/* One decode row a sequence; all of them with the same kind, k, r, local and renorm. */
int cuda_attend_select(struct cuda *cu, const struct attend *a, const struct ops_select *select);

#endif
