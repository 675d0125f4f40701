/* SPDX-License-Identifier: Apache-2.0 */
/* The connection's life:
 *
 *     NEW ──open──▶ HELLO ──reply──▶ UP ──lost──▶ RETRY ──timer, connect──▶ HELLO ...
 *                     │                │            └─ reconnect time over ─▶ LOST
 *                     └─ refused ──▶ LOST          (nothing runs: DOWN, until somebody sends)
 *
 * The epoll descriptor that programs poll outlives all of it; the socket comes and goes, one timer
 * stands for the hello's deadline and for the next try. What is lost when a connection ends: the
 * arenas and their leases, and what the daemon had not yet sent, which RESUME brings again. A
 * daemon that sends garbage is not tried again: it would only send more.
 *
 * The time for connecting again counts from the last sign of progress (an event of a request), not
 * from the last connection, so that a daemon that dies at every hello cannot hold us for ever. */

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "client/lib/client.h"

enum { FIRST_TRY_NS = 5000000, NEXT_TRY_NS = 50000000, BACKLOG_WAIT_MS = 10 };
#define MS_NS INT64_C(1000000)

static void set_timer(struct pipit_client *c, int64_t at_ns)
{
    struct itimerspec t = {.it_value = {at_ns / 1000000000, at_ns % 1000000000}};

    (void)timerfd_settime(c->timer_fd, TFD_TIMER_ABSTIME, &t, NULL);
}

void link_close(struct pipit_client *c)
{
    close_fd(&c->sock);
    if (c->arenas) {
        c->arenas->alive = false;
        arenas_unref(c->arenas);
        c->arenas = NULL;
    }
    c->buf_busy = false;
    c->pongs_due = 0;
}

/* Over a fresh socket: register it, say hello. */
static int say_hello(struct pipit_client *c, int fd)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.u32 = WAKE_SOCKET};
    struct lane_record r;

    if (epoll_ctl(c->epoll_fd, EPOLL_CTL_ADD, fd, &ev) < 0) {
        return -errno;
    }
    hello_make(&r, c->program, c->want_c2e, c->want_e2c);
    c->connect_ns = clock_ns();
    c->hello_deadline_ns = c->connect_ns + c->timeout_ms * MS_NS;
    set_timer(c, c->hello_deadline_ns);
    return socket_send(fd, &r, (int)c->timeout_ms);
}

static int start(struct pipit_client *c, int fd)
{
    int r = say_hello(c, fd);

    c->sock = fd;
    if (r < 0 && r != -EPIPE && r != -ECONNRESET) {
        link_close(c); /* and the state is what it was: nobody waits for a reply */
        return r;
    }
    c->state = LINK_HELLO; /* refused and closed, too: the reason lies unread in the socket */
    return 0;
}

int link_adopt(struct pipit_client *c, int fd, struct pipit_error *reterr)
{
    int r;

    c->by_fd = true;
    r = start(c, fd);
    return r < 0 ? pipit_fail(reterr, r, PIPIT_E_UNREACHABLE, "no hello over this socket: %s",
                              strerror(-r))
                 : 0;
}

/* Connects to one place; a full backlog is waited for until the deadline. */
static int open_place(struct pipit_client *c, const struct place *p, int64_t deadline_ns)
{
    int fd = -1;
    int r = p->err == -ENAMETOOLONG ? p->err : find_check(p);

    while (r == 0 && (r = socket_connect(p->path, &fd)) == -EAGAIN && clock_ns() < deadline_ns) {
        (void)poll(NULL, 0, BACKLOG_WAIT_MS);
        r = 0;
    }
    return r < 0 ? r : start(c, fd);
}

static const char *why(int err)
{
    switch (err) {
    case -ENOENT:
        return "no socket there";
    case -ECONNREFUSED:
        return "a socket, but no daemon behind it";
    case -EACCES:
        return "this user may not open it";
    case -ENAMETOOLONG:
        return "the path is longer than a socket's 107 bytes";
    case -EPERM:
        return "the folder belongs to another user or is open to others";
    case -EAGAIN:
        return "the daemon does not accept connections";
    default:
        return strerror(-err);
    }
}

int link_open(struct pipit_client *c, struct pipit_error *reterr)
{
    int64_t deadline_ns = clock_ns() + c->timeout_ms * MS_NS;
    char text[sizeof(reterr->text)] = "";
    size_t at = 0;
    int r = -ENOENT; /* or the first cause that says more */

    for (size_t i = 0; i < c->n_places; i++) {
        struct place *p = &c->places[i];

        p->err = open_place(c, p, deadline_ns);
        r = r == -ENOENT ? p->err : r;
        if (p->err == 0) {
            (void)snprintf(c->path, sizeof(c->path), "%s", p->path);
            return 0;
        }
        if (at < sizeof(text)) {
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s (%s): %s", i ? "; " : "",
                                   p->path, p->origin, why(p->err));
        }
    }
    return pipit_fail(reterr, r, PIPIT_E_UNREACHABLE, "no pipitd answers; tried %s", text);
}

static void give_up(struct pipit_client *c)
{
    struct pipit_error e = c->last;

    c->state = LINK_LOST;
    set_timer(c, 0);
    run_fail_all(c, &e);
}

static void give_up_waiting(struct pipit_client *c)
{
    size_t n = strlen(c->last.text);

    (void)snprintf(c->last.text + n, sizeof(c->last.text) - n, ", and none came back in %g s",
                   c->reconnect_ms / 1000.0);
    give_up(c);
}

void link_drop(struct pipit_client *c, bool again, int err, uint32_t code, const char *text)
{
    struct pipit_error e;

    (void)pipit_fail(&e, err, code, "%s", text);
    link_drop_error(c, again, &e);
}

void link_drop_error(struct pipit_client *c, bool again, const struct pipit_error *e)
{
    bool was_up = c->state == LINK_UP;
    int64_t now = clock_ns();

    c->last = *e;
    link_close(c);
    c->call.lost = c->call.waiting;
    for (struct pipit_request *q = c->requests; q; q = q->next) {
        q->on_wire = false;
    }
    /* Before the first reply nothing is known to be a daemon of ours. */
    if (!again || c->by_fd || c->reconnect_ms == 0 || c->hello.magic == 0) {
        give_up(c);
        return;
    }
    if (was_up && !c->requests) {
        c->state = LINK_DOWN;
        set_timer(c, 0);
        return;
    }
    c->state = LINK_RETRY;
    if (c->give_up_ns == 0) {
        c->give_up_ns = now + c->reconnect_ms * MS_NS;
    }
    if (now >= c->give_up_ns) {
        give_up_waiting(c);
        return;
    }
    set_timer(c, now + (was_up ? FIRST_TRY_NS : NEXT_TRY_NS));
}

static void retry(struct pipit_client *c)
{
    struct place *p = &c->places[0];
    int64_t now = clock_ns();

    for (size_t i = 0; i < c->n_places; i++) {
        p = strcmp(c->places[i].path, c->path) == 0 ? &c->places[i] : p;
    }
    if (open_place(c, p, 0) == 0) {
        return;
    }
    if (now >= c->give_up_ns) {
        give_up_waiting(c);
        return;
    }
    set_timer(c, now + NEXT_TRY_NS);
}

void link_timer(struct pipit_client *c)
{
    uint64_t n;

    if (read(c->timer_fd, &n, sizeof(n)) < 0) {
        return;
    }
    if (c->state == LINK_RETRY) {
        retry(c);
    } else if (c->state == LINK_HELLO && clock_ns() >= c->hello_deadline_ns) {
        char text[200];

        (void)snprintf(text, sizeof(text),
                       "a daemon took the connection at %.110s but did not answer in %u ms",
                       c->by_fd ? "the given socket" : c->path, c->timeout_ms);
        link_drop(c, true, -ETIMEDOUT, PIPIT_E_TIMED_OUT, text);
    }
}

int link_wanted(struct pipit_client *c, struct pipit_error *reterr)
{
    if (c->state == LINK_NEW || (c->state == LINK_LOST && (c->by_fd || c->hello.magic == 0))) {
        return pipit_fail(reterr, -ENOTCONN, PIPIT_E_LOCAL, "the client is not connected");
    }
    if (c->state == LINK_LOST && c->reconnect_ms == 0) {
        return pipit_fail(reterr, -ENOTCONN, PIPIT_E_LOST, "%s", c->last.text);
    }
    if (c->state == LINK_DOWN || c->state == LINK_LOST) {
        c->state = LINK_RETRY;
        c->give_up_ns = clock_ns() + c->reconnect_ms * MS_NS;
        set_timer(c, clock_ns());
    }
    return 0;
}

void link_send(struct pipit_client *c, const struct lane_record *rec)
{
    int r = c->state == LINK_UP ? socket_send(c->sock, rec, (int)c->timeout_ms) : 0;

    /* The reason may still lie unread in the socket: reading it finds the end, and drops the link.
     */
    if (r < 0 && r != -EPIPE && r != -ECONNRESET) {
        link_drop(c, true, r, PIPIT_E_LOST, "the daemon does not read what it is sent");
    }
}

void link_info(struct pipit_client *c, const struct lane_hello_reply *h, bool hello)
{
    struct pipit_info *i = &c->info;
    struct lane_hello_reply mine = c->hello;

    c->hello = *h;
    if (!hello) { /* a pong says nothing of what the hello gave this lane */
        c->hello.c2e_bytes = mine.c2e_bytes;
        c->hello.e2c_bytes = mine.e2c_bytes;
        c->hello.max_request_bytes = mine.max_request_bytes;
        c->hello.max_lease_bytes = mine.max_lease_bytes;
        c->hello.request_buf = mine.request_buf;
        c->hello.request_generation = mine.request_generation;
        h = &c->hello;
    }
    i->path = c->path;
    i->abi_major = h->abi_major;
    i->abi_minor = h->abi_minor;
    i->features = h->features;
    i->front_epoch = h->front_epoch;
    i->model_epoch = h->model_epoch;
    i->lane_id = h->lane_id;
    i->to_daemon_bytes = h->c2e_bytes;
    i->from_daemon_bytes = h->e2c_bytes;
    i->state = h->state;
    i->progress = h->progress;
    i->max_request_bytes = h->max_request_bytes;
    i->max_lease_bytes = h->max_lease_bytes;
    i->ctx = h->ctx;
    i->n_vocab = h->n_vocab;
    i->model = c->hello.model;
}

void link_hello_reply(struct pipit_client *c, const struct lane_record *r, const int fds[2])
{
    const struct lane_hello_reply *h = &r->hello_reply;
    struct error e = {0};
    int rc = hello_check(h, &e);

    if (rc < 0) {
        link_drop(c, false, rc, rc == -EPROTONOSUPPORT ? PIPIT_E_ABI : PIPIT_E_PROTOCOL, e.text);
        return;
    }
    if (arenas_map(fds, h->c2e_bytes, h->e2c_bytes, &c->arenas, &e) < 0) {
        link_drop(c, false, e.code, PIPIT_E_PROTOCOL, e.text);
        return;
    }
    bool again = c->hello.magic != 0;
    link_info(c, h, true);
    c->arenas->lane = h->lane_id;
    c->info.hello_ns = clock_ns() - c->connect_ns;
    c->state = LINK_UP;
    set_timer(c, 0);
    if (again) {
        run_reconnected(c);
    }
    run_pump(c);
}
