/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_WIRE_H
#define PIPIT_PROTO_ZMQ_WIRE_H

/* A look over a message's bytes before protobuf-c sees them: what would make decoding expensive or
 * ambiguous is refused while it still costs nothing. */

#include <protobuf-c/protobuf-c.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/zmq/fault.h"

enum { WIRE_MAX_UNKNOWN = 8 }; /* unknown fields in a message and all inside it */

/* Refused: cut or malformed fields, groups, a field with another wire type than the descriptor's, a
 * second value for a field that has one (messages would be merged, oneofs replaced), a second
 * member of a oneof, lengths and counts beyond ranges.h, more than WIRE_MAX_UNKNOWN unknown fields.
 * 0, or -EBADMSG, -E2BIG with the fault. Reads each byte once; recursion is as deep as pipit.proto,
 * which has no recursive types. */
int wire_scan(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t len,
              struct fault *reterr) WARN_UNUSED;

/* The 16-byte id of a Request that may be malformed further on, for the answer's sake. */
bool wire_peek_id(const uint8_t *data, size_t len, uint8_t ret_id[16]);

#endif
