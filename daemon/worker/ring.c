/* SPDX-License-Identifier: Apache-2.0 */
/* Single producer, single consumer; indices run freely and wrap by unsigned arithmetic. */

#include "daemon/worker/ring.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"

int ring_init(struct ring *r, uint32_t cap, size_t elem_bytes, struct error *reterr)
{
    memset(r, 0, sizeof(*r));
    r->cap = cap;
    r->elem_bytes = elem_bytes;
    r->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (r->wake_fd < 0) {
        return error_set_errno(reterr, -errno, "cannot create an eventfd");
    }
    r->slots = calloc(cap, elem_bytes);
    if (!r->slots) {
        close_fd(&r->wake_fd);
        return error_set(reterr, -ENOMEM, "no memory for the threads' ring");
    }
    return 0;
}

void ring_finish(struct ring *r)
{
    free(r->slots);
    r->slots = NULL;
    close_fd(&r->wake_fd);
}

static uint8_t *slot(const struct ring *r, unsigned i)
{
    return r->slots + (size_t)(i & (r->cap - 1)) * r->elem_bytes;
}

bool ring_push(struct ring *r, const void *elem)
{
    unsigned tail = atomic_load_explicit(&r->tail, memory_order_relaxed);
    uint64_t one = 1;

    if (tail - atomic_load_explicit(&r->head, memory_order_acquire) == r->cap) {
        return false;
    }
    memcpy(slot(r, tail), elem, r->elem_bytes);
    atomic_store_explicit(&r->tail, tail + 1, memory_order_seq_cst);
    if (atomic_load_explicit(&r->sleeping, memory_order_seq_cst) &&
        atomic_exchange_explicit(&r->sleeping, false, memory_order_seq_cst) &&
        write(r->wake_fd, &one, sizeof(one)) < 0) {
        /* The counter is at its maximum: the consumer is woken anyway. */
        return true;
    }
    return true;
}

bool ring_pop(struct ring *r, void *ret)
{
    unsigned head = atomic_load_explicit(&r->head, memory_order_relaxed);

    if (head == atomic_load_explicit(&r->tail, memory_order_acquire)) {
        return false;
    }
    memcpy(ret, slot(r, head), r->elem_bytes);
    atomic_store_explicit(&r->head, head + 1, memory_order_release);
    return true;
}

bool ring_empty(const struct ring *r)
{
    return atomic_load_explicit(&r->head, memory_order_relaxed) ==
           atomic_load_explicit(&r->tail, memory_order_seq_cst);
}

bool ring_sleep(struct ring *r)
{
    atomic_store_explicit(&r->sleeping, true, memory_order_seq_cst);
    return ring_empty(r);
}

void ring_awake(struct ring *r)
{
    uint64_t n;

    atomic_store_explicit(&r->sleeping, false, memory_order_seq_cst);
    if (read(r->wake_fd, &n, sizeof(n)) < 0) {
        /* Nobody had woken us. */
        return;
    }
}

void ring_wait(struct ring *r)
{
    struct pollfd p = {.fd = r->wake_fd, .events = POLLIN};

    if (ring_sleep(r)) {
        (void)poll(&p, 1, -1);
    }
    ring_awake(r);
}

void ring_wake(struct ring *r)
{
    uint64_t one = 1;

    if (write(r->wake_fd, &one, sizeof(one)) < 0) {
        /* The counter is at its maximum: the consumer is woken anyway. */
        return;
    }
}
