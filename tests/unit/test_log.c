/* SPDX-License-Identifier: Apache-2.0 */
/* base/log.h: lines with fields reach a real datagram socket when stderr is the journal, and stderr
 * when it is not, when nobody listens, when the socket is full, and when the fields are too long.
 */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"

static char folder[] = "/tmp/pipit-log.XXXXXX";
static char path[64];
static int listener = -1;
static int err = -1; /* what stderr is */

static void setup(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    char stream[64];

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
}

static void teardown(void)
{
    (void)close(listener);
    (void)unlink(path);
    (void)rmdir(folder);
}

TestSuite(log, .init = setup, .fini = teardown);

static const char *received(void)
{
    static char buf[4096];
    ssize_t n = recv(listener, buf, sizeof(buf) - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

static const char *on_stderr(void)
{
    static char buf[8192];
    ssize_t n = pread(err, buf, sizeof(buf) - 1, 0);

    buf[n > 0 ? n : 0] = '\0';
    return buf;
}

Test(log, an_event_is_a_field)
{
    log_event(LOG_LEVEL_ERR, "model-failed", "%s: %d", "no such file", 2);
    cr_assert_str_eq(received(), "MESSAGE=no such file: 2\nPRIORITY=3\nSYSLOG_IDENTIFIER=unit\n"
                                 "PIPIT_EVENT=model-failed\n");
    log_event(LOG_LEVEL_DEBUG, "x", "y");
    cr_assert_str_eq(received(), "");
}

Test(log, fields_arrive_in_one_datagram)
{
    struct log_fields f = {0};

    log_field(&f, "PIPIT_EVENT", "request");
    log_field(&f, "PIPIT_MS", "%.1f", 2.5);
    log_write_fields(LOG_LEVEL_WARNING, &f, "request %d", 7);
    cr_assert_str_eq(received(), "MESSAGE=request 7\nPRIORITY=4\nSYSLOG_IDENTIFIER=unit\n"
                                 "PIPIT_EVENT=request\nPIPIT_MS=2.5\n");
    cr_assert_str_eq(on_stderr(), "");
}

Test(log, a_value_speaks_to_no_terminal)
{
    struct log_fields f = {0};

    log_field(&f, "PIPIT_REASON", "\x1b[1m\xc2\x9b\xc3\xa4\xe2\x82");
    log_write_fields(LOG_LEVEL_INFO, &f,
                     "\xff\x9b"
                     "2J \xe2\x82\xac\x7f");
    cr_assert_str_eq(received(), "MESSAGE=  2J \xe2\x82\xac \nPRIORITY=6\nSYSLOG_IDENTIFIER=unit\n"
                                 "PIPIT_REASON= [1m  \xc3\xa4  \n");
}

Test(log, a_value_begins_no_field)
{
    struct log_fields f = {0};

    log_field(&f, "PIPIT_REASON", "a\nPRIORITY=%d", 0);
    log_write_fields(LOG_LEVEL_INFO, &f, "b\nPRIORITY=0");
    cr_assert_str_eq(received(), "MESSAGE=b PRIORITY=0\nPRIORITY=6\nSYSLOG_IDENTIFIER=unit\n"
                                 "PIPIT_REASON=a PRIORITY=0\n");
}

Test(log, too_long_goes_to_stderr)
{
    struct log_fields f = {0};
    char big[1100];

    memset(big, 'x', sizeof(big) - 1);
    big[sizeof(big) - 1] = '\0';
    log_field(&f, "PIPIT_REASON", "%s", big);
    cr_assert(f.full);
    log_write_fields(LOG_LEVEL_ERR, &f, "text");
    cr_assert_str_eq(received(), "");
    cr_assert_str_eq(on_stderr(), "<3>text\n");
}

Test(log, fields_that_just_fit)
{
    struct log_fields f = {0};
    char big[sizeof(f.text)];

    memset(big, 'x', sizeof(big));
    big[sizeof(f.text) - 4] = '\0'; /* A=, the newline, and vsnprintf's 0 */
    log_field(&f, "A", "%s", big);
    cr_assert(!f.full);
    cr_assert_eq(f.len, sizeof(f.text) - 1);
    log_field(&f, "B", "%s", "");
    cr_assert(f.full);
}

Test(log, nobody_listens)
{
    struct log_fields f = {0};

    (void)close(listener);
    listener = -1;
    log_write_fields(LOG_LEVEL_INFO, &f, "text");
    cr_assert_str_eq(on_stderr(), "<6>text\n");
}

Test(log, a_full_socket_is_not_waited_for)
{
    struct log_fields f = {0};

    for (int i = 0; i < 10000 && !*on_stderr(); i++) {
        log_write_fields(LOG_LEVEL_INFO, &f, "text");
    }
    cr_assert_str_eq(on_stderr(), "<6>text\n");
}

Test(log, stderr_that_is_no_journal)
{
    struct log_fields f = {0};

    cr_assert_eq(setenv("JOURNAL_STREAM", "1:1", 1), 0);
    log_init("unit", LOG_LEVEL_INFO);
    log_write_fields(LOG_LEVEL_INFO, &f, "text");
    log_write_fields(LOG_LEVEL_DEBUG, &f, "dropped");
    cr_assert_str_eq(received(), "");
    cr_assert_str_eq(on_stderr(), "unit: text\n");
}

Test(log, a_pipe_that_nobody_reads)
{
    char full[4096] = "";
    int p[2];

    cr_assert_eq(unsetenv("JOURNAL_STREAM"), 0);
    cr_assert_eq(pipe(p), 0);
    cr_assert_eq(fcntl(p[0], F_SETFL, O_NONBLOCK), 0);
    cr_assert_eq(dup2(p[1], STDERR_FILENO), STDERR_FILENO);
    log_init("unit", LOG_LEVEL_INFO);
    log_never_wait();
    for (int i = 0; i < 2000; i++) { /* 64 KiB at most fit */
        log_info("line %d of more than a pipe holds, which would wait", i);
    }
    while (read(p[0], full, sizeof(full)) > 0) {
    }
    log_info("there is room again");
    ssize_t n = read(p[0], full, sizeof(full) - 1);
    cr_assert(n > 0);
    full[n] = '\0';
    cr_assert_not_null(strstr(full, "lines are lost\nunit: there is room again\n"), "%s", full);
}
