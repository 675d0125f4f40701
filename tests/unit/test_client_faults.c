/* SPDX-License-Identifier: Apache-2.0 */
/* client/pipit.h when the daemon fails: away, refusing, of another version, silent, sending
 * garbage, dying and coming back (the answer goes on without a gap), or not coming back. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/pipit.h"
#include "tests/unit/fake_front.h"

/* ---- the hello ---- */

static int try_connect(struct fake_front *f, struct pipit_error *e)
{
    struct pipit_client *c;
    int r;

    memset(e, 0, sizeof(*e));
    cr_assert_eq(pipit_client_create(&c), 0);
    cr_assert_eq(pipit_client_set_runtime_dir(c, f->dir), 0);
    cr_assert_eq(pipit_client_set_timeout_ms(c, 200), 0);
    r = pipit_client_connect(c, e);
    pipit_client_destroy(c);
    return r;
}

static void script_none(struct fake_front *f)
{
    (void)close(f->listen_fd);
    f->listen_fd = -1;
}

Test(client_faults, a_socket_without_a_daemon)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_none);
    (void)pthread_join(f.thread, NULL);
    cr_assert_eq(try_connect(&f, &e), -ECONNREFUSED);
    cr_assert_eq(e.code, PIPIT_E_UNREACHABLE);
    cr_assert(strstr(e.text, "no daemon behind it"), "%s", e.text);
    (void)unlink(f.path);
    (void)rmdir(f.dir);
}

static void script_silent(struct fake_front *f)
{
    fake_accept_only(f);
    cr_assert(fake_wait_end(f));
}

Test(client_faults, a_daemon_that_does_not_say_hello)
{
    struct fake_front f;
    struct pipit_error e;
    int64_t t = clock_ns();

    fake_front_start(&f, script_silent);
    cr_assert_eq(try_connect(&f, &e), -ETIMEDOUT);
    cr_assert_eq(e.code, PIPIT_E_TIMED_OUT);
    cr_assert(strstr(e.text, "did not answer in 200 ms"), "%s", e.text);
    cr_assert_geq(clock_ns() - t, 200 * 1000000);
    fake_front_stop(&f);
}

static void script_refuses(struct fake_front *f)
{
    fake_accept_only(f);
    (void)fake_expect(f, LANE_HELLO);
    fake_error(f, NULL, LANE_ERR_BUSY, "all lanes are taken");
}

Test(client_faults, a_daemon_that_refuses)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_refuses);
    cr_assert_eq(try_connect(&f, &e), -EBUSY);
    cr_assert_eq(e.code, PIPIT_E_BUSY);
    cr_assert_str_eq(e.text, "all lanes are taken");
    fake_front_stop(&f);
}

/* It is refused before it is heard, and its hello lies unread where the daemon closes: nearly
 * always before the client has read why. */
static void script_refuses_unheard(struct fake_front *f)
{
    struct pollfd p = {.events = POLLIN};

    fake_accept_only(f);
    p.fd = f->sock;
    cr_assert_eq(poll(&p, 1, 2000), 1);
    fake_error(f, NULL, LANE_ERR_BUSY, "all lanes are taken");
    fake_hang_up(f);
}

Test(client_faults, a_daemon_that_refuses_unheard)
{
    for (int i = 0; i < 20; i++) {
        struct fake_front f;
        struct pipit_error e;

        fake_front_start(&f, script_refuses_unheard);
        cr_assert_eq(try_connect(&f, &e), -EBUSY, "%s", e.text);
        cr_assert_str_eq(e.text, "all lanes are taken");
        fake_front_stop(&f);
    }
}

static void script_abi(struct fake_front *f)
{
    struct lane_record r;

    fake_accept_only(f);
    fake_hello_reply(f, &r);
    r.hello_reply.abi_major = 9;
    fake_send_hello(f, &r);
}

Test(client_faults, a_daemon_of_another_version)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_abi);
    cr_assert_eq(try_connect(&f, &e), -EPROTONOSUPPORT);
    cr_assert_eq(e.code, PIPIT_E_ABI);
    cr_assert(strstr(e.text, "9.0"), "%s", e.text);
    fake_front_stop(&f);
}

static void script_unsealed(struct fake_front *f)
{
    struct lane_record r;

    fake_accept_only(f);
    fake_hello_reply(f, &r);
    (void)close(f->fds[1]);
    f->fds[1] = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    cr_assert_eq(ftruncate(f->fds[1], FAKE_ARENA_BYTES), 0);
    fake_send_hello(f, &r);
}

Test(client_faults, an_arena_that_could_shrink)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_unsealed);
    cr_assert_eq(try_connect(&f, &e), -EBADMSG);
    cr_assert(strstr(e.text, "not sealed"), "%s", e.text);
    fake_front_stop(&f);
}

static void script_too_small(struct fake_front *f)
{
    struct lane_record r;

    fake_accept_only(f);
    fake_hello_reply(f, &r);
    r.hello_reply.e2c_bytes *= 2;
    fake_send_hello(f, &r);
}

Test(client_faults, an_arena_smaller_than_said)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_too_small);
    cr_assert_eq(try_connect(&f, &e), -EBADMSG);
    cr_assert(strstr(e.text, "smaller"), "%s", e.text);
    fake_front_stop(&f);
}

static void script_no_fds(struct fake_front *f)
{
    struct lane_record r;

    fake_accept_only(f);
    fake_hello_reply(f, &r);
    fake_send(f, &r);
}

Test(client_faults, a_hello_without_descriptors)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_no_fds);
    cr_assert_eq(try_connect(&f, &e), -EBADMSG);
    fake_front_stop(&f);
}

static void script_text_hello(struct fake_front *f)
{
    fake_accept_only(f);
    cr_assert_eq(send(f->sock, "HTTP/1.1 400\r\n", 14, MSG_NOSIGNAL), 14);
    cr_assert(fake_wait_end(f));
}

Test(client_faults, somebody_else_on_the_socket)
{
    struct fake_front f;
    struct pipit_error e;

    fake_front_start(&f, script_text_hello);
    cr_assert_eq(try_connect(&f, &e), -EBADMSG);
    cr_assert_eq(e.code, PIPIT_E_PROTOCOL);
    cr_assert(strstr(e.text, "garbage"), "%s", e.text);
    fake_front_stop(&f);
}

/* ---- garbage while a request runs ---- */

static int kind_of_garbage;

static void script_garbage(struct fake_front *f)
{
    struct lane_record r;
    uint8_t id[16];

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    memcpy(id, r.h.id, 16);
    fake_accepted(f, id);
    fake_token(f, id, 2, "good");
    lane_record_init(&r, LANE_TOKEN, id);
    r.h.seq = 3;
    switch (kind_of_garbage) {
    case 0:
        r.token.text_len = 201;
        fake_send(f, &r);
        break;
    case 1:
        r.h.type = 0x7777;
        fake_send(f, &r);
        break;
    case 2:
        cr_assert_eq(send(f->sock, &r, 100, MSG_NOSIGNAL), 100);
        break;
    case 3: {
        char big[300] = {0};

        memcpy(big, &r, sizeof(r));
        cr_assert_eq(send(f->sock, big, sizeof(big), MSG_NOSIGNAL), 300);
        break;
    }
    case 4: /* a hole */
        r.h.seq = 5;
        fake_send(f, &r);
        break;
    case 5: /* data outside any lease */
        lane_record_init(&r, LANE_BULK, id);
        r.h.seq = 3;
        r.bulk.kind = LANE_BULK_LOGITS;
        r.bulk.buf = 3;
        r.bulk.n_bytes = 1 << 30;
        fake_send(f, &r);
        break;
    default:
        lane_record_init(&r, LANE_REQUEST, id);
        fake_send(f, &r);
    }
    cr_assert(fake_wait_end(f));
}

static void check_garbage(int kind, const char *said)
{
    struct fake_front f;
    struct fake_outcome o;

    kind_of_garbage = kind;
    fake_front_start(&f, script_garbage);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *q = fake_ask(c, "x");
    fake_finish(q, &o);
    cr_assert_str_eq(o.text, "good");
    cr_assert_eq(o.error.code, PIPIT_E_PROTOCOL);
    cr_assert(strstr(o.error.text, said), "'%s' does not say '%s'", o.error.text, said);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

Test(client_faults, garbage_ends_the_request_with_its_cause)
{
    check_garbage(0, "text over 200 bytes");
    check_garbage(1, "type 0x7777");
    check_garbage(2, "100 bytes, not 256");
    check_garbage(3, "257 bytes, not 256");
    check_garbage(4, "events 3 to 4 of the answer are missing");
    check_garbage(5, "outside the output lease");
    check_garbage(6, "is not expected here");
}

/* ---- dying and coming back ---- */

static void script_comes_back(struct fake_front *f)
{
    struct lane_record r;
    uint8_t id[16];

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    memcpy(id, r.h.id, 16);
    fake_accepted(f, id);
    fake_token(f, id, 2, "a");
    fake_token(f, id, 3, "b");
    for (int life = 0; life < 3; life++) {
        fake_hang_up(f);
        fake_accept(f);
        r = fake_expect(f, LANE_RESUME);
        cr_assert_eq(memcmp(r.h.id, id, 16), 0);
        cr_assert_eq(r.resume.next_seq, 4 + (uint64_t)life);
        fake_token(f, id, 3 + (uint64_t)life, "OLD"); /* repeated: must be dropped */
        fake_token(f, id, 4 + (uint64_t)life, life == 0 ? "c" : life == 1 ? "d" : "e");
    }
    fake_done(f, id, 7, LANE_REASON_STOP);
}

Test(client_faults, an_answer_goes_on_over_three_deaths)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_comes_back);
    struct pipit_client *c = fake_client(&f);
    int fd = pipit_client_fd(c);
    struct pipit_request *q = fake_ask(c, "x");
    fake_finish(q, &o);
    cr_assert_str_eq(o.text, "abcde");
    cr_assert_eq(o.reason, PIPIT_REASON_STOP, "%s", o.error.text);
    cr_assert_eq(o.resumed, 3);
    cr_assert_eq(pipit_client_fd(c), fd, "one descriptor for life");
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_dies_before_accepting(struct fake_front *f)
{
    struct lane_record r;
    uint8_t id[16];

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    memcpy(id, r.h.id, 16);
    fake_hang_up(f);
    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    cr_assert_eq(memcmp(r.h.id, id, 16), 0, "the same id, so that it runs once");
    cr_assert_eq(f->c2e[8], 'x');
    cr_assert_eq(r.request.generation, 2, "the new lane's lease");
    fake_accepted(f, id);
    fake_token(f, id, 2, "answer");
    fake_done(f, id, 3, LANE_REASON_STOP);
}

Test(client_faults, a_request_not_yet_accepted_is_sent_again)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_dies_before_accepting);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *q = fake_ask(c, "x");
    fake_finish(q, &o);
    cr_assert_str_eq(o.text, "answer");
    cr_assert_eq(o.reason, PIPIT_REASON_STOP);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_forgets(struct fake_front *f)
{
    struct lane_record r;
    uint8_t id[16];

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    memcpy(id, r.h.id, 16);
    fake_accepted(f, id);
    fake_hang_up(f);
    fake_accept(f);
    (void)fake_expect(f, LANE_RESUME);
    lane_record_init(&r, LANE_ERROR, id);
    r.h.seq = 1; /* as a refusal's first event; not an old one to be dropped */
    r.error.code = LANE_ERR_NOT_FOUND;
    fake_send(f, &r);
}

Test(client_faults, a_restarted_daemon_that_forgot)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_forgets);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *q = fake_ask(c, "x");
    fake_finish(q, &o);
    cr_assert_eq(o.error.code, PIPIT_E_LOST);
    cr_assert(strstr(o.error.text, "no longer knows"), "%s", o.error.text);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_dies(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    fake_token(f, r.h.id, 2, "half");
    fake_hang_up(f);
    (void)close(f->listen_fd);
    f->listen_fd = -1;
}

static void check_dies(uint32_t reconnect_ms)
{
    struct fake_front f;
    struct fake_outcome o;
    struct pipit_error e;
    const struct pipit_status *s;

    fake_front_start(&f, script_dies);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_set_reconnect_ms(c, reconnect_ms), 0);
    struct pipit_request *q = fake_ask(c, "x");
    int64_t t = clock_ns();
    fake_finish(q, &o);
    t = clock_ns() - t;
    cr_assert_str_eq(o.text, "half");
    cr_assert_eq(o.error.code, PIPIT_E_LOST);
    cr_assert_geq(t, (int64_t)reconnect_ms * 1000000);
    cr_assert_leq(t, (int64_t)(reconnect_ms + 1000) * 1000000);
    cr_assert_eq(pipit_client_dispatch(c, 0), -ENOTCONN);
    cr_assert_lt(pipit_client_status(c, &s, &e), 0);
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

Test(client_faults, a_daemon_that_stays_away)
{
    check_dies(0);
    check_dies(300);
}

/* Every connection ends right after its hello: without the bound this would go on for ever. */
static void script_flaps(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    fake_hang_up(f);
    for (int64_t end = clock_ns() + 700000000; clock_ns() < end;) {
        fake_accept(f);
        fake_hang_up(f);
    }
    (void)close(f->listen_fd);
    f->listen_fd = -1;
}

Test(client_faults, hellos_alone_do_not_count_as_coming_back)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_flaps);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_client_set_reconnect_ms(c, 1000), 0);
    struct pipit_request *q = fake_ask(c, "x");
    int64_t t = clock_ns();
    fake_finish(q, &o);
    cr_assert_eq(o.error.code, PIPIT_E_LOST);
    cr_assert_leq(clock_ns() - t, INT64_C(1600000000));
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* The connection is lost between two requests: the next call finds the daemon again. */
static void script_between(struct fake_front *f)
{
    struct lane_record r;

    for (int i = 0; i < 2; i++) {
        fake_accept(f);
        r = fake_expect(f, LANE_REQUEST);
        fake_accepted(f, r.h.id);
        fake_done(f, r.h.id, 2, LANE_REASON_STOP);
        fake_hang_up(f);
    }
}

Test(client_faults, a_new_daemon_between_two_requests)
{
    struct fake_front f;
    struct fake_outcome o;

    fake_front_start(&f, script_between);
    struct pipit_client *c = fake_client(&f);
    for (int i = 0; i < 2; i++) {
        struct pipit_request *q = fake_ask(c, "x");

        fake_finish(q, &o);
        cr_assert_eq(o.reason, PIPIT_REASON_STOP, "%s", o.error.text);
        pipit_request_destroy(q);
    }
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

static void script_slow(struct fake_front *f)
{
    struct lane_record r;
    struct timespec wait = {.tv_nsec = 120000000};

    fake_accept(f);
    r = fake_expect(f, LANE_REQUEST);
    fake_accepted(f, r.h.id);
    for (uint64_t i = 0; i < 4; i++) {
        (void)nanosleep(&wait, NULL);
        fake_token(f, r.h.id, 2 + i, ".");
    }
    fake_done(f, r.h.id, 6, LANE_REASON_STOP);
}

Test(client_faults, a_slow_daemon_is_waited_for)
{
    struct fake_front f;
    struct fake_outcome o;
    const struct pipit_event *ev;

    fake_front_start(&f, script_slow);
    struct pipit_client *c = fake_client(&f);
    struct pipit_request *q = fake_ask(c, "x");
    cr_assert_eq(pipit_request_next(q, 1000, &ev), 1);
    cr_assert_eq(pipit_request_next(q, 20, &ev), -EAGAIN);
    cr_assert_eq(pipit_request_next(q, 0, &ev), -EAGAIN);
    fake_finish(q, &o);
    cr_assert_str_eq(o.text, "....");
    pipit_request_destroy(q);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}

/* A lease's memory outlives its lane, and the lease then names nothing. */
static void script_lease_dies(struct fake_front *f)
{
    struct lane_record r;

    fake_accept(f);
    r = fake_expect(f, LANE_LEASE_GET);
    r.h.type = LANE_LEASE;
    r.lease.buf = 2;
    r.lease.offset = 4096;
    memset(f->e2c + 4096, 7, 8);
    fake_send(f, &r);
    (void)fake_expect(f, LANE_STATUS_GET);
    fake_hang_up(f);
    fake_accept(f);
    cr_assert(fake_wait_end(f));
}

Test(client_faults, a_lease_outlives_its_lane_as_memory)
{
    struct fake_front f;
    struct pipit_error e = {0};
    struct pipit_lease *l = NULL;
    struct pipit_request *q;
    struct fake_outcome o;
    const struct pipit_status *s;

    fake_front_start(&f, script_lease_dies);
    struct pipit_client *c = fake_client(&f);
    cr_assert_eq(pipit_lease_get(c, PIPIT_FROM_DAEMON, 8, &l, &e), 0, "%s", e.text);
    cr_assert(pipit_lease_alive(l));
    cr_assert_lt(pipit_client_status(c, &s, &e), 0);
    cr_assert_not(pipit_lease_alive(l));
    cr_assert_eq(((const uint8_t *)pipit_lease_read(l))[7], 7);
    cr_assert_eq(pipit_request_create(c, PIPIT_SCORE, &q), 0);
    cr_assert_eq(pipit_request_set_output(q, l), 0);
    cr_assert_eq(pipit_request_send(q, &e), 0);
    fake_finish(q, &o);
    cr_assert_eq(o.error.err, -ESTALE);
    pipit_request_destroy(q);
    pipit_lease_put(l);
    pipit_client_destroy(c);
    fake_front_stop(&f);
}
