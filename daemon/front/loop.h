/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LOOP_H
#define PIPIT_DAEMON_FRONT_LOOP_H

/* The front's one loop: descriptors through epoll, timers through a heap. No thread, no periodic
 * tick: an idle front sleeps until something happens. Watches and timers live inside the structs
 * that use them; removing one from inside any callback is fine, also one that is about to fire. */

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/error.h"

typedef void loop_watch_fn(void *arg, uint32_t events);
typedef void loop_timer_fn(void *arg);

struct loop_watch {
    int fd; /* not owned */
    uint32_t events;
    loop_watch_fn *fn;
    void *arg;
    bool active;
    bool late;                   /* its events are not yet what they should be */
    struct loop_watch *late_next;
};

struct loop_timer {
    int64_t when_ns; /* CLOCK_MONOTONIC */
    uint32_t index;  /* in the heap, from 1; 0: not armed */
    loop_timer_fn *fn;
    void *arg;
};

enum { LOOP_BATCH = 64 };

struct loop {
    int epoll_fd;
    struct loop_watch timer;  /* a timerfd */
    int64_t set_ns;           /* what it is set to, or INT64_MAX */
    bool due;                 /* it rang: timers are looked at when the batch is done */
    struct loop_watch *late;  /* of which epoll_ctl(2) had no memory for a change */
    struct loop_timer **heap; /* [1..n_timers] */
    uint32_t n_timers;
    uint32_t most_timers;
    struct epoll_event batch[LOOP_BATCH];
    int n_batch;
    int at; /* in the batch */
    bool stop;
};

/* Room for `most_timers` armed at once is taken now: no memory later would be a lost deadline. */
int loop_init(struct loop *l, uint32_t most_timers, struct error *reterr) WARN_UNUSED;
void loop_finish(struct loop *l);

/* fd, events, fn and arg must be set. */
int loop_add(struct loop *l, struct loop_watch *w) WARN_UNUSED;
/* Where the kernel has no memory for it now, it is done a moment later. */
void loop_events(struct loop *l, struct loop_watch *w, uint32_t events);
void loop_del(struct loop *l, struct loop_watch *w); /* no-op when not active */

/* Arms or re-arms; fires once. One more than `most_timers` is a bug, and ends the process: a lost
 * deadline would be silent. */
void loop_timer_at(struct loop *l, struct loop_timer *t, int64_t when_ns, loop_timer_fn *fn,
                   void *arg);
void loop_timer_off(struct loop *l, struct loop_timer *t);

/* Until loop_stop(), or an error of epoll_wait(2). `after` (or NULL) runs after every batch. */
int loop_run(struct loop *l, void (*after)(void *arg), void *arg) WARN_UNUSED;
void loop_stop(struct loop *l);

#endif
