/* SPDX-License-Identifier: Apache-2.0 */
/* Reading what the daemon sends and handing it on: records about the lane to the one call that
 * waits for its answer, records with an id to that request, what nobody waits for to nobody. Every
 * record is checked (lane_record_check) before a byte of it is believed.
 *
 * dispatch never runs inside itself: callbacks may send, cancel and destroy requests, which only
 * write; calls that would have to read are refused there. */

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "client/lib/client.h"

enum { RECORDS_AT_ONCE = 64 };
#define MS_NS INT64_C(1000000)

static bool no_id(const struct lane_record *r)
{
    static const uint8_t zero[16];

    return memcmp(r->h.id, zero, sizeof(zero)) == 0;
}

/* An answer to the waiting call? */
static bool answers(struct pipit_client *c, const struct lane_record *r)
{
    struct call *k = &c->call;

    if (!k->waiting) {
        return false;
    }
    if (r->h.type == k->want && no_id(r)) {
        return r->h.type != LANE_PONG || c->pongs_due == 0;
    }
    return r->h.type == LANE_ERROR &&
           (no_id(r) || (memcmp(r->h.id, k->id, 16) == 0 && !request_find(c, k->id)));
}

static void lane_record(struct pipit_client *c, const struct lane_record *r, const int fds[2])
{
    struct pipit_error e;

    switch (r->h.type) {
    case LANE_HELLO_REPLY:
        if (c->state == LINK_HELLO) {
            link_hello_reply(c, r, fds);
        } else {
            link_drop(c, false, -EBADMSG, PIPIT_E_PROTOCOL, "the daemon said hello twice");
        }
        break;
    case LANE_PONG:
        link_info(c, &r->hello_reply, false);
        break;
    case LANE_ERROR: /* about the lane, and nobody asked: the daemon closes it now */
        (void)pipit_fail_lane(&e, &r->error);
        link_drop_error(c, r->error.code == LANE_ERR_BUSY || r->error.code == LANE_ERR_SHUTDOWN,
                        &e);
        break;
    default:
        break;
    }
}

HOT static void take(struct pipit_client *c, const struct lane_record *r, const int fds[2])
{
    struct pipit_request *q;

    if (c->state == LINK_HELLO && r->h.type != LANE_HELLO_REPLY && r->h.type != LANE_ERROR) {
        link_drop(c, false, -EBADMSG, PIPIT_E_PROTOCOL, "the daemon's first record is no hello");
        return;
    }
    if (r->h.type == LANE_PONG && c->pongs_due > 0) {
        c->pongs_due--;
    }
    if (c->state == LINK_UP && answers(c, r)) {
        c->call.answer = *r;
        c->call.waiting = false;
        if (r->h.type == LANE_ERROR) {
            return;
        }
    }
    if (no_id(r)) {
        lane_record(c, r, fds);
        return;
    }
    q = request_find(c, r->h.id);
    if (c->buf_busy && memcmp(c->buf_id, r->h.id, 16) == 0 && r->h.type != LANE_PROGRESS) {
        c->buf_busy = false;
    }
    if (q) {
        event_record(q, r);
    }
    if (c->state == LINK_UP && !c->buf_busy) {
        run_pump(c);
    }
}

/* One record: 1 handled, 0 nothing there (or the link is gone). */
HOT static int read_one(struct pipit_client *c)
{
    struct lane_record r;
    struct error e = {0};
    int fds[2];
    ssize_t n = 0;
    int rc = socket_recv(c->sock, &r, &n, fds);

    if (rc == -EAGAIN) {
        return 0;
    }
    if (rc <= 0) {
        link_drop(c, true, rc < 0 ? rc : -ECONNRESET, PIPIT_E_LOST,
                  c->state == LINK_HELLO ? "the daemon closed the connection without a hello"
                                         : "the daemon closed the connection");
        return 0;
    }
    if (lane_record_check(&r, (uint64_t)n, LANE_PEER_FRONT, &e) < 0) {
        (void)error_prefix(&e, "the daemon sent garbage");
        link_drop(c, false, -EBADMSG, PIPIT_E_PROTOCOL, e.text);
    } else {
        take(c, &r, fds);
    }
    close_fd(&fds[0]);
    close_fd(&fds[1]);
    return 1;
}

HOT int dispatch_check(const struct pipit_client *c, struct pipit_error *reterr)
{
    if (c->pid != getpid()) {
        return pipit_fail(reterr, -EPERM, PIPIT_E_LOCAL,
                          "a client does not survive fork(): the child needs its own");
    }
    if (c->in_callback) {
        return pipit_fail(reterr, -EDEADLK, PIPIT_E_LOCAL,
                          "this call waits, so it may not be made inside a callback");
    }
    return 0;
}

static bool idle(const struct pipit_client *c)
{
    return c->state == LINK_NEW || c->state == LINK_DOWN || c->state == LINK_LOST;
}

/* -1 for ever, else milliseconds rounded up. */
static int left_ms(int64_t deadline_ns)
{
    int64_t left = deadline_ns - clock_ns();

    if (deadline_ns < 0) {
        return -1;
    }
    left = left < 0 ? 0 : (left + MS_NS - 1) / MS_NS;
    return left > INT_MAX ? INT_MAX : (int)left;
}

/* A descriptor of the caller's is ready. A wait of the library's own goes on for what is ours
 * alone, unless the link is gone, of which nothing more comes: true when there is something of
 * ours, or to be said of the link; false when the dispatch is to end. */
static bool own_ready(const struct pipit_client *c, int64_t deadline_ns)
{
    struct pollfd p[] = {{.fd = c->sock, .events = POLLIN}, {.fd = c->timer_fd, .events = POLLIN}};

    return c->own_only && (idle(c) || poll(p, 2, left_ms(deadline_ns)) > 0);
}

HOT int pipit_client_dispatch(struct pipit_client *c, int timeout_ms)
{
    int64_t deadline_ns = timeout_ms < 0 ? -1 : clock_ns() + timeout_ms * MS_NS;
    int n = 0;
    int r = dispatch_check(c, NULL);

    while (r == 0 && n == 0) {
        struct epoll_event ev[4];
        bool foreign = false;
        int got;

        if (idle(c)) {
            return -ENOTCONN;
        }
        got = epoll_wait(c->epoll_fd, ev, 4, left_ms(deadline_ns));
        if (got < 0) {
            return errno == EINTR ? 0 : -errno;
        }
        for (int i = 0; i < got; i++) {
            if (ev[i].data.u32 == WAKE_SOCKET) {
                for (int k = 0; k < RECORDS_AT_ONCE && c->sock >= 0 && read_one(c); k++) {
                    n++;
                }
            } else if (ev[i].data.u32 == WAKE_TIMER) {
                link_timer(c);
            } else {
                foreign = true;
            }
        }
        if (got == 0 || c->call.lost || (foreign && n == 0 && !own_ready(c, deadline_ns))) {
            break;
        }
    }
    return r < 0 ? r : n;
}

int dispatch_own(struct pipit_client *c, int timeout_ms)
{
    bool before = c->own_only;
    int r;

    c->own_only = true;
    r = pipit_client_dispatch(c, timeout_ms);
    c->own_only = before;
    return r;
}

int dispatch_until_up(struct pipit_client *c, struct pipit_error *reterr)
{
    while (c->state == LINK_HELLO || c->state == LINK_RETRY) {
        int r = dispatch_own(c, -1);

        if (r < 0 && r != -ENOTCONN) {
            return pipit_fail(reterr, r, PIPIT_E_LOCAL, "cannot wait for the daemon: %s",
                              strerror(-r));
        }
    }
    return c->state == LINK_UP ? 0 : pipit_fail_copy(reterr, &c->last);
}

static int wait_answer(struct pipit_client *c, struct pipit_error *reterr)
{
    int64_t deadline_ns = clock_ns() + c->timeout_ms * MS_NS;

    while (c->call.waiting) {
        int r;

        r = dispatch_own(c, left_ms(deadline_ns));
        if (c->call.lost) {
            return pipit_fail_copy(reterr, &c->last);
        }
        if (r < 0) {
            return pipit_fail(reterr, r, PIPIT_E_LOCAL, "cannot wait for the daemon: %s",
                              strerror(-r));
        }
        if (c->call.waiting && clock_ns() >= deadline_ns) {
            if (c->call.want == LANE_LEASE) { /* a late grant must not answer the next question */
                link_drop(c, true, -ETIMEDOUT, PIPIT_E_TIMED_OUT, "the daemon does not answer");
            }
            return pipit_fail(reterr, -ETIMEDOUT, PIPIT_E_TIMED_OUT,
                              "the daemon did not answer in %u ms", c->timeout_ms);
        }
    }
    if (c->call.answer.h.type == LANE_ERROR) {
        return pipit_fail_lane(reterr, &c->call.answer.error);
    }
    return 0;
}

int dispatch_call(struct pipit_client *c, const struct lane_record *ask,
                  const struct lane_record *also, uint32_t want, struct pipit_error *reterr)
{
    int r = dispatch_check(c, reterr);

    if (r == 0) {
        r = link_wanted(c, reterr);
    }
    if (r == 0) {
        r = dispatch_until_up(c, reterr);
    }
    if (r < 0) {
        return r;
    }
    memset(&c->call, 0, sizeof(c->call));
    memcpy(c->call.id, ask->h.id, 16);
    c->call.want = want;
    c->call.waiting = true;
    c->pongs_due += want == LANE_PONG;
    link_send(c, ask);
    if (also) {
        link_send(c, also);
    }
    r = wait_answer(c, reterr);
    c->call.waiting = c->call.lost = false;
    return r;
}
