/* SPDX-License-Identifier: Apache-2.0 */
/* The lane between gateway and front. The socket never blocks once it is open: what does not fit
 * goes into a ring, and the main loop stops reading clients until the ring is empty, so that a slow
 * front slows its clients instead of filling our memory.
 *
 * Many requests are under way at once and a request's items must stay in the arena until the front
 * has copied them (LANE_ACCEPTED), so a handful of buffers are leased when the lane opens and lent
 * in turn. When the front grants only the one every lane has, requests go one after the other. */

#include "daemon/gateway/door.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/sock.h"
#include "base/version.h"
#include "link/hello.h"
#include "link/socket.h"

enum { SCORE_BYTES = 1 << 16, TEXT_BYTES = 16 << 10 };

int door_connect(const char *path, int *ret_fd, struct error *reterr)
{
    int rc = socket_connect(path, ret_fd);

    return rc ? error_set_errno(reterr, rc, "%s: cannot be reached", path) : 0;
}

/* The next record, waiting for it; descriptors only where `fds` is given. */
static int wait_record(struct door *d, int timeout_ms, struct lane_record *ret, int fds[2],
                       struct error *reterr)
{
    int64_t deadline = clock_ns() + (int64_t)timeout_ms * 1000000;

    for (;;) {
        struct pollfd p = {.fd = d->fd, .events = POLLIN};
        int64_t left_ms = (deadline - clock_ns()) / 1000000;
        ssize_t n;
        int rc;

        if (left_ms <= 0) {
            return error_set(reterr, -ETIMEDOUT, "the front did not answer within %d ms",
                             timeout_ms);
        }
        if (poll(&p, 1, (int)left_ms) <= 0) {
            continue;
        }
        rc = socket_recv(d->fd, ret, &n, fds);
        if (rc == -EAGAIN) {
            continue;
        }
        if (rc <= 0) {
            return error_set_errno(reterr, rc ? rc : -EPIPE, "the front closed the lane");
        }
        return lane_record_check(ret, (uint64_t)n, LANE_PEER_FRONT, reterr);
    }
}

static int take_hello(struct door *d, const struct lane_record *r, const int fds[2],
                      struct error *reterr)
{
    int rc;

    if (r->h.type == LANE_ERROR) {
        return error_set(reterr, -ECONNREFUSED, "the front refused the lane: %s: %s",
                         lane_error_name(r->error.code), r->error.text);
    }
    if (r->h.type != LANE_HELLO_REPLY || fds[1] < 0) {
        return error_set(reterr, -EBADMSG,
                         "the front answered with a record of type %u %s two descriptors "
                         "instead of a hello",
                         r->h.type, fds[1] < 0 ? "without" : "and");
    }
    d->hello = r->hello_reply;
    rc = hello_check(&d->hello, reterr);
    return rc ? rc : arenas_map(fds, d->hello.c2e_bytes, d->hello.e2c_bytes, &d->arenas, reterr);
}

static int say_hello(struct door *d, int timeout_ms, struct error *reterr)
{
    struct lane_record r;
    char program[sizeof(r.hello.program)];
    int fds[2] = {-1, -1};
    int rc;

    (void)snprintf(program, sizeof(program), "pipit-gateway %s", version_of_this());
    hello_make(&r, program, 0, 0);
    rc = socket_send(d->fd, &r, 0);
    if (rc) {
        return error_set_errno(reterr, rc, "the front cannot be greeted");
    }
    rc = wait_record(d, timeout_ms, &r, fds, reterr);
    if (rc == 0) {
        rc = take_hello(d, &r, fds, reterr);
    }
    close_fd(&fds[0]);
    close_fd(&fds[1]);
    return rc;
}

/* Asks for one lease; *ret_granted false when the front has no more. */
static int get_lease(struct door *d, enum lane_arena arena, uint64_t length, int timeout_ms,
                     struct door_buf *ret, bool *ret_granted, struct error *reterr)
{
    struct lane_record r;
    int fds[2];
    int rc;

    *ret_granted = false;
    lane_record_init(&r, LANE_LEASE_GET, NULL);
    r.lease.arena = arena;
    r.lease.length = length;
    rc = socket_send(d->fd, &r, 0);
    if (rc) {
        return error_set_errno(reterr, rc, "the front cannot be asked for a buffer");
    }
    do {
        rc = wait_record(d, timeout_ms, &r, fds, reterr);
        if (rc) {
            return rc;
        }
        close_fd(&fds[0]);
        close_fd(&fds[1]);
    } while (r.h.type != LANE_LEASE && r.h.type != LANE_ERROR);
    if (r.h.type == LANE_ERROR) {
        return 0;
    }
    if (!arenas_hold(d->arenas, arena, &r.lease, length)) {
        return error_set(reterr, -EBADMSG, "the front granted a buffer outside the arena");
    }
    *ret = (struct door_buf){
        .buf = r.lease.buf,
        .generation = r.lease.generation,
        .offset = r.lease.offset,
        .length = length,
    };
    *ret_granted = true;
    return 0;
}

static int get_leases(struct door *d, int timeout_ms, struct error *reterr)
{
    bool granted = true;
    int rc = 0;

    d->bufs[0] = (struct door_buf){
        .buf = d->hello.request_buf,
        .generation = d->hello.request_generation,
        .length = d->hello.max_request_bytes,
    };
    d->n_bufs = 1;
    if (d->hello.e2c_bytes >= SCORE_BYTES) {
        rc = get_lease(d, LANE_ARENA_E2C, SCORE_BYTES, timeout_ms, &d->out, &granted, reterr);
    }
    if (rc == 0 && d->hello.features & LANE_FEATURE_REPORT && d->hello.e2c_bytes >= TEXT_BYTES) {
        rc = get_lease(d, LANE_ARENA_E2C, TEXT_BYTES, timeout_ms, &d->text, &granted, reterr);
    }
    for (granted = true; rc == 0 && granted && d->n_bufs < DOOR_MAX_BUFS;) {
        rc = get_lease(d, LANE_ARENA_C2E, d->hello.max_request_bytes, timeout_ms,
                       &d->bufs[d->n_bufs], &granted, reterr);
        d->n_bufs += granted;
    }
    return rc;
}

int door_open(struct door *d, int fd, int timeout_ms, struct error *reterr)
{
    int flags = fcntl(fd, F_GETFL);
    int rc;

    *d = (struct door){.fd = fd};
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) || fcntl(fd, F_SETFD, FD_CLOEXEC)) {
        rc = error_set_errno(reterr, -errno, "descriptor %d is no lane", fd);
        goto fail;
    }
    d->tx = calloc(DOOR_TX_RECORDS, sizeof(*d->tx));
    if (!d->tx) {
        rc = error_set(reterr, -ENOMEM, "no memory for the lane's records");
        goto fail;
    }
    rc = say_hello(d, timeout_ms, reterr);
    if (rc == 0) {
        rc = get_leases(d, timeout_ms, reterr);
    }
    if (rc == 0) {
        return 0;
    }
fail:
    door_close(d);
    return rc;
}

void door_close(struct door *d)
{
    arenas_unref(d->arenas);
    free(d->tx);
    close_fd(&d->fd);
    *d = (struct door){.fd = -1};
}

HOT bool door_pending(const struct door *d)
{
    return d->tx_head != d->tx_tail;
}

int door_flush(struct door *d)
{
    while (door_pending(d)) {
        int rc = sock_send(d->fd, &d->tx[d->tx_tail % DOOR_TX_RECORDS], LANE_RECORD_BYTES, NULL, 0);

        if (rc) {
            return rc == -EAGAIN ? 0 : rc;
        }
        d->tx_tail++;
    }
    return 0;
}

int door_send(struct door *d, const struct lane_record *r)
{
    if (!door_pending(d)) {
        int rc = sock_send(d->fd, r, LANE_RECORD_BYTES, NULL, 0);

        if (rc != -EAGAIN) {
            return rc;
        }
    }
    if (d->tx_head - d->tx_tail >= DOOR_TX_RECORDS) {
        return -ENOBUFS;
    }
    d->tx[d->tx_head++ % DOOR_TX_RECORDS] = *r;
    return 0;
}

HOT int door_receive(struct door *d, struct lane_record *ret, struct error *reterr)
{
    ssize_t n = sock_recv(d->fd, ret, sizeof(*ret), NULL, NULL);
    int rc;

    if (n == -EAGAIN) {
        return 0;
    }
    if (n == 0) {
        return error_set(reterr, -EPIPE, "the front closed the lane");
    }
    if (n < 0) {
        return error_set_errno(reterr, (int)n, "the lane cannot be read");
    }
    rc = lane_record_check(ret, (uint64_t)n, LANE_PEER_FRONT, reterr);
    return rc ? rc : 1;
}

HOT int door_buf_free(const struct door *d)
{
    for (int i = 0; i < d->n_bufs; i++) {
        if (!d->bufs[i].busy) {
            return i;
        }
    }
    return -1;
}
