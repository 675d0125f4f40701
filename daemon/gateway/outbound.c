/* SPDX-License-Identifier: Apache-2.0 */
/* Records to Events. Most are one to one. Alternatives wait for their token; the ids of a tokenized
 * text are gathered into packed events; a unary request gathers everything into its Done. Events
 * keep the record's seq, so that a client's Resume means the same to the front. After a resume,
 * events that were already under way are dropped until the first one asked for.
 *
 * Records for ids we do not know (of a client of our predecessor that has not resumed yet) are
 * dropped: the front keeps them. */

#include "daemon/gateway/outbound.h"

#include <errno.h>
#include <string.h>

#include "base/hot.h"
#include "base/log.h"
#include "daemon/gateway/deliver.h"
#include "proto/zmq/delta.h"

enum { TOKENS_PER_EVENT = 4096 };

static ProtobufCBinaryData bytes(const void *p, size_t n)
{
    return (ProtobufCBinaryData){n, (uint8_t *)(uintptr_t)p};
}

static ProtobufCBinaryData string(const char *s)
{
    return bytes(s, strlen(s));
}

static Pipit__Event event_of(const uint8_t id[16], uint64_t seq, Pipit__Event__BodyCase body)
{
    Pipit__Event e = PIPIT__EVENT__INIT;

    e.has_id = true;
    e.id = bytes(id, 16);
    e.has_seq = true;
    e.seq = seq;
    e.body_case = body;
    return e;
}

static void send_event(struct gateway *g, struct request *q, const Pipit__Event *e)
{
    if (!q->slow) {
        deliver_event(g, q->client, e, false);
    }
}

/* A request's last event: also to who cancelled it; then the request is forgotten. */
static void send_last(struct gateway *g, struct request *q, const Pipit__Event *e)
{
    uint64_t client = q->client;
    uint64_t watcher = q->watcher;

    deliver_event(g, client, e, true);
    if (watcher && watcher != client) {
        deliver_event(g, watcher, e, true);
    }
    gateway_end_request(g, q);
}

/* The answer cannot be told: it ends here, with an error that says how to get it. */
static void end_early(struct gateway *g, struct request *q, enum lane_error_code code, int rc,
                      const char *text)
{
    struct fault f;

    (void)fault_set(&f, NULL, code, rc, "%s", text);
    deliver_fault(g, q->client, q->id, &f);
    gateway_attach(g, q, 0);
    gateway_cancel(g, q);
}

static void too_much(struct gateway *g, struct request *q, int rc)
{
    bool busy = rc == -EBUSY;

    end_early(g, q,
              busy           ? LANE_ERR_BUSY
              : rc == -E2BIG ? LANE_ERR_TOO_LARGE
                             : LANE_ERR_NO_MEMORY,
              rc,
              busy ? "other answers are gathered: ask later, or without `unary`"
                   : "the answer is larger than one event may be: ask without `unary`");
}

static void on_accepted(struct gateway *g, struct request *q, const struct lane_record *r)
{
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_ACCEPTED);
    Pipit__Accepted a = PIPIT__ACCEPTED__INIT;

    a.has_n_ahead = a.has_front_epoch = a.has_model_epoch = true;
    a.n_ahead = r->accepted.n_ahead;
    a.front_epoch = r->accepted.front_epoch;
    a.model_epoch = r->accepted.model_epoch;
    e.accepted = &a;
    if (!q->unary) {
        send_event(g, q, &e);
    }
}

static void on_progress(struct gateway *g, struct request *q, const struct lane_record *r)
{
    Pipit__Event e = event_of(q->id, 0, PIPIT__EVENT__BODY_PROGRESS);
    Pipit__Progress p = PIPIT__PROGRESS__INIT;

    p.has_n_done = p.has_n_total = true;
    p.n_done = r->progress.n_done;
    p.n_total = r->progress.n_total;
    p.has_loading = r->progress.phase == LANE_PHASE_LOADING;
    p.loading = p.has_loading;
    e.progress = &p;
    if (!q->unary) {
        send_event(g, q, &e);
    }
}

static void send_tokens(struct gateway *g, struct request *q, uint64_t seq)
{
    Pipit__Event e = event_of(q->id, seq, PIPIT__EVENT__BODY_TOKENS);
    Pipit__Tokens t = PIPIT__TOKENS__INIT;

    t.n_tokens = q->gathered.n_tokens;
    t.tokens = q->gathered.tokens;
    e.tokens = &t;
    send_event(g, q, &e);
    q->gathered.n_tokens = 0;
}

static void gather(struct gateway *g, struct request *q, const struct lane_record *r)
{
    int rc = 0;

    if (r->h.type == LANE_TOKEN) {
        rc = requests_gather_token(&g->requests, q, r->token.token, r->token.logprob);
    }
    if (rc == 0 && q->kind != LANE_KIND_TOKENIZE) {
        rc = requests_gather_text(&g->requests, q, lane_part(&r->h), r->token.text,
                                  r->token.text_len);
    }
    if (rc) {
        too_much(g, q, rc);
    } else if (!q->unary && q->gathered.n_tokens >= TOKENS_PER_EVENT) {
        send_tokens(g, q, r->h.seq);
    }
}

static void on_alternatives(struct gateway *g, struct request *q, const struct lane_record *r)
{
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_DELTA);
    Pipit__Delta d = PIPIT__DELTA__INIT;
    Pipit__Alternative alts[REQUESTS_ALTS];
    Pipit__Alternative *alt_list[REQUESTS_ALTS];

    d.has_index = true;
    d.index = r->token.index;
    d.has_token = r->h.type == LANE_TOKEN;
    d.token = r->token.token;
    d.has_text = r->token.text_len > 0;
    d.text = bytes(r->token.text, r->token.text_len);
    d.has_part = lane_part(&r->h) != LANE_PART_TEXT;
    d.part = (Pipit__Delta__Part)lane_part(&r->h);
    d.has_logprob = d.has_token && q->logprobs;
    d.logprob = r->token.logprob;
    if (d.has_token) {
        for (uint16_t i = 0; i < q->n_alts; i++) {
            pipit__alternative__init(&alts[i]);
            alts[i].has_token = alts[i].has_logprob = alts[i].has_text = true;
            alts[i].token = q->alts[i].token;
            alts[i].logprob = q->alts[i].logprob;
            alts[i].text = bytes(q->alts[i].text, q->alts[i].text_len);
            alt_list[i] = &alts[i];
        }
        d.n_alternatives = q->n_alts;
        d.alternatives = alt_list;
        q->n_alts = 0;
    }
    e.delta = &d;
    send_event(g, q, &e);
}

HOT static void on_token(struct gateway *g, struct request *q, const struct lane_record *r)
{
    uint8_t packed[DELTA_MAX];

    if (q->unary || q->kind == LANE_KIND_TOKENIZE) {
        q->n_alts = 0;
        gather(g, q, r);
    } else if (q->n_alts > 0) {
        on_alternatives(g, q, r);
    } else if (!q->slow) {
        deliver_packed(g, q->client, packed, delta_pack(r, q->id, q->logprobs, packed));
    }
}

/* Rows in a lease of the client's own lane: only told. */
static void on_leased(struct gateway *g, struct request *q, const struct lane_record *r)
{
    const struct lane_bulk_body *in = &r->bulk;
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_BULK);
    Pipit__Bulk b = PIPIT__BULK__INIT;

    b.has_kind = b.has_row0 = b.has_n_rows = b.has_n_cols = b.has_n_bytes = true;
    b.has_offset = b.has_window = true;
    b.kind = (Pipit__Bulk__Kind)in->kind;
    b.row0 = in->row0;
    b.n_rows = in->n_rows;
    b.n_cols = in->n_cols;
    b.n_bytes = in->n_bytes;
    b.offset = in->offset;
    b.window = in->window;
    e.bulk = &b;
    if (!q->unary) {
        send_event(g, q, &e);
    }
}

/* Rows of scores in the shared buffer: copied out, then given back to the writer. A request resumed
 * from before our start, or after its end, does not say where its log-probabilities lie, and in our
 * buffer they are another text's by now; all other rows lie in a lease of the client's. */
static void on_bulk(struct gateway *g, struct request *q, const struct lane_record *r)
{
    const struct lane_bulk_body *b = &r->bulk;
    const struct door_buf *out = &g->door.out;
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_SCORES);
    Pipit__Scores s = PIPIT__SCORES__INIT;
    struct lane_record credit;

    if (q->leased || (!q->scoring && b->kind != LANE_BULK_LOGPROBS)) {
        on_leased(g, q, r);
        return;
    }
    if (!q->scoring) {
        end_early(g, q, LANE_ERR_NOT_FOUND, -ENOENT,
                  "the scores are not kept: ask again, under a new id");
        return;
    }
    if (b->kind != LANE_BULK_LOGPROBS || b->buf != out->buf || b->offset > out->length ||
        b->n_bytes > out->length - b->offset || b->n_bytes != (uint64_t)b->n_rows * sizeof(float) ||
        b->offset % sizeof(float)) {
        log_warning("a bulk record of kind %u outside its buffer; ignoring it", b->kind);
        return;
    }
    s.has_row0 = true;
    s.row0 = b->row0;
    s.n_logprobs = b->n_rows;
    s.logprobs = (float *)(uintptr_t)(g->door.arenas->e2c + out->offset + b->offset);
    e.scores = &s;
    if (q->unary) {
        for (size_t i = 0; i < s.n_logprobs; i++) {
            int rc = requests_gather_token(&g->requests, q, 0, s.logprobs[i]);

            if (rc) {
                too_much(g, q, rc);
                return;
            }
        }
    } else {
        send_event(g, q, &e);
    }
    lane_record_init(&credit, LANE_CREDIT, q->id);
    credit.credit.n_rows = b->row0 + b->n_rows + out->length / sizeof(float);
    gateway_to_front(g, &credit);
}

static void fill_done(const struct request *q, const struct lane_done *in, Pipit__Done *d)
{
    d->has_reason = d->has_n_prompt = d->has_n_cached = d->has_n_new = true;
    d->has_queue_ns = d->has_prefill_ns = d->has_decode_ns = d->has_load_ns = true;
    d->has_kv_bytes = d->has_kv_bytes_full = d->has_n_slots = d->has_n_evicted = true;
    d->has_n_drafted = d->has_n_accepted = true;
    d->has_replay = d->has_stop_index = d->has_seed = true;
    d->reason = q->slow ? PIPIT__DONE__REASON__SLOW_CONSUMER : (Pipit__Done__Reason)in->reason;
    d->n_prompt = in->n_prompt;
    d->n_cached = in->n_cached;
    d->n_new = in->n_new;
    d->queue_ns = in->queue_ns;
    d->prefill_ns = in->prefill_ns;
    d->decode_ns = in->decode_ns;
    d->load_ns = in->load_ns;
    d->kv_bytes = in->kv_bytes;
    d->kv_bytes_full = in->kv_bytes_full;
    d->n_slots = in->n_slots;
    d->n_evicted = in->n_evicted;
    d->n_drafted = in->n_drafted;
    d->n_accepted = in->n_accepted;
    d->replay = (Pipit__Done__Replay)in->replay;
    d->stop_index = in->stop_index;
    d->seed = in->seed;
    d->has_call_count = in->n_calls > 0;
    d->call_count = in->n_calls;
    d->has_broken = in->broken != 0;
    d->broken = in->broken != 0;
    if (in->session != LANE_SESSION_NONE) {
        d->has_session = d->has_session_bytes = true;
        d->session = (Pipit__Done__Session)in->session;
        d->session_bytes = in->session_bytes;
        d->has_session_errno = in->session_err != 0;
        d->session_errno = in->session_err;
        d->has_session_cause = in->session_cause[0] != '\0';
        d->session_cause = string(in->session_cause);
    }
}

/* Of a unary request: reasoning and calls. `calls` and `list` have room for all. */
static void fill_parts(const struct gathered *a, Pipit__ToolCall *calls, Pipit__ToolCall **list,
                       Pipit__Done *d)
{
    const uint8_t *p = a->called.at;

    d->has_reasoning = a->reasoning.n > 0;
    d->reasoning = bytes(a->reasoning.at, a->reasoning.n);
    for (size_t i = 0; i < a->n_calls; i++) {
        const struct gathered_call *c = &a->calls[i];

        pipit__tool_call__init(&calls[i]);
        calls[i].has_name = calls[i].has_arguments = true;
        calls[i].name = bytes(p, c->name_bytes);
        calls[i].arguments = bytes(p + c->name_bytes, c->arguments_bytes);
        p += c->name_bytes + c->arguments_bytes;
        list[i] = &calls[i];
    }
    d->n_calls = a->n_calls;
    d->calls = list;
}

static void on_done(struct gateway *g, struct request *q, const struct lane_record *r)
{
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_DONE);
    Pipit__Done d = PIPIT__DONE__INIT;
    const struct gathered *a = &q->gathered;
    Pipit__ToolCall calls[REQUESTS_CALLS];
    Pipit__ToolCall *list[REQUESTS_CALLS];

    fill_done(q, &r->done, &d);
    if (q->unary) {
        d.has_text = a->text.n > 0;
        d.text = bytes(a->text.at, a->text.n);
        fill_parts(a, calls, list, &d);
        if (!q->scoring) {
            d.n_tokens = a->n_tokens;
            d.tokens = a->tokens;
        }
        if ((q->scoring || q->logprobs) && a->logprobs) {
            d.n_logprobs = a->n_tokens;
            d.logprobs = a->logprobs;
        }
    } else if (a->n_tokens) {
        send_tokens(g, q, r->h.seq - 1); /* the last token's; Done has its own */
    }
    e.done = &d;
    send_last(g, q, &e);
}

static void fill_error(const struct lane_error *in, Pipit__Error *out)
{
    out->has_code = out->has_text = true;
    out->code = (Pipit__Error__Code)in->code;
    out->text = string(in->text);
    out->has_retry_after_ms = in->retry_after_ms != 0;
    out->retry_after_ms = in->retry_after_ms;
    out->has_asked = in->count_a != 0;
    out->asked = in->count_a;
    out->has_allowed = in->count_a != 0 || in->count_b != 0;
    out->allowed = in->count_b;
    out->has_errno_value = in->err != 0;
    out->errno_value = in->err;
}

static void on_error(struct gateway *g, struct request *q, const struct lane_record *r)
{
    Pipit__Event e = event_of(q->id, r->h.seq, PIPIT__EVENT__BODY_ERROR);
    Pipit__Error error = PIPIT__ERROR__INIT;

    fill_error(&r->error, &error);
    e.error = &error;
    send_last(g, q, &e);
}

/* An error for an id that is no request of ours: the answer to somebody's Cancel. */
static void on_cancel_failed(struct gateway *g, const struct lane_record *r)
{
    for (uint32_t i = g->pings.tail; i != g->pings.head; i++) {
        struct waiter *w = &g->pings.ring[i % GATEWAY_WAITERS];

        if (w->cancel && w->client && memcmp(w->id, r->h.id, sizeof(w->id)) == 0) {
            Pipit__Event e = event_of(w->id, 0, PIPIT__EVENT__BODY_ERROR);
            Pipit__Error error = PIPIT__ERROR__INIT;

            fill_error(&r->error, &error);
            e.error = &error;
            deliver_event(g, w->client, &e, false);
            w->client = 0;
            return;
        }
    }
}

static void on_pong(struct gateway *g, const struct lane_record *r)
{
    struct waiter w;

    if (!waiters_pop(&g->pings, &w) || !w.client) {
        return;
    }
    if (w.cancel) {
        Pipit__Event e = event_of(w.id, 0, PIPIT__EVENT__BODY_DONE);
        Pipit__Done d = PIPIT__DONE__INIT;

        d.has_reason = true;
        d.reason = PIPIT__DONE__REASON__CANCELLED;
        e.done = &d;
        deliver_event(g, w.client, &e, false);
    } else {
        const struct lane_hello_reply *h = &r->hello_reply;
        Pipit__Event e = event_of(w.id, 0, PIPIT__EVENT__BODY_PONG);
        Pipit__Pong p = PIPIT__PONG__INIT;

        p.has_gateway_epoch = p.has_front_epoch = p.has_model_epoch = p.has_state = true;
        p.has_progress = p.has_ctx = p.has_n_vocab = p.has_max_request_bytes = p.has_model = true;
        p.gateway_epoch = g->epoch;
        p.front_epoch = h->front_epoch;
        p.model_epoch = h->model_epoch;
        p.state = (Pipit__Pong__State)h->state;
        p.progress = h->progress;
        p.ctx = h->ctx;
        p.n_vocab = h->n_vocab;
        p.max_request_bytes = (uint32_t)g->max_message;
        p.model = string(h->model);
        e.pong = &p;
        deliver_event(g, w.client, &e, false);
    }
}

/* Is this event one that the request's reader has not had? */
HOT static bool is_next(struct request *q, const struct lane_record *r)
{
    if (r->h.seq == 0) {
        return !q->resuming || r->h.type == LANE_ERROR;
    }
    if (q->resuming ? r->h.seq != q->next_seq : r->h.seq < q->next_seq) {
        return false;
    }
    q->resuming = false;
    q->next_seq = r->h.seq + 1;
    return true;
}

HOT static void on_event(struct gateway *g, struct request *q, const struct lane_record *r)
{
    if (q->buf >= 0) { /* accepted or refused: either way the front has read it */
        g->door.bufs[q->buf].busy = false;
        q->buf = -1;
    }
    if (!is_next(q, r)) {
        return;
    }
    switch (r->h.type) {
    case LANE_ACCEPTED:
        on_accepted(g, q, r);
        break;
    case LANE_PROGRESS:
        on_progress(g, q, r);
        break;
    case LANE_ALT:
        if (q->n_alts < REQUESTS_ALTS) {
            q->alts[q->n_alts++] = r->alt;
        }
        break;
    case LANE_TOKEN:
    case LANE_TEXT:
        on_token(g, q, r);
        break;
    case LANE_BULK:
        on_bulk(g, q, r);
        break;
    case LANE_DONE:
        on_done(g, q, r);
        break;
    case LANE_ERROR:
        on_error(g, q, r);
        break;
    default:
        break;
    }
}

HOT void outbound_record(struct gateway *g, const struct lane_record *r)
{
    static const uint8_t none[16];
    struct request *q;

    if (r->h.type == LANE_PONG) {
        on_pong(g, r);
        return;
    }
    if (memcmp(r->h.id, none, sizeof(none)) == 0 || questions_own(g, r)) {
        if (!questions_record(g, r) && r->h.type == LANE_ERROR) {
            log_warning("the front complains: %s: %s", lane_error_name(r->error.code),
                        r->error.text);
        }
        return;
    }
    q = requests_find(&g->requests, r->h.id);
    if (q) {
        on_event(g, q, r);
    } else if (r->h.type == LANE_ERROR) {
        on_cancel_failed(g, r);
    }
}
