/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CHECKED_H
#define PIPIT_BASE_CHECKED_H

/* Checked arithmetic for anything whose size a file or a client decides. Each returns true and
 * writes *ret when the result fits, else false and leaves *ret alone. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_add_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}

static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *ret)
{
    uint64_t r;

    if (__builtin_mul_overflow(a, b, &r)) {
        return false;
    }
    *ret = r;
    return true;
}

/* Is [off, off + len) inside [0, size)? Written so that nothing can wrap. */
static inline bool checked_range(uint64_t off, uint64_t len, uint64_t size)
{
    return off <= size && len <= size - off;
}

/* Smallest multiple of `to` (a power of two) that is at least v; 0 when it does not fit. */
static inline uint64_t checked_round_up(uint64_t v, uint64_t to)
{
    return v > UINT64_MAX - (to - 1) ? 0 : (v + to - 1) & ~(to - 1);
}

#endif
