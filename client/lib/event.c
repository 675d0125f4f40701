/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a request become events: numbered without a gap, each complete in itself (a token
 * comes with its alternatives, which the daemon sends just before it), delivered to the callback or
 * kept for pipit_request_next(). An event owns all it points to, except bulk data, which lies in
 * the output lease.
 *
 * After a resume the daemon may repeat what had been read: what is older than the next expected
 * number is dropped. A number beyond it means that events are lost for good; the request then ends
 * with an error, because a text with a hole is worse than none. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/client.h"

#include "base/hot.h"

/* One that a callback has seen is used again, so that a token allocates nothing. */
HOT static struct event_node *node_create(struct pipit_client *c, enum pipit_event_type type,
                                          uint64_t seq, size_t n_alts)
{
    struct event_node *n = n_alts == 0 ? c->spare : NULL;

    if (n) {
        c->spare = NULL;
    } else {
        n = malloc(sizeof(*n) + n_alts * (sizeof(n->alts[0]) + ALT_TEXT_BYTES));
    }
    if (n) {
        n->next = NULL;
        n->text[0] = '\0';
        n->event = (struct pipit_event){
            .type = type, .seq = seq, .text = n->text, .alts = n->alts, .n_alts = n_alts};
    }
    return n;
}

HOT static void node_done(struct pipit_client *c, struct event_node *n)
{
    if (!c->spare && n->event.n_alts == 0) {
        c->spare = n;
    } else {
        free(n);
    }
}

static bool last(const struct event_node *n)
{
    return n->event.type == PIPIT_EVENT_DONE || n->event.type == PIPIT_EVENT_ERROR;
}

HOT static void deliver(struct pipit_request *q, struct event_node *n)
{
    struct pipit_client *c = q->client;

    if (last(n)) {
        request_end(q);
    }
    if (!q->fn) {
        *q->tail = n;
        q->tail = &n->next;
        q->n_events++;
        return;
    }
    bool nested = c->in_callback;

    q->refs++;
    c->in_callback = true;
    q->fn(q, &n->event, q->user);
    c->in_callback = nested;
    request_unref(q);
    node_done(c, n);
}

/* Nobody reads the events, or there is no memory for them: the request ends, here and there. */
static void overflow(struct pipit_request *q, int err, const char *text)
{
    struct pipit_error e;

    (void)pipit_fail(&e, err, PIPIT_E_LOCAL, "%s", text);
    int r = pipit_request_cancel(q);
    (void)r;
    event_error(q, &e);
}

HOT static void push(struct pipit_request *q, struct event_node *n)
{
    if (!n) {
        overflow(q, -ENOMEM, "no memory for an event");
    } else if (q->n_events >= EVENTS_MAX && !last(n)) {
        free(n);
        overflow(q, -ENOBUFS, "too many events wait that the program does not read");
    } else {
        deliver(q, n);
    }
}

void event_error(struct pipit_request *q, const struct pipit_error *e)
{
    struct event_node *n = node_create(q->client, PIPIT_EVENT_ERROR, 0, 0);

    if (!n) { /* next() then says that there are no more events */
        request_end(q);
        return;
    }
    n->error = *e;
    n->event.error = &n->error;
    deliver(q, n);
}

void event_resumed(struct pipit_request *q)
{
    push(q, node_create(q->client, PIPIT_EVENT_RESUMED, 0, 0));
}

HOT static struct event_node *token_event(struct pipit_request *q, const struct lane_record *r)
{
    const struct lane_token *t = &r->token;
    bool whole = r->h.type == LANE_TOKEN;
    size_t n_alts = whole ? q->n_alts : 0;
    struct event_node *n =
        node_create(q->client, whole ? PIPIT_EVENT_TOKEN : PIPIT_EVENT_TEXT, r->h.seq, n_alts);
    char *text = n ? (char *)(n->alts + n_alts) : NULL;

    if (!n) {
        return NULL;
    }
    memcpy(n->text, t->text, t->text_len);
    n->text[t->text_len] = '\0';
    n->event.text_len = t->text_len;
    n->event.index = t->index;
    n->event.token = t->token;
    n->event.logprob = t->logprob;
    n->event.part = lane_part(&r->h);
    n->event.call = n->event.part >= LANE_PART_NAME ? t->n_alts : 0;
    for (size_t i = 0; i < n_alts; i++, text += ALT_TEXT_BYTES) {
        const struct lane_alt *a = &q->alts[i];

        memcpy(text, a->text, a->text_len);
        text[a->text_len] = '\0';
        n->alts[i] = (struct pipit_alt){a->token, a->logprob, text, a->text_len};
    }
    q->n_alts = whole ? 0 : q->n_alts;
    return n;
}

/* Does what the record announces lie in the request's output lease? Rows in a window may wrap. */
static bool bulk_lies_in_lease(const struct pipit_request *q, const struct lane_bulk_body *b)
{
    const struct pipit_lease *l = q->output;
    uint64_t row_bytes = b->n_rows ? b->n_bytes / b->n_rows : 0;
    uint64_t before = b->window ? b->row0 % b->window : 0;

    if (!l || l->arenas != q->client->arenas || b->buf != l->buf ||
        b->generation != l->generation || b->offset > l->bytes || row_bytes > l->bytes ||
        row_bytes * b->n_rows != b->n_bytes) {
        return false;
    }
    if (b->window == 0 || b->n_rows <= b->window - before) {
        return b->n_bytes <= l->bytes - b->offset;
    }
    return b->n_rows <= b->window && before * row_bytes <= b->offset &&
           (b->window - before) * row_bytes <= l->bytes - b->offset;
}

static void push_bulk(struct pipit_request *q, const struct lane_record *r, uint32_t skip,
                      uint32_t n_rows, uint64_t offset)
{
    const struct lane_bulk_body *b = &r->bulk;
    struct event_node *n = node_create(q->client, PIPIT_EVENT_BULK, r->h.seq, 0);

    if (n) {
        n->bulk = (struct pipit_bulk){
            .kind = b->kind,
            .data = (const uint8_t *)pipit_lease_read(q->output) + offset,
            .bytes = n_rows ? b->n_bytes / b->n_rows * n_rows : 0,
            .row0 = b->row0 + skip,
            .n_rows = n_rows,
            .n_cols = b->n_cols,
            .window = b->window,
        };
        n->event.bulk = &n->bulk;
    }
    push(q, n);
}

static void bulk_events(struct pipit_request *q, const struct lane_record *r)
{
    const struct lane_bulk_body *b = &r->bulk;
    struct pipit_error e;

    if (!bulk_lies_in_lease(q, b)) {
        (void)pipit_fail(&e, -EBADMSG, PIPIT_E_PROTOCOL,
                         "the daemon announced data outside the output lease");
        int rc = pipit_request_cancel(q);
        (void)rc;
        event_error(q, &e);
        return;
    }
    uint64_t before = b->window ? b->row0 % b->window : 0;
    uint64_t row_bytes = b->n_rows ? b->n_bytes / b->n_rows : 0;
    uint32_t n_first = b->n_rows;

    if (b->window && b->n_rows > b->window - before) {
        n_first = (uint32_t)(b->window - before);
    }
    push_bulk(q, r, 0, n_first, b->offset);
    if (n_first < b->n_rows && !q->ended) {
        push_bulk(q, r, n_first, b->n_rows - n_first, b->offset - before * row_bytes);
    }
}

static struct event_node *done_event(struct pipit_request *q, const struct lane_record *r)
{
    const struct lane_done *d = &r->done;
    struct event_node *n = node_create(q->client, PIPIT_EVENT_DONE, r->h.seq, 0);

    if (n) {
        n->done = (struct pipit_done){
            .reason = d->reason,
            .stop_index = d->stop_index,
            .replay = d->replay,
            .n_prompt = d->n_prompt,
            .n_cached = d->n_cached,
            .n_new = d->n_new,
            .queue_ns = d->queue_ns,
            .prefill_ns = d->prefill_ns,
            .decode_ns = d->decode_ns,
            .load_ns = d->load_ns,
            .kv_bytes = d->kv_bytes,
            .kv_bytes_full = d->kv_bytes_full,
            .n_slots = d->n_slots,
            .n_evicted = d->n_evicted,
            .seed = d->seed,
            .session = d->session,
            .session_err = d->session_err,
            .session_bytes = d->session_bytes,
            .n_drafted = d->n_drafted,
            .n_accepted = d->n_accepted,
            .n_calls = d->n_calls,
            .broken = d->broken,
        };
        memcpy(n->done.session_cause, d->session_cause, sizeof(n->done.session_cause));
        n->event.done = &n->done;
    }
    return n;
}

static void error_record(struct pipit_request *q, const struct lane_record *r)
{
    struct pipit_error e;

    (void)pipit_fail_lane(&e, &r->error);
    if (q->resuming && e.code == PIPIT_E_NOT_FOUND) {
        (void)pipit_fail(&e, -ESTALE, PIPIT_E_LOST,
                         "the daemon was restarted and no longer knows the request");
    }
    event_error(q, &e);
}

/* True when the record is the next one, or one that is not counted. The refusal of a resume is no
 * event of the request, whatever number it bears. */
HOT static bool in_order(struct pipit_request *q, const struct lane_record *r)
{
    struct pipit_error e;

    if (q->joining && r->h.type == LANE_ERROR) {
        return true;
    }
    if (r->h.seq == 0 || r->h.seq == q->next_seq) {
        q->next_seq += r->h.seq != 0;
        return true;
    }
    if (r->h.seq > q->next_seq) {
        (void)pipit_fail(&e, -EBADMSG, PIPIT_E_PROTOCOL,
                         "events %llu to %llu of the answer are missing",
                         (unsigned long long)q->next_seq, (unsigned long long)r->h.seq - 1);
        int rc = pipit_request_cancel(q);
        (void)rc;
        event_error(q, &e);
    }
    return false;
}

HOT static void event_one(struct pipit_request *q, const struct lane_record *r)
{
    struct event_node *n = NULL;

    switch (r->h.type) {
    case LANE_ACCEPTED:
        q->accepted = true;
        n = node_create(q->client, PIPIT_EVENT_ACCEPTED, r->h.seq, 0);
        if (n) {
            n->event.n_ahead = r->accepted.n_ahead;
        }
        break;
    case LANE_PROGRESS:
        n = node_create(q->client, PIPIT_EVENT_PROGRESS, 0, 0);
        if (n) {
            n->event.n_done = r->progress.n_done;
            n->event.n_total = r->progress.n_total;
            n->event.loading = r->progress.phase == LANE_PHASE_LOADING;
        }
        break;
    case LANE_ALT:
        if (q->n_alts < ALTS_MAX) {
            q->alts[q->n_alts++] = r->alt;
        }
        return;
    case LANE_TOKEN:
    case LANE_TEXT:
        n = token_event(q, r);
        break;
    case LANE_BULK:
        bulk_events(q, r);
        return;
    case LANE_DONE:
        n = done_event(q, r);
        break;
    case LANE_ERROR:
        error_record(q, r);
        return;
    default:
        return;
    }
    push(q, n);
}

HOT void event_record(struct pipit_request *q, const struct lane_record *r)
{
    q->refs++;
    q->client->give_up_ns = 0;
    if (in_order(q, r)) {
        q->joining = false;
        if (q->resuming && r->h.type != LANE_ERROR) {
            q->resuming = false;
            event_resumed(q);
        }
        if (!q->ended) {
            event_one(q, r);
        }
    }
    request_unref(q);
}
