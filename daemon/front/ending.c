/* SPDX-License-Identifier: Apache-2.0 */
/* The one place where a request becomes FINISHED: its log gets the last event, counters and leases
 * are put right, and the clock of forgetting starts. */

#include "daemon/front/ending.h"

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/figures.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/logline.h"

#define KEEP_NS 30000000000
#define KEEP_MOST_NS 300000000000
#define KEEP_STEP_NS 5000000000

enum { TRIM_AFTER = 1024 };

/* Thousands of answers are kept at once where clients come and go quickly. When all are forgotten,
 * malloc still holds their pages, which lie between what is not freed. */
static void give_pages_back(struct front *f)
{
    f->n_forgotten++;
    if (f->n_forgotten >= TRIM_AFTER && !f->requests.open.oldest && !f->requests.finished.oldest) {
        f->n_forgotten = 0;
        (void)malloc_trim(0);
    }
}

static void forget(struct front *f, struct request *r)
{
    lane_detach(r);
    loop_timer_off(&f->loop, &r->deadline);
    loop_timer_off(&f->loop, &r->fate);
    loop_timer_off(&f->loop, &r->reader);
    if (r->log.first != JOURNAL_NONE) {
        journal_end(&f->journal, &r->log);
    }
    /* With its principal's last one another may be alone, and have more. */
    f->dispatch_wanted |= r->who->n_requests == 1;
    request_destroy(&f->requests, r);
    give_pages_back(f);
}

static bool read_to_end(const struct request *r)
{
    return r->cursor.seq >= r->log.seen.seq;
}

static void on_expired(void *arg)
{
    struct request *r = arg;
    struct front *f = r->front;
    int64_t now = clock_ns();

    if (r->lane && !read_to_end(r)) {
        if (now < r->ended_ns + KEEP_MOST_NS) {
            loop_timer_at(&f->loop, &r->fate, now + KEEP_STEP_NS, on_expired, r);
            return;
        }
        /* Its reader would wait for an end that never comes: tell it so in the only way left. */
        lane_close(r->lane, "reads too slowly");
    }
    forget(f, r);
}

/* Back to the lane that sent the request, where that still exists. */
static void give_leases_back(struct front *f, const struct request *r)
{
    struct lane *home = r->in_buf || r->out_buf ? lane_find(f, r->home_lane) : NULL;

    if (home && r->in_buf) {
        lease_give_back(&home->leases, r->in_buf);
    }
    if (home && r->out_buf) {
        lease_give_back(&home->leases, r->out_buf);
    }
}

static void count(struct front *f, const struct request *r, const struct lane_record *rec)
{
    bool done = rec->h.type == LANE_DONE;

    f->counters.n_by_reason[done ? rec->done.reason & 15 : 0]++;
    if (done) {
        f->counters.n_prompt_tokens += (uint64_t)rec->done.n_prompt;
        figures_ended(f, &rec->done);
        f->counters.n_not_saved += rec->done.session == LANE_SESSION_NOT_SAVED;
        if (rec->done.session == LANE_SESSION_SAVED) {
            f->counters.n_saved++;
            f->counters.session_bytes += rec->done.session_bytes;
        }
    }
    logline_request(f, r, rec);
}

void ending_keep(struct front *f, struct request *r)
{
    r->ended_ns = r->ended_ns ? r->ended_ns : clock_ns();
    request_finish(&f->requests, r);
    loop_timer_off(&f->loop, &r->deadline);
    loop_timer_off(&f->loop, &r->reader);
    loop_timer_at(&f->loop, &r->fate, r->ended_ns + KEEP_NS, on_expired, r);
}

void ending_record(struct front *f, struct request *r, struct lane_record *rec)
{
    r->ended_ns = clock_ns();
    dispatch_forget(f, r);
    if (journal_append(&f->journal, &r->log, rec)) {
        log_error("request %llu: its last event found no room", (unsigned long long)r->number);
    }
    give_leases_back(f, r);
    count(f, r, rec);
    ending_keep(f, r);
    f->dispatch_wanted = true;
    f->status_changed = true;
    lane_pump(r);
}

void ending_reason(struct front *f, struct request *r, uint32_t reason)
{
    struct lane_record rec;

    lane_record_init(&rec, LANE_DONE, NULL);
    rec.done.reason = reason;
    rec.done.n_new = (int32_t)r->log.n_tokens;
    rec.done.queue_ns = (r->started_ns ? r->started_ns : clock_ns()) - r->accepted_ns;
    rec.done.seed = r->seed;
    ending_record(f, r, &rec);
}

void ending_error(struct front *f, struct request *r, uint32_t code, const char *fmt, ...)
{
    struct lane_record rec;
    va_list ap;

    lane_record_init(&rec, LANE_ERROR, NULL);
    rec.error.code = code;
    va_start(ap, fmt);
    error_fit_format(rec.error.text, sizeof(rec.error.text), fmt, ap);
    va_end(ap);
    ending_record(f, r, &rec);
}

void ending_cancel(struct front *f, struct request *r, uint32_t reason)
{
    if (reason != LANE_REASON_SHUTDOWN && r->state != REQUEST_FINISHED && r->stop_reason == 0) {
        dispatch_withdrawn(f, r);
    }
    if (r->state == REQUEST_QUEUED) {
        queue_remove(&f->queue, r);
        ending_reason(f, r, reason);
    } else if (r->state == REQUEST_RUNNING && r->stop_reason == 0) {
        r->stop_reason = reason;
        journal_head(&f->journal, &r->log)->stop_reason = reason;
        dispatch_cancel(f, r);
    }
}

void ending_discard(struct front *f, struct request *r)
{
    forget(f, r);
}

bool ending_make_room(struct front *f, uint32_t uid, int rc)
{
    const uint32_t *used = f->journal.n_used;
    uint32_t person = persons_of(&f->persons, uid);
    uint32_t most = used[person % JOURNAL_USERS];
    struct request *best = NULL;

    for (struct request *r = f->requests.finished.oldest; r; r = r->age_next) {
        uint32_t has = used[r->who->person % JOURNAL_USERS];
        bool may = rc == -EDQUOT ? r->who->person == person : has > most || (!best && has == most);

        if (may && read_to_end(r)) {
            best = r;
            most = has;
        }
        if (best && rc == -EDQUOT) {
            break;
        }
    }
    if (best) {
        forget(f, best);
    }
    return best;
}

void ending_all(struct front *f, bool force)
{
    struct request *next;

    for (struct request *r = f->requests.open.oldest; r; r = next) {
        next = r->age_next;
        if (r->state == REQUEST_QUEUED) {
            ending_cancel(f, r, LANE_REASON_SHUTDOWN);
        } else if (r->state == REQUEST_RUNNING && force) {
            ending_reason(f, r, r->stop_reason ? r->stop_reason : LANE_REASON_SHUTDOWN);
        }
    }
}

void ending_stop_all(struct front *f)
{
    struct request *next;

    for (struct request *r = f->requests.open.oldest; r; r = next) {
        next = r->age_next;
        ending_cancel(f, r, LANE_REASON_SHUTDOWN);
    }
}

void ending_forget_all(struct front *f)
{
    while (f->requests.open.oldest) {
        forget(f, f->requests.open.oldest);
    }
    while (f->requests.finished.oldest) {
        forget(f, f->requests.finished.oldest);
    }
}
