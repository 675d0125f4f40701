/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_RING_H
#define PIPIT_DAEMON_WORKER_RING_H

/* A ring between two threads: one pushes, one pops, fixed elements, no lock. The consumer may sleep
 * on `wake_fd` (an eventfd, pollable).
 *
 * Orderings. The producer writes a slot, then stores `tail` with release; the consumer loads `tail`
 * with acquire before it reads the slot, and stores `head` with release after it; the producer
 * loads `head` with acquire before it writes there again. Going to sleep: the consumer stores
 * `sleeping`, then looks at `tail` once more; the producer stores `tail`, then looks at `sleeping`.
 * Both pairs are sequentially consistent, so at least one of the two sees the other and no wake-up
 * is lost. */

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct ring {
    _Alignas(64) atomic_uint head; /* written by the consumer */
    _Alignas(64) atomic_uint tail; /* written by the producer */
    atomic_bool sleeping;          /* by both */
    uint32_t cap;                  /* a power of two */
    size_t elem_bytes;
    uint8_t *slots;
    int wake_fd;
};

int ring_init(struct ring *r, uint32_t cap, size_t elem_bytes, struct error *reterr) WARN_UNUSED;
void ring_finish(struct ring *r);

/* Producer. false: full. */
bool ring_push(struct ring *r, const void *elem);

/* Consumer. */
bool ring_pop(struct ring *r, void *ret);
bool ring_empty(const struct ring *r);
/* Before it sleeps on wake_fd: false when something came meanwhile (then it must not). */
bool ring_sleep(struct ring *r);
/* After it slept, or was told not to. */
void ring_awake(struct ring *r);
/* Both, with a blocking wait in between. */
void ring_wait(struct ring *r);
/* Any thread: the next ring_wait() returns at once, or the present one does. */
void ring_wake(struct ring *r);

#endif
