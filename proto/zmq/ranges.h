/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_RANGES_H
#define PIPIT_PROTO_ZMQ_RANGES_H

/* The range of every number and the limit of every length that a Request may hold: one table, the
 * same as the comments of pipit.proto promise. protobuf itself checks none of it. */

#include <protobuf-c/protobuf-c.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/zmq/fault.h"

struct ranges_row {
    const ProtobufCMessageDescriptor *message;
    const char *field;
    double min; /* numbers: inclusive, each element of a repeated field */
    double max;
    uint32_t min_len; /* bytes */
    uint32_t max_len; /* 0: only the frame limits it */
    uint32_t max_count; /* repeated; 0: only the frame limits it */
    bool required;      /* present; for repeated fields at least one */
};

/* The whole table, for tests that walk it. */
const struct ranges_row *ranges_table(size_t *ret_n);

/* The row of a field, or NULL: then it is a bool or a message without a limit of its own. */
const struct ranges_row *ranges_find(const ProtobufCMessageDescriptor *message, const char *field);

/* Checks a decoded message and all messages in it. 0, or -EINVAL with the first fault. */
int ranges_check(const ProtobufCMessage *m, const struct fault_path *path,
                 struct fault *reterr) WARN_UNUSED;

#endif
