/* SPDX-License-Identifier: Apache-2.0 */
/* Requests on the wire: sending, joining, cancelling, and what a new connection must repeat.
 *
 * Every lane has one lease for a request's items, so one request at a time lies in it; the others
 * wait in the client's list until the daemon has accepted (or refused) that one. After a reconnect
 * a request that was accepted is resumed at the next event it misses; one that was not is sent
 * again under its old id, which the daemon takes for the same request if it did see it. */

#include <errno.h>
#include <string.h>

#include "client/lib/client.h"

#include "base/hot.h"

static void end_cancelled(struct pipit_request *q)
{
    struct lane_record r;

    lane_record_init(&r, LANE_DONE, q->id);
    r.done.reason = LANE_REASON_CANCELLED;
    event_record(q, &r);
}

/* The first request that waits for the wire. */
static struct pipit_request *waiting(struct pipit_client *c)
{
    for (struct pipit_request *q = c->requests; q; q = q->next) {
        if (!q->on_wire && !q->accepted) {
            return q;
        }
    }
    return NULL;
}

HOT void run_pump(struct pipit_client *c)
{
    struct pipit_request *q;

    while (c->state == LINK_UP && !c->buf_busy && (q = waiting(c))) {
        struct lane_record r;
        struct pipit_error e;

        if (q->cancel) {
            end_cancelled(q);
            continue;
        }
        if (wire_put(q, &r, &e) < 0) {
            event_error(q, &e);
            continue;
        }
        q->on_wire = true;
        c->buf_busy = true;
        memcpy(c->buf_id, q->id, sizeof(c->buf_id));
        link_send(c, &r);
    }
}

static void send_resume(struct pipit_request *q)
{
    struct lane_record r;

    lane_record_init(&r, LANE_RESUME, q->id);
    r.resume.next_seq = q->next_seq;
    q->on_wire = true;
    q->joining = true;
    link_send(q->client, &r);
}

static void send_cancel(struct pipit_request *q)
{
    struct lane_record r;

    lane_record_init(&r, LANE_CANCEL, q->id);
    link_send(q->client, &r);
}

void run_reconnected(struct pipit_client *c)
{
    for (struct pipit_request *q = c->requests; q; q = q->next) {
        if (!q->accepted || q->on_wire) {
            continue;
        }
        q->resuming = true;
        send_resume(q);
        if (q->cancel && c->state == LINK_UP) {
            send_cancel(q);
        }
        if (c->state != LINK_UP) { /* dropped again; the list may be another by now */
            return;
        }
    }
}

void run_fail_all(struct pipit_client *c, const struct pipit_error *e)
{
    while (c->requests) {
        event_error(c->requests, e);
    }
}

static int enlist(struct pipit_request *q, struct pipit_error *reterr)
{
    struct pipit_client *c = q->client;
    struct pipit_request **p = &c->requests;
    int r = dispatch_check(c, reterr);

    if (r == -EPERM) {
        return r;
    }
    if (q->sent) {
        return pipit_fail(reterr, -EBUSY, PIPIT_E_LOCAL, "a request is sent only once");
    }
    if (request_find(c, q->id)) {
        return pipit_fail(reterr, -EEXIST, PIPIT_E_LOCAL,
                          "a request with this id runs on this client already");
    }
    r = link_wanted(c, reterr);
    if (r < 0) {
        return r;
    }
    while (*p) {
        p = &(*p)->next;
    }
    *p = q;
    q->sent = true;
    return 0;
}

int pipit_request_send(struct pipit_request *q, struct pipit_error *reterr)
{
    int r = enlist(q, reterr);

    if (r == 0) {
        run_pump(q->client);
    }
    return r;
}

int pipit_request_resume(struct pipit_request *q, uint64_t next_seq, struct pipit_error *reterr)
{
    int r;

    if (next_seq == 0) {
        return pipit_fail(reterr, -EINVAL, PIPIT_E_LOCAL, "events are counted from 1");
    }
    r = enlist(q, reterr);
    if (r < 0) {
        return r;
    }
    q->next_seq = next_seq;
    q->accepted = true;
    if (q->client->state == LINK_UP) {
        send_resume(q);
    }
    return 0;
}

int pipit_request_cancel(struct pipit_request *q)
{
    if (!q->sent || q->ended || !q->client) {
        return -ENOENT;
    }
    if (dispatch_check(q->client, NULL) == -EPERM) {
        return -EPERM;
    }
    if (!q->cancel && q->on_wire) {
        send_cancel(q);
    }
    q->cancel = true;
    return 0;
}

int pipit_request_credit(struct pipit_request *q, uint64_t n_rows)
{
    struct lane_record r;

    if (!q->on_wire || q->ended || !q->client) {
        return -ENOENT;
    }
    lane_record_init(&r, LANE_CREDIT, q->id);
    r.credit.n_rows = n_rows;
    link_send(q->client, &r);
    return 0;
}
