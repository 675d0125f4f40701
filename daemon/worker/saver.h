/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_SAVER_H
#define PIPIT_DAEMON_WORKER_SAVER_H

/* A session's way to the disk beside the steps of others. The worker thread, which alone may touch
 * the cache, copies slices of it between steps, which takes a tenth of their time; a thread of
 * its own sums, writes, syncs and renames. When the last slice is copied the sequence is
 * free; when the file has its name the answer's LANE_DONE is said. One save at a time; others wait
 * their turn and keep their pages.
 *
 *     worker ──slices──▶ ring ──▶ saver ──▶ file
 *     worker ◀──────────ring ◀── slices to be filled again, and the end
 *
 * The memory is that of N_SLICES slices, while something is saved. */

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/worker/ring.h"

struct job;
struct worker;
struct engine_event;

struct saver {
    struct worker *worker;
    pthread_t thread;
    bool has_thread;
    struct ring to_disk; /* struct saver_item */
    struct ring back;
    /* The worker thread's. */
    struct job *first;    /* being saved; behind it those that wait */
    uint8_t *slices;      /* (N_SLICES, slice_bytes) NULL: the first has not begun */
    uint32_t free_slices; /* bits */
    bool copied;          /* nothing more to copy: the sequence is released */
    uint64_t n_said; /* records of the worker's that are to be sent before the file has its name */
    /* Of both: written before it begins. */
    size_t slice_bytes;
    uint64_t block_bytes;
    char identity[64]; /* the model's: the engine may be gone when the saver has its turn */
    /* The saver's own. */
    int held; /* the slice that session_write() reads, or -1 */
};

int saver_init(struct saver *s, struct worker *w, struct error *reterr) WARN_UNUSED;
void saver_finish(struct saver *s); /* the thread must not run */

/* From inside the callback of the job's DONE: it is the saver's until its LANE_DONE is sent. On
 * failure it is the caller's still. */
int saver_take(struct saver *s, struct job *j, const struct engine_event *done,
               struct error *reterr) WARN_UNUSED;

/* Between steps that take step_ns each; 0: no step waits. True when the engine has a new free
 * sequence. */
bool saver_run(struct saver *s, int64_t step_ns);
bool saver_busy(const struct saver *s);

#endif
