/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_DISPATCH_H
#define PIPIT_DAEMON_FRONT_DISPATCH_H

/* The engine's side of requests: which go to it and when, what it says about them, and what becomes
 * of them when it dies.
 *
 * The engine sees no more texts at once than it has sequences; requests that only tokenize go past
 * them, a few at a time and in turns by user, too. After a crash the requests it was running are
 * suspects: each is replayed alone (its tokens are forced, so it says the same again) until it has
 * come DISPATCH_TRUST tokens further than before. One that is suspected of a second crash, and was
 * alone in it, ends with ENGINE_CRASHED: then the others are suspected no more, as is one that has
 * come DISPATCH_CLEAR tokens further. Its user is blamed for it, and so is one who withdraws a
 * suspect (blame.h).
 *
 * A request that waits for its reader (of logits: all credit is used up) keeps its sequence. While
 * another user waits for one these pauses are counted, and --pause-limit of them ends it. */

#include <stdbool.h>
#include <stdint.h>

struct front;
struct lane_record;
struct request;

enum {
    DISPATCH_TRUST = 16,
    DISPATCH_CLEAR = 64,
    DISPATCH_TEXTS_MAX = 16,
    DISPATCH_TEXTS_PERSON = 4
};

/* The request ends before it was known whether it kills engines. */
void dispatch_withdrawn(struct front *f, struct request *r);

/* Sends waiting requests to the engine while it has room. */
void dispatch_run(struct front *f);

/* Would a request of that kind and person, coming now, go to the engine at once? */
bool dispatch_can_start(const struct front *f, uint32_t kind, uint32_t person);

/* A record of the engine about a request. */
void dispatch_event(struct front *f, struct lane_record *rec);

/* To the engine: the request shall end with its stop_reason. */
void dispatch_cancel(struct front *f, struct request *r);
void dispatch_credit(struct front *f, struct request *r, uint64_t n_rows);

/* A request ends: if it runs, it no longer counts as running. */
void dispatch_forget(struct front *f, struct request *r);

/* The model is being loaded: those who wait and want to know are told, in thousandths. */
void dispatch_loading(struct front *f, uint32_t progress);

/* The engine died: everything that ran is queued again or ends. */
void dispatch_lost(struct front *f);

/* No model to wait for: everything that waits ends with LANE_ERR_MODEL. */
void dispatch_failed(struct front *f, const char *cause);

#endif
