/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_DECODE_H
#define PIPIT_PROTO_ZMQ_DECODE_H

/* Bytes of a frame to a Request that keeps every promise of pipit.proto. */

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/zmq/arena.h"
#include "proto/zmq/fault.h"
#include "proto/zmq/pipit.pb-c.h"

/* Scans, decodes into `a` (cleared first) and checks. *ret and all it points to live until the next
 * arena_clear(). 0, or -EBADMSG, -EINVAL, -E2BIG, -ENOMEM with the fault to tell the sender. */
int decode_request(const uint8_t *data, size_t len, size_t max_len, struct arena *a,
                   const Pipit__Request **ret, struct fault *reterr) WARN_UNUSED;

/* The leases that a request names, or NULL. */
const Pipit__Lease *decode_input(const Pipit__Request *r);
const Pipit__Lease *decode_output(const Pipit__Request *r);

#endif
