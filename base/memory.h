/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_MEMORY_H
#define PIPIT_BASE_MEMORY_H

/* Large, zeroed, anonymous memory: 2 MiB aligned with MADV_HUGEPAGE from 2 MiB up (4 KiB pages cost
 * 30-35 % of a GEMV that streams weights), 64-byte aligned below. All of it is resident when the
 * call returns. The process's total is counted, so that the plan can be checked against it. For
 * start-up and per-request state, never between two tokens. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* `what` (a literal) names the memory in the error. size 0 gives NULL and 0. -ENOMEM. */
int memory_map(size_t size, const char *what, void **ret, struct error *reterr) WARN_UNUSED;
void memory_unmap(void *p, size_t size); /* takes NULL */

/* What memory_map takes, and counts, for a size; 0 where no number holds it. */
uint64_t memory_rounded(uint64_t size);

/* Bytes mapped and not yet unmapped by this process. */
uint64_t memory_mapped_bytes(void);

/* A bump allocator over one memory_map(): scratch whose layout is fixed at load.
 * Pass 1 with base NULL adds up sizes, pass 2 hands out the same addresses. */
struct memory_arena {
    uint8_t *base; /* NULL while planning */
    size_t used;
    size_t size;
};

/* 64-byte aligned; returns NULL while planning and asserts that the second pass asks no more. */
void *memory_arena_take(struct memory_arena *a, size_t bytes);

#endif
