/* SPDX-License-Identifier: Apache-2.0 */
#ifndef PIPIT_BASE_LOG_H
#define PIPIT_BASE_LOG_H

/* Log lines of the daemons: one line on stderr with a "<N>" priority prefix when stderr is the
 * journal (sd-daemon(3)), else "program: text". A line that an owner would filter by also has
 * fields: where stderr is the journal it goes to journald's own socket instead, in its native
 * protocol (a datagram of NAME=value lines), and as a plain line to stderr where it cannot.
 * Libraries never log. Never pass prompt or output text. */

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum log_level {
    LOG_LEVEL_ERR = 3,
    LOG_LEVEL_WARNING = 4,
    LOG_LEVEL_INFO = 6,
    LOG_LEVEL_DEBUG = 7
};

/* Fields of one line, "NAME=value\n" each; begins as {0}. What does not fit makes it `full`, and
 * the line goes to stderr without any. */
struct log_fields {
    char text[1024];
    size_t len;
    bool full;
};

/* `program` must outlive the process's logging (a literal); levels above `max_level` are
 * dropped. */
void log_init(const char *program, enum log_level max_level);
/* A line for which stderr has no room is lost, and how many were is told later: for who serves
 * others, and has one thread for it. */
void log_never_wait(void);
/* The datagram socket for lines with fields, in place of journald's; `path` must outlive them. */
void log_set_socket(const char *path);
void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

/* `name` is of A-Z, 0-9 and _; control characters of the value become spaces. */
void log_field(struct log_fields *f, const char *name, const char *fmt, ...) PRINTF_LIKE(3, 4);
void log_write_fields(enum log_level level, const struct log_fields *f, const char *fmt, ...)
    PRINTF_LIKE(3, 4);

/* A line whose only field is PIPIT_EVENT=event. */
void log_event(enum log_level level, const char *event, const char *fmt, ...) PRINTF_LIKE(3, 4);

#define log_error(...) log_write(LOG_LEVEL_ERR, __VA_ARGS__)
#define log_warning(...) log_write(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_write(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_write(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
