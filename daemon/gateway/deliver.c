/* SPDX-License-Identifier: Apache-2.0 */
/* Sending events. ROUTER_MANDATORY tells three cases apart:
 *
 *   sent        libzmq has it
 *   EAGAIN      the client's pipe is full. The event waits here, in order, up to
 *               DELIVER_CLIENT_BYTES; beyond that the client's requests are cancelled, the tokens
 *               that still come are dropped, and each ends with reason SLOW_CONSUMER, which is
 *               kept for it whenever it reads again
 *   unreachable the client is gone: its requests are cancelled; those with `detach` go on for 10 s
 *               without a reader, so that a Resume finds them
 *
 * libzmq cannot say when a pipe has room again, so clients with something waiting are tried every
 * 10 ms, and only then does the loop have a timeout at all. */

#include "daemon/gateway/deliver.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/hot.h"
#include "base/log.h"

static const int64_t second_ns = 1000000000;

/* The client disappeared: see above. */
static void client_gone(struct gateway *g, struct client *client)
{
    for (int i = 0; i < REQUESTS_MAX; i++) {
        struct request *q = &g->requests.slots[i];

        if (!q->used || q->client != client->handle) {
            continue;
        }
        gateway_attach(g, q, 0);
        if (q->detach && !q->slow) {
            requests_set_orphan(&g->requests, q, clock_ns() + DELIVER_ORPHAN_S * second_ns);
        } else {
            gateway_cancel(g, q);
        }
    }
    clients_forget(&g->clients, client);
}

static void client_slow(struct gateway *g, struct client *client)
{
    for (int i = 0; i < REQUESTS_MAX; i++) {
        struct request *q = &g->requests.slots[i];

        if (q->used && q->client == client->handle && !q->slow) {
            q->slow = true;
            gateway_cancel(g, q);
        }
    }
}

/* An event that is not sent leaves a client with a hole in its text, or waiting for an end that has
 * been. So without memory this process ends, as it does where libzmq has none: clients connect to
 * the next one and resume, and the front has all of it. Nothing is sent from here on, for what
 * comes after the hole would be taken for the text. */
static void no_memory(struct gateway *g, size_t size)
{
    log_error("no memory for an event of %zu bytes", size);
    g->failed = g->failed ? g->failed : -ENOMEM;
}

static bool pack(struct gateway *g, const Pipit__Event *e, zmq_msg_t *ret)
{
    if (zmq_msg_init_size(ret, pipit__event__get_packed_size(e))) {
        no_memory(g, pipit__event__get_packed_size(e));
        return false;
    }
    (void)pipit__event__pack(e, zmq_msg_data(ret));
    return true;
}

HOT static void send_or_keep(struct gateway *g, struct client *client, zmq_msg_t *body, bool last)
{
    size_t size = zmq_msg_size(body);
    int rc = -EAGAIN;

    if (!client->backlog) {
        rc = router_send(&g->router, client->id, sizeof(client->id), client->delimiter, body);
    }
    if (rc == 0) {
        return;
    }
    if (rc != -EAGAIN) {
        (void)zmq_msg_close(body);
        client_gone(g, client);
        return;
    }
    if (!last && (client->backlog_bytes + size > DELIVER_CLIENT_BYTES ||
                  g->clients.backlog_bytes + size > DELIVER_ALL_BYTES)) {
        (void)zmq_msg_close(body);
        client_slow(g, client);
        return;
    }
    if (clients_append(&g->clients, client, body, clock_ns())) {
        no_memory(g, size);
    }
}

void deliver_event(struct gateway *g, uint64_t handle, const Pipit__Event *e, bool last)
{
    struct client *client = clients_get(&g->clients, handle);
    zmq_msg_t body;

    if (client && !g->failed && pack(g, e, &body)) {
        send_or_keep(g, client, &body, last);
    }
}

HOT void deliver_packed(struct gateway *g, uint64_t handle, const uint8_t *data, size_t size)
{
    struct client *client = clients_get(&g->clients, handle);
    zmq_msg_t body;

    if (!client || g->failed) {
        return;
    }
    if (zmq_msg_init_size(&body, size)) {
        no_memory(g, size);
        return;
    }
    memcpy(zmq_msg_data(&body), data, size);
    send_or_keep(g, client, &body, false);
}

/* `e` and `error` live as long as the caller needs them. */
static void fault_event(const uint8_t *id, const struct fault *f, Pipit__Event *e,
                        Pipit__Error *error)
{
    pipit__event__init(e);
    pipit__error__init(error);
    if (id) {
        e->has_id = true;
        e->id = (ProtobufCBinaryData){16, (uint8_t *)(uintptr_t)id};
    }
    e->body_case = PIPIT__EVENT__BODY_ERROR;
    e->error = error;
    error->has_code = true;
    error->code = (Pipit__Error__Code)f->code;
    error->has_text = true;
    error->text = (ProtobufCBinaryData){strlen(f->text), (uint8_t *)(uintptr_t)f->text};
    error->has_field = f->field[0] != 0;
    error->field = (ProtobufCBinaryData){strlen(f->field), (uint8_t *)(uintptr_t)f->field};
    error->has_asked = error->has_allowed = f->asked != 0;
    error->asked = f->asked;
    error->allowed = f->allowed;
    error->has_retry_after_ms = f->code == LANE_ERR_BUSY;
    error->retry_after_ms = 100;
}

void deliver_fault(struct gateway *g, uint64_t client, const uint8_t *id, const struct fault *f)
{
    Pipit__Event e;
    Pipit__Error error;

    fault_event(id, f, &e, &error);
    deliver_event(g, client, &e, false);
}

void deliver_refusal(struct gateway *g, const struct router_peer *p, const uint8_t *id,
                     const struct fault *f)
{
    Pipit__Event e;
    Pipit__Error error;
    zmq_msg_t body;

    fault_event(id, f, &e, &error);
    if (!g->failed && pack(g, &e, &body) &&
        router_send(&g->router, p->id, p->id_len, p->delimiter, &body)) {
        (void)zmq_msg_close(&body);
    }
}

static void retry_client(struct gateway *g, struct client *client, int64_t now)
{
    while (client->handle && client->backlog && !g->failed) {
        int rc = router_send(&g->router, client->id, sizeof(client->id), client->delimiter,
                             &client->backlog->body);

        if (rc == 0) {
            clients_sent(&g->clients, client);
            if (client->backlog) {
                client->stalled_ns = now;
            }
        } else if (rc != -EAGAIN || (client->n_requests == 0 &&
                                     now - client->stalled_ns > DELIVER_STALL_S * second_ns)) {
            client_gone(g, client);
        } else {
            return;
        }
    }
}

void deliver_retry(struct gateway *g)
{
    int64_t now = clock_ns();

    for (int i = 0; i < CLIENTS_MAX && g->clients.n_stalled > 0; i++) {
        retry_client(g, &g->clients.slots[i], now);
    }
}

void deliver_orphans(struct gateway *g)
{
    int64_t now = clock_ns();

    for (int i = 0; i < REQUESTS_MAX && g->requests.n_orphans > 0; i++) {
        struct request *q = &g->requests.slots[i];

        if (q->used && q->orphan_ns && q->orphan_ns <= now) {
            requests_set_orphan(&g->requests, q, 0);
            gateway_cancel(g, q);
        }
    }
}
