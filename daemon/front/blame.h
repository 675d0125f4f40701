/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_FRONT_BLAME_H
#define PIPIT_DAEMON_FRONT_BLAME_H

/* Which users' requests were running when engines died, and were found guilty or were withdrawn
 * before they could be: a withdrawn suspect is replaced by the next one, so that deaths are charged
 * to users and not to requests alone.
 *
 *     charge 0      nothing
 *     1 and more    the user's requests run apart: only while the engine has nothing else
 *     over 4        new ones are refused for 5 s after the last death, 10 s, 20 s and so on
 *
 * A death is charged as withdrawn once to a user, however many of the user's requests ran then.
 * Ten minutes take one off. So does a request that shows itself harmless while it runs apart, but
 * one in ten minutes: else each poison would be paid for with a harmless one. Who was never found
 * guilty may be a bystander, and has BLAME_SPARE more of these, which half an hour brings back.
 * Pure: the caller says who and when. */

#include <stdbool.h>
#include <stdint.h>

enum {
    BLAME_USERS = 64,
    BLAME_FREE = 4,
    BLAME_WITHDRAWN = 1,
    BLAME_CONVICTED = 2,
    BLAME_SPARE = 3,
    BLAME_MOST = 16,
};

struct blame {
    struct {
        uint32_t uid;
        uint32_t n;
        bool convicted;   /* of one of these */
        uint64_t death;   /* that was charged as withdrawn last */
        int64_t at_ns;   /* of the last charge */
        int64_t less_ns;  /* time is counted from here */
        int64_t clear_ns; /* from then on, less what is spared, a harmless request takes one off */
    } v[BLAME_USERS]; /* by uid; of two that share a slot the one with less is forgotten */
    uint64_t n_deaths;
};

/* An engine died at work. */
void blame_death(struct blame *b);
/* n: BLAME_CONVICTED, or BLAME_WITHDRAWN of the last death. True: it counts. */
bool blame_charge(struct blame *b, uint32_t uid, uint32_t n, int64_t now);
void blame_clear_one(struct blame *b, uint32_t uid, int64_t now);
uint32_t blame_of(struct blame *b, uint32_t uid, int64_t now);

/* New requests of that user are refused for so long; 0: not. */
uint32_t blame_wait_ms(struct blame *b, uint32_t uid, int64_t now);

#endif
