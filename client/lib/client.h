/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_CLIENT_LIB_CLIENT_H
#define PIPIT_CLIENT_LIB_CLIENT_H

/* Inside libpipit: what its files share. Ownership: the client owns socket, epoll, timer and the
 * list of running requests; arenas are counted (client and leases); requests are counted (their
 * user, and dispatch while a callback runs). */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "client/pipit.h"
#include "link/arenas.h"
#include "link/hello.h"
#include "link/socket.h"
#include "proto/lane/record.h"
#include "proto/lane/tlv.h"

enum link_state {
    LINK_NEW,   /* never connected */
    LINK_DOWN,  /* lost, nothing runs; the next send connects again */
    LINK_RETRY, /* lost; the timer tries again */
    LINK_HELLO, /* connected, reply awaited */
    LINK_UP,
    LINK_LOST, /* given up */
};

enum { PLACES_MAX = 4, EVENTS_MAX = 65536 };

/* What an event of the epoll descriptor is about. */
enum { WAKE_SOCKET = 1, WAKE_TIMER, WAKE_FOREIGN };

struct place {
    const char *origin;
    char path[SOCKET_PATH_MAX + 1];
    int err;
};

/* The one question that a synchronous call waits for. */
struct call {
    bool waiting;
    bool lost;     /* the connection ended before the answer came */
    uint32_t want; /* record type that answers */
    uint8_t id[16];
    struct lane_record answer;
};

struct pipit_client {
    pid_t pid;
    int epoll_fd;
    int timer_fd;
    int sock;
    enum link_state state;
    bool in_callback;
    bool by_fd;
    bool own_only; /* this dispatch waits for the daemon: descriptors of the caller's do not end it
                    */
    char *runtime_dir;
    char *instance;
    char program[32];
    uint32_t timeout_ms;
    uint32_t reconnect_ms;
    uint64_t want_c2e;
    uint64_t want_e2c;
    struct place places[PLACES_MAX];
    size_t n_places;
    char path[SOCKET_PATH_MAX + 1]; /* of the socket that answered */
    int64_t connect_ns;
    int64_t hello_deadline_ns;
    int64_t give_up_ns; /* of connecting again; 0: something came since the last time */
    struct lane_hello_reply hello;
    struct pipit_info info;
    struct pipit_status status;
    struct lane_status status_body;
    struct report *report; /* report.c; NULL: none yet */
    struct arenas *arenas;
    struct pipit_request *requests; /* sent and not ended */
    struct event_node *spare;       /* or NULL */
    bool buf_busy;                  /* the request lease holds the items of ... */
    uint8_t buf_id[16];             /* ... this request, until it is accepted or refused */
    struct call call;
    unsigned pongs_due;      /* of calls that did not wait for theirs, too */
    struct pipit_error last; /* why the link is down */
};

enum { ALT_TEXT_BYTES = sizeof(((struct lane_alt *)0)->text) + 1 };

struct event_node {
    struct event_node *next;
    struct pipit_event event;
    struct pipit_bulk bulk;
    struct pipit_done done;
    struct pipit_error error;
    char text[sizeof(((struct lane_token *)0)->text) + 1];
    struct pipit_alt alts[]; /* then ALT_TEXT_BYTES for the text of each */
};

struct blob {
    uint8_t *data;
    size_t len;
    char role[16]; /* messages only */
};

enum { ALTS_MAX = 20, STOPS_MAX = 16, MESSAGES_MAX = 4096 };

/* Of message `at`: an item of type TLV_REASONING, _CALL, _NAME, _ARGUMENTS or _CALL_ID. */
struct more_of_message {
    struct more_of_message *next;
    size_t at;
    uint16_t type;
    size_t len;
    char text[];
};

struct pipit_request {
    struct pipit_request *next;
    struct pipit_client *client;
    int refs;
    enum pipit_kind kind;
    uint8_t id[16];
    bool sent;    /* by its user */
    bool on_wire; /* to the daemon, on this connection */
    bool accepted;
    bool joining;  /* LANE_RESUME is out, nothing came yet */
    bool resuming; /* the same, and the user shall hear of it */
    bool ended;
    bool cancel; /* asked by the user */
    bool detach;
    bool progress;
    bool has_sampling;
    int32_t urgency;
    uint32_t timeout_ms;
    uint64_t next_seq;
    struct more_of_message *more; /* what messages have beside their text, in their order */
    struct more_of_message **more_tail;
    struct blob prompt;
    struct blob system;
    struct blob tokens;
    struct blob policy;
    struct blob session;
    struct blob schema;
    struct blob tools;
    struct blob *messages;
    size_t n_messages;
    struct blob stops[STOPS_MAX];
    size_t n_stops;
    struct tlv_sampling sampling;
    const struct pipit_lease *input;
    uint64_t input_bytes;
    const struct pipit_lease *output;
    pipit_event_fn fn;
    void *user;
    struct lane_alt alts[ALTS_MAX]; /* of the token to come */
    size_t n_alts;
    struct event_node *head;
    struct event_node **tail;
    size_t n_events;
    struct event_node *shown; /* the last one that next() gave out */
};

struct pipit_lease {
    struct pipit_client *client;
    struct arenas *arenas;
    uint32_t arena;
    uint32_t buf;
    uint32_t generation;
    uint64_t offset;
    uint64_t bytes;
};

/* error.c: fill and return err. */
int pipit_fail(struct pipit_error *e, int err, uint32_t code, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
int pipit_fail_lane(struct pipit_error *e, const struct lane_error *said);
int pipit_fail_copy(struct pipit_error *e, const struct pipit_error *from);

/* find.c: fills client->places with where to look, in order; paths too long have err set. */
int find_places(struct pipit_client *c, struct pipit_error *reterr) WARN_UNUSED;
/* 0, or why a place may not be used though it is there (a folder in /tmp that others own). */
int find_check(const struct place *place) WARN_UNUSED;

/* link.c: the connection's life. */
int link_open(struct pipit_client *c, struct pipit_error *reterr) WARN_UNUSED;
int link_adopt(struct pipit_client *c, int fd, struct pipit_error *reterr) WARN_UNUSED;
/* The connection ended; tries again if that makes sense (`again`) and something waits for it. */
void link_drop(struct pipit_client *c, bool again, int err, uint32_t code, const char *why);
void link_drop_error(struct pipit_client *c, bool again, const struct pipit_error *e);
void link_timer(struct pipit_client *c);
void link_hello_reply(struct pipit_client *c, const struct lane_record *r, const int fds[2]);
void link_info(struct pipit_client *c, const struct lane_hello_reply *h,
               bool hello); /* or a pong */
/* Something wants to be sent: a link that is down is tried again. -ENOTCONN: never connected. */
int link_wanted(struct pipit_client *c, struct pipit_error *reterr) WARN_UNUSED;
/* Failures drop the link, which whoever waits will hear of. */
void link_send(struct pipit_client *c, const struct lane_record *r);
void link_close(struct pipit_client *c);

/* client.c: the daemon writes text into a lease of so many bytes and says how long it is. `ask`:
 * but for the lease. The copy ends in a NUL that *ret_len leaves out. */
int client_fetch_text(struct pipit_client *c, struct lane_record *ask, size_t bytes, char **ret,
                      size_t *ret_len, struct pipit_error *reterr) WARN_UNUSED;

/* report.c */
struct report;
void report_free(struct report *r); /* takes NULL */

/* dispatch.c */
/* 0, -EPERM after fork(), or -EDEADLK inside a callback. */
int dispatch_check(const struct pipit_client *c, struct pipit_error *reterr) WARN_UNUSED;
/* A dispatch of a call that waits for the daemon: descriptors of the caller's do not end it. */
int dispatch_own(struct pipit_client *c, int timeout_ms) WARN_UNUSED;
int dispatch_until_up(struct pipit_client *c, struct pipit_error *reterr) WARN_UNUSED;
/* Sends one question (two records if `also` is given) and waits for a record of type `want`. */
int dispatch_call(struct pipit_client *c, const struct lane_record *ask,
                  const struct lane_record *also, uint32_t want,
                  struct pipit_error *reterr) WARN_UNUSED;

/* request.c */
struct pipit_request *request_find(struct pipit_client *c, const uint8_t id[16]);
void request_unref(struct pipit_request *q);
void request_end(struct pipit_request *q); /* takes it off the client's list */

/* run.c: requests on the wire. */
/* Sends what waits, as far as the one request lease is free. */
void run_pump(struct pipit_client *c);
void run_reconnected(struct pipit_client *c);
void run_fail_all(struct pipit_client *c, const struct pipit_error *e);

/* wire.c: request -> items in the request lease and a LANE_REQUEST. */
int wire_put(struct pipit_request *q, struct lane_record *ret,
             struct pipit_error *reterr) WARN_UNUSED;

/* event.c: records -> events. */
void event_record(struct pipit_request *q, const struct lane_record *r);
void event_error(struct pipit_request *q, const struct pipit_error *e);
void event_resumed(struct pipit_request *q);

#endif
