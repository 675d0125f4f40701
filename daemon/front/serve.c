/* SPDX-License-Identifier: Apache-2.0 */
/* Records of a client, one function each: hello makes the arenas, leases are looked up, and the
 * rest goes to flow.c (requests) or status.c. Whose request it is, is decided here: the peer's uid
 * from the kernel, or, on a privileged lane only, the uid that the record states. */

#include "daemon/front/serve.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/sock.h"
#include "base/version.h"
#include "daemon/front/arena.h"
#include "daemon/front/flow.h"
#include "daemon/front/front.h"
#include "daemon/front/lane.h"
#include "daemon/front/lifecycle.h"
#include "daemon/front/report.h"
#include "daemon/front/requests.h"
#include "daemon/front/sessions.h"
#include "daemon/front/status.h"
#include "daemon/front/upgrade.h"

/* Sizes for a client that wants (c2e, e2c), 0 meaning "as you like", within one lane's bytes. */
static void choose_sizes(const struct config *c, struct lane *l, uint64_t c2e, uint64_t e2c)
{
    uint64_t most = c->lane_bytes - c->lane_bytes / 8;
    uint64_t rest;

    c2e = c2e > most ? most : c2e;
    e2c = e2c > most ? most : e2c;
    rest = c->lane_bytes - (e2c ? e2c : 0);
    if (c2e == 0) {
        c2e = c->c2e_bytes < rest ? c->c2e_bytes : rest;
    }
    rest = c->lane_bytes - c2e;
    if (e2c == 0) {
        e2c = c->e2c_bytes < rest ? c->e2c_bytes : rest;
    }
    e2c = e2c < rest ? e2c : rest;
    l->c2e_bytes = (c2e < LEASE_ALIGN ? LEASE_ALIGN : c2e) / LEASE_ALIGN * LEASE_ALIGN;
    l->e2c_bytes = (e2c < LEASE_ALIGN ? LEASE_ALIGN : e2c) / LEASE_ALIGN * LEASE_ALIGN;
}

static int make_arenas(struct lane *l, int *ret_read_only, struct error *reterr)
{
    int rc = arena_memfd("pipit-c2e", l->c2e_bytes, 0600, &l->c2e_fd, reterr);

    rc = rc ? rc : arena_memfd("pipit-e2c", l->e2c_bytes, 0400, &l->e2c_fd, reterr);
    return rc ? rc : arena_read_only(l->e2c_fd, ret_read_only, reterr);
}

/* A gateway of another version. The protocol's major version is the same, so where this front hands
 * over it serves it until then; a gateway that is older than our file is the new one at its next
 * start. Says so to the lane. */
static bool gateway_differs(struct lane *l)
{
    const char *name = "pipit-gateway ";
    const char *version = strncmp(l->program, name, strlen(name)) ? "" : l->program + strlen(name);

    if (!version_differs(version) ||
        upgrade_begin(l->front, "pipit-gateway is of another version")) {
        return false;
    }
    lane_send_error(l, NULL, LANE_ERR_ABI, 0, "pipit-gateway is of version %s, pipitd of %s",
                    version, version_of_this());
    return true;
}

static bool serve_hello(struct lane *l, const struct lane_record *r)
{
    const struct config *c = l->front->config;
    AUTO_CLOSE int read_only = -1;
    struct lane_record reply;
    struct error e = {0};
    uint64_t request_bytes;

    if (l->hello_done) {
        lane_send_error(l, NULL, LANE_ERR_PROTOCOL, 0, "a second hello");
        return true;
    }
    if (r->hello.abi_major != LANE_ABI_MAJOR) {
        lane_send_error(l, NULL, LANE_ERR_ABI, 0, "this daemon speaks protocol %d, the client %u",
                        (int)LANE_ABI_MAJOR, r->hello.abi_major);
        return true;
    }
    memcpy(l->program, r->hello.program, sizeof(l->program));
    if (l->privileged && gateway_differs(l)) {
        return true;
    }
    choose_sizes(c, l, r->hello.c2e_bytes, r->hello.e2c_bytes);
    request_bytes = c->max_request_bytes < l->c2e_bytes ? c->max_request_bytes : l->c2e_bytes;
    if (make_arenas(l, &read_only, &e)) {
        log_warning("lane refused: %s", e.text);
        lane_send_error(l, NULL, LANE_ERR_NO_MEMORY, 1000, "%s", e.text);
        return true;
    }
    lease_init(&l->leases, l->c2e_bytes, l->e2c_bytes, request_bytes);
    l->hello_done = true;
    status_hello(l->front, &reply, LANE_HELLO_REPLY);
    reply.hello_reply.lane_id = l->id;
    reply.hello_reply.c2e_bytes = l->c2e_bytes;
    reply.hello_reply.e2c_bytes = l->e2c_bytes;
    reply.hello_reply.max_request_bytes = (uint32_t)request_bytes;
    reply.hello_reply.max_lease_bytes =
        (uint32_t)(l->c2e_bytes > l->e2c_bytes ? l->c2e_bytes : l->e2c_bytes);
    reply.hello_reply.request_buf = LEASE_REQUEST_BUF;
    reply.hello_reply.request_generation = 1;
    /* The first record on this socket: there is room for it, if memory. */
    int rc = sock_send(l->watch.fd, &reply, sizeof(reply), (int[]){l->c2e_fd, read_only}, 2);
    if (rc) {
        lane_send_error(l, NULL, LANE_ERR_NO_MEMORY, 1000, "cannot send the arenas: %s",
                        strerror(-rc));
        return true;
    }
    l->front->status_changed = true;
    return false;
}

/* An arena is half of --lane-bytes, unless the hello asked for another share of it. */
static void say_lease_error(const struct lane *l, const struct lane_lease *asked, int rc,
                            uint64_t largest, char *ret, size_t size)
{
    bool in = asked->arena == LANE_ARENA_C2E;

    if (rc == -E2BIG) {
        (void)snprintf(
            ret, size,
            "a lease of %llu bytes: %llu are free in one piece of this client's %s arena "
            "of %llu (half of pipitd's --lane-bytes, unless the hello asks for more)",
            (unsigned long long)asked->length, (unsigned long long)largest, in ? "input" : "output",
            (unsigned long long)(in ? l->c2e_bytes : l->e2c_bytes));
        return;
    }
    (void)snprintf(ret, size, "%s",
                   rc == -EBUSY ? "this lane has all the leases it may have"
                                : "a lease of 0 bytes");
}

static void serve_lease_get(struct lane *l, const struct lane_record *r)
{
    struct lane_record reply;
    uint64_t largest;
    uint32_t buf;
    int rc = lease_get(&l->leases, r->lease.arena, r->lease.length, &buf, &largest);

    if (rc == 0) {
        const struct lease *lease = &l->leases.v[buf - 1];

        lane_record_init(&reply, LANE_LEASE, r->h.id);
        reply.lease = (struct lane_lease){.arena = lease->arena,
                                          .buf = buf,
                                          .generation = lease->generation,
                                          .offset = lease->offset,
                                          .length = lease->length};
    } else {
        lane_record_init(&reply, LANE_ERROR, r->h.id);
        reply.error.code = rc == -E2BIG   ? LANE_ERR_TOO_LARGE
                           : rc == -EBUSY ? LANE_ERR_BUSY
                                          : LANE_ERR_INVALID;
        reply.error.err = rc;
        reply.error.count_a = r->lease.length;
        reply.error.count_b = largest;
        say_lease_error(l, &r->lease, rc, largest, reply.error.text, sizeof(reply.error.text));
    }
    lane_send(l, &reply);
}

static bool serve_lease_put(struct lane *l, const struct lane_record *r)
{
    if (lease_put(&l->leases, r->lease.arena, r->lease.buf, r->lease.generation)) {
        lane_send_error(l, NULL, LANE_ERR_DENIED, 0, "lease %u is not this client's to put",
                        r->lease.buf);
    }
    return false;
}

/* Who the record speaks for; false when the lane may not say so. */
static bool speaks_for(struct lane *l, const struct lane_record *r, uint32_t stated_uid,
                       const uint8_t *tenant, uint32_t tenant_len, struct flow_who *ret)
{
    bool states = r->h.flags & LANE_F_PRINCIPAL;

    *ret = (struct flow_who){
        .uid = states ? stated_uid : l->uid, .tenant = tenant, .tenant_len = tenant_len};
    if (states && !l->privileged) {
        lane_send_error(l, r->h.id, LANE_ERR_DENIED, 0,
                        "only the gateway may speak for another principal");
        return false;
    }
    return true;
}

static void serve_request(struct lane *l, const struct lane_record *r)
{
    struct flow_who who;

    if (speaks_for(l, r, r->request.uid, r->request.tenant, r->request.tenant_len, &who)) {
        flow_request(l->front, l, &who, r);
    }
}

static void serve_resume(struct lane *l, const struct lane_record *r)
{
    struct flow_who who;

    if (speaks_for(l, r, r->resume.uid, r->resume.tenant, r->resume.tenant_len, &who)) {
        flow_resume(l->front, l, &who, r->h.id, r->resume.next_seq);
    }
}

static void serve_cancel(struct lane *l, const struct lane_record *r)
{
    struct flow_who who;

    if (speaks_for(l, r, r->cancel.uid, r->cancel.tenant, r->cancel.tenant_len, &who)) {
        flow_cancel(l->front, l, &who, r->h.id);
    }
}

static void serve_session(struct lane *l, const struct lane_record *r)
{
    struct flow_who who;

    if (speaks_for(l, r, r->session.uid, NULL, 0, &who)) {
        sessions_serve(l->front, l, who.uid, r);
    }
}

static void serve_ping(struct lane *l)
{
    struct lane_record reply;

    status_hello(l->front, &reply, LANE_PONG);
    reply.hello_reply.lane_id = l->id;
    lane_send(l, &reply);
}

static void serve_status(struct lane *l)
{
    struct lane_record reply;

    status_record(l->front, l, &reply);
    lane_send(l, &reply);
}

bool serve_record(struct lane *l, struct lane_record *r)
{
    if (r->h.type == LANE_HELLO) {
        return serve_hello(l, r);
    }
    if (!l->hello_done) {
        lane_send_error(l, NULL, LANE_ERR_PROTOCOL, 0, "the first record must be a hello");
        return true;
    }
    switch (r->h.type) {
    case LANE_LEASE_GET:
        serve_lease_get(l, r);
        return false;
    case LANE_LEASE_PUT:
        return serve_lease_put(l, r);
    case LANE_REQUEST:
        serve_request(l, r);
        return false;
    case LANE_CANCEL:
        serve_cancel(l, r);
        return false;
    case LANE_RESUME:
        serve_resume(l, r);
        return false;
    case LANE_PING:
        serve_ping(l);
        return false;
    case LANE_STATUS_GET:
        serve_status(l);
        return false;
    case LANE_METRICS_GET:
        status_metrics(l->front, l, r);
        return false;
    case LANE_REPORT_GET:
        report_serve(l->front, l, r);
        return false;
    case LANE_REQUESTS_GET:
        requests_serve(l->front, l, r);
        return false;
    case LANE_SESSION:
        serve_session(l, r);
        return false;
    case LANE_CONTROL:
        lifecycle_serve(l->front, l, r);
        return false;
    case LANE_CREDIT:
        flow_credit(l->front, l, r->h.id, r->credit.n_rows);
        return false;
    default:
        return true; /* lane_record_check() lets nothing else through */
    }
}
