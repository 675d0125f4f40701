/* SPDX-License-Identifier: Apache-2.0 */
/* Saved sequences are read in parts between steps, so that those who decode hardly notice. */

#include "base/clock.h"
#include "engine/sched/admit.h"
#include "engine/sched/state.h"

enum {
    /* Bytes of saved sequences a step: beside others, and where nobody else runs yet but somebody
     * may come. Above them, a share of the last step's time is spent as well. */
    LOAD_BESIDE = 1 << 20,
    LOAD_ALONE = 2 << 20,
    LOAD_SHARE = 10,
};

static bool is_loading(const struct request *r)
{
    return r->saved && r->seq >= 0;
}

/* What one step loads at least: where others run, no more than they hardly notice. */
static uint64_t load_least(const struct sched *s)
{
    for (const struct request *r = s->running.first; r; r = r->next) {
        if (!is_loading(r) && !r->finished) {
            return LOAD_BESIDE;
        }
    }
    return LOAD_ALONE;
}

static void finish_unread(struct sched *s, struct request *r, int err)
{
    struct error e = {0};

    (void)error_set_errno(&e, err, "the saved sequence cannot be read");
    sched_finish(s, r, ENGINE_ERROR, &e);
}

/* One request's next bytes. 1: there are more. */
static int load_more(struct sched *s, struct request *r, uint64_t least, uint64_t *ret_n)
{
    int read;
    int e = snapshot_load(s->config.cache, r->seq, r->saved, least, ret_n, &read);

    if (e) {
        return e;
    }
    if (read) {
        finish_unread(s, r, read);
        return 0;
    }
    if (!snapshot_loaded(r->saved)) {
        return 1;
    }
    request_drop_saved(r);
    r->n_fed = r->text.held;
    if (prompt_is_whole(s, r)) {
        prompt_start_whole(s, r);
    }
    return 0;
}

/* LOAD_BESIDE, and on for a share of a step's time. */
int load_run(struct sched *s)
{
    uint64_t least = load_least(s);
    uint64_t done = 0;
    int64_t until = clock_ns() + s->step_ns / LOAD_SHARE;
    struct request *next;

    for (struct request *r = s->running.first; r; r = next) {
        int more = is_loading(r);

        next = r->next;
        while (more > 0 && (done < least || clock_ns() < until)) {
            uint64_t n;

            more = load_more(s, r, done < least ? least - done : 1, &n);
            done += n;
        }
        if (more < 0) {
            return more;
        }
    }
    return 0;
}
