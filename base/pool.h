/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_POOL_H
#define PIPIT_BASE_POOL_H

/* A pool of threads that all run the same function on disjoint pieces of one job.
 *
 * pool_run() calls fn(arg, tid, n_threads) once on every thread, the caller being tid 0, and
 * returns when all have returned. Workers wait by spinning briefly, then sleep on a futex, so an
 * idle pool costs nothing and a busy one under 2 us a run. pool_share() is pool_run() for work that
 * any of the threads can do alone: who comes late, because others took its CPU, is not waited for.
 *
 * Pieces are taken by tid, from a `struct pool_counter`, or from shares: thread t's share is a
 * stretch of its own, which it takes in order (a stream of weights stays one stream), and what is
 * left of it others take when theirs is done.
 *
 * Results never depend on n_threads: a piece is whole output rows (or whole, fixed chunks of a
 * context), never a part of a sum.
 *
 * One thread calls pool_run or pool_share at a time. fn must not call them. */

#include <stdatomic.h>
#include <stdint.h>

#include "base/error.h"

struct pool;

typedef void pool_fn(void *arg, int tid, int n_threads);

/* n_threads >= 1, the caller included; 0: as many as the CPUs this process may use (affinity and
 * cgroup quota, base/cpu.h). -ENOMEM, -EINVAL, -EAGAIN. */
int pool_create(int n_threads, struct pool **ret, struct error *reterr) WARN_UNUSED;
void pool_destroy(struct pool *pool); /* takes NULL */
int pool_n_threads(const struct pool *pool);
void pool_run(struct pool *pool, pool_fn *fn, void *arg);

/* The same, but only the caller is certain to run fn, and nobody runs it twice: fn takes its work
 * from counters or shares until none is left, and has no barriers. */
void pool_share(struct pool *pool, pool_fn *fn, void *arg);

/* In fn: thread tid takes pieces of a share that has n: the first one's index in the share, or -1
 * when it is to take none; *ret_n says how many. `grain` (at least 1): so many pieces are worth a
 * change of threads. The share's own thread takes at least so many at once; others take nothing
 * while it is at work and has no more left. Every share starts anew with every job. */
int32_t pool_take(struct pool *pool, int tid, int share, int32_t n, int32_t grain, int32_t *ret_n);

/* Between two steps of one fn: all threads of the run arrive before any leaves. */
void pool_barrier(struct pool *pool, int tid);

/* Work in blocks: each call hands out the next index of [0, n), or n when none is left. */
struct pool_counter {
    _Alignas(64) atomic_int next;
};

static inline int pool_counter_take(struct pool_counter *c)
{
    return atomic_fetch_add_explicit(&c->next, 1, memory_order_relaxed);
}

#endif
