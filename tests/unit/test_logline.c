/* SPDX-License-Identifier: Apache-2.0 */
/* daemon/front/logline.h through base/log.h, with a datagram socket of its own in journald's place:
 * what a request's line holds, which ends are told, and how many at most. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/front/front.h"

static char folder[] = "/tmp/logline-XXXXXX";
static char path[64];
static int listener;
static struct config config;
static struct front f;
static struct principal who = {.uid = 1000};
static struct request r;

static void setup(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char stream[64];
    struct stat st;
    struct error e = {0};
    int err;

    cr_assert_eq(loop_init(&f.loop, 8, &e), 0);
    cr_assert(mkdtemp(folder));
    (void)snprintf(path, sizeof(path), "%s/socket", folder);
    memcpy(a.sun_path, path, strlen(path) + 1);
    listener = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(listener, (struct sockaddr *)&a, sizeof(a)), 0);
    err = memfd_create("stderr", 0);
    cr_assert_eq(dup2(err, STDERR_FILENO), STDERR_FILENO);
    cr_assert_eq(fstat(err, &st), 0);
    (void)snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev,
                   (unsigned long long)st.st_ino);
    cr_assert_eq(setenv("JOURNAL_STREAM", stream, 1), 0);
    log_init("unit", LOG_LEVEL_INFO);
    log_set_socket(path);

    f.config = &config;
    config.log_requests = LOGLINE_ALL;
    r = (struct request){.front = &f, .number = 7, .who = &who, .kind = LANE_KIND_CHAT};
    memset(r.id, 0xab, sizeof(r.id));
    r.log.n_tokens = 40;
    r.accepted_ns = 1000000000;
    r.started_ns = 1002500000;
    r.ended_ns = 1100000000;
}

static void teardown(void)
{
    (void)close(listener);
    (void)unlink(path);
    (void)rmdir(folder);
}

TestSuite(logline, .init = setup, .fini = teardown);

static const char *received(void)
{
    static char buf[4096];
    ssize_t n = recv(listener, buf, sizeof(buf) - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

static struct lane_record done(uint32_t reason)
{
    struct lane_record rec;

    lane_record_init(&rec, LANE_DONE, r.id);
    rec.done.reason = reason;
    rec.done.n_prompt = 9;
    rec.done.n_cached = 4;
    rec.done.n_new = 40;
    rec.done.prefill_ns = 12300000;
    rec.done.decode_ns = 80000000;
    rec.done.session = LANE_SESSION_NOT_SAVED;
    (void)strcpy(rec.done.session_cause, "secret cause");
    return rec;
}

static struct lane_record failed(uint32_t code)
{
    struct lane_record rec;

    lane_record_init(&rec, LANE_ERROR, r.id);
    rec.error.code = code;
    (void)strcpy(rec.error.text, "secret text");
    return rec;
}

Test(logline, a_line_has_its_fields_and_no_text)
{
    struct lane_record last = done(LANE_REASON_LENGTH);

    logline_request(&f, &r, &last);
    cr_assert_str_eq(received(),
                     "MESSAGE=request 7 of uid 1000: length, 9 + 40 tokens, 100.0 ms\n"
                     "PRIORITY=6\nSYSLOG_IDENTIFIER=unit\nPIPIT_EVENT=request\n"
                     "PIPIT_REQUEST_ID=abababababababababababababababab\nPIPIT_PRINCIPAL=1000\n"
                     "PIPIT_KIND=chat\nPIPIT_REASON=length\nPIPIT_PROMPT_TOKENS=9\n"
                     "PIPIT_CACHED_TOKENS=4\nPIPIT_NEW_TOKENS=40\nPIPIT_QUEUE_MS=2.5\n"
                     "PIPIT_LOAD_MS=0.0\nPIPIT_PREFILL_MS=12.3\nPIPIT_DECODE_MS=80.0\n"
                     "PIPIT_SESSION=not-saved\nPIPIT_MS=100.0\n");
}

/* By its errno, since the cause has the name that somebody gave it. */
Test(logline, a_session_that_was_not_saved)
{
    static const struct {
        int err;
        const char *priority, *what;
    } cases[] = {{-ENOSPC, "PRIORITY=4\n", "No space left on device"},
                 {-EDQUOT, "PRIORITY=6\n", "Disk quota exceeded"},
                 {-ECANCELED, "PRIORITY=6\n", NULL}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct lane_record last = done(LANE_REASON_LENGTH);
        char want[128] = "";
        const char *got;

        last.done.session_err = cases[i].err;
        logline_request(&f, &r, &last);
        got = received();
        cr_assert(strstr(got, cases[i].priority), "%s", got);
        (void)snprintf(want, sizeof(want), "100.0 ms, its session was not saved: %s\n",
                       cases[i].what ? cases[i].what : "");
        cr_assert_eq(strstr(got, want) != NULL, cases[i].what != NULL, "%s", got);
        cr_assert_eq(strstr(got, "PIPIT_SESSION_CAUSE") != NULL, cases[i].what != NULL, "%s", got);
        cr_assert(!strstr(got, "secret"), "%s", got);
    }
}

Test(logline, an_error_has_its_name_and_ours_are_warnings)
{
    struct lane_record last = failed(LANE_ERR_CONTEXT_OVERFLOW);
    const char *got;

    logline_request(&f, &r, &last);
    got = received();
    cr_assert(strstr(got, "PRIORITY=6\n"), "%s", got);
    cr_assert(strstr(got, "PIPIT_REASON=CONTEXT_OVERFLOW\n"), "%s", got);
    cr_assert(!strstr(got, "secret"), "%s", got);
    last = failed(LANE_ERR_ENGINE_CRASHED);
    logline_request(&f, &r, &last);
    got = received();
    cr_assert(strstr(got, "PRIORITY=4\n"), "%s", got);
}

Test(logline, which_ends_are_told)
{
    static const struct {
        uint32_t reason;
        bool failed;
    } ends[] = {{LANE_REASON_STOP, false},   {LANE_REASON_CANCELLED, false},
                {LANE_REASON_TIMEOUT, true}, {LANE_REASON_SLOW_CONSUMER, true},
                {LANE_REASON_ERROR, true},   {0, true}};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        struct lane_record last = ends[i].reason ? done(ends[i].reason) : failed(LANE_ERR_INTERNAL);

        config.log_requests = LOGLINE_ALL;
        logline_request(&f, &r, &last);
        cr_assert(received()[0]);
        config.log_requests = LOGLINE_FAILED;
        logline_request(&f, &r, &last);
        cr_assert_eq(received()[0] != 0, ends[i].failed, "%zu", i);
        config.log_requests = LOGLINE_NONE;
        logline_request(&f, &r, &last);
        cr_assert(!received()[0]);
    }
}

static int n_told(const struct lane_record *last, int n)
{
    int told = 0;

    for (int i = 0; i < n; i++) {
        logline_request(&f, &r, last);
        told += received()[0] != 0;
    }
    return told;
}

/* 100 at once, then one a second; the next line says how many it stands for. */
Test(logline, no_more_than_that)
{
    struct lane_record last = done(LANE_REASON_STOP);
    const char *got;

    for (int i = 0; i < 250; i++) {
        logline_request(&f, &r, &last);
        cr_assert_eq(received()[0] != 0, i < 100, "%d", i);
    }
    r.ended_ns += 10000000000;
    for (int i = 0; i < 20; i++) {
        logline_request(&f, &r, &last);
        got = received();
        cr_assert_eq(got[0] != 0, i < 10, "%d", i);
        cr_assert_eq(strstr(got, "PIPIT_LEFT_OUT=150\n") != NULL, i == 0, "%s", got);
    }
    r.ended_ns += 600000000000;
    cr_assert_eq(n_told(&last, 101), 100);
}

/* One user's flood leaves out no other's line, whatever tenant it says it is, and no fault of ours.
 */
Test(logline, each_user_has_a_rate)
{
    struct lane_record last = done(LANE_REASON_STOP);
    struct lane_record fault = failed(LANE_ERR_INTERNAL);
    struct principal tenant = {.uid = 1000, .tenant_len = 1, .tenant = "t"};
    struct principal other = {.uid = 1001};

    cr_assert_eq(n_told(&last, 150), 100);
    cr_assert_eq(n_told(&fault, 150), 100);
    r.who = &tenant;
    cr_assert_eq(n_told(&last, 5), 0);
    r.who = &other;
    logline_request(&f, &r, &last);
    cr_assert(!strstr(received(), "LEFT_OUT"), "another's");
    cr_assert_eq(n_told(&last, 150), 99);
    cr_assert_eq(n_told(&fault, 1), 0);
}

/* More users than there are places: each has a place, or shares the one of all others, which names
 * nobody; none is without bound. */
Test(logline, many_users)
{
    struct lane_record last = done(LANE_REASON_STOP);
    int told = 0;

    for (uint32_t uid = 0; uid < 3 * LOGLINE_USERS; uid++) {
        who.uid = uid;
        told += n_told(&last, uid < LOGLINE_USERS ? 100 : 110);
    }
    cr_assert_eq(told, 100 * (LOGLINE_USERS + 1));
    logline_flush(&f);
    const char *line = received();

    cr_assert(strstr(line, "of other users"), "%s", line);
    cr_assert(!strstr(line, "PIPIT_PRINCIPAL="), "%s", line);
    cr_assert_str_eq(received(), "");
    r.ended_ns += 101000000000; /* all are free again */
    who.uid = 5000;
    cr_assert_eq(n_told(&last, 110), 100);
}

static void stop(void *arg)
{
    loop_stop(arg);
}

/* Nobody's next line comes: the timer tells, or the end. */
Test(logline, what_was_left_out_is_told)
{
    struct lane_record last = done(LANE_REASON_STOP);
    struct lane_record fault = failed(LANE_ERR_INTERNAL);
    struct loop_timer end = {0};
    const char *got;

    cr_assert_eq(n_told(&last, 142), 100);
    cr_assert_eq(n_told(&fault, 101), 100);
    logline_flush(&f);
    cr_assert_str_eq(received(),
                     "MESSAGE=ends of 42 requests not told, of uid 1000: too many\n"
                     "PRIORITY=6\nSYSLOG_IDENTIFIER=unit\nPIPIT_EVENT=requests-left-out\n"
                     "PIPIT_PRINCIPAL=1000\nPIPIT_LEFT_OUT=42\n");
    got = received();
    cr_assert(strstr(got, "ends of 1 requests not told, of failures of ours"), "%s", got);
    logline_flush(&f);
    cr_assert(!received()[0], "told once");

    r.ended_ns = clock_ns() - 59900000000; /* due in a tenth of a second */
    f.logline.users[0].full_ns = r.ended_ns + 200000000000;
    cr_assert_eq(n_told(&last, 3), 0);
    loop_timer_at(&f.loop, &end, clock_ns() + 300000000, stop, &f.loop);
    cr_assert_eq(loop_run(&f.loop, NULL, NULL), 0);
    got = received();
    cr_assert(strstr(got, "PIPIT_LEFT_OUT=3\n"), "%s", got);
}
