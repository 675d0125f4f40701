/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_PROTO_ZMQ_ARENA_H
#define PIPIT_PROTO_ZMQ_ARENA_H

/* The memory of one decoded message: a zeroed bump allocator with a cap, behind protobuf-c's
 * allocator hook. One MiB of wire can ask protobuf-c for 36 MiB of heap in half a million mallocs;
 * here it gets NULL at the cap, cleans up and returns NULL. Zeroed, because protobuf-c 1.4.1 reads
 * fields it has not written on some failure paths. free() does nothing; arena_clear() frees all. */

#include <protobuf-c/protobuf-c.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct arena {
    ProtobufCAllocator hook; /* pass &arena->hook to protobuf-c */
    uint8_t *base;
    size_t size;
    size_t used;
    bool exhausted;  /* an allocation failed since the last clear */
    int64_t fail_at; /* tests: the allocation of this number (0, 1, ...) fails; -1: none */
    int64_t n_allocs;
};

int arena_init(struct arena *a, size_t size, struct error *reterr) WARN_UNUSED;
void arena_finish(struct arena *a);
void arena_clear(struct arena *a); /* everything handed out is gone; memory is zero again */

#endif
