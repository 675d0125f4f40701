/* SPDX-License-Identifier: Apache-2.0 */
/* Thread pool on three gates. A gate is a generation number that waiters compare with the one they
 * saw: opening it means adding 1. Waiters spin on it for a short time (jobs of one token follow
 * each other within microseconds), then sleep on it as a futex.
 *
 *     start    caller opens it, workers wait     a job is there (fn, arg written before)
 *     done     last worker opens it, caller waits   all pieces are finished
 *     barrier  last to arrive opens it              see pool_barrier()
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

struct worker {
    struct pool *pool;
    pthread_t thread;
    int tid;
};

struct pool {
    struct gate start;
    struct gate done;
    struct gate barrier;
    _Alignas(64) atomic_int unfinished; /* workers still in fn */
    _Alignas(64) atomic_int arrived;    /* threads at the barrier */
    _Alignas(64) pool_fn *fn;           /* written before start opens; NULL ends the workers */
    void *arg;
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

static bool gate_passed(struct gate *g, unsigned seen)
{
    return atomic_load_explicit(&g->generation, memory_order_acquire) != seen;
}

/* Returns once the generation is no longer `seen`; what the opener wrote before is visible. */
static void gate_wait(struct gate *g, unsigned seen, int64_t spin_ns)
{
    int64_t until = 0;

    /* The clock is read every 32nd time round: it costs as much as a pause. */
    for (unsigned n = 1; !gate_passed(g, seen); n++) {
        relax();
        if (n % 32 == 0) {
            int64_t now = clock_ns();

            if (until == 0) {
                until = now + spin_ns;
            } else if (now > until) {
                break;
            }
        }
    }
    if (gate_passed(g, seen)) {
        return;
    }
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

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct pool *pool = w->pool;

    for (unsigned seen = 0;; seen++) {
        gate_wait(&pool->start, seen, pool->spin_ns);
        if (!pool->fn) {
            return NULL;
        }
        pool->fn(pool->arg, w->tid, pool->n_threads);
        if (atomic_fetch_sub_explicit(&pool->unfinished, 1, memory_order_acq_rel) == 1) {
            gate_open(&pool->done);
        }
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
    pool->spin_ns = n_threads > cpus ? SPIN_CROWDED_NS : SPIN_NS;
    r = start_workers(pool, reterr);
    if (r < 0) {
        pool_destroy(pool);
        return r;
    }
    *ret = pool;
    return 0;
}

void pool_destroy(struct pool *pool)
{
    if (!pool) {
        return;
    }
    pool->fn = NULL;
    gate_open(&pool->start);
    for (int i = 0; i < pool->n_started; i++) {
        (void)pthread_join(pool->workers[i].thread, NULL);
    }
    free(pool);
}

int pool_n_threads(const struct pool *pool)
{
    return pool->n_threads;
}

void pool_run(struct pool *pool, pool_fn *fn, void *arg)
{
    unsigned seen;

    if (pool->n_threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    seen = atomic_load_explicit(&pool->done.generation, memory_order_relaxed);
    pool->fn = fn;
    pool->arg = arg;
    atomic_store_explicit(&pool->unfinished, pool->n_threads - 1, memory_order_relaxed);
    gate_open(&pool->start);
    fn(arg, 0, pool->n_threads);
    gate_wait(&pool->done, seen, pool->spin_ns);
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
