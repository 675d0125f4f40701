/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_ENGINE_LINK_H
#define PIPIT_DAEMON_FRONT_ENGINE_LINK_H

/* The engine process as the front sees it: started with one end of a socketpair (descriptor 3) and
 * the journal, read-only (descriptor 4); records both ways; its heartbeat; its death and restart.
 *
 *     STARTING ─state ready─▶ READY ─exit, hang─▶ BACKOFF ─timer─▶ STARTING
 *        └─exit code 2, 4, 6: the model cannot be loaded─▶ at the first start the daemon ends with
 *          that code; later FAILED, tried again with growing pauses
 *     any ─unload─▶ LEAVING (told to end) ─reaped─▶ UNLOADED ─load─▶ STARTING
 *
 * LEAVING is unloaded to everybody else: what is asked meanwhile waits, and starts the next process
 * as soon as this one has been reaped. It is killed when it does not end.
 *
 * Health is the age of the worker's last finished operation while something runs: over
 * engine-timeout, and over four times its longest operation, it is killed and started again. So it
 * is where its thread that reads texts is at one for so long. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "proto/lane/record.h"

struct engine_link;
struct front;
struct lane;
struct report;

/* Starts it, or leaves that to engine_link_load(). */
int engine_link_create(struct front *f, bool load, struct engine_link **ret,
                       struct error *reterr) WARN_UNUSED;
void engine_link_destroy(struct engine_link *e); /* kills the child; takes NULL */

/* Somebody needs the model: starts the process unless there is one, or its next start is due. */
void engine_link_load(struct engine_link *e);
/* Ends the process, which must have nothing to do; `again`: for another start right after. */
void engine_link_unload(struct engine_link *e, bool again);

/* Queues a record; sent in order. */
void engine_link_send(struct engine_link *e, const struct lane_record *r);
/* ... with a descriptor, which is the link's from then on. */
void engine_link_give(struct engine_link *e, const struct lane_record *r, int fd);

/* Gives the engine a lane's arenas (once; -EMFILE where no descriptors are left for copies, and
 * another try may follow), or takes them away: then lane_quiet() follows. */
int engine_link_lane_open(struct engine_link *e, struct lane *l) WARN_UNUSED;
void engine_link_lane_close(struct engine_link *e, struct lane *l);

bool engine_link_ready(const struct engine_link *e);
/* False until the process that loads has checked the model's file and the plan. */
bool engine_link_checked(const struct engine_link *e);
uint32_t engine_link_state(const struct engine_link *e);                  /* enum lane_state */
const struct lane_engine_state *engine_link_info(const struct engine_link *e); /* the last one it sent */
const char *engine_link_cause(const struct engine_link *e); /* why it failed; "" */
const char *engine_link_failure(const struct engine_link *e); /* the same, also while it is tried again */
/* FAILED: so long until it is tried again, 0: the next request may start it (engine_link_load). */
uint32_t engine_link_refuse_ms(const struct engine_link *e);
const struct report *engine_link_report(const struct engine_link *e);
uint64_t engine_link_model(const struct engine_link *e); /* what names its bytes; 0: not known */
uint64_t engine_link_epoch(const struct engine_link *e);    /* counts models that became ready */
int64_t engine_link_ready_ns(const struct engine_link *e);  /* when the last one did, */
int64_t engine_link_load_ns(const struct engine_link *e);   /* and how long it took */
uint32_t engine_link_restarts(const struct engine_link *e); /* after deaths */
uint32_t engine_link_unloads(const struct engine_link *e);
int64_t engine_link_step_age_ns(const struct engine_link *e); /* 0 while idle */
/* Busy, and no step ended for so many times what one may take, though it had a CPU. */
bool engine_link_hangs(const struct engine_link *e, int times);
int engine_link_pid(const struct engine_link *e);

/* Something runs or nothing does: the heartbeat is watched only while something runs. */
void engine_link_busy(struct engine_link *e, bool busy);

/* Asks it to end everything with reason shutdown; no restart from here on. */
void engine_link_drain(struct engine_link *e);

/* A child was reaped: true if it was the engine. */
bool engine_link_reaped(struct engine_link *e, pid_t pid, int status);

#endif
