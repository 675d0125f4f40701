/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_GATEWAY_DOOR_H
#define PIPIT_DAEMON_GATEWAY_DOOR_H

/* The gateway's own lane to the front: hello, arenas, buffers for requests, records both ways. It is
 * the privileged kind of lane, so requests on it name the uid that the gateway read from its peer. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "link/arenas.h"
#include "proto/lane/record.h"

enum { DOOR_MAX_BUFS = 8, DOOR_TX_RECORDS = 4096 };

/* A lease that the gateway holds for as long as the lane lives. */
struct door_buf {
    uint32_t buf;
    uint32_t generation;
    uint64_t offset;
    uint64_t length;
    bool busy;
};

struct door {
    int fd;
    struct lane_hello_reply hello;
    struct arenas *arenas;
    struct door_buf bufs[DOOR_MAX_BUFS]; /* c2e, each of hello.max_request_bytes; a request's items */
    int n_bufs;
    struct door_buf out; /* e2c, where scores are written; length 0: none was granted */
    struct door_buf text; /* e2c, what the front tells in lines; length 0: none, it tells nothing */
    struct lane_record *tx; /* (DOOR_TX_RECORDS) ring of what the socket had no room for */
    uint32_t tx_head;
    uint32_t tx_tail;
};

/* Connects to the front's privileged listener. */
int door_connect(const char *path, int *ret_fd, struct error *reterr) WARN_UNUSED;

/* Takes `fd` over, says hello and gets the buffers; waits at most `timeout_ms` for each answer. */
int door_open(struct door *d, int fd, int timeout_ms, struct error *reterr) WARN_UNUSED;
void door_close(struct door *d);

/* Sends or queues; -ENOBUFS when the front has not read for DOOR_TX_RECORDS records, -EPIPE. */
int door_send(struct door *d, const struct lane_record *r) WARN_UNUSED;
int door_flush(struct door *d) WARN_UNUSED;
bool door_pending(const struct door *d);

/* One checked record: 1, 0 when there is none now, -EPIPE at the end, -EBADMSG. */
int door_receive(struct door *d, struct lane_record *ret, struct error *reterr) WARN_UNUSED;

/* A free request buffer's index, or -1. */
int door_buf_free(const struct door *d);

#endif
