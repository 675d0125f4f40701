/* SPDX-License-Identifier: Apache-2.0 */
/* The lane's records: their sizes, who may send which, and what is checked before anyone looks at a
 * body. One table holds all of it, so that adding a record is adding a row.
 *
 * Every function is pure. lane_record_check() works in place: it zeroes what lies beyond the
 * sender's `size`, so that a field an older peer did not know reads as zero, and then checks fields
 * as if all had been sent. What a value means for the daemon's state (is that lease yours?) is the
 * front's business, not ours. */

#include "proto/lane/record.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/error.h"
#include "base/hot.h"

enum {
    FROM_CLIENT = 1 << LANE_PEER_CLIENT,
    FROM_FRONT = 1 << LANE_PEER_FRONT,
    TO_ENGINE = 1 << LANE_PEER_FRONT_TO_ENGINE,
    FROM_ENGINE = 1 << LANE_PEER_ENGINE,
    EVENT = FROM_FRONT | FROM_ENGINE,
    WITH_ID = 1 << 8, /* the header's id must not be zero */
};

struct row {
    uint16_t type;
    uint16_t body;
    uint16_t rules;
    uint16_t flags; /* that a client may set */
};

/* clang-format off */
static const struct row rows[] = {
    {LANE_HELLO,        sizeof(struct lane_hello),   FROM_CLIENT, 0},
    {LANE_LEASE_GET,    sizeof(struct lane_lease),   FROM_CLIENT, 0},
    {LANE_LEASE_PUT,    sizeof(struct lane_lease),   FROM_CLIENT, 0},
    {LANE_REQUEST,      sizeof(struct lane_request), FROM_CLIENT | WITH_ID,
                        LANE_F_DETACH | LANE_F_PRINCIPAL | LANE_F_PROGRESS | LANE_F_SESSION},
    {LANE_CANCEL,       sizeof(struct lane_cancel),  FROM_CLIENT | WITH_ID, LANE_F_PRINCIPAL},
    {LANE_RESUME,       sizeof(struct lane_resume),  FROM_CLIENT | WITH_ID, LANE_F_PRINCIPAL},
    {LANE_PING,         0,                           FROM_CLIENT, 0},
    {LANE_STATUS_GET,   0,                           FROM_CLIENT, 0},
    {LANE_METRICS_GET,  sizeof(struct lane_lease),   FROM_CLIENT, 0},
    {LANE_CREDIT,       sizeof(struct lane_credit),  FROM_CLIENT | WITH_ID, 0},
    {LANE_SESSION,      sizeof(struct lane_session), FROM_CLIENT, LANE_F_PRINCIPAL},
    {LANE_CONTROL,      sizeof(struct lane_control), FROM_CLIENT, 0},
    {LANE_REPORT_GET,   sizeof(struct lane_lease),   FROM_CLIENT, 0},
    {LANE_REQUESTS_GET, sizeof(struct lane_lease),   FROM_CLIENT, 0},

    {LANE_HELLO_REPLY,  sizeof(struct lane_hello_reply), FROM_FRONT, 0},
    {LANE_LEASE,        sizeof(struct lane_lease),       FROM_FRONT, 0},
    {LANE_ACCEPTED,     sizeof(struct lane_accepted),    FROM_FRONT | WITH_ID, 0},
    {LANE_PROGRESS,     sizeof(struct lane_progress),    EVENT | WITH_ID, 0},
    {LANE_TOKEN,        sizeof(struct lane_token),       EVENT | WITH_ID, 0},
    {LANE_TEXT,         sizeof(struct lane_token),       EVENT | WITH_ID, 0},
    {LANE_ALT,          sizeof(struct lane_alt),         EVENT | WITH_ID, 0},
    {LANE_BULK,         sizeof(struct lane_bulk_body),   EVENT, 0},
    {LANE_DONE,         sizeof(struct lane_done),        EVENT, 0},
    {LANE_ERROR,        sizeof(struct lane_error),       EVENT, 0},
    {LANE_PONG,         sizeof(struct lane_hello_reply), FROM_FRONT, 0},
    {LANE_STATUS,       sizeof(struct lane_status),      FROM_FRONT, 0},

    {LANE_ENGINE_LANE_OPEN,  sizeof(struct lane_engine_lane),    TO_ENGINE, 0},
    {LANE_ENGINE_LANE_CLOSE, sizeof(struct lane_engine_lane),    TO_ENGINE, 0},
    {LANE_ENGINE_REQUEST,    sizeof(struct lane_engine_request), TO_ENGINE | WITH_ID, 0},
    {LANE_ENGINE_CANCEL,     sizeof(struct lane_engine_cancel),  TO_ENGINE | WITH_ID, 0},
    {LANE_ENGINE_DRAIN,      0,                             TO_ENGINE, 0},
    {LANE_ENGINE_CREDIT,     sizeof(struct lane_credit),    TO_ENGINE | WITH_ID, 0},

    {LANE_ENGINE_STATE,      sizeof(struct lane_engine_state), FROM_ENGINE, 0},
    {LANE_ENGINE_LANE_QUIET, sizeof(struct lane_engine_lane),  FROM_ENGINE, 0},
    {LANE_ENGINE_REPORT,     sizeof(struct lane_engine_report), FROM_ENGINE, 0},
    {LANE_ENGINE_THREADS,    0,                             FROM_ENGINE, 0},
};
/* clang-format on */

static const struct row *row_of(uint32_t type)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (rows[i].type == type) {
            return &rows[i];
        }
    }
    return NULL;
}

uint32_t lane_record_size(uint32_t type)
{
    const struct row *row = row_of(type);

    return row ? (uint32_t)sizeof(struct lane_header) + row->body : 0;
}

HOT void lane_record_init(struct lane_record *r, uint32_t type, const uint8_t id[16])
{
    memset(r, 0, sizeof(*r));
    r->h.type = (uint16_t)type;
    r->h.size = lane_record_size(type);
    if (id) {
        memcpy(r->h.id, id, sizeof(r->h.id));
    }
}

static bool terminated(char *s, size_t n)
{
    /* Names and causes come from files and peers, and go to logs, terminals and the service
     * manager: a line break or an escape there would be a command. */
    for (size_t i = 0; i < n && s[i]; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            s[i] = '?';
        }
    }
    return memchr(s, 0, n) != NULL;
}

/* Not terminated: text_len bytes of a longer text. */
static const char *check_report(struct lane_engine_report *e, uint32_t size)
{
    if (e->kind < LANE_ENGINE_REPORT_BACKEND || e->kind > LANE_ENGINE_REPORT_MODEL) {
        return "unknown kind of report";
    }
    if (e->n_rows > LANE_ENGINE_REPORT_ROWS || e->row >= LANE_ENGINE_REPORT_ROWS) {
        return "too many rows";
    }
    if (e->text_len > sizeof(e->text)) {
        return "text over 160 bytes";
    }
    if (sizeof(struct lane_header) + offsetof(struct lane_engine_report, text) + e->text_len >
        size) {
        return "text beyond the record's size";
    }
    for (uint32_t i = 0; i < e->text_len; i++) {
        if ((unsigned char)e->text[i] < 0x20 || e->text[i] == 0x7f) {
            e->text[i] = '?';
        }
    }
    return NULL;
}

static bool zero_id(const uint8_t id[16])
{
    static const uint8_t zero[16];

    return memcmp(id, zero, sizeof(zero)) == 0;
}

/* NULL, or what is wrong with the body. */
static const char *check_client_body(struct lane_record *r)
{
    switch (r->h.type) {
    case LANE_HELLO:
        if (r->hello.magic != LANE_MAGIC) {
            return "hello without the magic number";
        }
        if (r->hello.record_bytes != LANE_RECORD_BYTES) {
            return "hello with another record size";
        }
        return terminated(r->hello.program, sizeof(r->hello.program)) ? NULL
                                                                      : "program not terminated";
    case LANE_LEASE_GET:
    case LANE_LEASE_PUT:
    case LANE_METRICS_GET:
    case LANE_REPORT_GET:
    case LANE_REQUESTS_GET:
        return r->lease.arena <= LANE_ARENA_E2C ? NULL : "arena is not 0 or 1";
    case LANE_REQUEST:
        if (r->request.kind < LANE_KIND_GENERATE || r->request.kind > LANE_KIND_EMBED) {
            return "unknown kind of request";
        }
        if (r->request.urgency < -100 || r->request.urgency > 100) {
            return "urgency outside -100..100";
        }
        return r->request.tenant_len <= sizeof(r->request.tenant) ? NULL : "tenant over 64 bytes";
    case LANE_SESSION:
        if (r->session.op < LANE_SESSION_LIST || r->session.op > LANE_SESSION_REMOVE) {
            return "unknown wish about sessions";
        }
        return terminated(r->session.name, sizeof(r->session.name)) ? NULL : "name not terminated";
    case LANE_CONTROL:
        return r->control.op >= LANE_CONTROL_LOAD && r->control.op <= LANE_CONTROL_RELOAD
                   ? NULL
                   : "unknown wish about the model";
    case LANE_CANCEL:
        return r->cancel.tenant_len <= sizeof(r->cancel.tenant) ? NULL : "tenant over 64 bytes";
    case LANE_RESUME:
        if (r->resume.next_seq == 0) {
            return "next_seq must be at least 1";
        }
        return r->resume.tenant_len <= sizeof(r->resume.tenant) ? NULL : "tenant over 64 bytes";
    default:
        return NULL;
    }
}

static const char *check_hello_reply(struct lane_hello_reply *h)
{
    if (h->magic != LANE_MAGIC) {
        return "reply without the magic number";
    }
    if (h->state > LANE_STOPPING || h->progress > 1000) {
        return "state or progress out of range";
    }
    return terminated(h->model, sizeof(h->model)) ? NULL : "model not terminated";
}

/* Records that the daemon's processes send; the same rules guard the client and the front. */
static const char *check_daemon_body(struct lane_record *r)
{
    switch (r->h.type) {
    case LANE_HELLO_REPLY:
    case LANE_PONG:
        return check_hello_reply(&r->hello_reply);
    case LANE_LEASE:
        return r->lease.arena <= LANE_ARENA_E2C ? NULL : "arena is not 0 or 1";
    case LANE_TOKEN:
    case LANE_TEXT:
        return r->token.text_len <= sizeof(r->token.text) ? NULL : "text over 200 bytes";
    case LANE_ALT:
        return r->alt.text_len <= sizeof(r->alt.text) ? NULL : "text over 128 bytes";
    case LANE_BULK:
        return r->bulk.kind >= LANE_BULK_TOKENS && r->bulk.kind <= LANE_BULK_TEXT
                   ? NULL
                   : "unknown kind of bulk data";
    case LANE_DONE:
        if (r->done.reason < LANE_REASON_STOP || r->done.reason >= LANE_REASONS) {
            return "unknown finish reason";
        }
        if (r->done.session > LANE_SESSION_NOT_SAVED) {
            return "unknown state of a session";
        }
        return terminated(r->done.session_cause, sizeof(r->done.session_cause))
                   ? NULL
                   : "cause not terminated";
    case LANE_ERROR:
        if (r->error.code < LANE_ERR_INVALID || r->error.code > LANE_ERR_INTERNAL) {
            return "unknown error code";
        }
        return terminated(r->error.text, sizeof(r->error.text)) ? NULL : "text not terminated";
    case LANE_STATUS:
        if (r->status.state > LANE_STOPPING || r->status.progress > 1000) {
            return "state or progress out of range";
        }
        return terminated(r->status.model, sizeof(r->status.model)) &&
                       terminated(r->status.backend, sizeof(r->status.backend))
                   ? NULL
                   : "string not terminated";
    case LANE_ENGINE_CANCEL:
        return r->e_cancel.reason >= LANE_REASON_STOP && r->e_cancel.reason <= LANE_REASON_ERROR
                   ? NULL
                   : "unknown finish reason";
    case LANE_ENGINE_REQUEST:
        return r->e_request.kind >= LANE_KIND_GENERATE && r->e_request.kind <= LANE_KIND_EMBED
                   ? NULL
                   : "unknown kind of request";
    case LANE_ENGINE_REPORT:
        return check_report(&r->e_report, r->h.size);
    case LANE_ENGINE_STATE:
        if (r->e_state.state > LANE_STOPPING || r->e_state.progress > 1000) {
            return "state or progress out of range";
        }
        return terminated(r->e_state.model, sizeof(r->e_state.model)) &&
                       terminated(r->e_state.backend, sizeof(r->e_state.backend))
                   ? NULL
                   : "string not terminated";
    default:
        return NULL;
    }
}

HOT int lane_record_check(struct lane_record *r, uint64_t n, enum lane_peer from,
                          struct error *reterr)
{
    const struct row *row;
    const char *wrong;

    if (n != LANE_RECORD_BYTES) {
        return error_set(reterr, -EBADMSG, "record of %llu bytes, not %d", (unsigned long long)n,
                         (int)LANE_RECORD_BYTES);
    }
    if (r->h.size < sizeof(struct lane_header) || r->h.size > LANE_RECORD_BYTES) {
        return error_set(reterr, -EBADMSG, "record says size %u, not 32..256", r->h.size);
    }
    row = row_of(r->h.type);
    if (!row || !(row->rules & (1u << from))) {
        return error_set(reterr, -EBADMSG, "record type 0x%x is not expected here", r->h.type);
    }
    memset((uint8_t *)r + r->h.size, 0, LANE_RECORD_BYTES - r->h.size);
    if ((row->rules & WITH_ID) && zero_id(r->h.id)) {
        return error_set(reterr, -EBADMSG, "record type 0x%x without an id", r->h.type);
    }
    if (from == LANE_PEER_CLIENT && (r->h.flags & ~row->flags)) {
        return error_set(reterr, -EBADMSG, "record type 0x%x with unknown flags 0x%x", r->h.type,
                         r->h.flags & ~row->flags);
    }
    wrong = from == LANE_PEER_CLIENT ? check_client_body(r) : check_daemon_body(r);
    if (wrong) {
        return error_set(reterr, -EBADMSG, "record type 0x%x: %s", r->h.type, wrong);
    }
    return 0;
}
