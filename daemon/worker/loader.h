/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_LOADER_H
#define PIPIT_DAEMON_WORKER_LOADER_H

/* A session's way from the disk beside the steps of others: a thread of its own reads the whole
 * file and checks its sums, while the request that asks for it waits; then the job is begun, and
 * the engine takes the cache in, which the page cache now has, in slices between steps
 * (engine/sched/sched.c). One file at a time, in the order of their requests.
 *
 * A job is in the worker's list all the while. The thread writes its session's text alone; the
 * worker thread reads what was set before (folder, principal, name: is a session in use?), which
 * nobody changes, and nothing else of it. A job that is told to end sets `load_stop`: the thread
 * looks at it every MiB, and one that still waits is taken out of the list.
 *
 * The thread runs until the process ends, so nothing here is ever freed. */

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

/* The job's session is open, its file not read yet: job_loaded() will be called. On failure nothing
 * is. */
int loader_take(struct loader *l, struct job *j, struct error *reterr) WARN_UNUSED;

/* Takes a job out that the thread does not have yet: then job_loaded() is not called. False: the
 * thread has it, or is through with it. */
bool loader_drop(struct loader *l, const struct job *j);

/* Between steps: begins the jobs whose files were read. True when there were any. */
bool loader_run(struct loader *l);
/* Would loader_run() find something? */
bool loader_ready(const struct loader *l);

#endif
