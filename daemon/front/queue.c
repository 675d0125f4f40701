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

/* Does `a` go before `b`, the older one? */
static bool before(const struct queue *q, const struct request *a, const struct request *b)
{
    if (a->who->person != b->who->person) {
        return turn_of(q->users, QUEUE_USERS, a->who->person) <
               turn_of(q->users, QUEUE_USERS, b->who->person);
    }
    if (a->who != b->who) {
        return a->who->last_turn < b->who->last_turn;
    }
    if (a->urgency != b->urgency) {
        return a->urgency > b->urgency;
    }
    return turn_of(q->lanes, QUEUE_LANES, a->home_lane) <
           turn_of(q->lanes, QUEUE_LANES, b->home_lane);
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
    turn_take(q->users, QUEUE_USERS, best->who->person, q->turn);
    turn_take(q->lanes, QUEUE_LANES, best->home_lane, q->turn);
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
