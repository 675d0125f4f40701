/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_CLOCK_H
#define PIPIT_BASE_CLOCK_H

/* CLOCK_MONOTONIC in nanoseconds; the same clock in every process of the machine. */

#include <stdint.h>
#include <time.h>

static inline int64_t clock_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#endif
