/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_TURN_H
#define PIPIT_BASE_TURN_H

/* When somebody was last served, in a table of fixed size by id modulo its length: least recent
 * goes first. Who was never served has turn 0. Of two whose ids share a place the table knows the
 * later one; the other counts as served just before. So the two alternate, and gain nothing over
 * everybody else. */

#include <stdint.h>

struct turn {
    uint64_t id;
    uint64_t turn;
};

static inline uint64_t turn_of(const struct turn *table, uint32_t n, uint64_t id)
{
    const struct turn *t = &table[id % n];

    return t->id == id || t->turn == 0 ? t->turn : t->turn - 1;
}

static inline void turn_take(struct turn *table, uint32_t n, uint64_t id, uint64_t turn)
{
    table[id % n] = (struct turn){id, turn};
}

#endif
