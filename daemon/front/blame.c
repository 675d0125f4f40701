/* SPDX-License-Identifier: Apache-2.0 */
/* A table by uid. A death costs everybody a load of the model, so who causes them again and again
 * must become slow: each more doubles the wait, and ten minutes forgive one. A user who causes one
 * whenever allowed to soon causes one in some five minutes. One whose program was stopped a few
 * times at a bad moment is apart until a request of that user has shown itself harmless. */

#include "daemon/front/blame.h"

#define LESS_NS 600000000000
enum { WAIT_FIRST_MS = 5000, WAIT_MOST_MS = 3600000 };

uint32_t blame_of(struct blame *b, uint32_t uid, int64_t now)
{
    uint32_t i = uid % BLAME_USERS;
    int64_t less = (now - b->v[i].less_ns) / LESS_NS;

    if (b->v[i].n == 0 || b->v[i].uid != uid) {
        return 0;
    }
    if (less > 0) {
        b->v[i].n = less < b->v[i].n ? b->v[i].n - (uint32_t)less : 0;
        b->v[i].less_ns += less * LESS_NS;
    }
    return b->v[i].n;
}

void blame_death(struct blame *b)
{
    b->n_deaths++;
}

bool blame_charge(struct blame *b, uint32_t uid, uint32_t n, int64_t now)
{
    uint32_t i = uid % BLAME_USERS;
    uint32_t had = blame_of(b, uid, now);

    if (b->v[i].uid != uid) {
        if (blame_of(b, b->v[i].uid, now) > n) {
            return false;
        }
        b->v[i].clear_ns = 0;
        b->v[i].death = 0;
    }
    if (n == BLAME_WITHDRAWN) {
        if (b->v[i].death == b->n_deaths) {
            return false;
        }
        b->v[i].death = b->n_deaths;
    }
    b->v[i].convicted = n == BLAME_CONVICTED || (had && b->v[i].convicted);
    b->v[i].uid = uid;
    b->v[i].n = had + n < BLAME_MOST ? had + n : BLAME_MOST;
    b->v[i].at_ns = now;
    b->v[i].less_ns = had ? b->v[i].less_ns : now;
    return true;
}

void blame_clear_one(struct blame *b, uint32_t uid, int64_t now)
{
    uint32_t i = uid % BLAME_USERS;

    int64_t spare = b->v[i].convicted ? 0 : BLAME_SPARE * LESS_NS;

    if (blame_of(b, uid, now) > 0 && now >= b->v[i].clear_ns - spare) {
        b->v[i].n--;
        b->v[i].clear_ns = (now > b->v[i].clear_ns ? now : b->v[i].clear_ns) + LESS_NS;
    }
}

uint32_t blame_wait_ms(struct blame *b, uint32_t uid, int64_t now)
{
    uint32_t n = blame_of(b, uid, now);
    uint32_t ms = n > BLAME_FREE ? WAIT_FIRST_MS << (n - BLAME_FREE - 1) : 0;
    int64_t gone = (now - b->v[uid % BLAME_USERS].at_ns) / 1000000;

    ms = ms < WAIT_MOST_MS ? ms : WAIT_MOST_MS;
    return gone < ms ? ms - (uint32_t)gone : 0;
}
