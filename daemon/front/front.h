/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_FRONT_H
#define PIPIT_DAEMON_FRONT_FRONT_H

/* What one running pipitd holds. Made by main.c, touched by its one thread only. The modules hang
 * on it; none reaches into another's struct except through these headers:
 *
 *     lane.h         connections: hello, records in, events out, slow readers
 *     serve.h        what each record of a client means
 *     flow.h         what clients do to requests: ask, resume, cancel, vanish
 *     dispatch.h     what the engine does to them: run, answer, die
 *     ending.h       how they end and how long they are kept
 *     engine_link.h  the engine process: start, records, heartbeat, restart
 *     logline.h      what the log says of requests
 *     lifecycle.h    load on demand, idle unload, drain
 *     successor.h    requests of a front that was killed
 *     gateway.h      the gateway process
 *     reload.h       reading the configuration again
 *     status.h       hello, status, metrics, STATUS= for systemd
 *     notify.h       what systemd is told
 *     report.h       what status has no room for
 *     requests.h     the list of requests, for people
 *     bulk.h         texts into a client's lease
 *     upgrade.h      ending for a front of another version */

#include <stdbool.h>
#include <stdint.h>

#include "daemon/front/blame.h"
#include "daemon/front/config.h"
#include "daemon/front/figures.h"
#include "daemon/front/journal.h"
#include "daemon/front/logline.h"
#include "daemon/front/loop.h"
#include "daemon/front/notify.h"
#include "daemon/front/persons.h"
#include "daemon/front/queue.h"
#include "daemon/front/request.h"
#include "daemon/front/rundir.h"

struct engine_link;
struct gateway;
struct lane;

/* Why a client or a request is turned away. */
enum front_refusal {
    REFUSED_CLIENTS, /* at connect: as many as may be are connected, or no memory for one more */
    REFUSED_DRAIN,
    REFUSED_MODEL,  /* it could not be loaded */
    REFUSED_DEATHS, /* of engines that ran this user's requests */
    REFUSED_QUEUE,
    REFUSED_JOURNAL,
    REFUSED_KEPT, /* requests that ended and are kept */
    REFUSALS,
};

struct front_counters {
    uint64_t n_requests;
    uint64_t n_refused[REFUSALS];
    uint64_t n_prompt_tokens;
    uint64_t n_new_tokens;
    uint64_t session_bytes; /* written, of sessions that were saved */
    uint64_t n_saved;
    uint64_t n_not_saved;
    uint64_t n_by_reason[16]; /* enum lane_reason; 0: ended by LANE_ERROR */
    double ttft_ns;           /* sums, over n_first */
    uint64_t n_first;
};

struct front {
    struct config *config; /* changed by reload.c only, as are the next three */
    struct config before;  /* what was in force until an engine started under `config` */
    bool on_trial;         /* that engine is not ready yet; else there is no `before` */
    char reload_cause[300]; /* why the last reload was taken back; "": it was not */
    struct loop loop;
    struct rundir rundir;
    struct journal journal;
    struct request_table requests;
    struct persons persons;
    struct queue queue;
    struct blame blame;
    struct engine_link *engine;
    struct gateway *gateway;

    struct lane *lanes; /* all, closing ones included */
    uint32_t n_lanes;   /* connected */
    uint64_t next_lane_id;
    struct loop_watch lane_listener;
    struct loop_watch gateway_listener;
    struct loop_timer accept_timer; /* armed while there was no descriptor for another client */
    int64_t accept_told_ns;         /* from then on that is told again */
    struct notify notify;           /* to systemd */
    struct loop_watch signals;      /* its fd is ours */

    uint64_t epoch;
    int64_t started_ns;
    bool system;          /* started by systemd: SIGHUP means reload */
    bool listening;       /* said so: the model was checked, or is not there and we stay */
    bool handing_over;    /* upgrade.h */
    int64_t hand_over_ns; /* when at the latest */
    bool stopping;
    int exit_code;
    struct loop_timer stop_timer;
    uint32_t n_stop_signals;
    uint32_t drain; /* enum lane_control_op: DRAIN or RELOAD; 0: none */
    struct loop_timer drain_timer;
    struct loop_timer idle_timer;
    bool heir; /* the journal is another front's, which was killed */
    struct loop_timer steady_timer;
    struct loop_timer watchdog_timer; /* systemd's */
    int64_t watchdog_ns;
    uint32_t n_running;   /* in the engine, tokenizing ones not counted */
    uint32_t n_forgotten; /* requests, since malloc's pages were last given back */
    uint32_t n_texts;     /* tokenizing ones in the engine */
    uint32_t n_suspects;  /* of n_running and n_texts, those that run alone: 0 or 1 */
    bool dispatch_wanted; /* before the loop sleeps again */
    uint64_t n_asked;     /* how often the next request to start was looked for */
    bool status_changed;
    struct loop_timer pause_timer;  /* while somebody waits for a sequence */
    int64_t pauses_ns;              /* up to when pauses are counted */
    struct loop_timer status_timer; /* STATUS= at most once a second */
    struct front_counters counters;
    struct figures_late late; /* of the counters, what others see */
    struct logline logline;
};

/* Serves until a signal or a first start that fails; the exit code. The runtime directory has been
 * chosen; its listening sockets may have come from systemd. `manager`: its socket, where systemd
 * started us; else NULL or "". */
int front_run(struct config *c, const struct rundir *dir, const char *manager);

/* Whose subordinate user ids are whose, at start and reload. */
void front_read_persons(struct front *f);

/* Begins to stop: tells everybody, ends running answers with reason shutdown, leaves the loop when
 * they have ended and been sent, or 1.7 s later. A second call leaves at once. */
void front_stop(struct front *f, int exit_code);

#endif
