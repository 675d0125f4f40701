/* SPDX-License-Identifier: Apache-2.0 */
/* Thread pool on three gates. A gate is a generation number that waiters compare with the one they
 * saw: opening it means adding 1. Waiters spin on it for a short time (jobs of one token follow
 * each other within microseconds), then sleep on it as a futex.
 *
 *     start    caller opens it, workers wait        there may be a job
 *     done     last worker opens it, caller sleeps  all pieces are finished
 *     barrier  last to arrive opens it              see pool_barrier()
 *
 * Whether there is a job, and who is in it, says one word, `entry`: the job's number and how many
 * workers have not left it. In pool_run() all workers are counted from the start. In pool_share()
 * a worker counts itself in, if the caller has not closed the job yet: the caller closes it when it
 * finds no more work, and waits for those inside only: spinning on the word, then asleep. A worker
 * reads fn and arg after it is counted, and the caller writes them when nobody is, so the word
 * orders them.
 *
 * A share's word holds the job's number too: what is left over from another job counts as 0, and
 * nobody has to clear the shares between jobs.
 *
 * No wake-up is lost: a waiter counts itself as a sleeper before the kernel compares the
 * generation, the opener changes the generation before it reads the sleepers, both sequentially
 * consistent, so at least one of them sees the other. An opener that sees no sleeper makes no
 * system call.
 *
 * With more threads than CPUs spinning only keeps the others from running, so it is cut short.
 * Workers block all signals: they belong to the program's own threads. */

#include "base/pool.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"

#define MAX_THREADS 1024
#define SPIN_NS                                                                                    \
    50000 /* longer than the pause between two jobs of a token, shorter than a sleep               \
           */
#define SPIN_CROWDED_NS 1000

struct gate {
    _Alignas(64) atomic_uint generation;
    atomic_int sleepers;
};

/* pool.entry: job number << 32 | flags | workers inside */
#define ENTRY_CLOSED 0x80000000u /* nobody counts itself in */
#define ENTRY_ALL 0x40000000u    /* all workers are counted */
#define ENTRY_WAKE 0x20000000u   /* the caller sleeps: the last to leave opens `done` */
#define ENTRY_INSIDE 0xffffu

struct share {
    _Alignas(64) atomic_uint_least64_t taken; /* job number << 32 | SHARE_OWNED | pieces taken */
};

#define SHARE_OWNED 0x80000000u /* its own thread is at work */

struct worker {
    struct pool *pool;
    pthread_t thread;
    int tid;
};

struct pool {
    struct gate start;
    struct gate done;
    struct gate barrier;
    _Alignas(64) atomic_int arrived; /* threads at the barrier */
    _Alignas(64) atomic_uint_least64_t entry;
    pool_fn *fn; /* NULL ends the workers */
    void *arg;
    uint32_t job;         /* number of the last one */
    struct share *shares; /* (n_threads) */
    int n_threads;
    int n_started; /* worker threads that exist */
    int64_t spin_ns;
    struct worker workers[];
};

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is a no-op on most cores */
#endif
}

static void futex_wait(atomic_uint *word, unsigned seen)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

static void futex_wake_all(atomic_uint *word)
{
    (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* Limits spinning: the clock is read every 32nd time round, as it costs as much as a pause. */
struct patience {
    unsigned n;
    int64_t until;
};

static bool wait_more(struct patience *p, int64_t spin_ns)
{
    relax();
    if (++p->n % 32 == 0) {
        int64_t now = clock_ns();

        if (p->until == 0) {
            p->until = now + spin_ns;
        }
        return now < p->until;
    }
    return true;
}

/* Returns once the generation is no longer `seen`; what the opener wrote before is visible. */
static void gate_wait(struct gate *g, unsigned seen, int64_t spin_ns)
{
    struct patience p = {0};

    do {
        if (atomic_load_explicit(&g->generation, memory_order_acquire) != seen) {
            return;
        }
    } while (wait_more(&p, spin_ns));
    atomic_fetch_add(&g->sleepers, 1);
    while (atomic_load(&g->generation) == seen) {
        futex_wait(&g->generation, seen);
    }
    atomic_fetch_sub(&g->sleepers, 1);
}

static void gate_open(struct gate *g)
{
    atomic_fetch_add(&g->generation, 1);
    if (atomic_load(&g->sleepers) > 0) {
        futex_wake_all(&g->generation);
    }
}

/* Counts the worker into the job, unless it was in it before or comes too late. */
static bool enter(struct pool *pool, uint32_t *last)
{
    uint_least64_t e = atomic_load_explicit(&pool->entry, memory_order_acquire);

    for (;;) {
        if ((uint32_t)(e >> 32) == *last) {
            return false;
        }
        if (e & ENTRY_ALL) {
            break;
        }
        if (e & ENTRY_CLOSED) {
            return false;
        }
        if (atomic_compare_exchange_weak_explicit(&pool->entry, &e, e + 1, memory_order_acq_rel,
                                                  memory_order_acquire)) {
            break;
        }
    }
    *last = (uint32_t)(e >> 32);
    return true;
}

static void leave(struct pool *pool)
{
    uint_least64_t e = atomic_fetch_sub_explicit(&pool->entry, 1, memory_order_acq_rel);

    if ((e & ENTRY_INSIDE) == 1 && e & ENTRY_WAKE) {
        gate_open(&pool->done);
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *pool = w->pool;
    uint32_t last = 0;
    unsigned seen = 0;

    for (;;) {
        gate_wait(&pool->start, seen, pool->spin_ns);
        /* Read before `entry`: a job that begins in between opens the gate once more. */
        seen = atomic_load(&pool->start.generation);
        if (!enter(pool, &last)) {
            continue;
        }
        if (!pool->fn) {
            return NULL;
        }
        pool->fn(pool->arg, w->tid, pool->n_threads);
        leave(pool);
    }
}

static int start_workers(struct pool *pool, struct error *reterr)
{
    sigset_t all;
    sigset_t old;
    int r = 0;

    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int tid = 1; tid < pool->n_threads && r == 0; tid++) {
        struct worker *w = &pool->workers[tid - 1];

        *w = (struct worker){.pool = pool, .tid = tid};
        r = pthread_create(&w->thread, NULL, worker_main, w);
        if (r == 0) {
            pool->n_started++;
        }
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r != 0) {
        return error_set_errno(reterr, -r, "cannot start thread %d of %d", pool->n_started + 2,
                               pool->n_threads);
    }
    return 0;
}

int pool_create(int n_threads, struct pool **ret, struct error *reterr)
{
    int cpus = cpu_count();
    struct pool *pool;
    size_t bytes;
    int r;

    if (n_threads < 0 || n_threads > MAX_THREADS) {
        return error_set(reterr, -EINVAL, "threads: %d is not in 0..%d", n_threads, MAX_THREADS);
    }
    if (n_threads == 0) {
        n_threads = cpus < MAX_THREADS ? cpus : MAX_THREADS;
    }
    bytes = sizeof(*pool) + (size_t)(n_threads - 1) * sizeof(struct worker);
    bytes = (bytes + 63) & ~(size_t)63;
    pool = aligned_alloc(64, bytes);
    if (!pool) {
        return error_set(reterr, -ENOMEM, "no memory for a pool of %d threads", n_threads);
    }
    memset(pool, 0, bytes);
    pool->n_threads = n_threads;
    pool->shares = aligned_alloc(64, (size_t)n_threads * sizeof(*pool->shares));
    if (!pool->shares) {
        pool_destroy(pool);
        return error_set(reterr, -ENOMEM, "no memory for a pool of %d threads", n_threads);
    }
    memset(pool->shares, 0, (size_t)n_threads * sizeof(*pool->shares));
    pool->spin_ns = n_threads > cpus ? SPIN_CROWDED_NS : SPIN_NS;
    r = start_workers(pool, reterr);
    if (r < 0) {
        pool_destroy(pool);
        return r;
    }
    *ret = pool;
    return 0;
}

/* Makes (fn, arg) the job that workers find. */
static void begin(struct pool *pool, pool_fn *fn, void *arg, uint32_t flags)
{
    pool->fn = fn;
    pool->arg = arg;
    pool->job = pool->job == UINT32_MAX ? 1 : pool->job + 1; /* 0 is no job */
    atomic_store_explicit(&pool->entry, (uint_least64_t)pool->job << 32 | flags,
                          memory_order_release);
    gate_open(&pool->start);
}

void pool_destroy(struct pool *pool)
{
    if (!pool) {
        return;
    }
    begin(pool, NULL, NULL, ENTRY_ALL);
    for (int i = 0; i < pool->n_started; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool->shares);
    free(pool);
}

int pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

/* Until all who are in the job have left it. */
static void wait_for_others(struct pool *pool)
{
    unsigned seen = atomic_load_explicit(&pool->done.generation, memory_order_relaxed);
    uint_least64_t e;
    struct patience p = {0};

    do {
        e = atomic_load_explicit(&pool->entry, memory_order_acquire);
    } while (e & ENTRY_INSIDE && wait_more(&p, pool->spin_ns));
    if (e & ENTRY_INSIDE &&
        atomic_fetch_or_explicit(&pool->entry, ENTRY_WAKE, memory_order_acq_rel) & ENTRY_INSIDE) {
        gate_wait(&pool->done, seen, 0);
    }
}

void pool_run(struct pool *pool, pool_fn *fn, void *arg)
{
    begin(pool, fn, arg, ENTRY_ALL | ENTRY_CLOSED | (uint32_t)(pool->n_threads - 1));
    fn(arg, 0, pool->n_threads);
    wait_for_others(pool);
}

void pool_share(struct pool *pool, pool_fn *fn, void *arg)
{
    begin(pool, fn, arg, 0);
    fn(arg, 0, pool->n_threads);
    if (atomic_fetch_or_explicit(&pool->entry, ENTRY_CLOSED, memory_order_acq_rel) & ENTRY_INSIDE) {
        wait_for_others(pool);
    }
}

int32_t pool_take(struct pool *pool, int tid, int share, int32_t n, int32_t grain, int32_t *ret_n)
{
    atomic_uint_least64_t *taken = &pool->shares[share].taken;
    uint_least64_t job = atomic_load_explicit(&pool->entry, memory_order_relaxed) >> 32 << 32;
    uint_least64_t word = atomic_load_explicit(taken, memory_order_relaxed);

    for (;;) {
        uint32_t state = word >> 32 << 32 == job ? (uint32_t)word : 0;
        uint32_t owned = tid == share ? SHARE_OWNED : state & SHARE_OWNED;
        int32_t first = (int32_t)(state & ~SHARE_OWNED);
        int32_t left = n - first;
        int32_t take = left / 4 < 4 * grain ? left / 4 : 4 * grain;

        if (left <= 0 || (tid != share && owned && left <= grain)) {
            return -1;
        }
        take = take > grain ? take : grain;
        take = take < left ? take : left;
        if (atomic_compare_exchange_weak_explicit(taken, &word,
                                                  job | owned | (uint32_t)(first + take),
                                                  memory_order_relaxed, memory_order_relaxed)) {
            *ret_n = take;
            return first;
        }
    }
}

void pool_barrier(struct pool *pool, int tid)
{
    struct gate *g = &pool->barrier;
    unsigned seen = atomic_load_explicit(&g->generation, memory_order_relaxed);

    (void)tid;
    /* `seen` cannot be stale: the barrier opens only after this thread has arrived. */
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->n_threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        gate_open(g);
    } else {
        gate_wait(g, seen, pool->spin_ns);
    }
}
