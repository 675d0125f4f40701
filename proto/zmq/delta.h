/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_DELTA_H
#define PIPIT_PROTO_ZMQ_DELTA_H

/* The one message that is sent for each token, packed without protobuf-c, which walks descriptors
 * of all fields twice for it. Everything else is packed by the library; a test holds the two equal.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/lane/record.h"

enum { DELTA_MAX = 71 + sizeof(((struct lane_token *)0)->text) };

/* Event{id, seq, delta{index, token, text, logprob, part, call}} of a LANE_TOKEN or LANE_TEXT
 * without alternatives; the log-probability only of a token and where it was asked for. Its
 * length. */
size_t delta_pack(const struct lane_record *r, const uint8_t id[16], bool logprob,
                  uint8_t ret[DELTA_MAX]);

#endif
