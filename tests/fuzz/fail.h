/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_FUZZ_FAIL_H
#define PIPIT_TESTS_FUZZ_FAIL_H

/* Allocations and system calls that fail by a counter: memory with ENOMEM, threads with EAGAIN and
 * everything else with EIO. Counted are calls of the kinds that fail_begin() names, until
 * fail_end().
 *
 * Tests of tests/fault/ set the counter with fail_nth(). A harness of tests/fuzz/ lets its input
 * do so: it may end in four bytes, 0xff 'F' and a number n of 16 bits, lowest byte first. With n =
 * 0 each call fails in turn: the harness runs again and again until no call is left. The harness
 * never sees these bytes.
 *
 * Only calls of pipit's own objects count (the linker's --wrap, tests/fuzz/meson.build), so
 * sanitizers keep working; and none of a thread that has called fail_spare(). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Runs `one` with the input as often as it asks for. */
int fail_run(const uint8_t *data, size_t size, int (*one)(const uint8_t *data, size_t size));

enum { FAIL_MEMORY = 1, FAIL_CALLS = 2, FAIL_ALL = FAIL_MEMORY | FAIL_CALLS };

/* From here on calls of these kinds may fail, until fail_end(). Several such parts count as one. */
void fail_begin(int kinds);
void fail_end(void);

/* The n-th call from now on fails; 0: none. */
void fail_nth(long n);

/* Has a call failed since then? */
bool fail_hit(void);

/* No call of the calling thread fails from now on. */
void fail_spare(void);

#endif
