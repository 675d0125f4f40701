/* SPDX-License-Identifier: Apache-2.0 */
/* The text is copied out of the arena, line by line into fields of one Event, and lines that are
 * not understood are left out, as proto/lane/record.h asks of readers. */

#include "daemon/gateway/questions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/hot.h"
#include "daemon/gateway/deliver.h"
#include "daemon/gateway/gateway.h"

enum { POLICIES_MAX = LANE_ENGINE_REPORT_ROWS, SESSIONS_MAX = QUESTIONS_TEXT / 16, KV_FIELDS = 5 };

static const struct question *current(const struct questions *all)
{
    return &all->ring[all->tail % QUESTIONS_MAX];
}

/* ---- asking ---------------------------------------------------------------------------------- */

static void ask_status(struct gateway *g)
{
    struct lane_record r;

    lane_record_init(&r, LANE_STATUS_GET, NULL);
    gateway_to_front(g, &r);
    if (g->door.text.length) {
        lane_record_init(&r, LANE_REPORT_GET, g->questions.id);
        r.lease.arena = LANE_ARENA_E2C;
        r.lease.buf = g->door.text.buf;
        r.lease.generation = g->door.text.generation;
        gateway_to_front(g, &r);
    }
}

static void ask_sessions(struct gateway *g, const struct question *q)
{
    struct lane_record r;

    lane_record_init(&r, LANE_SESSION, g->questions.id);
    r.h.flags = LANE_F_PRINCIPAL;
    r.session.op = q->op == QUESTION_REMOVE ? LANE_SESSION_REMOVE : LANE_SESSION_LIST;
    r.session.uid = q->uid;
    r.session.buf = g->door.text.buf;
    r.session.generation = g->door.text.generation;
    memcpy(r.session.name, q->name, sizeof(r.session.name));
    gateway_to_front(g, &r);
}

static void ask(struct gateway *g)
{
    struct questions *all = &g->questions;
    const struct question *q = current(all);

    if (all->asked || all->head == all->tail) {
        return;
    }
    /* Clients choose their requests' ids: one that they could guess they could answer. */
    while (getrandom(all->id, sizeof(all->id), 0) != sizeof(all->id)) {
    }
    all->asked = true;
    all->has_status = false;
    all->text[0] = '\0';
    if (q->op == QUESTION_STATUS) {
        ask_status(g);
    } else {
        ask_sessions(g, q);
    }
}

bool questions_push(struct gateway *g, const struct question *q)
{
    struct questions *all = &g->questions;
    uint32_t n_client = 0;
    uint32_t n_uid = 0;

    for (uint32_t i = all->tail; i != all->head; i++) {
        n_client += all->ring[i % QUESTIONS_MAX].client == q->client;
        n_uid += all->ring[i % QUESTIONS_MAX].uid == q->uid;
    }
    if (all->head - all->tail >= QUESTIONS_MAX || n_client >= QUESTIONS_PER_CLIENT ||
        n_uid >= QUESTIONS_PER_UID) {
        return false;
    }
    all->ring[all->head++ % QUESTIONS_MAX] = *q;
    ask(g);
    return true;
}

/* ---- answers --------------------------------------------------------------------------------- */

static ProtobufCBinaryData string(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)(uintptr_t)s};
}

/* The next line, its end made a zero; NULL at the end. */
static char *next_line(char **at)
{
    char *line = *at;
    char *end = strchr(line, '\n');

    if (!end) {
        return NULL;
    }
    *end = '\0';
    *at = end + 1;
    return line;
}

/* The numbers at the start of a text, a tab behind each; what follows, or NULL. */
static char *take_numbers(char *text, unsigned long long *ret, int n)
{
    for (int i = 0; i < n; i++) {
        char *end;

        ret[i] = strtoull(text, &end, 10);
        if (end == text || *end != '\t') {
            return NULL;
        }
        text = end + 1;
    }
    return text;
}

static bool take_policy(char *text, Pipit__PolicyUse *ret)
{
    unsigned long long n[KV_FIELDS];
    char *policy = take_numbers(text, n, KV_FIELDS);

    if (!policy) {
        return false;
    }
    pipit__policy_use__init(ret);
    ret->has_policy = ret->has_n_seqs = ret->has_n_requests = true;
    ret->has_n_slots = ret->has_kv_bytes = ret->has_n_evicted = true;
    ret->n_seqs = (uint32_t)n[0];
    ret->n_requests = n[1];
    ret->n_slots = n[2];
    ret->kv_bytes = n[3];
    ret->n_evicted = n[4];
    ret->policy = string(policy);
    return true;
}

static void fill_status(const struct gateway *g, const struct lane_status *in,
                        Pipit__DaemonStatus *s)
{
    s->has_state = s->has_progress = s->has_n_running = s->has_n_queued = s->has_n_lanes = true;
    s->has_n_restarts = s->has_n_requests = s->has_n_prompt_tokens = s->has_n_new_tokens = true;
    s->has_kv_bytes_used = s->has_kv_bytes_total = s->has_plan_bytes = s->has_step_age_ns = true;
    s->has_uptime_ns = s->has_ctx = s->has_n_seqs = s->has_model = s->has_backend = true;
    s->has_front_epoch = s->has_model_epoch = s->has_gateway_epoch = true;
    s->state = (Pipit__Pong__State)in->state;
    s->progress = in->progress;
    s->n_running = in->n_running;
    s->n_queued = in->n_queued;
    s->n_lanes = in->n_lanes;
    s->n_restarts = in->n_restarts;
    s->n_requests = in->n_requests;
    s->n_prompt_tokens = in->n_prompt_tokens;
    s->n_new_tokens = in->n_new_tokens;
    s->kv_bytes_used = in->kv_bytes_used;
    s->kv_bytes_total = in->kv_bytes_total;
    s->plan_bytes = in->plan_bytes;
    s->step_age_ns = in->step_age_ns;
    s->uptime_ns = in->uptime_ns;
    s->ctx = in->ctx;
    s->n_seqs = in->n_seqs;
    s->model = string(in->model);
    s->backend = string(in->backend);
    s->front_epoch = in->front_epoch;
    s->model_epoch = in->model_epoch;
    s->gateway_epoch = g->epoch;
}

static Pipit__Event event_of(const struct question *q)
{
    Pipit__Event e = PIPIT__EVENT__INIT;

    e.has_id = e.has_seq = true;
    e.id = (ProtobufCBinaryData){sizeof(q->id), (uint8_t *)(uintptr_t)q->id};
    return e;
}

static void tell_status(struct gateway *g, const struct question *q)
{
    Pipit__DaemonStatus s = PIPIT__DAEMON_STATUS__INIT;
    Pipit__PolicyUse rows[POLICIES_MAX];
    Pipit__PolicyUse *list[POLICIES_MAX];
    Pipit__Event e = event_of(q);
    char *at = g->questions.text;

    fill_status(g, &g->questions.status, &s);
    s.policies = list;
    for (char *line; (line = next_line(&at));) {
        if (strncmp(line, "backend\t", 8) == 0) {
            s.backend = string(line + 8);
        } else if (strncmp(line, "cause\t", 6) == 0) {
            s.has_cause = true;
            s.cause = string(line + 6);
        } else if (strncmp(line, "kv\t", 3) == 0 && s.n_policies < POLICIES_MAX &&
                   take_policy(line + 3, &rows[s.n_policies])) {
            list[s.n_policies] = &rows[s.n_policies];
            s.n_policies++;
        }
    }
    e.body_case = PIPIT__EVENT__BODY_STATUS;
    e.status = &s;
    deliver_event(g, q->client, &e, false);
}

/* NAME, tab, bytes, tab, seconds. */
static bool take_session(char *line, Pipit__Sessions__Session *ret)
{
    char *rest = strchr(line, '\t');
    char *when = rest ? strchr(rest + 1, '\t') : NULL;

    if (!when) {
        return false;
    }
    *rest = '\0';
    pipit__sessions__session__init(ret);
    ret->has_name = ret->has_bytes = ret->has_modified = true;
    ret->name = string(line);
    ret->bytes = strtoull(rest + 1, NULL, 10);
    ret->modified = strtoll(when + 1, NULL, 10);
    return true;
}

static void tell_sessions(struct gateway *g, const struct question *q)
{
    static Pipit__Sessions__Session rows[SESSIONS_MAX]; /* the one thread's */
    static Pipit__Sessions__Session *list[SESSIONS_MAX];
    Pipit__Sessions s = PIPIT__SESSIONS__INIT;
    Pipit__Event e = event_of(q);
    char *at = g->questions.text;

    s.sessions = list;
    for (char *line; (line = next_line(&at)) && s.n_sessions < SESSIONS_MAX;) {
        if (take_session(line, &rows[s.n_sessions])) {
            list[s.n_sessions] = &rows[s.n_sessions];
            s.n_sessions++;
        }
    }
    e.body_case = PIPIT__EVENT__BODY_SESSIONS;
    e.sessions = &s;
    deliver_event(g, q->client, &e, false);
}

static void next_question(struct gateway *g)
{
    g->questions.asked = false;
    g->questions.tail++;
    ask(g);
}

static void finish(struct gateway *g)
{
    const struct question *q = current(&g->questions);

    if (q->op == QUESTION_STATUS) {
        tell_status(g, q);
    } else {
        tell_sessions(g, q);
    }
    next_question(g);
}

static void copy_text(struct gateway *g, const struct lane_bulk_body *b)
{
    const struct door_buf *lease = &g->door.text;

    if (b->kind == LANE_BULK_TEXT && lease->length && b->buf == lease->buf &&
        b->generation == lease->generation && b->n_bytes <= lease->length &&
        b->n_bytes <= QUESTIONS_TEXT) {
        memcpy(g->questions.text, g->door.arenas->e2c + lease->offset, b->n_bytes);
        g->questions.text[b->n_bytes] = '\0';
    }
}

static void fail(struct gateway *g, const struct lane_error *e)
{
    const struct question *q = current(&g->questions);
    struct fault f;

    (void)fault_set(&f, NULL, (enum lane_error_code)e->code, e->err, "%s", e->text);
    deliver_fault(g, q->client, q->id, &f);
    next_question(g);
}

HOT bool questions_own(const struct gateway *g, const struct lane_record *r)
{
    return g->questions.asked && memcmp(r->h.id, g->questions.id, sizeof(r->h.id)) == 0;
}

bool questions_record(struct gateway *g, const struct lane_record *r)
{
    struct questions *all = &g->questions;
    const struct question *q = current(all);

    /* A status bears none, which is nobody's own; texts and ends must. */
    if (!all->asked ||
        (!questions_own(g, r) && r->h.type != LANE_STATUS && r->h.type != LANE_ERROR)) {
        return false;
    }
    if (q->op == QUESTION_STATUS && !all->has_status && r->h.type != LANE_STATUS) {
        return false;
    }
    switch (r->h.type) {
    case LANE_STATUS:
        if (q->op != QUESTION_STATUS) {
            return false;
        }
        all->status = r->status;
        all->has_status = true;
        if (!g->door.text.length) {
            finish(g);
        }
        return true;
    case LANE_BULK:
        copy_text(g, &r->bulk);
        return true;
    case LANE_DONE:
        finish(g);
        return true;
    case LANE_ERROR:
        if (q->op == QUESTION_STATUS) { /* without the report */
            finish(g);
        } else {
            fail(g, &r->error);
        }
        return true;
    default:
        return false;
    }
}
