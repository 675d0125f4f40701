/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LANE_H
#define PIPIT_DAEMON_FRONT_LANE_H

/* One client's connection. Its socket carries two kinds of records out: answers about the lane
 * itself, through a small ring, and events of attached requests, straight from the journal by each
 * request's cursor. There is no other send buffer: what the socket does not take stays in the
 * journal, and the clock of the slow reader starts.
 *
 *     connected ─hello─▶ open ─peer gone, bad record, stalled─▶ closing ─engine quiet─▶ freed
 *
 * While answers wait in the ring nothing is read from the client: each record it sends makes at
 * most two, so the ring cannot overflow. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/front/lease.h"
#include "daemon/front/loop.h"
#include "proto/lane/record.h"

struct front;
struct request;

enum { LANE_RING = 16, LANE_GATEWAYS = 4, LANE_RESERVED = 2 };

struct lane {
    struct front *front;
    struct loop_watch watch;
    uint64_t id;
    uint32_t uid;
    uint32_t person; /* whose account that is */
    bool privileged; /* the gateway's: may state another principal; not counted among the clients */
    bool hello_done;
    bool closing;
    bool engine_open; /* the engine has its arenas */
    char program[32];

    int c2e_fd; /* -1 until hello */
    int e2c_fd;
    uint64_t c2e_bytes;
    uint64_t e2c_bytes;
    struct lease_table leases;

    struct lane_record ring[LANE_RING];
    uint32_t ring_begin;
    uint32_t ring_n;

    struct request *attached; /* ring list by lane_next; first to be served */
    uint32_t n_attached;
    bool blocked; /* the socket is full */
    bool more;    /* its share of this turn is used up: the rest goes in the next */
    bool stalled; /* its requests were cancelled for it */
    int64_t progress_ns; /* last record the socket took while blocked */
    struct loop_timer timer; /* hello's deadline, then the slow reader's clock */

    struct lane *next;
};

/* Takes over the socket. NULL (socket closed, peer told BUSY where it can be) when there are too
 * many lanes: --lanes of clients, of which LANE_RESERVED are kept for root and the daemon's user
 * where there are more than a few, and LANE_GATEWAYS beside them that are privileged. */
struct lane *lane_create(struct front *f, int fd, uint32_t uid, bool privileged);

/* The peer is gone or is sent away: requests are cancelled or orphaned, memory goes back as soon as
 * the engine is quiet. The lane may be freed on return. */
void lane_close(struct lane *l, const char *why);

/* The engine no longer touches the arenas of that lane. */
void lane_quiet(struct front *f, uint64_t lane_id);
/* The engine is gone: no lane is open there. */
void lane_engine_gone(struct front *f);

struct lane *lane_find(struct front *f, uint64_t lane_id); /* not closing, or NULL */

/* An answer about the lane. */
void lane_send(struct lane *l, const struct lane_record *r);
void lane_send_error(struct lane *l, const uint8_t id[16], uint32_t code, uint32_t retry_after_ms,
                     const char *fmt, ...) PRINTF_LIKE(5, 6);

/* Events of `r` from its cursor on go to this lane; from the lane that had it no more. */
void lane_attach(struct lane *l, struct request *r);
void lane_detach(struct request *r); /* no-op when not attached */
/* There may be more events of `r` to send. */
void lane_pump(struct request *r);
/* Out of the log's order, dropped when the socket is full: LANE_PROGRESS. */
void lane_send_progress(struct request *r, struct lane_record *rec);

/* Everything that was to be sent has been taken by the socket. */
bool lane_flushed(const struct lane *l);

#endif
