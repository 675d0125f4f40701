/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_ENGINE_SCHED_ADMIT_H
#define PIPIT_ENGINE_SCHED_ADMIT_H

/* How requests get a sequence, and the text that it begins with. */

#include "engine/sched/request.h"

struct sched;

/* admit.c. Admits waiting requests while there is room. */
int admit_waiting(struct sched *s) WARN_UNUSED;

/* load.c. Reads the next part of each saved sequence. */
int load_run(struct sched *s) WARN_UNUSED;

/* fork.c. Does r wait for another's prompt, to go on from it? */
bool fork_waits(const struct sched *s, const struct request *r);
/* Sequences r beside the one it forks, where that has got no further than r's known text; -ENOENT
 * when there is nothing to join, -EBUSY without room. */
int fork_admit(struct sched *s, struct request *r) WARN_UNUSED;
/* The prompt of p is read, and these logits follow it: those who wait for it draw theirs. */
int fork_first_tokens(struct sched *s, struct request *p, const float *logits) WARN_UNUSED;

#endif
