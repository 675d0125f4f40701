/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_LIFECYCLE_H
#define PIPIT_DAEMON_FRONT_LIFECYCLE_H

/* When the model is in memory and when the daemon takes requests (docs/guide/service.md).
 *
 *     serving ──drain──▶ draining ─all ended, or the limit and all ended─▶ stopping
 *        ▲                  └─ for a reload ─▶ configuration, next engine ─┐
 *        └─────────────────────────────────────────────────────────────────┘
 *
 * While it serves, a waiting request loads the model where it is not loaded, and after idle-unload
 * seconds without any the engine's process is ended: the kernel takes back all it had. */

#include <stdint.h>

#include "base/error.h"

struct front;
struct lane;
struct lane_record;

/* After every batch of events: loads, starts or stops the clock of idleness, ends a drain. */
void lifecycle_check(struct front *f);

/* LANE_CONTROL */
void lifecycle_serve(struct front *f, struct lane *l, const struct lane_record *r);

/* No new requests from now on; `op` LANE_CONTROL_DRAIN or _RELOAD. A second call may shorten the
 * time (limit_ns, 0: none), or make an end out of a reload. -EINVAL: the configuration cannot be
 * used. */
int lifecycle_drain(struct front *f, uint32_t op, int64_t limit_ns,
                    struct error *reterr) WARN_UNUSED;

/* When somebody who is refused by a drain should ask again. */
uint32_t lifecycle_retry_ms(const struct front *f);

#endif
