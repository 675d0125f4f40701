/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_KERNELS_CUDA_VICTIM_CUH
#define PIPIT_KERNELS_CUDA_VICTIM_CUH

/* Searches for victims that one launch answers (victim.cu). */

#include "kernels/cuda/slot_rank.cuh"

enum { VICTIMS = 64 };

struct victim {
    struct slot_rank rank;
    int32_t *to; /* device (n_groups), out */
    int32_t n_slots;
};

struct cuda_victims {
    struct victim of[VICTIMS];
    int32_t n;
    int32_t most_groups; /* that choose for themselves */
};

static_assert(sizeof(struct cuda_victims) <= CUDA_CALL_BYTES, "they travel as one argument");

int cuda_victims_find(struct cuda *cu, const struct cuda_victims *v);
/* Noted, to be looked for before any launch that is asked for later. */
int cuda_queue_victim(struct cuda *cu, struct victim v);

#endif
