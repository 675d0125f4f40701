/* SPDX-License-Identifier: Apache-2.0 */
/* epoll, level-triggered, and a binary heap of timers. A removed watch is struck out of the batch
 * that is being handed out, so that its callback is never called on freed memory.
 *
 * The heap's first timer stands in a timerfd, set only when it becomes an earlier one than the
 * timerfd knows: a turn without a due timer, which is each token's, asks no clock. A timer that was
 * taken away meanwhile costs one wake-up for nothing. */

#include "daemon/front/loop.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"

enum { LATE_MS = 10 };

static void on_timerfd(void *arg, uint32_t events)
{
    struct loop *l = arg;
    uint64_t n;

    (void)events;
    l->due = read(l->timer.fd, &n, sizeof(n)) > 0;
    l->set_ns = INT64_MAX;
}

int loop_init(struct loop *l, uint32_t most_timers, struct error *reterr)
{
    int rc;

    *l = (struct loop){.epoll_fd = -1, .set_ns = INT64_MAX, .most_timers = most_timers};
    l->timer.fd = -1;
    l->heap = calloc((size_t)most_timers + 1, sizeof(*l->heap));
    if (!l->heap) {
        return error_set(reterr, -ENOMEM, "no memory for %u timers", most_timers);
    }
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    l->timer = (struct loop_watch){
        .fd = l->epoll_fd < 0 ? -1 : timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK),
        .events = EPOLLIN,
        .fn = on_timerfd,
        .arg = l};
    rc = l->timer.fd < 0 ? -errno : loop_add(l, &l->timer);
    if (rc) {
        loop_finish(l);
        return error_set_errno(reterr, rc, "cannot create an epoll set with a timer");
    }
    return 0;
}

void loop_finish(struct loop *l)
{
    close_fd(&l->timer.fd);
    close_fd(&l->epoll_fd);
    free(l->heap);
    l->heap = NULL;
}

int loop_add(struct loop *l, struct loop_watch *w)
{
    struct epoll_event ev = {.events = w->events, .data.ptr = w};

    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, w->fd, &ev)) {
        return -errno;
    }
    w->active = true;
    return 0;
}

HOT void loop_events(struct loop *l, struct loop_watch *w, uint32_t events)
{
    struct epoll_event ev = {.events = events, .data.ptr = w};

    if (!w->active || w->events == events) {
        return;
    }
    w->events = events;
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_MOD, w->fd, &ev) && !w->late) {
        w->late = true;
        w->late_next = l->late;
        l->late = w;
    }
}

static void retry_late(struct loop *l)
{
    struct loop_watch *w = l->late;

    l->late = NULL;
    while (w) {
        struct loop_watch *next = w->late_next;
        uint32_t events = w->events;

        w->late = false;
        w->events = 0;
        loop_events(l, w, events);
        w = next;
    }
}

static void forget_late(struct loop *l, struct loop_watch *w)
{
    struct loop_watch **p = &l->late;

    while (*p != w) {
        p = &(*p)->late_next;
    }
    *p = w->late_next;
    w->late = false;
}

void loop_del(struct loop *l, struct loop_watch *w)
{
    if (!w->active) {
        return;
    }
    if (w->late) {
        forget_late(l, w);
    }
    w->active = false;
    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    for (int i = l->at + 1; i < l->n_batch; i++) {
        if (l->batch[i].data.ptr == w) {
            l->batch[i].data.ptr = NULL;
        }
    }
}

static void put(struct loop *l, uint32_t i, struct loop_timer *t)
{
    l->heap[i] = t;
    t->index = i;
}

static void sift(struct loop *l, uint32_t i)
{
    struct loop_timer *t = l->heap[i];

    for (; i > 1 && l->heap[i / 2]->when_ns > t->when_ns; i /= 2) {
        put(l, i, l->heap[i / 2]);
    }
    for (;;) {
        uint32_t c = 2 * i;

        if (c > l->n_timers) {
            break;
        }
        if (c + 1 <= l->n_timers && l->heap[c + 1]->when_ns < l->heap[c]->when_ns) {
            c++;
        }
        if (l->heap[c]->when_ns >= t->when_ns) {
            break;
        }
        put(l, i, l->heap[c]);
        i = c;
    }
    put(l, i, t);
}

void loop_timer_at(struct loop *l, struct loop_timer *t, int64_t when_ns, loop_timer_fn *fn,
                   void *arg)
{
    t->when_ns = when_ns;
    t->fn = fn;
    t->arg = arg;
    if (t->index == 0) {
        if (l->n_timers == l->most_timers) {
            log_error("more than %u timers", l->most_timers);
            abort();
        }
        put(l, ++l->n_timers, t);
    }
    sift(l, t->index);
}

void loop_timer_off(struct loop *l, struct loop_timer *t)
{
    uint32_t i = t->index;

    if (i == 0) {
        return;
    }
    t->index = 0;
    if (i < l->n_timers) {
        put(l, i, l->heap[l->n_timers--]);
        sift(l, i);
    } else {
        l->n_timers--;
    }
}

static void fire_timers(struct loop *l)
{
    int64_t now = clock_ns();

    l->due = false;
    while (l->n_timers > 0 && l->heap[1]->when_ns <= now) {
        struct loop_timer *t = l->heap[1];

        loop_timer_off(l, t);
        t->fn(t->arg);
    }
}

/* 0 would switch it off; a time that is over fires at once. */
static void set_timer(struct loop *l)
{
    int64_t at = l->heap[1]->when_ns > 0 ? l->heap[1]->when_ns : 1;
    struct itimerspec t = {.it_value = {at / 1000000000, at % 1000000000}};

    if (timerfd_settime(l->timer.fd, TFD_TIMER_ABSTIME, &t, NULL)) {
        log_error("cannot set the timer");
        abort();
    }
    l->set_ns = at;
}

HOT int loop_run(struct loop *l, void (*after)(void *arg), void *arg)
{
    l->stop = false;
    while (!l->stop) {
        if (l->n_timers > 0 && l->heap[1]->when_ns < l->set_ns) {
            set_timer(l);
        }
        if (l->late) {
            retry_late(l);
        }
        l->n_batch = epoll_wait(l->epoll_fd, l->batch, LOOP_BATCH, l->late ? LATE_MS : -1);
        if (l->n_batch < 0) {
            if (errno != EINTR) {
                return -errno;
            }
            l->n_batch = 0;
        }
        for (l->at = 0; l->at < l->n_batch; l->at++) {
            struct loop_watch *w = l->batch[l->at].data.ptr;

            if (w) {
                w->fn(w->arg, l->batch[l->at].events);
            }
        }
        l->n_batch = 0;
        if (l->due) {
            fire_timers(l);
        }
        if (after) {
            after(arg);
        }
    }
    return 0;
}

void loop_stop(struct loop *l)
{
    l->stop = true;
}
