/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_TURN_H
#define PIPIT_TESTS_TURN_H

/* Cases that differ in their settings alone, and run ten times slower under a sanitizer: there one
 * of every three runs, other ones for each commit ($PIPIT_PHASE). Without a sanitizer all do. */

#include <stdbool.h>
#include <stdlib.h>

#include "base/sanitized.h"

/* Whether the next case runs. Of three cases in a row, counted from the process's first, exactly
 * one does; which one differs from row to row. */
static inline bool takes_turn(void)
{
    static unsigned n;
    const char *phase = getenv("PIPIT_PHASE");
    unsigned begin = phase ? (unsigned)(strtoul(phase, NULL, 10) % 3) : 0;
    unsigned i = n++;

    return !SANITIZED || (i + i / 3 + begin) % 3 == 0;
}

#endif
