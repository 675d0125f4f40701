/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_TEXTS_H
#define PIPIT_DAEMON_WORKER_TEXTS_H

/* Everything that reads texts has a thread of its own, so that no step waits for a text. Prompts
 * become ids there and go back to the worker. Requests that need the tokenizer and no device are
 * read, computed and said. One text at a time, in turns by person (turns.h). A short prompt also
 * goes between two records of what is being said. The records have a ring of their own to the I/O
 * thread, which sends the worker's first.
 *
 * A long text that is only to be counted or converted is read by a second thread, which is nicer
 * than the first, while the first waits: who waits for a token goes before it. One thread could not
 * do both, since a process without privileges may not take its own niceness back.
 *
 * A job is in the worker's list all the while, which holds its lane's arenas; the thread touches
 * nothing else of the worker's. One that is told to end sets `load_stop`: the thread looks at it
 * before it begins and before each record.
 *
 * Health: `since_ns` is the thread's last sign of life in the text that it reads. The I/O thread
 * tells the front of one that gives none (texts_stuck_ms), which then treats it as a step that does
 * not end.
 *
 * The threads run until the process ends, so nothing here is ever freed. */

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#include "base/error.h"
#include "daemon/worker/pace.h"
#include "daemon/worker/ring.h"
#include "daemon/worker/turns.h"

struct job;
struct worker;

/* Where a thread's CPU time and state can be looked up. */
struct texts_self {
    pid_t tid;
    clockid_t clock;
};

struct texts {
    struct worker *worker;
    pthread_t thread;
    bool has_thread;
    struct ring jobs;    /* struct job *, from the worker */
    struct ring back;    /* the same, to it */
    struct ring records; /* struct lane_record */

    /* Of the thread that reads; while the second one does, its. */
    struct turns turns;
    uint32_t n_said;    /* records of the job that is being said */
    int64_t longest_ns; /* in which it gave no sign of life */
    struct texts_self self;
    struct texts_self slow_self;
    pthread_t slow;
    bool has_slow;
    struct job *slow_job;
    sem_t slow_go;
    sem_t slow_done;

    /* Read by the I/O thread. */
    atomic_int_least64_t since_ns; /* 0: no text is read */
    struct pace pace;
    _Atomic(const struct texts_self *) who;
    int64_t seen_ns;     /* that thread's own: `since_ns` when it looked last, */
    int64_t seen_cpu_ns; /* and the reader's CPU time when it saw that first */
};

int texts_init(struct texts *t, struct worker *w, struct error *reterr) WARN_UNUSED;

/* A job that only tokenizes or detokenizes will be answered and freed. Of another the prompt, or
 * what it adds to its session, becomes ids; job_read() goes on with it. On failure the job is the
 * caller's still. */
int texts_take(struct texts *t, struct job *j, struct error *reterr) WARN_UNUSED;

/* Between steps: frees the jobs that were answered, and goes on with those that have their ids.
 * True when there were any of the latter. */
bool texts_run(struct texts *t);
/* Would texts_run() find something? */
bool texts_ready(const struct texts *t);

/* The I/O thread's look, about once a second: how long the reader has given no sign of life, as in
 * struct lane_engine_state. */
uint32_t texts_stuck_ms(struct texts *t, int64_t now);

#endif
