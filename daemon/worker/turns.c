/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/worker/turns.h"

#include <stddef.h>

#include "daemon/worker/job.h"

void turns_add(struct turns *t, struct job *j)
{
    j->next_text = NULL;
    *(t->last ? &t->last->next_text : &t->first) = j;
    t->last = j;
}

static uint32_t person(const struct job *j)
{
    return j->rec.e_request.person;
}

static bool is_prompt(const struct job *j)
{
    return j->kind != LANE_KIND_TOKENIZE && j->kind != LANE_KIND_DETOKENIZE;
}

/* Does `a` go before `b`, the older one? */
static bool before(const struct turns *t, const struct job *a, const struct job *b)
{
    return person(a) == person(b) ? is_prompt(a) && !is_prompt(b)
                                  : turn_of(t->persons, TURNS_PERSONS, person(a)) <
                                        turn_of(t->persons, TURNS_PERSONS, person(b));
}

static void take(struct turns *t, struct job *j)
{
    struct job *prev = NULL;

    for (struct job *i = t->first; i != j; i = i->next_text) {
        prev = i;
    }
    *(prev ? &prev->next_text : &t->first) = j->next_text;
    if (t->last == j) {
        t->last = prev;
    }
}

struct job *turns_next(struct turns *t, turns_is *is)
{
    struct job *best = NULL;

    for (struct job *j = t->first; j; j = j->next_text) {
        if ((!is || is(j)) && (!best || before(t, j, best))) {
            best = j;
        }
    }
    if (best) {
        take(t, best);
        turn_take(t->persons, TURNS_PERSONS, person(best), ++t->turn);
    }
    return best;
}
