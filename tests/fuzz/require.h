/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_FUZZ_REQUIRE_H
#define PIPIT_TESTS_FUZZ_REQUIRE_H

/* A harness's promise: one that is broken is named and ends the process, which libFuzzer and a
 * replay take as a finding. */

#include <stdio.h>
#include <stdlib.h>

#define require(ok)                                                                                \
    do {                                                                                           \
        if (!(ok)) {                                                                               \
            (void)fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #ok);                 \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#endif
