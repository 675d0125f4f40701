/* SPDX-License-Identifier: Apache-2.0 */
/* One formatted line, one write(2) or one datagram: lines of several threads and processes never
 * mix. Nothing here waits for journald: a socket that is full means its stream, stderr, and where
 * that is full, too, the line is lost. */

#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sock.h"
#include "base/utf8.h"

enum { LINE_BYTES = 1024 };

static const char *log_program = "pipit";
static enum log_level log_max = LOG_LEVEL_INFO;
static bool log_to_journal;
static bool log_waits = true;
static atomic_uint log_lost; /* lines, since the last that found room */
static const char *log_socket = "/run/systemd/journal/socket";
static atomic_int log_fd = -1; /* opened by the first line with fields, then kept */

void log_init(const char *program, enum log_level max_level)
{
    struct stat st;
    unsigned long long dev = 0;
    unsigned long long ino = 0;
    /* The one environment lookup outside main(): systemd's own contract for stderr. */
    const char *stream = getenv("JOURNAL_STREAM");

    log_program = program;
    log_max = max_level;
    log_to_journal = stream && sscanf(stream, "%llu:%llu", &dev, &ino) == 2 &&
                     fstat(STDERR_FILENO, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

void log_never_wait(void)
{
    log_waits = false;
}

void log_set_socket(const char *path)
{
    log_socket = path;
}

/* A client's or a file's words end no line, begin no field and speak to no terminal: control
 * characters (C1, which are C2 80 to C2 9F, too) and bytes that are no UTF-8 become blanks. */
static void clean(char *text, size_t len)
{
    for (size_t i = 0; i < len;) {
        int n = utf8_character(text + i, len - i);
        unsigned char second = n == 2 ? (unsigned char)text[i + 1] : 0xff;

        if (n <= 0 || (unsigned char)text[i] < ' ' || text[i] == 0x7f) {
            text[i++] = ' ';
        } else if ((unsigned char)text[i] == 0xc2 && second < 0xa0) {
            text[i++] = ' ';
            text[i++] = ' ';
        } else {
            i += (size_t)n;
        }
    }
}

/* A pipe that is not full takes a line of ours whole. */
static bool has_room(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};

    return log_waits || log_to_journal || poll(&p, 1, 0) != 0;
}

static void tell_lost(void)
{
    char line[128];
    unsigned lost = atomic_exchange(&log_lost, 0);
    int n = snprintf(line, sizeof(line), "%.60s: nobody read this: %u lines are lost\n",
                     log_program, lost);

    if (lost > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) {
        return;
    }
}

static void to_stderr(enum log_level level, const char *text)
{
    char line[LINE_BYTES + 64];
    int n = log_to_journal ? snprintf(line, sizeof(line), "<%d>%s\n", (int)level, text)
                           : snprintf(line, sizeof(line), "%.60s: %s\n", log_program, text);

    if (n <= 0) {
        return;
    }
    n = n < (int)sizeof(line) ? n : (int)sizeof(line) - 1;
    if (!has_room()) {
        atomic_fetch_add(&log_lost, 1);
        return;
    }
    if (atomic_load(&log_lost)) {
        tell_lost();
        if (!has_room()) {
            atomic_fetch_add(&log_lost, 1);
            return;
        }
    }
    /* Under systemd this is a socket of journald's, which nobody who serves waits for. */
    if (!log_to_journal || send(STDERR_FILENO, line, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
        bool full = log_to_journal && errno == EAGAIN;

        if (full || write(STDERR_FILENO, line, (size_t)n) < 0) {
            return; /* nowhere left to say it */
        }
    }
}

/* False: journald did not take it. */
static bool to_journal(enum log_level level, const struct log_fields *f, const char *text)
{
    char datagram[LINE_BYTES + sizeof(f->text) + 128];
    struct sockaddr_un to;
    int fd = atomic_load(&log_fd);
    int n;

    if (f->full || sock_address(log_socket, &to, NULL)) {
        return false;
    }
    if (fd < 0) {
        int none = -1;

        fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        if (fd < 0) {
            return false;
        }
        if (!atomic_compare_exchange_strong(&log_fd, &none, fd)) {
            (void)close(fd); /* another thread was first */
            fd = none;
        }
    }
    n = snprintf(datagram, sizeof(datagram),
                 "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=%.60s\n%.*s", text, (int)level,
                 log_program, (int)f->len, f->text);
    return n > 0 && (size_t)n < sizeof(datagram) &&
           sendto(fd, datagram, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&to,
                  sizeof(to)) == n;
}

/* Without fields the stream is enough: journald reads the level from it. */
static void put(enum log_level level, const struct log_fields *f, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

static void put(enum log_level level, const struct log_fields *f, const char *fmt, va_list ap)
{
    char text[LINE_BYTES];

    if (level > log_max) {
        return;
    }
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    clean(text, strlen(text));
    if (!f || !log_to_journal || !to_journal(level, f, text)) {
        to_stderr(level, text);
    }
}

void log_write(enum log_level level, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, NULL, fmt, ap);
    va_end(ap);
}

void log_field(struct log_fields *f, const char *name, const char *fmt, ...)
{
    size_t room = sizeof(f->text) - f->len;
    char *at = f->text + f->len;
    va_list ap;
    int n_name = snprintf(at, room, "%s=", name);
    int n;

    if (n_name < 0 || (size_t)n_name >= room) {
        f->full = true;
        return;
    }
    va_start(ap, fmt);
    n = vsnprintf(at + n_name, room - (size_t)n_name, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n + 1 >= room - (size_t)n_name) { /* the newline */
        f->full = true;
        return;
    }
    clean(at + n_name, (size_t)n);
    at[n_name + n] = '\n';
    f->len += (size_t)n_name + (size_t)n + 1;
}

void log_write_fields(enum log_level level, const struct log_fields *f, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    put(level, f, fmt, ap);
    va_end(ap);
}

void log_event(enum log_level level, const char *event, const char *fmt, ...)
{
    struct log_fields f = {0};
    va_list ap;

    log_field(&f, "PIPIT_EVENT", "%s", event);
    va_start(ap, fmt);
    put(level, &f, fmt, ap);
    va_end(ap);
}
