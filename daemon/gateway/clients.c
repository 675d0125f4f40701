/* SPDX-License-Identifier: Apache-2.0 */
/* The table of clients: fixed slots, searched in line (a few µs for a message that starts a
 * request). A handle is a serial number and the slot, so that a stale one finds nobody. Memory per
 * client is bounded by whoever appends (deliver.c); this file only counts. */

#include "daemon/gateway/clients.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hot.h"

void clients_init(struct clients *c)
{
    memset(c, 0, sizeof(*c));
}

void clients_finish(struct clients *c)
{
    for (int i = 0; i < CLIENTS_MAX; i++) {
        if (c->slots[i].handle) {
            clients_forget(c, &c->slots[i]);
        }
    }
}

HOT struct client *clients_get(struct clients *c, uint64_t handle)
{
    struct client *client = &c->slots[handle % CLIENTS_MAX];

    return handle && client->handle == handle ? client : NULL;
}

/* The slot for a newcomer: a free one, else that of the longest silent client with nothing to do.
 */
static struct client *free_slot(struct clients *c)
{
    struct client *best = NULL;

    for (int i = 0; i < CLIENTS_MAX; i++) {
        struct client *s = &c->slots[i];

        if (!s->handle) {
            return s;
        }
        if (s->n_requests == 0 && !s->backlog && (!best || s->heard_ns < best->heard_ns)) {
            best = s;
        }
    }
    if (best) {
        clients_forget(c, best);
    }
    return best;
}

int clients_find(struct clients *c, const struct router_peer *p, int64_t now_ns,
                 struct client **ret)
{
    struct client *client = NULL;

    for (int i = 0; i < CLIENTS_MAX && !client; i++) {
        struct client *s = &c->slots[i];

        if (s->handle && memcmp(s->id, p->id, sizeof(s->id)) == 0) {
            client = s;
        }
    }
    if (client && client->uid != p->uid) {
        return -EPERM;
    }
    if (!client) {
        client = free_slot(c);
        if (!client) {
            return -EBUSY;
        }
        *client = (struct client){
            .handle = ++c->n_made * CLIENTS_MAX + (uint64_t)(client - c->slots),
            .uid = p->uid,
            .backlog_end = &client->backlog,
        };
        memcpy(client->id, p->id, sizeof(client->id));
    }
    client->heard_ns = now_ns;
    client->delimiter = p->delimiter;
    *ret = client;
    return 0;
}

void clients_forget(struct clients *c, struct client *client)
{
    while (client->backlog) {
        clients_sent(c, client);
    }
    *client = (struct client){0};
}

int clients_append(struct clients *c, struct client *client, zmq_msg_t *body, int64_t now_ns)
{
    struct clients_message *m = malloc(sizeof(*m));

    if (!m) {
        (void)zmq_msg_close(body);
        return -ENOMEM;
    }
    m->next = NULL;
    m->size = zmq_msg_size(body);
    (void)zmq_msg_init(&m->body);
    (void)zmq_msg_move(&m->body, body);
    (void)zmq_msg_close(body);
    if (!client->backlog) {
        client->stalled_ns = now_ns;
        c->n_stalled++;
    }
    *client->backlog_end = m;
    client->backlog_end = &m->next;
    client->backlog_bytes += m->size;
    c->backlog_bytes += m->size;
    return 0;
}

void clients_sent(struct clients *c, struct client *client)
{
    struct clients_message *m = client->backlog;

    client->backlog = m->next;
    if (!client->backlog) {
        client->backlog_end = &client->backlog;
        client->stalled_ns = 0;
        c->n_stalled--;
    }
    client->backlog_bytes -= m->size;
    c->backlog_bytes -= m->size;
    (void)zmq_msg_close(&m->body);
    free(m);
}
