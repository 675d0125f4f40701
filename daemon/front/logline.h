/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LOGLINE_H
#define PIPIT_DAEMON_FRONT_LOGLINE_H

/* What the log says of a request that has ended: one line with fields (docs/guide/service.md),
 * and nothing that anybody wrote or was answered. Which ends are told is --log-requests; how many
 * at most is a rate for each user (whatever tenants it says it is), so that a busy client neither
 * wears the flash below a journal that is kept nor leaves out the lines of others, nor makes
 * journald drop them (it takes 10,000 in 30 s from a unit, then none). Ends that are our own
 * failure have a rate of their own. */

#include <stdint.h>

#include "daemon/front/loop.h"

struct front;
struct request;
struct lane_record;

enum logline_which { LOGLINE_NONE, LOGLINE_FAILED, LOGLINE_ALL }; /* --log-requests */

enum { LOGLINE_USERS = 32 }; /* whose rates are kept at once; all beyond share one */

struct logline_rate {
    int64_t full_ns;     /* when as many lines as are allowed at once may be written again */
    uint64_t n_left_out; /* since its last line */
    uint32_t uid;
};

struct logline {
    struct logline_rate users[LOGLINE_USERS];
    struct logline_rate others; /* without a name: the users beyond */
    struct logline_rate ours;
    struct loop_timer timer; /* armed while something was left out that no line has told */
};

/* `last` is its LANE_DONE or LANE_ERROR; r->ended_ns is set. */
void logline_request(struct front *f, const struct request *r, const struct lane_record *last);

/* Tells what was left out and no line has told: a timer does a minute after the first, and whoever
 * stops the front. */
void logline_flush(struct front *f);

#endif
