/* SPDX-License-Identifier: Apache-2.0 */
/* Front to engine and back. The engine knows a request by the front's number (in the first 8 bytes
 * of the record's id); what it says about one that is not running here any more is dropped.
 *
 * Replay: a generated answer is continued by forcing the tokens in its log; answers of other kinds
 * are computed again and as many events as the log has are dropped. */

#include "daemon/front/dispatch.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"
#include "daemon/front/ending.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/sessions.h"

#define PAUSE_STEP_NS 100000000
#define APART_NS                                                                                   \
    10000000000 /* one that is apart waits so long for an idle engine, then others for it */

static bool reads_text(uint32_t kind)
{
    return kind == LANE_KIND_TOKENIZE || kind == LANE_KIND_DETOKENIZE;
}

/* Its thread reads texts in turns by person. Who fills the room in the engine would keep the others
 * from taking theirs. */
static bool only_tokenizes(const void *arg, const struct request *r)
{
    (void)arg;
    return reads_text(r->kind) && r->who->account->n_texts < DISPATCH_TEXTS_PERSON;
}

static bool needs_sequence(const struct request *r)
{
    return !reads_text(r->kind);
}

static bool generates(const struct request *r)
{
    return r->kind == LANE_KIND_GENERATE || r->kind == LANE_KIND_CHAT;
}

static void engine_record(struct lane_record *rec, uint32_t type, const struct request *r)
{
    lane_record_init(rec, type, NULL);
    memcpy(rec->h.id, &r->number, sizeof(r->number));
}

static int32_t n_slots(const struct front *f)
{
    int32_t n = engine_link_info(f->engine)->n_seqs;

    return n > 0 ? n : 1;
}

/* Is somebody else about: connected, or with a request that runs, waits or is kept? Who may look
 * what is wrong does not count while he asks nothing. */
static bool others_about(const struct front *f, uint32_t person)
{
    for (const struct account *a = f->requests.accounts; a; a = a->next) {
        if (a->person != person) {
            return true;
        }
    }
    for (const struct lane *l = f->lanes; l; l = l->next) {
        bool admin = l->privileged || l->uid == 0 || l->uid == geteuid();

        if (!admin && !l->closing && l->hello_done && l->person != person) {
            return true;
        }
    }
    return false;
}

/* May this person, who has so many, have one more sequence? One who has all of them keeps who comes
 * next waiting for the end of a whole answer. */
static bool may_have_another(const struct front *f, uint32_t person, uint32_t has)
{
    uint32_t n = (uint32_t)n_slots(f);
    uint32_t most = f->config->person_sequences ? (uint32_t)f->config->person_sequences : n;

    if (!f->config->person_sequences && n > 1 && has >= n - 1 && others_about(f, person)) {
        most = n - 1;
    }
    return has < most;
}

/* Asked of each that waits: one answer a person is enough while nothing starts. */
static bool may_run(const void *arg, const struct request *r)
{
    const struct front *f = arg;
    struct account *a = r->who->account;

    if (!needs_sequence(r)) {
        return false;
    }
    if (a->asked != f->n_asked) {
        a->asked = f->n_asked;
        a->may = may_have_another(f, a->person, a->n_sequences);
    }
    return a->may;
}

bool dispatch_can_start(const struct front *f, uint32_t kind, uint32_t person)
{
    const struct account *a = request_account(&f->requests, person);

    if (!engine_link_ready(f->engine) || f->queue.n > 0 || f->n_suspects > 0) {
        return false;
    }
    return reads_text(kind)
               ? f->n_texts < DISPATCH_TEXTS_MAX && (!a || a->n_texts < DISPATCH_TEXTS_PERSON)
               : f->n_running < (uint32_t)n_slots(f) &&
                     may_have_another(f, person, a ? a->n_sequences : 0);
}

/* The engine has one more of its principal's, or (-1) one less. */
static void count(struct front *f, const struct request *r, int n)
{
    r->who->n_running += (uint32_t)n;
    *(reads_text(r->kind) ? &f->n_texts : &f->n_running) += (uint32_t)n;
    *(reads_text(r->kind) ? &r->who->account->n_texts : &r->who->account->n_sequences) +=
        (uint32_t)n;
    f->n_suspects += r->alone ? (uint32_t)n : 0;
}

static struct request *take(struct front *f, struct request *r)
{
    queue_remove(&f->queue, r);
    return r;
}

/* One that starts only where nothing runs, or NULL. *ret_waits: nothing else may start, either. */
static struct request *next_alone(struct front *f, bool *ret_waits)
{
    bool idle = f->n_running + f->n_texts == 0;
    struct request *apart = NULL;

    *ret_waits = false;
    for (struct request *r = f->queue.first; r; r = r->queue_next) {
        if (r->alone) {
            *ret_waits = !idle;
            return idle ? take(f, r) : NULL;
        }
        apart = apart ? apart : r->apart ? r : NULL;
    }
    if (apart && clock_ns() - apart->accepted_ns >= APART_NS) {
        *ret_waits = !idle;
        return idle ? take(f, apart) : NULL;
    }
    return NULL;
}

/* The next request to send, taken out of the queue, or NULL. */
static struct request *next_request(struct front *f)
{
    struct request *r;
    bool waits;

    if (f->n_suspects > 0) {
        return NULL; /* one runs, alone */
    }
    f->n_asked++;
    r = next_alone(f, &waits);
    if (r || waits) {
        return r;
    }
    r = f->n_texts < DISPATCH_TEXTS_MAX ? queue_pop_of(&f->queue, only_tokenizes, NULL) : NULL;
    if (!r && f->n_running < (uint32_t)n_slots(f)) {
        r = queue_pop_of(&f->queue, may_run, f);
    }
    if (r || f->n_running + f->n_texts > 0 || !f->queue.first) {
        return r;
    }
    return take(f, f->queue.first); /* nothing runs, and all that wait are apart */
}

/* What the log has already is forced, or dropped when it comes again. */
static int prepare_replay(struct front *f, struct request *r, struct lane_engine_request *q)
{
    int rc;

    r->n_suppress = 0;
    if (!generates(r)) {
        r->n_suppress = r->log.seen.seq - 2; /* all but LANE_ACCEPTED */
        return 0;
    }
    while ((rc = journal_forced(&f->journal, &r->log, &q->forced_offset, &q->n_forced)) != 0) {
        if (!ending_make_room(f, r->who->uid, rc)) {
            return -ENOMEM;
        }
    }
    q->text_sent = r->log.text_bytes;
    return 0;
}

/* Other weights would go on with the first ones' words, or rows, as if they were their own. What
 * has said nothing yet is the new model's. */
static bool is_of_this_model(struct front *f, struct request *r)
{
    struct journal_head *head = journal_head(&f->journal, &r->log);
    uint64_t model = engine_link_model(f->engine);

    if (r->n_crashes && r->log.seen.seq > 2 && head->model && model && head->model != model) {
        return false;
    }
    head->model = model;
    return true;
}

static void send_credit(struct front *f, struct request *r)
{
    struct lane_record rec;

    engine_record(&rec, LANE_ENGINE_CREDIT, r);
    rec.credit.n_rows = r->credit;
    engine_link_send(f->engine, &rec);
}

static void start(struct front *f, struct request *r)
{
    struct lane *home = r->in_buf || r->out_buf ? lane_find(f, r->home_lane) : NULL;
    AUTO_CLOSE int dir = -1;
    struct lane_record rec;
    struct error e = {0};

    if (r->flags & LANE_F_SESSION) {
        dir = sessions_folder(f->config, r->who->uid, &e);
        if (dir < 0) {
            ending_error(f, r, LANE_ERR_UNSUPPORTED, "%s", e.text);
            return;
        }
    }
    engine_record(&rec, LANE_ENGINE_REQUEST, r);
    rec.e_request =
        (struct lane_engine_request){.kind = r->kind,
                                     .urgency = r->urgency,
                                     .lane_id = home ? home->id : 0,
                                     .journal_offset = journal_tlv_offset(&r->log),
                                     .tlv_bytes = r->log.tlv_bytes,
                                     .out_offset = r->out_offset,
                                     .out_bytes = r->out_bytes,
                                     .in_offset = r->in_offset,
                                     .in_bytes = r->in_bytes,
                                     .principal = r->who->hash,
                                     .out_buf = r->out_buf,
                                     .out_generation = r->out_generation,
                                     .flags = r->flags | (r->n_crashes ? LANE_F_REPLAYED : 0),
                                     .person = r->who->person,
                                     .seed = r->seed,
                                     .session_bytes = f->config->session_bytes};
    rec.e_request.session_writes = lane_session_writes_field(f->config->session_writes);
    memcpy(rec.e_request.client_id, r->id, sizeof(r->id));
    if (!is_of_this_model(f, r)) {
        ending_error(
            f, r, LANE_ERR_MODEL,
            "another model was put in this one's place while it answered, and can not go on "
            "with its words: ask again");
        return;
    }
    if (r->n_crashes && prepare_replay(f, r, &rec.e_request)) {
        ending_error(f, r, LANE_ERR_NO_MEMORY, "the journal has no room to replay this request");
        return;
    }
    if (home && engine_link_lane_open(f->engine, home)) {
        ending_error(f, r, LANE_ERR_NO_MEMORY, "no descriptors are left to open the lane's arenas");
        return;
    }
    r->alone |= r->apart;
    r->state = REQUEST_RUNNING;
    journal_head(&f->journal, &r->log)->running = 1;
    r->started_ns = clock_ns();
    count(f, r, 1);
    if (dir >= 0) {
        engine_link_give(f->engine, &rec, STEAL_FD(dir));
    } else {
        engine_link_send(f->engine, &rec);
    }
    if (r->credit) {
        send_credit(f, r);
    }
    engine_link_busy(f->engine, true);
}

/* Who waits for a sequence: two of them tell of everybody whether another does. */
struct waiting {
    const struct account *one;
    const struct account *other;
};

static struct waiting who_waits(const struct front *f)
{
    struct waiting w = {0};

    for (const struct request *q = f->queue.first; q && !w.other; q = q->queue_next) {
        if (!needs_sequence(q) || q->who->account == w.one) {
            continue;
        }
        *(w.one ? &w.other : &w.one) = q->who->account;
    }
    return w;
}

static bool others_wait(const struct waiting *w, const struct request *r)
{
    return w->other || (w->one && w->one != r->who->account);
}

static bool apart_is_due(const struct front *f, int64_t now)
{
    for (const struct request *r = f->queue.first; r; r = r->queue_next) {
        if (r->apart && now - r->accepted_ns >= APART_NS) {
            return true;
        }
    }
    return false;
}

static void watch_pauses(struct front *f);

static void on_pauses(void *arg)
{
    struct front *f = arg;
    int64_t now = clock_ns();
    int64_t step = now - f->pauses_ns;
    const struct waiting waiting = who_waits(f);
    struct request *next;

    for (struct request *r = f->requests.open.oldest; r; r = next) {
        next = r->age_next;
        if (r->state != REQUEST_RUNNING || !r->paused || r->stop_reason ||
            !others_wait(&waiting, r)) {
            continue;
        }
        r->paused_ns += step;
        if ((double)r->paused_ns >= f->config->pause_limit * 1e9) {
            log_info("request %llu of uid %u kept others waiting for its reader for %.1f s "
                     "(--pause-limit): it is cancelled",
                     (unsigned long long)r->number, r->who->uid, (double)r->paused_ns / 1e9);
            ending_cancel(f, r, LANE_REASON_SLOW_CONSUMER);
        }
    }
    f->dispatch_wanted |= apart_is_due(f, now); /* nothing else happens then */
    watch_pauses(f);
}

static void watch_pauses(struct front *f)
{
    f->pauses_ns = clock_ns();
    if (f->queue.n > 0 && f->n_running + f->n_texts > 0) {
        loop_timer_at(&f->loop, &f->pause_timer, f->pauses_ns + PAUSE_STEP_NS, on_pauses, f);
    }
}

void dispatch_run(struct front *f)
{
    struct request *r;

    f->dispatch_wanted = false;
    while (!f->stopping && !f->handing_over && engine_link_ready(f->engine) &&
           (r = next_request(f))) {
        start(f, r);
    }
    if (f->pause_timer.index == 0) {
        watch_pauses(f);
    }
}

void dispatch_forget(struct front *f, struct request *r)
{
    if (r->state != REQUEST_RUNNING) {
        return;
    }
    count(f, r, -1);
    r->alone = false;
    if (!reads_text(r->kind)) {
        queue_served(&f->queue, clock_ns() - r->started_ns);
    }
    if (f->n_running + f->n_texts == 0) {
        engine_link_busy(f->engine, false);
    }
}

void dispatch_cancel(struct front *f, struct request *r)
{
    struct lane_record rec;

    engine_record(&rec, LANE_ENGINE_CANCEL, r);
    rec.e_cancel.reason = r->stop_reason;
    engine_link_send(f->engine, &rec);
}

void dispatch_credit(struct front *f, struct request *r, uint64_t n_rows)
{
    if (n_rows > r->credit) {
        r->credit = n_rows;
        r->paused = false;
        if (n_rows >= r->credit_due) {
            loop_timer_off(&f->loop, &r->reader);
        }
        if (r->state == REQUEST_RUNNING) {
            send_credit(f, r);
        }
    }
}

/* The front adds to the engine's figures what the engine cannot know. */
static void complete_done(struct front *f, const struct request *r, struct lane_record *rec)
{
    int64_t waited = r->started_ns - r->accepted_ns;
    int64_t ready = engine_link_ready_ns(f->engine) - r->accepted_ns;
    int64_t load = ready > 0 ? (ready < waited ? ready : waited) : 0;

    rec->done.load_ns = load;
    rec->done.queue_ns += waited - load;
    if (r->n_crashes) {
        rec->h.flags |= LANE_F_REPLAYED;
        rec->done.replay = rec->done.replay ? rec->done.replay : 1;
    }
}

/* It ran alone, and nothing died. */
static void trust(struct front *f, struct request *r)
{
    r->alone = false;
    r->apart = false;
    f->n_suspects--;
    f->dispatch_wanted = true;
    blame_clear_one(&f->blame, r->who->person, clock_ns());
}

static void on_token(struct front *f, struct request *r)
{
    f->counters.n_new_tokens += generates(r);
    if (r->log.n_tokens == 1 && generates(r)) {
        f->counters.ttft_ns += (double)(clock_ns() - r->accepted_ns);
        f->counters.n_first++;
    }
    if (r->alone && r->log.n_tokens >= r->n_at_crash + DISPATCH_TRUST) {
        trust(f, r);
    }
    if (r->n_suspected && r->log.n_tokens >= r->n_at_crash + DISPATCH_CLEAR) {
        r->n_suspected = 0;
        journal_head(&f->journal, &r->log)->n_suspected = 0;
    }
}

static void on_slow_reader(void *arg)
{
    struct request *r = arg;

    ending_cancel(r->front, r, LANE_REASON_SLOW_CONSUMER);
}

/* Rows of logits: when the window is full, its reader has as long as one that does not read its
 * socket, and then must have read half the window: a row now and then would hold a sequence, and
 * what scored texts share, for as long as it liked. */
static void on_rows(struct front *f, struct request *r, const struct lane_bulk_body *b)
{
    uint64_t allowed = r->credit > b->window ? r->credit : b->window;

    r->paused = b->row0 + b->n_rows >= allowed;
    if (r->paused && r->reader.index == 0) {
        r->credit_due = allowed + (b->window + 1) / 2;
        loop_timer_at(&f->loop, &r->reader, clock_ns() + (int64_t)(f->config->stall_timeout * 1e9),
                      on_slow_reader, r);
    }
}

HOT void dispatch_event(struct front *f, struct lane_record *rec)
{
    struct request *r;
    uint64_t number;
    int rc;

    memcpy(&number, rec->h.id, sizeof(number));
    r = request_by_number(&f->requests, number);
    if (!r || r->state != REQUEST_RUNNING) {
        return;
    }
    if (rec->h.type == LANE_PROGRESS) {
        if (r->flags & LANE_F_PROGRESS) {
            lane_send_progress(r, rec);
        }
        return;
    }
    if (rec->h.type == LANE_DONE || rec->h.type == LANE_ERROR) {
        if (r->alone && r->stop_reason == 0) {
            trust(f, r);
        }
        if (rec->h.type == LANE_DONE) {
            complete_done(f, r, rec);
        }
        ending_record(f, r, rec);
        return;
    }
    if (rec->h.type == LANE_BULK && rec->bulk.kind == LANE_BULK_LOGITS && !generates(r)) {
        on_rows(f, r, &rec->bulk);
    }
    if (r->n_suppress > 0) {
        r->n_suppress--;
        return;
    }
    while ((rc = journal_append(&f->journal, &r->log, rec)) != 0) {
        if (!ending_make_room(f, r->who->uid, rc)) {
            r->stop_reason = LANE_REASON_ERROR;
            dispatch_cancel(f, r);
            ending_error(f, r, LANE_ERR_NO_MEMORY,
                         "the journal of %lld bytes is full%s: a larger --journal-bytes holds "
                         "longer answers",
                         (long long)f->journal.size,
                         rc == -EDQUOT ? ", for 7/8 of it are this user's" : "");
            return;
        }
    }
    if (rec->h.type == LANE_TOKEN) {
        on_token(f, r);
    }
    lane_pump(r);
}

void dispatch_loading(struct front *f, uint32_t progress)
{
    struct lane_record rec;

    for (struct request *r = f->queue.first; r; r = r->queue_next) {
        if (r->flags & LANE_F_PROGRESS) {
            lane_record_init(&rec, LANE_PROGRESS, NULL);
            rec.progress = (struct lane_progress){
                .n_done = progress, .n_total = 1000, .phase = LANE_PHASE_LOADING};
            lane_send_progress(r, &rec);
        }
    }
}

static void charge(struct front *f, struct request *r, uint32_t n)
{
    if (!blame_charge(&f->blame, r->who->person, n, clock_ns())) {
        return;
    }
    log_warning("request %llu of uid %u %s: the user's requests run apart for a while",
                (unsigned long long)r->number, r->who->uid,
                n == BLAME_CONVICTED ? "killed an engine twice"
                                     : "was withdrawn while suspected of an engine's death");
}

void dispatch_withdrawn(struct front *f, struct request *r)
{
    if (r->alone && r->n_suspected > 0) {
        charge(f, r, BLAME_WITHDRAWN);
    }
}

/* It is known who it was: the others that ran beside it are suspected no more. */
static void convict(struct front *f, struct request *r)
{
    charge(f, r, BLAME_CONVICTED);
    for (struct request *o = f->requests.open.oldest; o; o = o->age_next) {
        o->n_suspected = 0;
        journal_head(&f->journal, &o->log)->n_suspected = 0;
        o->alone = o->alone && o->state == REQUEST_RUNNING; /* which is r */
    }
}

/* `alone`: nothing else ran. */
static void lost_one(struct front *f, struct request *r, bool alone)
{
    journal_rewind(&f->journal, &r->log);
    loop_timer_off(&f->loop, &r->reader);
    r->n_crashes++;
    r->n_suspected++;
    if (r->stop_reason) {
        ending_reason(f, r, r->stop_reason);
    } else if (f->stopping) {
        ending_reason(f, r, LANE_REASON_SHUTDOWN);
    } else if (r->n_suspected > 1 && alone) {
        convict(f, r);
        ending_error(f, r, LANE_ERR_ENGINE_CRASHED,
                     "the engine died twice while this request was running");
    } else {
        dispatch_forget(f, r);
        journal_head(&f->journal, &r->log)->n_crashes = r->n_crashes;
        journal_head(&f->journal, &r->log)->n_suspected = r->n_suspected;
        journal_head(&f->journal, &r->log)->running = 0;
        r->alone = true;
        r->n_at_crash = r->log.n_tokens;
        queue_push_front(&f->queue, r);
    }
}

void dispatch_lost(struct front *f)
{
    bool alone = f->n_running + f->n_texts == 1;
    struct request *prev;

    if (f->n_running + f->n_texts > 0) {
        blame_death(&f->blame);
    }
    /* Newest first, each to the front of the queue: the oldest will be replayed first. */
    for (struct request *r = f->requests.open.newest; r; r = prev) {
        prev = r->age_prev;
        if (r->state == REQUEST_RUNNING) {
            lost_one(f, r, alone);
        }
    }
    engine_link_busy(f->engine, false);
}

void dispatch_failed(struct front *f, const char *cause)
{
    while (f->queue.first) {
        struct request *r = f->queue.first;

        queue_remove(&f->queue, r);
        ending_error(f, r, LANE_ERR_MODEL, "the model cannot be loaded: %s", cause);
    }
}
