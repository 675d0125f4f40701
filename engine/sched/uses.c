/* SPDX-License-Identifier: Apache-2.0 */
/* Which policies requests have asked for, and what came of it: a small table, the planned policies
 * first, so that status can say who holds the cache. A policy that comes when the table is full
 * takes the place of one that nobody uses any more, and what that one evicted is counted on in the
 * last row, of all others; where every row is in use, the newcomer is counted there, too. So sums
 * over the rows are right whatever clients ask for. */

#include <string.h>

#include "engine/sched/state.h"

void uses_init(struct uses *u, const struct policy_mix *mix)
{
    *u = (struct uses){.n_planned = mix->n, .n = mix->n};
    for (int32_t i = 0; i < mix->n; i++) {
        policy_print(&mix->part[i].policy, u->rows[i].policy, sizeof(u->rows[i].policy));
    }
    memcpy(u->rows[USES_MAX].policy, USES_OTHERS, sizeof(USES_OTHERS));
}

static int32_t find(const struct uses *u, const char *text)
{
    for (int32_t i = 0; i < u->n; i++) {
        if (strcmp(u->rows[i].policy, text) == 0) {
            return i;
        }
    }
    return -1;
}

/* A row for a new policy; the one of all others when there is none. */
static int32_t take_row(struct uses *u)
{
    struct use *others = &u->rows[USES_MAX];
    int32_t oldest = USES_MAX;

    if (u->n < USES_MAX) {
        return u->n++;
    }
    for (int32_t i = u->n_planned; i < USES_MAX; i++) {
        if (u->rows[i].n_live == 0 &&
            (oldest == USES_MAX || u->rows[i].turn < u->rows[oldest].turn)) {
            oldest = i;
        }
    }
    if (oldest < USES_MAX) {
        others->n_requests += u->rows[oldest].n_requests;
        others->n_evicted += u->rows[oldest].n_evicted;
        u->rows[oldest] = (struct use){0};
    }
    return oldest;
}

int32_t uses_join(struct uses *u, const struct policy *p)
{
    char text[KV_TEXT_MAX];
    int32_t i;

    policy_print(p, text, sizeof(text));
    i = find(u, text);
    if (i < 0) {
        i = take_row(u);
        if (i < USES_MAX) {
            memcpy(u->rows[i].policy, text, sizeof(text));
        }
    }
    u->rows[i].n_live++;
    u->rows[i].n_requests++;
    u->rows[i].turn = ++u->turn;
    return i;
}

bool sched_kv_use(const struct sched *s, int32_t i, struct engine_kv_use *ret)
{
    const struct uses *u = &s->uses;
    const struct cache *cache = s->config.cache;
    int32_t row = i < u->n ? i : USES_MAX;
    const struct use *use = &u->rows[row];

    if (i > u->n || (i == u->n && use->n_requests == 0)) {
        return false;
    }
    *ret = (struct engine_kv_use){.n_requests = use->n_requests, .n_evicted = use->n_evicted};
    memcpy(ret->policy, use->policy, sizeof(ret->policy));
    for (const struct request *r = s->running.first; r; r = r->next) {
        struct kv_usage kv;

        if (r->use == row && !r->finished) {
            kv_usage(cache, r->seq, &kv);
            ret->n_seqs++;
            ret->n_slots += kv.n_slots;
            ret->kv_bytes += kv.bytes;
            ret->n_evicted += (uint64_t)kv.n_evicted;
        }
    }
    return true;
}
