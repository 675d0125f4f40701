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
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/sock.h"

enum { SCORE_BYTES = 1 << 16, TEXT_BYTES = 16 << 10 };

int door_connect(const char *path, int *ret_fd, struct error *reterr)
{
    struct sockaddr_un a;
    AUTO_CLOSE int fd = -1;
    int rc = sock_address(path, &a, reterr);

    if (rc) {
        return rc;
    }
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&a, sizeof(a))) {
        return error_set_errno(reterr, -errno, "%s: cannot be reached", path);
    }
    *ret_fd = STEAL_FD(fd);
    return 0;
}

/* The next record, waiting for it; descriptors only where `fds` is given. */
static int wait_record(struct door *d, int timeout_ms, struct lane_record *ret, int *fds,
                       int *ret_n_fds, struct error *reterr)
{
    int64_t deadline = clock_ns() + (int64_t)timeout_ms * 1000000;

    for (;;) {
        struct pollfd p = {.fd = d->fd, .events = POLLIN};
        int64_t left_ms = (deadline - clock_ns()) / 1000000;
        ssize_t n;

        if (left_ms <= 0) {
            return error_set(reterr, -ETIMEDOUT, "the front did not answer within %d ms",
                             timeout_ms);
        }
        if (poll(&p, 1, (int)left_ms) <= 0) {
            continue;
        }
        n = sock_recv(d->fd, ret, sizeof(*ret), fds, ret_n_fds);
        if (n == -EAGAIN) {
            continue;
        }
        if (n <= 0) {
            return error_set_errno(reterr, n ? (int)n : -EPIPE, "the front closed the lane");
        }
        return lane_record_check(ret, (uint64_t)n, LANE_PEER_FRONT, reterr);
    }
}

/* Maps one arena after checking that it is as large as the hello says and can never shrink. */
static int map_arena(int fd, uint64_t bytes, int prot, void **ret, struct error *reterr)
{
    struct stat st;
    int seals = fcntl(fd, F_GET_SEALS);
    void *p;

    *ret = NULL;
    if (bytes == 0) {
        return 0;
    }
    if (fstat(fd, &st) || (uint64_t)st.st_size < bytes || seals < 0 || !(seals & F_SEAL_SHRINK)) {
        return error_set(reterr, -EBADMSG, "an arena is not a sealed memory file of %llu bytes",
                         (unsigned long long)bytes);
    }
    p = mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        return error_set_errno(reterr, -errno, "an arena cannot be mapped");
    }
    *ret = p;
    return 0;
}

static int take_hello(struct door *d, const struct lane_record *r, const int *fds, int n_fds,
                      struct error *reterr)
{
    void *p;
    int rc;

    if (r->h.type == LANE_ERROR) {
        return error_set(reterr, -ECONNREFUSED, "the front refused the lane: %s: %s",
                         lane_error_name(r->error.code), r->error.text);
    }
    if (r->h.type != LANE_HELLO_REPLY || n_fds != 2) {
        return error_set(reterr, -EBADMSG,
                         "the front answered with a record of type %u and %d "
                         "descriptors instead of a hello",
                         r->h.type, n_fds);
    }
    d->hello = r->hello_reply;
    if (d->hello.abi_major != LANE_ABI_MAJOR) {
        return error_set(reterr, -EPROTO,
                         "the front speaks version %u of the lane, this gateway %d",
                         d->hello.abi_major, LANE_ABI_MAJOR);
    }
    if (d->hello.max_request_bytes == 0 || d->hello.max_request_bytes > d->hello.c2e_bytes) {
        return error_set(reterr, -EBADMSG,
                         "the front offers requests of %u bytes in an arena of %llu",
                         d->hello.max_request_bytes, (unsigned long long)d->hello.c2e_bytes);
    }
    rc = map_arena(fds[0], d->hello.c2e_bytes, PROT_READ | PROT_WRITE, &p, reterr);
    d->c2e = p;
    if (rc == 0) {
        rc = map_arena(fds[1], d->hello.e2c_bytes, PROT_READ, &p, reterr);
        d->e2c = p;
    }
    return rc;
}

static int say_hello(struct door *d, int timeout_ms, struct error *reterr)
{
    struct lane_record r;
    int fds[SOCK_MAX_FDS];
    int n_fds = 0;
    int rc;

    lane_record_init(&r, LANE_HELLO, NULL);
    r.hello.magic = LANE_MAGIC;
    r.hello.abi_major = LANE_ABI_MAJOR;
    r.hello.abi_minor = LANE_ABI_MINOR;
    r.hello.record_bytes = LANE_RECORD_BYTES;
    memcpy(r.hello.program, "pipit-gateway", sizeof("pipit-gateway"));
    rc = sock_send(d->fd, &r, sizeof(r), NULL, 0);
    if (rc) {
        return error_set_errno(reterr, rc, "the front cannot be greeted");
    }
    rc = wait_record(d, timeout_ms, &r, fds, &n_fds, reterr);
    if (rc == 0) {
        rc = take_hello(d, &r, fds, n_fds, reterr);
    }
    for (int i = 0; i < n_fds; i++) {
        (void)close(fds[i]);
    }
    return rc;
}

/* Asks for one lease; *ret_granted false when the front has no more. */
static int get_lease(struct door *d, enum lane_arena arena, uint64_t length, int timeout_ms,
                     struct door_buf *ret, bool *ret_granted, struct error *reterr)
{
    uint64_t arena_bytes = arena == LANE_ARENA_C2E ? d->hello.c2e_bytes : d->hello.e2c_bytes;
    struct lane_record r;
    int rc;

    *ret_granted = false;
    lane_record_init(&r, LANE_LEASE_GET, NULL);
    r.lease.arena = arena;
    r.lease.length = length;
    rc = sock_send(d->fd, &r, sizeof(r), NULL, 0);
    if (rc) {
        return error_set_errno(reterr, rc, "the front cannot be asked for a buffer");
    }
    do {
        rc = wait_record(d, timeout_ms, &r, NULL, NULL, reterr);
        if (rc) {
            return rc;
        }
    } while (r.h.type != LANE_LEASE && r.h.type != LANE_ERROR);
    if (r.h.type == LANE_ERROR) {
        return 0;
    }
    if (r.lease.length < length || r.lease.offset > arena_bytes ||
        r.lease.length > arena_bytes - r.lease.offset) {
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
    if (d->c2e) {
        (void)munmap(d->c2e, d->hello.c2e_bytes);
    }
    if (d->e2c) {
        (void)munmap((void *)(uintptr_t)d->e2c, d->hello.e2c_bytes);
    }
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
