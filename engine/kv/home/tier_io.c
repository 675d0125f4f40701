/* SPDX-License-Identifier: Apache-2.0 */
/* A ring of jobs under one lock. A job is tens of microseconds of a disk's time and more, so a lock
 * and a wake-up do not show; what costs is waiting for the disk, which is what the threads are for.
 * pread and pwrite on some threads keep as many requests at the device as there are threads. */

#include "engine/kv/home/tier_io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"

enum { QUEUE = 4096 };

struct tier_io {
    int fd;
    struct tier_calls calls;
    pthread_t threads[TIER_THREADS];
    int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work; /* there is a job, or an end */
    pthread_cond_t done; /* a group is through, or there is room */
    bool stop;
    bool full;      /* somebody waits for room */
    uint32_t first; /* jobs [first, last) wait */
    uint32_t last;
    int32_t pending[TIER_GROUPS]; /* waiting or begun */
    struct tier_job *jobs;        /* (QUEUE) */
    struct error *failed;         /* (n_seqs): code 0: none */
    int32_t n_seqs;
};

static size_t lay(struct memory_arena *a, int32_t n_seqs, struct tier_io *io)
{
    io->jobs = memory_arena_take(a, QUEUE * sizeof(*io->jobs));
    io->failed = memory_arena_take(a, (size_t)n_seqs * sizeof(*io->failed));
    return a->used;
}

static size_t host_bytes(int32_t n_seqs)
{
    struct tier_io io;

    return lay(&(struct memory_arena){0}, n_seqs, &io);
}

uint64_t tier_io_bytes(int32_t n_seqs)
{
    return memory_rounded(host_bytes(n_seqs));
}

/* ---- threads --------------------------------------------------------------------------------- */

static ssize_t read_file(void *arg, int fd, void *to, size_t n, off_t at)
{
    (void)arg;
    return pread(fd, to, n, at);
}

static ssize_t write_file(void *arg, int fd, const void *from, size_t n, off_t at)
{
    (void)arg;
    return pwrite(fd, from, n, at);
}

/* All of a job; 0 or a negative errno. */
static int run_job(const struct tier_io *io, const struct tier_job *j, size_t *ret_done)
{
    size_t done = 0;

    while (done < j->bytes) {
        uint8_t *p = (uint8_t *)j->memory + done;
        off_t at = (off_t)(j->at + done);
        ssize_t n = j->write ? io->calls.write(io->calls.arg, io->fd, p, j->bytes - done, at)
                             : io->calls.read(io->calls.arg, io->fd, p, j->bytes - done, at);

        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            *ret_done = done;
            return n < 0 ? -errno : -EIO;
        }
        done += (size_t)n;
    }
    *ret_done = done;
    return 0;
}

static void note(struct tier_io *io, const struct tier_job *j, int r, size_t done)
{
    struct error *e = &io->failed[j->seq];

    if (e->code == 0) {
        (void)error_set(e, r, "the file of keys and values: %zu of %u bytes %s at %" PRIu64 ": %s",
                        done, j->bytes, j->write ? "written" : "read", j->at, strerror(-r));
    }
}

static void *serve(void *arg)
{
    struct tier_io *io = arg;

    pthread_mutex_lock(&io->lock);
    for (;;) {
        while (io->first == io->last && !io->stop) {
            pthread_cond_wait(&io->work, &io->lock);
        }
        if (io->first == io->last) {
            break;
        }
        struct tier_job j = io->jobs[io->first++ % QUEUE];
        size_t done;

        pthread_mutex_unlock(&io->lock);
        int r = run_job(io, &j, &done);

        pthread_mutex_lock(&io->lock);
        if (r) {
            note(io, &j, r, done);
        }
        io->pending[j.group]--;
        if (io->pending[j.group] == 0 || io->full) {
            io->full = false;
            pthread_cond_broadcast(&io->done);
        }
    }
    pthread_mutex_unlock(&io->lock);
    return NULL;
}

void tier_io_give(struct tier_io *io, const struct tier_job *job)
{
    pthread_mutex_lock(&io->lock);
    while (io->last - io->first == QUEUE) {
        io->full = true;
        pthread_cond_wait(&io->done, &io->lock);
    }
    io->jobs[io->last++ % QUEUE] = *job;
    io->pending[job->group]++;
    pthread_cond_signal(&io->work);
    pthread_mutex_unlock(&io->lock);
}

void tier_io_wait(struct tier_io *io, int group)
{
    pthread_mutex_lock(&io->lock);
    while (io->pending[group] > 0) {
        pthread_cond_wait(&io->done, &io->lock);
    }
    pthread_mutex_unlock(&io->lock);
}

bool tier_io_idle(struct tier_io *io, int group)
{
    pthread_mutex_lock(&io->lock);
    bool idle = io->pending[group] == 0;

    pthread_mutex_unlock(&io->lock);
    return idle;
}

int tier_io_failed(struct tier_io *io, int32_t seq, struct error *ret)
{
    pthread_mutex_lock(&io->lock);
    struct error e = io->failed[seq];

    pthread_mutex_unlock(&io->lock);
    if (e.code) {
        *ret = e;
    }
    return e.code;
}

void tier_io_forget(struct tier_io *io, int32_t seq)
{
    pthread_mutex_lock(&io->lock);
    io->failed[seq] = (struct error){0};
    pthread_mutex_unlock(&io->lock);
}

/* ---- the file -------------------------------------------------------------------------------- */

static int open_file(struct tier_io *io, const char *dir, uint64_t bytes, struct error *reterr)
{
    char path[4096];
    int n = snprintf(path, sizeof(path), "%s/pipit-kv-XXXXXX", dir);

    if (n < 0 || (size_t)n >= sizeof(path)) {
        return error_set(reterr, -ENAMETOOLONG, "%s: too long a name", dir);
    }
    io->fd = mkostemp(path, O_CLOEXEC);
    if (io->fd < 0) {
        return error_set_errno(reterr, -errno, "%s: no file for keys and values", dir);
    }
    (void)unlink(path);
    int r = posix_fallocate(io->fd, 0, (off_t)bytes);

    if (r) {
        return error_set(reterr, -r, "%s: no room for %" PRIu64 " MiB of keys and values: %s", dir,
                         (bytes >> 20) + 1, strerror(r));
    }
    int flags = fcntl(io->fd, F_GETFL);

    (void)fcntl(io->fd, F_SETFL, flags | O_DIRECT); /* else through the page cache */
    return 0;
}

int tier_io_create(const char *dir, uint64_t bytes, int32_t n_seqs, const struct tier_calls *calls,
                   struct tier_io **ret, struct error *reterr)
{
    struct tier_io *io = calloc(1, sizeof(*io));
    void *host = NULL;

    if (!io) {
        return error_set(reterr, -ENOMEM, "cache file: no memory");
    }
    io->fd = -1;
    io->n_seqs = n_seqs;
    io->calls = calls ? *calls : (struct tier_calls){.read = read_file, .write = write_file};
    (void)pthread_mutex_init(&io->lock, NULL);
    (void)pthread_cond_init(&io->work, NULL);
    (void)pthread_cond_init(&io->done, NULL);
    int r = memory_map(host_bytes(n_seqs), "jobs of the cache file", &host, reterr);

    if (!r) {
        (void)lay(&(struct memory_arena){.base = host, .size = host_bytes(n_seqs)}, n_seqs, io);
        r = open_file(io, dir, bytes, reterr);
    }
    while (!r && io->n_threads < TIER_THREADS) {
        r = -pthread_create(&io->threads[io->n_threads], NULL, serve, io);
        if (r) {
            (void)error_set_errno(reterr, r, "threads of the cache file");
        } else {
            io->n_threads++;
        }
    }
    if (r) {
        tier_io_destroy(io);
        return r;
    }
    *ret = io;
    return 0;
}

void tier_io_destroy(struct tier_io *io)
{
    if (!io) {
        return;
    }
    pthread_mutex_lock(&io->lock);
    io->stop = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->lock);
    for (int i = 0; i < io->n_threads; i++) {
        (void)pthread_join(io->threads[i], NULL);
    }
    if (io->fd >= 0) {
        (void)close(io->fd);
    }
    memory_unmap(io->jobs, host_bytes(io->n_seqs)); /* the arena's first */
    (void)pthread_cond_destroy(&io->work);
    (void)pthread_cond_destroy(&io->done);
    (void)pthread_mutex_destroy(&io->lock);
    free(io);
}
