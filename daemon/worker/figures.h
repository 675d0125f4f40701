/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_FIGURES_H
#define PIPIT_DAEMON_WORKER_FIGURES_H

/* What LANE_ENGINE_STATE has no room for: the backend's whole name, and who holds the cache, by
 * policy (LANE_ENGINE_REPORT). Only rows that changed are said again. */

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "proto/lane/record.h"

struct worker;

struct figures {
    int32_t n;
    struct engine_kv_use said[LANE_ENGINE_REPORT_ROWS];
};

void figures_engine(struct worker *w);
void figures_send(struct worker *w);

#endif
