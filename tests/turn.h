/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_TURN_H
#define PIPIT_TESTS_TURN_H

/* Which of many like cases run, other ones for each commit: $PIPIT_PHASE is its number
 * (tools/test.sh). */

#include <stdbool.h>
#include <stdlib.h>

#include "base/sanitized.h"

/* The first case that runs where one of `every` (1 or more) does: 0 to every - 1. */
static inline int turn_begin(int every)
{
    const char *phase = getenv("PIPIT_PHASE");

    return (int)(strtoul(phase ? phase : "0", NULL, 10) % (unsigned)every);
}

/* Whether the next case runs, of those that differ in their settings alone and take ten times as
 * long under a sanitizer. Without one all do. With one the process's first does, and one of every
 * eight; which of the eight differs from row to row. */
static inline bool takes_turn(void)
{
    static int n;
    int i = n++;

    return !SANITIZED || i == 0 || (i + i / 8 + turn_begin(8)) % 8 == 0;
}

#endif
