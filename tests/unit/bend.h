/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_TESTS_UNIT_BEND_H
#define PIPIT_TESTS_UNIT_BEND_H

/* Model files that differ from one of tests/data in a key or a tensor, and what a plan says of
 * them. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"

/* How a copy of a file differs. A key becomes a number or goes; a list becomes another. */
struct bend {
    const char *key;
    const char *less; /* another key, which goes */
    bool drop;
    bool boolean;
    uint32_t value;
    const uint32_t *list;
    size_t n_list;
    const char *tensor; /* goes, or with `wider` has a column more, or another name */
    bool wider;
    const char *name;
    bool uneven; /* odd dims of K are larger, of q smaller; they turn in pairs with odd ones */
};

void bend_file(const char *from, const char *to, const struct bend *b);
/* engine_plan() on `ref` for three sequences of 256 tokens. */
int bend_plan(const char *path, const char *kv, bool keeps, struct plan *ret, struct error *e);
/* Fails unless a plan of the bent copy gives `code`, and holds `text` (or NULL) in its message. */
void bend_refused(const char *model, const struct bend *b, int code, const char *text);

struct bend_case {
    struct bend bend;
    int code;
    const char *text;
};

void bend_cases(const char *model, const struct bend_case *cases, size_t n);

#endif
