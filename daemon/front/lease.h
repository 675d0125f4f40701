/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LEASE_H
#define PIPIT_DAEMON_FRONT_LEASE_H

/* The leases of one lane: which range of which arena a {buf, generation} names, and who owns it.
 * Pure book-keeping; the arenas themselves are arena.h.
 *
 *     free ──get──▶ client ──lend──▶ engine ──give back──▶ client ──put──▶ free
 *
 * buf numbers start at 1 and are reused, generations never are: a stale name finds nothing. buf 1 is
 * the request buffer at offset 0 of c2e, the client's for as long as the lane lives. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { LEASE_MAX = 64, LEASE_ALIGN = 4096, LEASE_REQUEST_BUF = 1 };

enum lease_owner { LEASE_FREE, LEASE_CLIENT, LEASE_ENGINE };

struct lease {
    uint64_t offset;
    uint64_t length; /* as asked for; the range is rounded up to LEASE_ALIGN */
    uint32_t generation;
    uint8_t arena; /* enum lane_arena */
    uint8_t owner; /* enum lease_owner */
    bool put;      /* the client put it while the engine had it: free when given back */
};

struct lease_table {
    uint64_t arena_bytes[2];
    uint32_t next_generation;
    struct lease v[LEASE_MAX]; /* [buf - 1] */
};

/* Arena sizes are multiples of LEASE_ALIGN; request_bytes > 0 fits c2e. */
void lease_init(struct lease_table *t, uint64_t c2e_bytes, uint64_t e2c_bytes,
                uint64_t request_bytes);

/* Grants `length` bytes. -EINVAL for 0, -E2BIG when no gap is that large (*ret_largest says how much
 * would be granted), -EBUSY when all LEASE_MAX are taken. */
int lease_get(struct lease_table *t, uint32_t arena, uint64_t length, uint32_t *ret_buf,
              uint64_t *ret_largest) WARN_UNUSED;

/* The client gives a lease up. -ENOENT for an unknown or stale name, -EPERM for the request buffer. */
int lease_put(struct lease_table *t, uint32_t arena, uint32_t buf, uint32_t generation) WARN_UNUSED;

/* The lease of that name if the client owns it now, else NULL. */
struct lease *lease_of_client(struct lease_table *t, uint32_t arena, uint32_t buf,
                              uint32_t generation);

/* To the engine for one request, and back. */
void lease_lend(struct lease *l);
void lease_give_back(struct lease_table *t, uint32_t buf);

#endif
