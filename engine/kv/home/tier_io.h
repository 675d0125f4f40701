/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_KV_HOME_TIER_IO_H
#define PIPIT_ENGINE_KV_HOME_TIER_IO_H

/* One unlinked, preallocated file and the threads that read and write it.
 *
 * Jobs are begun in the order they were given, some at a time (as many as there are threads), and
 * belong to a group that can be waited for. What fails is noted for the sequence whose bytes they are,
 * the first cause; its later jobs go on. Reads and writes are whole blocks of TIER_BLOCK bytes in memory
 * aligned to that, past the page cache where the file system allows it.
 *
 * Creator: tier_io_create; freed by tier_io_destroy. One thread gives jobs and waits. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum { TIER_BLOCK = 4096, TIER_THREADS = 4, TIER_GROUPS = 8 };

/* How bytes go to and from the file: tests and measurements have their own. */
struct tier_calls {
    ssize_t (*read)(void *arg, int fd, void *to, size_t n, off_t at);
    ssize_t (*write)(void *arg, int fd, const void *from, size_t n, off_t at);
    void *arg;
};

struct tier_job {
    uint64_t at; /* in the file */
    void *memory;
    uint32_t bytes;
    int16_t seq;
    uint8_t group;
    bool write;
};

struct tier_io;

/* Memory that it takes, but for its threads' stacks. */
uint64_t tier_io_bytes(int32_t n_seqs);

/* The directory's file system must have room: -ENOSPC with the numbers. calls NULL: the system's. */
int tier_io_create(const char *dir, uint64_t bytes, int32_t n_seqs, const struct tier_calls *calls,
                   struct tier_io **ret, struct error *reterr) WARN_UNUSED;
void tier_io_destroy(struct tier_io *io); /* takes NULL */

/* Waits while the queue is full. */
void tier_io_give(struct tier_io *io, const struct tier_job *job);
/* Until no job of the group is left. */
void tier_io_wait(struct tier_io *io, int group);
/* Is none left? */
bool tier_io_idle(struct tier_io *io, int group);
/* A negative errno with the cause, where a job of the sequence failed since it was forgotten; or 0. */
int tier_io_failed(struct tier_io *io, int32_t seq, struct error *ret);
void tier_io_forget(struct tier_io *io, int32_t seq);

#endif
