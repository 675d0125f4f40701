/* SPDX-License-Identifier: Apache-2.0 */
/* A rate is a bucket of LINES lines that fills by one each STEP_NS, kept as the time at which it is
 * full: one that is full is like one that was never used, so its place may become another user's.
 * What is left out is said by that user's next line, or after TELL_NS; metrics count all ends. */

#include "daemon/front/logline.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "base/log.h"
#include "daemon/front/front.h"

#define STEP_NS 1000000000
#define TELL_NS 60000000000
enum { LINES = 100 };

static struct logline_rate *rate_of(struct logline *l, uint32_t uid, int64_t now)
{
    struct logline_rate *free_one = NULL;

    for (int i = 0; i < LOGLINE_USERS; i++) {
        struct logline_rate *r = &l->users[i];

        bool used = r->full_ns > now || r->n_left_out;

        if (used && r->uid == uid) {
            return r;
        }
        free_one = used || free_one ? free_one : r;
    }
    if (!free_one) {
        return &l->others;
    }
    free_one->uid = uid;
    return free_one;
}

static bool has_room(struct logline_rate *r, int64_t now)
{
    int64_t full = r->full_ns > now ? r->full_ns : now;

    if (full - now > (int64_t)(LINES - 1) * STEP_NS) {
        r->n_left_out++;
        return false;
    }
    r->full_ns = full + STEP_NS;
    return true;
}

static void tell(const struct logline *l, struct logline_rate *r)
{
    struct log_fields fields = {0};
    bool ours = r == &l->ours;
    char whose[32];

    (void)snprintf(whose, sizeof(whose), "%s", ours ? "failures of ours" : "other users");
    if (r->n_left_out == 0) {
        return;
    }
    log_field(&fields, "PIPIT_EVENT", "requests-left-out");
    if (!ours && r != &l->others) {
        log_field(&fields, "PIPIT_PRINCIPAL", "%u", r->uid);
        (void)snprintf(whose, sizeof(whose), "uid %u", r->uid);
    }
    log_field(&fields, "PIPIT_LEFT_OUT", "%llu", (unsigned long long)r->n_left_out);
    log_write_fields(ours ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, &fields,
                     "ends of %llu requests not told, of %s: too many",
                     (unsigned long long)r->n_left_out, whose);
    r->n_left_out = 0;
}

void logline_flush(struct front *f)
{
    loop_timer_off(&f->loop, &f->logline.timer);
    for (int i = 0; i < LOGLINE_USERS; i++) {
        tell(&f->logline, &f->logline.users[i]);
    }
    tell(&f->logline, &f->logline.others);
    tell(&f->logline, &f->logline.ours);
}

static void on_timer(void *arg)
{
    logline_flush(arg);
}

/* Why its session was not saved, as an errno; 0: it was, it has none, or the request was ended. */
static int not_saved(const struct lane_record *last)
{
    bool is = last->h.type == LANE_DONE && last->done.session == LANE_SESSION_NOT_SAVED &&
              last->done.session_err != -ECANCELED;

    return is ? -last->done.session_err : 0;
}

static bool is_failure(const struct lane_record *last)
{
    return last->h.type == LANE_ERROR || not_saved(last) != 0 ||
           last->done.reason == LANE_REASON_ERROR ||
           last->done.reason == LANE_REASON_SLOW_CONSUMER ||
           last->done.reason == LANE_REASON_TIMEOUT;
}

/* Ours to look into, not the client's: a session over its owner's limit (EDQUOT) is the client's.
 */
static bool is_ours(const struct lane_record *last)
{
    int err = not_saved(last);

    return err == ENOSPC || err == EROFS || err == EIO ||
           (last->h.type == LANE_ERROR &&
            (last->error.code == LANE_ERR_INTERNAL || last->error.code == LANE_ERR_ENGINE_CRASHED));
}

static void add_ms(struct log_fields *fields, const char *name, int64_t ns)
{
    log_field(fields, name, "%.1f", (double)ns / 1e6);
}

static void add_done(struct log_fields *fields, const struct lane_done *d)
{
    static const char *const session[] = {
        [LANE_SESSION_SAVED] = "saved", [LANE_SESSION_NOT_SAVED] = "not-saved"};

    add_ms(fields, "PIPIT_LOAD_MS", d->load_ns);
    add_ms(fields, "PIPIT_PREFILL_MS", d->prefill_ns);
    add_ms(fields, "PIPIT_DECODE_MS", d->decode_ns);
    if (d->session == LANE_SESSION_SAVED || d->session == LANE_SESSION_NOT_SAVED) {
        log_field(fields, "PIPIT_SESSION", "%s", session[d->session]);
    }
}

void logline_request(struct front *f, const struct request *r, const struct lane_record *last)
{
    bool done = last->h.type == LANE_DONE;
    const char *end =
        done ? lane_reason_name(last->done.reason) : lane_error_name(last->error.code);
    int64_t queue_ns = (r->started_ns ? r->started_ns : r->ended_ns) - r->accepted_ns;
    int n_prompt = done ? last->done.n_prompt : 0;
    int n_cached = done ? last->done.n_cached : 0;
    int n_new = (int)r->log.n_tokens;
    struct logline_rate *rate;
    struct log_fields fields = {0};
    char left_out[64] = "";
    char unsaved[96] = "";
    int err = not_saved(last);
    char id[2 * sizeof(r->id) + 1];
    double ms = (double)(r->ended_ns - r->accepted_ns) / 1e6;

    if (f->config->log_requests == LOGLINE_NONE ||
        (f->config->log_requests == LOGLINE_FAILED && !is_failure(last))) {
        return;
    }
    rate = is_ours(last) ? &f->logline.ours : rate_of(&f->logline, r->who->uid, r->ended_ns);
    if (!has_room(rate, r->ended_ns)) {
        if (f->logline.timer.index == 0) {
            loop_timer_at(&f->loop, &f->logline.timer, r->ended_ns + TELL_NS, on_timer, f);
        }
        return;
    }
    hex_of(r->id, sizeof(r->id), id);
    log_field(&fields, "PIPIT_EVENT", "request");
    log_field(&fields, "PIPIT_REQUEST_ID", "%s", id);
    log_field(&fields, "PIPIT_PRINCIPAL", "%u", r->who->uid);
    log_field(&fields, "PIPIT_KIND", "%s", lane_kind_name(r->kind));
    log_field(&fields, "PIPIT_REASON", "%s", end);
    log_field(&fields, "PIPIT_PROMPT_TOKENS", "%d", n_prompt);
    log_field(&fields, "PIPIT_CACHED_TOKENS", "%d", n_cached);
    log_field(&fields, "PIPIT_NEW_TOKENS", "%d", n_new);
    add_ms(&fields, "PIPIT_QUEUE_MS", queue_ns);
    if (done) {
        add_done(&fields, &last->done);
    }
    if (err != 0) {
        log_field(&fields, "PIPIT_SESSION_CAUSE", "%s", strerror(err));
        (void)snprintf(unsaved, sizeof(unsaved), ", its session was not saved: %s", strerror(err));
    }
    add_ms(&fields, "PIPIT_MS", r->ended_ns - r->accepted_ns);
    if (rate->n_left_out && rate != &f->logline.others) {
        log_field(&fields, "PIPIT_LEFT_OUT", "%llu", (unsigned long long)rate->n_left_out);
        (void)snprintf(left_out, sizeof(left_out), " (%llu before it not told: too many)",
                       (unsigned long long)rate->n_left_out);
        rate->n_left_out = 0;
    }
    log_write_fields(is_ours(last) ? LOG_LEVEL_WARNING : LOG_LEVEL_INFO, &fields,
                     "request %llu of uid %u: %s, %d + %d tokens, %.1f ms%s%s",
                     (unsigned long long)r->number, r->who->uid, end, n_prompt, n_new, ms, unsaved,
                     left_out);
}
