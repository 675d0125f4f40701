/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_LIGHT_H
#define PIPIT_DAEMON_WORKER_LIGHT_H

/* Everything that reads texts has a thread of its own, so that no step waits for a text. Prompts
 * become ids there (light_prompt) and go back to the worker. Requests that need the tokenizer and
 * no device are read, computed and said (light_take), one after the other in the order in which the
 * front sent them; prompts go before, and between two of their records. Their records have a ring
 * of their own to the I/O thread, which sends the worker's first.
 *
 * A job is in the worker's list all the while, which holds its lane's arenas; the thread touches
 * nothing else of the worker's. One that is told to end sets `load_stop`: the thread looks at it
 * before it begins and before each record.
 *
 * The thread runs until the process ends, so nothing here is ever freed. */

#include <pthread.h>
#include <stdbool.h>

#include "base/error.h"
#include "daemon/worker/ring.h"

struct job;
struct worker;

struct light {
    struct worker *worker;
    pthread_t thread;
    bool has_thread;
    struct ring jobs;    /* struct job * */
    struct ring prompts; /* struct job *, of those that wait for their ids */
    struct ring back;
    struct ring records; /* struct lane_record */
};

int light_init(struct light *l, struct worker *w, struct error *reterr) WARN_UNUSED;

/* The job will be answered and freed; on failure it is the caller's still. */
int light_take(struct light *l, struct job *j, struct error *reterr) WARN_UNUSED;

/* The job's prompt, or what it adds to its session, becomes ids; job_read() goes on with it. */
int light_prompt(struct light *l, struct job *j, struct error *reterr) WARN_UNUSED;

/* Between steps: frees the jobs that were answered, and goes on with those that have their ids.
 * True when there were any of the latter. */
bool light_run(struct light *l);
/* Would light_run() find something? */
bool light_ready(const struct light *l);

#endif
