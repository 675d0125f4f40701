/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_LINK_ARENAS_H
#define PIPIT_LINK_ARENAS_H

/* The two shared arenas of a lane as its client maps them: client-to-engine for reading and
 * writing, engine-to-client read-only. Creator: arenas_map; counted, unmapped with the last
 * reference. One thread. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "proto/lane/record.h"

struct arenas {
    int refs;
    bool alive;    /* the lane they belong to is still open */
    uint64_t lane; /* its id */
    uint8_t *c2e;  /* (c2e_bytes) */
    size_t c2e_bytes;
    const uint8_t *e2c; /* (e2c_bytes) */
    size_t e2c_bytes;
};

/* Maps what the hello's reply brought: fds[0] client-to-engine, fds[1] engine-to-client; both stay
 * the caller's. -EBADMSG for memory that could shrink or is smaller than the reply says. */
int arenas_map(const int fds[2], uint64_t c2e_bytes, uint64_t e2c_bytes, struct arenas **ret,
               struct error *reterr) WARN_UNUSED;
struct arenas *arenas_ref(struct arenas *a);
void arenas_unref(struct arenas *a); /* takes NULL */

/* Does a granted lease hold `bytes` and lie in the arena that was asked for, 8-byte aligned? */
bool arenas_hold(const struct arenas *a, enum lane_arena arena, const struct lane_lease *got,
                 uint64_t bytes);

#endif
