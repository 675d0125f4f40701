/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_TURN_H
#define PIPIT_TESTS_TURN_H

/* Which of many like cases run, other ones for each commit: $PIPIT_PHASE is its number
 * (tools/test.sh). */

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/sanitized.h"

/* The first case that runs where one of `every` (1 or more) does: 0 to every - 1. */
static inline int turn_begin(int every)
{
    const char *phase = getenv("PIPIT_PHASE");

    return (int)(strtoul(phase ? phase : "0", NULL, 10) % (unsigned)every);
}

/* Whether case n (0 and up) runs where one of `every` (1 or more) does, for begin =
 * turn_begin(every). One of each `every` in a row does, at a place that differs from row to row:
 * else an inner loop of as many cases would give the same of its cases each time. With begin from 0
 * to every - 1 each case runs once. */
static inline bool case_has_turn(int n, int every, int begin)
{
    uint32_t mixed = (uint32_t)(n / every) * 0x9e3779b1u; /* the row's number */
    uint32_t of = (uint32_t)every;

    mixed = (mixed ^ mixed >> 15) * 0x85ebca77u;
    mixed ^= mixed >> 13;
    return ((uint32_t)n % of + mixed % of) % of == (uint32_t)begin;
}

/* Whether the next case runs, of those that differ in their settings alone and take ten times as
 * long under a sanitizer. Without one all do. With one the process's first does, and one of every
 * eight; which of the eight differs from row to row. */
static inline bool takes_turn(void)
{
    static int n;
    int i = n++;

    return !SANITIZED || i == 0 || case_has_turn(i, 8, turn_begin(8));
}

#endif
