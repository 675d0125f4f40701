/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_FLOW_H
#define PIPIT_DAEMON_FRONT_FLOW_H

/* What clients and their lanes do to requests: ask, attach, resume, cancel, vanish, stop reading.
 * dispatch.h is the engine's side of the same table, ending.h how requests end.
 *
 * Every request that was accepted ends with one LANE_DONE or LANE_ERROR in its log, whatever dies
 * in between. A request that was refused has no log; its LANE_ERROR goes to the lane alone. */

#include <stdint.h>

#include "base/error.h"

struct front;
struct journal_entry;
struct journal_head;
struct lane;
struct lane_record;

struct flow_who {
    uint32_t uid;
    const uint8_t *tenant;
    uint32_t tenant_len;
};

/* A known id attaches to that request, from its first event on. */
void flow_request(struct front *f, struct lane *l, const struct flow_who *who,
                  const struct lane_record *r);
void flow_resume(struct front *f, struct lane *l, const struct flow_who *who, const uint8_t id[16],
                 uint64_t next_seq);
/* A lane that does not read that request's answer gets a LANE_DONE with seq 0 as receipt. */
void flow_cancel(struct front *f, struct lane *l, const struct flow_who *who, const uint8_t id[16]);
void flow_credit(struct front *f, struct lane *l, const uint8_t id[16], uint64_t n_rows);

/* A request of a front that was killed: it waits again, for its turn and, 10 s, for a client to
 * resume it; or it has ended and is kept. Takes over the log; non-zero when it cannot be kept. */
int flow_adopt(struct front *f, const struct journal_head *head,
               const struct journal_entry *log) WARN_UNUSED;

/* Requests of an ordinary lane are cancelled, detached ones and those of a privileged lane wait 10
 * s for somebody to resume them; what uses the lane's leases always ends. */
void flow_lane_closed(struct front *f, struct lane *l);
void flow_lane_stalled(struct front *f, struct lane *l);

#endif
