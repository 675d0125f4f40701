/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_ENGINE_LINK_IMPL_H
#define PIPIT_DAEMON_FRONT_ENGINE_LINK_IMPL_H

/* What the files of the link share: engine_link.c (start, end, restart), engine_link_io.c
 * (records), engine_link_health.c (heartbeat), engine_link_info.c (what others ask). */

#include <sys/types.h>

#include "base/cputime.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/front.h"
#include "daemon/front/loop.h"
#include "daemon/front/outgoing.h"
#include "daemon/front/report.h"

#define LOAD_TIMEOUT_NS 300000000000 /* without a word while loading */

struct engine_link {
    struct front *front;
    char path[1024];
    pid_t pid; /* 0: none */
    struct loop_watch watch;
    struct outgoing *out;

    uint32_t state; /* enum lane_state */
    struct lane_engine_state info;
    struct report report;
    char cause[sizeof(((struct lane_error *)0)->text)];
    char failure[sizeof(((struct lane_error *)0)->text)]; /* cause of the last death, until the
                                                             model is ready again */
    uint64_t epoch;
    uint32_t n_restarts;
    uint32_t n_unloads;
    uint32_t n_failures; /* in a row */
    int64_t started_ns;
    int64_t heard_ns;
    int64_t ready_ns;
    int64_t load_ns;
    int64_t busy_ns; /* since when; 0: idle */
    int64_t cpu_ns;  /* of the engine, when it last said something or became busy; -1: not known */
    int64_t starved_ns;        /* when that was last logged */
    int threads[CPUTIME_THREADS]; /* states of the engine's threads, which it handed on */
    int n_threads;
    bool draining;
    bool leaving; /* told to end: what it still says about itself does not count */
    bool again;   /* ... and to be started anew */
    struct loop_timer retry;
    int64_t refuse_until_ns; /* FAILED, and no timer: a request after that starts it again */
    struct loop_timer pulse;
};

/* engine_link_io.c */
void engine_link_on_socket(void *arg, uint32_t events);
void engine_link_close_socket(struct engine_link *e);
/* What a process that has ended said before. */
void engine_link_read_rest(struct engine_link *e);

/* engine_link_health.c. Ends a process that misbehaves; its restart follows when it is reaped. */
void engine_link_kill(struct engine_link *e, const char *why);
/* Kills it when it has said that its thread that reads texts hangs. */
void engine_link_look_at_texts(struct engine_link *e);
/* Takes descriptors that came with a record; closes those that are no states of threads. */
void engine_link_take_threads(struct engine_link *e, bool asked, const int *fds, int n);
void engine_link_forget_threads(struct engine_link *e);
/* Watches it while it loads or leaves: kills it when it has said nothing by then. */
void engine_link_watch(struct engine_link *e, int64_t when_ns);

#endif
