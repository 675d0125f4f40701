/* SPDX-License-Identifier: Apache-2.0 */
/* One list by age and a linear walk for each pop: the queue holds some tens of requests, and a pop
 * happens once a request, not once a token. `turn` counts pops; a principal or a lane that has
 * never been served has turn 0 and so goes first. */

#include "daemon/front/queue.h"

#include <stddef.h>

void queue_init(struct queue *q, uint32_t max)
{
    *q = (struct queue){.max = max};
}

bool queue_has_room(const struct queue *q, uint32_t person)
{
    uint32_t of_person = 0;

    for (const struct request *r = q->first; r; r = r->queue_next) {
        of_person += r->who->person == person;
    }
    return q->n < q->max && of_person < q->max - q->max / 8;
}

static void count_in(struct queue *q, struct request *r)
{
    q->n++;
    r->state = REQUEST_QUEUED;
}

void queue_push(struct queue *q, struct request *r)
{
    r->queue_next = NULL;
    *(q->last ? &q->last->queue_next : &q->first) = r;
    q->last = r;
    count_in(q, r);
}

void queue_push_front(struct queue *q, struct request *r)
{
    r->queue_next = q->first;
    q->first = r;
    q->last = q->last ? q->last : r;
    count_in(q, r);
}

void queue_remove(struct queue *q, struct request *r)
{
    struct request *prev = NULL;

    for (struct request *i = q->first; i != r; i = i->queue_next) {
        prev = i;
    }
    *(prev ? &prev->queue_next : &q->first) = r->queue_next;
    if (q->last == r) {
        q->last = prev;
    }
    r->queue_next = NULL;
    q->n--;
}

static uint64_t lane_turn(const struct queue *q, uint64_t lane)
{
    return q->lanes[lane % QUEUE_LANES].lane == lane ? q->lanes[lane % QUEUE_LANES].turn : 0;
}

static uint64_t user_turn(const struct queue *q, uint32_t uid)
{
    return q->users[uid % QUEUE_USERS].uid == uid ? q->users[uid % QUEUE_USERS].turn : 0;
}

/* Does `a` go before `b`, the older one? */
static bool before(const struct queue *q, const struct request *a, const struct request *b)
{
    uint64_t turn_a = lane_turn(q, a->home_lane);
    uint64_t turn_b = lane_turn(q, b->home_lane);

    if (a->who->person != b->who->person) {
        return user_turn(q, a->who->person) < user_turn(q, b->who->person);
    }
    if (a->who != b->who) {
        return a->who->last_turn < b->who->last_turn;
    }
    if (a->urgency != b->urgency) {
        return a->urgency > b->urgency;
    }
    return turn_a < turn_b;
}

struct request *queue_pop_of(struct queue *q, queue_is *is, const void *arg)
{
    struct request *best = NULL;

    for (struct request *r = q->first; r; r = r->queue_next) {
        if (!r->apart && (!is || is(arg, r)) && (!best || before(q, r, best))) {
            best = r;
        }
    }
    if (!best) {
        return NULL;
    }
    queue_remove(q, best);
    q->turn++;
    best->who->last_turn = q->turn;
    q->users[best->who->person % QUEUE_USERS].uid = best->who->person;
    q->users[best->who->person % QUEUE_USERS].turn = q->turn;
    q->lanes[best->home_lane % QUEUE_LANES].lane = best->home_lane;
    q->lanes[best->home_lane % QUEUE_LANES].turn = q->turn;
    return best;
}

struct request *queue_pop(struct queue *q)
{
    return queue_pop_of(q, NULL, NULL);
}

void queue_served(struct queue *q, int64_t ns)
{
    q->service_ns = q->service_ns > 0 ? 0.8 * q->service_ns + 0.2 * (double)ns : (double)ns;
}

uint32_t queue_retry_ms(const struct queue *q, int32_t n_slots)
{
    double ns = q->service_ns > 0 ? q->service_ns : 1e9;
    double ms = ns / 1e6 / (n_slots > 0 ? n_slots : 1);

    return ms < 100 ? 100 : ms > 60000 ? 60000 : (uint32_t)ms;
}
