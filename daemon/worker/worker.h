/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_WORKER_H
#define PIPIT_DAEMON_WORKER_WORKER_H

/* pipit-engine's main thread and its worker. The main thread does I/O with the front (io.h); the
 * worker thread owns the engine library, the device and all KV state. Between them two rings
 * (ring.h): commands in, records out. What else they share are the atomics below.
 *
 *     front ══socket══▶ io ──commands──▶ worker ──engine_step()──▶ events
 *     front ◀══socket══ io ◀──records──── worker ◀──────────────────┘
 */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/worker/figures.h"
#include "daemon/worker/loader.h"
#include "daemon/worker/ring.h"
#include "daemon/worker/saver.h"
#include "daemon/worker/texts.h"
#include "engine/engine.h"
#include "engine/text/chat.h"
#include "proto/lane/record.h"

struct job;
struct mapping;

/* io to worker: a record of the front; with LANE_ENGINE_LANE_OPEN the arenas, mapped. */
struct command {
    struct lane_record rec;
    uint8_t *c2e;
    uint8_t *e2c;
    int dir; /* with a LANE_ENGINE_REQUEST of a session: the user's folder; else -1 */
};

struct worker {
    /* Set before the thread starts. */
    struct engine_config config;
    int32_t answer_limit;   /* 0: none */
    size_t text_most;       /* bytes of a text that is tokenized at once */
    const uint8_t *journal; /* (journal_bytes) read-only */
    size_t journal_bytes;

    /* Shared. */
    struct ring commands;            /* struct command */
    struct ring records;             /* struct lane_record */
    _Atomic(struct engine *) engine; /* NULL until loaded */
    atomic_int_fast64_t step_ns;     /* when the running engine_step() began; 0: none runs */
    atomic_bool files;               /* a session's file is opened: a disk may take its time, */
    atomic_int_least64_t files_ns;   /* and when that was over */
    atomic_uint_fast64_t n_sent;     /* of the ring's records, those that the front's socket took */
    atomic_bool waits;               /* for clients: no step could do anything for any request */
    atomic_bool drain;               /* stop loading, end everything */
    atomic_bool tools_told;          /* that the template has no place for them */
    atomic_int exit_code;            /* -1 while the thread runs */

    /* The worker thread's own. */
    struct chat chat;
    const char *chat_template; /* file or name; NULL or empty: the model's own */
    const char *tool_format;   /* of calls_choose() */
    bool has_chat;
    struct error chat_error;
    struct job *jobs;
    uint32_t n_jobs;
    struct mapping *mappings;
    uint64_t n_said; /* records put into the ring */
    char *text;      /* scratch for one token's text */
    size_t text_bytes;
    int64_t took_ns;        /* a step of the last engine_step(), which may do many */
    uint64_t n_async_steps; /* of the engine's counters, as they were then */
    int64_t state_ns;       /* when the last LANE_ENGINE_STATE was sent */
    int64_t ready_ns;       /* since when it serves */
    bool is_checked;        /* the model's file and plan; what takes time has begun */
    uint32_t state_jobs;
    struct saver saver;
    struct loader loader;
    struct texts texts;
    struct figures figures;
    int64_t figures_ns; /* when they were last looked at */
};

int worker_init(struct worker *w, struct error *reterr) WARN_UNUSED;
void worker_finish(struct worker *w);

/* The thread: loads, serves until drained or the device is lost. */
void *worker_main(void *arg);

/* To the front; waits while the ring is full (the front reads always, or we die with it). */
void worker_send(struct worker *w, const struct lane_record *r);

/* A thread of the worker's own has something for it: it looks before it begins another step. Any
 * thread. */
void worker_wake(struct worker *w);

/* Waits until the front's socket has the first n_said records: it reads them also when we die. Any
 * thread. */
void worker_flush(const struct worker *w, uint64_t n_said);

struct plan;
/* Says so where the context is longer than what the model was trained on. */
void worker_warn_ctx(const struct plan *p);

/* The exit code for an engine that could not be created: 2 a setting, 4 does not fit, 6 the model.
 */
int worker_exit_code(int rc, const struct error *e);

#endif
