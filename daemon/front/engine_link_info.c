/* SPDX-License-Identifier: Apache-2.0 */
/* What other parts of the front ask of the engine; NULL stands for one that was never started. */

#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "daemon/front/engine_link_impl.h"

bool engine_link_ready(const struct engine_link *e)
{
    return e && e->state == LANE_READY && e->watch.fd >= 0;
}

bool engine_link_checked(const struct engine_link *e)
{
    return e && (e->state != LANE_LOADING || e->info.progress > 0);
}

uint32_t engine_link_state(const struct engine_link *e)
{
    return e ? e->state : LANE_LOADING;
}

const struct lane_engine_state *engine_link_info(const struct engine_link *e)
{
    static const struct lane_engine_state none;

    return e ? &e->info : &none;
}

const char *engine_link_cause(const struct engine_link *e)
{
    return e->cause;
}

const char *engine_link_failure(const struct engine_link *e)
{
    return e ? e->failure : "";
}

uint64_t engine_link_model(const struct engine_link *e)
{
    char half[17];

    (void)snprintf(half, sizeof(half), "%.16s", e->report.model);
    return strtoull(half, NULL, 16);
}

const struct report *engine_link_report(const struct engine_link *e)
{
    static const struct report none;

    return e ? &e->report : &none;
}

uint32_t engine_link_refuse_ms(const struct engine_link *e)
{
    int64_t at = e->retry.index ? e->retry.when_ns : e->refuse_until_ns;
    int64_t left = at - clock_ns();

    return left > 0 ? (uint32_t)(left / 1000000) + 1 : e->retry.index ? 1 : 0;
}

uint64_t engine_link_epoch(const struct engine_link *e)
{
    return e ? e->epoch : 0;
}

int64_t engine_link_ready_ns(const struct engine_link *e)
{
    return e->ready_ns;
}

int64_t engine_link_load_ns(const struct engine_link *e)
{
    return e->ready_ns > 0 ? e->load_ns : 0;
}

uint32_t engine_link_restarts(const struct engine_link *e)
{
    return e ? e->n_restarts : 0;
}

uint32_t engine_link_unloads(const struct engine_link *e)
{
    return e->n_unloads;
}

int engine_link_pid(const struct engine_link *e)
{
    return e ? (int)e->pid : 0;
}
