/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_USES_H
#define PIPIT_ENGINE_SCHED_USES_H

/* Which policies requests ask for, for statistics. */

#include "engine/engine.h"
#include "engine/kv/kv.h"

/* Of a policy that requests ask for (uses.c); n_evicted by those that have ended. */
struct use {
    char policy[KV_TEXT_MAX]; /* canonical */
    int32_t n_live;               /* requests that wait or run */
    uint64_t n_requests;
    uint64_t n_evicted;
    uint64_t turn; /* when one last came */
};

enum { USES_MAX = 8 };
#define USES_OTHERS "others"

struct uses {
    int32_t n_planned;
    int32_t n;
    uint64_t turn;
    struct use rows[USES_MAX + 1]; /* the last: of all others */
};

void uses_init(struct uses *u, const struct policy_mix *mix);
/* A request comes: its row, which it leaves through n_live. */
int32_t uses_join(struct uses *u, const struct policy *p);

#endif
