/* SPDX-License-Identifier: Apache-2.0 */
/* Admission and the client's side of a request's life. A request is refused before anything is
 * allocated for it where possible: state of the daemon, room in the queue, leases, limits; then its
 * items are copied, once, from the client's memory into the journal. The client may change its
 * memory during that copy; nobody looks at it before or after. */

#include "daemon/front/flow.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/dispatch.h"
#include "daemon/front/ending.h"
#include "daemon/front/engine_link.h"
#include "daemon/front/figures.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/lifecycle.h"
#include "daemon/front/requests.h"
#include "daemon/front/status.h"

#define ORPHAN_NS 10000000000

/* Somebody reads it (again), from event `seq` on. */
static bool attach(struct front *f, struct lane *l, struct request *r, uint64_t seq)
{
    struct journal_cursor c;

    if (!journal_seek(&f->journal, &r->log, seq, &c)) {
        return false;
    }
    if (r->state != REQUEST_FINISHED) {
        loop_timer_off(&f->loop, &r->fate);
    }
    lane_detach(r);
    r->cursor = c;
    lane_attach(l, r);
    return true;
}

/* Would it have to wait where there is no room to wait, or is there no daemon to ask? */
static bool refused_by_state(struct front *f, struct lane *l, uint32_t person,
                             const struct lane_record *r)
{
    if (f->stopping) {
        lane_send_error(l, r->h.id, LANE_ERR_SHUTDOWN, 0, "the daemon is stopping");
        return true;
    }
    if (f->drain) {
        bool ends = f->drain == LANE_CONTROL_DRAIN;

        figures_refused(f, REFUSED_DRAIN);
        lane_send_error(l, r->h.id, ends ? LANE_ERR_SHUTDOWN : LANE_ERR_BUSY, lifecycle_retry_ms(f),
                        "the daemon drains: no new requests until it %s",
                        ends ? "is started again" : "has loaded its model again");
        return true;
    }
    if (status_state(f) == LANE_FAILED) {
        uint32_t ms = engine_link_refuse_ms(f->engine);

        if (ms > 0) {
            figures_refused(f, REFUSED_MODEL);
            lane_send_error(l, r->h.id, LANE_ERR_MODEL, ms, "the model cannot be loaded: %s",
                            engine_link_cause(f->engine));
            return true;
        }
        engine_link_load(f->engine);
    }
    if (blame_wait_ms(&f->blame, person, clock_ns()) > 0) {
        figures_refused(f, REFUSED_DEATHS);
        lane_send_error(l, r->h.id, LANE_ERR_BUSY, blame_wait_ms(&f->blame, person, clock_ns()),
                        "engines died while this user's requests ran: charged %u, allowed are %d",
                        blame_of(&f->blame, person, clock_ns()), BLAME_FREE);
        return true;
    }
    if (!dispatch_can_start(f, r->request.kind, person) && !queue_has_room(&f->queue, person)) {
        uint32_t ms = queue_retry_ms(&f->queue, engine_link_info(f->engine)->n_seqs);

        figures_refused(f, REFUSED_QUEUE);
        engine_link_load(f->engine); /* where nothing may wait, nothing else would */
        if (f->queue.max == 0) {
            lane_send_error(l, r->h.id, LANE_ERR_BUSY, ms,
                            "no sequence is free, and none may wait for one: max-queue is 0");
            return true;
        }
        lane_send_error(l, r->h.id, LANE_ERR_BUSY, ms,
                        "%u requests wait already, max-queue is %u%s", f->queue.n, f->queue.max,
                        f->queue.n < f->queue.max ? "; most of them are this user's" : "");
        return true;
    }
    return false;
}

static bool lease_error(struct lane *l, const struct lane_record *r, const char *which)
{
    lane_send_error(l, r->h.id, LANE_ERR_DENIED, 0, "the %s lease is not this client's, or in use",
                    which);
    return false;
}

static bool too_large(struct lane *l, const struct lane_record *r, const char *what, uint64_t asked,
                      uint64_t allowed)
{
    struct lane_record e;

    lane_record_init(&e, LANE_ERROR, r->h.id);
    e.h.seq = 1;
    e.error.code = LANE_ERR_TOO_LARGE;
    e.error.err = -E2BIG;
    e.error.count_a = asked;
    e.error.count_b = allowed;
    (void)strncpy(e.error.text, what, sizeof(e.error.text) - 1);
    lane_send(l, &e);
    return false;
}

struct leases {
    struct lane *home; /* whose the others are */
    struct lease *items;
    struct lease *in;
    struct lease *out;
};

/* A request of the gateway may name the leases of a lane that its principal has; whether another's
 * exists is not told. */
static struct lane *lease_home(struct lane *l, const struct flow_who *who,
                               const struct lane_request *q)
{
    struct lane *home = q->lease_lane ? lane_find(l->front, q->lease_lane) : NULL;

    if (q->lease_lane == 0) {
        return l;
    }
    /* Not the gateway's own either: there lie the requests of all its clients. */
    return home && l->privileged && !home->privileged && home->hello_done &&
                   home->uid == who->uid && who->tenant_len == 0
               ? home
               : NULL;
}

static bool find_leases(struct lane *l, const struct flow_who *who, const struct lane_record *r,
                        struct leases *ret)
{
    const struct lane_request *q = &r->request;
    uint64_t max = l->front->config->max_request_bytes;

    *ret = (struct leases){.home = lease_home(l, who, q)};
    if (!ret->home) {
        return lease_error(l, r, q->in_buf ? "token" : "output");
    }
    if (q->tlv_bytes) {
        ret->items = lease_of_client(&l->leases, LANE_ARENA_C2E, q->buf, q->generation);
        if (!ret->items) {
            return lease_error(l, r, "request");
        }
        max = max < ret->items->length ? max : ret->items->length;
        if (q->tlv_bytes > max) {
            return too_large(l, r, "the request's items are too long", q->tlv_bytes, max);
        }
    }
    if (q->in_buf) {
        ret->in = lease_of_client(&ret->home->leases, LANE_ARENA_C2E, q->in_buf, q->in_generation);
        if (!ret->in) {
            return lease_error(l, r, "token");
        }
        if (q->in_bytes > ret->in->length) {
            return too_large(l, r, "more token ids than their lease holds", q->in_bytes,
                             ret->in->length);
        }
    }
    if (q->out_buf) {
        ret->out =
            lease_of_client(&ret->home->leases, LANE_ARENA_E2C, q->out_buf, q->out_generation);
        if (!ret->out) {
            return lease_error(l, r, "output");
        }
    }
    if ((ret->in || ret->out) && (r->h.flags & LANE_F_DETACH)) {
        lane_send_error(l, r->h.id, LANE_ERR_INVALID, 0,
                        "a request with leases cannot be detached from its lane");
        return false;
    }
    return true;
}

static bool begin_log(struct front *f, struct lane *l, struct request *r,
                      const struct lane_request *q, const struct leases *leases)
{
    struct journal_head head = {.number = r->number,
                                .uid = r->who->uid,
                                .tenant_len = r->who->tenant_len,
                                .kind = r->kind,
                                .flags = r->flags,
                                .urgency = r->urgency,
                                .tlv_bytes = q->tlv_bytes,
                                .seed = r->seed};
    int rc;

    memcpy(head.id, r->id, sizeof(head.id));
    memcpy(head.tenant, r->who->tenant, sizeof(head.tenant));
    while ((rc = journal_begin(&f->journal, &head, r->who->person, &r->log)) != 0) {
        if (!ending_make_room(f, r->who->uid, rc)) {
            figures_refused(f, REFUSED_JOURNAL);
            lane_send_error(l, r->id, LANE_ERR_BUSY,
                            queue_retry_ms(&f->queue, engine_link_info(f->engine)->n_seqs),
                            rc == -EDQUOT ? "7/8 of the journal are this user's: requests under "
                                            "way and answers that are not read"
                                          : "the journal is full of other requests");
            return false;
        }
    }
    r->log.hold_bulk = r->kind == LANE_KIND_GENERATE || r->kind == LANE_KIND_CHAT;
    if (q->tlv_bytes && pread(l->c2e_fd, journal_tlv(&f->journal, &r->log), q->tlv_bytes,
                              (off_t)leases->items->offset) != (ssize_t)q->tlv_bytes) {
        lane_send_error(l, r->id, LANE_ERR_INTERNAL, 0, "cannot copy the request");
        return false;
    }
    return true;
}

static void lend_leases(struct request *r, const struct lane_request *q,
                        const struct leases *leases)
{
    if (leases->in) {
        r->in_buf = q->in_buf;
        r->in_offset = leases->in->offset;
        r->in_bytes = q->in_bytes;
        lease_lend(leases->in);
    }
    if (leases->out) {
        r->out_buf = q->out_buf;
        r->out_generation = q->out_generation;
        r->out_offset = leases->out->offset;
        r->out_bytes = leases->out->length;
        lease_lend(leases->out);
    }
}

static void on_deadline(void *arg)
{
    struct request *r = arg;

    ending_cancel(r->front, r, LANE_REASON_TIMEOUT);
}

/* What uses the lane's arenas ends with them. */
static void keep_for_successor(struct front *f, struct request *r)
{
    struct journal_head *head = journal_head(&f->journal, &r->log);

    head->accepted_ns = r->accepted_ns;
    head->deadline_ns = r->deadline.index ? r->deadline.when_ns : 0;
    if (r->in_buf == 0 && r->out_buf == 0) {
        journal_commit(&f->journal, &r->log);
    }
}

/* From here on the request is known and will end with a record in its log. */
static void accept_request(struct front *f, struct lane *l, struct request *r, uint32_t timeout_ms)
{
    struct lane_record accepted;

    lane_record_init(&accepted, LANE_ACCEPTED, NULL);
    accepted.accepted = (struct lane_accepted){.front_epoch = f->epoch,
                                               .model_epoch = engine_link_epoch(f->engine),
                                               .n_ahead = f->queue.n};
    /* A fresh first block has room for it. */
    if (journal_append(&f->journal, &r->log, &accepted)) {
        log_error("request %llu: its log has no room for the first event",
                  (unsigned long long)r->number);
    }
    r->accepted_ns = clock_ns();
    int64_t most = (int64_t)(f->config->request_timeout * 1e9);
    int64_t limit = (int64_t)timeout_ms * 1000000;

    limit = limit == 0 || (most > 0 && most < limit) ? most : limit;
    if (limit > 0) {
        loop_timer_at(&f->loop, &r->deadline, r->accepted_ns + limit, on_deadline, r);
    }
    keep_for_successor(f, r);
    f->counters.n_requests++;
    f->dispatch_wanted = true;
    f->status_changed = true;
    queue_push(&f->queue, r);
    (void)attach(f, l, r, 1);
}

/* Where the table is full, or the user has its share of it, ended requests that were read to the
 * end make room. */
static int create(struct front *f, const struct flow_who *who, const uint8_t id[16],
                  struct request **ret)
{
    for (;;) {
        int rc = request_create(&f->requests, who->uid, who->tenant, who->tenant_len, id, ret);

        if ((rc != -EBUSY && rc != -EDQUOT) || !ending_make_room(f, who->uid, rc)) {
            return rc;
        }
    }
}

void flow_request(struct front *f, struct lane *l, const struct flow_who *who,
                  const struct lane_record *rec)
{
    const struct lane_request *q = &rec->request;
    struct principal *p = request_principal(&f->requests, who->uid, who->tenant, who->tenant_len);
    struct request *r = request_find(&f->requests, p, rec->h.id);
    struct leases leases;
    int rc;

    if (r) {
        (void)attach(f, l, r, 1);
        return;
    }
    if (rec->h.flags & LANE_F_SESSION && who->tenant_len) {
        lane_send_error(l, rec->h.id, LANE_ERR_DENIED, 0,
                        "sessions are a user's: a request that names a tenant has none");
        return;
    }
    if (refused_by_state(f, l, persons_of(&f->persons, who->uid), rec) ||
        !find_leases(l, who, rec, &leases)) {
        return;
    }
    rc = create(f, who, rec->h.id, &r);
    if (rc) {
        figures_refused(f, REFUSED_KEPT);
        lane_send_error(l, rec->h.id, LANE_ERR_BUSY, 1000, "%s",
                        rc == -EDQUOT  ? "too many requests of this user are kept"
                        : rc == -EBUSY ? "too many requests are kept"
                                       : "no memory for a request");
        return;
    }
    r->front = f;
    r->kind = q->kind;
    r->flags = rec->h.flags;
    r->urgency = q->urgency;
    r->home_lane = leases.home->id;
    r->apart = blame_of(&f->blame, r->who->person, clock_ns()) > 0;
    if (getrandom(&r->seed, sizeof(r->seed), 0) != sizeof(r->seed)) {
        r->seed = (uint64_t)clock_ns();
    }
    if (!begin_log(f, l, r, q, &leases)) {
        ending_discard(f, r);
        return;
    }
    lend_leases(r, q, &leases);
    accept_request(f, l, r, q->timeout_ms);
}

void flow_resume(struct front *f, struct lane *l, const struct flow_who *who, const uint8_t id[16],
                 uint64_t next_seq)
{
    struct principal *p = request_principal(&f->requests, who->uid, who->tenant, who->tenant_len);
    struct request *r = request_find(&f->requests, p, id);

    if (!r) {
        lane_send_error(l, id, LANE_ERR_NOT_FOUND, 0, "no request of that id is known (any more)");
    } else if (!attach(f, l, r, next_seq)) {
        lane_send_error(l, id, LANE_ERR_INVALID, 0,
                        "next_seq is beyond what was said: at most %llu",
                        (unsigned long long)r->log.seen.seq);
    }
}

static void cancel(struct front *f, struct lane *l, struct request *r)
{
    struct lane_record receipt;

    if (r->lane != l) {
        lane_record_init(&receipt, LANE_DONE, r->id);
        receipt.done.reason = LANE_REASON_CANCELLED;
        lane_send(l, &receipt);
    }
    ending_cancel(f, r, LANE_REASON_CANCELLED);
}

/* Whoever's they are. Two users may have chosen the same id: then one of them could keep the
 * other's from being cancelled, if it were not all. */
static bool cancel_all(struct front *f, struct lane *l, const uint8_t id[16])
{
    struct request *next;
    bool any = false;

    for (struct request *r = f->requests.open.oldest; r; r = next) {
        next = r->age_next;
        if (memcmp(r->id, id, sizeof(r->id)) == 0) {
            log_info("request %llu of uid %u is cancelled by uid %u", (unsigned long long)r->number,
                     r->who->uid, l->uid);
            cancel(f, l, r);
            any = true;
        }
    }
    return any;
}

void flow_cancel(struct front *f, struct lane *l, const struct flow_who *who, const uint8_t id[16])
{
    struct principal *p = request_principal(&f->requests, who->uid, who->tenant, who->tenant_len);
    struct request *r = request_find(&f->requests, p, id);

    if (r) {
        cancel(f, l, r);
    } else if (!requests_admin(l) || !cancel_all(f, l, id)) {
        lane_send_error(l, id, LANE_ERR_NOT_FOUND, 0, "no request of that id is known (any more)");
    }
}

void flow_credit(struct front *f, struct lane *l, const uint8_t id[16], uint64_t n_rows)
{
    struct request *r = l->attached;

    for (uint32_t i = 0; i < l->n_attached; i++, r = r->lane_next) {
        if ((r->home_lane == l->id || l->privileged) && memcmp(r->id, id, sizeof(r->id)) == 0) {
            dispatch_credit(f, r, n_rows);
            return;
        }
    }
}

static void on_orphan(void *arg)
{
    struct request *r = arg;

    ending_cancel(r->front, r, LANE_REASON_CANCELLED);
}

/* A death of the front while an engine had the request counts like one of the engine: it may have
 * been the cause. */
static void adopt_unfinished(struct front *f, struct request *r, const struct journal_head *head)
{
    struct journal_head *mine = journal_head(&f->journal, &r->log);

    journal_rewind(&f->journal, &r->log);
    r->n_crashes = (head->n_crashes > 2 ? 2 : head->n_crashes) + (head->running != 0);
    r->n_suspected = (head->n_suspected > 2 ? 2 : head->n_suspected) + (head->running != 0);
    r->stop_reason = head->stop_reason;
    mine->running = 0;
    mine->n_crashes = r->n_crashes;
    mine->n_suspected = r->n_suspected;
    if (r->stop_reason) {
        ending_reason(f, r, r->stop_reason);
    } else if (r->n_suspected > 1) {
        ending_error(f, r, LANE_ERR_ENGINE_CRASHED,
                     "the daemon died while this request was running, as something had before");
    } else {
        r->alone = r->n_suspected > 0;
        r->n_at_crash = r->log.n_tokens;
        if (head->deadline_ns) {
            loop_timer_at(&f->loop, &r->deadline, head->deadline_ns, on_deadline, r);
        }
        loop_timer_at(&f->loop, &r->fate, clock_ns() + ORPHAN_NS, on_orphan, r);
        queue_push(&f->queue, r);
    }
}

int flow_adopt(struct front *f, const struct journal_head *head, const struct journal_entry *log)
{
    struct principal *p =
        request_principal(&f->requests, head->uid, head->tenant, head->tenant_len);
    struct journal_entry mine = *log;
    struct request *r = request_find(&f->requests, p, head->id);
    int64_t now = clock_ns();
    int rc =
        r ? -EEXIST
          : request_create(&f->requests, head->uid, head->tenant, head->tenant_len, head->id, &r);

    if (rc) {
        journal_end(&f->journal, &mine);
        return rc;
    }
    r->front = f;
    r->kind = head->kind;
    r->flags = head->flags;
    r->urgency = head->urgency;
    r->seed = head->seed;
    r->accepted_ns = head->accepted_ns < now ? head->accepted_ns : now;
    r->log = mine;
    journal_head(&f->journal, &mine)->number = r->number;
    if (mine.finished) {
        ending_keep(f, r);
    } else {
        adopt_unfinished(f, r, head);
    }
    f->dispatch_wanted = true;
    return 0;
}

void flow_lane_closed(struct front *f, struct lane *l)
{
    struct request *next;

    while (l->attached) {
        struct request *r = l->attached;

        lane_detach(r);
        if (r->state == REQUEST_FINISHED) {
            continue;
        }
        if (l->privileged || (r->flags & LANE_F_DETACH)) {
            loop_timer_at(&f->loop, &r->fate, clock_ns() + ORPHAN_NS, on_orphan, r);
        } else {
            ending_cancel(f, r, LANE_REASON_CANCELLED);
        }
    }
    for (struct request *r = f->requests.open.oldest; r; r = next) {
        next = r->age_next;
        if (r->home_lane == l->id && (r->in_buf || r->out_buf)) {
            ending_cancel(f, r, LANE_REASON_CANCELLED);
        }
    }
}

void flow_lane_stalled(struct front *f, struct lane *l)
{
    struct request *r = l->attached;

    log_info("lane %llu (uid %u, %s) reads nothing: its requests are cancelled",
             (unsigned long long)l->id, l->uid, l->program);
    for (uint32_t i = 0, n = l->n_attached; i < n; i++) {
        struct request *next = r->lane_next;

        ending_cancel(f, r, LANE_REASON_SLOW_CONSUMER);
        r = next;
    }
}
