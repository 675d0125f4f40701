/* SPDX-License-Identifier: Apache-2.0 */
/* What a client's message does. Everything is checked by decode_request() before; here it meets the
 * state: who is asking (the uid of the connection, never anything the message says), is that id
 * known and theirs, are they within their limits. A request's items go straight into a leased
 * buffer of the lane; the record names it. Another principal's request is never admitted to exist,
 * except that an id in use cannot be used (ids are random, so nobody meets that by accident). */

#include "daemon/gateway/inbound.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/gateway/deliver.h"
#include "daemon/gateway/items.h"
#include "proto/zmq/decode.h"
#include "proto/zmq/wire.h"

/* A decoded message and its sender. */
struct call {
    struct client *client;
    const Pipit__Request *r;
    const uint8_t *tenant;
    size_t tenant_len;
};

static void refuse(struct gateway *g, const struct call *c, enum lane_error_code code,
                   const char *field, const char *text)
{
    struct fault_path path = {.name = field, .index = -1};
    struct fault f;

    (void)fault_set(&f, field ? &path : NULL, code, -EINVAL, "%s", text);
    deliver_fault(g, c->client->handle, c->r->id.data, &f);
}

/* The caller's request of that id, or NULL; *ret_foreign when it is another principal's. */
static struct request *own_request(struct gateway *g, const struct call *c, bool *ret_foreign)
{
    struct request *q = requests_find(&g->requests, c->r->id.data);

    *ret_foreign = q && !requests_owned(q, c->client->uid, c->tenant, c->tenant_len);
    return *ret_foreign ? NULL : q;
}

/* A new entry in the caller's name, or NULL after telling why not. */
static struct request *add_request(struct gateway *g, const struct call *c)
{
    struct request *q = NULL;

    if (c->client->n_requests >= REQUESTS_PER_CLIENT) {
        refuse(g, c, LANE_ERR_BUSY, NULL, "64 requests of this socket are under way");
        return NULL;
    }
    if (requests_count_uid(&g->requests, c->client->uid) < REQUESTS_PER_UID) {
        q = requests_add(&g->requests, c->r->id.data);
    }
    if (!q) {
        refuse(g, c, LANE_ERR_BUSY, NULL,
               "too many requests of this user, or in all, are under way");
        return NULL;
    }
    q->uid = c->client->uid;
    q->tenant_len = (uint32_t)c->tenant_len;
    if (c->tenant_len) {
        memcpy(q->tenant, c->tenant, c->tenant_len);
    }
    q->unary = c->r->unary;
    q->detach = c->r->detach;
    gateway_attach(g, q, c->client->handle);
    return q;
}

static void send_resume(struct gateway *g, struct request *q, uint64_t next_seq)
{
    struct lane_record rec;

    q->next_seq = next_seq;
    q->resuming = true;
    q->n_alts = 0;
    requests_gather_clear(q);
    requests_set_orphan(&g->requests, q, 0);
    lane_record_init(&rec, LANE_RESUME, q->id);
    rec.h.flags = LANE_F_PRINCIPAL;
    rec.resume.next_seq = next_seq;
    rec.resume.uid = q->uid;
    rec.resume.tenant_len = q->tenant_len;
    memcpy(rec.resume.tenant, q->tenant, sizeof(rec.resume.tenant));
    gateway_to_front(g, &rec);
}

static void handle_resume(struct gateway *g, const struct call *c)
{
    bool foreign;
    struct request *q = own_request(g, c, &foreign);

    if (foreign) {
        refuse(g, c, LANE_ERR_NOT_FOUND, "id", "no such request");
        return;
    }
    if (!q) {
        q = add_request(g, c);
        if (!q) {
            return;
        }
        q->logprobs = true;
    }
    gateway_attach(g, q, c->client->handle);
    /* The whole text of a unary answer is gathered from its first event. */
    send_resume(g, q, q->unary ? 1 : c->r->resume->next_seq);
}

static void handle_cancel(struct gateway *g, const struct call *c)
{
    bool foreign;
    struct request *q = own_request(g, c, &foreign);
    struct waiter w = {.client = c->client->handle, .cancel = true};
    struct lane_record rec;

    if (foreign) {
        refuse(g, c, LANE_ERR_NOT_FOUND, "id", "no such request");
        return;
    }
    if (q) {
        q->watcher = q->client == c->client->handle ? q->watcher : c->client->handle;
        gateway_cancel(g, q);
        return;
    }
    /* Not on this lane: from before our start, or of a program with a lane of its own. The front
     * says NOT_FOUND or nothing; a ping right behind tells which (its answers are in order). */
    memcpy(w.id, c->r->id.data, sizeof(w.id));
    if (!waiters_push(&g->pings, &w)) {
        refuse(g, c, LANE_ERR_BUSY, NULL, "too many pings and cancels are waiting");
        return;
    }
    lane_record_init(&rec, LANE_CANCEL, w.id);
    rec.h.flags = LANE_F_PRINCIPAL;
    rec.cancel.uid = c->client->uid;
    rec.cancel.tenant_len = (uint32_t)c->tenant_len;
    if (c->tenant_len) {
        memcpy(rec.cancel.tenant, c->tenant, c->tenant_len);
    }
    gateway_to_front(g, &rec);
    lane_record_init(&rec, LANE_PING, NULL);
    gateway_to_front(g, &rec);
}

static void handle_ping(struct gateway *g, const struct call *c)
{
    struct waiter w = {.client = c->client->handle};
    struct lane_record rec;

    memcpy(w.id, c->r->id.data, sizeof(w.id));
    if (!waiters_push(&g->pings, &w)) {
        refuse(g, c, LANE_ERR_BUSY, NULL, "too many questions to the front are waiting");
        return;
    }
    lane_record_init(&rec, LANE_PING, NULL);
    gateway_to_front(g, &rec);
}

static void handle_question(struct gateway *g, const struct call *c, enum question_op op,
                            const ProtobufCBinaryData *name)
{
    struct question q = {.op = op, .client = c->client->handle, .uid = c->client->uid};

    if (op != QUESTION_STATUS && c->tenant_len) {
        refuse(g, c, LANE_ERR_DENIED, "tenant", "sessions are the user's: ask without a tenant");
        return;
    }
    if (op != QUESTION_STATUS && g->door.text.length == 0) {
        refuse(g, c, LANE_ERR_UNSUPPORTED, NULL, "the front gave no room for a list");
        return;
    }
    if (op == QUESTION_REMOVE && !lane_session_name_ok((const char *)name->data, name->len)) {
        refuse(g, c, LANE_ERR_INVALID, "session_remove.name",
               "allowed are letters, digits, '.', '_' and '-', the first no '.'");
        return;
    }
    memcpy(q.id, c->r->id.data, sizeof(q.id));
    if (name && name->len) { /* at most 64 bytes, ranges.c */
        memcpy(q.name, name->data, name->len);
    }
    if (!questions_push(g, &q)) {
        refuse(g, c, LANE_ERR_BUSY, NULL, "too many questions to the front are waiting");
    }
}

/* No answer, and none where there is nothing to give it to: it is about what was said before. */
static void handle_credit(struct gateway *g, const struct call *c)
{
    bool foreign;
    struct request *q = own_request(g, c, &foreign);
    struct lane_record rec;

    if (q) {
        lane_record_init(&rec, LANE_CREDIT, q->id);
        rec.credit.n_rows = c->r->credit->n_rows;
        gateway_to_front(g, &rec);
    }
}

static bool wants_logprobs(const Pipit__Request *r)
{
    const Pipit__Sampling *s = r->body_case == PIPIT__REQUEST__BODY_GENERATE ? r->generate->sampling
                               : r->body_case == PIPIT__REQUEST__BODY_CHAT   ? r->chat->sampling
                                                                             : NULL;

    return s && s->has_logprobs;
}

static void name_leases(const Pipit__Request *r, struct lane_request *q)
{
    const Pipit__Lease *in = decode_input(r);
    const Pipit__Lease *out = decode_output(r);

    if (in) {
        q->in_buf = in->buf;
        q->in_generation = in->generation;
        q->in_bytes = in->bytes;
        q->lease_lane = in->lane;
    }
    if (out) {
        q->out_buf = out->buf;
        q->out_generation = out->generation;
        q->lease_lane = out->lane;
    }
}

/* Fills the record and the buffer that goes with it. */
static int write_request(struct gateway *g, struct request *q, const Pipit__Request *r,
                         struct lane_record *rec)
{
    struct door_buf *buf = &g->door.bufs[q->buf];
    uint32_t n_bytes = 0;
    int rc = items_write(r, g->door.arenas->c2e + buf->offset, buf->length, &n_bytes);

    if (rc) {
        return rc;
    }
    lane_record_init(rec, LANE_REQUEST, q->id);
    rec->h.flags = (uint16_t)(LANE_F_PRINCIPAL | (r->detach ? LANE_F_DETACH : 0) |
                              (r->progress && !r->unary ? LANE_F_PROGRESS : 0) |
                              (items_session(r) ? LANE_F_SESSION : 0));
    rec->request.kind = q->kind;
    rec->request.urgency = r->urgency;
    rec->request.timeout_ms = r->timeout_ms;
    rec->request.buf = buf->buf;
    rec->request.generation = buf->generation;
    rec->request.tlv_bytes = n_bytes;
    name_leases(r, &rec->request);
    if (q->scoring) {
        rec->request.out_buf = g->door.out.buf;
        rec->request.out_generation = g->door.out.generation;
    }
    rec->request.uid = q->uid;
    rec->request.tenant_len = q->tenant_len;
    memcpy(rec->request.tenant, q->tenant, sizeof(rec->request.tenant));
    return 0;
}

static void handle_request(struct gateway *g, const struct call *c)
{
    /* Scores without a lease of the client's go through the gateway's one buffer. */
    bool score = c->r->body_case == PIPIT__REQUEST__BODY_SCORE && !c->r->score->output;
    bool foreign;
    struct request *q = own_request(g, c, &foreign);
    struct lane_record rec;

    if (foreign) {
        refuse(g, c, LANE_ERR_DENIED, "id", "in use; ids must be random");
        return;
    }
    if (q) { /* a repetition attaches */
        gateway_attach(g, q, c->client->handle);
        if (q->buf < 0) {
            send_resume(g, q, 1);
        }
        return;
    }
    if (score && (g->scoring || g->door.out.length == 0)) {
        refuse(g, c, LANE_ERR_BUSY, NULL, "another text is being scored");
        return;
    }
    q = add_request(g, c);
    if (!q) {
        return;
    }
    q->kind = items_kind(c->r);
    q->logprobs = wants_logprobs(c->r);
    q->leased = decode_output(c->r) != NULL;
    q->buf = door_buf_free(&g->door);
    g->door.bufs[q->buf].busy = true;
    q->scoring = g->scoring = g->scoring || score;
    q->scoring = score;
    if (write_request(g, q, c->r, &rec)) {
        gateway_end_request(g, q);
        refuse(g, c, LANE_ERR_TOO_LARGE, NULL, "the request is larger than the daemon's limit");
        return;
    }
    gateway_to_front(g, &rec);
}

static void dispatch(struct gateway *g, const struct call *c)
{
    switch (c->r->body_case) {
    case PIPIT__REQUEST__BODY_PING:
        handle_ping(g, c);
        break;
    case PIPIT__REQUEST__BODY_STATUS:
        handle_question(g, c, QUESTION_STATUS, NULL);
        break;
    case PIPIT__REQUEST__BODY_SESSION_LIST:
        handle_question(g, c, QUESTION_LIST, &c->r->session_list->after);
        break;
    case PIPIT__REQUEST__BODY_SESSION_REMOVE:
        handle_question(g, c, QUESTION_REMOVE, &c->r->session_remove->name);
        break;
    case PIPIT__REQUEST__BODY_CANCEL:
        handle_cancel(g, c);
        break;
    case PIPIT__REQUEST__BODY_RESUME:
        handle_resume(g, c);
        break;
    case PIPIT__REQUEST__BODY_CREDIT:
        handle_credit(g, c);
        break;
    default:
        handle_request(g, c);
    }
}

/* The sender as a client, or NULL after telling it why not. */
static struct client *admit(struct gateway *g, const struct router_peer *peer, const uint8_t *id)
{
    struct client *client = NULL;
    struct fault f;
    int rc = -EPERM;

    if (!peer->known) {
        (void)fault_set(&f, NULL, LANE_ERR_DENIED, rc, "the connection's credentials are unknown");
    } else if (!router_id_is_own(peer)) {
        (void)fault_set(&f, NULL, LANE_ERR_DENIED, rc,
                        "a routing id chosen by the client: leave ZMQ_ROUTING_ID unset");
    } else {
        rc = clients_find(&g->clients, peer, clock_ns(), &client);
        if (rc == -EBUSY) {
            (void)fault_set(&f, NULL, LANE_ERR_BUSY, rc, "%d clients are connected", CLIENTS_MAX);
        } else if (rc) {
            (void)fault_set(&f, NULL, LANE_ERR_DENIED, rc, "this routing id is another user's");
        }
    }
    if (rc) {
        deliver_refusal(g, peer, id, &f);
    }
    return client;
}

void inbound_message(struct gateway *g, const struct router_peer *peer, zmq_msg_t *body)
{
    const uint8_t *data = zmq_msg_data(body);
    size_t size = zmq_msg_size(body);
    uint8_t id[16];
    bool has_id = wire_peek_id(data, size, id);
    struct call c = {.client = admit(g, peer, has_id ? id : NULL)};
    struct fault f;

    if (!c.client) {
        return;
    }
    if (decode_request(data, size, g->max_message, &g->arena, &c.r, &f)) {
        deliver_fault(g, c.client->handle, has_id ? id : NULL, &f);
        return;
    }
    c.tenant = c.r->tenant.data;
    c.tenant_len = c.r->has_tenant ? c.r->tenant.len : 0;
    dispatch(g, &c);
}

void inbound_malformed(struct gateway *g, const struct router_peer *peer)
{
    struct fault f;

    (void)fault_set(&f, NULL, LANE_ERR_PROTOCOL, -EBADMSG,
                    "a message is one frame, after an empty delimiter or without one");
    deliver_refusal(g, peer, NULL, &f);
}
