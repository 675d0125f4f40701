/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_FAULT_FAULT_H
#define PIPIT_TESTS_FAULT_FAULT_H

/* Makes the n-th allocation or system call of the code under test fail, for n = 1, 2, ... until it
 * gets through without meeting the failure (tests/fuzz/fail.h). */

#include "base/error.h"

/* One run of the thing under test: 0, or a negative errno with *reterr filled. It must leave
 * nothing behind: no memory, no descriptor. */
typedef int fault_body(void *arg, struct error *reterr);

/* Loops; aborts with a text when a failure is not reported, has no text, or leaks memory or
 * descriptors. Returns the number of places that failed. */
int fault_loop(const char *name, fault_body *body, void *arg);

#endif
