/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_LINK_HELLO_H
#define PIPIT_LINK_HELLO_H

/* The first record of a lane and its answer, as its client writes and checks them. */

#include "base/error.h"
#include "proto/lane/record.h"

/* LANE_HELLO of `program` (cut to its field), asking for arenas of so many bytes (0: the front's
 * own sizes). */
void hello_make(struct lane_record *ret, const char *program, uint64_t c2e_bytes,
                uint64_t e2c_bytes);

/* Is this reply (already a well-formed record) one that we can work with? -EPROTONOSUPPORT for
 * another major version or record size, -EBADMSG for a request lease that is not in its arena. */
int hello_check(const struct lane_hello_reply *h, struct error *reterr) WARN_UNUSED;

#endif
