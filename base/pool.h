/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_POOL_H
#define PIPIT_BASE_POOL_H

/* A pool of threads that all run the same function on disjoint pieces of one job.
 *
 * pool_run() calls fn(arg, tid, n_threads) once on every thread, the caller being tid 0, and returns
 * when all have returned. Workers wait by spinning briefly, then sleep on a futex, so an idle pool
 * costs nothing and a busy one under 2 us a run. Pieces are taken either by tid or, where cores
 * are unequal, from a `struct pool_counter` in small blocks.
 *
 * Results never depend on n_threads: a piece is whole output rows (or whole, fixed chunks of a
 * context), never a part of a sum.
 *
 * One thread calls pool_run at a time. fn must not call pool_run. */

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
