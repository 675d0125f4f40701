/* SPDX-License-Identifier: Apache-2.0 */
/* A request as the daemon wants it: type-length-value items in the lane's request lease (offset 0
 * of the c2e arena) and one LANE_REQUEST that names them. Nothing is written that does not fit
 * whole: the size is counted first, so that the refusal can say both numbers. */

#include <errno.h>
#include <string.h>

#include "client/lib/client.h"

static uint64_t item_bytes(size_t len)
{
    return 8 + ((uint64_t)len + 7) / 8 * 8;
}

static void put(struct tlv_writer *w, uint64_t *total, uint16_t type, const void *data, size_t len)
{
    *total += item_bytes(len);
    if (w) {
        tlv_put(w, type, data, len);
    }
}

static void put_blob(struct tlv_writer *w, uint64_t *total, uint16_t type, const struct blob *b)
{
    if (b->data) {
        put(w, total, type, b->data, b->len);
    }
}

/* With w NULL it only counts. */
static uint64_t put_all(const struct pipit_request *q, struct tlv_writer *w)
{
    const struct more_of_message *more = q->more;
    uint64_t total = 0;

    if (q->has_sampling) {
        put(w, &total, TLV_SAMPLING, &q->sampling, sizeof(q->sampling));
    }
    put_blob(w, &total, TLV_POLICY, &q->policy);
    put_blob(w, &total, TLV_SESSION, &q->session);
    put_blob(w, &total, TLV_SCHEMA, &q->schema);
    for (size_t i = 0; i < q->n_stops; i++) {
        put_blob(w, &total, TLV_STOP, &q->stops[i]);
    }
    put_blob(w, &total, TLV_TOOLS, &q->tools);
    put_blob(w, &total, TLV_SYSTEM, &q->system);
    for (size_t i = 0; i < q->n_messages; i++) {
        const struct blob *m = &q->messages[i];

        put(w, &total, TLV_ROLE, m->role, strlen(m->role));
        put_blob(w, &total, TLV_CONTENT, m);
        for (; more && more->at == i; more = more->next) {
            put(w, &total, more->type, more->text, more->len);
        }
    }
    put_blob(w, &total, TLV_PROMPT, &q->prompt);
    put_blob(w, &total, TLV_TOKENS, &q->tokens);
    return total;
}

static int check_leases(const struct pipit_request *q, struct pipit_error *reterr)
{
    const struct arenas *now = q->client->arenas;

    if ((q->input && q->input->arenas != now) || (q->output && q->output->arenas != now)) {
        return pipit_fail(reterr, -ESTALE, PIPIT_E_LOST,
                          "a lease of this request ended with the connection it belonged to");
    }
    return 0;
}

int wire_put(struct pipit_request *q, struct lane_record *ret, struct pipit_error *reterr)
{
    struct pipit_client *c = q->client;
    struct tlv_writer w = {.buf = c->arenas->c2e, .cap = c->hello.max_request_bytes};
    uint64_t total = put_all(q, NULL);
    int r = check_leases(q, reterr);

    if (r < 0) {
        return r;
    }
    if (total > w.cap) {
        (void)pipit_fail(
            reterr, -E2BIG, PIPIT_E_TOO_LARGE,
            "the request takes %llu bytes, the daemon allows %zu: shorten it, or start pipitd "
            "with a larger --lane-bytes, of which a request may take a quarter, and "
            "--journal-bytes, of which it may take an eighth",
            (unsigned long long)total, w.cap);
        if (reterr) {
            reterr->count_a = total;
            reterr->count_b = w.cap;
        }
        return -E2BIG;
    }
    (void)put_all(q, &w);
    lane_record_init(ret, LANE_REQUEST, q->id);
    ret->h.flags =
        (uint16_t)((q->detach ? LANE_F_DETACH : 0) | (q->progress ? LANE_F_PROGRESS : 0) |
                   (q->session.len ? LANE_F_SESSION : 0));
    ret->request.kind = q->kind;
    ret->request.urgency = q->urgency;
    ret->request.buf = c->hello.request_buf;
    ret->request.generation = c->hello.request_generation;
    ret->request.tlv_bytes = (uint32_t)w.used;
    ret->request.timeout_ms = q->timeout_ms;
    if (q->output) {
        ret->request.out_buf = q->output->buf;
        ret->request.out_generation = q->output->generation;
    }
    if (q->input) {
        ret->request.in_buf = q->input->buf;
        ret->request.in_generation = q->input->generation;
        ret->request.in_bytes = q->input_bytes;
    }
    return 0;
}
