/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_REQUEST_H
#define PIPIT_DAEMON_FRONT_REQUEST_H

/* Requests and on whose behalf they are: the table that every record about a request goes through.
 *
 * A client's id is unique per principal (uid, tenant); the engine knows a request by the front's
 * own number, so that two clients' ids never meet. Life:
 *
 *     QUEUED ──dispatch──▶ RUNNING ──LANE_DONE──▶ FINISHED ──30 s──▶ freed
 *        ▲                    │ engine died: replayed
 *        └────────────────────┘
 *
 * At most one lane is attached to a request at a time and reads its log with `cursor`. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/front/journal.h"
#include "daemon/front/loop.h"
#include "daemon/front/persons.h"

struct front;
struct lane;

enum { REQUEST_BUCKETS = 1024, REQUEST_MAX = 8192, REQUEST_USERS = 256 };

/* What a person's requests have of the engine; there while the person has a request. */
struct account {
    uint32_t person;
    uint32_t n_principals;
    uint32_t n_sequences; /* that run */
    uint32_t n_texts;     /* texts in the engine that are only tokenized */
    uint64_t asked;       /* the dispatcher's: its last question, */
    bool may;             /* and the answer */
    struct account *next;
};

struct principal {
    uint32_t uid;
    uint32_t person; /* whose account it is on: limits and turns are by it */
    struct account *account;
    uint32_t tenant_len;
    uint8_t tenant[64];
    uint64_t hash;       /* never 0 */
    uint32_t n_requests; /* in the table; the principal goes with the last one */
    uint32_t n_running;
    uint64_t last_turn; /* of the queue; see queue.h */
    struct principal *next;
};

enum request_state { REQUEST_QUEUED, REQUEST_RUNNING, REQUEST_FINISHED };

struct request {
    struct front *front; /* for timers */
    uint64_t number;
    uint8_t id[16];
    struct principal *who;
    enum request_state state;
    uint32_t kind;  /* enum lane_kind */
    uint32_t flags; /* enum lane_flag */
    int32_t urgency;
    uint64_t seed;
    struct journal_entry log;

    /* The lane that reads the answer, or NULL: an orphan or nobody's. */
    struct lane *lane;
    struct request *lane_prev;
    struct request *lane_next;
    struct journal_cursor cursor;

    /* Leases, of the lane that sent the request, or that the gateway named. */
    uint64_t home_lane; /* its id */
    uint32_t in_buf;    /* 0: none */
    uint32_t out_buf;
    uint32_t out_generation;
    uint64_t in_offset;
    uint64_t in_bytes;
    uint64_t out_offset;
    uint64_t out_bytes;

    uint32_t stop_reason; /* enum lane_reason it shall end with; 0: let it end by itself */
    uint32_t n_crashes;   /* of engines while it ran */
    uint32_t n_suspected; /* of these, those that nobody else was found guilty of */
    bool alone;           /* suspected of killing an engine: nobody else runs beside it */
    bool apart;           /* its user is blamed for deaths: it starts only where nothing runs */
    uint64_t n_at_crash;  /* tokens it had said then */
    uint64_t n_suppress;  /* events of a replay that are in the log already */
    uint64_t credit;      /* rows of logits that may be written in all, as the client said */
    bool paused;          /* all credit is used up */
    int64_t paused_ns;    /* while others waited for a sequence, in all */
    uint64_t credit_due;  /* credit that stops the reader's clock */

    uint32_t place; /* in the queue, when it was last listed */
    int64_t accepted_ns;
    int64_t started_ns; /* 0: not yet */
    int64_t ended_ns;
    struct loop_timer deadline; /* the client's timeout */
    struct loop_timer fate;     /* orphaned: cancel; finished: forget */
    struct loop_timer reader;   /* all credit is used up: cancel as a slow reader's */

    struct request *by_number; /* hash chains */
    struct request *by_id;
    struct request *queue_next; /* of all queued requests, oldest first */
    struct request *age_prev;   /* of those that are open, oldest first; or of the finished ones */
    struct request *age_next;
};

/* The open ones are few, as many as run and may wait; the finished are all those of the last half
 * minute, thousands on a busy machine. So they are two lists: what concerns only the former, which
 * is everything that a closed lane or a lost engine asks for, must not walk over the latter. */
struct request_list {
    struct request *oldest;
    struct request *newest;
};

struct request_table {
    struct request *by_number[REQUEST_BUCKETS];
    struct request *by_id[REQUEST_BUCKETS];
    struct principal *principals;
    struct account *accounts;
    struct request_list open;     /* queued and running, in the order in which they came */
    struct request_list finished; /* in the order in which they ended */
    uint64_t next_number;
    uint64_t hash_key; /* random, so that nobody aims at a bucket */
    uint32_t n;
    const struct persons *persons; /* or NULL */
    uint32_t
        n_of[REQUEST_USERS]; /* by person; two that share a slot share its limit of 7/8 of all */
};

void request_table_init(struct request_table *t, uint64_t hash_key);

/* The principal, or NULL when it has no request. */
struct principal *request_principal(const struct request_table *t, uint32_t uid,
                                    const uint8_t *tenant, uint32_t tenant_len);

/* The person's account, or NULL when the person has no request. */
struct account *request_account(const struct request_table *t, uint32_t person);

struct request *request_find(const struct request_table *t, const struct principal *who,
                             const uint8_t id[16]);
struct request *request_by_number(const struct request_table *t, uint64_t number);

/* A new, zeroed request of that principal. The id must not be known. -ENOMEM, -EBUSY (table full),
 * -EDQUOT (the user has 7/8 of it). */
int request_create(struct request_table *t, uint32_t uid, const uint8_t *tenant,
                   uint32_t tenant_len, const uint8_t id[16], struct request **ret) WARN_UNUSED;

/* The request's state is FINISHED from now on. Asked again, nothing changes. */
void request_finish(struct request_table *t, struct request *r);

/* Frees a request that no queue, lane or timer knows any more; its log must have been ended. */
void request_destroy(struct request_table *t, struct request *r);

#endif
