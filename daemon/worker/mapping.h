/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_MAPPING_H
#define PIPIT_DAEMON_WORKER_MAPPING_H

/* The lanes' arenas as the engine maps them. Mapped by the I/O thread, then owned by the worker's.
 * c2e can change under us at any time: it is only ever read once, by ask.c. e2c is only written. A
 * closed lane's arenas go when its last job has ended; the front is told (LANE_ENGINE_LANE_QUIET)
 * and only then takes the memory back. */

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "daemon/worker/worker.h"

struct mapping {
    uint64_t lane_id;
    uint8_t *c2e;
    uint8_t *e2c;
    uint64_t c2e_bytes;
    uint64_t e2c_bytes;
    uint32_t n_jobs;
    bool closing;
    struct mapping *next;
};

/* In the I/O thread: maps both and closes the descriptors, whatever happens. */
int mapping_make(const struct lane_engine_lane *lane, const int fds[2], struct command *ret,
                 struct error *reterr) WARN_UNUSED;

/* In the worker's. */
int mapping_add(struct worker *w, const struct command *c) WARN_UNUSED;
struct mapping *mapping_find(const struct worker *w, uint64_t lane_id); /* not closing, or NULL */
void mapping_close(struct worker *w, uint64_t lane_id);
void mapping_ref(struct mapping *m);
void mapping_unref(struct worker *w, struct mapping *m); /* takes NULL */
void mapping_drop_all(struct worker *w);

#endif
