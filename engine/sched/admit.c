/* SPDX-License-Identifier: Apache-2.0 */
/* Which waiting request is admitted next.
 *
 * A request waits until a sequence index is free and its worst case of pages can be reserved. The
 * one whose turn it is holds up those behind it, so that a large request is not overtaken for ever
 * (but not while it waits for what only one request at a time may have). Turns go round principals
 * (the one admitted longest ago first), within one by priority, then by age. */

#include "engine/sched/admit.h"

#include <errno.h>

#include "engine/sched/state.h"

static bool goes_before(const struct request *a, const struct request *b)
{
    if (a->principal->admit_turn != b->principal->admit_turn) {
        return a->principal->admit_turn < b->principal->admit_turn;
    }
    if (a->urgency != b->urgency) {
        return a->urgency > b->urgency;
    }
    return a->handle < b->handle;
}

/* Waits for what only one request at a time may have, which others need not, or for its parent. */
static bool held_up(const struct sched *s, const struct request *r)
{
    return fork_waits(s, r) || (r->stashes && s->stash.r) ||
           (r->needs_peak && kv_peak_is_taken(s->config.cache));
}

/* Tokens that need not be read where their keys and values are kept: not those whose logits are
 * wanted. */
static int32_t known_tokens(const struct request *r)
{
    return r->saved || r->synthetic ? 0 : batch_first_wanted(r);
}

static void note_kept(struct sched *s, struct request *r)
{
    int32_t n = kv_n_tokens(s->config.cache, r->seq);

    if (n > 0 && !r->resumed) {
        r->n_fed = n;
        r->text.held = n;
        s->counters.n_prefix_hits++;
        s->counters.n_prefix_tokens += (uint64_t)n;
    }
}

int admit_waiting(struct sched *s)
{
    while (s->waiting.first) {
        struct request *best = NULL;

        for (struct request *r = s->waiting.first; r; r = r->next) {
            if (!held_up(s, r) && (!best || goes_before(r, best))) {
                best = r;
            }
        }
        if (!best) {
            return 0;
        }
        int seq = fork_admit(s, best);

        if (seq == 0) {
            best->principal->admit_turn = ++s->turn;
            continue;
        }
        if (seq != -ENOENT && seq != -EBUSY && seq != -ENOMEM) {
            return seq;
        }
        if (seq != -ENOMEM) {
            seq = kv_admit(s->config.cache, &best->policy, best->principal->id, &best->text,
                           best->tokens, known_tokens(best));
        }
        if (seq == -ENOMEM) {
            sched_finish_without_memory(s, best);
            continue;
        }
        if (seq < 0) {
            s->full = seq == -EBUSY;
            return s->full ? 0 : seq;
        }
        request_remove(&s->waiting, best);
        best->seq = seq;
        request_append(&s->running, best);
        best->principal->admit_turn = ++s->turn;
        if (best->stashes) {
            s->stash.r = best;
            s->stash.n = 0;
            s->stash.done = 0;
        }
        if (best->saved) {
            continue; /* load_run() */
        }
        if (best->synthetic) {
            int e = kv_fill(s->config.cache, best->seq);

            if (e) {
                return e;
            }
            best->n_fed = best->text.held;
        }
        note_kept(s, best);
        if (prompt_is_whole(s, best)) {
            prompt_start_whole(s, best);
        }
    }
    return 0;
}
