/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_QUEUE_H
#define PIPIT_DAEMON_FRONT_QUEUE_H

/* Who is next. Turns go round the users, by their accounts (persons.h), so that nobody gains by
 * making up tenants, and round each user's tenants; within one the most urgent request, then the
 * lane that has waited longest for a turn, then the oldest request. So a user's script with a
 * hundred requests delays neither another user nor the same user's other program by more than one
 * turn.
 *
 * The queue is bounded, and one user, under whatever tenants, may fill at most 7/8 of it, so that
 * another still gets in.
 * Pure: it knows no engine and no socket. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/turn.h"
#include "daemon/front/request.h"

enum { QUEUE_LANES = 256, QUEUE_USERS = 64 };

struct queue {
    struct request *first;
    struct request *last;
    uint32_t n;
    uint32_t max;
    uint64_t turn;
    struct turn lanes[QUEUE_LANES]; /* by a lane's id */
    struct turn users[QUEUE_USERS]; /* by persons */
    double service_ns; /* moving average from dispatch to end; 0: nothing measured yet */
};

void queue_init(struct queue *q, uint32_t max);

/* May this person (persons.h) add one more? */
bool queue_has_room(const struct queue *q, uint32_t person);

/* At the end; a request that comes back after a crash enters again at the front and always fits. */
void queue_push(struct queue *q, struct request *r);
void queue_push_front(struct queue *q, struct request *r);
void queue_remove(struct queue *q, struct request *r);

/* Takes the next request out, or NULL; those apart are left to the caller. */
struct request *queue_pop(struct queue *q);
/* The next of those that `is` says yes to. */
typedef bool queue_is(const void *arg, const struct request *r);
struct request *queue_pop_of(struct queue *q, queue_is *is, const void *arg);

/* A request ran for that long. */
void queue_served(struct queue *q, int64_t ns);

/* When a request that is refused now would find room, as far as we can tell: the average time a
 * request takes, over `n_slots` of them at once. 100 ms .. 60 s. */
uint32_t queue_retry_ms(const struct queue *q, int32_t n_slots);

#endif
