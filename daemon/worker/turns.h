/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_DAEMON_WORKER_TURNS_H
#define PIPIT_DAEMON_WORKER_TURNS_H

/* Which text is read next. Turns go round the persons (the front's accounts of users), so that one
 * person's hundred texts delay another's by one of them. Of one person prompts go first, since
 * somebody waits for their answer, then what came first.
 *
 * The front has some tens of requests here at most, so a choice is a walk. A person of whom nothing
 * was read yet has turn 0 and goes first (base/turn.h).
 * Pure: it knows no thread. */

#include <stdbool.h>
#include <stdint.h>

#include "base/turn.h"

struct job;

enum { TURNS_PERSONS = 64 };

struct turns {
    struct job *first; /* by job.next_text, oldest first */
    struct job *last;
    uint64_t turn;
    struct turn persons[TURNS_PERSONS];
};

void turns_add(struct turns *t, struct job *j);

/* Takes the next one out, or NULL. `is`, where given, says which may be taken. */
typedef bool turns_is(const struct job *j);
struct job *turns_next(struct turns *t, turns_is *is);

#endif
