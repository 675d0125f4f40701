/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_MODEL_WORK_H
#define PIPIT_ENGINE_MODEL_WORK_H

/* The least a step can do: bytes that a decode step must move under a policy (lines of 64 bytes,
 * not what is asked for of them) and multiplications that a prompt needs, from shapes alone. What a
 * kernel does more is its own loss. */

#include "engine/kv/kv.h"
#include "engine/model/model.h"

struct work {
    uint64_t weight_bytes;
    uint64_t kv_bytes;
    uint64_t state_bytes; /* positions, scores and sums of V, read and written */
    double prompt_flops;  /* keep-all attention */
};

/* For a sequence of n_tokens whose prompt had n_prompt. -ENOENT: the cache has no such pages. */
int work_of(const struct model *m, const struct cache *c, const struct policy *p,
            int32_t n_prompt, int32_t n_tokens, struct work *ret) WARN_UNUSED;

#endif
