/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_FAULT_H
#define PIPIT_PROTO_ZMQ_FAULT_H

/* What is wrong with a message, in the form in which its sender is told (Error in pipit.proto). */

#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

/* A field's place, innermost first; lives on the stack of whoever walks a message. */
struct fault_path {
    const struct fault_path *up; /* NULL at the top */
    const char *name;
    int64_t index; /* of a repeated field's element, or -1 */
};

struct fault {
    enum lane_error_code code;
    uint64_t asked;
    uint64_t allowed;
    char field[96]; /* "chat.messages[3].content", cut at 95; "" for the whole message */
    char text[184]; /* a sentence without a final stop that names the field and the range */
};

/* Fills `ret` with the field's path and "path: text"; returns `err` (a negative errno). */
int fault_set(struct fault *ret, const struct fault_path *path, enum lane_error_code code, int err,
              const char *fmt, ...) PRINTF_LIKE(5, 6);

#endif
