/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_LOADER_H
#define PIPIT_DAEMON_WORKER_LOADER_H

/* A session's way from the disk beside the steps of others: a thread of its own reads the whole
 * file and checks its sums, while the request that asks for it waits; then the job is begun, and
 * the engine takes the cache in, which the page cache now has, in slices between steps
 * (engine/sched/sched.c). One file at a time, in the order of their requests.
 *
 * A job is in the worker's list all the while; nobody but the thread touches its session. */

#include <pthread.h>
#include <stdbool.h>

#include "daemon/worker/ring.h"

struct job;
struct worker;

struct loader {
    struct worker *worker;
    pthread_t thread;
    bool has_thread;
    struct ring to_disk; /* struct job * */
    struct ring back;
    struct job *first; /* with the thread; behind it those that wait */
};

int loader_init(struct loader *l, struct worker *w, struct error *reterr) WARN_UNUSED;
void loader_finish(struct loader *l); /* the thread must not run */

/* The job's session is open, its file not read yet: job_loaded() will be called. On failure nothing
 * is. */
int loader_take(struct loader *l, struct job *j, struct error *reterr) WARN_UNUSED;

/* Between steps: begins the jobs whose files were read. True when there were any. */
bool loader_run(struct loader *l);
/* Would loader_run() find something? */
bool loader_ready(const struct loader *l);

#endif
