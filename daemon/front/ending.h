/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_ENDING_H
#define PIPIT_DAEMON_FRONT_ENDING_H

/* How requests end, and how long their output is kept: 30 s after the ending (so that RESUME finds
 * it), longer while a lane is still reading it, at most 5 minutes. Where the journal is short of
 * room, output that was read to the end is forgotten earlier: that of who has most of it. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct front;
struct lane_record;
struct request;

/* The request (running, or just taken from the queue) ends with that LANE_DONE or LANE_ERROR. */
void ending_record(struct front *f, struct request *r, struct lane_record *rec);
void ending_reason(struct front *f, struct request *r, uint32_t reason);
void ending_error(struct front *f, struct request *r, uint32_t code, const char *fmt, ...)
    PRINTF_LIKE(4, 5);

/* Ends with that reason: now if it waits, soon if it runs; no-op when it has ended. */
void ending_cancel(struct front *f, struct request *r, uint32_t reason);

/* The last event of the request is in its log: it is kept, then forgotten. */
void ending_keep(struct front *f, struct request *r);

/* A request that was never accepted. */
void ending_discard(struct front *f, struct request *r);

/* Forgets one ended request that was read to the end, for a request of this user that found no room
 * (rc). -EDQUOT: the user has its share, and one of its own goes. Else the oldest of the user who
 * has most of the journal, but nobody's who has less than the one who asks. False if there is none.
 */
bool ending_make_room(struct front *f, uint32_t uid, int rc);

/* Everybody: those that wait end with reason shutdown; with `force` those that run, too. */
void ending_all(struct front *f, bool force);

/* Everybody ends soon with reason shutdown, as if cancelled. */
void ending_stop_all(struct front *f);

/* At exit: frees the table. */
void ending_forget_all(struct front *f);

#endif
