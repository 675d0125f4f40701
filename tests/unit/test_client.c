/* SPDX-License-Identifier: Apache-2.0 */
/* client/pipit.h against a scripted front: the ordinary life of requests, leases and questions.
 * What happens when the daemon fails is in test_client_faults.c. */

#include <criterion/criterion.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/pipit.h"
#include "tests/unit/fake_front.h"
#include "proto/lane/tlv.h"

/* ---- ordinary life ---- */

static void script_answer(struct fake_front *f)
{
    struct lane_record r;
    struct tlv_item item;
    uint8_t id[16];

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    memcpy(id, r.h.id, 16);
    cr_assert_eq(r.request.kind, LANE_KIND_GENERATE);
    cr_assert_eq(r.request.buf, 1);
    struct tlv_reader t = {.buf = f->c2e, .size = r.request.tlv_bytes};
    cr_assert_eq(tlv_next(&t, &item, NULL), 1);
    cr_assert_eq(item.type, TLV_PROMPT);
    cr_assert(item.len == 4 && memcmp(item.data, "Once", 4) == 0);
    cr_assert_eq(tlv_next(&t, &item, NULL), 0);
    fake_accepted(f, id);
    lane_record_init(&r, LANE_PROGRESS, id);
    r.progress.n_total = 3;
    fake_send(f, &r);
    for (int i = 0; i < 2; i++) {
        lane_record_init(&r, LANE_ALT, id);
        r.h.seq = 2 + (uint64_t)i;
        r.alt.token = 40 + i;
        r.alt.text_len = 1;
        r.alt.text[0] = (uint8_t)(i ? 0xc3 : 'x');
        fake_send(f, &r);
    }
    fake_token(f, id, 4, " upon");
    lane_record_init(&r, LANE_TEXT, id);
    r.h.seq = 5;
    r.token.token = -1;
    r.token.text_len = 2;
    memcpy(r.token.text, " a", 2);
    fake_send(f, &r);
    fake_done(f, id, 6, LANE_REASON_LENGTH);
    cr_assert(fake_wait_end(f));
}

Test(client, request_and_events)
{
    struct fake_front f;
    const struct pipit_event *ev;
    static const enum pipit_event_type want[] = {PIPIT_EVENT_ACCEPTED, PIPIT_EVENT_PROGRESS,
                                                 PIPIT_EVENT_TOKEN, PIPIT_EVENT_TEXT,
                                                 PIPIT_EVENT_DONE};

    fake_front_start(&f, script_answer);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_info(c)->front_epoch, 7);
    cr_assert_str_eq(pipit_client_info(c)->model, "fake");
    struct pipit_request *q = fake_ask(c, "Once");
    for (size_t i = 0; i < 5; i++) {
        cr_assert_eq(pipit_request_next(q, 2000, &ev), 1);
        cr_assert_eq(ev->type, want[i], "event %zu", i);
        if (ev->type == PIPIT_EVENT_TOKEN) {
            cr_assert_eq(ev->n_alts, 2);
            cr_assert_eq(ev->alts[1].token, 41);
            cr_assert_eq((uint8_t)ev->alts[1].text[0], 0xc3);
            cr_assert_str_eq(ev->text, " upon");
        }
        if (ev->type == PIPIT_EVENT_DONE) {
            cr_assert_eq(ev->done->reason, PIPIT_REASON_LENGTH);
        }
    }
    cr_assert_eq(pipit_request_next(q, 0, &ev), 0);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void count_events(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    int *n = user;

    n[0]++;
    if (ev->type == PIPIT_EVENT_DONE) {
        n[1] = 1;
        pipit_request_destroy(q);
    }
}

Test(client, callback_may_destroy_its_request)
{
    struct fake_front f;
    struct pipit_request *q;
    struct pipit_error e = {0};
    int n[2] = {0};

    fake_front_start(&f, script_answer);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_request_create(c, PIPIT_GENERATE, &q), 0);
    cr_assert_eq(pipit_request_set_prompt(q, "Once", 4), 0);
    cr_assert_eq(pipit_request_set_callback(q, count_events, n), 0);
    cr_assert_eq(pipit_request_send(q, &e), 0);
    while (!n[1]) {
        struct pollfd p = {.fd = pipit_client_fd(c), .events = POLLIN};

        cr_assert_eq(poll(&p, 1, 2000), 1);
        cr_assert_geq(pipit_client_dispatch(c, 0), 0);
    }
    cr_assert_eq(n[0], 5);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

struct seen {
    struct pipit_client *client;
    bool done;
};

static void wait_in_callback(struct pipit_request *q, const struct pipit_event *ev, void *user)
{
    struct seen *seen = user;
    const struct pipit_status *s;
    struct pipit_error e = {0};

    cr_assert_eq(pipit_client_status(seen->client, &s, &e), -EDEADLK);
    cr_assert_eq(pipit_client_dispatch(seen->client, 0), -EDEADLK);
    seen->done = ev->type == PIPIT_EVENT_DONE;
}

Test(client, waiting_calls_are_refused_in_a_callback)
{
    struct fake_front f;
    struct pipit_request *q;
    struct seen seen = {0};

    fake_front_start(&f, script_answer);
    struct pipit_client *c = fake_client(&f);
    seen.client = c;
    cr_assert_eq(pipit_request_create(c, PIPIT_GENERATE, &q), 0);
    cr_assert_eq(pipit_request_set_prompt(q, "Once", 4), 0);
    cr_assert_eq(pipit_request_set_callback(q, wait_in_callback, &seen), 0);
    cr_assert_eq(pipit_request_send(q, NULL), 0);
    while (!seen.done) {
        cr_assert_geq(pipit_client_dispatch(c, 2000), 0);
    }
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* A byte in a pipe of the caller's ends the wait before the daemon says anything; while it lies
 * there a question is answered all the same. */
static void script_ping_late(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    (void)fake_expect(f, LANE_PING);
    (void)poll(NULL, 0, 50);
    lane_record_init(&r, LANE_PONG, NULL);
    r.hello_reply.magic = LANE_MAGIC;
    fake_send(f, &r);
    cr_assert(fake_wait_end(f));
}

Test(client, dispatch_waits_for_a_foreign_descriptor)
{
    struct fake_front f;
    struct pipit_error e = {0};
    char byte = 0;
    int fds[2];

    fake_front_start(&f, script_ping_late);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(pipit_client_watch(c, -1, POLLIN), -EINVAL);
    cr_assert_eq(pipit_client_watch(c, fds[0], -1), -ENOENT);
    cr_assert_eq(pipit_client_watch(c, fds[0], POLLIN), 0);
    cr_assert_eq(pipit_client_dispatch(c, 10), 0, "nothing was there");
    cr_assert_eq(write(fds[1], &byte, 1), 1);
    cr_assert_eq(pipit_client_dispatch(c, -1), 0, "the pipe ended the wait");
    cr_assert_eq(pipit_client_ping(c, &e), 0, "%s", e.text);
    cr_assert_eq(pipit_client_watch(c, fds[0], 0), 0, "hang-up only");
    cr_assert_eq(pipit_client_dispatch(c, 10), 0);
    cr_assert_eq(read(fds[0], &byte, 1), 1);
    (void)close(fds[1]);
    cr_assert_eq(pipit_client_dispatch(c, -1), 0, "the hang-up ended the wait");
    cr_assert_eq(pipit_client_watch(c, fds[0], -1), 0);
    cr_assert_eq(pipit_client_dispatch(c, 10), 0);
    (void)close(fds[0]);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* Nanoseconds of processor time that this thread has used: what a wait that spins shows. */
static int64_t spent_ns(void)
{
    struct timespec t;

    cr_assert_eq(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t), 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

enum { QUIET_NS = 60000000 }; /* of the 200 ms and more that the waits below take */

/* Makes a pipe that the client watches and that stays readable. */
static void watch_ready(struct pipit_client *c, int fds[2])
{
    char byte = 0;

    cr_assert_eq(pipe(fds), 0);
    cr_assert_eq(write(fds[1], &byte, 1), 1);
    cr_assert_eq(pipit_client_watch(c, fds[0], POLLIN), 0);
}

static void unwatch(struct pipit_client *c, int fds[2])
{
    cr_assert_eq(pipit_client_watch(c, fds[0], -1), 0);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void script_late_then_gone(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    (void)poll(NULL, 0, 500);
    fake_token(f, r.h.id, 2, "late");
    (void)poll(NULL, 0, 100);
    fake_hang_up(f);
}

Test(client, next_waits_on_while_a_foreign_descriptor_is_ready)
{
    struct fake_front f;
    const struct pipit_event *ev;
    int fds[2];

    fake_front_start(&f, script_late_then_gone);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_set_reconnect_ms(c, 0), 0);
    struct pipit_request *q = fake_ask(c, "x");
    watch_ready(c, fds);
    int64_t before = spent_ns();

    cr_assert_eq(pipit_request_next(q, 2000, &ev), 1);
    cr_assert_eq(ev->type, PIPIT_EVENT_ACCEPTED);
    cr_assert_eq(pipit_request_next(q, 200, &ev), -EAGAIN);
    cr_assert_eq(pipit_request_next(q, -1, &ev), 1);
    cr_assert_str_eq(ev->text, "late");
    cr_assert_eq(pipit_request_next(q, -1, &ev), 1, "the link ended under the wait");
    cr_assert_eq(ev->type, PIPIT_EVENT_ERROR);
    cr_assert_lt(spent_ns() - before, QUIET_NS);
    unwatch(c, fds);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_gone(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    fake_hang_up(f);
}

Test(client, says_how_long_it_tried_to_connect_again)
{
    struct fake_front f;
    const struct pipit_event *ev;

    fake_front_start(&f, script_gone);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_set_reconnect_ms(c, 200), 0);
    struct pipit_request *q = fake_ask(c, "x");

    cr_assert_eq(pipit_request_next(q, 2000, &ev), 1);
    fake_front_stop(&f);
    cr_assert_eq(pipit_request_next(q, 5000, &ev), 1);
    cr_assert_eq(ev->type, PIPIT_EVENT_ERROR);
    cr_assert_eq(ev->error->code, PIPIT_E_LOST);
    cr_assert(strstr(ev->error->text, ", and none came back in 0.2 s"), "%s", ev->error->text);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
}

static void script_pong(struct fake_front *f)
{
    fake_accept(f);
    (void)fake_expect(f, LANE_PING);
    fake_pong(f);
    fake_hang_up(f);
}

/* Where a service manager holds the socket, a connection starts the daemon that has just ended. */
Test(client, does_not_connect_again_where_it_must_not)
{
    struct fake_front f = {0};
    struct pipit_error e = {0};

    fake_front_start(&f, script_pong);
    struct pipit_client *c = fake_client(&f);
    struct pollfd knocks = {.fd = f.listen_fd, .events = POLLIN};

    cr_assert_eq(pipit_client_set_reconnect_ms(c, 0), 0);
    cr_assert_eq(pipit_client_ping(c, &e), 0, "%s", e.text);
    while (pipit_client_dispatch(c, 20) >= 0 && poll(&knocks, 1, 0) == 0 &&
           pipit_client_ping(c, &e) == 0) {
    }
    for (int i = 0; i < 3; i++) {
        e = (struct pipit_error){0};
        cr_expect_lt(pipit_client_ping(c, &e), 0);
        cr_expect_eq(e.code, PIPIT_E_LOST, "%s", e.text);
    }
    cr_expect_eq(poll(&knocks, 1, 100), 0, "nobody knocks");
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_hello_late(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    (void)fake_expect(f, LANE_PING);
    fake_pong(f);
    fake_hang_up(f);
    fake_accept_only(f);
    fake_hello_reply(f, &r);
    (void)poll(NULL, 0, 250);
    fake_send_hello(f, &r);
    (void)fake_expect(f, LANE_PING);
    fake_pong(f);
    cr_assert(fake_wait_end(f));
}

Test(client, connecting_waits_while_a_foreign_descriptor_is_ready)
{
    struct fake_front f;
    struct pipit_error e = {0};
    int fds[2];

    fake_front_start(&f, script_hello_late);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_ping(c, &e), 0, "%s", e.text);
    cr_assert_eq(pipit_client_dispatch(c, 2000), -ENOTCONN);
    watch_ready(c, fds);
    int64_t before = spent_ns();

    cr_assert_eq(pipit_client_ping(c, &e), 0, "%s", e.text);
    cr_assert_lt(spent_ns() - before, QUIET_NS);
    unwatch(c, fds);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* Two at once: the second waits for the request lease, events of both interleave. */
static void script_two(struct fake_front *f)
{
    struct lane_record a;
    struct lane_record b;
    struct pollfd p;

    fake_accept(f);
    a = fake_expect(f, LANE_REQUEST);
    p = (struct pollfd){.fd = f->sock, .events = POLLIN};
    cr_assert_eq(poll(&p, 1, 100), 0, "the second came before the first was accepted");
    cr_assert_eq(f->c2e[8], 'A');
    fake_accepted(f, a.h.id);
    b = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(f->c2e[8], 'B');
    fake_accepted(f, b.h.id);
    fake_token(f, b.h.id, 2, "b1");
    fake_token(f, a.h.id, 2, "a1");
    fake_token(f, b.h.id, 3, "b2");
    fake_done(f, b.h.id, 4, LANE_REASON_STOP);
    fake_token(f, a.h.id, 3, "a2");
    fake_done(f, a.h.id, 4, LANE_REASON_STOP);
}

Test(client, two_requests_on_one_lane)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_two);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *a = fake_ask(c, "A");
    struct pipit_request *b = fake_ask(c, "B");
    fake_finish(a, &o);
    cr_assert_str_eq(o.text, "a1a2");
    fake_finish(b, &o);
    cr_assert_str_eq(o.text, "b1b2");
    pipit_request_destroy(a);
    pipit_request_destroy(b);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_cancel(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    fake_token(f, r.h.id, 2, "some");
    r = fake_expect(f, LANE_CANCEL);
    fake_token(f, r.h.id, 3, " more");
    fake_done(f, r.h.id, 4, LANE_REASON_CANCELLED);
}

Test(client, cancel)
{
    struct fake_front f;
    const struct pipit_event *ev;
    struct fake_outcome o;

    fake_front_start(&f, script_cancel);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *q = fake_ask(c, "x");
    do {
        cr_assert_eq(pipit_request_next(q, 2000, &ev), 1);
    } while (ev->type != PIPIT_EVENT_TOKEN);
    cr_assert_eq(pipit_request_cancel(q), 0);
    cr_assert_eq(pipit_request_cancel(q), 0, "twice is once");
    fake_finish(q, &o);
    cr_assert_str_eq(o.text, " more");
    cr_assert_eq(o.reason, PIPIT_REASON_CANCELLED);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* ---- questions about the lane ---- */

static void script_calls(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    (void)fake_expect(f, LANE_STATUS_GET);
    lane_record_init(&r, LANE_STATUS, NULL);
    r.status.n_running = 3;
    memcpy(r.status.backend, "ref", 4);
    fake_send(f, &r);
    r = fake_expect(f, LANE_CANCEL);
    (void)fake_expect(f, LANE_PING);
    fake_error(f, r.h.id, LANE_ERR_NOT_FOUND, "no such request");
    fake_pong(f);
    (void)fake_expect(f, LANE_CANCEL);
    (void)fake_expect(f, LANE_PING);
    fake_pong(f);
}

Test(client, status_and_cancel_by_id)
{
    struct fake_front f;
    struct pipit_error e = {0};
    const struct pipit_status *s;
    static const uint8_t id[16] = {1, 2, 3};

    fake_front_start(&f, script_calls);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_status(c, &s, &e), 0, "%s", e.text);
    cr_assert_eq(s->n_running, 3);
    cr_assert_str_eq(s->backend, "ref");
    cr_assert_eq(pipit_client_cancel(c, id, &e), -ENOENT);
    cr_assert_eq(e.code, PIPIT_E_NOT_FOUND);
    cr_assert_str_eq(e.text, "no such request");
    cr_assert_eq(pipit_client_cancel(c, id, &e), 0, "the pong of the first cancel is not ours");
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void grant(struct fake_front *f, uint64_t offset, uint64_t length)
{
    struct lane_record r = fake_expect(f, LANE_LEASE_GET);

    r.h.type = LANE_LEASE;
    r.lease.buf = 5;
    r.lease.generation = 9;
    r.lease.offset = offset;
    r.lease.length = length ? length : r.lease.length;
    fake_send(f, &r);
}

static void script_leases(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    memset(f->e2c + 4096, 0x5a, 64);
    grant(f, 4096, 0);
    r = fake_expect(f, LANE_LEASE_PUT);
    cr_assert(r.lease.buf == 5 && r.lease.generation == 9);
    grant(f, FAKE_ARENA_BYTES - 8, 0);
    grant(f, UINT64_MAX - 7, 0);
    grant(f, 8, 16);
    (void)fake_expect(f, LANE_LEASE_GET);
    fake_error(f, NULL, LANE_ERR_TOO_LARGE, "over the limit");
}

Test(client, leases_are_views_and_are_checked)
{
    struct fake_front f;
    struct pipit_error e = {0};
    struct pipit_lease *l = NULL;

    fake_front_start(&f, script_leases);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64, &l, &e), 0, "%s", e.text);
    cr_assert_eq(pipit_lease_bytes(l), 64);
    cr_assert_eq(((const uint8_t *)pipit_lease_read(l))[63], 0x5a);
    cr_assert_null(pipit_lease_write(l));
    pipit_lease_put(l);
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64, &l, &e), -EBADMSG, "beyond the end");
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64, &l, &e), -EBADMSG, "wraps");
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64, &l, &e), -EBADMSG, "too short");
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64, &l, &e), -E2BIG);
    cr_assert_str_eq(e.text, "over the limit");
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_tokenize(struct fake_front *f)
{
    static const int32_t ids[] = {1, 403, 407};
    struct lane_record r;

    fake_accept(f);
    grant(f, 8192, 0);
    r = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(r.request.kind, LANE_KIND_TOKENIZE);
    cr_assert_eq(r.request.out_buf, 5);
    fake_accepted(f, r.h.id);
    memcpy(f->e2c + 8192, ids, sizeof(ids));
    struct lane_record b;
    lane_record_init(&b, LANE_BULK, r.h.id);
    b.h.seq = 2;
    b.bulk.kind = LANE_BULK_TOKENS;
    b.bulk.buf = 5;
    b.bulk.generation = 9;
    b.bulk.n_rows = 3;
    b.bulk.n_bytes = sizeof(ids);
    fake_send(f, &b);
    fake_done(f, r.h.id, 3, LANE_REASON_STOP);
    (void)fake_expect(f, LANE_LEASE_PUT);

    (void)fake_expect(f, LANE_LEASE_GET);
    fake_error(f, NULL, LANE_ERR_BUSY, "no lease just now");
    r = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(r.request.out_buf, 0);
    fake_accepted(f, r.h.id);
    fake_token(f, r.h.id, 2, "");
    fake_done(f, r.h.id, 3, LANE_REASON_STOP);

    r = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(r.request.kind, LANE_KIND_DETOKENIZE);
    fake_accepted(f, r.h.id);
    lane_record_init(&b, LANE_TEXT, r.h.id);
    b.h.seq = 2;
    b.token.token = -1;
    b.token.text_len = 5;
    memcpy(b.token.text, "hello", 5);
    fake_send(f, &b);
    fake_done(f, r.h.id, 3, LANE_REASON_STOP);
}

Test(client, tokenize_and_detokenize)
{
    struct fake_front f;
    struct pipit_error e = {0};
    int32_t *ids;
    size_t n;
    char *text;

    fake_front_start(&f, script_tokenize);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_tokenize(c, "hello", 5, 0, &ids, &n, &e), 0, "%s", e.text);
    cr_assert(n == 3 && ids[0] == 1 && ids[2] == 407);
    free(ids);
    cr_assert_eq(pipit_client_tokenize(c, "hello", 5, 0, &ids, &n, &e), 0, "%s", e.text);
    cr_assert(n == 1 && ids[0] == 102);
    cr_assert_eq(pipit_client_detokenize(c, ids, n, 0, &text, &n, &e), 0, "%s", e.text);
    cr_assert_str_eq(text, "hello");
    cr_assert_eq(n, 5);
    free(ids);
    free(text);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* Rows 0..7 of two floats through a window of three rows, which lies 64 bytes into the lease. */
static void script_window(struct fake_front *f)
{
    static const uint32_t parts[] = {2, 3, 3};
    struct lane_record r;
    uint64_t row = 0;

    fake_accept(f);
    grant(f, 4096, 0);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    for (uint64_t i = 0; i < 3; i++) {
        struct lane_record b;

        for (uint32_t k = 0; k < parts[i]; k++) {
            float v[2] = {(float)(row + k), -(float)(row + k)};

            memcpy(f->e2c + 4096 + 64 + (row + k) % 3 * sizeof(v), v, sizeof(v));
        }
        lane_record_init(&b, LANE_BULK, r.h.id);
        b.h.seq = 2 + i;
        b.bulk.kind = LANE_BULK_LOGITS;
        b.bulk.buf = 5;
        b.bulk.generation = 9;
        b.bulk.window = 3;
        b.bulk.row0 = row;
        b.bulk.n_rows = parts[i];
        b.bulk.n_cols = 2;
        b.bulk.n_bytes = parts[i] * 8;
        b.bulk.offset = 64 + row % 3 * 8;
        fake_send(f, &b);
        row += parts[i];
        struct lane_record credit = fake_expect(f, LANE_CREDIT);
        while (credit.credit.n_rows < row + 3) {
            credit = fake_expect(f, LANE_CREDIT);
        }
    }
    fake_done(f, r.h.id, 5, LANE_REASON_STOP);
}

Test(client, rows_through_a_window)
{
    struct fake_front f;
    struct pipit_error e = {0};
    struct pipit_lease *l = NULL;
    struct pipit_request *q;
    const struct pipit_event *ev;
    uint64_t row = 0;

    fake_front_start(&f, script_window);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 64 + 24, &l, &e), 0, "%s", e.text);
    cr_assert_eq(pipit_request_create(c, PIPIT_SCORE, &q), 0);
    cr_assert_eq(pipit_request_set_prompt(q, "x", 1), 0);
    cr_assert_eq(pipit_request_set_param(q, PIPIT_LOGITS, 1), 0);
    cr_assert_eq(pipit_request_set_output(q, l), 0);
    cr_assert_eq(pipit_request_send(q, &e), 0);
    while (pipit_request_next(q, 2000, &ev) == 1) {
        if (ev->type == PIPIT_EVENT_BULK) {
            const float *v = ev->bulk->data;

            cr_assert_eq(ev->bulk->row0, row);
            for (uint32_t i = 0; i < ev->bulk->n_rows; i++, row++) {
                cr_assert(v[2 * i] == (float)row && v[2 * i + 1] == -(float)row);
            }
            cr_assert_eq(pipit_request_credit(q, row + 3), 0);
        }
        cr_assert_neq(ev->type, PIPIT_EVENT_ERROR);
    }
    cr_assert_eq(row, 8);
    pipit_request_destroy(q);
    pipit_lease_put(l);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* ---- the caller's slips ---- */

Test(client, setters_refuse_what_is_out_of_range)
{
    static const struct {
        enum pipit_param param;
        double bad[3];
        double good;
    } t[] = {
        {PIPIT_TEMPERATURE, {-0.1, 1e9, 0.0 / 0.0}, 0.7},
        {PIPIT_TOP_P, {-0.1, 1.1, 1.0 / 0.0}, 1},
        {PIPIT_MIN_P, {-0.1, 1.1, 0.0 / 0.0}, 0},
        {PIPIT_TOP_K, {-1, 0.5, 1e12}, 40},
        {PIPIT_REPEAT_PENALTY, {0, -1, 0.0 / 0.0}, 1.1},
        {PIPIT_MAX_TOKENS, {-1, 0.5, 1e12}, 8},
        {PIPIT_LOGPROBS, {-2, 21, 0.5}, -1},
        {PIPIT_TIMEOUT_MS, {-1, 0.5, 1e12}, 1000},
        {PIPIT_URGENCY, {-101, 101, 0.5}, 100},
        {PIPIT_IGNORE_END, {2, -1, 0.5}, 1},
        {PIPIT_DRAFT, {2, -1, 0.5}, 0},
        {(enum pipit_param)99, {0, 1, 2}, -1},
    };
    struct pipit_client *c;
    struct pipit_request *q;
    uint8_t zero[16] = {0};

    cr_assert_eq(pipit_client_create(&c), 0);
    cr_assert_eq(pipit_request_create(c, (enum pipit_kind)0, &q), -EINVAL);
    cr_assert_eq(pipit_request_create(c, PIPIT_CHAT, &q), 0);
    for (size_t i = 0; i < sizeof(t) / sizeof(t[0]); i++) {
        for (size_t k = 0; k < 3; k++) {
            cr_assert_eq(pipit_request_set_param(q, t[i].param, t[i].bad[k]), -EINVAL,
                         "param %d value %g", t[i].param, t[i].bad[k]);
        }
        if (t[i].param != (enum pipit_param)99) {
            cr_assert_eq(pipit_request_set_param(q, t[i].param, t[i].good), 0);
        }
    }
    cr_assert_eq(pipit_request_set_id(q, zero), -EINVAL);
    cr_assert_eq(pipit_request_add_message(q, "nobody", "x", 1), -EINVAL);
    cr_assert_eq(pipit_request_add_call(q, "1", "f", "{}", 2), -EINVAL, "of no message");
    cr_assert_eq(pipit_request_add_reasoning(q, "x", 1), -EINVAL);
    cr_assert_eq(pipit_request_add_result(q, "1", "f", "x", 1), 0);
    cr_assert_eq(pipit_request_add_call(q, "1", "f", "{}", 2), -EINVAL, "of a tool's message");
    cr_assert_eq(pipit_request_add_message(q, "assistant", "", 0), 0);
    cr_assert_eq(pipit_request_add_call(q, NULL, "", "{}", 2), -EINVAL, "without a name");
    cr_assert_eq(pipit_request_add_call(q, NULL, "f", NULL, 0), 0);
    cr_assert_eq(pipit_request_add_reasoning(q, "x", 1), 0);
    cr_assert_eq(pipit_request_set_tools(q, "[]", 2), 0);
    cr_assert_eq(pipit_request_set_param(q, PIPIT_PARTS, 2), -EINVAL);
    cr_assert_eq(pipit_request_add_stop(q, "", 0), -EINVAL);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(pipit_request_add_stop(q, "x", 1), 0);
    }
    cr_assert_eq(pipit_request_add_stop(q, "x", 1), -E2BIG);
    cr_assert_eq(pipit_request_send(q, NULL), -ENOTCONN);
    cr_assert_eq(pipit_request_cancel(q), -ENOENT);
    pipit_request_destroy(q);
    cr_assert_eq(pipit_client_set_program(c, "a name that is longer than 31 bytes"), -EINVAL);
    pipit_client_destroy(c);
    pipit_client_destroy(NULL);
    pipit_request_destroy(NULL);
    pipit_lease_put(NULL);
}

static void script_large(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(r.request.tlv_bytes, FAKE_REQUEST_BYTES);
    fake_accepted(f, r.h.id);
    fake_done(f, r.h.id, 2, LANE_REASON_STOP);
}

Test(client, a_request_over_the_limit_says_both_numbers)
{
    struct fake_front f;
    struct fake_outcome o;
    char text[FAKE_REQUEST_BYTES];
    struct pipit_request *q;

    memset(text, 'x', sizeof(text));
    fake_front_start(&f, script_large);
    struct pipit_client *c = fake_client(&f);
    text[FAKE_REQUEST_BYTES - 7] = '\0';
    q = fake_ask(c, text);
    fake_finish(q, &o);
    cr_assert_eq(o.error.code, PIPIT_E_TOO_LARGE);
    cr_assert_eq(o.error.count_a, FAKE_REQUEST_BYTES + 8);
    cr_assert_eq(o.error.count_b, FAKE_REQUEST_BYTES);
    pipit_request_destroy(q);
    text[FAKE_REQUEST_BYTES - 8] = '\0';
    q = fake_ask(c, text);
    fake_finish(q, &o);
    cr_assert_eq(o.reason, PIPIT_REASON_STOP, "%s", o.error.text);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_fork(struct fake_front *f)
{
    fake_accept(f);
    (void)fake_expect(f, LANE_PING);
    fake_pong(f);
}

Test(client, a_forked_child_is_refused_and_harms_nothing)
{
    struct fake_front f;
    struct pipit_error e = {0};
    int status;

    fake_front_start(&f, script_fork);
    struct pipit_client *c = fake_client(&f);
    pid_t pid = fork();
    if (pid == 0) {
        int r = pipit_client_ping(c, &e);

        pipit_client_destroy(c);
        _exit(r == -EPERM ? 0 : 1);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_eq(pipit_client_ping(c, &e), 0, "%s", e.text);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* ---- where the daemon is looked for ---- */

static void expect_places(struct pipit_client *c, const char *const *origins)
{
    struct pipit_place p;
    size_t i;

    for (i = 0; origins[i]; i++) {
        cr_assert_eq(pipit_client_place(c, i, &p), 0);
        cr_assert_str_eq(p.origin, origins[i]);
        cr_assert_neq(p.err, 0);
    }
    cr_assert_eq(pipit_client_place(c, i, &p), -ENOENT);
}

Test(client, says_which_places_it_tried)
{
    static const char *const all[] = {"user", "system", "tmp", NULL};
    static const char *const env[] = {"$PIPIT_RUNTIME_DIR", NULL};
    static const char *const given[] = {"given", NULL};
    struct pipit_client *c;
    struct pipit_error e = {0};
    char path[200];

    cr_assert_eq(pipit_client_create(&c), 0);
    (void)unsetenv("PIPIT_RUNTIME_DIR");
    cr_assert_eq(pipit_client_set_instance(c, "nobody-runs-this"), 0);
    cr_assert_lt(pipit_client_connect(c, &e), 0);
    cr_assert_eq(e.code, PIPIT_E_UNREACHABLE);
    cr_assert(strstr(e.text, "/run/pipit/nobody-runs-this/lane.sock (system): no socket there"),
              "%s", e.text);
    expect_places(c, all);
    (void)setenv("PIPIT_RUNTIME_DIR", "/nonexistent/env", 1);
    cr_assert_eq(pipit_client_connect(c, &e), -ENOENT);
    expect_places(c, all); /* the program named an instance */
    cr_assert_eq(pipit_client_set_instance(c, NULL), 0);
    cr_assert_eq(pipit_client_connect(c, &e), -ENOENT);
    expect_places(c, env);
    (void)unsetenv("PIPIT_RUNTIME_DIR");
    (void)setenv("PIPIT_INSTANCE", "nor-this", 1);
    cr_assert_lt(pipit_client_connect(c, &e), 0);
    cr_assert(strstr(e.text, "/run/pipit/nor-this/lane.sock (system)"), "%s", e.text);
    (void)unsetenv("PIPIT_INSTANCE");
    cr_assert_eq(pipit_client_set_runtime_dir(c, "/nonexistent/given"), 0);
    cr_assert_eq(pipit_client_connect(c, &e), -ENOENT);
    expect_places(c, given);
    (void)unsetenv("PIPIT_RUNTIME_DIR");

    memset(path, 'a', sizeof(path));
    path[0] = '/';
    path[199] = '\0';
    cr_assert_eq(pipit_client_set_runtime_dir(c, path), 0);
    cr_assert_eq(pipit_client_connect(c, &e), -ENAMETOOLONG);
    cr_assert(strstr(e.text, "107 bytes"), "%s", e.text);
    cr_assert_eq(pipit_client_set_runtime_dir(c, NULL), 0);
    cr_assert_eq(pipit_client_set_instance(c, "../etc"), 0);
    cr_assert_eq(pipit_client_connect(c, &e), -EINVAL);
    pipit_client_destroy(c);
}
