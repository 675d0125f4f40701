/* SPDX-License-Identifier: Apache-2.0 */
/* A table by uid. Numbers are small: a user who causes a death each second is refused for a minute
 * after ten seconds, and one whose program was once stopped at a bad moment is apart for a minute.
 */

#include "daemon/front/blame.h"

#define LESS_NS 60000000000
enum { WAIT_STEP_MS = 5000, WAIT_MOST_MS = 60000 };

uint32_t blame_of(struct blame *b, uint32_t uid, int64_t now)
{
    uint32_t i = uid % BLAME_USERS;
    int64_t minutes = (now - b->v[i].less_ns) / LESS_NS;

    if (b->v[i].n == 0 || b->v[i].uid != uid) {
        return 0;
    }
    if (minutes > 0) {
        b->v[i].n = minutes < b->v[i].n ? b->v[i].n - (uint32_t)minutes : 0;
        b->v[i].less_ns += minutes * LESS_NS;
    }
    return b->v[i].n;
}

void blame_charge(struct blame *b, uint32_t uid, uint32_t n, int64_t now)
{
    uint32_t i = uid % BLAME_USERS;
    uint32_t had = blame_of(b, uid, now);

    if (b->v[i].uid != uid && blame_of(b, b->v[i].uid, now) > n) {
        return;
    }
    b->v[i].uid = uid;
    b->v[i].n = had + n < BLAME_MOST ? had + n : BLAME_MOST;
    b->v[i].at_ns = now;
    b->v[i].less_ns = had ? b->v[i].less_ns : now;
}

void blame_clear_one(struct blame *b, uint32_t uid, int64_t now)
{
    if (blame_of(b, uid, now) > 0) {
        b->v[uid % BLAME_USERS].n--;
    }
}

uint32_t blame_wait_ms(struct blame *b, uint32_t uid, int64_t now)
{
    uint32_t n = blame_of(b, uid, now);
    uint32_t ms = n > BLAME_FREE ? (n - BLAME_FREE) * WAIT_STEP_MS : 0;
    int64_t gone = (now - b->v[uid % BLAME_USERS].at_ns) / 1000000;

    ms = ms < WAIT_MOST_MS ? ms : WAIT_MOST_MS;
    return gone < ms ? ms - (uint32_t)gone : 0;
}
