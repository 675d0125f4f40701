/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LOGLINE_H
#define PIPIT_DAEMON_FRONT_LOGLINE_H

/* What the log says of a request that has ended: one line with fields (docs/service.md has them), and
 * nothing that anybody wrote or was answered. Which ends are told is --log-requests; how many at
 * most is a rate, so that a busy client neither wears the flash below a journal that is kept nor
 * makes journald drop the lines of others (it takes 10,000 in 30 s from a unit, then none). */

#include <stdint.h>

struct front;
struct request;
struct lane_record;

enum logline_which { LOGLINE_NONE, LOGLINE_FAILED, LOGLINE_ALL }; /* --log-requests */

struct logline {
    int64_t full_ns;     /* when as many lines as are allowed at once may be written again */
    uint64_t n_left_out; /* since the last line */
};

/* `last` is its LANE_DONE or LANE_ERROR; r->ended_ns is set. */
void logline_request(struct front *f, const struct request *r, const struct lane_record *last);

#endif
